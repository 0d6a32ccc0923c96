package stack

import (
	"testing"
	"time"

	. "github.com/onsi/gomega"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/fluxcd/pkg/apis/meta"
	"github.com/fluxcd/pkg/runtime/conditions"

	autov1alpha1 "github.com/stack-controller/stack-controller/api/auto/v1alpha1"
	pulumiv1 "github.com/stack-controller/stack-controller/api/pulumi/v1"
	"github.com/stack-controller/stack-controller/internal/source"
)

// closed gives the Stack a window that opens in two hours.
func closed(o *observation) {
	from, until := metav1.NewTime(now.Add(2*time.Hour)), metav1.NewTime(now.Add(4*time.Hour))
	o.stack.Spec.Windows = []autov1alpha1.Window{{Policy: autov1alpha1.WindowAllow, From: &from, Until: &until}}
}

// cancelled makes the Update one that ended because it was deleted, without a start in its status.
func cancelled(notRun bool) func(*autov1alpha1.Update) {
	return func(update *autov1alpha1.Update) {
		update.Status.EndTime, update.Status.NotRun = new(metav1.Now()), notRun
		conditions.MarkTrue(update, autov1alpha1.UpdateFailed, autov1alpha1.CanceledReason, "")
		conditions.MarkTrue(update, autov1alpha1.UpdateComplete, autov1alpha1.UpdateEndedFailedReason, "")
	}
}

func TestAnUpdateThatIsGoneMayHaveRunUnlessItIsKnownThatItDidNot(t *testing.T) {
	first := func(o *observation) { o.stack.Status.CurrentUpdate.First = true }
	previews := func(o *observation) { o.update.Spec.Type = autov1alpha1.UpdateTypePreview }
	withdrawn := func(o *observation) { recordWithdrawal(o.stack, o.update) }
	ends := func(notRun bool) func(*observation) {
		return func(o *observation) {
			o.update.DeletionTimestamp = &metav1.Time{Time: now}
			cancelled(notRun)(o.update)
			restoreStatus(o)
		}
	}
	for name, test := range map[string]struct {
		given             *observation
		pending, deployed bool
	}{
		"somebody deleted it":                         {with(updating()), true, true},
		"somebody deleted the first one":              {with(updating(), first), true, true},
		"somebody deleted a first that did not run":   {with(updating(), first, ends(true)), false, false},
		"the controller withdrew it":                  {with(updating(), withdrawn), true, true},
		"it may have run":                             {with(updating(), withdrawn, ends(false)), true, true},
		"it did not run":                              {with(updating(), withdrawn, ends(true)), false, true},
		"the controller withdrew a first":             {with(updating(), first, withdrawn), true, true},
		"a first that may have run":                   {with(updating(), first, withdrawn, ends(false)), true, true},
		"a first that did not run":                    {with(updating(), first, withdrawn, ends(true)), false, false},
		"the controller withdrew a preview":           {with(updating(), previews, withdrawn), false, true},
		"a first, and another one deployed something": {with(updating(), first, ends(true), func(o *observation) { o.deployed = true }), false, true},
	} {
		t.Run(name, func(t *testing.T) {
			g, o := NewWithT(t), test.given
			o.update, o.updateRemoved = nil, true
			restoreStatus(o)
			g.Expect(o.stack.Status.CurrentUpdate).To(BeNil())
			g.Expect(o.stack.Status.LastUpdate.PendingOperations).To(Equal(test.pending))
			g.Expect(o.stack.Status.Deployed).To(Equal(test.deployed))
		})
	}
}

