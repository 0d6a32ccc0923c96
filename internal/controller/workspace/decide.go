package workspace

import (
	"errors"
	"fmt"
	"net/url"
	"time"

	"google.golang.org/grpc/codes"
	apierrors "k8s.io/apimachinery/pkg/api/errors"

	autov1alpha1 "github.com/stack-controller/stack-controller/api/auto/v1alpha1"
	"github.com/stack-controller/stack-controller/internal/agent/cli"
	"github.com/stack-controller/stack-controller/internal/agent/client"
	"github.com/stack-controller/stack-controller/internal/agentruntime"
)

// observation is everything that a decision is made from.
type observation struct {
	// deleting is true for a Workspace that waits for the end of its dependents.
	deleting bool
	// agent is the status that the runtime returned for the agent.
	agent agentruntime.Status
	// pulumiVersion is the version that the agent reported now, or last.
	pulumiVersion string
	// last is the failure of the last operation, if the Workspace has to show it; otherwise the zero value.
	last failure
	// idleIn is the time until the Workspace is idle, if no Update comes; zero when it is idle already, or will not be.
	idleIn time.Duration
	// idle is true when the status says that the Workspace is idle, and no Update needs its agent. ready is true when it says that operations can
	// run.
	idle, ready bool
	// works is true when the status is for the last edit, and that of an agent that runs: not that of an idle Workspace.
	works bool
	// structured is true when the configuration has values that are not text.
	structured bool
	// err is the error of the runtime or of the agent; nil when both answered.
	err error
}

// state is the state of a Workspace.
type state int

const (
	// stateStarting: the agent is starting. An event of the runtime follows.
	stateStarting state = iota
	// stateReady: operations can run.
	stateReady
	// stateFailing: the controller cannot talk to an agent. The runtime tries again (an event follows), or the work queue does
	// (decision.retry).
	stateFailing
	// stateStalled: as stateFailing, but for so long that a human has to do something; or the agent works and operations cannot.
	stateStalled
	// stateDeleting: the Workspace waits until its dependents are deleted. Its own deletion follows.
	stateDeleting
	// stateUnchanged: what was observed says nothing about the Workspace, whose status stays as it is.
	stateUnchanged
)

// decision is what the status has to show.
type decision struct {
	state           state
	reason, message string
	address         string
	pulumiVersion   string
	// failedUpdate is the name of the Update whose failure the Workspace shows; empty when it shows no failure of an operation.
	failedUpdate string
	// retry is an error to return to the work queue, which tries again with a growing delay; nil when an event follows.
	retry error
	// after is the time to the next reconcile when no event follows; zero when one does.
	after time.Duration
}

// decide chooses what the status shows.
func decide(o observation) decision {
	d := decision{address: o.agent.Address, pulumiVersion: o.pulumiVersion, after: o.agent.RetryAfter}
	switch {
	case o.deleting:
		d.state, d.reason, d.message = stateDeleting, autov1alpha1.DeletingReason, "the workspace is being deleted"
	case o.tellsNothing():
		d.state, d.retry = stateUnchanged, o.err
		if o.err != nil {
			d.after = 0
		}
	case o.err != nil:
		d.state, d.reason, d.retry, d.after = stateFailing, reasonOf(o.err), o.err, 0
		d.message = fmt.Sprintf("cannot talk to the agent, trying again: %v", o.err)
		if !o.agent.Ready {
			d.message = fmt.Sprintf("cannot look after the agent, trying again: %v", o.err)
		}
	case o.agent.Ready && cli.Problem(o.pulumiVersion, o.structured) != "":
		// The agent works, but its CLI lacks what the Workspace needs. In a pod, another CLI means another image and thus another generation.
		// Where the CLI is the one of the machine, the agent rests at times, and askVersion then starts one that examines the CLI again.
		d.state, d.reason, d.message = stateStalled, autov1alpha1.IncompatibleConfigurationReason, cli.Problem(o.pulumiVersion, o.structured)
	case o.agent.Ready && o.last != failure{}:
		// Operations can run, and the next one that succeeds makes the Workspace ready.
		d.state, d.reason, d.message, d.failedUpdate = stateStalled, o.last.reason, o.last.message, o.last.update
	case o.agent.Ready && o.agent.Reason == autov1alpha1.IdleReason:
		d.state, d.reason, d.message = stateReady, o.agent.Reason, o.agent.Message
	case o.agent.Ready:
		d.state, d.reason, d.message = stateReady, autov1alpha1.SucceededReason, "the workspace is ready"
		if o.idleIn > 0 && (d.after == 0 || o.idleIn < d.after) {
			d.after = o.idleIn
		}
	case o.agent.Stalled:
		d.state, d.reason, d.message = stateStalled, o.agent.Reason, o.agent.Message
	case o.agent.Failing:
		d.state, d.reason, d.message = stateFailing, o.agent.Reason, o.agent.Message
	default:
		d.state, d.reason, d.message = stateStarting, o.agent.Reason, o.agent.Message
	}
	return d
}

// tellsNothing reports whether the status should stay as it is. Nobody needs the agent of an idle Workspace: a request that failed for it is only
// repeated, unless the spec has to be changed. A status that is not ready would end the idleness, and start the pod. Nor does a call say anything
// that was given up because other agents of the namespace do not answer, or because the API server does not answer: the agent that
// was ready works without it, unless the Workspace was edited. That of an idle Workspace, which an Update needs, does not: it is to be started.
func (o observation) tellsNothing() bool {
	failed := o.err != nil || !o.agent.Ready && !o.agent.Stalled
	return o.idle && failed || o.ready && (errors.Is(o.err, client.ErrUnasked) || o.works && !o.agent.Ready && isServerBusy(o.err))
}

// isServerBusy reports whether the API server does not answer a request now, but may answer the next one.
func isServerBusy(err error) bool {
	_, unreachable := errors.AsType[*url.Error](err)
	return unreachable || apierrors.IsTooManyRequests(err) || apierrors.IsServerTimeout(err) || apierrors.IsTimeout(err) ||
		apierrors.IsServiceUnavailable(err) || apierrors.IsInternalError(err)
}

// reasonOf returns the reason for an agent that does not answer, or rejects the controller.
func reasonOf(err error) string {
	if failed, ok := errors.AsType[*client.Error](err); ok {
		switch failed.Code {
		case codes.Unauthenticated:
			return autov1alpha1.UnauthenticatedReason
		case codes.PermissionDenied:
			return autov1alpha1.PermissionDeniedReason
		}
	}
	return autov1alpha1.ConnectionFailedReason
}
