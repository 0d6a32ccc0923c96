package install_test

import (
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"reflect"
	"regexp"
	"slices"
	"strings"
	"testing"

	. "github.com/onsi/gomega"
	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"sigs.k8s.io/yaml"

	"github.com/stack-controller/stack-controller/tests/framework/suite"
)

// chart is the directory of the Helm chart.
func chart() string { return inRepository("config", "chart") }

// template renders the chart as a release with the chart's name in Flux's namespace.
func template(t *testing.T, args ...string) objects {
	t.Helper()
	g := NewWithT(t)
	rendered, err := helmTemplate(t.Context(), args...)
	g.Expect(err).NotTo(HaveOccurred())
	return decode(t, rendered)
}

func helmTemplate(ctx context.Context, args ...string) (string, error) {
	// Without a connection to a cluster, Helm does not know the version of the cluster.
	always := []string{"template", "stack-controller", chart(), "--namespace=flux-system", "--kube-version=1.36.0"}
	return run(ctx, "helm", append(always, args...)...)
}

func TestTheChartHasNothingToComplainAbout(t *testing.T) {
	t.Parallel()
	g := NewWithT(t)
	output, err := run(t.Context(), "helm", "lint", "--strict", "--kube-version=1.36.0", chart())
	g.Expect(err).NotTo(HaveOccurred(), output)
}

func TestTheChartInstallsWhatKustomizeInstalls(t *testing.T) {
	t.Parallel()
	g := NewWithT(t)
	released, built := template(t), kustomize(t, inRepository("config", "default"))
	g.Expect(released.names()).To(ConsistOf(built.names()))
	for _, want := range built {
		name := want.GetKind() + " " + want.GetName()
		got := released.get(t, want.GetKind(), want.GetName())
		// Kustomize does not know that these policies are cluster-scoped, and gives them a namespace. The API server ignores it.
		if !strings.HasPrefix(want.GetKind(), "ValidatingAdmissionPolicy") {
			g.Expect(got.GetNamespace()).To(Equal(want.GetNamespace()), name)
		}
		switch want.GetKind() {
		case "CustomResourceDefinition":
			same := reflect.DeepEqual(normal(t, got.Object["spec"]), normal(t, want.Object["spec"]))
			g.Expect(same).To(BeTrue(), "%s is not what config/crd has; run make generate-chart", name)
		case "ClusterRole", "Role":
			g.Expect(got.Object["rules"]).To(Equal(want.Object["rules"]), name)
			for label, value := range want.GetLabels() {
				g.Expect(got.GetLabels()).To(HaveKeyWithValue(label, value), name)
			}
		case "ClusterRoleBinding", "RoleBinding":
			g.Expect(got.Object["roleRef"]).To(Equal(want.Object["roleRef"]), name)
			g.Expect(got.Object["subjects"]).To(Equal(want.Object["subjects"]), name)
		case "NetworkPolicy", "Service":
			g.Expect(got.Object["spec"]).To(Equal(want.Object["spec"]), name)
		case "Deployment":
			g.Expect(at(t, got, pod...)).To(Equal(at(t, want, pod...)), name)
			g.Expect(at(t, got, "spec", "selector")).To(Equal(at(t, want, "spec", "selector")), "it cannot be changed")
			g.Expect(at(t, got, "spec", "template", "metadata", "annotations")).
				To(Equal(at(t, want, "spec", "template", "metadata", "annotations")), name)
		}
	}
}

// normal returns the value after a round trip through JSON, because its numbers have different types with and without Helm.
func normal(t *testing.T, value any) (decoded any) {
	t.Helper()
	g := NewWithT(t)
	encoded, err := json.Marshal(value)
	g.Expect(err).NotTo(HaveOccurred())
	g.Expect(json.Unmarshal(encoded, &decoded)).To(Succeed())
	return decoded
}

