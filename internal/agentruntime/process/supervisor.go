package process

import (
	"context"
	"errors"
	"fmt"
	"os"
	"sync"
	"time"

	"github.com/go-logr/logr"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	autov1alpha1 "github.com/stack-controller/stack-controller/api/auto/v1alpha1"
	"github.com/stack-controller/stack-controller/internal/agent/client"
	"github.com/stack-controller/stack-controller/internal/agentruntime"
	"github.com/stack-controller/stack-controller/internal/procfs"
)

// startWait bounds how long Connect and Wake wait for an agent that is being started. A start takes tens of milliseconds, and seconds on a
// busy machine. If that was not long enough, Events reports the workspace later.
const startWait = 10 * time.Second

// phase is the state of the agent of a workspace.
type phase int

const (
	// phaseUnknown: the directory was not read yet.
	phaseUnknown phase = iota
	// phaseResting: no agent runs and none is needed now; Wake starts one. There is no worker.
	phaseResting
	// phaseStarting: the worker is looking for an agent, starting one, or waiting until it listens.
	phaseStarting
	// phaseRunning: the agent listens.
	phaseRunning
	// phaseFailed: the agent crashed or could not be started; it is started again later.
	phaseFailed
	// phaseRemoving: the agent is being ended and the directory removed.
	phaseRemoving
)

// supervisor supervises the agent of one workspace. At most one goroutine, its worker, acts on the process and the directory; there is none
// in phaseUnknown and phaseResting. All other goroutines only set what they want and read the state.
type supervisor struct {
	runtime *Runtime
	key     types.NamespacedName
	dir     directory
	log     logr.Logger

	mu sync.Mutex
	// uid is the UID of the Workspace whose agent is wanted. If it is empty, the directory is to be removed.
	uid   types.UID
	phase phase
	// idleTimeout is the idle timeout of the Workspace; nil when it has none. Zero means that the agent never ends by itself.
	idleTimeout *metav1.Duration
	// changed is closed, and replaced, when the phase changes.
	changed chan struct{}
	// interrupt ends what the worker waits for, so that it does what is wanted now; nil when there is no worker.
	interrupt context.CancelFunc
	// worked is true when an agent has listened in this directory before.
	worked bool
	// agent is the process in phaseRunning. connection is the client for it, once a caller asked for one.
	agent      *handle
	connection *client.Client
	// failures counts the crashes in a row. problem describes the last one.
	failures int
	problem  string
	// removal is the error of the last attempt to remove the directory.
	removal error
	// removed is true when the Runtime has dropped this supervisor.
	removed bool
}

func newSupervisor(r *Runtime, key types.NamespacedName) *supervisor {
	return &supervisor{
		runtime: r,
		key:     key,
		dir:     r.directory(key),
		log:     r.options.Log.WithValues("workspace", key),
		changed: make(chan struct{}),
	}
}

// ensure starts an agent for the Workspace with the UID, unless one runs, or has worked before and can be started on demand. It returns the
// status. The lock is held.
func (s *supervisor) ensure(ctx context.Context, uid types.UID) agentruntime.Status {
	s.assign(ctx, uid)
	if s.phase == phaseResting && !s.worked {
		s.begin(phaseStarting, nil)
	}
	return s.status()
}

// connect returns a client. With wake, it first starts an agent that is resting. The lock is held; it is released while connect waits for an
// agent that is being started.
func (s *supervisor) connect(ctx context.Context, uid types.UID, wake bool) (*client.Client, error) {
	if s.phase == phaseRemoving {
		// The caller does not know of the removal yet. Assigning the Workspace now would interrupt the removal, and the next removal would signal
		// the agent a second time.
		return nil, fmt.Errorf("connect to workspace %s: %w (it is being removed)", s.key, agentruntime.ErrNoAgent)
	}
	s.assign(ctx, uid)
	if resting := s.phase == phaseResting && s.worked; resting && !wake {
		return nil, fmt.Errorf("connect to workspace %s: %w", s.key, agentruntime.ErrResting)
	} else if resting {
		s.begin(phaseStarting, nil)
	}
	ctx, cancel := context.WithTimeout(ctx, startWait)
	defer cancel()
	for s.phase == phaseStarting && ctx.Err() == nil {
		changed := s.changed
		s.mu.Unlock()
		select {
		case <-changed:
		case <-ctx.Done():
		}
		s.mu.Lock()
	}
	if s.phase != phaseRunning || s.uid != uid {
		return nil, fmt.Errorf("connect to workspace %s: %w (%s)", s.key, agentruntime.ErrNoAgent, s.status().Message)
	}
	if s.connection == nil {
		var err error
		if s.connection, err = client.New(s.dir.address(), client.Options{Group: s.runtime.groups.Of(s.key.Namespace)}); err != nil {
			return nil, err
		}
	}
	return s.connection, nil
}

