package automation

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"io"
	"os/exec"
	"syscall"
	"time"
)

const (
	// tailSize is how much of stdout and of stderr is kept for a message and for classifying a failure.
	tailSize = 64 << 10
	// outputDelay is how long the output of a process that ended is waited for: a descendant that outlives it may hold the
	// pipe open.
	outputDelay = 5 * time.Second
	// invocationVariable marks all descendants of one CLI process, whoever their parent has become.
	invocationVariable = "STACK_CONTROLLER_INVOCATION"
)

// invocation is one run of the CLI.
type invocation struct {
	args  []string
	dir   string
	env   environment
	stdin io.Reader
	// stdout and stderr get all output besides the tail in the result; nil for none.
	stdout, stderr io.Writer
	// grace is how long the process may take to end after a first SIGINT; 0 means helperGrace.
	grace time.Duration
	// started is told the ID of the process, ended how it ended; both may be nil.
	started func(pid int)
	ended   func(pid int, res result)
}

// result is how a CLI process ended.
type result struct {
	// code is the exit code, -1 when a signal ended the process.
	code int
	// stopped says that we asked the process to end; killed that we had to end it by force.
	stopped, killed bool
	// stdout and stderr are the ends of what it printed, at most tailSize bytes each, not redacted.
	stdout, stderr string
}

// bySignal tells whether a signal ended the process: it may have left a lock, pending operations and descendants.
func (r result) bySignal() bool {
	return r.code < 0
}

// execute runs the CLI and waits for its end. When ctx ends it stops the process step by step, see stop. An error means
// that it could not be run at all.
func (r *Runner) execute(ctx context.Context, inv *invocation) (result, error) {
	if err := context.Cause(ctx); err != nil {
		return result{}, err
	}
	marker := rand.Text()
	stdout, stderr := newTail(tailSize), newTail(tailSize)
	cmd := exec.Command(r.pulumi, append([]string{"--non-interactive"}, inv.args...)...)
	cmd.Dir = inv.dir
	cmd.Env = append(inv.env.list(), invocationVariable+"="+marker)
	cmd.Stdin = inv.stdin
	cmd.Stdout, cmd.Stderr = both(stdout, inv.stdout), both(stderr, inv.stderr)
	cmd.WaitDelay = outputDelay
	// A group of its own, so that a Ctrl-C meant for the agent does not reach pulumi behind our back.
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	if err := cmd.Start(); err != nil {
		return result{}, fmt.Errorf("start pulumi %s: %w", inv.args[0], err)
	}
	if inv.started != nil {
		inv.started(cmd.Process.Pid)
	}
	ended := make(chan struct{})
	stopping := make(chan stopOutcome, 1)
	grace := inv.grace
	if grace <= 0 {
		grace = helperGrace
	}
	stopper := &stopper{process: cmd.Process, marker: marker, grace: grace, terminate: r.terminateGrace, deadline: r.deadline, ended: ended}
	go func() { stopping <- stopper.stop(ctx) }()
	waitErr := cmd.Wait()
	close(ended)
	outcome := <-stopping

	res := result{code: cmd.ProcessState.ExitCode(), stopped: outcome.stopped, killed: outcome.killed, stdout: stdout.String(), stderr: stderr.String()}
	if left := endDescendants(marker, cmd.Process.Pid, res.bySignal() || res.code == exitCancelled); left > 0 {
		r.log.Info("ended processes that pulumi left behind", "processes", left, "command", inv.args[0])
	}
	if inv.ended != nil {
		inv.ended(cmd.Process.Pid, res)
	}
	var exit *exec.ExitError
	if waitErr != nil && !errors.As(waitErr, &exit) && !errors.Is(waitErr, exec.ErrWaitDelay) {
		return res, fmt.Errorf("run pulumi %s: %w", inv.args[0], waitErr)
	}
	return res, nil
}

// both writes to the tail and, when there is one, to the other writer, whose errors do not matter here.
func both(tail *tail, other io.Writer) io.Writer {
	if other == nil {
		return tail
	}
	return io.MultiWriter(tail, other)
}
