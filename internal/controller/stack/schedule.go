package stack

import (
	"hash/fnv"
	"math"
	"strconv"
	"time"

	"github.com/fluxcd/pkg/apis/meta"
	"github.com/fluxcd/pkg/runtime/conditions"

	autov1alpha1 "github.com/stack-controller/stack-controller/api/auto/v1alpha1"
	pulumiv1 "github.com/stack-controller/stack-controller/api/pulumi/v1"
	"github.com/stack-controller/stack-controller/internal/backoff"
)

// This file says when the next attempt after a failure, and the next periodic update, are due.
//
// A conflict is an attempt that Pulumi refused because another process holds the lock of the stack. No watch reports that the lock is
// released, so the controller tries again from time to time.

const (
	// firstBackoff is the wait after the first failure; each further failure waits backoffFactor times as long.
	firstBackoff  = 10 * time.Second
	backoffFactor = 3
	// stalledAfterFailures is the number of failed attempts on the same inputs after which the Stack is also Stalled, so that a client that
	// waits for it fails fast. Attempts go on.
	stalledAfterFailures = 3
	// freeInterruptions is the number of interruptions in a row after which the operation is repeated at once. Draining a node causes one.
	// Something that interrupts every operation, such as a memory limit, must not lead to a hot loop.
	freeInterruptions = 3

	// eagerConflictWait is the wait between attempts of a Stack with retryOnUpdateConflict; up to half as much is added.
	eagerConflictWait = 10 * time.Second
	// longestConflictWait bounds the growing wait of any other Stack: an attempt costs one short process, and a lock that was
	// released should not keep anybody waiting for hours.
	longestConflictWait = 10 * time.Minute
	// stalledAfterConflict is how long a Stack waits for a lock until it is also Stalled, so that a client that waits for it fails fast. Most
	// updates take less, and the lock of a self-managed backend never ends by itself. Attempts go on.
	stalledAfterConflict = 10 * time.Minute
	// awaitingWait is the wait for resources that take long. Nobody says when they are ready, and an attempt runs the program.
	awaitingWait = 10 * time.Minute
	// briefAttempt is how long an attempt after a conflict may run, counted from the start of the Update, before the controller assumes that
	// it got the lock. An attempt that did not get the lock ends sooner.
	briefAttempt = 15 * time.Second
)

// retryDue is when the next attempt after a failure may start: at most spec.retryMaxBackoffDurationSeconds later, see GetRetryMaxBackoff. The
// agent recognises a conflict (causes in internal/agent/operation/classify.go), and recordFailure counts it. The jitter, a fraction of the wait, spreads Stacks that failed together.
func retryDue(stack *pulumiv1.Stack, jitter float64) time.Time {
	last, interval, longest := stack.Status.LastUpdate, stack.GetRetryInterval(), stack.GetRetryMaxBackoff()
	var wait time.Duration
	switch {
	case stackWasMissing(last) && !mustExist(stack):
		// The user has permitted to create the stack again.
		return last.LastResyncTime.Time
	case needsManualFix(last):
		wait = longest
	case last.Conflicts > 0 && stack.Spec.RetryOnUpdateConflict:
		wait, jitter = eagerConflictWait, 0.5
	case interval > 0 && (last.Conflicts > 0 || last.Interruptions == 0):
		wait, jitter = interval, 0
	case isAwaiting(last):
		wait = min(longest, awaitingWait)
	case last.Conflicts > 0:
		wait = failureBackoff(last.Conflicts, min(longest, longestConflictWait))
	case last.Interruptions > 0:
		wait = interruptionBackoff(last.Interruptions, longest)
	default:
		wait = failureBackoff(last.Failures, longest)
	}
	return last.LastResyncTime.Add(lengthened(wait, jitter, stack))
}

// untilDue returns the time until the attempt after the last one is due. If the last one ended in the future, a clock was wrong: waiting
// could take years, and the next attempt corrects the time.
func untilDue(stack *pulumiv1.Stack, due, now time.Time) time.Duration {
	if last := stack.Status.LastUpdate; last != nil && last.LastResyncTime.After(now) {
		return 0
	}
	return due.Sub(now)
}

// interruptionBackoff returns the wait after a number of interruptions in a row: none at first, then as after failures.
func interruptionBackoff(interruptions int64, longest time.Duration) time.Duration {
	if interruptions <= freeInterruptions {
		return 0
	}
	return failureBackoff(interruptions-freeInterruptions, longest)
}

func failureBackoff(failures int64, longest time.Duration) time.Duration {
	return backoff.Exponential(firstBackoff, backoffFactor, failures, longest)
}

// resyncDue is when the next periodic update of a Stack that is up to date is due. The jitter, a fraction of the interval, spreads
// Stacks that were created together.
func resyncDue(stack *pulumiv1.Stack, jitter float64) time.Time {
	return stack.Status.LastUpdate.LastResyncTime.Add(lengthened(stack.GetResyncInterval(), jitter, stack))
}

// lengthened adds up to the given fraction of the wait to it. What it adds is stable from one reconcile to the next, so that a restart does
// not move the schedule, and differs between Stacks and between attempts.
func lengthened(wait time.Duration, fraction float64, stack *pulumiv1.Stack) time.Duration {
	spread := spreadOf(string(stack.UID) + strconv.FormatInt(stack.Status.LastUpdate.LastResyncTime.Unix(), 10))
	return time.Duration(float64(wait) * (1 + fraction*spread))
}

// spreadOf returns a number from 0 to 1 that is made from a hash of the text.
func spreadOf(text string) float64 {
	hash := fnv.New32a()
	_, _ = hash.Write([]byte(text))
	return float64(hash.Sum32()) / math.MaxUint32
}

// lockedUntilStalled returns how long the Stack still waits for the lock before it is also Stalled; zero when that time is over.
func lockedUntilStalled(last *pulumiv1.StackUpdateStatus, now time.Time) time.Duration {
	if last.ConflictsSince == nil {
		return stalledAfterConflict
	}
	return max(last.ConflictsSince.Add(stalledAfterConflict).Sub(now), 0)
}

// conflictShownFor returns for how long an attempt that follows a conflict on the same inputs may still end with a conflict. Until then the
// status still shows who holds the lock.
func conflictShownFor(stack *pulumiv1.Stack, update *autov1alpha1.Update, now time.Time) (left time.Duration) {
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
