package monitoring_test

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"net/http"
	"net/http/httptest"
	"os"
	"slices"
	"strconv"
	"strings"
	"testing"

	. "github.com/onsi/gomega"
	"github.com/stack-controller/stack-controller/tests/suite"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/yaml"
)

// stateValues are what the test reads of the values for kube-state-metrics: what it knows, and nothing else.
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

// stateResource says which metrics kube-state-metrics makes of the objects of a kind.
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

// serveObjects serves, in place of kube-state-metrics, what its configuration makes of the objects in the cluster. It returns the host and
// port. The server ends with the process.
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
		_, _ = response.Write([]byte(text.String())) // a client that goes away has no use for it
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

// valueAt follows a path as kube-state-metrics does: a field, or in brackets the element of a list with a field of that value. It is nil
// when there is none.
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
	// They are absent unless somebody sets them, or something is the matter.
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
