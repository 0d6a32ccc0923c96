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
	"github.com/stack-controller/stack-controller/internal/procfs"
	"github.com/stack-controller/stack-controller/internal/runtime"
)

// connectWait bounds how long Connect waits for an agent that it started; that takes tens of milliseconds, and seconds on a machine that has
// much else to do. Whoever waited in vain is told of the agent by Events.
const connectWait = 10 * time.Second

// phase is where a workspace's agent stands.
type phase int

const (
	// phaseUnknown: the directory was not read yet.
	phaseUnknown phase = iota
	// phaseResting: no agent runs and none is wanted now; Connect starts one. Without worker.
	phaseResting
	// phaseStarting: an agent is being found, started, or waited for.
	phaseStarting
	// phaseRunning: the agent listens.
	phaseRunning
	// phaseFailed: the agent crashed or could not be started; it is started again later.
	phaseFailed
	// phaseRemoving: the agent is being ended and the directory removed.
	phaseRemoving
)

// supervisor looks after the agent of one workspace. At most one goroutine, its worker, acts on the process and the
// directory; there is none while no agent runs. All others set what they want and read how it stands.
type supervisor struct {
	runtime *Runtime
	key     types.NamespacedName
	dir     directory
	log     logr.Logger

	mu sync.Mutex
	// uid is the Workspace whose agent is wanted; empty means that the directory shall go.
	uid   types.UID
	phase phase
	// idleTimeout is the Workspace's; nil when it has none. Zero means that the agent never ends by itself.
	idleTimeout *metav1.Duration
	// changed is closed, and replaced, when the phase changes.
	changed chan struct{}
	// interrupt ends what the worker waits for, so that it does what is wanted now; nil without a worker.
	interrupt context.CancelFunc
	// worked says that an agent listened in this directory before.
	worked bool
	// agent is the process while the phase is running, and connection the client for it once somebody asked.
	agent      *handle
	connection *client.Client
	// failures counts the crashes in a row; problem is the last one, in words.
	failures int
	problem  string
	// removal is the error of the last attempt to remove the directory.
	removal error
	// removed says that the Runtime has dropped this supervisor.
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

// ensure makes the Workspace with the UID have an agent, or none that works only on demand. The lock is held.
func (s *supervisor) ensure(ctx context.Context, uid types.UID) runtime.Status {
	s.assign(ctx, uid)
	if s.phase == phaseResting && !s.worked {
		s.begin(phaseStarting, nil)
	}
	return s.status()
}

// connect returns a client, after it started the agent if that was resting. The lock is held; it is released while waiting.
func (s *supervisor) connect(ctx context.Context, uid types.UID) (*client.Client, error) {
	if s.phase == phaseRemoving {
		// Whoever asks does not know of it yet: the agent must not be told to end a second time.
		return nil, fmt.Errorf("connect to workspace %s: %w (it is being removed)", s.key, runtime.ErrNoAgent)
	}
	s.assign(ctx, uid)
	if s.phase == phaseResting && s.worked {
		s.begin(phaseStarting, nil)
	}
	ctx, cancel := context.WithTimeout(ctx, connectWait)
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
		return nil, fmt.Errorf("connect to workspace %s: %w (%s)", s.key, runtime.ErrNoAgent, s.status().Message)
	}
	if s.connection == nil {
		var err error
		if s.connection, err = client.New(s.dir.address(), client.Options{Group: s.runtime.groups.Of(s.key.Namespace)}); err != nil {
			return nil, err
		}
	}
	return s.connection, nil
}

// discard makes the directory go. It returns nil when it is gone, and ErrEnding while that is under way. The lock is held.
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
	return fmt.Errorf("remove workspace %s: %w", s.key, runtime.ErrEnding)
}

// assign says which Workspace the agent is for. The lock is held.
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

// inspect finds out from the directory how the agent stands. An agent that listens is running from now on, without a
// moment in another phase: a new controller must not report as unready what never stopped. The lock is held.
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

// newContext is for a worker, until something else is wanted. The lock is held.
func (s *supervisor) newContext() context.Context {
	ctx, interrupt := context.WithCancel(s.runtime.ctx)
	s.interrupt = interrupt
	return ctx
}

// set changes the phase and wakes those who wait for it. The lock is held.
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

// status says how the agent stands. The lock is held.
func (s *supervisor) status() runtime.Status {
	switch {
	case s.phase == phaseRunning:
		return runtime.Status{Ready: true, Reason: autov1alpha1.SucceededReason, Message: "the agent is running", Address: s.dir.address()}
	case s.phase == phaseResting:
		return runtime.Status{
			Ready: true, Resting: true, Reason: autov1alpha1.SucceededReason, Message: "the agent starts when it is needed", Address: s.dir.address(),
		}
	case s.phase == phaseRemoving:
		return runtime.Status{Reason: autov1alpha1.DeletingReason, Message: "the agent is being ended"}
	case s.phase == phaseFailed || s.failures >= stalledFailures: // until it listens
		return runtime.Status{
			Failing: true, Stalled: s.failures >= stalledFailures,
			Reason: autov1alpha1.InitializationFailedReason, Message: s.problem,
		}
	}
	return runtime.Status{Reason: autov1alpha1.InitializingReason, Message: "the agent is starting"}
}
