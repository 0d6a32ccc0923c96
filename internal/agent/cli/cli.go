package cli

import (
	"cmp"
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"syscall"
	"time"

	"github.com/blang/semver"
	"github.com/go-logr/logr"
	"golang.org/x/sys/unix"
)

const (
	// outputSize is how much of stdout and of stderr is kept for messages and for classifying a failure, in bytes.
	outputSize = 64 << 10
	// outputDelay is how long to wait for the output of a process that has ended: a descendant that outlives it may hold the pipe open.
	outputDelay = 5 * time.Second
	// InvocationVariable marks all descendants of one CLI process, even if their parent is another process now.
	InvocationVariable = "STACK_CONTROLLER_INVOCATION"
	// exitCancelled is the exit code of a CLI that received a second signal: resource operations that ran at that time are recorded as
	// pending.
	exitCancelled = 8
)

// Environment is a set of variables by name.
type Environment map[string]string

// CLI runs processes of one pulumi CLI. It is safe for concurrent use.
type CLI struct {
	// Path is the absolute path of the CLI, Version its version.
	Path    string
	Version semver.Version

	log logr.Logger
	// eventDir is the directory for the event logs of running processes.
	eventDir       string
	terminateGrace time.Duration
	deadline       *deadline
}

// Options configure a CLI.
type Options struct {
	// Name is the path of the CLI, or its name to look up in PATH. Empty means "pulumi".
	Name string
	// Dir is a directory for files that are needed only while a process runs. New removes its content.
	Dir string
	Log logr.Logger
	// TerminateGrace is how long pulumi may take after a second SIGINT; 0 means 15 s.
	TerminateGrace time.Duration
}

// New returns the CLI. It also makes this process the one that adopts orphaned descendants, so that it can end them.
func New(options Options) (*CLI, error) {
	path, err := exec.LookPath(cmp.Or(options.Name, "pulumi"))
	if err == nil {
		path, err = filepath.Abs(path)
	}
	if err != nil {
		return nil, fmt.Errorf("find the pulumi CLI: %w", err)
	}
	c := &CLI{Path: path, log: options.Log, eventDir: options.Dir, terminateGrace: options.TerminateGrace, deadline: newDeadline()}
	if c.terminateGrace <= 0 {
		c.terminateGrace = terminateGrace
	}
	// Event logs that a crashed agent left must not stay on the disk.
	if err := errors.Join(os.RemoveAll(c.eventDir), os.MkdirAll(c.eventDir, 0o700)); err != nil {
		return nil, fmt.Errorf("remove old event logs: %w", err)
	}
	// This process adopts orphans instead of the init process, so that it can wait for them and none of them stays as a zombie.
	if err := unix.Prctl(unix.PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0); err != nil {
		return nil, fmt.Errorf("become the subreaper of pulumi's descendants: %w", err)
	}
	return c, nil
}

// EndBy makes all processes end before the given time, whatever grace they have: running processes, whether asked to stop or not, and
// processes that start later. It is for an agent that knows when it will be killed. Only the first call has an effect.
func (c *CLI) EndBy(end time.Time) {
	c.deadline.set(end, c.terminateGrace)
}

// OutOfTime reports whether, because of EndBy, there is no time left for another process.
func (c *CLI) OutOfTime() bool {
	select {
	case <-c.deadline.over[0]:
		return true
	default:
		return false
	}
}

// Invocation is one run of the CLI.
type Invocation struct {
	Args  []string
	Dir   string
	Env   Environment
	Stdin io.Reader
	// Stdout and Stderr get all output besides the end of it in the result; nil for none.
	Stdout, Stderr io.Writer
	// Grace is how long the process may take to end after the first SIGINT. 0 means 10 s, for a command that changes no resources.
	Grace time.Duration
	// Started is called with the ID of the process, Ended with how it ended; both may be nil.
	Started func(pid int)
	Ended   func(pid int, result Result)
}

