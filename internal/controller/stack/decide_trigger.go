package stack

import (
	"cmp"
	"errors"
	"fmt"
	"time"

	"github.com/fluxcd/pkg/apis/meta"
	"github.com/fluxcd/pkg/runtime/conditions"

	autov1alpha1 "github.com/stack-controller/stack-controller/api/auto/v1alpha1"
	pulumiv1 "github.com/stack-controller/stack-controller/api/pulumi/v1"
	"github.com/stack-controller/stack-controller/internal/backoff"
	"github.com/stack-controller/stack-controller/internal/source"
	"github.com/stack-controller/stack-controller/internal/source/artifact"
)

const (
	// firstFetchWait is the time from a fetch that failed to the next one. It grows with the time for which the problem has been shown.
	firstFetchWait = 3 * time.Second
	// briefFetch is the age of an artifact from which the status shows that the artifact is being fetched. The age is known to the second.
	// Most fetches end sooner, and each write of a status is work for every client that watches Stacks.
	briefFetch = 2 * time.Second
)

// decideOnTrigger starts an update if there is a reason for one and nothing is missing. Otherwise it shows how the last one went.
func decideOnTrigger(o observation) decision {
	if problem := blocked(o); problem != nil {
		return *problem
	}
	d := decideOnInputs(o)
	if d.action == actionReady && correctsDrift(o) {
		drift := o.stack.Status.Drift
		d = decision{action: actionUpdate, wake: byUpdate, kind: autov1alpha1.UpdateTypeUp, driftDigest: drift.Digest, cause: pulumiv1.PlanForDrift,
			message: "Correcting drift: " + describeDrift(drift)}
	}
	if d.action == actionReady && needsOutputs(o) {
		d = decision{action: actionUpdate, wake: byUpdate, kind: autov1alpha1.UpdateTypeUp, cause: pulumiv1.PlanForResync,
			message: "The outputs are no longer stored"}
	}
	if d.action != actionUpdate {
		return d
	}
	if held := shut(o, d); held != nil {
		// What waits quietly need not be the new commit, see acceptUnchanged.
		if pending := awaitComparison(o); held.quiet && pending != nil {
			return *pending
		}
		return *held
	}
	if wait := awaitDependencies(o); wait != nil {
		// A resync and a correction of drift do not change what the Stack asks for, so nobody has to know that they are late.
		wait.quiet = d.cause != pulumiv1.PlanForChange
		return pollRarely(*wait)
	}
	if pending := awaitContent(o); pending != nil {
		return *pending
	}
	return decideOnWindows(o, decideOnTurn(o, decideOnApproval(o, d)))
}

// blocked returns what somebody has to fix before the Stack can be updated, or a problem with its source; nil if there is nothing. A
// dependency that is not ready is no such problem: see awaitDependencies.
func blocked(o observation) *decision {
	switch {
	case o.specProblem != nil:
		return &decision{action: actionStall, wake: byEdit, reason: pulumiv1.SpecInvalidReason, message: o.specProblem.Error()}
	case o.sourceProblem != nil:
		return blockedBySource(o, o.sourceProblem)
	case o.dependency != nil && o.dependency.permanent:
		return blockedByDependency(o, o.dependency)
	}
	return nil
}

// awaitDependencies returns what to do until the dependencies allow an update, or nil if they do. It does not matter to a Stack that has
// nothing to update: what its dependencies do later does not change what it has deployed.
func awaitDependencies(o observation) *decision {
	switch {
	case o.dependency != nil:
		return blockedByDependency(o, o.dependency)
	case o.behind != nil:
		return blockedByDependency(o, o.behind)
	case needsObjects(o):
		return &decision{action: actionReadObjects, wake: byNothing}
	case o.objects.problem != nil:
		return blockedByObject(o, o.objects.problem)
	case o.aged != nil:
		return new(decideOnStale(o))
	}
	return nil
}

