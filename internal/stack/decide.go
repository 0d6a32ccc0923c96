package stack

import (
	"fmt"
	"time"

	"github.com/fluxcd/pkg/runtime/conditions"

	autov1alpha1 "github.com/stack-controller/stack-controller/api/auto/v1alpha1"
	pulumiv1 "github.com/stack-controller/stack-controller/api/pulumi/v1"
	"github.com/stack-controller/stack-controller/internal/references"
	"github.com/stack-controller/stack-controller/internal/source"
)

// observation is everything that a decision is made from. It is complete: decide asks nobody.
type observation struct {
	now   time.Time
	stack *pulumiv1.Stack
	// waitInterval is when to look again at something that no watch covers.
	waitInterval time.Duration
	// jitter is the fraction by which intervals are lengthened at most.
	jitter float64
	// desired is the Workspace and the Update that the spec asks for; nil when specProblem says why the spec is unusable.
	desired     *desired
	specProblem error
	// artifact is what the source offers; nil for a Stack without source, and when sourceProblem says why there is none.
	artifact      *source.Artifact
	sourceProblem *source.Problem
	// content is that of the artifact, when it decides whether an update has to run.
	content contentView
	// references are the versions of the watched Secrets and ConfigMaps that the Stack uses.
	references []references.Version
	// dependency is why another Stack keeps this one from being updated; nil when none does.
	dependency *dependencyProblem
	// dependents are the Stacks that have to go before this one's resources are destroyed.
	dependents []dependent
	// busy is the name of an Update of somebody else that runs in the Workspace of a Stack that is being deleted; empty when there is none.
	busy string
	// stale is a prerequisite that has to run again before there is an update; nil when there is none.
	stale *staleDependency
	// workspace is the Stack's Workspace; nil when there is none.
	workspace *autov1alpha1.Workspace
	// update is the Stack's Update that is not finished, or finished but not recorded in the status yet; nil when there is none.
	update *autov1alpha1.Update
}

// action is what one reconcile does.
type action string

const (
	// actionRecord takes the result of a finished Update into the status; afterwards a new decision is due.
	actionRecord action = "record"
	// actionUpdate starts a preview, an up or a destroy.
	actionUpdate action = "update"
	// actionLook waits for the first answer of a git server. It wakes the Stack.
	actionLook action = "look"
	// actionFetch waits for an artifact that is being downloaded or made, or for its content. The end of that wakes the Stack.
	actionFetch action = "fetch"
	// actionSupersede removes an Update that has not started and whose inputs are out of date.
	actionSupersede action = "supersede"
	// actionCancel asks for the end of the current Update. Its changes wake the Stack.
	actionCancel action = "cancel"
	// actionFollow shows how the current Update stands. Its changes wake the Stack.
	actionFollow action = "follow"
	// actionWait shows what is missing. The decision's after, or a watch, wakes the Stack.
	actionWait action = "wait"
	// actionAsk asks a prerequisite to run again, and waits for it.
	actionAsk action = "ask"
	// actionStall shows what a human has to mend. An edit wakes the Stack.
	actionStall action = "stall"
	// actionRetry shows a failure and when the next attempt is due.
	actionRetry action = "retry"
	// actionSettle shows that the Stack is up to date.
	actionSettle action = "settle"
	// actionSuspend leaves everything as it is.
	actionSuspend action = "suspend"
	// actionRelease removes the finalizer.
	actionRelease action = "release"
)

// waker names what brings a Stack back, beside the time in the decision.
type waker string

const (
	// byEdit is the watch on the Stack itself: its spec, a request, the orphan annotation.
	byEdit waker = "edit"
	// bySource is the watch on the source, or an answer of a git server.
	bySource waker = "source"
	// byFetch is the end of a download, a checkout or a comparison.
	byFetch waker = "fetch"
	// byUpdate is the watch on the Stack's Updates, and on its Workspace.
	byUpdate waker = "update"
	// byDependencies is the watch on the Stacks that the Stack depends on.
	byDependencies waker = "dependencies"
	// byDependents is the watch on the Stacks that depend on the Stack.
	byDependents waker = "dependents"
	// byTime is nothing but the time in the decision; an edit helps as always.
	byTime waker = "time"
	// byNothing stands for decisions after which nothing is left to do, or after which the next one follows at once.
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
	// quiet leaves the status as it is, with actionLook and actionFetch: it is not known yet whether there is anything to do.
	quiet bool
	// fresh is true when the inputs differ from the last attempt's: earlier failures do not count any more.
	fresh bool
	// after is when to come back; zero leaves it to a watch.
	after time.Duration
}

