package update

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"

	. "github.com/onsi/gomega"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/validation"

	autov1alpha1 "github.com/stack-controller/stack-controller/api/auto/v1alpha1"
	"github.com/stack-controller/stack-controller/internal/agent/agentpb"
	"github.com/stack-controller/stack-controller/internal/objectname"
	"github.com/stack-controller/stack-controller/tests/framework/suite"
)

func TestWhatIsShownOfAnOutputIsBesideItsValue(t *testing.T) {
	g := NewWithT(t)
	chosen := chooseOutputs(map[string]*agentpb.Output{
		"role": {Value: []byte(`"arn:1:app"`), Shown: []byte(`"arn:[secret]:app"`)}, "broken": {Value: []byte(`1`), Shown: []byte(`{`)}, "plain": {Value: []byte(`2`)},
		"much": {Value: []byte(`3`), Shown: make([]byte, maxOutputsAnnotations)},
	})
	g.Expect(chosen.omitted).To(HaveExactElements("much"))
	annotations, err := chosen.annotations()
	g.Expect(err).NotTo(HaveOccurred())
	g.Expect(annotations).To(HaveKeyWithValue(autov1alpha1.ShownOutputsAnnotation, `{"broken":"[secret]","role":"arn:[secret]:app"}`))
	g.Expect(annotations).To(HaveKeyWithValue(autov1alpha1.SecretOutputsAnnotation, `[]`))
}

func TestOutputsThatAreNotKnownAreNamed(t *testing.T) {
	g := NewWithT(t)
	chosen := chooseOutputs(map[string]*agentpb.Output{"url": {Value: []byte(`1`)}, "ip": {Omitted: true, Unknown: true}, "a b": {Omitted: true, Unknown: true}})
	annotations, err := chosen.annotations()
	g.Expect(err).NotTo(HaveOccurred())
	g.Expect(annotations).To(Equal(map[string]string{autov1alpha1.SecretOutputsAnnotation: `[]`, autov1alpha1.UnknownOutputsAnnotation: `["a b","ip"]`}))
	g.Expect(chosen.keys).To(Equal(map[string]string{"url": "url"}))
	g.Expect(chosen.problem("x")).To(BeEmpty(), "there is room for them")
}

func TestOutputKeys(t *testing.T) {
	tests := map[string]struct {
		names []string
		want  map[string]string
	}{
		"valid names stay":             {[]string{"url", "a.b-c_D"}, map[string]string{"url": "url", "a.b-c_D": "a.b-c_D"}},
		"other characters are cleaned": {[]string{"my url"}, map[string]string{"my url": "my_url"}},
		"dots alone are not a key":     {[]string{".", "..", "..x"}, map[string]string{"..x": "__x", ".": "_", "..": "__"}},
		"no name at all":               {[]string{""}, map[string]string{"": "_"}},
		"a valid name has precedence":  {[]string{"a/b", "a_b"}, map[string]string{"a_b": "a_b"}},
		"nobody wins among invalid":    {[]string{"a/b", "a:b"}, map[string]string{}},
		"long names differ at the end": {[]string{strings.Repeat("x", 300) + "1", strings.Repeat("x", 300) + "2"}, map[string]string{}},
		"what looks like a hashed key": {[]string{"a/b", "a_b", objectname.WithHash("a/ba_b", "a_b", 253)}, map[string]string{"a_b": "a_b"}},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			g := NewWithT(t)
			keys := outputKeys(slices.Clone(tt.names))
			g.Expect(keys).To(HaveLen(len(tt.names)))
			seen := map[string]bool{}
			for name, key := range keys {
				g.Expect(validation.IsConfigMapKey(key)).To(BeEmpty(), key)
				g.Expect(seen[key]).To(BeFalse(), "%q is the key of two outputs", key)
				seen[key] = true
				if want, fixed := tt.want[name]; fixed {
					g.Expect(key).To(Equal(want))
				} else {
					g.Expect(key).To(MatchRegexp("-[0-9a-f]{16}$"))
				}
			}
			slices.Reverse(tt.names)
			g.Expect(outputKeys(tt.names)).To(Equal(keys), "the order of names has no influence")
		})
	}
}

