package install_test

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	. "github.com/onsi/gomega"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"

	"github.com/stack-controller/stack-controller/tests/framework/suite"
)

// The field spec.images of a Flux Kustomization works like "images:" in an overlay.
func TestAnOverlayReplacesBothImages(t *testing.T) {
	t.Parallel()
	g := NewWithT(t)
	deployment := kustomize(t, kustomization(t, `
resources: [repository/config/default]
images:
- name: stack-controller/stack-controller
  newName: mirror.example.com/controller
  newTag: v1.2.3
- name: stack-controller/stack-controller-agent
  newName: mirror.example.com/agent
  digest: sha256:0000000000000000000000000000000000000000000000000000000000000000
`)).get(t, "Deployment", "stack-controller")
	g.Expect(manager(t, deployment, "image")).To(Equal("mirror.example.com/controller:v1.2.3"))
	g.Expect(environment(t, deployment, "AGENT_IMAGE")).To(Equal(
		"mirror.example.com/agent@sha256:0000000000000000000000000000000000000000000000000000000000000000"))
}

func TestAnOverlayMovesEverythingIntoAnotherNamespace(t *testing.T) {
	t.Parallel()
	g := NewWithT(t)
	rendered := kustomize(t, kustomization(t, `
resources: [repository/config/default]
namespace: elsewhere
`))
	for _, object := range rendered {
		if namespace := object.GetNamespace(); namespace != "" {
			g.Expect(namespace).To(Equal("elsewhere"), "%s %s", object.GetKind(), object.GetName())
		}
		if object.GetKind() == "RoleBinding" || object.GetKind() == "ClusterRoleBinding" {
			g.Expect(at(t, object, "subjects", 0, "namespace")).To(Equal("elsewhere"), "%s %s", object.GetKind(), object.GetName())
		}
	}
}

func TestAnInstallationForOneNamespaceHasNothingOfTheCluster(t *testing.T) {
	t.Parallel()
	g := NewWithT(t)
	rendered := kustomize(t, kustomization(t, `
resources: [repository/config/namespaced]
namespace: team
`))
	g.Expect(rendered.names()).To(ConsistOf("ServiceAccount stack-controller", "Role stack-controller", "RoleBinding stack-controller",
		"Role stack-controller-leader-election", "RoleBinding stack-controller-leader-election",
		"Role stack-controller-token-request", "RoleBinding stack-controller-token-request",
		"NetworkPolicy stack-controller", "NetworkPolicy stack-controller-egress", "Deployment stack-controller",
		"Service "+metricsService))
	for _, object := range rendered {
		g.Expect(object.GetNamespace()).To(Equal("team"), "%s %s", object.GetKind(), object.GetName())
	}
	everywhere := kustomize(t, inRepository("config", "default"))
	g.Expect(rendered.get(t, "Role", "stack-controller").Object["rules"]).
		To(Equal(everywhere.get(t, "ClusterRole", "stack-controller").Object["rules"]))
	binding := rendered.get(t, "RoleBinding", "stack-controller")
	g.Expect(at(t, binding, "roleRef", "kind")).To(Equal("Role"))
	g.Expect(at(t, binding, "subjects", 0, "namespace")).To(Equal("team"))
	g.Expect(manager(t, rendered.get(t, "Deployment", "stack-controller"), "args")).To(ContainElement("--watch-all-namespaces=false"))
}

// The patch is the one in the documentation. It refers to rules by their index, which a new rule may change.
func TestTheDocumentedPatchTakesAwayTheRightToListSecrets(t *testing.T) {
	t.Parallel()
	g := NewWithT(t)
	content, err := os.ReadFile(inRepository("docs", "guides", "installation.md"))
	g.Expect(err).NotTo(HaveOccurred())
	_, section, found := strings.Cut(string(content), "\n### Watching Secrets and ConfigMaps\n")
	g.Expect(found).To(BeTrue())
	_, patches, _ := strings.Cut(section, "\n```\n")
	patches, _, _ = strings.Cut(patches, "\n```\n")
	rendered := kustomize(t, kustomization(t, "resources: [repository/config/default]\n"+patches))
	verbs := map[any]any{}
	for _, rule := range at(t, rendered.get(t, "ClusterRole", "stack-controller"), "rules").([]any) {
		fields := rule.(map[string]any)
		for _, resource := range fields["resources"].([]any) {
			verbs[resource] = fields["verbs"]
		}
	}
	g.Expect(verbs["secrets"]).To(ConsistOf("create", "get"))
	g.Expect(verbs["configmaps"]).To(ConsistOf("get"))
	g.Expect(manager(t, rendered.get(t, "Deployment", "stack-controller"), "args")).To(ContainElement("--watch-configs-label-selector=none"))
}

