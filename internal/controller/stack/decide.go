package stack

import (
	"fmt"
	"slices"
	"time"

	"github.com/fluxcd/pkg/runtime/conditions"

	autov1alpha1 "github.com/stack-controller/stack-controller/api/auto/v1alpha1"
	pulumiv1 "github.com/stack-controller/stack-controller/api/pulumi/v1"
	"github.com/stack-controller/stack-controller/internal/controller/plans"
	"github.com/stack-controller/stack-controller/internal/references"
	"github.com/stack-controller/stack-controller/internal/source"
)

// The policy of the Stack controller is in these files: this one decides on an Update that exists, decide_trigger.go whether there has to
// be a new one, schedule.go when, decide_approval.go whether it first has to be approved,
// decide_window.go whether it has to wait for a window, decide_drift.go when to look for drift,
// decide_objects.go what objects of other kinds hold back, decide_outputs.go when outputs are written, and
// decide_deletion.go what happens to a Stack that is being deleted. events_problem.go decides whether there is an event about a problem that
// lasts. The functions in these files are pure: they have no client and no
// context.

// observation is everything that a decision is made from. It is complete: decide reads nothing else.
type observation struct {
	now   time.Time
	stack *pulumiv1.Stack
	// waitInterval is the time to the next reconcile when no watch covers what is missing.
	waitInterval time.Duration
	// jitter is the largest fraction by which an interval is lengthened.
	jitter float64
	// desired is the Workspace that the spec asks for; nil when specProblem says why the spec is unusable.
	desired     *desired
	specProblem error
	// artifact is what the source offers; nil for a Stack without source, and when sourceProblem says why there is none.
	artifact      *source.Artifact
	sourceProblem *source.Problem
	// held says why artifact is what the Stack has, and not what the source offers; nil when it is what the source offers.
	held *held
	// rollout is the StackRollout that the Stack names; nil when there is none.
	rollout *autov1alpha1.StackRollout
	// planOnly is true when artifact may only be planned, and not deployed, until the Stack has its turn.
	planOnly bool
	// verified says that Flux has verified the artifact, for a Stack that needs it.
	verified bool
	// content is what is known of the files in the artifact.
	content content
	// references are the versions of the watched Secrets and ConfigMaps that the Stack uses.
	references []references.Version
	// dependency is why another Stack keeps this one from being updated; nil when none does.
	dependency *dependencyProblem
	// inputs is what is known of the values of spec.inputs.
	inputs inputsView
	// behind is a dependency with the same source that has to deploy the artifact first; nil when there is none.
	behind *dependencyProblem
	// objects is what is known of the objects of other kinds that the Stack depends on.
	objects objectDependencies
	// dependents are the Stacks that have to be deleted before this Stack's resources are destroyed.
	dependents []dependent
	// unownedUpdate is the name of an Update that this Stack did not create and that runs in its Workspace; empty when there is none. It is
	// read only for a Stack that is being deleted.
	unownedUpdate string
	// aged is a prerequisite that has to run again before this Stack is updated; nil when there is none.
	aged *agedPrerequisite
	// workspace is the Stack's Workspace; nil when there is none. noWorkspace is true when the API server has confirmed that there is none.
	workspace   *autov1alpha1.Workspace
	noWorkspace bool
	// otherShard is set as long as the Workspace and the Updates belong to another shard.
	otherShard *otherShard
	// moving is true when they can be taken over now, or when the cache does not have all of them yet, and when update alone has the labels of
	// another shard. Then nothing more is read.
	moving bool
	// readUpdates is true when update and the fields about other Updates were read, readAll when everything was, except content.
	readUpdates, readAll bool
	// update is the Stack's Update that is not finished, or finished but not recorded in the status yet; nil when there is none. If there is
	// one, the status names it, see repair.
	update *autov1alpha1.Update
	// driftCheck is the Update that looks for drift; nil when there is none.
	driftCheck *autov1alpha1.Update
	// approvals are the Approvals that name the plan in the status. planGone is true when the Update that made the plan is being deleted or
	// no longer exists.
	approvals []autov1alpha1.Approval
	planGone  bool
	// shownPlan is what the status said about the plan before this reconcile.
	shownPlan string
	// updateRemoved says that the Update that the status names no longer exists. update may have taken its place, and its name.
	updateRemoved bool
	// outputs is what is known of the objects of spec.outputs.
	outputs outputObjects
	// unheard is true when no watch tells the Stack of all changes that matter to it, see observeGivers. lost is what the current update waits
	// for in vain; nil when there is nothing.
	unheard bool
	lost    *lostOutputs
	// deployed is true when an Update that may have changed resources is not recorded in the status.
	deployed bool
}

