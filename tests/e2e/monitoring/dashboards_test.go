package monitoring_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"

	. "github.com/onsi/gomega"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/yaml"

	"github.com/stack-controller/stack-controller/tests/framework/suite"
)

// dashboard has the fields of a Grafana dashboard that the test reads.
type dashboard struct {
	UID    string `json:"uid"`
	Title  string `json:"title"`
	Panels []struct {
		Title   string `json:"title"`
		Type    string `json:"type"`
		Targets []struct {
			Expr string `json:"expr"`
		} `json:"targets"`
		GridPos struct {
			W, H, X, Y int
		} `json:"gridPos"`
	} `json:"panels"`
	Templating struct {
		List []struct {
			Name       string `json:"name"`
			Type       string `json:"type"`
			Definition string `json:"definition"`
		} `json:"list"`
	} `json:"templating"`
}

func dashboards(t *testing.T) map[string]dashboard {
	t.Helper()
	g := NewWithT(t)
	paths, err := filepath.Glob(inRepository("config", "monitoring", "dashboards", "*.json"))
	g.Expect(err).NotTo(HaveOccurred())
	all := map[string]dashboard{}
	for _, path := range paths {
		content, err := os.ReadFile(path)
		g.Expect(err).NotTo(HaveOccurred())
		var board dashboard
		g.Expect(json.Unmarshal(content, &board)).To(Succeed(), path)
		all[filepath.Base(path)] = board
	}
	g.Expect(all).To(HaveLen(3))
	return all
}

func TestEveryQueryOfTheDashboardsHasData(t *testing.T) {
	suite.Long(t, "needs Prometheus")
	awaitFailure(t)
	remove := haltRollout(t)
	fill := strings.NewReplacer("$__rate_interval", "10s", "$namespace", healthy, "$name", healthy)
	for file, board := range dashboards(t) {
		for _, panel := range board.Panels {
			for _, target := range panel.Targets {
				t.Run(file+"/"+panel.Title, func(t *testing.T) {
					g := NewWithT(t)
					query := fill.Replace(target.Expr)
					g.Expect(query).NotTo(ContainSubstring("$"), "a variable that the test does not know")
					eventually(g, func() ([]sample, error) { return observed.query(t.Context(), query) }).ShouldNot(BeEmpty(), query)
				})
			}
		}
	}
	remove() // other tests count the Stacks
}

func TestQueriesOfTheGuideHaveData(t *testing.T) {
	suite.Long(t, "needs Prometheus")
	guide, err := os.ReadFile(inRepository("docs", "guides", "monitoring.md"))
	NewWithT(t).Expect(err).NotTo(HaveOccurred())
	queries := regexp.MustCompile("(?m)^\\| ([^|]*\\?) \\| `(.*)` \\|$").FindAllStringSubmatch(string(guide), -1)
	NewWithT(t).Expect(queries).To(HaveLen(5))
	for _, found := range queries {
		t.Run(found[1], func(t *testing.T) {
			g := NewWithT(t)
			query := strings.ReplaceAll(found[2], "[1h]", "[10s]")
			eventually(g, func() ([]sample, error) { return observed.query(t.Context(), query) }).ShouldNot(BeEmpty(), query)
		})
	}
}

func TestVariablesOfTheDashboardsHaveTheStack(t *testing.T) {
	suite.Long(t, "needs Prometheus")
	g := NewWithT(t)
	variables := 0
	for _, board := range dashboards(t) {
		for _, variable := range board.Templating.List {
			if variable.Type == "datasource" {
				continue
			}
			variables++
			inside, isValues := strings.CutPrefix(variable.Definition, "label_values(")
			g.Expect(isValues).To(BeTrue(), variable.Definition)
			separator := strings.LastIndex(inside, ",")
			series, label := inside[:separator], strings.Trim(inside[separator:], ", )")
			eventually(g, func() ([]sample, error) {
				return observed.query(t.Context(), strings.ReplaceAll(series, "$namespace", healthy))
			}).
				Should(ContainElement(HaveField("Labels", HaveKeyWithValue(label, healthy))))
		}
	}
	g.Expect(variables).To(Equal(2))
}

func TestPanelsOfTheDashboardsDoNotOverlap(t *testing.T) {
	for file, board := range dashboards(t) {
		t.Run(file, func(t *testing.T) {
			g := NewWithT(t)
			g.Expect(board.UID + ".json").To(Equal(file))
			taken := map[[2]int]string{}
			for _, panel := range board.Panels {
				at := panel.GridPos
				g.Expect(at.X+at.W).To(BeNumerically("<=", 24), panel.Title)
				for x := at.X; x < at.X+at.W; x++ {
					for y := at.Y; y < at.Y+at.H; y++ {
						g.Expect(taken).NotTo(HaveKey([2]int{x, y}), "%s and %s", panel.Title, taken[[2]int{x, y}])
						taken[[2]int{x, y}] = panel.Title
					}
				}
				if panel.Type != "row" {
					g.Expect(panel.Targets).NotTo(BeEmpty(), panel.Title)
				}
			}
		})
	}
}

