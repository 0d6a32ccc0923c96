// Package operation runs one Pulumi operation at a time with the pulumi CLI.
//
// It calls the CLI as Pulumi's Automation API does, which is the reference, but does not contain that API: the API starts seven processes
// for an update, keeps its own time when it stops them, and would double the memory of an idle agent. Here an update is exactly one
// process. What the other processes would find out comes from elsewhere: the version is read once, a missing stack shows in the exit code
// of the update, and outputs, counts and errors are in the engine's events.
//
// Where things are, below Options.Home:
//
//	.pulumi/                         PULUMI_HOME: plugins, credentials
//	tmp/                             TMPDIR
//	.automation/stacks/<key>/        one directory per stack: a project stub, the stack's configuration file as the CLI
//	                                 reads it, and a record of each CLI process that did not end in an orderly way; while an
//	                                 operation runs that saves or carries out a plan, Pulumi's file
//	.automation/installed/<digest>   one file per set of dependencies that is installed
//	.automation/node/                what Node.js has compiled
//	.automation/events/<random>/     the engine's events while an operation runs, of a CLI that cannot stream them
//
// While an operation runs, the source tree is as it was delivered: the configuration is written to the stack's directory and passed with
// --config-file, so that a repeated operation starts from the same files whatever happened in between. For what people find between
// operations see shell.go.
package operation

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"time"

	"github.com/go-logr/logr"
	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/stack-controller/stack-controller/internal/agent/agentpb"
	"github.com/stack-controller/stack-controller/internal/agent/cli"
	"github.com/stack-controller/stack-controller/internal/agent/config"
	"github.com/stack-controller/stack-controller/internal/agent/redact"
	"github.com/stack-controller/stack-controller/internal/agent/state"
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

// Options configure a Runner.
type Options struct {
	// Pulumi is the path of the CLI, or its name to look up in PATH.
	Pulumi string
	// Home is the directory for everything that has to outlive an operation. It is created when missing.
	Home string
	// Log takes what the agent does, and every line that pulumi prints, redacted.
	Log logr.Logger
	// Secrets are values that no operation may show: values of the agent's own environment that may be secret.
	Secrets []string
	// Environ is the environment that pulumi inherits, except what is reserved, in the form of os.Environ. It comes from the image and the
	// owner of a pod, or from the process runtime.
	Environ []string
	// ExclusiveHost says that only this agent runs pulumi under this host name, as in a pod. A lock of this host whose process does not exist
	// is then left over, even if nothing is recorded about that process.
	ExclusiveHost bool
	// Workspace is where people who work in the agent's pod find the program: a link to it, or the directory itself. For their pulumi commands
	// each operation then leaves a link to the stack's configuration, and selects the stack. Operations must not run at the same time then.
	// Empty means that no people work there.
	Workspace string
	// TerminateGrace is how long pulumi may take after a second SIGINT; 0 means 15 s.
	TerminateGrace time.Duration
}

// Runner runs operations with one CLI. It is safe for concurrent use by operations on different stacks.
type Runner struct {
	options  Options
	log      logr.Logger
	cli      *cli.CLI
	host     state.Host
	crypters config.Crypters

	// outputSecrets has, by the directory of a stack, the last secret outputs of the stack as a [][]byte, so that its next operation can hide
	// them as well.
	outputSecrets sync.Map
	// requested has the names of inherited variables that a request had as well, see dropRemoved.
	requested sync.Map
}

// New returns a Runner for the CLI. It runs `pulumi version`, unless an earlier Runner with the same home directory did. The caller checks,
// with cli.Problem, whether operations can run with a CLI of that version.
func New(ctx context.Context, options Options) (*Runner, error) {
	home, err := filepath.Abs(options.Home)
	if err != nil {
		return nil, fmt.Errorf("resolve the home directory %s: %w", options.Home, err)
	}
	options.Home = home
	r := &Runner{options: options, log: options.Log}
	r.cli, err = cli.New(cli.Options{Name: options.Pulumi, Dir: r.dir("events"), Log: options.Log, TerminateGrace: options.TerminateGrace})
	if err != nil {
		return nil, err
	}
	r.host = state.Host{Program: filepath.Base(r.cli.Path), Exclusive: options.ExclusiveHost, Started: time.Now()}
	if r.host.Name, err = os.Hostname(); err != nil {
		return nil, fmt.Errorf("read the host name: %w", err)
	}
	if options.ExclusiveHost {
		// Processes that were killed have left their temporary files. In a pod, none of them outlives the agent.
		if err := os.RemoveAll(r.tempDir()); err != nil {
			r.log.Info("temporary files of earlier processes are left", "error", err.Error())
		}
	}
	for _, dir := range []string{r.pulumiHome(), r.tempDir(), r.dir("stacks"), r.dir("installed")} {
		if err := os.MkdirAll(dir, 0o700); err != nil {
			return nil, fmt.Errorf("create the home directory: %w", err)
		}
	}
	return r, r.cli.ReadVersion(ctx, r.dir("version.json"), home, r.baseEnvironment())
}