// isUpdating reports whether there is an Update that has not ended. No other Update can start then.
func (o *observation) isUpdating() bool {
	return o.update != nil && !o.update.IsComplete()
}

// content is what is known of the files in an artifact. The zero value means that the files were not requested.
type content struct {
	// requested is true when the artifact was requested, and stored when it is in the store.
	requested, stored bool
	// digest identifies the files that the Stack is made of; empty while they are being read.
	digest string
	// unmatched are the paths of the spec that the source does not have.
	unmatched []string
	// problem is why the artifact or its content cannot be read.
	problem error
}

// action is what one reconcile does.
type action string

const (
	// actionRecord records the result of a finished Update in the status. A new decision follows at once.
	actionRecord action = "record"
	// actionUpdate starts a preview, an up or a destroy.
	actionUpdate action = "update"
	// actionFetch waits for the first answer of a git server, or for an artifact that is being downloaded, made or read.
	actionFetch action = "fetch"
	// actionSupersede removes an Update that has not started and whose inputs are out of date.
	actionSupersede action = "supersede"
	// actionCancel requests that the current Update is cancelled.
	actionCancel action = "cancel"
	// actionFollow shows the progress of the current Update.
	actionFollow action = "follow"
	// actionWait shows what is missing or, if the decision has no reason, what is in progress.
	actionWait action = "wait"
	// actionRequestDependency requests an update of a prerequisite, and waits for it.
	actionRequestDependency action = "request dependency"
	// actionAwaitApproval shows a plan that somebody has to approve, or has rejected.
	actionAwaitApproval action = "await approval"
	// actionHold shows that the windows of the Stack allow no update now, or that it has no turn.
	actionHold action = "hold"
	// actionStall shows what a human has to fix.
	actionStall action = "stall"
	// actionRetry shows a failure and when the next attempt is due.
	actionRetry action = "retry"
	// actionWriteOutputs writes the objects of spec.outputs. A new decision follows at once.
	actionWriteOutputs action = "write outputs"
	// actionReadObjects reads the objects of other kinds that the Stack depends on. A new decision follows at once.
	actionReadObjects action = "read objects"
	// actionReady shows that the Stack is up to date.
	actionReady action = "ready"
	// actionSuspend starts nothing, and shows that the Stack is suspended. Only an Update that runs is looked after, see decideOnUpdate.
	actionSuspend action = "suspend"
	// actionRelease removes the finalizer.
	actionRelease action = "release"
	// actionTakeOver takes over the Workspace and the Updates from another shard, and has the Stack observed again.
	actionTakeOver action = "take over"
)

// waker names what brings a Stack back to the controller, besides the time in the decision.
type waker string