func TestTheDocumentedPatchesTakeAwayWhatAClusterDoesNotHave(t *testing.T) {
	t.Parallel()
	g := NewWithT(t)
	patched := func(section string) *unstructured.Unstructured {
		_, patches, found := strings.Cut(read(t, inRepository("docs", "guides", "installation.md")), "\n## "+section+"\n")
		g.Expect(found).To(BeTrue(), section)
		_, patches, _ = strings.Cut(patches, "```yml\n")
		patches, _, _ = strings.Cut(patches, "```\n")
		indent := patches[:strings.Index(patches, "patches:")]
		overlay := "resources: [repository/config/default]" + strings.ReplaceAll("\n"+patches, "\n"+indent, "\n")
		return kustomize(t, kustomization(t, overlay)).get(t, "Deployment", "stack-controller")
	}
	args := manager(t, patched("Without notification-controller"), "args").([]any)
	g.Expect(args[len(args)-1]).To(Equal("--events-addr="))
	g.Expect(at(t, patched("OpenShift"), "spec", "template", "spec")).NotTo(HaveKey("securityContext"))
}

func TestFluxLeavesTheDefinitionsWhenItPrunes(t *testing.T) {
	t.Parallel()
	g := NewWithT(t)
	// Helm takes definitions over that a Kustomization has installed, and keeps their labels.
	for _, installed := range []objects{kustomize(t, inRepository("config", "default")), template(t)} {
		definitions := 0
		for _, object := range installed {
			if object.GetKind() == "CustomResourceDefinition" {
				definitions++
				g.Expect(object.GetAnnotations()).To(HaveKeyWithValue("kustomize.toolkit.fluxcd.io/prune", "disabled"), object.GetName())
			}
		}
		g.Expect(definitions).To(Equal(6))
	}
}

// The overlays are those in the guide. The selectors of one controller must not match the pods of the other.
func TestTheDocumentedOverlaysShareTheStacksBetweenTwoControllers(t *testing.T) {
	t.Parallel()
	g := NewWithT(t)
	content, err := os.ReadFile(inRepository("docs", "guides", "sharding.md"))
	g.Expect(err).NotTo(HaveOccurred())
	overlay := func(name string) objects {
		_, rest, found := strings.Cut(string(content), "cat >"+name+"/kustomization.yaml <<EOF\n")
		g.Expect(found).To(BeTrue())
		written, _, _ := strings.Cut(rest, "\nEOF\n")
		written = strings.ReplaceAll(written, "https://github.com/stack-controller/stack-controller//", "repository/")
		return kustomize(t, kustomization(t, strings.ReplaceAll(written, "?ref="+namedVersion(t), "")))
	}
	everywhere, one := overlay("main").get(t, "Deployment", "stack-controller"), overlay("shard1")
	shard := one.get(t, "Deployment", "stack-controller-shard1")
	g.Expect(one.names()).To(ConsistOf("Deployment stack-controller-shard1", "NetworkPolicy stack-controller-shard1",
		"NetworkPolicy stack-controller-egress-shard1", "Service "+metricsService+"-shard1"))
	g.Expect(manager(t, everywhere, "args")).To(ContainElement("--watch-label-selector=!sharding.fluxcd.io/key"))
	g.Expect(manager(t, shard, "args")).To(ContainElement("--watch-label-selector=sharding.fluxcd.io/key=shard1"))
	g.Expect(at(t, shard, "spec", "template", "spec", "serviceAccountName")).To(Equal("stack-controller"))
	g.Expect(at(t, shard, "spec", "template", "metadata", "labels")).To(HaveKeyWithValue("app.kubernetes.io/name", "stack-controller"))
	g.Expect(at(t, everywhere, "spec", "selector", "matchLabels")).To(Equal(map[string]any{"app": "stack-controller"}))
	own := map[string]any{"app": "stack-controller-shard1"}
	g.Expect(at(t, shard, "spec", "selector", "matchLabels")).To(Equal(own))
	g.Expect(at(t, one.get(t, "Service", metricsService+"-shard1"), "spec", "selector")).To(Equal(own))
	for _, name := range []string{"stack-controller-shard1", "stack-controller-egress-shard1"} {
		g.Expect(at(t, one.get(t, "NetworkPolicy", name), "spec", "podSelector", "matchLabels")).To(Equal(own))
	}
}

// delegator is the name of the binding for the ServiceAccount default/pulumi, as in the Pulumi Kubernetes Operator.
const delegator = "default:pulumi:system:auth-delegator"

// TestEachWayToInstallCanBringThePulumiServiceAccount is about the ServiceAccount default/pulumi, which manifests for the operator refer
// to.
func TestEachWayToInstallCanBringThePulumiServiceAccount(t *testing.T) {
	suite.Long(t, "further manifests; see TestTheChartInstallsWhatKustomizeInstalls")
	t.Parallel()
	g := NewWithT(t)
	release, err := releaseFiles(t, "v1.2.3", "")
	g.Expect(err).NotTo(HaveOccurred(), release)
	unpacked := unpack(t, release)
	source := decode(t, read(t, inRepository("config", "flux", "account.yaml"))).get(t, "Kustomization", "stack-controller-account")
	path := at(t, source, "spec", "path").(string)
	want := kustomize(t, inRepository("config", "account"))
	for way, rendered := range map[string]objects{
		"an overlay": kustomize(t, kustomization(t, "resources: [repository/config/default, repository/config/account]\n")),
		"the chart":  template(t, "--set=pulumiServiceAccount.create=true"),
		"a file of the release, as for the Pulumi program": decode(t, read(t, release, "install.yaml")+read(t, release, "account.yaml")),
		"manifests, as for Flux":                           append(kustomize(t, filepath.Join(unpacked, "default")), kustomize(t, filepath.Join(unpacked, path))...),
	} {
		account := rendered.get(t, "ServiceAccount", "pulumi")
		g.Expect(account.GetNamespace()).To(Equal("default"), way)
		binding := rendered.get(t, "ClusterRoleBinding", delegator)
		for _, field := range []string{"roleRef", "subjects"} {
			g.Expect(binding.Object[field]).To(Equal(want.get(t, "ClusterRoleBinding", delegator).Object[field]), way)
		}
		g.Expect(rendered.get(t, "ServiceAccount", "stack-controller").GetNamespace()).To(Equal("flux-system"), way)
	}
}