// Version is the version of the CLI, for example "v3.250.0".
func (r *Runner) Version() string {
	return "v" + r.cli.Version.String()
}

// EndBy makes everything that Run started, or is about to start, end before the time.
func (r *Runner) EndBy(end time.Time) {
	r.cli.EndBy(end)
}

// Paths are where an operation finds and leaves files.
type Paths struct {
	// Project is the absolute directory of the program; it is not used for an operation without a program.
	Project string
	// LeftOut are the absolute paths that symbolic links of the artifact would have; they were left out of the source.
	LeftOut []string
	// Plan is the file of the plan that is carried out, compressed with gzip; empty when there is none.
	Plan string
	// Results is a directory for what an operation leaves beside its result: PlanFile and PlanText, when it saves a plan.
	Results string
}

// Run runs one operation to its end.
//
// Cancelling ctx asks for a graceful stop; context.Cause(ctx) says why: ErrCancelled ends the operation as Cancelled, ErrTimeout as Failed
// with reason Timeout, everything else as Interrupted. An operation that succeeded before it was asked to stop is reported as succeeded.
// The caller has to enforce the timeout of the request, in this way.
//
// progress is called serially with the changed operation, which it may keep. The returned operation is final.
func (r *Runner) Run(ctx context.Context, request *agentpb.StartOperationRequest, paths Paths, progress func(*agentpb.Operation)) *agentpb.Operation {
	o := &operation{
		runner:   r,
		request:  request,
		log:      r.log.WithValues("operation", request.GetId(), "stack", request.GetStack()),
		redactor: redact.New(r.options.Secrets...),
		dir:      paths.Project, paths: paths,
		report: &reporter{progress: progress, operation: &agentpb.Operation{
			Id: request.GetId(), Kind: request.GetKind(), StartTime: timestamppb.Now(),
		}},
	}
	start := time.Now()
	outputs, err := o.perform(ctx)
	err = o.explainLogin(err)
	if o.removedBefore(err) {
		o.notes, err = append(o.notes, "the stack was removed from the backend by an earlier attempt"), nil
	}
	o.releaseLockAtShutdown(ctx)
	o.removePlan()
	o.prepareShell()
	o.removeCredentials()
	final := o.report.operation
	final.EndTime, final.RunTime = timestamppb.Now(), o.ran
	final.State, final.Failure = outcome(ctx, err)
	if f, ok := errors.AsType[*failure](err); ok && len(f.holders) > 0 {
		final.LockHolder = f.holders[0]
		final.LockHolder.User, final.LockHolder.Host = o.redactor.String(final.LockHolder.User), o.redactor.String(final.LockHolder.Host)
	}
	if err == nil {
		final.Outputs = outputs
		final.Message = o.readable(o.successMessage(time.Since(start)))
		return final
	}
	text := err.Error()
	if cause := context.Cause(ctx); cause != nil {
		text = strings.TrimSuffix(cause.Error()+": "+text, ": "+cause.Error())
	}
	final.Message = o.readable(o.explainFullDisk(text))
	return final
}

// dir is where this package keeps its own files.
func (r *Runner) dir(name string) string {
	return filepath.Join(r.options.Home, ".automation", name)
}

func (r *Runner) tempDir() string {
	return filepath.Join(r.options.Home, "tmp")
}

// pulumiHome is the PULUMI_HOME of every process.
func (r *Runner) pulumiHome() string {
	return cmp.Or(r.inherited()["PULUMI_HOME"], filepath.Join(r.home(), ".pulumi"))
}

// home is the HOME of every process. An image may come with plugins and tools in the home directory of its user.
func (r *Runner) home() string {
	return cmp.Or(r.inherited()["HOME"], r.options.Home)
}
