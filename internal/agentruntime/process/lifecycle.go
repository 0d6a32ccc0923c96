package process

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sync/errgroup"
	"golang.org/x/sys/unix"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/wait"

	"github.com/stack-controller/stack-controller/internal/agent/client"
	"github.com/stack-controller/stack-controller/internal/agentruntime"
)

const (
	// shutdownTimeout bounds the shutdown of the Runtime: asking the agents whether they have an operation, and ending those that have none.
	shutdownTimeout = 3 * time.Second
	// shutdownParallel is how many agents are asked at the same time.
	shutdownParallel = 16
	// logInterval is how often the sizes of the logs of running agents are checked.
	logInterval = 10 * time.Second
)

// Start removes the directories of Workspaces that are gone, delivers events, and keeps logs bounded until ctx is done. Then it ends agents
// without an operation; agents with an operation keep running, and the next controller finds them.
func (r *Runtime) Start(ctx context.Context) error {
	var running sync.WaitGroup
	running.Go(func() { r.events.Deliver(ctx) })
	running.Go(func() { wait.UntilWithContext(ctx, r.rotateLogs, logInterval) })
	r.sweep(ctx)
	<-ctx.Done()
	running.Wait()
	r.shutDown()
	return nil
}

// rotateLogs bounds the logs of running agents. A file that another process appends to has no bound of its own.
func (r *Runtime) rotateLogs(context.Context) {
	for s := range r.running() {
		if err := s.dir.rotateLog(); err != nil {
			s.log.Error(err, "cannot rotate the log of an agent")
		}
	}
}

// running returns the agents that run, by their supervisors.
func (r *Runtime) running() map[*supervisor]*handle {
	r.mu.Lock()
	all := maps.Clone(r.supervisors)
	r.mu.Unlock()
	running := map[*supervisor]*handle{}
	for _, s := range all {
		s.mu.Lock()
		if s.phase == phaseRunning {
			running[s] = s.agent
		}
		s.mu.Unlock()
	}
	return running
}

// sweep removes the directories of Workspaces that were deleted while no controller ran.
func (r *Runtime) sweep(ctx context.Context) {
	entries, err := os.ReadDir(r.options.Dir)
	if err != nil {
		r.options.Log.Error(err, "cannot list the directories of workspaces")
		return
	}
	for _, entry := range entries {
		if ctx.Err() != nil {
			return
		}
		if err := r.sweepEntry(ctx, entry.Name()); err != nil && !errors.Is(err, agentruntime.ErrEnding) {
			r.options.Log.Error(err, "cannot remove a workspace that is gone", "directory", entry.Name())
		}
	}
}

func (r *Runtime) sweepEntry(ctx context.Context, name string) error {
	path := filepath.Join(r.options.Dir, name)
	if base, _, found := strings.Cut(name, removedSuffix); found && isDirectoryName(base) {
		return removeTree(path)
	}
	if !isDirectoryName(name) || r.options.Exists == nil {
		return nil
	}
	found, err := directory{path: path}.readRecord()
	if errors.Is(err, os.ErrNotExist) {
		return nil // another controller has just created the directory, or it has nothing in it yet
	}
	if err != nil {
		return err
	}
	key := types.NamespacedName{Namespace: found.Namespace, Name: found.Name}
	exists, err := r.options.Exists(ctx, key, found.UID)
	if err != nil {
		return fmt.Errorf("look for workspace %s: %w", key, err)
	}
	if exists || directoryName(key) != name {
		return nil
	}
	s := r.supervisor(key)
	defer s.mu.Unlock()
	if s.phase != phaseUnknown {
		return nil // a Workspace of that name was created meanwhile; its supervisor handles the directory
	}
	s.log.Info("removing a workspace that is gone")
	return s.discard()
}

// shutDown ends the Runtime. It also ends the agents without an operation, unless another controller uses them.
func (r *Runtime) shutDown() {
	running := r.running()
	defer r.abandon()
	if flock(r.sharedLock, unix.LOCK_EX|unix.LOCK_NB) != nil {
		return
	}
	ctx, cancel := context.WithTimeout(context.Background(), shutdownTimeout)
	defer cancel()
	// From here on, no worker starts an agent.
	r.cancel()
	var group errgroup.Group
	group.SetLimit(shutdownParallel)
	for s, agent := range running {
		group.Go(func() error {
			if err := s.release(ctx, agent); err != nil {
				s.log.Error(err, "cannot end an agent, leaving it alone")
			}
			return nil
		})
	}
	_ = group.Wait()
}

// abandon ends the Runtime and leaves all agents as they are.
func (r *Runtime) abandon() {
	r.cancel()
	_ = r.sharedLock.Close()
}

// release ends the agent if it has no operation, and waits until the agent has ended or ctx is done.
func (s *supervisor) release(ctx context.Context, agent *handle) error {
	connection, err := client.New(s.dir.address(), client.Options{})
	if err != nil {
		return err
	}
	defer connection.Close()
	info, err := connection.GetInfo(ctx)
	if err != nil {
		return err
	}
	for _, operation := range info.GetOperations() {
		if !operation.GetState().Final() {
			s.log.Info("an operation goes on without the controller", "pid", agent.PID)
			return nil
		}
	}
	if err := agent.signal(syscall.SIGTERM); err != nil {
		return err
	}
	select {
	case <-agent.exited:
	case <-ctx.Done():
	}
	return nil
}