func blockedBySource(o observation, problem *source.Problem) *decision {
	d := &decision{action: actionWait, wake: byTime, reason: problem.Reason, message: problem.Message, after: o.waitInterval}
	switch {
	case problem.Pending:
		d.action, d.wake, d.after, d.quiet = actionFetch, bySource, 0, onlySourceCounts(o.stack)
	case problem.Permanent:
		d.action, d.wake, d.after = actionStall, byEdit, 0
	case problem.Watched:
		d.wake, d.after = bySource, 0
	}
	return d
}

// blockedByDependency waits for the watch on the other Stack. The time is for a Stack of another shard, which is not watched.
func blockedByDependency(o observation, problem *dependencyProblem) *decision {
	d := &decision{action: actionWait, wake: byDependencies, reason: problem.reason, message: problem.message,
		after: cmp.Or(problem.after, o.waitInterval)}
	if problem.permanent || problem.foreign {
		d.action = actionStall
	}
	if problem.permanent && problem.reason != pulumiv1.DependencyCycleReason {
		d.wake, d.after = byEdit, 0
	}
	return d
}

// decideOnStale delays an update until a prerequisite has run again.
func decideOnStale(o observation) decision {
	d := decision{action: actionWait, wake: byDependencies, reason: pulumiv1.PrerequisiteNotSatisfiedReason, message: o.aged.message,
		after: o.waitInterval}
	if o.aged.request != "" {
		d.action = actionRequestDependency
	}
	return d
}

// onlySourceCounts reports whether the last update did all that the Stack itself asks for, so that only its source can be a reason for
// another one.
func onlySourceCounts(stack *pulumiv1.Stack) bool {
	last := stack.Status.LastUpdate
	return last != nil && last.Generation == stack.Generation && unhandledRequest(stack) == "" && stack.DeletionTimestamp.IsZero()
}

// decideOnInputs starts an update if the inputs differ from those of the last attempt, or if one is due.
func decideOnInputs(o observation) decision {
	last := o.stack.Status.LastUpdate
	start := decision{action: actionUpdate, wake: byUpdate, kind: autov1alpha1.UpdateTypeUp, cause: pulumiv1.PlanForChange}
	if o.stack.IsPreview() {
		start.kind = autov1alpha1.UpdateTypePreview
	}
	if last == nil {
		start.fresh, start.message = true, "Initial stack update"
		return start
	}
	if start.message = newInputs(o, last.Inputs()); start.message != "" {
		start.fresh = true
		return start
	}
	if pending := awaitComparison(o); pending != nil {
		return *pending
	}
	if plan := openPlan(o); plan != nil && !failedOnLock(o, plan) {
		// The plan is made again for what the Stack has now, or was made for another reason.
		start.message, start.driftDigest, start.cause = cmp.Or(newInputs(o, plan.UpdateInputs), plan.Trigger), plan.Drift, plan.Cause
		return start
	}
	if last.State == pulumiv1.StackUpdateFailed {
		return decideOnFailure(o, start)
	}
	if !o.stack.Spec.ContinueResyncOnCommitMatch {
		return decision{action: actionReady, wake: byEdit}
	}
	if left := untilDue(o.stack, resyncDue(o.stack, o.jitter), o.now); left > 0 {
		return decision{action: actionReady, wake: byTime, after: left}
	}
	start.message, start.cause = resyncMessage, pulumiv1.PlanForResync
	return start
}

// awaitComparison returns what to do until it is known whether a new commit concerns the Stack; nil if it is, or if there is none.
// Only problems are shown: most new revisions of a repository with many stacks do not concern this one.
func awaitComparison(o observation) *decision {
	last := o.stack.Status.LastUpdate
	if last == nil || !contentMatters(o, last.Inputs()) {
		return nil
	}
	pending := awaitContent(o)
	if pending != nil && pending.action == actionFetch {
		pending.quiet, pending.after = true, 0
	}
	return pending
}