// decide is the whole policy of the Stack controller.
func decide(o observation) decision {
	switch {
	case o.update != nil:
		return decideOnUpdate(o)
	case !o.stack.DeletionTimestamp.IsZero():
		return decideOnDeletion(o)
	case o.stack.Spec.Suspend:
		return decision{action: actionSuspend, wake: byEdit, reason: pulumiv1.SuspendedReason, message: "reconciliation is suspended"}
	}
	if problem := blocked(o); problem != nil {
		return *problem
	}
	d := decideOnTrigger(o)
	if d.action == actionUpdate && o.stale != nil {
		return decideOnStale(o)
	}
	return d
}

// decideOnUpdate handles an Update that exists: its result comes first, a stale one that never ran makes room, a
// running one is left alone.
func decideOnUpdate(o observation) decision {
	switch {
	case !o.update.DeletionTimestamp.IsZero() && o.update.Status.StartTime == nil:
		// It never ran, so it has no result; when it is gone there is a new decision to make.
		return decision{action: actionFollow, wake: byUpdate}
	case o.update.IsComplete():
		return decision{action: actionRecord, wake: byNothing}
	case !o.stack.DeletionTimestamp.IsZero() && nothingToDestroy(o.stack) != "" && inTrouble(o.workspace):
		// Whatever the Update does in there, nobody needs to wait for it.
		return decision{action: actionRelease, wake: byNothing, message: nothingToDestroy(o.stack)}
	case !o.update.HasStarted() && !conditions.IsTrue(o.update, autov1alpha1.UpdateProgressing) && outdated(o):
		// One that progresses without having started was left by another controller, and ends as interrupted.
		return decision{action: actionSupersede, wake: byUpdate, reason: pulumiv1.StackProcessingReason, message: "the inputs of the waiting update changed"}
	case cancels(o):
		return decision{action: actionCancel, wake: byUpdate, reason: pulumiv1.StackProcessingReason,
			message: fmt.Sprintf("%s by update %s is being cancelled", o.update.Spec.Type, o.update.Name)}
	}
	return decision{action: actionFollow, wake: byUpdate}
}

// outdated tells whether the current Update was made for other inputs than the Stack has now.
func outdated(o observation) bool {
	current := o.stack.Status.CurrentUpdate
	switch {
	case !o.update.DeletionTimestamp.IsZero():
		return false
	case o.stack.Spec.Suspend, current != nil && current.Generation != o.stack.Generation:
		return true
	case !o.stack.DeletionTimestamp.IsZero():
		return o.update.Spec.Type != autov1alpha1.UpdateTypeDestroy || nothingToDestroy(o.stack) != ""
	}
	// One without a source of its own is not of this controller.
	return current != nil && o.artifact != nil && (current.Commit != o.artifact.Commit() || o.update.Spec.Source == nil)
}

// blocked returns what keeps the Stack from being updated, or nil.
func blocked(o observation) *decision {
	switch {
	case o.specProblem != nil:
		return &decision{action: actionStall, wake: byEdit, reason: pulumiv1.SpecInvalidReason, message: o.specProblem.Error()}
	case o.sourceProblem != nil:
		return blockedBySource(o, o.sourceProblem)
	case o.dependency != nil:
		return blockedByDependency(o, o.dependency)
	}
	return nil
}

func blockedBySource(o observation, problem *source.Problem) *decision {
	d := &decision{action: actionWait, wake: byTime, reason: problem.Reason, message: problem.Message, after: o.waitInterval}
	switch {
	case problem.Pending:
		d.action, d.wake, d.after, d.quiet = actionLook, bySource, 0, askedForNothing(o.stack)
	case problem.Permanent:
		d.action, d.wake, d.after = actionStall, byEdit, 0
	case problem.Watched:
		d.wake, d.after = bySource, 0
	}
	return d
}

// blockedByDependency waits for the watch on the other Stack. The time is for one that another shard has, which no watch covers.
func blockedByDependency(o observation, problem *dependencyProblem) *decision {
	d := &decision{action: actionWait, wake: byDependencies, reason: problem.reason, message: problem.message, after: o.waitInterval}
	if problem.permanent {
		d.action = actionStall
	}
	if problem.permanent && problem.reason != pulumiv1.DependencyCycleReason {
		d.wake, d.after = byEdit, 0
	}
	return d
}

// decideOnStale keeps an update back until a prerequisite has run again.
func decideOnStale(o observation) decision {
	d := decision{action: actionWait, wake: byDependencies, reason: pulumiv1.PrerequisiteNotSatisfiedReason, message: o.stale.message, after: o.waitInterval}
	if o.stale.request != "" {
		d.action = actionAsk
	}
	return d
}