// The status may name the earlier Update for a while, or for longer if it cannot be written.
func TestAnUpdateTakesThePlaceOfOneThatIsGone(t *testing.T) {
	for name, test := range map[string]struct {
		gone           pulumiv1.CurrentStackUpdate
		deployed       bool // by another Update that is not recorded
		first, pending bool
	}{
		"of a first that did not run":                     {gone: pulumiv1.CurrentStackUpdate{First: true, Withdrawn: true}, first: true},
		"of a first that did not run, and something else": {gone: pulumiv1.CurrentStackUpdate{First: true, Withdrawn: true}, deployed: true},
		"of a first that may have run":                    {gone: pulumiv1.CurrentStackUpdate{First: true}, pending: true},
		"of one that did not run":                         {gone: pulumiv1.CurrentStackUpdate{Withdrawn: true}},
		"of one that may have run":                        {pending: true},
	} {
		t.Run(name, func(t *testing.T) {
			g, o := NewWithT(t), updating()
			test.gone.Name, test.gone.UID = o.update.Name, "before"
			o.stack.Status.CurrentUpdate = &test.gone
			next := o.update.DeepCopy()
			next.UID, next.CreationTimestamp, next.OwnerReferences = "next", metav1.Time{Time: now}, ownedBy(o.stack)
			updates := knownUpdates{updates: []autov1alpha1.Update{*next}}
			if test.deployed {
				other := *next.DeepCopy()
				other.Name, other.UID = "other", "other"
				updates.updates = append(updates.updates, other)
			}
			o.update = nil
			g.Expect((&Reconciler{Client: updates, APIReader: updates}).observeUpdates(t.Context(), o)).To(Succeed())
			restoreStatus(o)
			g.Expect(o.stack.Status.CurrentUpdate.UID).To(Equal(next.UID))
			g.Expect(o.stack.Status.CurrentUpdate.First).To(Equal(test.first))
			g.Expect(o.stack.Status.Deployed).To(BeTrue(), "it may run from now on")
			g.Expect(o.stack.Status.LastUpdate.PendingOperations).To(Equal(test.pending))
		})
	}
}

// The first update of a Stack may have been started by a controller that could not write so, and the node of the pod is cut off.
func TestADeletedStackDestroysWhatItsFirstUpdateMayHaveCreated(t *testing.T) {
	for name, test := range map[string]struct{ replaced, notRun bool }{
		"it may have run": {}, "it did not run": {notRun: true}, "nor did the one before": {replaced: true, notRun: true},
	} {
		t.Run(name, func(t *testing.T) {
			s := newFixture(t, func(r *Reconciler) { r.ShowAfter = 2 * time.Second })
			stack := s.newStack(func(stack *pulumiv1.Stack) { stack.Spec.DestroyOnFinalize = true })
			s.setWorkspace(func(workspace *autov1alpha1.Workspace) {
				workspace.Status.PulumiVersion = "v3.276.0"
				starting(workspace)
			})
			update := s.awaitUnfinishedUpdate()
			s.await(stack, func(stack *pulumiv1.Stack) bool { return stack.Status.CurrentUpdate != nil })
			if test.replaced {
				s.edit(stack, withImage("two"))
				s.endWithdrawn(stack, update, true)
				before := update.UID
				s.await(stack, func(stack *pulumiv1.Stack) bool {
					return stack.Status.CurrentUpdate != nil && stack.Status.CurrentUpdate.UID != before
				})
				update = s.awaitUnfinishedUpdate()
				s.Expect(update.UID).NotTo(Equal(before))
			}
			if !test.notRun {
				claimed := update.DeepCopy()
				delete(claimed.Annotations, autov1alpha1.NotStartedAnnotation)
				s.Expect(s.client.Patch(t.Context(), claimed, client.MergeFrom(update))).To(Succeed())
			}
			s.Expect(s.client.Delete(t.Context(), stack)).To(Succeed())
			s.endWithdrawn(stack, update, test.notRun)
			if test.notRun {
				s.awaitGone(stack)
				return
			}
			s.Eventually(func() []autov1alpha1.Update { return s.updates() }).Should(ConsistOf(And(
				HaveField("UID", Not(Equal(update.UID))), HaveField("Spec.Type", autov1alpha1.UpdateTypeDestroy))))
		})
	}
}

// endWithdrawn waits until the Update is being deleted or cancelled, and ends it as the Update controller does.
func (s *fixture) endWithdrawn(stack *pulumiv1.Stack, update *autov1alpha1.Update, notRun bool) {
	s.t.Helper()
	s.Eventually(func(g Gomega) {
		g.Expect(s.client.Get(s.t.Context(), client.ObjectKeyFromObject(update), update)).To(Succeed())
		g.Expect(!update.DeletionTimestamp.IsZero() || pulumiv1.CancelRequested(update)).To(BeTrue())
	}).Should(Succeed())
	s.mark(update, cancelled(notRun))
	if notRun && !update.DeletionTimestamp.IsZero() {
		s.await(stack, func(stack *pulumiv1.Stack) bool { return stack.Status.CurrentUpdate.Withdrawn })
	}
	s.Expect(s.client.Patch(s.t.Context(), update, client.RawPatch(types.MergePatchType, []byte(`{"metadata":{"finalizers":null}}`)))).To(Succeed())
}