// The table in the guide is generated from the code. This test compares it with the metrics of a running controller.
func TestGuideListsEveryMetricThatTheControllerHas(t *testing.T) {
	suite.Long(t, "needs Prometheus")
	g := NewWithT(t)
	guide, err := os.ReadFile(inRepository("docs", "guides", "monitoring.md"))
	g.Expect(err).NotTo(HaveOccurred())
	samples, err := observed.query(t.Context(), `{__name__=~"(stacks|stack|programs|resource|gotk|pulumi)_.+", job="flux-system/stack-controller"}`)
	g.Expect(err).NotTo(HaveOccurred())
	g.Expect(samples).NotTo(BeEmpty())
	for _, one := range samples {
		name := one.Labels["__name__"]
		for _, suffix := range []string{"_bucket", "_sum", "_count"} {
			name = strings.TrimSuffix(name, suffix)
		}
		g.Expect(string(guide)).To(ContainSubstring("\n| `" + name + "` | "))
	}
}

func TestMetricsShowWhatHappened(t *testing.T) {
	suite.Long(t, "needs Prometheus")
	awaitFailure(t)
	const phases = "stack_controller_update_phase_duration_seconds"
	for query, want := range map[string]any{
		`sum(stacks_active)`:  BeNumerically("==", 2),
		`sum(stacks_failing)`: BeNumerically("==", 1),
		`stack_controller_updates_total{kind="up",result="succeeded"}`:   BeNumerically(">=", 1+commits),
		`stack_controller_updates_total{kind="up",result="failed"}`:      BeNumerically(">=", 1),
		`stack_controller_updates_total{kind="destroy",result="failed"}`: BeZero(),
		// Pulumi takes most of the time, and an update that was requested while another operation ran had to wait.
		`sum(` + phases + `_sum{phase="run"}) > sum(` + phases + `_sum{phase="prepare"})`:                                 BeNumerically(">", 0.1),
		`sum(` + phases + `_count{phase="run"}) >= ` + `sum(stack_controller_updates_total{result="succeeded"})`:          BeNumerically(">", commits),
		`min(` + phases + `_count{phase=~"workspace|queue|fetch|delivery|other"}) >= sum(stack_controller_updates_total)`: BeNumerically(">", commits),
		`sum(stack_controller_artifact_fetches_total{origin="download",result="success"})`:                                BeNumerically(">=", 2+commits),
		`stack_controller_artifact_fetched_bytes_total{origin="download"}`:                                                BeNumerically(">", 100),
		`stack_controller_artifact_store_bytes`:                                                                           BeNumerically(">", 100),
		`stack_controller_artifact_store_requests_total{result="miss"}`:                                                   BeNumerically(">=", 1+commits),
		`stack_controller_agents{runtime="process"}`:                                                                      BeNumerically(">=", 1),
	} {
		t.Run(query, func(t *testing.T) {
			g := NewWithT(t)
			eventually(g, func() ([]sample, error) { return observed.query(t.Context(), query) }).Should(ConsistOf(HaveField("Value", want)))
		})
	}
}

// stateValues has the fields of the values for kube-state-metrics that the test knows. The file must not have others.
type stateValues struct {
	RBAC struct {
		ExtraRules []struct {
			APIGroups []string `json:"apiGroups"`
			Resources []string `json:"resources"`
			Verbs     []string `json:"verbs"`
		} `json:"extraRules"`
	} `json:"rbac"`
	CustomResourceState struct {
		Enabled bool `json:"enabled"`
		Config  struct {
			Kind string `json:"kind"`
			Spec struct {
				Resources []stateResource `json:"resources"`
			} `json:"spec"`
		} `json:"config"`
	} `json:"customResourceState"`
}

// stateResource lists the metrics that kube-state-metrics creates for the objects of a kind.
type stateResource struct {
	GroupVersionKind schema.GroupVersionKind `json:"groupVersionKind"`
	MetricNamePrefix string                  `json:"metricNamePrefix"`
	Metrics          []struct {
		Name string `json:"name"`
		Help string `json:"help"`
		Each struct {
			Type string `json:"type"`
			Info struct {
				LabelsFromPath map[string][]string `json:"labelsFromPath"`
			} `json:"info"`
		} `json:"each"`
		LabelsFromPath map[string][]string `json:"labelsFromPath"`
	} `json:"metrics"`
}

func readStateValues() (*stateValues, error) {
	content, err := os.ReadFile(inRepository("config", "monitoring", "kube_state_metrics_values.yaml"))
	if err != nil {
		return nil, fmt.Errorf("read the values of kube-state-metrics: %w", err)
	}
	values := &stateValues{}
	if err := yaml.UnmarshalStrict(content, values); err != nil {
		return nil, fmt.Errorf("read the values of kube-state-metrics: %w", err)
	}
	return values, nil
}