const (
	// byEdit is the watch on the Stack itself: its spec, a request, the orphan annotation, the end of a foreground deletion.
	byEdit waker = "edit"
	// bySource is the watch on the source, or an answer of a git server.
	bySource waker = "source"
	// byFetch is the end of a download, a checkout or a comparison.
	byFetch waker = "fetch"
	// byUpdate is the watch on the Stack's Updates, and on its Workspace.
	byUpdate waker = "update"
	// byDependencies is the watch on the Stacks that the Stack depends on.
	byDependencies waker = "dependencies"
	// byObjects is the watch on the objects of other kinds that the Stack depends on.
	byObjects waker = "objects"
	// byDependents is the watch on the Stacks that depend on the Stack.
	byDependents waker = "dependents"
	// byApproval is the watch on Approvals. The time in the decision is when the plan expires.
	byApproval waker = "approval"
	// byRollout is the watch on StackRollouts.
	byRollout waker = "rollout"
	// byTime is only the time in the decision. An edit also wakes the Stack, as always.
	byTime waker = "time"
	// byNothing says that nothing is left to do, or that the next decision follows at once.
	byNothing waker = "nothing"
)

// decision is what decide chose, and what wakes the Stack afterwards.
type decision struct {
	action action
	// wake names the watch that brings the Stack back.
	wake waker
	// reason and message go into the conditions.
	reason, message string
	// kind is the Update's type, with actionUpdate.
	kind autov1alpha1.UpdateType
	// driftDigest identifies the drift that the update corrects; empty for any other update.
	driftDigest string
	// plans is true when the Update only makes a plan of the change, applies when it carries out the plan in the status.
	plans, applies bool
	// awaitsTurn is true while the plan in the status is approved, and waits for the turn of the Stack in its StackRollout.
	awaitsTurn bool
	// cause is why there is an update.
	cause pulumiv1.PlanCause
	// quiet leaves the conditions as they are. With actionFetch, it is not known yet whether there is anything to do, or awaitContent gives
	// the reason. With actionAwaitApproval, actionWait and actionRequestDependency, nobody asked for the update: the Stack stays ready.
	quiet bool
	// appliesWorkspace says, with actionFollow, that the Workspace is applied first.
	appliesWorkspace bool
	// requestsOutputs says, with actionFollow, that the Stack whose outputs the Update waits for is asked for an update.
	requestsOutputs bool
	// stalls is true, with actionRetry, when the Stack is Stalled although attempts go on.
	stalls bool
	// fresh is true when the inputs differ from the last attempt's: earlier failures no longer count.
	fresh bool
	// withoutSource is true for a destroy from the state alone, because the artifact cannot be fetched.
	withoutSource bool
	// after is when to come back; zero leaves it to a watch.
	after time.Duration
	// plan is what becomes of the plan in the status: what approvers decided about it counts in this decision already.
	plan *pulumiv1.PlanStatus
}

// keysAndValues returns what is logged about the decision. docs/conditions.md lists the possible wakers of each reason.
func (d decision) keysAndValues() []any {
	return []any{"action", d.action, "waker", d.wake, "after", d.after.String(), "reason", d.reason, "message", d.message}
}

// decide chooses the one action of a reconcile, and what becomes of the plan.
func decide(o observation) decision {
	plan := o.stack.Status.Plan
	if o.moving {
		return decision{action: actionTakeOver, wake: byTime, after: outdatedInterval, plan: plan}
	}
	if plan != nil {
		plan = nextPlan(o)
		judged := *o.stack
		judged.Status.Plan, o.stack = plan, &judged
	}
	d := showOutputProblem(o, decideOnAction(o))
	d.plan = plan
	return d
}

func decideOnAction(o observation) decision {
	switch {
	case writesOutputs(o):
		return decision{action: actionWriteOutputs, wake: byNothing}
	case o.update != nil:
		return decideOnUpdate(o)
	case !o.stack.DeletionTimestamp.IsZero():
		return decideOnDeletion(o)
	case o.stack.Spec.Suspend:
		return decision{action: actionSuspend, wake: byEdit, reason: pulumiv1.SuspendedReason, message: "reconciliation is suspended"}
	}
	return decideOnTrigger(o)
}

