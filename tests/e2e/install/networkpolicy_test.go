package install_test

import (
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	. "github.com/onsi/gomega"
	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/intstr"
)

// endpoint is one end of a connection: a pod, or something outside of the cluster, which has only an address.
type endpoint struct {
	namespace string
	labels    map[string]string
	address   string
}

// named has the named ports of the controller's container.
var named = map[string]int{"http-prom": 8080, "healthz": 9440}

var (
	controller       = endpoint{"flux-system", map[string]string{"app": "stack-controller", "app.kubernetes.io/name": "stack-controller"}, "10.0.0.1"}
	workspace        = endpoint{"default", map[string]string{"auto.pulumi.com/component": "workspace"}, "10.0.0.2"}
	sourceController = endpoint{"flux-system", map[string]string{"app": "source-controller"}, "10.0.0.3"}
	sourceShard      = endpoint{"flux-system", map[string]string{"app": "source-controller-shard1", "app.kubernetes.io/component": "source-controller"}, "10.0.0.11"}
	sourceWatcher    = endpoint{"flux-system", map[string]string{"app": "source-watcher"}, "10.0.0.12"}
	tenant           = endpoint{"team", map[string]string{"app": "web"}, "10.0.0.4"}
	forged           = endpoint{"team", map[string]string{"app": "stack-controller", "app.kubernetes.io/name": "stack-controller"}, "10.0.0.5"}
	apiServer        = endpoint{address: "192.0.2.1"}
	internet         = endpoint{address: "198.51.100.7"}
	metadata         = endpoint{address: "169.254.169.254"}
)

func TestNetworkPoliciesLetThroughWhatIsNeededAndNothingElse(t *testing.T) {
	t.Parallel()
	policies := append(policiesOf(t, kustomize(t, inRepository("config", "default"))), policiesOf(t, kustomize(t, inRepository("config", "workspaces")))...)
	for _, test := range []struct {
		name     string
		from, to endpoint
		port     int
		protocol corev1.Protocol
		passes   bool
	}{
		{"metrics", tenant, controller, 8080, corev1.ProtocolTCP, true},
		{"probes of the kubelet", internet, controller, 9440, corev1.ProtocolTCP, true},
		{"profiles", tenant, controller, 6060, corev1.ProtocolTCP, false},
		{"metrics from outside", internet, controller, 8080, corev1.ProtocolTCP, false},

		{"API server", controller, apiServer, 6443, corev1.ProtocolTCP, true},
		{"API server by its Service", controller, apiServer, 443, corev1.ProtocolTCP, true},
		{"DNS", controller, endpoint{"kube-system", nil, "10.0.0.9"}, 53, corev1.ProtocolUDP, true},
		{"DNS of OpenShift", controller, endpoint{"openshift-dns", nil, "10.0.0.9"}, 5353, corev1.ProtocolUDP, true},
		{"DNS of OpenShift over TCP", controller, endpoint{"openshift-dns", nil, "10.0.0.9"}, 5353, corev1.ProtocolTCP, true},
		{"DNS of OpenShift for programs", workspace, endpoint{"openshift-dns", nil, "169.254.20.10"}, 5353, corev1.ProtocolUDP, true},
		{"artifacts", controller, sourceController, 9090, corev1.ProtocolTCP, true},
		{"artifacts of a shard", controller, sourceShard, 9090, corev1.ProtocolTCP, true},
		{"artifacts of source-watcher", controller, sourceWatcher, 9090, corev1.ProtocolTCP, true},
		{"agents", controller, workspace, 50051, corev1.ProtocolTCP, true},
		{"git over https", controller, internet, 443, corev1.ProtocolTCP, true},
		{"git over ssh", controller, internet, 22, corev1.ProtocolTCP, true},
		{"metadata service", controller, metadata, 80, corev1.ProtocolTCP, false},
		{"pod of a tenant", controller, tenant, 8080, corev1.ProtocolTCP, false},
		{"pod of a tenant on the port of agents", controller, tenant, 50051, corev1.ProtocolTCP, false},
		{"pod of a tenant on the port of artifacts", controller, tenant, 9090, corev1.ProtocolTCP, false},
		{"other port of a workspace", controller, workspace, 80, corev1.ProtocolTCP, false},

		{"agent for a neighbour", endpoint{"default", nil, "10.0.0.8"}, workspace, 50051, corev1.ProtocolTCP, false},
		{"agent for a tenant", tenant, workspace, 50051, corev1.ProtocolTCP, false},
		{"agent for a pod of a tenant with the controller's labels", forged, workspace, 50051, corev1.ProtocolTCP, false},
		{"agent for another workspace", workspace, workspace, 50051, corev1.ProtocolTCP, false},
		{"API server for agents", workspace, apiServer, 6443, corev1.ProtocolTCP, true},
		{"clouds for programs", workspace, internet, 443, corev1.ProtocolTCP, true},
		{"metadata service for programs", workspace, metadata, 80, corev1.ProtocolTCP, false},
	} {
		t.Run(test.name, func(t *testing.T) {
			out := passes(t, policies, networkingv1.PolicyTypeEgress, test.from, test.to, test.port, test.protocol)
			in := passes(t, policies, networkingv1.PolicyTypeIngress, test.to, test.from, test.port, test.protocol)
			NewWithT(t).Expect(out && in).To(Equal(test.passes))
		})
	}
}

