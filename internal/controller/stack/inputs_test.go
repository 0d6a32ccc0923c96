package stack

import (
	"reflect"
	"testing"

	. "github.com/onsi/gomega"

	autov1alpha1 "github.com/stack-controller/stack-controller/api/auto/v1alpha1"
	pulumiv1 "github.com/stack-controller/stack-controller/api/pulumi/v1"
	"github.com/stack-controller/stack-controller/internal/controller/inputs"
	"github.com/stack-controller/stack-controller/internal/references"
	"github.com/stack-controller/stack-controller/internal/source"
)

// fieldsOfInputs returns the names of all inputs.
func fieldsOfInputs() (names []string) {
	for _, field := range reflect.VisibleFields(reflect.TypeFor[pulumiv1.UpdateInputs]()) {
		if !field.Anonymous {
			names = append(names, field.Name)
		}
	}
	return names
}

// allInputs returns inputs in which every field has a value of its own.
func allInputs(g *WithT) (inputs pulumiv1.UpdateInputs) {
	for i, name := range fieldsOfInputs() {
		switch field := reflect.ValueOf(&inputs).Elem().FieldByName(name); field.Kind() {
		case reflect.String:
			field.SetString("sha256:" + name)
		case reflect.Int64:
			field.SetInt(int64(i) + 7)
		default:
			g.Expect(name).To(BeEmpty(), "a field of another kind")
		}
	}
	return inputs
}

func TestEveryRecordHasAllInputs(t *testing.T) {
	g := NewWithT(t)
	inputs := allInputs(g)

	update := &autov1alpha1.Update{Name: "app-1", Spec: autov1alpha1.UpdateSpec{
		Source: &autov1alpha1.UpdateSource{Digest: inputs.Commit, Revision: inputs.Revision},
	}}
	annotateInputs(update, inputs)
	g.Expect(annotatedInputs(update)).To(Equal(inputs))
	g.Expect(currentOf(update).UpdateInputs).To(Equal(inputs))

	stack := &pulumiv1.Stack{}
	stack.Status.CurrentUpdate = &pulumiv1.CurrentStackUpdate{UpdateInputs: inputs}
	g.Expect(newPlan(stack, update).UpdateInputs).To(Equal(inputs))
	recordResult(stack, ended(""), nil)
	g.Expect(stack.Status.LastUpdate.Inputs()).To(Equal(inputs))
}

func TestNowHasAllInputs(t *testing.T) {
	g := NewWithT(t)
	now := reflect.ValueOf(inputsNow(&observation{
		stack:      &pulumiv1.Stack{Generation: 3},
		artifact:   &source.Artifact{Digest: "sha256:a", Revision: "main@sha1:a"},
		content:    content{digest: "sha256:c"},
		references: versionsOf("a-1"),
		inputs:     someInputs(),
	}))
	for _, name := range fieldsOfInputs() {
		g.Expect(now.FieldByName(name).IsZero()).To(BeFalse(), name)
	}
}

// someInputs are inputs whose values were read.
func someInputs() inputsView {
	return inputsView{versions: "2", values: []inputs.ValueID{{Input: "app:size", ID: "1"}}}
}

// TestEveryInputCounts changes one recorded input after the other. The next update is made, or says that it repeats nothing, for each of them.
func TestEveryInputCounts(t *testing.T) {
	everyRevision := func(o *observation) { o.stack.Spec.UpdateOn = pulumiv1.UpdateOnRevision }
	rows := map[string]struct {
		setUp  func(o *observation)
		change func(*pulumiv1.UpdateInputs)
		why    string
		// partOf is the input that shows whether this one has changed.
		partOf string
	}{
		"Generation": {change: func(i *pulumiv1.UpdateInputs) { i.Generation = 1 }, why: "New stack generation: 2"},
		"SpecDigest": {change: func(i *pulumiv1.UpdateInputs) { i.SpecDigest = "other" }, partOf: "Generation"},
		"Commit": {change: func(i *pulumiv1.UpdateInputs) { i.Commit, i.ContentDigest = "sha256:b", "" },
			why: "New commit detected: main@sha1:a"},
		"Revision": {setUp: everyRevision, change: func(i *pulumiv1.UpdateInputs) { i.Revision = "main@sha1:b" },
			why: "New commit detected: main@sha1:a"},
		"ContentDigest": {change: func(i *pulumiv1.UpdateInputs) { i.Commit, i.ContentDigest = "sha256:b", "sha256:d" },
			why: "New commit detected: main@sha1:a"},
		"ReferencesDigest": {change: func(i *pulumiv1.UpdateInputs) { i.ReferencesDigest = references.Digest(versionsOf("a-2")) },
			why: `Referenced Secret or ConfigMap changed: Secret "a"`},
		"InputValuesDigest":   {change: func(i *pulumiv1.UpdateInputs) { i.InputValuesDigest = "3" }, why: "Input app:size changed"},
		"InputVersionsDigest": {change: func(i *pulumiv1.UpdateInputs) { i.InputVersionsDigest = "3" }, partOf: "InputValuesDigest"},
	}
	for _, name := range fieldsOfInputs() {
		t.Run(name, func(t *testing.T) {
			g := NewWithT(t)
			row, known := rows[name]
			g.Expect(known).To(BeTrue(), "write a row that shows what a change of this input causes")
			o := using(upToDate(), "a-1", "a-1")
			o.artifact = &source.Artifact{Digest: "sha256:a", Revision: "main@sha1:a"}
			o.content.digest = "sha256:c"
			o.inputs = someInputs()
			if row.setUp != nil {
				row.setUp(o)
			}
			recorded := inputsNow(o)
			g.Expect(newInputs(*o, recorded)).To(BeEmpty())
			g.Expect(areRepeated(o.stack, recorded, inputsNow(o))).To(BeTrue())
			row.change(&recorded)
			g.Expect(newInputs(*o, recorded)).To(Equal(row.why))
			g.Expect(areRepeated(o.stack, recorded, inputsNow(o))).To(Equal(row.partOf != ""))
			if row.partOf == "Generation" {
				o.stack.Status.Plan = &pulumiv1.PlanStatus{UpdateInputs: recorded}
				o.stack.Generation++
				followGeneration(o.stack)
				g.Expect(newInputs(*o, o.stack.Status.Plan.UpdateInputs)).To(Equal("New stack generation: 3"))
			}
		})
	}
}
