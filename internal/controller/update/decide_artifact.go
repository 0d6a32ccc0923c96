package update

import (
	"errors"
	"fmt"
	"time"

	autov1alpha1 "github.com/stack-controller/stack-controller/api/auto/v1alpha1"
	pulumiv1 "github.com/stack-controller/stack-controller/api/pulumi/v1"
	"github.com/stack-controller/stack-controller/internal/agent/client"
	"github.com/stack-controller/stack-controller/internal/source"
)

// decideOnFetchError waits for a source that has nothing to run, unless only an edit can change that, and for an artifact that the store
// could not get. Nothing is run, and the Update does not fail, because the file may be right later under the same digest.
// If the source has another artifact, the Stack replaces the Update (lostSource in internal/controller/stack/decide.go); a plan is made again and
// keeps its approvals if it is equal (recordStale, plans.CarryOver).
func decideOnFetchError(o *observation) decision {
	var problem *source.Problem
	switch reason, _ := source.FetchReason(o.artifact.err); {
	case !errors.As(o.artifact.err, &problem):
		return artifactProblem(o, reason, o.artifact.err)
	case problem.Pending:
		return waitForArtifact(o, actionWait, autov1alpha1.ArtifactPendingReason, problem.Message, bySource)
	case problem.Permanent:
		return finish(autov1alpha1.ConfigInvalidReason, problem.Message)
	}
	d := artifactProblem(o, problem.Reason, problem)
	if problem.Watched {
		d.wake = bySource
	}
	return d
}

// deliveryReasons are the condition reasons for an artifact that the agent did not accept.
var deliveryReasons = map[error]string{
	client.ErrFetchFailed:    pulumiv1.ArtifactFetchFailedReason,
	client.ErrDigestMismatch: pulumiv1.ArtifactDigestMismatchReason,
	client.ErrTooLarge:       pulumiv1.ArtifactTooLargeReason,
	client.ErrInvalid:        pulumiv1.ArtifactUnusableReason,
}

// decideOnDelivery sends the artifact to an agent that asks for it. If the agent refused the last attempt, the status shows why, and the
// next attempt waits.
func decideOnDelivery(o *observation) decision {
	for refusal, reason := range deliveryReasons {
		if err := o.delivery.err; errors.Is(err, refusal) {
			return artifactProblem(o, reason, err)
		}
	}
	return deliverTo(o, actionDeliver, "artifact", o.artifact.digest, deliveryTimeout)
}

// deliverTo sends what the agent asks for. If the agent has just taken it and asks for it again, the next attempt waits, because this could
// go on for ever. An attempt that failed for a reason that may pass is repeated.
func deliverTo(o *observation, action action, what, digest string, timeout time.Duration) decision {
	switch err := o.delivery.err; {
	case err == nil && o.delivery.digest != "" && o.delivery.digest == digest:
		return transient(o, fmt.Errorf("the agent took the %s and says that it does not have it", what), transientInterval)
	case err == nil:
		d := waitForArtifact(o, action, autov1alpha1.SourceDeliveryReason, "the "+what+" is being delivered to the agent", byDelivery)
		d.after = 2 * timeout
		return d
	case errors.Is(err, client.ErrBusy):
		return retryAfter(autov1alpha1.QueuedReason, err.Error(), busyInterval)
	default:
		return transient(o, err, transientInterval)
	}
}

func artifactProblem(o *observation, reason string, err error) decision {
	return retryAfter(reason, err.Error(), retryDelay(o, reason, artifactRetryInterval, artifactRetryLimit))
}

// waitForArtifact waits for an artifact that is being fetched or delivered. In the meantime the status keeps the problem of the last
// attempt. Otherwise the status would change twice per attempt, and would show no problem most of the time.
func waitForArtifact(o *observation, action action, reason, message string, wake waker) decision {
	d := decision{action: action, reason: reason, message: message, wake: wake, brief: true}
	if shown, why := o.update.WaitingProblem(); shown != "" && shown != autov1alpha1.UpdateTransientFailureReason {
		d.reason, d.message = shown, why
	}
	return d
}
