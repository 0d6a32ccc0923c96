package objectwatch

import (
	"context"
	"encoding/json"
	"fmt"
	"strings"
	"testing"

	. "github.com/onsi/gomega"
	apimeta "k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	kjson "k8s.io/apimachinery/pkg/util/json"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/stack-controller/stack-controller/internal/discovery"
)

func TestKindsAreParsed(t *testing.T) {
	g := NewWithT(t)
	g.Expect(ParseKinds([]string{" helm.toolkit.fluxcd.io/HelmRelease", "", "apps/Deployment", "apps/Deployment"})).To(Equal([]schema.GroupKind{
		{Group: "helm.toolkit.fluxcd.io", Kind: "HelmRelease"}, {Group: "apps", Kind: "Deployment"},
	}))
	g.Expect(ParseKinds(nil)).To(BeEmpty())
	for text, says := range map[string]string{
		"Secret": "not allowed", "/ConfigMap": "not allowed", "v1": "not allowed", "rbac.authorization.k8s.io/Role": "not allowed",
		"admissionregistration.k8s.io/ValidatingAdmissionPolicy": "not allowed", "apiextensions.k8s.io/CustomResourceDefinition": "not allowed",
		"HelmRelease.helm.toolkit.fluxcd.io": "GROUP/KIND", "helm.toolkit.fluxcd.io/v2/HelmRelease": "GROUP/KIND", "a b/C": "GROUP/KIND",
		"helm.toolkit.fluxcd.io/": "GROUP/KIND", "*/*": "GROUP/KIND",
	} {
		_, err := ParseKinds([]string{text})
		g.Expect(err).To(MatchError(ContainSubstring(says)), text)
		g.Expect(err).To(MatchError(ContainSubstring(fmt.Sprintf("%q", text))))
	}
	var many []string
	for i := range MaxKinds + 1 {
		many = append(many, fmt.Sprintf("example.com/Kind%d", i))
	}
	g.Expect(ParseKinds(many[1:])).To(HaveLen(MaxKinds))
	_, err := ParseKinds(many)
	g.Expect(err).To(MatchError("it has 17 kinds, and may have 16"))
}

// parse returns what is kept of the object.
func parse(t *testing.T, text string) *Object {
	t.Helper()
	full := &unstructured.Unstructured{}
	NewWithT(t).Expect(kjson.Unmarshal([]byte(text), &full.Object)).To(Succeed())
	return reduce(full)
}

func TestObjectIsReadyByItsConditionAndItsGeneration(t *testing.T) {
	for status, unready := range map[string]string{
		`{"observedGeneration": 3, "conditions": [{"type": "Ready", "status": "True"}]}`:                   "",
		`{"conditions": [{"type": "Other", "status": "False"}, {"type": "Ready", "status": "True"}]}`:      "",
		`{"observedGeneration": 2, "conditions": [{"type": "Ready", "status": "True"}]}`:                   "is not ready: its controller has not seen its last edit yet",
		`{"observedGeneration": 3, "conditions": [{"type": "Ready", "status": "Unknown"}]}`:                "is not ready",
		`{"conditions": [{"type": "Reconciling", "status": "True"}, {"type": "Ready", "status": "True"}]}`: "is not ready: it is being reconciled",
		`{"conditions": [{"type": "Stalled", "status": "True"}, {"type": "Ready", "status": "True"}]}`:     "is not ready: it is stalled",
		`{"conditions": [{"type": "Stalled", "status": "False"}, {"type": "Ready", "status": "True"}]}`:    "",
		`{"observedGeneration": 3}`:         "is not ready: it has no condition Ready",
		`"text"`:                            "is not ready: it has no condition Ready",
		`{"conditions": {"Ready": "True"}}`: "is not ready: it has no condition Ready",
		`{"conditions": ["Ready", {"type": 1}, {"type": "Ready", "status": true}]}`:                                    "is not ready",
		`{"conditions": [` + strings.Repeat(`{"type": "A"},`, maxConditions) + `{"type": "Ready", "status": "True"}]}`: "",
	} {
		g := NewWithT(t)
		g.Expect(parse(t, `{"metadata": {"name": "a", "generation": 3}, "status": `+status+`}`).Unready()).To(Equal(unready), status)
		deleting := parse(t, `{"metadata": {"name": "a", "generation": 3, "deletionTimestamp": "2026-01-01T00:00:00Z"}, "status": `+status+`}`)
		g.Expect(deleting.Unready()).To(Equal("is being deleted"))
	}
}

