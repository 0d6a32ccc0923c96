package process

import (
	"context"
	"errors"
	"fmt"
	"syscall"
	"time"

	"k8s.io/apimachinery/pkg/types"
)

const (
	// The delay before an agent that crashed is started again doubles from the first to the second value.
	minRestartDelay = time.Second
	maxRestartDelay = time.Minute
	// stalledFailures is the number of crashes in a row from which on somebody should have a look.
	stalledFailures = 5
	// An agent that ran for this long has worked: its crash is the first one in a row.
	stableAfter = time.Minute
)

// work does what is wanted until there is nothing to look after any more, or the Runtime ends, which leaves agents alone.
// It ends when an agent rests, and when the directory is removed or cannot be.
func (s *supervisor) work(ctx context.Context, uid types.UID, agent *handle) {
	for {
		var done bool
		if uid == "" {
			done = s.runRemoval(ctx)
		} else {
			done = s.runAgent(ctx, uid, agent)
		}
		if done {
			return
		}
		if ctx, uid = s.next(); ctx == nil {
			return
		}
		agent = nil
	}
}

// next returns what is wanted now, and a context that ends when that changes; nil when the Runtime has ended.
func (s *supervisor) next() (context.Context, types.UID) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.interrupt()
	if s.runtime.ctx.Err() != nil {
		s.interrupt = nil
		return nil, ""
	}
	ctx, interrupt := context.WithCancel(s.runtime.ctx)
	s.interrupt = interrupt
	return ctx, s.uid
}

// finish ends the worker in the phase, unless something else is wanted meanwhile.
func (s *supervisor) finish(ctx context.Context, last phase) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if ctx.Err() != nil {
		return false
	}
	s.leave(last)
	return true
}

// leave ends the worker in the phase. The lock is held.
func (s *supervisor) leave(last phase) {
	s.interrupt()
	s.interrupt = nil
	s.set(last)
	s.runtime.notify(s.key)
}

// runRemoval removes the directory. It returns true when the worker is done.
func (s *supervisor) runRemoval(ctx context.Context) bool {
	err := s.dir.clear(ctx, s.runtime.options.StopGrace, "")
	s.mu.Lock()
	defer s.mu.Unlock()
	if ctx.Err() != nil {
		return false
	}
	s.removal = err
	s.leave(phaseUnknown)
	if err != nil {
		s.log.Error(err, "cannot remove a workspace")
		return true
	}
	s.runtime.forget(s)
	return true
}

// runAgent starts or finds the agent and stays with it until it ends. It returns true when the worker is done: the agent
// rests.
func (s *supervisor) runAgent(ctx context.Context, uid types.UID, agent *handle) bool {
	started := time.Now()
	var offset int64
	if !s.isRunning(agent) {
		var err error
		agent, offset, err = s.bringUp(ctx, uid, agent)
		if ctx.Err() != nil {
			return false
		}
		if err != nil {
			s.fail(ctx, err.Error(), offset)
			return false
		}
		s.ready(ctx, agent)
	}
	select {
	case <-ctx.Done():
		return false
	case <-agent.exited:
	}
	clean, words := agent.ending(s.dir.socketGone())
	s.log.V(1).Info("agent "+words, "pid", agent.PID)
	if time.Since(started) >= stableAfter {
		s.reset()
	}
	if !clean {
		s.fail(ctx, words, offset)
		return false
	}
	s.reset()
	return s.finish(ctx, phaseResting)
}

// bringUp returns an agent that listens. offset is where its log begins.
func (s *supervisor) bringUp(ctx context.Context, uid types.UID, agent *handle) (_ *handle, offset int64, err error) {
	for {
		agent, offset, err = s.launch(ctx, uid, agent)
		if !errors.Is(err, errForeign) {
			return agent, offset, err
		}
		if err := s.dir.clear(ctx, s.runtime.options.StopGrace, uid); err != nil {
			return nil, offset, fmt.Errorf("cannot be started before that of an earlier workspace ended: %w", err)
		}
	}
}

// launch starts an agent, unless there is one, and waits until it listens. Few agents start at the same time. Its errors
// continue a sentence that begins with "the agent".
func (s *supervisor) launch(ctx context.Context, uid types.UID, agent *handle) (_ *handle, offset int64, err error) {
	select {
	case s.runtime.slots <- struct{}{}:
		defer func() { <-s.runtime.slots }()
	case <-ctx.Done():
		return nil, 0, ctx.Err()
	}
	options := s.runtime.options
	if agent == nil {
		offset = s.dir.logSize()
		if agent, err = s.dir.start(ctx, options, s.key, uid); err != nil {
			return nil, offset, fmt.Errorf("could not be started: %w", err)
		}
	}
	if err := s.dir.awaitListen(ctx, agent, options.StartTimeout); err != nil {
		if ctx.Err() == nil {
			err = errors.Join(err, stop(ctx, []*handle{agent}, syscall.SIGKILL, 0))
		}
		return nil, offset, err
	}
	select {
	case <-agent.exited:
		_, words := agent.ending(false)
		return nil, offset, fmt.Errorf("%s before it listened", words)
	default:
	}
	if err := s.dir.markWorked(ctx); err != nil {
		return nil, offset, fmt.Errorf("could not be recorded: %w", err)
	}
	return agent, offset, nil
}

// isRunning tells whether the agent was found running already.
func (s *supervisor) isRunning(agent *handle) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return agent != nil && s.agent == agent
}

// ready says that the agent listens.
func (s *supervisor) ready(ctx context.Context, agent *handle) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if ctx.Err() != nil {
		return // not wanted any more
	}
	s.agent, s.worked = agent, true
	s.set(phaseRunning)
	s.runtime.notify(s.key)
	s.log.V(1).Info("agent is ready", "pid", agent.PID)
}

// reset forgets earlier crashes.
func (s *supervisor) reset() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.failures, s.problem = 0, ""
}

// fail says why there is no agent and waits until it is time to start the next one.
func (s *supervisor) fail(ctx context.Context, words string, offset int64) {
	delay := s.failed(ctx, words, s.runtime.redactor.String(s.dir.logTail(offset)))
	timer := time.NewTimer(delay)
	defer timer.Stop()
	select {
	case <-ctx.Done():
		return
	case <-timer.C:
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if ctx.Err() == nil {
		s.set(phaseStarting)
	}
}

// failed records the failure and returns for how long to wait.
func (s *supervisor) failed(ctx context.Context, words, tail string) time.Duration {
	s.mu.Lock()
	defer s.mu.Unlock()
	if ctx.Err() != nil {
		return 0
	}
	s.failures++
	delay := restartDelay(s.failures)
	s.problem = fmt.Sprintf("the agent %s (failure %d in a row), it is started again at %s", words, s.failures,
		time.Now().Add(delay).UTC().Format(time.RFC3339))
	if tail != "" {
		s.problem += "; end of its log:\n" + tail
	}
	s.log.Info("agent failed", "problem", words, "failures", s.failures, "delay", delay.String())
	s.set(phaseFailed)
	s.runtime.notify(s.key)
	return delay
}

// restartDelay is how long to wait after so many crashes in a row.
func restartDelay(failures int) time.Duration {
	delay := minRestartDelay
	for range failures - 1 {
		if delay *= 2; delay >= maxRestartDelay {
			return maxRestartDelay
		}
	}
	return delay
}