// needsContent reports whether the decision depends on the content of the artifact, which was not observed yet.
func (d decision) needsContent(o *observation) bool {
	return d.action == actionFetch && d.wake == byFetch && !o.content.requested
}

// decideOnUpdate handles an Update that exists. A result is recorded first. An outdated Update that has not started is replaced. A running
// Update is left alone, with two exceptions: a deleted Stack is released when its Workspace failed and nothing has to be destroyed
// (isGivenUp), and the Update of a suspended Stack that has the cancel annotation is cancelled (cancels).
func decideOnUpdate(o observation) decision {
	deleting := !o.stack.DeletionTimestamp.IsZero()
	switch {
	case !o.update.DeletionTimestamp.IsZero() && o.update.Status.StartTime == nil:
		// The Update has no result. The end of its deletion leads to a new decision, see forgetRemoved.
		return decideToFollow(o)
	case o.update.IsComplete():
		return decision{action: actionRecord, wake: byNothing}
	case deleting && nothingToDestroy(o.stack) != "" && isGivenUp(o):
		// Nobody needs the result of the Update.
		return decision{action: actionRelease, wake: byNothing, message: nothingToDestroy(o.stack)}
	case deleting && isFirstAndWaits(o):
		// Its result proves that there is nothing to destroy.
		if pulumiv1.CancelRequested(o.update) {
			return decideToFollow(o)
		}
		return decision{action: actionCancel, wake: byUpdate, reason: pulumiv1.StackProcessingReason,
			message: "the update that waits is being cancelled"}
	case !o.update.HasStarted() && !conditions.IsTrue(o.update, autov1alpha1.UpdateProgressing) && outdated(o):
		// An Update that is Progressing and has no start time was started by the Pulumi Kubernetes Operator. It is not replaced: it ends as
		// interrupted.
		return decision{action: actionSupersede, wake: byUpdate, reason: pulumiv1.StackProcessingReason,
			message: "the inputs of the waiting update changed"}
	case cancels(o):
		return decision{action: actionCancel, wake: byUpdate, reason: pulumiv1.StackProcessingReason,
			message: fmt.Sprintf("%s by update %s is being cancelled", o.update.Spec.Type, o.update.Name)}
	}
	return decideToFollow(o)
}

// decideToFollow waits for the Update, whose changes wake the Stack. A Workspace that does not exist is created again, because an Update
// that has not started would wait for it without an end; an Update that is being deleted needs none. A Workspace that failed is updated to
// what the Stack asks for now, which may help.
func decideToFollow(o observation) decision {
	missing := o.workspace == nil && !o.update.HasStarted() && o.update.DeletionTimestamp.IsZero()
	d := decision{action: actionFollow, wake: byUpdate, appliesWorkspace: o.desired != nil && (missing || workspaceHasFailed(o.workspace))}
	if waitsForWindows(o) {
		d.after = untilEdge(o, windowsOf(o))
	}
	d.requestsOutputs = o.lost != nil && o.lost.request != ""
	return d
}

// isGivenUp reports whether a deleted Stack that leaves its resources need not wait for its Update, because the Workspace failed. An Update
// that has started may still run although the controller cannot talk to its agent. Such an Update is waited for unless the Stack has the
// orphan annotation.
func isGivenUp(o observation) bool {
	if !workspaceHasFailed(o.workspace) {
		return false
	}
	silent := slices.Contains(silentReasons, conditions.GetReason(o.workspace, autov1alpha1.WorkspaceReady))
	return !silent || !o.update.HasStarted() || o.stack.Annotations[pulumiv1.OrphanAnnotation] == "true"
}

// silentReasons are the reasons of a Workspace whose agent may be running an operation although it does not answer this controller.
var silentReasons = []string{autov1alpha1.ConnectionFailedReason, autov1alpha1.UnauthenticatedReason, autov1alpha1.PermissionDeniedReason}