func TestNothingIsKeptOfAnObjectButWhatIsListed(t *testing.T) {
	g := NewWithT(t)
	const canary = "canary-s3cr3t"
	kept := parse(t, `{"apiVersion": "example.com/v1", "kind": "Widget", "metadata": {"name": "a", "namespace": "team", "uid": "1", "labels": {"a": "b"},
		"annotations": {"a": "`+canary+`"}, "managedFields": [{"manager": "`+canary+`"}], "ownerReferences": [{"name": "`+canary+`"}]},
		"spec": {"a": "`+canary+`"}, "data": "`+canary+`", "status": {"a": "`+canary+`", "observedGeneration": 1,
		"conditions": [{"type": "Ready", "status": "True", "reason": "Done", "message": "`+canary+`", "a": "`+canary+`", "lastTransitionTime": "2026-01-01T00:00:00Z"}]}}`)
	text, err := json.Marshal(kept)
	g.Expect(err).NotTo(HaveOccurred())
	g.Expect(string(text)).NotTo(ContainSubstring(canary))
	g.Expect(kept.Labels).To(HaveKeyWithValue("a", "b"))
	g.Expect(kept.Conditions).To(HaveLen(1))
	g.Expect(kept.Conditions[0].LastTransitionTime.IsZero()).To(BeFalse())

	long := parse(t, `{"metadata": {"name": "a"}, "status": {"conditions": [{"type": "A", "reason": "`+strings.Repeat("x", maxText+1)+`"}]}}`)
	g.Expect(long.Conditions[0].Reason).To(BeEmpty())
	many := parse(t, `{"metadata": {"name": "a", "labels": {`+strings.TrimSuffix(labels(maxLabels+1), ",")+`}},
		"status": {"conditions": [`+strings.Repeat(`{"type": "A"},`, maxConditions)+`{"type": "B"}]}}`)
	g.Expect(many.Labels).To(BeEmpty())
	g.Expect(many.Conditions).To(BeEmpty())
}

func labels(count int) (text string) {
	for i := range count {
		text += fmt.Sprintf(`"l%d": "a",`, i)
	}
	return text
}

// largestReader answers with objects of which as much is kept as possible.
type largestReader struct{ client.Reader }

func (largestReader) Get(_ context.Context, key client.ObjectKey, object client.Object, _ ...client.GetOption) error {
	object.SetName(key.Name)
	kept := map[string]string{}
	for i := range maxLabels {
		kept[fmt.Sprint("l", i)] = strings.Repeat("a", 63)
	}
	object.SetLabels(kept)
	return nil
}

func TestWhatIsKeptOfAllObjectsIsBounded(t *testing.T) {
	g := NewWithT(t)
	w := New(Options{APIReader: largestReader{}})
	for i := range 1000 {
		_, _, err := w.read(t.Context(), Key{widgets, "default", fmt.Sprint("a", i)}, func(*answer) bool { return false })
		g.Expect(err).NotTo(HaveOccurred())
	}
	g.Expect(w.answers.Len()).To(BeNumerically("<", 1000))
	g.Expect(w.answers.Size()).To(BeNumerically("<=", maxAnswers))
	g.Expect(w.reading).To(BeEmpty())
}

func TestNilWatcherAllowsNothing(t *testing.T) {
	g := NewWithT(t)
	var w *Watcher
	g.Expect(w.Allows(widgets.GroupKind())).To(BeFalse())
	g.Expect(w.Source(nil).Start(t.Context(), nil)).To(Succeed())
	_, err := w.Read(t.Context(), "default", Key{GroupVersionKind: widgets})
	g.Expect(err).To(MatchError(errNotAllowed))
}

// countingMapper counts the questions for versions: for another than it knows, a real one asks the cluster.
type countingMapper struct {
	apimeta.RESTMapper
	asked map[string]int
}

func (m countingMapper) RESTMapping(kind schema.GroupKind, versions ...string) (*apimeta.RESTMapping, error) {
	m.asked[versions[0]]++
	return m.RESTMapper.RESTMapping(kind, versions...)
}

func TestVersionsThatUsersInventAreSeldomAskedFor(t *testing.T) {
	g := NewWithT(t)
	mapper := apimeta.NewDefaultRESTMapper(nil)
	mapper.Add(widgets, apimeta.RESTScopeNamespace)
	asked := map[string]int{}
	w := New(Options{Mapper: countingMapper{mapper, asked}})
	for i := range 1000 {
		_, err := w.mapping("evil", Key{GroupVersionKind: widgets.GroupKind().WithVersion(fmt.Sprint("v", 10+i))})
		g.Expect(err).To(HaveOccurred())
	}
	g.Expect(len(asked)).To(And(BeNumerically(">=", discovery.Burst), BeNumerically("<", 2*discovery.Burst)))
	for range 1000 {
		_, err := w.mapping("team", Key{GroupVersionKind: widgets})
		g.Expect(err).NotTo(HaveOccurred(), "others can ask, and what there is can be used all the time")
	}
	_, err := w.mapping("evil", Key{GroupVersionKind: widgets})
	g.Expect(err).NotTo(HaveOccurred())
}