// Flux's policy for its namespace allows everything, and what any policy allows is allowed.
func TestInFluxNamespaceTheComponentMakesThePoliciesCount(t *testing.T) {
	t.Parallel()
	g := NewWithT(t)
	const component = "app.kubernetes.io/component"
	controller := endpoint{controller.namespace, map[string]string{"app": "stack-controller", component: "stack-controller"}, controller.address}
	own := policiesOf(t, kustomize(t, inRepository("config", "default")))
	manifest := read(t, inRepository("tests", "framework", "cluster", "manifests", "flux.yaml"))
	without := append(policiesOf(t, decode(t, manifest)), own...)
	g.Expect(passes(t, without, networkingv1.PolicyTypeEgress, controller, metadata, 80, corev1.ProtocolTCP)).To(BeTrue())

	dir := kustomization(t, "resources: [flux.yaml]\ncomponents: [repository/config/flux/isolation]\n")
	g.Expect(os.WriteFile(filepath.Join(dir, "flux.yaml"), []byte(manifest), 0o600)).To(Succeed())
	with := append(policiesOf(t, kustomize(t, dir)), own...)
	g.Expect(passes(t, with, networkingv1.PolicyTypeEgress, controller, metadata, 80, corev1.ProtocolTCP)).To(BeFalse())
	g.Expect(passes(t, with, networkingv1.PolicyTypeEgress, controller, sourceController, 9090, corev1.ProtocolTCP)).To(BeTrue())
	g.Expect(passes(t, with, networkingv1.PolicyTypeIngress, sourceController, controller, 9090, corev1.ProtocolTCP)).To(BeTrue())
	g.Expect(passes(t, with, networkingv1.PolicyTypeIngress, controller, sourceController, 6060, corev1.ProtocolTCP)).To(BeFalse())
	g.Expect(passes(t, with, networkingv1.PolicyTypeEgress, sourceController, internet, 80, corev1.ProtocolTCP)).To(BeTrue(), "Flux itself stays as it is")

	// A shard, and a release of Helm with another name, have policies for their own pods.
	for name, rendered := range map[string]objects{
		"stack-controller-shard1": kustomize(t, kustomization(t, "namespace: flux-system\nnameSuffix: -shard1\nresources: [repository/config/manager]\n"+
			"labels: [{pairs: {app: stack-controller-shard1}, includeSelectors: true}]\n")),
		"pulumi-shop": template(t, "--set=fullnameOverride=pulumi-shop"),
	} {
		pod := at(t, rendered.get(t, "Deployment", name), "spec", "template", "metadata", "labels").(map[string]any)
		other := endpoint{controller.namespace, map[string]string{"app": pod["app"].(string), component: pod[component].(string)}, "10.0.0.7"}
		all := append(slices.Clone(with), policiesOf(t, rendered)...)
		g.Expect(other.labels["app"]).To(Equal(name))
		g.Expect(passes(t, all, networkingv1.PolicyTypeEgress, other, metadata, 80, corev1.ProtocolTCP)).To(BeFalse(), name)
		g.Expect(passes(t, all, networkingv1.PolicyTypeEgress, other, sourceController, 9090, corev1.ProtocolTCP)).To(BeTrue(), name)
		g.Expect(passes(t, all, networkingv1.PolicyTypeEgress, other, workspace, 50051, corev1.ProtocolTCP)).To(BeTrue(), name)
	}
}