// askedForNothing tells whether the last update is the answer to all that the Stack itself asks for, so that only its source can
// bring something new.
func askedForNothing(stack *pulumiv1.Stack) bool {
	last := stack.Status.LastUpdate
	return last != nil && last.Generation == stack.Generation && unhandledRequest(stack) == "" && stack.DeletionTimestamp.IsZero()
}

// decideOnTrigger starts an update when something asks for one, and otherwise says how the last one went.
func decideOnTrigger(o observation) decision {
	kind := autov1alpha1.UpdateTypeUp
	if o.stack.Spec.Preview {
		kind = autov1alpha1.UpdateTypePreview
	}
	last := o.stack.Status.LastUpdate
	if trigger, fresh := inputsChanged(o); trigger != "" {
		return decision{action: actionUpdate, wake: byUpdate, kind: kind, message: trigger, fresh: fresh}
	}
	if pending := contentPending(o); pending != nil {
		return *pending
	}
	if last.State == pulumiv1.StackUpdateFailed {
		return decideOnFailure(o, kind)
	}
	if !o.stack.Spec.ContinueResyncOnCommitMatch {
		return decision{action: actionSettle, wake: byEdit}
	}
	if left := untilDue(o.stack, resyncDue(o.stack, o.jitter), o.now); left > 0 {
		return decision{action: actionSettle, wake: byTime, after: left}
	}
	return decision{action: actionUpdate, wake: byUpdate, kind: kind, message: "Resync time elapsed"}
}

// inputsChanged says why the Stack has to be updated whatever the schedule says; empty when its inputs are those of the last attempt.
func inputsChanged(o observation) (trigger string, fresh bool) {
	last := o.stack.Status.LastUpdate
	switch {
	case last == nil:
		return "Initial stack update", true
	case last.Generation != o.stack.Generation:
		return fmt.Sprintf("New stack generation: %d", o.stack.Generation), true
	case unhandledRequest(o.stack) != "":
		return fmt.Sprintf("Sync request: %q", unhandledRequest(o.stack)), true
	case newContent(o):
		return "New commit detected: " + describeRevision(o.artifact), true
	}
	changed := referencesChanged(o)
	return changed, changed != ""
}

// decideOnFailure retries with backoff, for ever: a failure whose cause went away must heal without a human.
func decideOnFailure(o observation, kind autov1alpha1.UpdateType) decision {
	last := o.stack.Status.LastUpdate
	left := untilDue(o.stack, retryDue(o.stack, o.jitter), o.now)
	if left > 0 {
		return decision{action: actionRetry, wake: byTime, reason: retryReason(last), message: describeRetry(last, left), after: lookAgain(last, o.now, left)}
	}
	d := decision{action: actionUpdate, wake: byUpdate, kind: kind, message: "Backoff time elapsed"}
	switch {
	case last.Conflicts > 0:
		d.message = "The stack was locked"
	case last.Interruptions > 0:
		d.message = "The last update was interrupted"
	}
	return d
}

// retryReason tells a failure that is tried again from many of them, and both from an interruption.
func retryReason(last *pulumiv1.StackUpdateStatus) string {
	switch {
	case last.Conflicts > 0:
		return pulumiv1.UpdateConflictReason
	case last.Interruptions >= freeInterruptions+stalledAfterFailures:
		return pulumiv1.UpdateFailedReason
	case last.Interruptions > 0:
		return pulumiv1.UpdateInterruptedReason
	case last.Failures >= stalledAfterFailures:
		return pulumiv1.UpdateFailedReason
	case wasLost(last):
		return pulumiv1.StackLostReason
	case last.Type == autov1alpha1.UpdateTypePreview:
		return pulumiv1.PreviewFailedReason
	}
	return pulumiv1.RetryingAfterFailureReason
}

func describeRetry(last *pulumiv1.StackUpdateStatus, left time.Duration) string {
	return fmt.Sprintf("%s, next attempt in %s: %s", describeFailure(last), left.Round(time.Second), last.Message)
}

// describeAttempt is what is told of the last failure while another attempt runs.
func describeAttempt(last *pulumiv1.StackUpdateStatus) string {
	return fmt.Sprintf("%s, another attempt is on its way: %s", describeFailure(last), last.Message)
}

func describeFailure(last *pulumiv1.StackUpdateStatus) string {
	if last.Conflicts > 0 {
		return fmt.Sprintf("%s waits for the lock of the stack", last.Type)
	}
	if last.Interruptions > 0 {
		return fmt.Sprintf("%s was interrupted %d times in a row", last.Type, last.Interruptions)
	}
	return fmt.Sprintf("%s failed (attempt %d)", last.Type, last.Failures)
}
