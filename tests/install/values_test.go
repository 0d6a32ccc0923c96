package install_test

import (
	"fmt"
	"testing"

	. "github.com/onsi/gomega"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
)

func TestValuesOfTheChartHaveTheirEffect(t *testing.T) {
	t.Parallel()
	deployment := func(t *testing.T, o objects) *unstructured.Unstructured {
		t.Helper()
		return o.get(t, "Deployment", "stack-controller")
	}
	for name, test := range map[string]struct {
		set   []string
		check func(*testing.T, Gomega, objects)
	}{
		"images come from a mirror": {
			set: []string{"image.registry=mirror.example.com", "agentImage.registry=mirror.example.com", "image.tag=v1", "agentImage.tag=v1",
				"agentImage.pullPolicy=Always", "imagePullSecrets[0].name=mirror"},
			check: func(t *testing.T, g Gomega, o objects) {
				g.Expect(manager(t, deployment(t, o), "image")).To(Equal("mirror.example.com/stack-controller/stack-controller:v1"))
				g.Expect(environment(t, deployment(t, o), "AGENT_IMAGE")).To(Equal("mirror.example.com/stack-controller/stack-controller-agent:v1"))
				g.Expect(environment(t, deployment(t, o), "AGENT_IMAGE_PULL_POLICY")).To(Equal("Always"))
				g.Expect(at(t, deployment(t, o), "spec", "template", "spec", "imagePullSecrets", 0, "name")).To(Equal("mirror"))
			},
		},
		"one namespace needs no rights in others": {
			// They are in a Role, with which nobody can bind them for the whole cluster.
			set: []string{"controller.watchAllNamespaces=false"},
			check: func(t *testing.T, g Gomega, o objects) {
				g.Expect(manager(t, deployment(t, o), "args")).To(ContainElement("--watch-all-namespaces=false"))
				g.Expect(o.names()).NotTo(ContainElement(Or(HavePrefix("ClusterRoleBinding "), Equal("ClusterRole stack-controller"))))
				binding := o.get(t, "RoleBinding", "stack-controller")
				g.Expect(at(t, binding, "roleRef", "kind")).To(Equal("Role"))
				g.Expect(at(t, binding, "roleRef", "name")).To(Equal("stack-controller"))
				g.Expect(o.get(t, "Role", "stack-controller").GetNamespace()).To(Equal("flux-system"))
				g.Expect(binding.GetNamespace()).To(Equal("flux-system"))
			},
		},
		"a shard": {
			set: []string{`controller.watchLabelSelector=!sharding.fluxcd.io/key`, "leaderElection.leaseDuration=60s", "controller.extraArgs[0]=--concurrent=8"},
			check: func(t *testing.T, g Gomega, o objects) {
				g.Expect(manager(t, deployment(t, o), "args")).To(ContainElements(
					"--watch-label-selector=!sharding.fluxcd.io/key", "--leader-election-lease-duration=60s", "--concurrent=8"))
			},
		},
		"another service account may ask for its own tokens only": {
			set: []string{"serviceAccount.name=pulumi", "serviceAccount.annotations.example\\.com/role=deployer"},
			check: func(t *testing.T, g Gomega, o objects) {
				g.Expect(o.get(t, "ServiceAccount", "pulumi").GetAnnotations()).To(HaveKeyWithValue("example.com/role", "deployer"))
				g.Expect(at(t, o.get(t, "Role", "stack-controller-token-request"), "rules", 0, "resourceNames")).To(Equal([]any{"pulumi"}))
				g.Expect(at(t, o.get(t, "ClusterRoleBinding", "stack-controller"), "subjects", 0, "name")).To(Equal("pulumi"))
				g.Expect(at(t, deployment(t, o), "spec", "template", "spec", "serviceAccountName")).To(Equal("pulumi"))
			},
		},
		"what is switched off is not there": {
			set: []string{"crds.install=false", "rbac.create=false", "serviceAccount.create=false", "networkPolicy.enabled=false",
				"notifications.enabled=false", "metricsService.enabled=false", "admissionPolicies.create=false"},
			check: func(t *testing.T, g Gomega, o objects) {
				g.Expect(o.names()).To(ConsistOf("Deployment stack-controller"))
				g.Expect(fmt.Sprint(manager(t, deployment(t, o), "args"))).NotTo(ContainSubstring("events-addr"))
			},
		},
		"definitions that go with the release": {
			set: []string{"crds.keep=false"},
			check: func(t *testing.T, g Gomega, o objects) {
				g.Expect(o.get(t, "CustomResourceDefinition", "stacks.pulumi.com").GetAnnotations()).NotTo(HaveKey("helm.sh/resource-policy"))
			},
		},
		"monitoring and disruptions": {
			set: []string{"serviceMonitor.enabled=true", "serviceMonitor.interval=15s", "podDisruptionBudget.enabled=true", "replicaCount=2",
				"serviceMonitor.labels.release=prometheus"},
			check: func(t *testing.T, g Gomega, o objects) {
				monitor := o.get(t, "ServiceMonitor", "stack-controller")
				g.Expect(monitor.GetLabels()).To(HaveKeyWithValue("release", "prometheus"))
				g.Expect(at(t, monitor, "spec", "endpoints", 0, "interval")).To(Equal("15s"))
				service := o.get(t, "Service", metricsService)
				for label, value := range at(t, monitor, "spec", "selector", "matchLabels").(map[string]any) {
					g.Expect(service.GetLabels()).To(HaveKeyWithValue(label, value))
				}
				g.Expect(at(t, service, "spec", "ports", 0, "name")).To(Equal(at(t, monitor, "spec", "endpoints", 0, "port")))
				g.Expect(at(t, o.get(t, "PodDisruptionBudget", "stack-controller"), "spec", "minAvailable")).To(BeEquivalentTo(1))
				g.Expect(at(t, deployment(t, o), "spec", "replicas")).To(BeEquivalentTo(2))
			},
		},
		"a PodMonitor": {
			set: []string{"podMonitor.enabled=true", "podMonitor.namespace=monitoring", "podMonitor.labels.release=prometheus"},
			check: func(t *testing.T, g Gomega, o objects) {
				monitor := o.get(t, "PodMonitor", "stack-controller")
				g.Expect(monitor.GetNamespace()).To(Equal("monitoring"))
				g.Expect(monitor.GetLabels()).To(HaveKeyWithValue("release", "prometheus"))
				g.Expect(at(t, monitor, "spec", "namespaceSelector", "matchNames", 0)).To(Equal("flux-system"))
				for label, value := range at(t, monitor, "spec", "selector", "matchLabels").(map[string]any) {
					g.Expect(at(t, deployment(t, o), "spec", "template", "metadata", "labels", label)).To(Equal(value))
				}
			},
		},
		"the pod's own": {
			set: []string{"priorityClassName=system-cluster-critical", "nodeSelector.kubernetes\\.io/os=linux", "podLabels.team=platform",
				"tolerations[0].operator=Exists", "topologySpreadConstraints[0].maxSkew=1", "extraEnv[0].name=HTTPS_PROXY",
				"extraEnv[0].value=proxy", "extraVolumes[0].name=ca", "extraVolumeMounts[0].name=ca", "initContainers[0].name=first",
				"extraSidecars[0].name=second", "affinity.nodeAffinity.x=y", "terminationGracePeriodSeconds=60", "storage.sizeLimit=20Gi",
				"deploymentStrategy.type=Recreate"},
			check: func(t *testing.T, g Gomega, o objects) {
				template := at(t, deployment(t, o), pod...)
				for _, have := range []string{"system-cluster-critical", "kubernetes.io/os:linux", "operator:Exists", "maxSkew:1",
					"name:HTTPS_PROXY value:proxy", "name:first", "name:second", "nodeAffinity:map[x:y]", "terminationGracePeriodSeconds:60",
					"graceful-shutdown-timeout=50s", "sizeLimit:20Gi"} {
					g.Expect(fmt.Sprint(template)).To(ContainSubstring(have))
				}
				g.Expect(at(t, deployment(t, o), "spec", "template", "metadata", "labels", "team")).To(Equal("platform"))
				g.Expect(at(t, deployment(t, o), "spec", "strategy", "type")).To(Equal("Recreate"))
			},
		},
	} {
		t.Run(name, func(t *testing.T) {
			var args []string
			for _, value := range test.set {
				args = append(args, "--set", value)
			}
			test.check(t, NewWithT(t), template(t, args...))
		})
	}
}

func TestASecondReleaseForItsOwnNamespaceDoesNotCollide(t *testing.T) {
	t.Parallel()
	g := NewWithT(t)
	rendered, err := run(t.Context(), "helm", "template", "team", chart(), "--namespace=team", "--kube-version=1.36.0",
		"--set=controller.watchAllNamespaces=false,crds.install=false")
	g.Expect(err).NotTo(HaveOccurred())
	first := template(t)
	for _, object := range decode(t, rendered) {
		if object.GetNamespace() == "" {
			g.Expect(first.names()).NotTo(ContainElement(object.GetKind() + " " + object.GetName()))
		}
	}
}