func TestDriftIsLookedForAfterAnUpdateWasWithdrawn(t *testing.T) {
	g := NewWithT(t)
	o := with(watchful(pulumiv1.DriftModeCorrect), closed)
	o.update = updating().update
	o.stack.Status.CurrentUpdate = &pulumiv1.CurrentStackUpdate{Name: "app-2", Generation: 2, Commit: "sha256:a", Drift: "d"}
	g.Expect(decide(*o).action).To(Equal(actionSupersede), "the window has closed")
	recordWithdrawal(o.stack, o.update)
	o.update.DeletionTimestamp = &metav1.Time{Time: now}
	cancelled(true)(o.update)
	restoreStatus(o)
	o.update, o.updateRemoved = nil, true
	restoreStatus(o)
	g.Expect(canDrift(o.stack)).To(BeTrue())
}

// Of such an Update it is known that it did not run, if it is withdrawn.
func TestAnUpdateThatHasToWaitForAnAgentSaysThatItWasNotStarted(t *testing.T) {
	had := func(workspace *autov1alpha1.Workspace) { workspace.Status.PulumiVersion = "v3.276.0" }
	ready := func(reason string) func(*autov1alpha1.Workspace) {
		return func(workspace *autov1alpha1.Workspace) {
			conditions.MarkTrue(workspace, autov1alpha1.WorkspaceReady, reason, "ready")
		}
	}
	edited := func(workspace *autov1alpha1.Workspace) { workspace.Generation++ }
	for name, test := range map[string]struct {
		changes []func(*autov1alpha1.Workspace)
		says    bool
	}{
		"there never was an agent": {[]func(*autov1alpha1.Workspace){starting}, true},
		"its agent is ready":       {[]func(*autov1alpha1.Workspace){had, ready(autov1alpha1.SucceededReason)}, false},
		"the Workspace is idle":    {[]func(*autov1alpha1.Workspace){had, ready(autov1alpha1.IdleReason)}, true},
		"its agent starts":         {[]func(*autov1alpha1.Workspace){had, starting}, true},
		"its agent is replaced":    {[]func(*autov1alpha1.Workspace){had, ready(autov1alpha1.SucceededReason), edited}, true},
	} {
		t.Run(name, func(t *testing.T) {
			g, o := NewWithT(t), upToDate()
			o.workspace, o.desired = &autov1alpha1.Workspace{}, &desired{}
			for _, change := range test.changes {
				change(o.workspace)
			}
			update, err := desiredUpdate(o, decision{kind: autov1alpha1.UpdateTypeUp})
			g.Expect(err).NotTo(HaveOccurred())
			g.Expect(update.Annotations[autov1alpha1.NotStartedAnnotation] != "").To(Equal(test.says))
			update.OwnerReferences = nil
			g.Expect(o.workspace.CannotHaveRun(update)).To(Equal(test.says))
		})
	}
}

func TestRequestsOfAnUpdateThatWasWithdrawnAreNotHandled(t *testing.T) {
	g := NewWithT(t)
	stack := &pulumiv1.Stack{}
	stack.Annotations = map[string]string{
		pulumiv1.ReconcileRequestAnnotation: "a", meta.ReconcileRequestAnnotation: "b", meta.ForceRequestAnnotation: "b", pulumiv1.LastUpdateAnnotation: "c",
	}
	handleRequests(stack)
	stack.Status.CurrentUpdate = &pulumiv1.CurrentStackUpdate{ReconcileRequest: "a", RequestedAt: "b", LastUpdateRequest: "c"}
	g.Expect(unhandledRequest(stack)).To(BeEmpty())
	g.Expect(forceRequested(stack)).To(BeFalse())
	recordWithdrawal(stack, &autov1alpha1.Update{})
	g.Expect(unhandledRequest(stack)).NotTo(BeEmpty())
	g.Expect(forceRequested(stack)).To(BeTrue())
	g.Expect(stack.Status.ObservedReconcileRequest + stack.Status.LastHandledReconcileAt + stack.Status.ObservedLastUpdateRequest).To(BeEmpty())

	handleRequests(stack)
	stack.Status.CurrentUpdate.ReconcileRequest = "earlier"
	askAgain(stack)
	g.Expect(stack.Status.ObservedReconcileRequest).To(Equal("a"), "the update was not for it")

	handleRequests(stack)
	stack.Status.CurrentUpdate = &pulumiv1.CurrentStackUpdate{ReconcileRequest: "a"}
	stack.Status.LastUpdate = &pulumiv1.StackUpdateStatus{ReconcileRequest: "a"}
	askAgain(stack)
	g.Expect(unhandledRequest(stack)).To(BeEmpty(), "an earlier update did what was asked for")

	stack.Status.LastUpdate.ReconcileRequest = ""
	recordWithdrawal(stack, &autov1alpha1.Update{Spec: autov1alpha1.UpdateSpec{Plan: &autov1alpha1.PlanReference{}}})
	g.Expect(unhandledRequest(stack)).To(BeEmpty(), "who asked has a plan")
}

