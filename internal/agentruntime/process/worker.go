package process

import (
	"context"
	"errors"
	"fmt"
	"syscall"
	"time"

	"k8s.io/apimachinery/pkg/types"

	"github.com/stack-controller/stack-controller/internal/backoff"
	"github.com/stack-controller/stack-controller/internal/file"
)

const (
	// The delay before an agent that crashed is started again doubles from defaultRestartDelay to maxRestartDelay.
	defaultRestartDelay = time.Second
	maxRestartDelay     = time.Minute
	// stalledFailures is the number of crashes in a row at which the status becomes Stalled, so that a person looks into it.
	stalledFailures = 5
	// stableAfter is how long an agent has to run to have worked: a crash after that is the first one in a row.
	stableAfter = time.Minute
)

// work does what is wanted until there is nothing to supervise any longer, or until the Runtime ends, which leaves agents alone. It returns
// when an agent rests, and when the directory was removed or cannot be removed.
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

// next returns the UID that is wanted now, and a context that ends when that changes; the context is nil when the Runtime has ended.
func (s *supervisor) next() (context.Context, types.UID) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.interrupt()
	if s.runtime.ctx.Err() != nil {
		s.interrupt = nil
		return nil, ""
	}
	return s.newContext(), s.uid
}

// update runs the change with the lock held. If something else is wanted meanwhile, it does nothing and returns false.
func (s *supervisor) update(ctx context.Context, change func()) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if ctx.Err() != nil {
		return false
	}
	change()
	return true
}

// finish ends the worker, with the phase that it leaves. The lock is held.
func (s *supervisor) finish(last phase) {
	s.interrupt()
	s.interrupt = nil
	s.set(last)
	s.runtime.events.Add(s.key)
}

// runRemoval removes the directory. It returns true when the worker is done.
func (s *supervisor) runRemoval(ctx context.Context) bool {
	err := s.dir.clear(ctx, s.runtime.options.stopGrace, "")
	return s.update(ctx, func() {
		s.removal = err
		s.finish(phaseUnknown)
		if err != nil {
			s.log.Error(err, "cannot remove a workspace")
			return
		}
		s.runtime.remove(s)
	})
}

// runAgent starts or finds the agent and waits until the agent ends. It returns true when the worker is done because the agent rests.
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
		s.update(ctx, func() {
			s.agent, s.worked = agent, true
			s.set(phaseRunning)
			s.runtime.events.Add(s.key)
			s.log.V(1).Info("agent is ready", "pid", agent.PID)
		})
	}
	select {
	case <-ctx.Done():
		return false
	case <-agent.exited:
	}
	clean, words := agent.ending(s.dir.socketGone())
	s.log.V(1).Info("agent "+words, "pid", agent.PID)
	if clean || time.Since(started) >= stableAfter {
		s.mu.Lock()
		s.failures, s.problem = 0, ""
		s.mu.Unlock()
	}
	if !clean {
		s.fail(ctx, words, offset)
		return false
	}
	return s.update(ctx, func() { s.finish(phaseResting) })
}

// isRunning reports whether the agent was found running already.
func (s *supervisor) isRunning(agent *handle) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return agent != nil && s.agent == agent
}

// bringUp returns an agent that listens. offset is where the log of this agent begins. The errors continue a sentence that begins with "the
// agent".
func (s *supervisor) bringUp(ctx context.Context, uid types.UID, agent *handle) (_ *handle, offset int64, err error) {
	for {
		agent, offset, err = s.launch(ctx, uid, agent)
		if !errors.Is(err, errForeign) {
			return agent, offset, err
		}
		if err := s.dir.clear(ctx, s.runtime.options.stopGrace, uid); err != nil {
			return nil, offset, fmt.Errorf("cannot be started before that of an earlier workspace ended: %w", err)
		}
	}
}

// launch starts an agent, unless there is one, and waits until it listens. The number of agents that start at the same time is bounded.
func (s *supervisor) launch(ctx context.Context, uid types.UID, agent *handle) (_ *handle, offset int64, err error) {
	select {
	case s.runtime.slots <- struct{}{}:
		defer func() { <-s.runtime.slots }()
	case <-ctx.Done():
		return nil, 0, ctx.Err()
	}
	options := s.agentOptions()
	if agent == nil {
		offset = s.dir.logSize()
		if agent, err = s.dir.start(ctx, options, s.key, uid); err != nil {
			return nil, offset, fmt.Errorf("could not be started: %w", err)
		}
	}
	if err := s.dir.awaitListen(ctx, agent, options.startTimeout); err != nil {
		if ctx.Err() == nil {
			err = errors.Join(err, stop(ctx, []*handle{agent}, syscall.SIGKILL, 0))
		}
		return nil, offset, err
	}
	if agent.hasExited() {
		_, words := agent.ending(false)
		return nil, offset, fmt.Errorf("%s before it listened", words)
	}
	if err := file.Write(s.dir.worked(), nil); err != nil {
		return nil, offset, fmt.Errorf("could not be recorded: %w", err)
	}
	return agent, offset, nil
}

// fail records why there is no agent, and waits until it is time to start the next one.
func (s *supervisor) fail(ctx context.Context, words string, offset int64) {
	tail := s.runtime.redactor.String(s.dir.logTail(offset))
	var delay time.Duration
	s.update(ctx, func() {
		s.failures++
		delay = restartDelay(s.runtime.options.RestartDelay, s.failures)
		s.problem = fmt.Sprintf("the agent %s (failure %d in a row), it is started again at %s", words, s.failures,
			time.Now().Add(delay).UTC().Format(time.RFC3339))
		if tail != "" {
			s.problem += "; end of its log:\n" + tail
		}
		s.log.Info("agent failed", "problem", words, "failures", s.failures, "delay", delay.String())
		s.set(phaseFailed)
		s.runtime.events.Add(s.key)
	})
	select {
	case <-ctx.Done():
	case <-time.After(delay):
		s.update(ctx, func() { s.set(phaseStarting) })
	}
}

// restartDelay returns how long to wait after this number of crashes in a row.
func restartDelay(first time.Duration, failures int) time.Duration {
	return backoff.Exponential(first, 2, int64(failures), maxRestartDelay)
}

// agentOptions returns the options for an agent that starts now.
func (s *supervisor) agentOptions() Options {
	options := s.runtime.options
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.idleTimeout != nil {
		options.IdleTimeout = s.idleTimeout.Duration
	}
	if options.MaxAgents > 0 && s.runtime.agents.Load() >= int64(options.MaxAgents) {
		options.IdleTimeout = crowdedIdleTimeout
	}
	return options
}
