package workspace

import (
	"errors"
	"fmt"
	"time"

	"google.golang.org/grpc/codes"

	autov1alpha1 "github.com/stack-controller/stack-controller/api/auto/v1alpha1"
	"github.com/stack-controller/stack-controller/internal/agent/cli"
	"github.com/stack-controller/stack-controller/internal/agent/client"
	"github.com/stack-controller/stack-controller/internal/runtime"
)

// observation is all that a decision is made from.
type observation struct {
	// deleting is true for a Workspace that waits for the end of its dependents.
	deleting bool
	// agent is what the runtime says about the agent.
	agent runtime.Status
	// pulumiVersion is what the agent says, or said last.
	pulumiVersion string
	// last is the failure of the last operation that the Workspace has to show; the zero value if there is none.
	last failure
	// idleIn is when the Workspace is idle, if no Update comes; zero when it is, or when it will not be.
	idleIn time.Duration
	// structured is true when the configuration has values that are not text.
	structured bool
	// err is why there is no answer, of the runtime or of the agent.
	err error
}

// state is how a Workspace stands.
type state int

const (
	// stateStarting: the agent is on its way. An event of the runtime follows.
	stateStarting state = iota
	// stateReady: operations can run.
	stateReady
	// stateFailing: there is no agent to talk to, and it is tried again, by the runtime (an event follows) or by retry.
	stateFailing
	// stateStalled: as failing, and for so long that somebody should do something; or there is one in which operations cannot work.
	stateStalled
	// stateDeleting: the Workspace waits for its dependents. Its end follows.
	stateDeleting
)

// decision is what the status has to say.
type decision struct {
	state           state
	reason, message string
	address         string
	pulumiVersion   string
	// failedUpdate is the Update whose failure it is; empty when it is not about an operation.
	failedUpdate string
	// retry is an error to return to the work queue, which tries again with a growing delay; nil where an event follows.
	retry error
	// after is when to come back although no event follows; zero where one does.
	after time.Duration
}

// decide chooses what the status says.
func decide(o observation) decision {
	d := decision{address: o.agent.Address, pulumiVersion: o.pulumiVersion, after: o.agent.RetryAfter}
	switch {
	case o.deleting:
		d.state, d.reason, d.message = stateDeleting, autov1alpha1.DeletingReason, "the workspace is being deleted"
	case o.err != nil:
		d.state, d.reason, d.retry, d.after = stateFailing, reasonOf(o.err), o.err, 0
		d.message = fmt.Sprintf("cannot talk to the agent, trying again: %v", o.err)
	case o.agent.Ready && cli.Problem(o.pulumiVersion, o.structured) != "":
		// The agent works, and its CLI cannot do what is wanted. Another image is another generation; where the CLI is one of the machine,
		// the agent rests at times and examines it again when it is asked.
		d.state, d.reason, d.message = stateStalled, autov1alpha1.IncompatibleConfigurationReason, cli.Problem(o.pulumiVersion, o.structured)
	case o.agent.Ready && o.last != failure{}:
		// Operations run; the next one that succeeds makes the Workspace ready.
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

// reasonOf is the reason for an agent that does not answer, or does not accept the controller.
func reasonOf(err error) string {
	var failed *client.Error
	if errors.As(err, &failed) {
		switch failed.Code {
		case codes.Unauthenticated:
			return autov1alpha1.UnauthenticatedReason
		case codes.PermissionDenied:
			return autov1alpha1.PermissionDeniedReason
		}
	}
	return autov1alpha1.ConnectionFailedReason
}