// awaitContent returns what to do until the files of an operation are there, or nil if they are. A destroy does not depend on what is in
// them.
func awaitContent(o observation) *decision {
	destroys := !o.stack.DeletionTimestamp.IsZero()
	d := &decision{action: actionFetch, wake: byFetch}
	switch {
	case o.artifact == nil:
		return nil
	case o.content.problem != nil:
		return fetchProblem(o, o.content.problem)
	case !o.content.stored:
		d.message = "fetching the artifact " + describeRevision(o.artifact)
	case o.content.digest == "" && !destroys:
		d.message = "looking through the files of the artifact " + describeRevision(o.artifact)
	default:
		return nil
	}
	// The status does not show the fetch in three cases: the artifact was published just now; the fetch is a detail of a periodic run; the
	// fetch is another attempt after a problem, which stays in the status. Otherwise the status would change twice for each attempt, and would
	// lose how long the Stack has waited.
	last := o.stack.Status.LastUpdate
	if left := briefFetch - o.now.Sub(o.artifact.Published); left > 0 {
		d.quiet, d.after = true, min(left, briefFetch)
	} else if last != nil && last.Generation == o.stack.Generation && last.LastAttemptedCommit == commitOf(o.artifact) {
		d.quiet = true
	} else if ready := conditions.Get(o.stack, meta.ReadyCondition); ready != nil && ready.ObservedGeneration == o.stack.Generation {
		d.quiet = source.IsFetchReason(ready.Reason)
	}
	return d
}

// fetchProblem returns the decision on an artifact that cannot be fetched: wait for a problem that another artifact may solve, and stall
// for one that a human has to fix. The fetch is tried again in both cases: a file may be published again under the same digest, and a
// checkout may succeed with other credentials. Only a selection that is too complex is not tried again before an edit. That an artifact is
// missing (artifact.NotFound) was already handled in observeContent, which reads the source again; here it is a failed fetch like any
// other.
func fetchProblem(o observation, err error) *decision {
	if problem := (*source.Problem)(nil); errors.As(err, &problem) {
		d := blockedBySource(o, problem)
		d.wake, d.after = byTime, o.waitInterval
		return d
	}
	if errors.Is(err, artifact.ErrSelectionTooComplex) {
		return &decision{action: actionStall, wake: byEdit, reason: pulumiv1.SpecInvalidReason, message: err.Error()}
	}
	reason, kind := source.FetchReason(err)
	d := &decision{action: actionWait, wake: byTime, reason: reason, message: err.Error()}
	if kind == artifact.TooLarge || kind == artifact.Unusable {
		d.action = actionStall
	}
	d.after = backoff.Proportional(shownFor(o, d.reason), firstFetchWait, max(o.waitInterval, firstFetchWait))
	return d
}

// shownFor returns for how long the Stack has shown the reason; 0 if it does not show it.
func shownFor(o observation, reason string) time.Duration {
	if shown := conditions.Get(o.stack, meta.ReadyCondition); shown != nil && shown.Reason == reason {
		return o.now.Sub(shown.LastTransitionTime.Time)
	}
	return 0
}

// decideOnFailure retries with backoff, without an end: when the cause of a failure goes away, the Stack has to recover without a human.
func decideOnFailure(o observation, start decision) decision {
	last := o.stack.Status.LastUpdate
	if left := untilDue(o.stack, retryDue(o.stack, o.jitter), o.now); left > 0 {
		return decideToRetry(o, left)
	}
	switch {
	case last.Conflicts > 0:
		start.message = "The stack was locked"
	case isAwaiting(last):
		start.message = "Resources may be ready that were not at the last update"
	case last.Interruptions > 0:
		start.message = "The last update was interrupted"
	default:
		start.message = "Backoff time elapsed"
	}
	if retriesCorrection(o) {
		start.driftDigest, start.cause = last.Drift, pulumiv1.PlanForDrift
		start.message = "Correcting drift, another attempt: " + describeDrift(o.stack.Status.Drift)
	}
	return start
}

// decideToRetry waits until the next attempt is due, or until the Stack becomes Stalled meanwhile.
func decideToRetry(o observation, left time.Duration) decision {
	last := o.stack.Status.LastUpdate
	d := decision{action: actionRetry, wake: byTime, reason: retryReason(last), after: left,
		message: fmt.Sprintf("%s, next attempt in %s: %s", describeFailure(last), left.Round(time.Second), last.Message)}
	d.stalls = d.reason == pulumiv1.UpdateFailedReason || needsManualFix(last)
	if last.Conflicts > 0 {
		untilStalled := lockedUntilStalled(last, o.now)
		d.stalls = untilStalled == 0
		if !d.stalls {
			d.after = min(left, untilStalled)
		}
	}
	return d
}

