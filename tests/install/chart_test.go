package install_test

import (
	"context"
	"encoding/json"
	"maps"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"testing"

	. "github.com/onsi/gomega"
	"sigs.k8s.io/yaml"
)

// chart is the directory of the Helm chart.
func chart() string { return inRepository("config", "chart") }

// template renders the chart as a release of its name in Flux's namespace.
func template(t *testing.T, args ...string) objects {
	t.Helper()
	g := NewWithT(t)
	rendered, err := helmTemplate(t.Context(), args...)
	g.Expect(err).NotTo(HaveOccurred())
	return decode(t, rendered)
}

func helmTemplate(ctx context.Context, args ...string) (string, error) {
	// Helm knows the version of a cluster only when it asks one.
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
		// Kustomize does not know that policies are of the cluster. The API server drops their namespace.
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

// normal is the value as JSON: with and without Helm, its numbers have different types.
func normal(t *testing.T, value any) (decoded any) {
	t.Helper()
	g := NewWithT(t)
	encoded, err := json.Marshal(value)
	g.Expect(err).NotTo(HaveOccurred())
	g.Expect(json.Unmarshal(encoded, &decoded)).To(Succeed())
	return decoded
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
		"agentImage.registry=example.com/mirror":     "registry",
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
		"crds.install=perhaps":                       "install",
		"rbac.createClusterRole=true":                "createClusterRole",
		"resources.request.cpu=1":                    "request",
		"storage.sizeLimit=10GB":                     "sizeLimit",
		"serviceMonitor.metricRelabelings=everybody": "metricRelabelings",
	} {
		t.Run(value, func(t *testing.T) {
			g := NewWithT(t)
			_, err := helmTemplate(t.Context(), "--set", value)
			g.Expect(err).To(MatchError(And(ContainSubstring("specifications of the schema"), ContainSubstring(complaint))))
		})
	}
}

func TestTheSchemaKnowsEveryValue(t *testing.T) {
	t.Parallel()
	g := NewWithT(t)
	var schema struct {
		Properties map[string]any `json:"properties"`
	}
	var values map[string]any
	content, err := os.ReadFile(filepath.Join(chart(), "values.schema.json"))
	g.Expect(err).NotTo(HaveOccurred())
	g.Expect(json.Unmarshal(content, &schema)).To(Succeed())
	content, err = os.ReadFile(filepath.Join(chart(), "values.yaml"))
	g.Expect(err).NotTo(HaveOccurred())
	g.Expect(yaml.Unmarshal(content, &values)).To(Succeed())
	delete(schema.Properties, "global") // from a parent chart
	g.Expect(slices.Sorted(maps.Keys(schema.Properties))).To(Equal(slices.Sorted(maps.Keys(values))))
}

// Helm stores a release in a Secret, of which the API server takes one MiB.
func TestAReleaseOfTheChartFitsIntoASecret(t *testing.T) {
	t.Parallel()
	g := NewWithT(t)
	size, err := releaseSize(t.Context())
	g.Expect(err).NotTo(HaveOccurred())
	t.Logf("a release takes %d KiB", size>>10)
	g.Expect(size).To(BeNumerically("<", 512<<10))
}
