package pods_test

import (
	"context"
	"encoding/base64"
	"encoding/json"
	"maps"
	"os"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"testing"

	. "github.com/onsi/gomega"
	corev1 "k8s.io/api/core/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/yaml"

	pulumiv1 "github.com/stack-controller/stack-controller/api/pulumi/v1"
	"github.com/stack-controller/stack-controller/tests/framework/gitserver"
	"github.com/stack-controller/stack-controller/tests/framework/localsystem"
	"github.com/stack-controller/stack-controller/tests/framework/suite"
)

// yamlBlocks finds the YAML blocks of a page.
var yamlBlocks = regexp.MustCompile("(?s)```yaml\n(.*?)```")

// guideStacks returns the Stacks of the guide by their names, and its other objects as one manifest, all for the namespace.
func guideStacks(g *WithT, guide, namespace string) (stacks map[string]*pulumiv1.Stack, others string) {
	page, err := os.ReadFile(filepath.Join("..", "..", "..", "docs", "guides", guide))
	g.Expect(err).NotTo(HaveOccurred())
	stacks = map[string]*pulumiv1.Stack{}
	for _, block := range yamlBlocks.FindAllStringSubmatch(string(page), -1) {
		for document := range strings.SplitSeq(block[1], "\n---\n") {
			document = strings.Replace(document, "namespace: default", "namespace: "+namespace, 1)
			stack := &pulumiv1.Stack{}
			g.Expect(yaml.Unmarshal([]byte(document), stack)).To(Succeed())
			if stack.Kind == pulumiv1.StackKind {
				stacks[stack.Name] = stack
				continue
			}
			others += document + "\n---\n"
		}
	}
	return stacks, others
}

// claims are those of a token that a cloud looks at.
type claims struct {
	Issuer   string   `json:"iss"`
	Audience []string `json:"aud"`
	Subject  string   `json:"sub"`
	// IssuedAt and Expiry are in seconds since 1970.
	IssuedAt int64 `json:"iat"`
	Expiry   int64 `json:"exp"`
}

// cloudPod is what the guide says about the pod of one of its Stacks.
type cloudPod struct {
	account string
	// token is the file with the token, if the pod gets one for the cloud; audience and seconds are what is in it, and how long it is valid.
	token, audience string
	seconds         int64
	// env are variables that Pulumi has.
	env []string
}

// googleProvider is the provider of a workload identity pool.
const googleProvider = "//iam.googleapis.com/projects/123456789012/locations/global/workloadIdentityPools/clusters/providers/production"

// The webhooks of AWS ask for tokens that are valid for a day, all others for an hour.
var cloudPods = map[string]cloudPod{
	"aws-pod-identity": {"aws-network", "/var/run/secrets/pods.eks.amazonaws.com/serviceaccount/eks-pod-identity-token", "pods.eks.amazonaws.com", 86400, []string{
		"AWS_CONTAINER_CREDENTIALS_FULL_URI=http://169.254.170.23/v1/credentials",
		"AWS_CONTAINER_AUTHORIZATION_TOKEN_FILE=/var/run/secrets/pods.eks.amazonaws.com/serviceaccount/eks-pod-identity-token",
	}},
	"aws-roles": {"aws-roles", "/var/run/secrets/eks.amazonaws.com/serviceaccount/token", "sts.amazonaws.com", 86400, []string{
		"AWS_ROLE_ARN=arn:aws:iam::123456789012:role/network", "AWS_WEB_IDENTITY_TOKEN_FILE=/var/run/secrets/eks.amazonaws.com/serviceaccount/token",
	}},
	"aws-anywhere": {"aws-roles", "/var/run/secrets/aws/token", "sts.amazonaws.com", 3600, []string{
		"AWS_ROLE_ARN=arn:aws:iam::123456789012:role/network", "AWS_WEB_IDENTITY_TOKEN_FILE=/var/run/secrets/aws/token", "AWS_REGION=eu-central-1",
	}},
	"azure": {"azure", azureToken, "api://AzureADTokenExchange", 3600, []string{
		"AZURE_CLIENT_ID=00000000-0000-0000-0000-000000000001", "AZURE_TENANT_ID=00000000-0000-0000-0000-000000000002",
		"AZURE_AUTHORITY_HOST=https://login.microsoftonline.com/", "AZURE_FEDERATED_TOKEN_FILE=" + azureToken,
		"ARM_USE_OIDC=true", "ARM_CLIENT_ID=00000000-0000-0000-0000-000000000001", "ARM_TENANT_ID=00000000-0000-0000-0000-000000000002",
		"ARM_SUBSCRIPTION_ID=00000000-0000-0000-0000-000000000003",
	}},
	"google": {account: "google", env: []string{"GOOGLE_PROJECT=my-project"}},
	"google-anywhere": {"google", "/var/run/secrets/google/token", "https:" + googleProvider, 3600, []string{
		"GOOGLE_APPLICATION_CREDENTIALS=" + googleCredentials, "GOOGLE_PROJECT=my-project",
	}},
}

