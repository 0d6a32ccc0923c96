package stack

import (
	"fmt"
	"testing"
	"time"

	. "github.com/onsi/gomega"

	"github.com/fluxcd/pkg/runtime/conditions"

	autov1alpha1 "github.com/stack-controller/stack-controller/api/auto/v1alpha1"
	pulumiv1 "github.com/stack-controller/stack-controller/api/pulumi/v1"
)

// correction returns the Update that corrects the drift in the status.
func (o *observation) correction(g Gomega) *autov1alpha1.Update {
	d := decide(*o)
	g.Expect(d.action).To(Equal(actionUpdate))
	g.Expect(d.driftDigest).To(Equal(o.stack.Status.Drift.Digest))
	o.workspace, o.desired = &autov1alpha1.Workspace{}, &desired{}
	update, err := desiredUpdate(o, d)
	g.Expect(err).NotTo(HaveOccurred())
	return update
}

func TestCorrectionIsForWhatTheStatusListsAndForNothingElse(t *testing.T) {
	g := NewWithT(t)
	o := watchful(pulumiv1.DriftModeCorrect)
	o.stack.Spec.Drift.Ignore = []pulumiv1.DriftIgnore{{Target: &pulumiv1.DriftTarget{Name: "scratch-*"}}}
	changes := []autov1alpha1.ResourceChange{gone("a:b:C", "scratch-1")}
	var listed []string
	for i := range maxDriftedResources + 10 {
		changes = append(changes, changed("a:b:C", fmt.Sprintf("x%02d", i), "size"))
		listed = append(listed, urnOf("a:b:C", fmt.Sprintf("x%02d", i)))
	}
	o.sees(time.Minute, changes...)
	o.sees(time.Second, changes...)
	g.Expect(o.stack.Status.Drift.OmittedResources).To(BeEquivalentTo(10))
	g.Expect(o.correction(g).Spec.Target).To(Equal(listed[:maxDriftedResources]), "the next check finds the others")

	// What a check has found and does not list may be ignored.
	o = watchful(pulumiv1.DriftModeCorrect)
	o.stack.Spec.Drift.Ignore = []pulumiv1.DriftIgnore{{Target: &pulumiv1.DriftTarget{Name: "scratch-*"}}}
	for _, since := range []time.Duration{time.Minute, time.Second} {
		o.driftCheck = checked(since, gone("a:b:C", "scratch-1"))
		o.driftCheck.Status.OmittedChanges = 3
		recordDrift(o)
		o.driftCheck = nil
	}
	g.Expect(conditions.GetMessage(o.stack, pulumiv1.DriftedCondition)).To(
		Equal("3 resources were changed outside of Pulumi: 3 more. Revert it, or correct it with an update that refreshes"))
	g.Expect(decide(*o).action).To(Equal(actionReady))
}

func TestDriftThatARuleIgnoresByNowIsNotCorrected(t *testing.T) {
	for name, rule := range map[string]pulumiv1.DriftIgnore{
		"a resource": {Target: &pulumiv1.DriftTarget{Name: "y"}},
		"a property": {Target: &pulumiv1.DriftTarget{Name: "y"}, Paths: []string{"tags"}},
	} {
		t.Run(name, func(t *testing.T) {
			g := NewWithT(t)
			o := watchful(pulumiv1.DriftModeCorrect)
			x, y := changed("a:b:C", "x", "size"), changed("a:b:C", "y", "tags.owner")
			o.sees(30*time.Minute, x, y)
			o.sees(20*time.Minute, x, y)
			g.Expect(o.correction(g).Spec.Target).To(HaveExactElements(urnOf("a:b:C", "x"), urnOf("a:b:C", "y")))
			o.stack.Spec.Drift.Ignore = []pulumiv1.DriftIgnore{rule}
			g.Expect(decide(*o).action).To(Equal(actionReady))
			g.Expect(decideOnDrift(*o, decide(*o)).step).To(Equal(driftStart), "what is left of it is looked for at once")

			failed := *o
			failed.stack = o.stack.DeepCopy()
			last := failed.stack.Status.LastUpdate
			last.State, last.Drift, last.LastResyncTime = pulumiv1.StackUpdateFailed, o.stack.Status.Drift.Digest, ago(time.Hour)
			d := decide(failed)
			g.Expect(d.action).To(Equal(actionUpdate))
			g.Expect(d.driftDigest).To(BeEmpty(), "another attempt corrects no drift")

			o.sees(time.Minute, x, y)
			g.Expect(decideOnDrift(*o, decide(*o)).step).To(Equal(driftStart))
			o.sees(time.Second, x, y)
			g.Expect(o.correction(g).Spec.Target).To(HaveExactElements(urnOf("a:b:C", "x")))
		})
	}
}
