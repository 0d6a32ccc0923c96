package stack

import (
	"testing"
	"time"

	. "github.com/onsi/gomega"

	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/fluxcd/pkg/apis/meta"
	"github.com/fluxcd/pkg/runtime/conditions"

	pulumiv1 "github.com/stack-controller/stack-controller/api/pulumi/v1"
	"github.com/stack-controller/stack-controller/internal/source"
	"github.com/stack-controller/stack-controller/internal/waves"
)

// isHeld is a Stack whose source offers a revision that waits for its turn. The artifact of the observation is the one that the Stack has.
func isHeld(o *observation) {
	o.stack.Spec.RolloutRef = &pulumiv1.RolloutReference{Name: "waves"}
	o.held = &held{waves.Verdict{Reason: pulumiv1.WaveNotOpenReason, Message: "waits"}, now}
}

func TestHeldStackDoesEverythingElseWithWhatItHas(t *testing.T) {
	for name, given := range map[string]*observation{
		"an edit":                   with(upToDate(), edited),
		"a request":                 with(upToDate(), requested(meta.ReconcileRequestAnnotation)),
		"a request of the operator": with(upToDate(), requested(pulumiv1.ReconcileRequestAnnotation)),
		"a forced request": with(upToDate(), func(o *observation) {
			o.stack.Annotations = map[string]string{meta.ReconcileRequestAnnotation: "now", meta.ForceRequestAnnotation: "now"}
		}),
		"a resync":                   with(upToDate(), resyncIsDue),
		"a changed Secret":           using(upToDate(), "a-1", "a-2"),
		"a failure":                  failed(1, time.Minute),
		"an interruption":            interrupted(1, 0),
		"a correction of drift":      drifted(),
		"a deletion with a destroy":  deleting(),
		"a destroy that has failed":  with(failed(30, 48*time.Hour), toDestroy, lastDestroys),
		"outputs that are not there": with(upToDate(), func(o *observation) { o.outputs.used, o.stack.Status.StoredOutputs = true, &pulumiv1.StoredOutputs{} }),
	} {
		t.Run(name, func(t *testing.T) {
			g := NewWithT(t)
			d := decide(*with(given, isHeld))
			g.Expect(d.action).To(Equal(actionUpdate), "%s: %s", d.reason, d.message)
			g.Expect(given.artifact.Commit()).To(Equal("sha256:a"))
		})
	}
	NewWithT(t).Expect(decide(*with(upToDate(), isHeld)).action).To(Equal(actionReady))
}

// drifted is a Stack whose drift is to be corrected.
func drifted() *observation {
	o := watchful(pulumiv1.DriftModeCorrect)
	o.sees(time.Minute, gone("a:b:C", "x"))
	o.sees(time.Second, gone("a:b:C", "x"))
	return o
}

func TestUpdateThatLostItsTurnBeforeItBeganIsTakenBack(t *testing.T) {
	g := NewWithT(t)
	lost := func(o *observation) {
		isHeld(o)
		o.stack.Status.CurrentUpdate.Commit, o.update.Spec.Source.Digest = "sha256:b", "sha256:b"
	}
	g.Expect(decide(*with(updating(), lost)).action).To(Equal(actionSupersede))
	g.Expect(decide(*with(updating(), lost, running)).action).To(Equal(actionFollow), "what has begun goes on")
}

func TestOnlyWhatChangesSomethingWaitsForAWindow(t *testing.T) {
	g := NewWithT(t)
	o := with(upToDate(), closed, newDigest, func(o *observation) {
		o.stack.Spec.Approval = &pulumiv1.ApprovalPolicy{Require: pulumiv1.ApprovalAlways}
	})
	o.content.digest = "sha256:other"
	d := decide(*o)
	g.Expect(d.action).To(Equal(actionUpdate), "%s: %s", d.reason, d.message)
	g.Expect(d.plans).To(BeTrue(), "it plans")
	o.stack.Spec.Approval = nil
	g.Expect(decide(*o).action).To(Equal(actionHold))

	drift := with(watchful(""), closed, func(o *observation) {
		o.stack.Status.Drift = &pulumiv1.DriftStatus{FirstCheckTime: new(ago(time.Minute))}
	})
	g.Expect(decideOnDrift(*drift, decide(*drift)).step).To(Equal(driftStart))
	newDigest(drift)
	drift.content.digest = "sha256:other"
	d = decide(*drift)
	g.Expect(d.action).To(Equal(actionHold))
	g.Expect(decideOnDrift(*drift, d).step).To(Equal(driftStart), "also while a commit waits")
}

// A Stack that a StackRollout holds does not wait for others to have the revision that it does not get.
func TestHeldStackDoesNotWaitForTheRevisionOfOthers(t *testing.T) {
	g := NewWithT(t)
	flux := &pulumiv1.FluxSource{SourceRef: pulumiv1.FluxSourceReference{Kind: "GitRepository", Name: "fleet"}}
	required := &pulumiv1.Stack{Namespace: "team", Name: "first", Spec: pulumiv1.StackSpec{FluxSource: flux}}
	required.Status.LastUpdate = &pulumiv1.StackUpdateStatus{State: pulumiv1.StackUpdateSucceeded, LastAttemptedCommit: "sha256:old"}
	conditions.MarkTrue(required, meta.ReadyCondition, pulumiv1.ProcessingCompletedReason, "")
	r := &Reconciler{Client: oneStack{stack: required}, Sources: &source.Set{Sources: []source.Source{&source.Flux{}}}}
	item := dependency{name: client.ObjectKeyFromObject(required), field: dependsOnField, reason: pulumiv1.DependencyNotReadyReason}
	for _, o := range []*observation{upToDate(), with(upToDate(), isHeld)} {
		o.stack.Spec.FluxSource = flux
		g.Expect(r.observeDependency(t.Context(), o, item, &evaluations{})).To(Succeed())
		g.Expect(o.behind == nil).To(Equal(o.held != nil))
	}
}