// serveObjects stands in for kube-state-metrics: it serves the metrics that the configuration defines for the objects in the cluster. It
// returns the host and port. The server ends with the process.
func serveObjects(reader client.Reader) (string, error) {
	values, err := readStateValues()
	if err != nil {
		return "", err
	}
	server := httptest.NewServer(http.HandlerFunc(func(response http.ResponseWriter, request *http.Request) {
		text := &strings.Builder{}
		var failures error
		for _, resource := range values.CustomResourceState.Config.Spec.Resources {
			failures = errors.Join(failures, resource.write(request.Context(), reader, text))
		}
		if failures != nil {
			http.Error(response, failures.Error(), http.StatusInternalServerError)
			return
		}
		response.Header().Set("Content-Type", "text/plain; version=0.0.4")
		_, _ = response.Write([]byte(text.String())) // a client that disconnects does not need the rest
	}))
	return server.Listener.Addr().String(), nil
}

// write writes the series of the objects.
func (r *stateResource) write(ctx context.Context, reader client.Reader, to *strings.Builder) error {
	list := &unstructured.UnstructuredList{}
	list.SetGroupVersionKind(r.GroupVersionKind.GroupVersion().WithKind(r.GroupVersionKind.Kind + "List"))
	if err := reader.List(ctx, list); err != nil {
		return fmt.Errorf("list objects of the kind %s: %w", r.GroupVersionKind.Kind, err)
	}
	for i := range list.Items {
		for _, metric := range r.Metrics {
			labels := map[string]string{
				"customresource_group": r.GroupVersionKind.Group, "customresource_version": r.GroupVersionKind.Version,
				"customresource_kind": r.GroupVersionKind.Kind,
			}
			paths := maps.Clone(metric.LabelsFromPath)
			maps.Copy(paths, metric.Each.Info.LabelsFromPath)
			for label, path := range paths {
				if value := valueAt(list.Items[i].Object, path); value != nil {
					labels[label] = fmt.Sprint(value)
				}
			}
			var pairs []string
			for _, label := range slices.Sorted(maps.Keys(labels)) {
				pairs = append(pairs, label+"="+strconv.Quote(labels[label]))
			}
			fmt.Fprintf(to, "%s_%s{%s} 1\n", r.MetricNamePrefix, metric.Name, strings.Join(pairs, ","))
		}
	}
	return nil
}

// valueAt follows a path as kube-state-metrics does: a step is a field or, in brackets, the element of a list that has a field with that
// value. It returns nil if there is no value.
func valueAt(value any, path []string) any {
	for _, step := range path {
		switch current := value.(type) {
		case map[string]any:
			value = current[step]
		case []any:
			field, want, _ := strings.Cut(strings.Trim(step, "[]"), "=")
			value = nil
			for _, element := range current {
				if fields, isObject := element.(map[string]any); isObject && fields[field] == want {
					value = element
				}
			}
		default:
			return nil
		}
	}
	return value
}

func TestConfigurationOfKubeStateMetricsIsAboutEveryKindAndCoveredByItsRights(t *testing.T) {
	g := NewWithT(t)
	values, err := readStateValues()
	g.Expect(err).NotTo(HaveOccurred())
	g.Expect(values.CustomResourceState.Config.Kind).To(Equal("CustomResourceStateMetrics"))
	rights := map[string][]string{}
	for _, rule := range values.RBAC.ExtraRules {
		for _, resource := range rule.Resources {
			rights[rule.APIGroups[0]+"/"+resource] = rule.Verbs
		}
	}
	var kinds []string
	for _, resource := range values.CustomResourceState.Config.Spec.Resources {
		kind := resource.GroupVersionKind
		kinds = append(kinds, kind.Kind)
		g.Expect(rights).To(HaveKeyWithValue(kind.Group+"/"+strings.ToLower(kind.Kind)+"s", ConsistOf("list", "watch")))
		for _, metric := range resource.Metrics {
			g.Expect(resource.MetricNamePrefix + "_" + metric.Name).To(Equal("gotk_resource_info"))
			g.Expect(metric.Each.Type).To(Equal("Info"))
		}
	}
	g.Expect(kinds).To(ConsistOf("Stack", "Program", "Workspace", "Update"))
}

func TestEveryLabelOfTheObjectsHasAValue(t *testing.T) {
	suite.Long(t, "needs Prometheus")
	g := NewWithT(t)
	awaitFailure(t)
	values, err := readStateValues()
	g.Expect(err).NotTo(HaveOccurred())
	// These labels are absent unless a user sets the field, or something is wrong.
	optional := []string{"suspended", "stalled", "reconciling"}
	for _, resource := range values.CustomResourceState.Config.Spec.Resources {
		for label := range resource.Metrics[0].LabelsFromPath {
			kind := resource.GroupVersionKind.Kind
			if slices.Contains(optional, label) {
				continue
			}
			eventually(g, func() ([]sample, error) {
				return observed.query(t.Context(), fmt.Sprintf("gotk_resource_info{customresource_kind=%q,%s!=\"\"}", kind, label))
			}).ShouldNot(BeEmpty(), "%s %s", kind, label)
		}
	}
}