const (
	azureToken        = "/var/run/secrets/azure/tokens/azure-identity-token"
	googleCredentials = "/var/run/secrets/google/credentials.json"
)

// The update of each pod runs until the file heldUntil is there, and heldJournal says that it runs.
const (
	heldUntil   = "/home/pulumi/release"
	heldJournal = "/home/pulumi/journal"
)

// pulumiVariables prints the variables that pulumi has while it runs.
const pulumiVariables = `tr '\0' '\n' </proc/$(pidof pulumi | cut -d' ' -f1)/environ`

// TestPodsHaveTheTokensThatCloudsTrust runs the Stacks of the guide. Where a webhook of a cloud changes the pod, an admission policy does what it
// does; the clouds themselves are not there.
func TestPodsHaveTheTokensThatCloudsTrust(t *testing.T) {
	suite.Long(t, "one pod for each cloud")
	t.Parallel()
	g := NewWithT(t)
	ctx := t.Context()
	const name = "cloud-identity"
	removeNamespaceAtEnd(t, g, name)
	app, template, err := system.Provide(ctx, name, gitserver.Files{"Pulumi.yaml": "name: " + name + "\nruntime: yaml\nresources:\n" +
		resourceThatSleeps("held", "until: "+heldUntil+", journal: "+heldJournal)})
	g.Expect(err).NotTo(HaveOccurred())
	stacks, others := guideStacks(g, "cloud-identity.md", name)
	_, err = system.Cluster.KubectlInput(ctx, others, "apply", "--filename=-")
	g.Expect(err).NotTo(HaveOccurred())
	apply(ctx, g, "cloudwebhooks.yaml", map[string]string{"NAMESPACE": name})
	t.Cleanup(func() {
		_, err := kubectl(context.Background(), "delete", "mutatingadmissionpolicies,mutatingadmissionpolicybindings", "--selector=stack-controller.test/of="+name)
		g.Expect(err).NotTo(HaveOccurred())
	})

	// A policy has no effect until the API server has noticed it.
	for account, pod := range map[string]string{"aws-network": "any", "aws-roles": "aws-roles", "azure": "any"} {
		g.Eventually(func() (*corev1.Pod, error) {
			pod := &corev1.Pod{Namespace: name, Name: pod, Labels: map[string]string{"azure.workload.identity/use": strconv.FormatBool(account == "azure")}}
			pod.Spec = corev1.PodSpec{
				ServiceAccountName: account,
				SecurityContext: &corev1.PodSecurityContext{
					RunAsNonRoot: new(true), SeccompProfile: &corev1.SeccompProfile{Type: corev1.SeccompProfileTypeRuntimeDefault},
				},
				Containers: []corev1.Container{{
					Name: "any", Image: "any", Env: []corev1.EnvVar{{Name: "A", Value: "a"}},
					SecurityContext: &corev1.SecurityContext{
						AllowPrivilegeEscalation: new(false), Capabilities: &corev1.Capabilities{Drop: []corev1.Capability{"ALL"}},
					},
				}},
			}
			return pod, system.Client.Create(ctx, pod, client.DryRunAll)
		}).WithTimeout(patience).Should(HaveField("Spec.Volumes", ContainElement(HaveField("Name", ContainSubstring("-token")))), account)
	}

	discovery, err := kubectl(ctx, "get", "--raw=/.well-known/openid-configuration")
	g.Expect(err).NotTo(HaveOccurred())
	var cluster struct{ Issuer string }
	g.Expect(json.Unmarshal([]byte(discovery), &cluster)).To(Succeed())
	g.Expect(cluster.Issuer).NotTo(BeEmpty())

	for stack, want := range cloudPods {
		t.Run(stack, func(t *testing.T) {
			t.Parallel()
			g := NewWithT(t)
			written := stacks[stack]
			g.Expect(written).NotTo(BeNil())
			g.Expect(system.Client.Create(ctx, asWritten(template.DeepCopy(), written))).To(Succeed())
			eventually(ctx, g, func(g Gomega) {
				g.Expect(runInPod(ctx, name, stack, "cat "+heldJournal)).To(ContainSubstring("create start"))
			})
			want.expect(ctx, g, name, stack, cluster.Issuer)
			_, err := runInPod(ctx, name, stack, "touch "+heldUntil)
			g.Expect(err).NotTo(HaveOccurred())
			waitReady(ctx, g, &localsystem.App{Namespace: name, Name: stack, Repository: app.Repository})
		})
	}
}