func TestTheStoreOfArtifactsStaysBelowTheSizeOfItsVolume(t *testing.T) {
	t.Parallel()
	const flag = "--storage-max-size="
	for limit, want := range map[string]string{"2Gi": "819Mi", "500Mi": "256Mi", "1.5Gi": "614Mi", "20G": "7629Mi", "20Gi": "8192Mi", "1073741824": "409Mi"} {
		g := NewWithT(t)
		args := manager(t, template(t, "--set-string=storage.sizeLimit="+limit).get(t, "Deployment", "stack-controller"), "args")
		g.Expect(args).To(ContainElement(flag+want), limit)
		size, volume := resource.MustParse(want), resource.MustParse(limit)
		g.Expect(size.Cmp(volume)).To(Equal(-1), limit)
	}
	for _, limit := range []string{"--set-string=storage.sizeLimit=10Gi", "--set-string=storage.sizeLimit=", "--set=storage.sizeLimit=null"} {
		args := manager(t, template(t, limit).get(t, "Deployment", "stack-controller"), "args")
		NewWithT(t).Expect(args).NotTo(ContainElement(HavePrefix(flag)), "the default of the flag is for 10Gi")
	}
}

func TestTheSchemaRefusesValuesThatDoNotExistOrCannotWork(t *testing.T) {
	t.Parallel()
	for value, complaint := range map[string]string{
		"replicas=2":                                 "replicas",
		"controller.metricsSecure=true":              "metricsSecure",
		"controller.logLevel=loud":                   "logLevel",
		"controller.logFormat=text":                  "logFormat",
		"controller.extraArgs[0]=concurrent=4":       "extraArgs",
		"replicaCount=many":                          "replicaCount",
		"image.pullPolicy=Sometimes":                 "pullPolicy",
		"image.tag=v1:2":                             "tag",
		"agentImage.digest=sha256:12":                "digest",
		"agentImage.registry=example.com/mirror/":    "registry",
		"imagePullSecrets[0]=registry":               "imagePullSecrets",
		"terminationGracePeriodSeconds=5":            "terminationGracePeriodSeconds",
		"leaderElection.leaseDuration=soon":          "leaseDuration",
		"notifications.address=notifications.test":   "address",
		"podDisruptionBudget.minAvailable=half":      "minAvailable",
		"serviceMonitor.interval=60":                 "interval",
		"podMonitor.path=/":                          "path",
		"metricsService=false":                       "metricsService",
		"serviceAccount.annotations.workload=1":      "annotations",
		"networkPolicy=true":                         "networkPolicy",
		"networkPolicy.egress=null":                  "egress",
		"crds.install=perhaps":                       "install",
		"rbac.createClusterRole=true":                "createClusterRole",
		"resources.request.cpu=1":                    "request",
		"storage.sizeLimit=10GB":                     "sizeLimit",
		"dependencyKinds[0].kind=Widget":             "dependencyKinds",
		"dependencyKinds[0]=Widget":                  "dependencyKinds",
		"serviceMonitor.metricRelabelings=everybody": "metricRelabelings",
	} {
		t.Run(value, func(t *testing.T) {
			g := NewWithT(t)
			_, err := helmTemplate(t.Context(), "--set", value)
			g.Expect(err).To(MatchError(And(ContainSubstring("specifications of the schema"), ContainSubstring(complaint))))
		})
	}
}

func TestWithoutLeaderElectionThereIsOneController(t *testing.T) {
	t.Parallel()
	g := NewWithT(t)
	const without = "--set=leaderElection.enabled=false"
	g.Expect(at(t, template(t, without).get(t, "Deployment", "stack-controller"), "spec", "strategy", "rollingUpdate", "maxSurge")).To(BeEquivalentTo(0))
	_, err := helmTemplate(t.Context(), without, "--set=replicaCount=2")
	g.Expect(err).To(MatchError(ContainSubstring("replicaCount above 1 needs leaderElection.enabled")))
	g.Expect(template(t).get(t, "Deployment", "stack-controller").Object["spec"]).NotTo(HaveKey("strategy"))
}