// retryReason returns the reason to show between two attempts. Single failures, repeated failures, interruptions, conflicts and resources that
// take long have different reasons.
func retryReason(last *pulumiv1.StackUpdateStatus) string {
	switch {
	case last.Conflicts > 0:
		return pulumiv1.UpdateConflictReason
	case isAwaiting(last):
		return pulumiv1.AwaitingResourcesReason
	case last.Interruptions >= freeInterruptions+stalledAfterFailures:
		return pulumiv1.UpdateFailedReason
	case last.Interruptions > 0:
		return pulumiv1.UpdateInterruptedReason
	case needsManualFix(last):
		return manualFixes[last.Reason]
	case last.Failures >= stalledAfterFailures:
		return pulumiv1.UpdateFailedReason
	case last.Reason == autov1alpha1.PlanViolatedReason:
		return pulumiv1.PlanViolatedReason
	case last.Reason == autov1alpha1.PlanTooLargeReason:
		return pulumiv1.PlanTooLargeReason
	case stackWasMissing(last):
		return pulumiv1.StackLostReason
	case last.Type == autov1alpha1.UpdateTypePreview:
		return pulumiv1.PreviewFailedReason
	}
	return pulumiv1.RetryingAfterFailureReason
}

func describeFailure(last *pulumiv1.StackUpdateStatus) string {
	switch {
	case last.Conflicts > 0:
		return fmt.Sprintf("%s waits for the lock of the stack", last.Type)
	case isAwaiting(last):
		return fmt.Sprintf("%s waits for resources", last.Type)
	case last.Interruptions > 0:
		return fmt.Sprintf("%s was interrupted %d times in a row", last.Type, last.Interruptions)
	case needsManualFix(last):
		return fmt.Sprintf("%s failed", last.Type)
	}
	return fmt.Sprintf("%s failed (attempt %d)", last.Type, last.Failures)
}

// manualFixes maps the reasons of failures that no other attempt with the same inputs can change, because somebody has to do something
// first, from those of Updates to those of Stacks. Such a failure is not counted, makes the Stack Stalled at once, and is tried again only
// after the longest backoff.
var manualFixes = map[string]string{
	autov1alpha1.StateUpgradeRequiredReason: pulumiv1.StateUpgradeRequiredReason,
	autov1alpha1.PolicyViolationReason:      pulumiv1.PolicyViolationReason,
}

// needsManualFix reports whether the last update failed for one of the reasons of manualFixes.
func needsManualFix(last *pulumiv1.StackUpdateStatus) bool {
	return last != nil && last.State == pulumiv1.StackUpdateFailed && last.Conflicts == 0 && last.Interruptions == 0 &&
		manualFixes[last.Reason] != ""
}

// isAwaiting reports whether the last update did all but what depends on resources that are not ready yet.
func isAwaiting(last *pulumiv1.StackUpdateStatus) bool {
	return last != nil && last.State == pulumiv1.StackUpdateFailed && last.Reason == autov1alpha1.AwaitingResourcesReason
}

// mustExist reports whether the Pulumi stack has to be in the backend. A stack that was deployed may be missing because a volume is not
// mounted, the bucket is the wrong one, or somebody removed the state. Creating it again would create every resource a second time, and
// destroying it would prove nothing. The controller does neither unless the user permits it.
func mustExist(stack *pulumiv1.Stack) bool {
	mayCreate := stack.Annotations[pulumiv1.CreateMissingStackAnnotation] == "true"
	return stack.Status.DeployedStack != "" && stack.Status.DeployedStack == stack.Spec.Stack && !mayCreate
}

// stackWasMissing reports whether the last update found that the Pulumi stack is missing.
func stackWasMissing(last *pulumiv1.StackUpdateStatus) bool {
	return last != nil && last.Reason == autov1alpha1.StackLostReason
}