func TestOutputsSecretNamesItsSecretKeys(t *testing.T) {
	g := NewWithT(t)
	update := &autov1alpha1.Update{Name: "up", Namespace: "ns", UID: "1"}
	secret, err := outputsSecret(update, chooseOutputs(map[string]*agentpb.Output{
		"url":       {Value: []byte(`"http://x"`)},
		"the token": {Value: []byte(`"t0ken"`), Secret: true},
		"key":       {Value: []byte(`{"a":1}`), Secret: true},
	}))
	g.Expect(err).NotTo(HaveOccurred())
	g.Expect(secret.Name).To(Equal("up-stack-outputs"))
	g.Expect(secret.Namespace).To(Equal("ns"))
	g.Expect(*secret.Immutable).To(BeTrue())
	g.Expect(secret.Data).To(Equal(map[string][]byte{"url": []byte(`"http://x"`), "the_token": []byte(`"t0ken"`), "key": []byte(`{"a":1}`)}))
	g.Expect(secret.Annotations).To(Equal(map[string]string{
		// These are keys of the Secret, so that a tool that masks values by their keys misses none.
		"pulumi.com/secrets":      `["key","the_token"]`,
		"pulumi.com/output-names": `{"the_token":"the token"}`,
	}))
	g.Expect(secret.Labels).To(Equal(map[string]string{"auto.pulumi.com/component": "update", "auto.pulumi.com/update-name": "up"}))
	g.Expect(metav1.IsControlledBy(secret, update)).To(BeTrue())
}

func TestOutputsSecretOfALongUpdateNameIsValid(t *testing.T) {
	g := NewWithT(t)
	update := &autov1alpha1.Update{Name: strings.Repeat("a.", 126) + "a", UID: "1"}
	secret, err := outputsSecret(update, chooseOutputs(nil))
	g.Expect(err).NotTo(HaveOccurred())
	g.Expect(validation.IsDNS1123Subdomain(secret.Name)).To(BeEmpty())
	g.Expect(validation.IsValidLabelValue(secret.Labels[autov1alpha1.UpdateNameLabel])).To(BeEmpty())
	g.Expect(secret.Annotations).To(Equal(map[string]string{"pulumi.com/secrets": `[]`}))
}

// large returns an output of size bytes.
func large(size int) *agentpb.Output {
	return &agentpb.Output{Value: []byte(`"` + strings.Repeat("x", size-2) + `"`)}
}

func TestSecretHoldsAsManyOutputsAsItCan(t *testing.T) {
	g := NewWithT(t)
	outputs := map[string]*agentpb.Output{
		"b-large": large(600 << 10), "a-large": large(600 << 10), "larger": large(900 << 10), "huge": {Omitted: true}, "small": large(10),
	}
	chosen := chooseOutputs(outputs)
	g.Expect(chosen.keys).To(Equal(map[string]string{"small": "small", "a-large": "a-large"}))
	annotations, err := chosen.annotations()
	g.Expect(err).NotTo(HaveOccurred())
	g.Expect(annotations).To(HaveKeyWithValue("pulumi.com/omitted-outputs", `["b-large","huge","larger"]`))
	g.Expect(chosen.problem("up-stack-outputs")).To(Equal(
		`3 of 5 outputs are not stored, because secret "up-stack-outputs" cannot hold more than 1048576 bytes: "b-large", "huge", "larger"`))
	for range 20 {
		g.Expect(chooseOutputs(outputs).omitted).To(Equal(chosen.omitted), "the choice is the same each time")
	}
}

