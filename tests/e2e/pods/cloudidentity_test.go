package pods_test

import (
	"context"
	"encoding/base64"
	"encoding/json"
	"os"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"testing"
	"time"

	. "github.com/onsi/gomega"
	corev1 "k8s.io/api/core/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/yaml"

	pulumiv1 "github.com/stack-controller/stack-controller/api/pulumi/v1"
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
	Audience []string `json:"aud"`
	Subject  string   `json:"sub"`
	Expiry   int64    `json:"exp"`
}

// TestPodsHaveTheTokensThatCloudsTrust runs the Stacks of the guide. Where a webhook of a cloud changes the pod, an admission policy does what it
// does; the clouds themselves are not there.
func TestPodsHaveTheTokensThatCloudsTrust(t *testing.T) {
	suite.Long(t, "one pod for each cloud")
	t.Parallel()
	g := NewWithT(t)
	ctx := t.Context()
	const name = "cloud-identity"
	removeNamespaceAtEnd(t, g, name)
	app, template, err := system.Provide(ctx, name, program("1"))
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

	const google = "https://iam.googleapis.com/projects/123456789012/locations/global/workloadIdentityPools/clusters/providers/production"
	for stack, want := range map[string]struct {
		account, audience, file string
		env                     []string
	}{
		"aws-pod-identity": {"aws-network", "pods.eks.amazonaws.com", "/var/run/secrets/pods.eks.amazonaws.com/serviceaccount/eks-pod-identity-token", []string{
			"AWS_CONTAINER_CREDENTIALS_FULL_URI=http://169.254.170.23/v1/credentials",
			"AWS_CONTAINER_AUTHORIZATION_TOKEN_FILE=/var/run/secrets/pods.eks.amazonaws.com/serviceaccount/eks-pod-identity-token",
		}},
		"aws-roles": {"aws-roles", "sts.amazonaws.com", "/var/run/secrets/eks.amazonaws.com/serviceaccount/token", []string{
			"AWS_ROLE_ARN=arn:aws:iam::123456789012:role/network", "AWS_WEB_IDENTITY_TOKEN_FILE=/var/run/secrets/eks.amazonaws.com/serviceaccount/token",
		}},
		"aws-anywhere": {"aws-roles", "sts.amazonaws.com", "/var/run/secrets/aws/token", []string{
			"AWS_ROLE_ARN=arn:aws:iam::123456789012:role/network", "AWS_WEB_IDENTITY_TOKEN_FILE=/var/run/secrets/aws/token", "AWS_REGION=eu-central-1",
		}},
		"azure": {"azure", "api://AzureADTokenExchange", "/var/run/secrets/azure/tokens/azure-identity-token", []string{
			"AZURE_CLIENT_ID=00000000-0000-0000-0000-000000000001",
			"AZURE_FEDERATED_TOKEN_FILE=/var/run/secrets/azure/tokens/azure-identity-token",
		}},
		"google-anywhere": {"google", google, "/var/run/secrets/google/token", []string{
			"GOOGLE_APPLICATION_CREDENTIALS=/var/run/secrets/google/credentials.json", "GOOGLE_PROJECT=my-project",
		}},
	} {
		t.Run(stack, func(t *testing.T) {
			t.Parallel()
			g := NewWithT(t)
			written := stacks[stack]
			g.Expect(written).NotTo(BeNil())
			deployed := template.DeepCopy()
			deployed.Name, deployed.Spec.Stack, deployed.Spec.ServiceAccountName = stack, stack, written.Spec.ServiceAccountName
			for name, from := range written.Spec.EnvRefs {
				deployed.Spec.EnvRefs[name] = from
			}
			if written.Spec.WorkspaceTemplate != nil {
				from, into := written.Spec.WorkspaceTemplate.Spec.PodTemplate, deployed.Spec.WorkspaceTemplate.Spec.PodTemplate
				into.Metadata = from.Metadata
				if from.Spec != nil {
					container := &into.Spec.Containers[0]
					container.Env = append(container.Env, from.Spec.Containers[0].Env...)
					container.VolumeMounts = append(container.VolumeMounts, from.Spec.Containers[0].VolumeMounts...)
					into.Spec.Volumes = append(into.Spec.Volumes, from.Spec.Volumes...)
				}
			}
			g.Expect(system.Client.Create(ctx, deployed)).To(Succeed())
			waitReady(ctx, g, &localsystem.App{Namespace: name, Name: stack, Repository: app.Repository})
			environment, err := runInPod(ctx, name, stack, "tr '\\0' '\\n' < /proc/1/environ")
			g.Expect(err).NotTo(HaveOccurred())
			g.Expect(strings.Split(environment, "\n")).To(ContainElements(want.env))
			token, err := runInPod(ctx, name, stack, "cat "+want.file)
			g.Expect(err).NotTo(HaveOccurred())
			parts := strings.Split(token, ".")
			g.Expect(parts).To(HaveLen(3))
			decoded, err := base64.RawURLEncoding.DecodeString(parts[1])
			g.Expect(err).NotTo(HaveOccurred())
			var found claims
			g.Expect(json.Unmarshal(decoded, &found)).To(Succeed())
			g.Expect(found.Audience).To(Equal([]string{want.audience}))
			g.Expect(found.Subject).To(Equal("system:serviceaccount:" + name + ":" + want.account))
			g.Expect(time.Until(time.Unix(found.Expiry, 0))).To(And(BeNumerically(">", 10*time.Minute), BeNumerically("<=", 24*time.Hour)))
		})
	}
}