// asWritten makes the Stack what the guide has written, where that matters for its pod.
func asWritten(deployed, written *pulumiv1.Stack) *pulumiv1.Stack {
	deployed.Name, deployed.Spec.Stack, deployed.Spec.ServiceAccountName = written.Name, written.Name, written.Spec.ServiceAccountName
	maps.Copy(deployed.Spec.EnvRefs, written.Spec.EnvRefs)
	if written.Spec.WorkspaceTemplate == nil {
		return deployed
	}
	from, into := written.Spec.WorkspaceTemplate.Spec.PodTemplate, deployed.Spec.WorkspaceTemplate.Spec.PodTemplate
	into.Metadata = from.Metadata
	if from.Spec != nil {
		container := &into.Spec.Containers[0]
		container.Env = append(container.Env, from.Spec.Containers[0].Env...)
		container.VolumeMounts = append(container.VolumeMounts, from.Spec.Containers[0].VolumeMounts...)
		into.Spec.Volumes = append(into.Spec.Volumes, from.Spec.Volumes...)
	}
	return deployed
}

// expect compares the pod of the Stack, in which an update runs, with what the guide says, and its token also with the issuer of the cluster. It
// prints no token.
func (want cloudPod) expect(ctx context.Context, g *WithT, namespace, stack, issuer string) {
	run := func(command string) string {
		output, err := runInPod(ctx, namespace, stack, command)
		g.Expect(err).NotTo(HaveOccurred())
		return strings.TrimSpace(output)
	}
	pod := &corev1.Pod{}
	g.Expect(system.Client.Get(ctx, client.ObjectKey{Namespace: namespace, Name: stack + "-workspace-0"}, pod)).To(Succeed())
	g.Expect(pod.Spec.ServiceAccountName).To(Equal(want.account))
	variables := run(pulumiVariables + " | grep -E '^(AWS|AZURE|ARM|GOOGLE)_' | grep -v '^ARM_OIDC_TOKEN='")
	g.Expect(strings.Split(variables, "\n")).To(ContainElements(want.env))
	if want.token == "" {
		return
	}
	decoded, err := base64.RawURLEncoding.DecodeString(run("cut -d. -f2 " + want.token))
	g.Expect(err).NotTo(HaveOccurred())
	var found claims
	g.Expect(json.Unmarshal(decoded, &found)).To(Succeed())
	g.Expect(found.Issuer).To(Equal(issuer))
	g.Expect(found.Audience).To(Equal([]string{want.audience}))
	g.Expect(found.Subject).To(Equal("system:serviceaccount:" + namespace + ":" + want.account))
	g.Expect(found.Expiry - found.IssuedAt).To(Equal(want.seconds))
	switch stack {
	case "azure":
		given := run(pulumiVariables + " | sed -n 's/^ARM_OIDC_TOKEN=//p' | tr -d '\\n' | sha256sum")
		g.Expect(given).To(Equal(run("tr -d '\\n' <" + azureToken + " | sha256sum")))
	case "google-anywhere":
		var credentials struct {
			Audience string `json:"audience"`
			Source   struct {
				File string `json:"file"`
			} `json:"credential_source"`
		}
		g.Expect(json.Unmarshal([]byte(run("cat "+googleCredentials)), &credentials)).To(Succeed())
		g.Expect(credentials.Audience).To(Equal(googleProvider))
		g.Expect(credentials.Source.File).To(Equal(want.token))
	}
}