// Result is how a process ended.
type Result struct {
	// Code is the exit code, -1 if a signal ended the process.
	Code int
	// Stopped is true if the agent asked the process to end, Killed if it had to kill the process.
	Stopped, Killed bool
	// Terminated is true if the process was stopped in the middle of resource operations, which are then recorded as pending.
	Terminated bool
	// Stdout and Stderr are the ends of the output, at most 64 KiB each. They are not redacted.
	Stdout, Stderr string
}

// BySignal reports whether a signal ended the process. The process may then have left a lock, pending operations and descendants.
func (r Result) BySignal() bool {
	return r.Code < 0
}

// Run runs the CLI and waits for its end. When ctx is done, it stops the process step by step, see stop. It returns an error only if the
// process could not be run at all.
func (c *CLI) Run(ctx context.Context, inv *Invocation) (Result, error) {
	if err := context.Cause(ctx); err != nil {
		return Result{}, err
	}
	marker := rand.Text()
	stdout, stderr := NewTail(outputSize), NewTail(outputSize)
	cmd := exec.Command(c.Path, append([]string{"--non-interactive"}, inv.Args...)...)
	cmd.Dir, cmd.Stdin = inv.Dir, inv.Stdin
	cmd.Env = append(inv.Env.list(), InvocationVariable+"="+marker)
	cmd.Stdout, cmd.Stderr = both(stdout, inv.Stdout), both(stderr, inv.Stderr)
	cmd.WaitDelay = outputDelay
	// The process gets a process group of its own, so that a Ctrl-C for the agent does not also reach pulumi.
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	if err := cmd.Start(); err != nil {
		return Result{}, fmt.Errorf("start pulumi %s: %w", inv.Args[0], err)
	}
	if inv.Started != nil {
		inv.Started(cmd.Process.Pid)
	}
	ended, stopping := make(chan struct{}), make(chan stopOutcome, 1)
	go func() { stopping <- c.stop(ctx, cmd.Process, marker, inv.Grace, ended) }()
	waitErr := cmd.Wait()
	close(ended)
	outcome := <-stopping

	res := Result{
		Code: cmd.ProcessState.ExitCode(), Stopped: outcome.stopped, Killed: outcome.killed,
		Stdout: stdout.String(), Stderr: stderr.String(),
	}
	res.Terminated = c.terminated(res, outcome)
	if left := endDescendants(marker, cmd.Process.Pid, res.BySignal() || res.Terminated); left > 0 {
		c.log.Info("ended processes that pulumi left behind", "processes", left, "command", inv.Args[0])
	}
	if inv.Ended != nil {
		inv.Ended(cmd.Process.Pid, res)
	}
	if _, exited := errors.AsType[*exec.ExitError](waitErr); waitErr != nil && !exited && !errors.Is(waitErr, exec.ErrWaitDelay) {
		return res, fmt.Errorf("run pulumi %s: %w", inv.Args[0], waitErr)
	}
	return res, nil
}

// cancelledText matches the output of a CLI without exit codes after a first and after a second signal.
var cancelledText = regexp.MustCompile(`(?m)^error: \w+ cancell?ed$`)

// terminated reports whether the CLI ended because of a second signal. For a CLI without exit codes, this is known for the agent's own
// signals, and assumed for signals from elsewhere.
func (c *CLI) terminated(res Result, outcome stopOutcome) bool {
	if exitCodes.In(c.Version) || res.Code <= 0 {
		return res.Code == exitCancelled
	}
	return outcome.twice || !outcome.stopped && cancelledText.MatchString(res.Stderr)
}

// both returns a writer to the tail and, if it is not nil, to the other writer. Errors of the other writer do not matter here.
func both(tail *Tail, other io.Writer) io.Writer {
	if other == nil {
		return tail
	}
	return io.MultiWriter(tail, other)
}

// list returns the environment in the format of os/exec, sorted.
func (e Environment) list() []string {
	entries := make([]string, 0, len(e))
	for _, name := range slices.Sorted(maps.Keys(e)) {
		entries = append(entries, name+"="+e[name])
	}
	return entries
}