func TestAPlanOfAForcedRequestIsMadeAgainWithARefresh(t *testing.T) {
	g := NewWithT(t)
	o := guarded(pulumiv1.PlanExpired)
	o.stack.Status.LastUpdate.Generation = 3
	o.stack.Status.Plan.Trigger = forcedRequestTrigger + `"now"`
	o.workspace, o.desired = &autov1alpha1.Workspace{}, &desired{}
	d := decide(*o)
	g.Expect(d.plans).To(BeTrue())
	update, err := desiredUpdate(o, d)
	g.Expect(err).NotTo(HaveOccurred())
	g.Expect(update.Spec.Refresh).To(HaveValue(BeTrue()))
}

func TestAStackThatWaitsForAWindowFollowsItsGeneration(t *testing.T) {
	g := NewWithT(t)
	o := with(upToDate(), closed, newDigest)
	markReady(o.stack)
	o.stack.Generation++
	o.stack.Status.LastUpdate.Generation++ // the edit needs no update, see followGeneration
	d := decide(*o)
	g.Expect(d.action).To(Equal(actionHold))
	g.Expect(d.quiet).To(BeTrue())
	(&Reconciler{}).hold(o, d)
	g.Expect(o.stack.Status.ObservedGeneration).To(Equal(o.stack.Generation))
	g.Expect(conditions.Get(o.stack, meta.ReadyCondition).ObservedGeneration).To(Equal(o.stack.Generation))

	failed := with(failed(1, time.Minute), edited)
	remainReady(failed.stack)
	g.Expect(failed.stack.Status.ObservedGeneration).NotTo(Equal(failed.stack.Generation), "its last update failed")
	g.Expect(conditions.IsReady(failed.stack)).To(BeFalse())
}

func TestNothingIsAskedOfOthersWhileWindowsAreClosed(t *testing.T) {
	behind := func(o *observation) {
		o.behind = &dependencyProblem{reason: pulumiv1.DependencyNotReadyReason, message: "is behind"}
	}
	asksDependency := func(o *observation) { o.aged = &agedPrerequisite{message: "too old", request: "after-x"} }
	ofDependents := func(o *observation) {
		o.stack.Annotations = map[string]string{pulumiv1.ReconcileRequestAnnotation: requestOfDependents(o.stack)}
	}
	expectDecisions(t, []decisionCase{
		{name: "a dependency that waits for the same window", given: with(upToDate(), closed, newDigest, behind), action: actionHold, reason: pulumiv1.WindowClosedReason, quiet: true, wakes: true},
		{name: "a dependency that is not ready", given: with(upToDate(), closed, newDigest, waitsFor(pulumiv1.DependencyNotReadyReason)), action: actionHold, quiet: true, wakes: true},
		{name: "a dependency that is too old", given: with(upToDate(), closed, newDigest, asksDependency), action: actionHold, quiet: true, wakes: true},
		{name: "an edit", given: with(upToDate(), closed, edited, behind), action: actionHold, reason: pulumiv1.WindowClosedReason, wakes: true},
		{name: "a request of somebody", given: with(upToDate(), closed, requested(pulumiv1.ReconcileRequestAnnotation)), action: actionHold, wakes: true},
		{name: "a request of dependents", given: with(upToDate(), closed, ofDependents), action: actionHold, quiet: true, wakes: true},
	})
}