func TestNoWayToInstallBringsThePulumiServiceAccountUnasked(t *testing.T) {
	suite.Long(t, "further manifests; see TestTheChartInstallsWhatKustomizeInstalls")
	t.Parallel()
	g := NewWithT(t)
	for way, rendered := range map[string]objects{
		"kustomize": kustomize(t, inRepository("config", "default")), "the chart": template(t),
		// A user who creates the roles also creates this binding.
		"the chart without roles": template(t, "--set=pulumiServiceAccount.create=true,rbac.create=false"),
	} {
		g.Expect(rendered.names()).NotTo(ContainElement("ClusterRoleBinding "+delegator), way)
	}
}

// The account may ask the API server who calls an agent, and may do nothing else.
func TestPulumiServiceAccountMayOnlyAskWhoCalls(t *testing.T) {
	suite.Long(t, "further manifests; see TestTheChartInstallsWhatKustomizeInstalls")
	t.Parallel()
	g := NewWithT(t)
	cp := flux(t)
	_, err := cp.Kubectl(t.Context(), "apply", "--server-side", "--kustomize", inRepository("config", "account"))
	g.Expect(err).NotTo(HaveOccurred())
	const account = "--as=system:serviceaccount:default:pulumi"
	for right, want := range map[string]bool{
		"create tokenreviews.authentication.k8s.io": true, "create subjectaccessreviews.authorization.k8s.io": true,
		"get secrets": false, "list stacks.pulumi.com": false, "create pods": false,
	} {
		_, err := cp.Kubectl(t.Context(), append([]string{"auth", "can-i", account}, strings.Fields(right)...)...)
		g.Expect(err == nil).To(Equal(want), right)
	}
	g.Expect(dryRun(t, cp, inRepository("config", "flux", "account.yaml"))).To(Succeed())

	// The comment in the file is true: with a GitRepository, only two fields differ.
	fromGit := strings.NewReplacer("kind: OCIRepository", "kind: GitRepository", "./account", "./config/account").
		Replace(read(t, inRepository("config", "flux", "account.yaml")))
	file := filepath.Join(t.TempDir(), "account.yaml")
	g.Expect(os.WriteFile(file, []byte(fromGit), 0o600)).To(Succeed())
	g.Expect(dryRun(t, cp, file)).To(Succeed())
	g.Expect(inRepository(at(t, decode(t, fromGit).get(t, "Kustomization", "stack-controller-account"), "spec", "path").(string), "kustomization.yaml")).
		To(BeARegularFile())
}

func TestTheComponentForMutualTLSGivesTheControllerFlagsAndAnIdentity(t *testing.T) {
	t.Parallel()
	g := NewWithT(t)
	rendered := kustomize(t, kustomization(t, "resources: [repository/config/default]\ncomponents: [repository/config/flux/mutual-tls]\n"))
	deployment := &appsv1.Deployment{}
	g.Expect(runtime.DefaultUnstructuredConverter.FromUnstructured(rendered.get(t, "Deployment", "stack-controller").Object, deployment)).To(Succeed())
	pod := deployment.Spec.Template.Spec
	manager := pod.Containers[0]
	g.Expect(manager.Args).To(ContainElements(
		"--authorized-artifact-server-spiffe-id=spiffe://self/ns/flux-system/sa/source-controller",
		"--authorized-event-server-spiffe-id=spiffe://self/ns/flux-system/sa/notification-controller",
	))
	g.Expect(manager.Args[len(manager.Args)-1]).To(Equal("--events-addr=http://notification-controller.flux-system.svc.cluster.local.:80/"), "the last one counts")
	g.Expect(manager.Env).To(ContainElement(corev1.EnvVar{Name: "SPIFFE_ENDPOINT_SOCKET", Value: "unix:///spiffe-workload-api/spire-agent.sock"}))
	g.Expect(manager.VolumeMounts).To(ContainElement(And(HaveField("MountPath", "/spiffe-workload-api"), HaveField("Name", "spiffe-workload-api"))))
	g.Expect(pod.Volumes).To(ContainElement(And(HaveField("Name", "spiffe-workload-api"), HaveField("CSI.Driver", "csi.spiffe.io"))))
	g.Expect(pod.Volumes).To(ContainElement(HaveField("Name", "data")), "nothing is replaced")
}