// outdated reports whether the current Update was made for other inputs than the Stack has now.
func outdated(o observation) bool {
	current := o.stack.Status.CurrentUpdate
	switch {
	case !o.update.DeletionTimestamp.IsZero():
		return false
	case o.stack.Spec.Suspend, current.Generation != o.stack.Generation:
		return true
	case !isApproved(o), lostSource(o), isShut(o), o.planOnly && !o.update.ChangesNothing():
		return true
	case !o.stack.DeletionTimestamp.IsZero():
		return o.update.Spec.Type != autov1alpha1.UpdateTypeDestroy || nothingToDestroy(o.stack) != ""
	}
	if plan := o.stack.Status.Plan; o.update.Spec.Plan != nil && plan != nil && o.artifact != nil {
		// The Update carries out a plan. Its source may be an earlier revision with the same content, so the commit of the plan counts, see
		// acceptCommit.
		return plan.Commit != o.artifact.Commit()
	}
	// This controller creates no Update without a source for a Stack that has one.
	return o.artifact != nil && (current.Commit != o.artifact.Commit() || o.update.Spec.Source == nil)
}

// lostSource reports whether the Update waits for an artifact that its source no longer offers, and another Update would not: the
// source offers another artifact, or the resources can be destroyed from the state. An earlier artifact has to be fetched when the store is
// empty, as that of a new controller is, and a source does not say whether it was verified.
func lostSource(o observation) bool {
	reason, _ := o.update.WaitingProblem()
	if o.update.Spec.Source == nil || !slices.Contains(lostReasons, reason) {
		return false
	}
	if o.artifact != nil {
		return o.artifact.Commit() != source.CommitOf(o.update.Spec.Source) || packedAnew(o.artifact, o.update.Spec.Source)
	}
	return !o.stack.DeletionTimestamp.IsZero() && o.sourceProblem != nil && !o.sourceProblem.Pending && destroyableFromState(o.stack)
}

// packedAnew reports whether the commit that the Update runs is stored with other bytes, because an earlier version of the controller packed it. A
// commit is identified by its hash, so another Update may run what there is now.
func packedAnew(stored *source.Artifact, from *autov1alpha1.UpdateSource) bool {
	return from.Git != nil && stored.Digest != "" && stored.Digest != from.Digest
}

// lostReasons are the reasons of an Update that waits for its artifact.
var lostReasons = []string{
	pulumiv1.SourceNotReadyReason, pulumiv1.SourceNotFoundReason, pulumiv1.ArtifactFetchFailedReason, pulumiv1.RevisionNotFoundReason,
	pulumiv1.RepositoryNotFoundReason, pulumiv1.SourceNotVerifiedReason, pulumiv1.ArtifactDigestMismatchReason,
}

// isApproved reports whether the Update may run as far as spec.approval is concerned: it changes nothing, or carries out the plan that is
// approved now.
func isApproved(o observation) bool {
	if o.stack.Spec.Approval == nil || o.update.ChangesNothing() {
		return true
	}
	return plans.Judge(plans.Case{
		Plan: o.stack.Status.Plan, Policy: o.stack.Spec.Approval, Reference: plans.CarriedOutBy(o.update), Now: o.now,
	}).State == plans.Approved
}

// isFirstAndWaits reports whether the Update is the first one that would deploy anything, waits, and can be proven not to have run: there is
// an agent, or it cannot have run.
func isFirstAndWaits(o observation) bool {
	provable := o.workspace != nil && (conditions.IsReady(o.workspace) || o.workspace.CannotHaveRun(o.update))
	return o.stack.Status.CurrentUpdate.First && !o.update.HasStarted() && provable
}

// cancels reports whether the running Update has to be cancelled. Only the Update of a suspended Stack is: any other Stack would start the
// same update again.
func cancels(o observation) bool {
	return o.stack.Spec.Suspend && pulumiv1.CancelRequested(o.stack) && o.update.HasStarted() && !pulumiv1.CancelRequested(o.update)
}
