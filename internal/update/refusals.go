package update

import (
	"errors"
	"slices"
	"time"

	"github.com/fluxcd/pkg/runtime/conditions"

	autov1alpha1 "github.com/stack-controller/stack-controller/api/auto/v1alpha1"
	pulumiv1 "github.com/stack-controller/stack-controller/api/pulumi/v1"
	"github.com/stack-controller/stack-controller/internal/agent/client"
	"github.com/stack-controller/stack-controller/internal/artifact"
	"github.com/stack-controller/stack-controller/internal/source"
)

const (
	// artifactRetryInterval is the shortest time between two attempts to fetch or deliver an artifact that was refused. A
	// source that replaces it is heard of earlier: the Update is then replaced.
	artifactRetryInterval = 3 * time.Second
	// artifactRetryLimit is the longest one.
	artifactRetryLimit = 5 * time.Minute
	// busyInterval is how often an agent that does something else is asked again.
	busyInterval = 2 * time.Second
)

// artifactProblems are the reasons of an artifact that was not accepted.
var artifactProblems = []string{
	pulumiv1.ArtifactFetchFailedReason,
	pulumiv1.ArtifactDigestMismatchReason,
	pulumiv1.ArtifactTooLargeReason,
	pulumiv1.ArtifactUnusableReason,
}

// decideOnFetchError waits with an artifact that the store could not get. Nothing is run, and nothing is given up: the
// file may be right later under the same digest.
func decideOnFetchError(o *observation) decision {
	if problem := (*source.Problem)(nil); errors.As(o.artifact.err, &problem) {
		return decideOnSourceProblem(o, problem)
	}
	reason := pulumiv1.ArtifactFetchFailedReason
	var failed *artifact.FetchError
	if errors.As(o.artifact.err, &failed) {
		switch failed.Kind {
		case artifact.Integrity:
			reason = pulumiv1.ArtifactDigestMismatchReason
		case artifact.TooLarge:
			reason = pulumiv1.ArtifactTooLargeReason
		case artifact.Unusable:
			reason = pulumiv1.ArtifactUnusableReason
		}
	}
	return refusedArtifact(o, reason, o.artifact.err)
}

// decideOnSourceProblem waits for a source that has nothing to run, as far as anything but an edit can mend that.
func decideOnSourceProblem(o *observation, problem *source.Problem) decision {
	switch {
	case problem.Pending:
		return keepingProblem(o, decision{action: actionWait, reason: reasonArtifactPending, wake: bySource, message: problem.Message, brief: true})
	case problem.Permanent:
		return decision{action: actionFinish, reason: autov1alpha1.ConfigInvalidReason, message: problem.Message, wake: byNothing}
	}
	d := refusedArtifact(o, problem.Reason, problem)
	if problem.Watched {
		d.wake = bySource
	}
	return d
}

// decideOnDeliveryError waits with an artifact that the agent did not take.
func decideOnDeliveryError(o *observation, err error) decision {
	switch {
	case errors.Is(err, client.ErrBusy):
		return busy(err)
	case errors.Is(err, client.ErrDigestMismatch):
		return refusedArtifact(o, pulumiv1.ArtifactDigestMismatchReason, err)
	case errors.Is(err, client.ErrTooLarge):
		return refusedArtifact(o, pulumiv1.ArtifactTooLargeReason, err)
	case errors.Is(err, client.ErrInvalid):
		return refusedArtifact(o, pulumiv1.ArtifactUnusableReason, err)
	}
	return transient(o, err, transientInterval)
}

// decideOnStartError handles the agent's refusal to start the operation; client.ErrSourceMissing is not one.
func decideOnStartError(o *observation, err error) decision {
	switch {
	case errors.Is(err, client.ErrBusy):
		return busy(err)
	case errors.Is(err, client.ErrInvalid), errors.Is(err, client.ErrTooLarge):
		return decision{action: actionFinish, reason: autov1alpha1.ConfigInvalidReason, message: err.Error(), wake: byNothing}
	case errors.Is(err, client.ErrPulumiUnsupported):
		// The Workspace says so too, or is about to; another image makes it ready.
		return decision{action: actionWait, reason: autov1alpha1.IncompatibleConfigurationReason, message: err.Error(), wake: byWorkspace,
			after: retryDelay(o, autov1alpha1.IncompatibleConfigurationReason, artifactRetryInterval, artifactRetryLimit)}
	}
	return transient(o, err, transientInterval)
}

// delivering waits for the artifact's way to the agent.
func delivering(o *observation) decision {
	return keepingProblem(o, decision{action: actionWait, reason: reasonSourceDelivery, wake: byDelivery,
		message: "the artifact is being delivered to the agent", after: 2 * deliveryTimeout, brief: true})
}

func busy(err error) decision {
	return decision{action: actionWait, reason: reasonQueued, message: err.Error(), wake: byTime, after: busyInterval}
}

func refusedArtifact(o *observation, reason string, err error) decision {
	return decision{action: actionWait, reason: reason, message: err.Error(), wake: byTime,
		after: retryDelay(o, reason, artifactRetryInterval, artifactRetryLimit)}
}

// keepingProblem leaves the problem of the last attempt in the status while the next attempt is under way. Otherwise the
// status would change twice per attempt, and whoever looks would mostly see that all is well.
func keepingProblem(o *observation, d decision) decision {
	progressing := conditions.Get(o.update, autov1alpha1.UpdateProgressing)
	if progressing != nil && (slices.Contains(artifactProblems, progressing.Reason) || slices.Contains(source.Reasons, progressing.Reason)) {
		d.reason, d.message = progressing.Reason, progressing.Message
	}
	return d
}
