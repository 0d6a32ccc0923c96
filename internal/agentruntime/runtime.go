// Package agentruntime defines how the agents of workspaces are run. An implementation gives every Workspace one agent, keeps the agent alive
// and reports how to reach it. The controllers know nothing else about where agents run.
package agentruntime

import (
	"context"
	"errors"
	"fmt"
	"time"

	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/event"

	autov1alpha1 "github.com/stack-controller/stack-controller/api/auto/v1alpha1"
	"github.com/stack-controller/stack-controller/internal/agent/client"
)

// ErrNoAgent is returned by Connect when the workspace has no agent: it was never started, ended, or was removed.
var ErrNoAgent = errors.New("the workspace has no agent")

// ErrResting is the ErrNoAgent of an agent that ended because it had nothing to do. Wake starts it. Only agents that are processes rest so: a
// pod goes when its Workspace is idle, and Ensure brings it back.
var ErrResting = fmt.Errorf("%w right now, because it had nothing to do", ErrNoAgent)

// ErrEnding is returned by Delete while the agent ends and what belongs to it is removed. An event follows.
var ErrEnding = errors.New("the agent is ending")

// Status is the state of the agent of a workspace.
type Status struct {
	// Ready is true when the agent answers calls, or is not running because it has nothing to do: see Resting.
	Ready bool
	// Resting is true when no agent runs because there is nothing to do. It is set together with Ready. Wake starts an agent, unless Reason is
	// autov1alpha1.IdleReason: then the next Ensure for a Workspace that is not idle starts one.
	Resting bool
	// Failing is true when something is wrong; a start that only takes its time is not wrong. The runtime tries again.
	Failing bool
	// Stalled is true when the agent has failed so often that a person should look into it, or when it can never start as things are. The
	// runtime tries again, but seldom, where that can help.
	Stalled bool
	// Reason is the machine-readable cause, in CamelCase, fit for a condition.
	Reason string
	// Message explains the status to people. It holds no secrets.
	Message string
	// Address is where the agent listens, as the Workspace's status shows it: "unix:/path" or "host:port". Empty while
	// there is no agent.
	Address string
	// RetryAfter is the time after which Ensure has to be called again because no event reports what it waits for; zero when an event does.
	RetryAfter time.Duration
}

// Runtime runs agents. Implementations are safe for concurrent use. Agents outlive the controller: a new controller finds the agents of its
// predecessor, and the operations in them.
type Runtime interface {
	// Ensure creates or updates the agent of the workspace and returns its state. It never waits for the agent: Events reports later changes.
	// It returns an error for what should be tried again; for a workspace that can never have an agent, it returns a Status that is not ready.
	// idle is true for a workspace that has had nothing to do for its idle timeout: its agent may then be ended, once the agent agrees.
	Ensure(ctx context.Context, workspace *autov1alpha1.Workspace, idle bool) (Status, error)

	// Connect returns a client for the agent of the workspace. The connection belongs to the runtime, which shares it between callers: they
	// must not close it. Connect starts no agent that rests; it waits briefly for one that is being started. Without an agent, it fails
	// with ErrNoAgent, or with ErrResting.
	Connect(ctx context.Context, workspace *autov1alpha1.Workspace) (*client.Client, error)

	// Wake is Connect that starts an agent that rests first, and waits briefly for it.
	Wake(ctx context.Context, workspace *autov1alpha1.Workspace) (*client.Client, error)

	// Delete ends the agent of the workspace and removes all that belongs to it. It returns no error when there is nothing to remove. The
	// agent ends gracefully, which may take minutes. Delete does not wait: it returns ErrEnding until all is gone, then an event follows, and
	// the next call returns nil.
	Delete(ctx context.Context, key types.NamespacedName) error

	// Events reports the workspaces whose agent appeared, changed or ended. The objects carry name and namespace only.
	Events() <-chan event.GenericEvent
}