func TestWhatSomebodyAskedForIsShownToWait(t *testing.T) {
	approved := func(trigger string, generation int64) *observation {
		o := guarded(pulumiv1.PlanApproved, approvedBy("alice"))
		o.stack.Status.Plan.Trigger, o.stack.Status.LastUpdate.Generation = trigger, generation
		return o
	}
	turn := func(o *observation) { o.planOnly = true }
	for name, test := range map[string]struct {
		given *observation
		quiet bool
	}{
		"window, a commit":           {with(approved(newCommitTrigger+"b", 3), closed), true},
		"window, a request":          {with(approved(syncRequestTrigger+`"now"`, 3), closed), false},
		"window, a forced request":   {with(approved(forcedRequestTrigger+`"now"`, 3), closed), false},
		"window, an edit":            {with(approved("New stack generation: 3", 2), closed), false},
		"turn, a commit":             {with(approved(newCommitTrigger+"b", 3), turn), true},
		"turn, an edit of the Stack": {with(approved("New stack generation: 3", 2), turn), false},
	} {
		t.Run(name, func(t *testing.T) {
			g := NewWithT(t)
			d := decide(*test.given)
			g.Expect(d.action).To(BeElementOf(actionHold, actionWait))
			g.Expect(d.quiet).To(Equal(test.quiet), d.message)
			g.Expect(d.after).To(BeNumerically("<=", time.Hour), "the plan expires")
			g.Expect(d.after).NotTo(BeZero())
		})
	}
}

// TestPlanThatWaitsForItsTurnCoversTheNextCommit: the StackRollout gives turns to plans of its target, which is the next commit by now.
func TestPlanThatWaitsForItsTurnCoversTheNextCommit(t *testing.T) {
	g := NewWithT(t)
	o := guarded(pulumiv1.PlanApproved, approvedBy("alice"))
	plan := o.stack.Status.Plan
	plan.Trigger, plan.Revision, o.stack.Status.LastUpdate.Generation, o.planOnly = newCommitTrigger+"b", "main@sha1:b", 3, true
	o.stack.Status.LastUpdate.ContentDigest, plan.ContentDigest, o.content.digest = "sha256:before", "sha256:content", "sha256:content"
	o.artifact = &source.Artifact{Digest: "sha256:c", Revision: "main@sha1:c"}
	d := decide(*o)
	g.Expect(d.reason).To(Equal(pulumiv1.WaveNotOpenReason))
	_, err := (&Reconciler{}).act(t.Context(), o, d)
	g.Expect(err).NotTo(HaveOccurred())
	g.Expect(plan.State).To(Equal(pulumiv1.PlanApproved))
	g.Expect(plan.Commit).To(Equal("sha256:c"))
	g.Expect(plan.Revision).To(Equal("main@sha1:c"))
}

func TestAHotFixIsAllThatPasses(t *testing.T) {
	released := func(o *observation) {
		o.stack.Annotations = map[string]string{pulumiv1.ReleaseRevisionAnnotation: o.artifact.Revision}
	}
	fix := func(o *observation) {
		o.artifact.Digest, o.artifact.Revision = "sha256:b", "main@sha1:bbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbb"
		released(o)
	}
	had := func(o *observation) { o.stack.Status.LastUpdate.LastSuccessfulCommit = o.artifact.Digest }
	expectDecisions(t, []decisionCase{
		{name: "the revision", given: with(upToDate(), closed, fix), action: actionUpdate, fresh: true},
		{name: "a resync of it", given: with(upToDate(), closed, fix, had, resyncIsDue, func(o *observation) { o.stack.Status.LastUpdate.LastAttemptedCommit = o.artifact.Digest }),
			action: actionHold, quiet: true, wakes: true},
		{name: "an edit after it", given: with(upToDate(), closed, fix, had, edited), action: actionHold, wakes: true},
		{name: "a deletion after it", given: with(deleting(), closed, fix, had), action: actionHold, wakes: true},
		{name: "a deletion before it", given: with(deleting(), closed, fix), action: actionHold, wakes: true},
	})
}

