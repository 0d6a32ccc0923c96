package stack

import (
	"hash/fnv"
	"math"
	"strconv"
	"time"

	pulumiv1 "github.com/stack-controller/stack-controller/api/pulumi/v1"
)

const (
	// firstBackoff is the wait after the first failure; each further failure waits backoffFactor times as long.
	firstBackoff  = 10 * time.Second
	backoffFactor = 3
	// stalledAfterFailures is the number of failed attempts on the same inputs after which the Stack is also Stalled, so
	// that whoever waits for it fails fast. Attempts go on.
	stalledAfterFailures = 3
	// freeInterruptions is the number of interruptions in a row after which the operation is repeated at once. A node that is
	// drained needs one; something that ends every operation, such as a memory limit, must not become a hot loop.
	freeInterruptions = 3
)

// retryDue is when the next attempt after a failure may start. The jitter, a fraction of the wait, spreads Stacks that
// failed together.
func retryDue(stack *pulumiv1.Stack, jitter float64) time.Time {
	last := stack.Status.LastUpdate
	if startsOver(stack) {
		return last.LastResyncTime.Time
	}
	if last.Conflicts > 0 {
		return conflictDue(stack, jitter)
	}
	if last.Interruptions > 0 {
		return last.LastResyncTime.Add(interruptionBackoff(last.Interruptions, stack.GetRetryMaxBackoff(), jitter*spread(stack)))
	}
	if interval := stack.GetRetryInterval(); interval > 0 {
		return last.LastResyncTime.Add(interval)
	}
	return last.LastResyncTime.Add(backoff(last.Failures, stack.GetRetryMaxBackoff(), jitter*spread(stack)))
}

// untilDue is how long it is until an attempt that follows the last one is due. When the last one ended in the future, a clock was
// wrong, then or now: to wait for it might take years, and the next attempt puts it right.
func untilDue(stack *pulumiv1.Stack, due, now time.Time) time.Duration {
	if last := stack.Status.LastUpdate; last != nil && last.LastResyncTime.After(now) {
		return 0
	}
	return due.Sub(now)
}

// interruptionBackoff is the wait after so many interruptions in a row: none at first, then as after failures.
func interruptionBackoff(interruptions int64, longest time.Duration, jitter float64) time.Duration {
	if interruptions <= freeInterruptions {
		return 0
	}
	return backoff(interruptions-freeInterruptions, longest, jitter)
}

// backoff is the wait after so many failures in a row, lengthened by the fraction of jitter.
func backoff(failures int64, longest time.Duration, jitter float64) time.Duration {
	exponent := float64(max(failures-1, 0))
	wait := math.Min(float64(firstBackoff)*math.Pow(backoffFactor, exponent), float64(longest))
	return time.Duration(wait * (1 + jitter))
}

// resyncDue is when the next periodic update of a settled Stack is due. The jitter, a fraction of the interval, spreads Stacks
// that were created together.
func resyncDue(stack *pulumiv1.Stack, jitter float64) time.Time {
	interval := float64(stack.GetResyncInterval())
	return stack.Status.LastUpdate.LastResyncTime.Add(time.Duration(interval * (1 + jitter*spread(stack))))
}

// spread returns a number from 0 to 1 that is stable between two looks at the same schedule, so that a restart does not
// move it, and different for every Stack and every turn.
func spread(stack *pulumiv1.Stack) float64 {
	hash := fnv.New32a()
	_, _ = hash.Write([]byte(string(stack.UID) + strconv.FormatInt(stack.Status.LastUpdate.LastResyncTime.Unix(), 10)))
	return float64(hash.Sum32()) / math.MaxUint32
}
