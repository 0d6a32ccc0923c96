package automation

import (
	"context"
	"fmt"
	"io"
	"maps"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/go-logr/logr"
	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/stack-controller/stack-controller/internal/agent/proto"
	"github.com/stack-controller/stack-controller/internal/agent/redact"
)

// operation is one run of Runner.Run.
type operation struct {
	runner   *Runner
	request  *proto.StartOperationRequest
	log      logr.Logger
	redactor *redact.Redactor
	report   *reporter

	project *project
	// dir is where pulumi runs: the directory of the program, or of the stack when there is none.
	dir    string
	env    environment
	config []configItem
	stack  *stack
	// useConfigFile says that the CLI gets the configuration that we wrote.
	useConfigFile bool
	// configured says that the configuration is complete.
	configured bool
	// secretsProvider is the one that a stack is created with; empty for the default of the backend.
	secretsProvider string
	// exported is what the state was when the operation was prepared; nil as long as nobody looked.
	exported *exportedState
	// pendingChecked says that what an earlier operation left half done was looked for.
	pendingChecked bool
	// pendingCreates are the resources that an earlier operation was creating when it was cut off, for a destroy to tell of.
	pendingCreates []string
	// notes are what else there is to say about an operation that succeeded.
	notes []string
	// reported are the errors of an operation that succeeded.
	reported []string
}

// Run runs one operation to its end. project is the absolute directory of the program; it is not used for an operation
// without a program.
//
// Cancelling ctx asks for a graceful stop; context.Cause(ctx) says why: ErrCancelled ends the operation as Cancelled,
// ErrTimeout as Failed with reason Timeout, everything else as Interrupted. An operation that has succeeded before it was asked
// to stop is reported as that. The timeout of the request is for the caller to enforce, in this way.
//
// progress is called serially with the changed operation, which it may keep. The returned operation is final.
func (r *Runner) Run(ctx context.Context, request *proto.StartOperationRequest, project string, progress func(*proto.Operation)) *proto.Operation {
	o := &operation{
		runner:   r,
		request:  request,
		log:      r.log.WithValues("operation", request.GetId(), "stack", request.GetStack()),
		redactor: redact.New(r.options.Secrets...),
		dir:      project,
		report: &reporter{progress: progress, operation: &proto.Operation{
			Id: request.GetId(), Kind: request.GetKind(), StartTime: timestamppb.Now(),
		}},
	}
	start := time.Now()
	outputs, err := o.perform(ctx)
	if o.removedBefore(err) {
		o.notes, err = append(o.notes, "the stack was removed from the backend by an earlier attempt"), nil
	}
	o.leaveNoLock(ctx)
	o.leave()
	o.takeBackCredentials()
	final := o.report.close()
	final.EndTime = timestamppb.Now()
	final.State, final.Failure = outcome(ctx, err)
	final.LockHolder = holderOf(err)
	if err == nil {
		final.Outputs = outputs
		final.Message = o.readable(o.successMessage(time.Since(start)))
		return final
	}
	text := err.Error()
	if cause := context.Cause(ctx); cause != nil {
		text = strings.TrimSuffix(cause.Error()+": "+text, ": "+cause.Error())
	}
	final.Message = o.readable(text)
	return final
}

// readable makes a text the message of the operation: one line, without secrets, of a bounded size.
func (o *operation) readable(text string) string {
	// Secrets are looked for in the lines as they are, too: one of several short lines is not recognised once they are joined.
	lines := o.redactor.String(o.withoutPaths(stripEscapes(text)))
	return bounded(o.redactor.String(oneLine(lines)), maxMessage)
}

// withoutPaths makes the paths in the text relative to the program: where the agent keeps it tells a user nothing.
func (o *operation) withoutPaths(text string) string {
	if !filepath.IsAbs(o.dir) || filepath.Dir(o.dir) == o.dir {
		return text
	}
	return strings.ReplaceAll(text, strings.TrimSuffix(o.dir, "/")+"/", "")
}

// successMessage sums up what was done. Errors that did not keep pulumi from succeeding are told: a YAML program goes on after
// one in an expression that depends on a secret.
func (o *operation) successMessage(took time.Duration) string {
	text := fmt.Sprintf("done in %s", took.Round(100*time.Millisecond))
	changes := o.report.operation.GetResourceChanges()
	separator := ": "
	for _, op := range slices.Sorted(maps.Keys(changes)) {
		text += fmt.Sprintf("%s%s %d", separator, op, changes[op])
		separator = ", "
	}
	for _, note := range o.notes {
		text += "; " + note
	}
	if len(o.reported) > 0 {
		text += "; pulumi succeeded, but reported: " + strings.Join(o.reported, "\n")
	}
	return text
}

