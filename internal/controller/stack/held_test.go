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

// A Stack that a new commit does not concern says so at once, whatever else it waits with: its dependents and its StackRollout wait for that.
func TestUnchangedRevisionIsAcceptedWhateverElseIsDue(t *testing.T) {
	plannedFor := func(operation pulumiv1.ApprovedOperation, cause pulumiv1.PlanCause, state pulumiv1.PlanState) func(*observation) {
		return func(o *observation) {
			o.stack.Spec.Approval = &pulumiv1.ApprovalPolicy{Require: pulumiv1.ApprovalAlways}
			o.stack.Status.Plan = &pulumiv1.PlanStatus{
				Name: "app-2", State: state, Operation: operation, Cause: cause, Changes: 1, Trigger: resyncMessage, UpdateInputs: o.stack.Status.LastUpdate.Inputs(),
			}
			o.stack.Status.Plan.Revision = "main@sha1:a"
			if drift := o.stack.Status.Drift; operation == pulumiv1.ApprovedDriftCorrection {
				o.stack.Status.Plan.Drift = drift.Digest
			}
		}
	}
	for name, given := range map[string]func() *observation{
		"window, a resync":         func() *observation { return with(upToDate(), closed, resyncIsDue) },
		"window, drift":            func() *observation { return with(drifted(), closed) },
		"window, a changed Secret": func() *observation { return with(using(upToDate(), "a-1", "a-2"), closed) },
		"approval, a resync": func() *observation {
			return with(upToDate(), resyncIsDue, plannedFor(pulumiv1.ApprovedUp, pulumiv1.PlanForResync, pulumiv1.PlanPending))
		},
		"rejection, a resync": func() *observation {
			return with(upToDate(), resyncIsDue, plannedFor(pulumiv1.ApprovedUp, pulumiv1.PlanForResync, pulumiv1.PlanRejected))
		},
		"approval, drift": func() *observation {
			return with(drifted(), plannedFor(pulumiv1.ApprovedDriftCorrection, pulumiv1.PlanForDrift, pulumiv1.PlanPending))
		},
		"turn, a resync": func() *observation {
			return with(upToDate(), resyncIsDue, plannedFor(pulumiv1.ApprovedUp, pulumiv1.PlanForResync, pulumiv1.PlanApproved), func(o *observation) { o.planOnly = true })
		},
		"dependency, a resync": func() *observation {
			return with(upToDate(), resyncIsDue, waitsFor(pulumiv1.DependencyNotReadyReason))
		},
	} {
		t.Run(name, func(t *testing.T) {
			g, o := NewWithT(t), given()
			status := &o.stack.Status
			status.LastUpdate.ContentDigest, status.LastAppliedRevision = "sha256:same", "main@sha1:a"
			markReady(o.stack)
			if status.Plan != nil {
				status.Plan.ContentDigest = "sha256:same"
			}
			o.artifact.Digest, o.artifact.Revision, o.content.digest = "sha256:b", "main@sha1:b", ""
			d := decide(*o)
			g.Expect(d.action).To(Equal(actionFetch), "%s: %s", d.reason, d.message)
			g.Expect(d.quiet).To(BeTrue())

			o.content.digest = "sha256:other"
			acceptUnchanged(o)
			g.Expect(status.LastAppliedRevision).To(Equal("main@sha1:a"), "another content waits")

			o.content.digest = "sha256:same"
			_, err := (&Reconciler{}).act(t.Context(), o, decide(*o))
			g.Expect(err).NotTo(HaveOccurred())
			g.Expect(conditions.IsReady(o.stack)).To(BeTrue())
			g.Expect(status.LastUpdate.LastAttemptedCommit).To(Equal("sha256:b"))
			g.Expect(status.LastUpdate.LastSuccessfulCommit).To(Equal("sha256:b"))
			g.Expect(status.LastAppliedRevision).To(Equal("main@sha1:b"))
			if status.Plan != nil {
				g.Expect(plansNewRevision(o.stack)).To(BeFalse())
			}
			g.Expect(decide(*o).action).NotTo(Or(Equal(actionUpdate), Equal(actionFetch)), "what waits goes on waiting")
		})
	}
}
