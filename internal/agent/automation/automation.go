// Package automation runs one Pulumi operation at a time with the pulumi CLI.
//
// It calls the CLI as Pulumi's Automation API does, which is the reference and not a part of it: the API starts seven
// processes for an update, keeps its own time when it stops them, and would double the memory of an idle agent. Here an update is
// exactly one process. What the others would have told comes from elsewhere: the version is asked once, a missing stack shows
// in the exit code of the update, and outputs, counts and errors are in the engine's event log.
//
// Where things are, below Options.Home:
//
//	.pulumi/                         PULUMI_HOME: plugins, credentials
//	tmp/                             TMPDIR
//	.automation/stacks/<key>/        one directory per stack: a project stub, the stack's configuration file as the CLI
//	                                 reads it, and a record of each CLI process that did not end in an orderly way
//	.automation/installed/<digest>   one file per set of dependencies that is installed
//	.automation/left/<key>           what a file of the source tree was before an operation replaced it for people
//	.automation/edited/<name>        what somebody made of such a file
//
// While an operation runs, the source tree is as it was delivered: configuration goes to the stack's directory and is passed with
// --config-file, so that a repeated operation starts from the same files whatever happened in between. What is there for
// people between operations is told in interactive.go.
package automation

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"time"

	"github.com/blang/semver"
	"github.com/go-logr/logr"
)

// Causes of the context that is given to Runner.Run; they decide how an operation that they end is reported.
var (
	// ErrCancelled ends the operation as Cancelled.
	ErrCancelled = errors.New("the operation was cancelled")
	// ErrTimeout ends the operation as Failed with reason Timeout.
	ErrTimeout = errors.New("the operation took longer than its timeout")
	// ErrShutdown ends the operation as Interrupted: it may be run again.
	ErrShutdown = errors.New("the agent is shutting down")
)

// versionTimeout bounds `pulumi version`. It is a matter of 0.2 s, on a busy node of seconds.
const versionTimeout = time.Minute

// Options configure a Runner.
type Options struct {
	// Pulumi is the path of the CLI, or its name to look up in PATH. Empty means "pulumi".
	Pulumi string
	// Home is the directory for everything that has to outlive an operation. It is created when missing.
	Home string
	// Log takes what is worth telling, and every line that pulumi prints, redacted.
	Log logr.Logger
	// Secrets are values that no operation shows: those of the agent's own environment that may be secret.
	Secrets []string
	// InheritEnvironment passes the agent's whole environment on to pulumi, less what is reserved: for an agent in a pod of
	// its own, where the image and the pod's owner say with it how programs run. Otherwise only a short list is passed on.
	InheritEnvironment bool
	// ExclusiveHost says that nobody but this agent runs pulumi under this host name, as in a pod. A lock held by this
	// host and a process that does not exist is then left over, also when nothing is recorded about that process.
	ExclusiveHost bool
	// Workspace is where people who work beside the agent, in its pod, find the program: a link to it, or the directory itself.
	// For their pulumi commands each operation then leaves the stack's configuration beside the program and the stack selected.
	// Operations must not run at the same time then. Empty means that there is nobody.
	Workspace string
}

// Runner runs operations with one CLI. It is safe for concurrent use by operations on different stacks.
type Runner struct {
	options  Options
	log      logr.Logger
	pulumi   string
	version  semver.Version
	hostname string
	crypters *crypters
	// ciphertexts are what the CLI encrypted for earlier operations.
	ciphertexts *ciphertexts
	// terminateGrace is the constant of that name, except in tests.
	terminateGrace time.Duration
	deadline       *deadline
	// started is when this agent was.
	started time.Time

	mu sync.Mutex
	// outputSecrets holds the secret outputs that each stack had last, so that the next operation can hide them as well.
	outputSecrets map[string][]string
}

// New returns a Runner for the CLI. It runs `pulumi version` once, and makes this process the one that inherits orphaned
// descendants, so that it can end them. Whether operations can run with a CLI of that version is for the caller to judge, with
// proto.PulumiProblem.
func New(ctx context.Context, options Options) (*Runner, error) {
	if options.Pulumi == "" {
		options.Pulumi = "pulumi"
	}
	home, err := filepath.Abs(options.Home)
	if err != nil {
		return nil, fmt.Errorf("resolve the home directory %s: %w", options.Home, err)
	}
	options.Home = home
	r := &Runner{
		options: options, log: options.Log, crypters: newCrypters(), ciphertexts: newCiphertexts(), terminateGrace: terminateGrace, deadline: newDeadline(),
		started:       time.Now(),
		outputSecrets: map[string][]string{},
	}
	if r.pulumi, err = findCLI(options.Pulumi); err != nil {
		return nil, err
	}
	if r.hostname, err = os.Hostname(); err != nil {
		return nil, fmt.Errorf("read the host name: %w", err)
	}
	for _, dir := range []string{r.pulumiHome(), r.tempDir(), r.stateDir("stacks"), r.stateDir("installed")} {
		if err := os.MkdirAll(dir, 0o700); err != nil {
			return nil, fmt.Errorf("create the home directory: %w", err)
		}
	}
	if err := r.leftFiles().adopt(); err != nil {
		return nil, fmt.Errorf("look after what an earlier agent left: %w", err)
	}
	if err := becomeSubreaper(); err != nil {
		return nil, err
	}
	return r, r.readVersion(ctx)
}

// Version is the version of the CLI, for example "v3.250.0".
func (r *Runner) Version() string {
	return "v" + r.version.String()
}

func (r *Runner) readVersion(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, versionTimeout)
	defer cancel()
	result, err := r.execute(ctx, &invocation{args: []string{"version"}, dir: r.options.Home, env: r.baseEnvironment()})
	if err != nil {
		return fmt.Errorf("run `%s version`: %w", r.pulumi, err)
	}
	if result.code != 0 {
		return fmt.Errorf("run `%s version`: exit code %d: %s", r.pulumi, result.code, lastLines(result.stderr, 3))
	}
	r.version, err = semver.ParseTolerant(strings.TrimSpace(result.stdout))
	if err != nil {
		return fmt.Errorf("the pulumi CLI %s has no usable version: %w", r.pulumi, err)
	}
	return nil
}

// stateDir is where this package keeps its own files.
func (r *Runner) stateDir(name string) string {
	return filepath.Join(r.options.Home, ".automation", name)
}

func (r *Runner) tempDir() string {
	return filepath.Join(r.options.Home, "tmp")
}

// pulumiHome is the PULUMI_HOME of every process.
func (r *Runner) pulumiHome() string {
	if home := os.Getenv("PULUMI_HOME"); home != "" && r.options.InheritEnvironment {
		return home
	}
	return filepath.Join(r.home(), ".pulumi")
}

// home is the HOME of every process. An image may come with plugins and tools in the home directory of its user.
func (r *Runner) home() string {
	if home := os.Getenv("HOME"); home != "" && r.options.InheritEnvironment {
		return home
	}
	return r.options.Home
}

// rememberSecrets keeps the secret outputs of the stack for the redaction of its next operation.
func (r *Runner) rememberSecrets(key string, values []string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.outputSecrets[key] = values
}

func (r *Runner) rememberedSecrets(key string) []string {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.outputSecrets[key]
}
