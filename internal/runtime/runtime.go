// Package runtime says where the agents of workspaces live. An implementation gives every Workspace one agent, keeps
// it alive and says how to reach it; the controllers know nothing else about it.
package runtime

import (
	"context"
	"errors"
	"time"

	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/event"

	autov1alpha1 "github.com/stack-controller/stack-controller/api/auto/v1alpha1"
	"github.com/stack-controller/stack-controller/internal/agent/client"
)

// ErrNoAgent is returned by Connect when the workspace has no agent: it was never started, ended, or was removed.
var ErrNoAgent = errors.New("the workspace has no agent")

// ErrEnding is returned by Delete while the agent is being ended and what belongs to it removed. An event follows.
var ErrEnding = errors.New("the agent is ending")

// Status is how the agent of a workspace stands.
type Status struct {
	// Ready says that the agent answers calls, at once or after Connect started it.
	Ready bool
	// Resting says that no agent runs because nothing is to be done. It is set together with Ready. Connect starts one, unless the reason
	// is autov1alpha1.IdleReason: then the next Ensure for a Workspace that is not idle does.
	Resting bool
	// Failing says that something is wrong, other than that a start takes its time. It is tried again.
	Failing bool
	// Stalled says that the agent has failed so often that somebody should have a look, or that it can never start as things
	// are. What can be tried again is, seldom.
	Stalled bool
	// Reason is the machine-readable cause, in CamelCase, fit for a condition.
	Reason string
	// Message explains the status to people. It holds no secrets.
	Message string
	// Address is where the agent listens, as the Workspace's status shows it: "unix:/path" or "host:port". Empty while
	// there is no agent.
	Address string
	// RetryAfter is when Ensure has to be called again because no event follows what is waited for; zero when one does.
	RetryAfter time.Duration
}

// Runtime runs agents. Implementations are safe for concurrent use, and their agents outlive the controller: a new
// controller finds the agents, and the operations in them, that its predecessor left.
type Runtime interface {
	// Ensure makes the agent of the workspace exist and says how it stands. It never waits for the agent: a later
	// change arrives through Events. The error is for what should be tried again; a workspace that can never have an
	// agent is a Status that is not ready. An idle workspace has had nothing to do for its idle timeout: its agent may go, once it
	// agrees.
	Ensure(ctx context.Context, workspace *autov1alpha1.Workspace, idle bool) (Status, error)

	// Connect returns a client for the agent of the workspace. The connection belongs to the runtime, which shares it
	// between callers: they must not close it. An agent that ended because nobody needed it is started again, for which
	// Connect waits briefly; when there is none it fails with ErrNoAgent.
	Connect(ctx context.Context, workspace *autov1alpha1.Workspace) (*client.Client, error)

	// Delete ends the agent of the workspace and removes all that belongs to it. It is not an error when there is
	// nothing to remove. Ending is graceful and may take minutes, which Delete does not wait for: it returns ErrEnding
	// meanwhile, an event follows, and it returns nil when all is gone.
	Delete(ctx context.Context, key types.NamespacedName) error

	// Events reports the workspaces whose agent appeared, changed or ended. The objects carry name and namespace only.
	Events() <-chan event.GenericEvent
}