func TestTheDocumentedPolicyLetsAControllerInAnotherNamespaceReachFlux(t *testing.T) {
	t.Parallel()
	_, section, found := strings.Cut(read(t, inRepository("docs", "guides", "installation.md")), "`kubectl --namespace flux-system apply`:\n\n```yaml\n")
	NewWithT(t).Expect(found).To(BeTrue())
	manifest, _, _ := strings.Cut(section, "```\n")
	policies := policiesOf(t, decode(t, manifest))
	for i := range policies {
		policies[i].Namespace = "flux-system"
	}
	elsewhere := endpoint{"pulumi", controller.labels, controller.address}
	for _, app := range []string{"source-controller", "source-watcher", "notification-controller"} {
		server := endpoint{"flux-system", map[string]string{"app": app}, "10.0.0.3"}
		for from, want := range map[*endpoint]bool{&elsewhere: true, &tenant: false, &forged: false} {
			NewWithT(t).Expect(passes(t, policies, networkingv1.PolicyTypeIngress, server, *from, 9090, corev1.ProtocolTCP)).To(Equal(want), app)
		}
	}
}

func TestNamespacesWithStacksLetTheControllerInWhateverItsChartCallsIt(t *testing.T) {
	t.Parallel()
	for _, dir := range []string{"workspaces", "samples"} {
		policies := policiesOf(t, kustomize(t, inRepository("config", dir)))
		NewWithT(t).Expect(policies).NotTo(BeEmpty(), dir)
		rendered := template(t, "--set=nameOverride=pulumi,fullnameOverride=pulumi")
		labels, _, err := unstructured.NestedStringMap(rendered.get(t, "Deployment", "pulumi").Object, "spec", "template", "metadata", "labels")
		NewWithT(t).Expect(err).NotTo(HaveOccurred())
		renamed := endpoint{controller.namespace, labels, controller.address}
		NewWithT(t).Expect(passes(t, policies, networkingv1.PolicyTypeIngress, workspace, renamed, 50051, corev1.ProtocolTCP)).To(BeTrue(), dir)
	}
}

// The security context constraints of OpenShift choose users and groups.
func TestTheChartLeavesUsersAndGroupsToOpenShift(t *testing.T) {
	t.Parallel()
	g := NewWithT(t)
	podSpecWith := func(args ...string) map[string]any {
		podSpec, _, err := unstructured.NestedMap(template(t, args...).get(t, "Deployment", "stack-controller").Object, "spec", "template", "spec")
		g.Expect(err).NotTo(HaveOccurred())
		return podSpec
	}
	g.Expect(podSpecWith()).To(HaveKey("securityContext"))
	g.Expect(podSpecWith("--set=podSecurityContext.fsGroup=null")).NotTo(HaveKey("securityContext"))
}

func TestTheChartTakesOtherPortsAndRulesForTheWayOut(t *testing.T) {
	t.Parallel()
	policies := policiesOf(t, template(t, "--set", "networkPolicy.egress.ports={443,7443}",
		"--set", "networkPolicy.egress.extraRules[0].to[0].ipBlock.cidr=203.0.113.0/24"))
	g := NewWithT(t)
	proxy := endpoint{address: "203.0.113.9"}
	g.Expect(passes(t, policies, networkingv1.PolicyTypeEgress, controller, proxy, 3128, corev1.ProtocolTCP)).To(BeTrue())
	g.Expect(passes(t, policies, networkingv1.PolicyTypeEgress, controller, apiServer, 7443, corev1.ProtocolTCP)).To(BeTrue())
	g.Expect(passes(t, policies, networkingv1.PolicyTypeEgress, controller, apiServer, 6443, corev1.ProtocolTCP)).To(BeFalse())
}