// discard has the directory removed. It returns nil when the directory is gone, and ErrEnding while the removal is in progress. The lock is
// held.
func (s *supervisor) discard() error {
	s.uid = ""
	switch {
	case s.removal != nil:
		err := s.removal
		s.removal = nil
		return err
	case s.phase == phaseRemoving:
	case s.interrupt != nil:
		s.set(phaseRemoving)
		s.interrupt()
	default:
		found, err := exists(s.dir.path)
		if err != nil || !found {
			s.runtime.remove(s)
			return err
		}
		s.begin(phaseRemoving, nil)
	}
	return fmt.Errorf("remove workspace %s: %w", s.key, agentruntime.ErrEnding)
}

// assign sets the Workspace that the agent is for. The lock is held.
func (s *supervisor) assign(ctx context.Context, uid types.UID) {
	if s.uid == uid && s.phase != phaseUnknown {
		return
	}
	s.uid, s.failures, s.problem = uid, 0, ""
	if s.interrupt == nil {
		s.inspect(ctx)
		return
	}
	s.set(phaseStarting)
	s.interrupt()
}

// inspect sets the phase from what is in the directory. An agent that listens is in phaseRunning at once, without another phase before: a
// new controller must not report an agent as unready that never stopped. The lock is held.
func (s *supervisor) inspect(ctx context.Context) {
	found, err := s.dir.readRecord()
	worked, _ := exists(s.dir.worked())
	s.worked = worked && err == nil && found.UID == s.uid
	switch {
	case errors.Is(err, os.ErrNotExist):
		s.set(phaseResting)
		return
	case err != nil || found.UID != s.uid || found.Starting:
		s.begin(phaseStarting, nil)
		return
	}
	agent, err := openHandle(found.Agent)
	switch {
	case errors.Is(err, procfs.ErrNotRunning):
		s.set(phaseResting)
	case err == nil && s.dir.listens(ctx):
		s.log.V(1).Info("found the agent of an earlier controller", "pid", agent.PID)
		s.agent = agent
		s.begin(phaseRunning, agent)
	default:
		s.begin(phaseStarting, agent)
	}
}

// begin starts the worker. The lock is held and there is no worker.
func (s *supervisor) begin(first phase, agent *handle) {
	s.set(first)
	go s.work(s.newContext(), s.uid, agent)
}

// newContext returns the context for a worker. It ends when something else is wanted. The lock is held.
func (s *supervisor) newContext() context.Context {
	ctx, interrupt := context.WithCancel(s.runtime.ctx)
	s.interrupt = interrupt
	return ctx
}

// set changes the phase and wakes the goroutines that wait for a change. The lock is held.
func (s *supervisor) set(next phase) {
	switch {
	case next == phaseRunning && s.phase != phaseRunning:
		s.runtime.agents.Add(1)
	case next != phaseRunning && s.phase == phaseRunning:
		s.runtime.agents.Add(-1)
	}
	if next != phaseRunning {
		s.agent = nil
		if s.connection != nil {
			_ = s.connection.Close()
			s.connection = nil
		}
	}
	s.phase = next
	close(s.changed)
	s.changed = make(chan struct{})
}

// status returns the status of the agent. The lock is held.
func (s *supervisor) status() agentruntime.Status {
	switch {
	case s.phase == phaseRunning:
		return agentruntime.Status{Ready: true, Reason: autov1alpha1.SucceededReason, Message: "the agent is running", Address: s.dir.address()}
	case s.phase == phaseResting:
		return agentruntime.Status{
			Ready: true, Resting: true, Reason: autov1alpha1.SucceededReason, Message: "the agent starts when it is needed", Address: s.dir.address(),
		}
	case s.phase == phaseRemoving:
		return agentruntime.Status{Reason: autov1alpha1.DeletingReason, Message: "the agent is being ended"}
	case s.phase == phaseFailed || s.failures >= stalledFailures: // also while it is started again, until it listens
		return agentruntime.Status{
			Failing: true, Stalled: s.failures >= stalledFailures,
			Reason: autov1alpha1.InitializationFailedReason, Message: s.problem,
		}
	}
	return agentruntime.Status{Reason: autov1alpha1.InitializingReason, Message: "the agent is starting"}
}