// perform does the steps of the operation.
func (o *operation) perform(ctx context.Context) (map[string]*proto.Output, error) {
	o.report.update(true, func(op *proto.Operation) {
		op.State = proto.OperationState_OPERATION_STATE_PREPARING
		op.Message = "preparing"
	})
	if err := o.runner.leftFiles().takeBack(o.request.GetArtifact().GetDigest()); err != nil {
		return nil, fmt.Errorf("cannot restore the program as it was delivered: %w", err)
	}
	if err := o.resolve(); err != nil {
		return nil, err
	}
	if err := o.checkPending(ctx); err != nil {
		return nil, err
	}
	if err := o.install(ctx); err != nil {
		return nil, err
	}
	if err := o.configure(ctx); err != nil {
		return nil, err
	}
	if err := o.checkDrift(ctx); err != nil {
		return nil, err
	}
	o.report.update(true, func(op *proto.Operation) {
		op.State = proto.OperationState_OPERATION_STATE_RUNNING
		op.Message = "starting pulumi"
	})
	sum, err := o.runEngine(ctx)
	if err != nil {
		return nil, err
	}
	o.reported = sum.errors
	// The stack is as it should be: whatever comes now is not for the caller to cut off.
	ctx = context.WithoutCancel(ctx)
	if o.request.GetKind() == proto.OperationKind_OPERATION_KIND_DESTROY {
		if err := o.proveDestroyed(ctx, sum); err != nil {
			return nil, err
		}
		return nil, o.removeStack(ctx)
	}
	return o.outputs(ctx, sum)
}

// resolve finds out what the operation works with: project, environment, configuration, stack.
func (o *operation) resolve() error {
	if source := o.request.GetProject(); source != nil {
		if source.GetName() == "" {
			return projectInvalid("the operation names no project")
		}
		o.project = &project{name: source.GetName(), runtime: source.GetRuntime()}
		if o.project.runtime == "" {
			o.project.runtime = "yaml"
		}
	} else {
		loaded, err := loadProject(o.dir)
		if err != nil {
			return err
		}
		o.project = loaded
	}
	o.report.update(false, func(op *proto.Operation) {
		op.Project = &proto.ProjectSource{Name: o.project.name, Runtime: o.project.runtime}
	})
	user, secrets, err := resolveEnvironment(o.request.GetEnv(), o.dir)
	o.redactor.Add(secrets...)
	if err != nil {
		return err
	}
	var ignored []string
	o.env, ignored = o.runner.operationEnvironment(o.request, user)
	if len(ignored) > 0 {
		o.log.Info("environment variables are reserved and were left out", "names", ignored)
	}
	absolutePassphraseFile(o.env, o.dir)
	o.hideCredentials()
	o.config, secrets, err = resolveConfig(o.request.GetConfig(), o.env, o.dir)
	o.redactor.Add(secrets...)
	if err != nil {
		return err
	}
	o.stack, err = o.runner.openStack(o.request.GetStack(), o.backendURL(), o.project)
	if err != nil {
		return err
	}
	surviveKill(o.env)
	o.redactor.Add(o.runner.rememberedSecrets(o.stack.key)...)
	if err := o.lendCredentials(); err != nil {
		return err
	}
	if o.project.document == nil {
		o.dir = o.stack.dir
	}
	return nil
}

// hideCredentials hides what is secret by its nature, whether it is marked so or not.
func (o *operation) hideCredentials() {
	o.redactor.Add(o.env["PULUMI_ACCESS_TOKEN"])
	o.redactor.Add(backendPasswords(o.backendURL())...)
	if phrase, set, err := passphrase(o.env); set && err == nil {
		o.redactor.Add(phrase)
	}
}

// backendURL is where the state is, as far as the operation says; empty for the default of the CLI, which is Pulumi Cloud
// unless somebody logged in elsewhere.
func (o *operation) backendURL() string {
	if url := o.env["PULUMI_BACKEND_URL"]; url != "" {
		return url
	}
	return o.project.backendURL
}

// selfManaged tells whether the backend is certainly not Pulumi Cloud.
func (o *operation) selfManaged() bool {
	url := o.backendURL()
	return url != "" && !strings.HasPrefix(url, "https://") && !strings.HasPrefix(url, "http://")
}

// helper runs a command that is not the operation itself, in the directory of the stack. An exit code is not an error.
func (o *operation) helper(ctx context.Context, timeout time.Duration, inv invocation) (result, error) {
	limited, cancel := context.WithTimeoutCause(ctx, timeout, fmt.Errorf("pulumi %s took longer than %s", inv.args[0], timeout))
	defer cancel()
	if inv.dir == "" {
		inv.dir = o.stack.dir
	}
	inv.env = o.env
	closeLog := func() {}
	if inv.stdout == nil {
		inv.stdout, inv.stderr, closeLog = o.logStreams(nil)
	}
	res, err := o.runner.execute(limited, &inv)
	closeLog()
	if err != nil {
		return res, err
	}
	switch cause := context.Cause(limited); {
	case res.code == 0:
	case cause != nil:
		return res, cause
	case res.stopped:
		return res, ErrShutdown
	case res.bySignal():
		return res, &interrupted{message: fmt.Sprintf("pulumi %s was ended by a signal from outside", inv.args[0])}
	}
	return res, nil
}

// logStreams returns writers that log each line, redacted. Each redacted line of stdout is shown to see as well.
func (o *operation) logStreams(see func(line string)) (stdout, stderr io.Writer, closeAll func()) {
	logger := func(stream string) (*redact.Writer, *lineWriter) {
		lines := &lineWriter{line: func(line string) {
			// Once more: colours may have been in the middle of a secret.
			line = o.redactor.String(stripEscapes(line))
			if see != nil && stream == "stdout" {
				see(line)
			}
			o.log.Info(line, "stream", stream)
		}}
		return o.redactor.Writer(lines), lines
	}
	out, outLines := logger("stdout")
	errs, errLines := logger("stderr")
	return out, errs, func() {
		for _, closer := range []io.Closer{out, outLines, errs, errLines} {
			_ = closer.Close()
		}
	}
}