// policiesOf returns the NetworkPolicies among the objects.
func policiesOf(t *testing.T, rendered objects) []networkingv1.NetworkPolicy {
	t.Helper()
	var policies []networkingv1.NetworkPolicy
	for _, object := range rendered {
		if object.GetKind() != "NetworkPolicy" {
			continue
		}
		policy := networkingv1.NetworkPolicy{}
		NewWithT(t).Expect(runtime.DefaultUnstructuredConverter.FromUnstructured(object.Object, &policy)).To(Succeed())
		policies = append(policies, policy)
	}
	return policies
}

// passes reports whether the policies allow a connection at one of its ends, as the API defines it: a pod that no policy of the direction
// selects is not restricted; otherwise one rule of the policies that select the pod has to match.
func passes(
	t *testing.T, policies []networkingv1.NetworkPolicy, direction networkingv1.PolicyType, pod, peer endpoint, port int, protocol corev1.Protocol,
) bool {
	t.Helper()
	restricted := false
	for i := range policies {
		policy := &policies[i]
		if !slices.Contains(policy.Spec.PolicyTypes, direction) || policy.Namespace != pod.namespace || !selects(t, &policy.Spec.PodSelector, pod.labels) {
			continue
		}
		restricted = true
		for _, rule := range policy.Spec.Ingress {
			if direction == networkingv1.PolicyTypeIngress && matches(t, policy.Namespace, rule.From, rule.Ports, peer, port, protocol) {
				return true
			}
		}
		for _, rule := range policy.Spec.Egress {
			if direction == networkingv1.PolicyTypeEgress && matches(t, policy.Namespace, rule.To, rule.Ports, peer, port, protocol) {
				return true
			}
		}
	}
	return !restricted
}

func matches(
	t *testing.T, namespace string, peers []networkingv1.NetworkPolicyPeer, ports []networkingv1.NetworkPolicyPort, peer endpoint, port int, protocol corev1.Protocol,
) bool {
	t.Helper()
	onPort := len(ports) == 0
	for _, allowed := range ports {
		number := allowed.Port.IntValue()
		if allowed.Port.Type == intstr.String {
			number = named[allowed.Port.StrVal]
		}
		onPort = onPort || number == port && *allowed.Protocol == protocol
	}
	fromPeer := len(peers) == 0
	for i := range peers {
		fromPeer = fromPeer || isPeer(t, namespace, &peers[i], peer)
	}
	return onPort && fromPeer
}

func isPeer(t *testing.T, namespace string, allowed *networkingv1.NetworkPolicyPeer, peer endpoint) bool {
	t.Helper()
	if block := allowed.IPBlock; block != nil {
		address := netip.MustParseAddr(peer.address)
		for _, except := range block.Except {
			if netip.MustParsePrefix(except).Contains(address) {
				return false
			}
		}
		return netip.MustParsePrefix(block.CIDR).Contains(address)
	}
	if peer.namespace == "" {
		return false
	}
	if allowed.NamespaceSelector == nil && peer.namespace != namespace {
		return false
	}
	inNamespace := map[string]string{corev1.LabelMetadataName: peer.namespace}
	return (allowed.NamespaceSelector == nil || selects(t, allowed.NamespaceSelector, inNamespace)) &&
		(allowed.PodSelector == nil || selects(t, allowed.PodSelector, peer.labels))
}

func selects(t *testing.T, selector *metav1.LabelSelector, of map[string]string) bool {
	t.Helper()
	parsed, err := metav1.LabelSelectorAsSelector(selector)
	NewWithT(t).Expect(err).NotTo(HaveOccurred())
	return parsed.Matches(labels.Set(of))
}