func TestSecretOfAnyOutputsIsAccepted(t *testing.T) {
	suite.WithoutRaceDetector(t)
	suite.Long(t, "many random outputs; see the other tests of this file")
	tests := map[string]func(i int) (string, *agentpb.Output){
		"a thousand": func(i int) (string, *agentpb.Output) { return fmt.Sprint("output", i), large(100) },
		"very many small ones": func(i int) (string, *agentpb.Output) {
			return fmt.Sprint(i), &agentpb.Output{Value: []byte("1"), Secret: true}
		},
		"long names that are no keys":       func(i int) (string, *agentpb.Output) { return fmt.Sprint(strings.Repeat("/", 200), i), large(3) },
		"names that JSON makes much longer": func(i int) (string, *agentpb.Output) { return fmt.Sprint(strings.Repeat("\x00", 250), i), large(3) },
		"nothing that could be stored": func(i int) (string, *agentpb.Output) {
			return fmt.Sprint(strings.Repeat("\x00", 250), i), large(2 << 20)
		},
	}
	s := newFixture(t)
	number := 0
	for name, output := range tests {
		number++
		t.Run(name, func(t *testing.T) {
			g := NewWithT(t)
			outputs := map[string]*agentpb.Output{}
			for i := range 20_000 {
				if name == "a thousand" && i == 1000 || name == "nothing that could be stored" && i == 200 {
					break
				}
				outputName, value := output(i)
				outputs[outputName] = value
			}
			chosen := chooseOutputs(outputs)
			g.Expect(len(chosen.keys) + len(chosen.omitted)).To(Equal(len(outputs)))
			g.Expect(len(chosen.problem("x"))).To(BeNumerically("<", 3000))
			update := &autov1alpha1.Update{Name: fmt.Sprint("many-", number), Namespace: s.namespace, UID: "1"}
			secret, err := outputsSecret(update, chosen)
			g.Expect(err).NotTo(HaveOccurred())
			secret.OwnerReferences = nil
			g.Expect(s.client.Create(t.Context(), secret)).To(Succeed())
			if name == "a thousand" {
				g.Expect(chosen.omitted).To(BeEmpty())
			}
		})
	}
}

func TestOutputsThatDoNotFitAreReported(t *testing.T) {
	s := newFixture(t)
	s.newReadyWorkspace("app")
	s.agents.script.returns(&agentpb.Operation{
		State: agentpb.OperationState_OPERATION_STATE_SUCCEEDED, Message: "done",
		Outputs: map[string]*agentpb.Output{"small": {Value: []byte(`1`)}, "log": large(1<<20 + 1)},
	})
	s.startController()
	update := s.newUpdate("up")
	done := s.finished(update)
	s.Expect(done).To(haveSucceeded())
	s.Expect(done.Status.Message).To(And(HavePrefix("done; 1 of 2 outputs are not stored"), HaveSuffix(`: "log"`)))
	secret := &corev1.Secret{}
	s.Expect(s.client.Get(t.Context(), s.key(done.Status.Outputs), secret)).To(Succeed())
	s.Expect(secret.Data).To(Equal(map[string][]byte{"small": []byte("1")}))
	s.Expect(secret.Annotations).To(HaveKeyWithValue("pulumi.com/omitted-outputs", `["log"]`))
	s.Eventually(s.events(update)).Should(ContainElement(HavePrefix("Warning OutputsNotStored: 1 of 2 outputs are not stored")))
}

// FuzzOutputKeys checks that every output has a valid key of its own, whatever its name is.
func FuzzOutputKeys(f *testing.F) {
	f.Add("a/b", "a:b", "a_b")
	f.Add("", ".", "..")
	f.Add(strings.Repeat("x", 300), strings.Repeat("x", 253)+"\xff", "x")
	f.Fuzz(func(t *testing.T, a, b, c string) {
		g := NewWithT(t)
		names := map[string]bool{a: true, b: true, c: true}
		taken := map[string]bool{}
		keys := outputKeys(slices.Collect(maps.Keys(names)))
		for name := range names {
			key := keys[name]
			g.Expect(validation.IsConfigMapKey(key)).To(BeEmpty(), "%q of %q", key, name)
			g.Expect(taken[key]).To(BeFalse(), "%q of %q", key, name)
			taken[key] = true
		}
	})
}

func TestOnlyUpAndRefreshKeepOutputs(t *testing.T) {
	g := NewWithT(t)
	operation := &agentpb.Operation{State: agentpb.OperationState_OPERATION_STATE_SUCCEEDED, Outputs: map[string]*agentpb.Output{"x": {}}}
	for kind, want := range map[agentpb.OperationKind]bool{
		agentpb.OperationKind_OPERATION_KIND_PREVIEW: false,
		agentpb.OperationKind_OPERATION_KIND_UP:      true,
		agentpb.OperationKind_OPERATION_KIND_REFRESH: true,
		agentpb.OperationKind_OPERATION_KIND_DESTROY: false,
	} {
		operation.Kind = kind
		g.Expect(hasOutputs(operation)).To(Equal(want), kind.String())
	}
	operation.Kind, operation.State = agentpb.OperationKind_OPERATION_KIND_UP, agentpb.OperationState_OPERATION_STATE_FAILED
	g.Expect(hasOutputs(operation)).To(BeFalse())
}