func TestTheSchemaKnowsEveryValue(t *testing.T) {
	t.Parallel()
	g := NewWithT(t)
	var schema struct {
		Properties map[string]map[string]any `json:"properties"`
		Required   []string                  `json:"required"`
	}
	var values map[string]any
	content, err := os.ReadFile(filepath.Join(chart(), "values.schema.json"))
	g.Expect(err).NotTo(HaveOccurred())
	g.Expect(json.Unmarshal(content, &schema)).To(Succeed())
	content, err = os.ReadFile(filepath.Join(chart(), "values.yaml"))
	g.Expect(err).NotTo(HaveOccurred())
	g.Expect(yaml.Unmarshal(content, &values)).To(Succeed())
	delete(schema.Properties, "global") // comes from a parent chart
	g.Expect(slices.Sorted(maps.Keys(schema.Properties))).To(Equal(slices.Sorted(maps.Keys(values))))
	// Helm takes away what is null before it asks the schema. The templates need each value that is a section.
	for name, property := range schema.Properties {
		isSection := property["properties"] != nil || property["$ref"] == "#/definitions/image"
		if isSection && name != "resources" {
			g.Expect(schema.Required).To(ContainElement(name))
		}
	}
}

// Namespaces and releases may have names that are numbers in YAML.
func TestTheChartHasNoNameThatIsANumber(t *testing.T) {
	t.Parallel()
	rendered, err := run(t.Context(), "helm", "template", "2024", chart(), "--namespace=1234", "--kube-version=1.36.0",
		"--set-string=fullnameOverride=123,nameOverride=1e3456,serviceAccount.name=456", "--set=podMonitor.enabled=true,serviceMonitor.enabled=true,podDisruptionBudget.enabled=true")
	NewWithT(t).Expect(err).NotTo(HaveOccurred())
	for _, object := range decode(t, rendered) {
		for _, field := range [][]string{{"metadata", "name"}, {"metadata", "namespace"}, {"spec", "template", "spec", "serviceAccountName"}, {"roleRef", "name"}} {
			_, _, err := unstructured.NestedString(object.Object, field...)
			NewWithT(t).Expect(err).NotTo(HaveOccurred(), object.GetKind())
		}
		for _, field := range [][]string{{"metadata", "labels"}, {"spec", "selector", "matchLabels"}, {"spec", "podSelector", "matchLabels"}, {"spec", "template", "metadata", "labels"}} {
			_, _, err := unstructured.NestedStringMap(object.Object, field...)
			NewWithT(t).Expect(err).NotTo(HaveOccurred(), object.GetKind())
		}
	}
}

// Helm stores a release in a Secret, which the API server limits to one MiB.
func TestAReleaseOfTheChartFitsIntoASecret(t *testing.T) {
	t.Parallel()
	g := NewWithT(t)
	size, err := releaseSize(t.Context())
	g.Expect(err).NotTo(HaveOccurred())
	t.Logf("a release takes %d KiB", size>>10)
	g.Expect(size).To(BeNumerically("<", 512<<10))
}

func TestValuesOfTheChartHaveTheirEffect(t *testing.T) {
	t.Parallel()
	deployment := func(t *testing.T, o objects) *unstructured.Unstructured {
		t.Helper()
		return o.get(t, "Deployment", "stack-controller")
	}
	for name, test := range map[string]struct {
		set   []string
		json  string
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
			// The rules are in a Role, which cannot be bound for the whole cluster.
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
		"only the kinds that Stacks may depend on can be read": {
			set: []string{"dependencyKinds[0].group=helm.toolkit.fluxcd.io", "dependencyKinds[0].kind=HelmRelease", "dependencyKinds[0].resource=helmreleases",
				"dependencyKinds[1].group=example.com", "dependencyKinds[1].kind=Widget", "dependencyKinds[1].resource=widgets"},
			check: func(t *testing.T, g Gomega, o objects) {
				g.Expect(manager(t, deployment(t, o), "args")).To(ContainElement(
					"--dependency-kinds=helm.toolkit.fluxcd.io/HelmRelease,example.com/Widget"))
				g.Expect(readable(t, o, "kustomize.toolkit.fluxcd.io", "helm.toolkit.fluxcd.io", "example.com")).To(ConsistOf(
					"helm.toolkit.fluxcd.io/helmreleases [get list watch]", "example.com/widgets [get list watch]"))
			},
		},
		"Stacks depend on nothing but Stacks": {
			json: "dependencyKinds=[]",
			check: func(t *testing.T, g Gomega, o objects) {
				g.Expect(manager(t, deployment(t, o), "args")).To(ContainElement("--dependency-kinds="))
				g.Expect(readable(t, o, "kustomize.toolkit.fluxcd.io", "helm.toolkit.fluxcd.io")).To(BeEmpty())
			},
		},
		"a value that an earlier version does not have is the default": {
			set: []string{"dependencyKinds=null"},
			check: func(t *testing.T, g Gomega, o objects) {
				g.Expect(manager(t, deployment(t, o), "args")).NotTo(ContainElement(HavePrefix("--dependency-kinds")))
				g.Expect(readable(t, o, "kustomize.toolkit.fluxcd.io", "helm.toolkit.fluxcd.io")).To(HaveLen(2))
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
			if test.json != "" {
				args = append(args, "--set-json", test.json)
			}
			test.check(t, NewWithT(t), template(t, args...))
		})
	}
}

