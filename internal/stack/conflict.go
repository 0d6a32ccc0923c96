package stack

import (
	"slices"
	"time"

	"github.com/fluxcd/pkg/apis/meta"
	"github.com/fluxcd/pkg/runtime/conditions"

	autov1alpha1 "github.com/stack-controller/stack-controller/api/auto/v1alpha1"
	pulumiv1 "github.com/stack-controller/stack-controller/api/pulumi/v1"
)

// A conflict is an attempt that pulumi refused because another process holds the lock of the stack. The Stack waits for it, and
// no watch tells the end of it, so each look is an attempt.

const (
	// eagerConflictWait is the wait between attempts of a Stack with retryOnUpdateConflict; up to half as much is added.
	eagerConflictWait = 10 * time.Second
	// longestConflictWait bounds the growing wait of any other Stack: an attempt costs one short process, and a lock that was
	// released should not keep anybody waiting for hours.
	longestConflictWait = 10 * time.Minute
	// stalledAfterConflict is how long a Stack waits for a lock until it is also Stalled, so that whoever waits for it fails fast.
	// Most updates take less, and the lock of a self-managed backend never ends by itself. Attempts go on.
	stalledAfterConflict = 10 * time.Minute
	// briefAttempt is how long an attempt after a conflict may run, in seconds and counted from the Update's start, until it is
	// taken for one that got the lock: one that did not ends sooner.
	briefAttempt = 15 * time.Second
)

// conflictDue is when the next attempt after a conflict may start. The jitter is as for retryDue.
func conflictDue(stack *pulumiv1.Stack, jitter float64) time.Time {
	last := stack.Status.LastUpdate
	if stack.Spec.RetryOnUpdateConflict {
		return last.LastResyncTime.Add(eagerConflictWait + time.Duration(spread(stack)*float64(eagerConflictWait)/2))
	}
	if interval := stack.GetRetryInterval(); interval > 0 {
		return last.LastResyncTime.Add(interval)
	}
	return last.LastResyncTime.Add(backoff(last.Conflicts, min(stack.GetRetryMaxBackoff(), longestConflictWait), jitter*spread(stack)))
}

// lockedUntilStalled is how long the Stack goes on waiting for the lock before it is also Stalled; zero when it is by now.
func lockedUntilStalled(last *pulumiv1.StackUpdateStatus, now time.Time) time.Duration {
	if last.ConflictsSince == nil {
		return stalledAfterConflict
	}
	return max(last.ConflictsSince.Add(stalledAfterConflict).Sub(now), 0)
}

// lookAgain is when to look at a Stack that waits for its next attempt: then, or earlier when it becomes Stalled meanwhile.
func lookAgain(last *pulumiv1.StackUpdateStatus, now time.Time, left time.Duration) time.Duration {
	if patience := lockedUntilStalled(last, now); last.Conflicts > 0 && patience > 0 {
		return min(left, patience)
	}
	return left
}

// recordConflict counts an attempt that did not get the lock. What came before it still counts.
func recordConflict(last, previous *pulumiv1.StackUpdateStatus) {
	last.Failures, last.Interruptions, last.Conflicts = previous.Failures, previous.Interruptions, previous.Conflicts+1
	last.ConflictsSince = previous.ConflictsSince
	if last.ConflictsSince == nil {
		last.ConflictsSince = last.LastResyncTime.DeepCopy()
	}
}

// meetsLockAgain tells whether the attempt follows a conflict on the same inputs and is so young that it may end as that one: until
// then the Stack goes on to say who holds the lock. It returns how long that is at most.
func meetsLockAgain(stack *pulumiv1.Stack, update *autov1alpha1.Update, now time.Time) (left time.Duration) {
	last := stack.Status.LastUpdate
	if last == nil || last.Conflicts == 0 || !repeats(stack) ||
		conditions.GetReason(stack, meta.ReadyCondition) != pulumiv1.UpdateConflictReason {
		return 0
	}
	begun := update.CreationTimestamp
	if update.Status.StartTime != nil {
		begun = *update.Status.StartTime
	}
	return max(begun.Add(briefAttempt).Sub(now), 0)
}

// triesLockAgain tells whether the decided update follows a conflict on the same inputs: no event tells each of them.
func triesLockAgain(stack *pulumiv1.Stack, d decision) bool {
	return !d.fresh && stack.Status.LastUpdate != nil && stack.Status.LastUpdate.Conflicts > 0
}

// dropConflicts takes the entry about conflicts of the same digest out of the history when there is a result now.
func dropConflicts(history meta.History, digest string, last *pulumiv1.StackUpdateStatus) meta.History {
	if last.Conflicts > 0 {
		return history
	}
	return slices.DeleteFunc(history, func(snapshot meta.Snapshot) bool {
		return snapshot.Digest == digest && snapshot.LastReconciledStatus == historyConflict
	})
}