func TestOutputsThatAreNotWrittenAreShownWhileAWindowIsClosed(t *testing.T) {
	g := NewWithT(t)
	o := with(upToDate(), closed, newDigest)
	o.outputs.problem, o.outputs.tried = &outputProblem{reason: pulumiv1.OutputsConflictReason, message: "it exists"}, true
	d := decide(*o)
	g.Expect(d.action).To(Equal(actionStall))
	g.Expect(d.reason).To(Equal(pulumiv1.OutputsConflictReason))
	g.Expect(d.after).To(BeNumerically("<=", o.waitInterval))
}

func TestAFailedCorrectionOfDriftIsTriedAgainAsOne(t *testing.T) {
	g := NewWithT(t)
	o := watchful(pulumiv1.DriftModeCorrect)
	change := changed("a:b:C", "x", "size")
	o.sees(50*time.Minute, change)
	o.sees(49*time.Minute, change)
	correction := decide(*o)
	g.Expect(correction.driftDigest).NotTo(BeEmpty())

	update := &autov1alpha1.Update{Name: "app-2", Spec: autov1alpha1.UpdateSpec{Type: autov1alpha1.UpdateTypeUp}}
	markUpdate := func(kind, reason string) { conditions.MarkTrue(update, kind, reason, "no permission") }
	markUpdate(autov1alpha1.UpdateFailed, autov1alpha1.UpdateFailedReason)
	markUpdate(autov1alpha1.UpdateComplete, autov1alpha1.UpdateEndedFailedReason)
	update.Status.EndTime = new(ago(40 * time.Minute))
	o.stack.Status.CurrentUpdate = &pulumiv1.CurrentStackUpdate{Name: "app-2", Generation: 2, Commit: "sha256:a", Drift: correction.driftDigest}
	recordResult(o.stack, update, nil)
	g.Expect(o.stack.Status.Drift.Correction).To(BeNil(), "it has not come back: it is still there")

	again := decide(*o)
	g.Expect(again.action).To(Equal(actionUpdate))
	g.Expect(again.driftDigest).To(Equal(correction.driftDigest))
	g.Expect(again.message).To(HavePrefix("Correcting drift"))

	o.stack.Spec.Drift.Mode = pulumiv1.DriftModeDetect
	g.Expect(decide(*o).driftDigest).To(BeEmpty(), "nobody asks for a correction any longer")
}

func TestAnApprovedCorrectionOfDriftStaysApprovedWhileTheStackIsLocked(t *testing.T) {
	g := NewWithT(t)
	o := guarded(pulumiv1.PlanApproved, approvedBy("alice"))
	o.stack.Generation = 2
	o.stack.Spec.Drift = &pulumiv1.DriftSpec{Mode: pulumiv1.DriftModeCorrect, Interval: metav1.Duration{Duration: time.Hour}}
	o.stack.Status.Drift = &pulumiv1.DriftStatus{Digest: "sha256:drift", CheckedUpdate: "app-1",
		Resources: []pulumiv1.DriftedResource{{URN: urnOf("a:b:C", "x"), Change: pulumiv1.DriftGone}}}
	plan, last := o.stack.Status.Plan, o.stack.Status.LastUpdate
	plan.Operation, plan.Cause, plan.Drift, plan.Generation, plan.Update = pulumiv1.ApprovedDriftCorrection, pulumiv1.PlanForDrift, "sha256:drift", 2, "app-2"
	last.Name, last.State, last.Conflicts, last.Drift, last.LastResyncTime = "app-2", pulumiv1.StackUpdateFailed, 1, "sha256:drift", ago(time.Hour)
	d := decide(*o)
	g.Expect(d.plan.State).To(Equal(pulumiv1.PlanApproved))
	g.Expect(d.applies).To(BeTrue())
}

func TestARejectionCountsForWhatIsLeftOfAPlan(t *testing.T) {
	for _, state := range []pulumiv1.PlanState{pulumiv1.PlanFailed, pulumiv1.PlanStale} {
		t.Run(string(state), func(t *testing.T) {
			g := NewWithT(t)
			o := guarded(state, rejectedBy("bob"))
			g.Expect(decide(*o).plan.RejectedBy).To(Equal("bob"))
			o = guarded(state, approvedBy("bob"))
			g.Expect(decide(*o).plan.Approvals).To(BeEmpty())
		})
	}
}
