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

func TestDriftThatAppearsAgainLaterIsCorrected(t *testing.T) {
	g := NewWithT(t)
	o := watchful(pulumiv1.DriftModeCorrect)
	change := changed("a:b:C", "x", "size")
	shown := func() string { return conditions.GetReason(o.stack, pulumiv1.DriftedCondition) }
	o.sees(200*time.Minute, change)
	o.sees(199*time.Minute, change)
	for i := range maxCorrections {
		corrected := checked(time.Duration(190-5*i) * time.Minute)
		recordCorrection(o.stack, &pulumiv1.CurrentStackUpdate{Drift: o.stack.Status.Drift.Digest}, corrected)
		o.sees(time.Duration(189-5*i)*time.Minute, change)
	}
	g.Expect(shown()).To(Equal(pulumiv1.DriftComesBackReason))
	o.stack.Status.Drift.LastHandledCheckAt = "earlier"
	o.sees(175*time.Minute, change)
	g.Expect(shown()).To(Equal(pulumiv1.DriftComesBackReason), "the removal of the annotation is no request")

	// Within an hour after the first correction, it comes back, for as long as it is the same.
	o.sees(170 * time.Minute)
	g.Expect(shown()).To(Equal(pulumiv1.NoDriftReason))
	for _, since := range []time.Duration{150, 149, 120, 90} {
		o.sees(since*time.Minute, change)
	}
	g.Expect(shown()).To(Equal(pulumiv1.DriftComesBackReason))
	g.Expect(decide(*o).action).To(Equal(actionReady))

	o.sees(60 * time.Minute)
	o.sees(2*time.Minute, change)
	o.sees(time.Minute, change)
	g.Expect(shown()).To(Equal(pulumiv1.DriftDetectedReason))
	g.Expect(decide(*o).action).To(Equal(actionUpdate))
	recordCorrection(o.stack, &pulumiv1.CurrentStackUpdate{Drift: o.stack.Status.Drift.Digest}, checked(time.Second))
	g.Expect(o.stack.Status.Drift.Correction.Count).To(BeEquivalentTo(1))
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