// readable returns the resources of the groups that the controller has rights on, with their verbs.
func readable(t *testing.T, o objects, groups ...string) (list []string) {
	t.Helper()
	for _, rule := range at(t, o.get(t, "ClusterRole", "stack-controller"), "rules").([]any) {
		rule := rule.(map[string]any)
		for _, group := range rule["apiGroups"].([]any) {
			if slices.Contains(groups, group.(string)) {
				list = append(list, fmt.Sprintf("%s/%s %v", group, rule["resources"].([]any)[0], rule["verbs"]))
			}
		}
	}
	return list
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

// defaultRegistry is the beginning of the names of a release's artifacts if no registry is set. It has no host.
const defaultRegistry = "stack-controller"

// ownName matches the name of an artifact that a release pushes, with everything before it.
var ownName = regexp.MustCompile(`[\w.:/-]*\b` + defaultRegistry + `/(?:stack-controller(?:-agent)?|manifests|charts)\b`)

func TestOneSettingNamesAllOfARelease(t *testing.T) {
	suite.Long(t, "builds another release")
	t.Parallel()
	g := NewWithT(t)
	const version = "v1.2.3"
	dir, err := releaseFiles(t, version, version)
	g.Expect(err).NotTo(HaveOccurred(), dir)

	source := decode(t, read(t, dir, "flux.yaml")).get(t, "OCIRepository", "stack-controller")
	g.Expect(at(t, source, "spec", "url")).To(Equal("oci://" + registry + "manifests"))
	g.Expect(at(t, source, "spec", "ref", "semver")).To(Equal(">=1.2.3"))
	applied := decode(t, read(t, dir, "flux.yaml")).get(t, "Kustomization", "stack-controller")
	path := at(t, applied, "spec", "path").(string)
	g.Expect(filepath.Join(unpack(t, dir), path, "kustomization.yaml")).To(BeARegularFile())
	g.Expect(dryRun(t, flux(t), filepath.Join(dir, "flux.yaml"))).To(Succeed())
	set := decode(t, read(t, dir, "resource_set.yaml")).get(t, "ResourceSet", "stack-controller")
	g.Expect(at(t, set, "spec", "inputs")).To(Equal([]any{map[string]any{"url": at(t, source, "spec", "url"), "version": ">=1.2.3"}}))
}

// Without any setting the names start with the default, as in config, so that the registry can replace it.
func TestNamesHaveOneDefaultWithoutAHost(t *testing.T) {
	t.Parallel()
	g := NewWithT(t)
	names := 0
	for _, dir := range []string{"manager", "chart", "flux", "default"} {
		g.Expect(filepath.WalkDir(inRepository("config", dir), func(path string, entry os.DirEntry, err error) error {
			if err != nil || entry.IsDir() {
				return err
			}
			for _, name := range ownName.FindAllString(read(t, path), -1) {
				name = strings.TrimPrefix(strings.TrimLeft(name, ":/"), "oci://")
				if strings.Contains(name, "github.com/") {
					continue // the address of the repository
				}
				names++
				g.Expect(name).To(HavePrefix(defaultRegistry+"/"), path)
			}
			return nil
		})).To(Succeed())
	}
	g.Expect(names).To(BeNumerically(">", 8))
	g.Expect(read(t, inRepository(".ci", "registry"))).To(ContainSubstring("registry=${IMAGE_REGISTRY:-" + defaultRegistry + "}"))
}
