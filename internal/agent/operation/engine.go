package operation

import (
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/stack-controller/stack-controller/internal/agent/agentpb"
	"github.com/stack-controller/stack-controller/internal/agent/cli"
	"github.com/stack-controller/stack-controller/internal/agent/redact"
	"github.com/stack-controller/stack-controller/internal/agent/state"
	"github.com/stack-controller/stack-controller/internal/plaintext"
)

const (
	// commandTimeout bounds the small commands around an operation: each reads or writes a few objects of the backend.
	commandTimeout = 5 * time.Minute
	// defaultGrace is how long pulumi may take to stop after a first SIGINT if the request does not say.
	defaultGrace = 5 * time.Minute
)

// runEngine runs the operation proper, and records its changes in the plan, if there is one. Two problems are corrected, each of them once: a stack that does not exist is created, and a lock
// that a killed process of this agent left is released.
func (o *operation) runEngine(ctx context.Context, plan *planRecord) (*summary, error) {
	created, released := false, false
	for {
		sum, err := o.update(ctx, plan)
		if err == nil {
			return sum, nil
		}
		f, known := errors.AsType[*failure](err)
		if !known || context.Cause(ctx) != nil {
			return nil, err
		}
		switch {
		case f.reason == agentpb.FailureReason_FAILURE_REASON_STACK_NOT_FOUND && o.request.GetCreateStack() && !created && !o.carriesOutPlan():
			created = true
			if err := o.createStack(ctx); err != nil {
				return nil, err
			}
		case f.reason == agentpb.FailureReason_FAILURE_REASON_UPDATE_CONFLICT && !released:
			released = true
			if !o.releaseLock(ctx, f.holders) {
				return nil, f
			}
			if err := o.checkPending(ctx); err != nil {
				return nil, err
			}
		default:
			return nil, f
		}
	}
}

// update runs the operation once. An error that is a *failure comes from the CLI.
func (o *operation) update(ctx context.Context, plan *planRecord) (*summary, error) {
	args, err := o.arguments()
	if err != nil {
		return nil, err
	}
	changes := !changesNothing(o.kind())
	sum, res, err := o.command(ctx, engineCommand{args: args, changes: changes, plan: plan, progress: o.showProgress})
	if f, known := errors.AsType[*failure](err); known {
		return nil, o.planFailure(f, res, sum)
	}
	if err != nil {
		return nil, err
	}
	// What a killed process left is dealt with now. Only pending creates stay in the state, and the next operation has to look for them again.
	if changes && len(o.pendingCreates()) == 0 {
		o.stack.Recovered()
	}
	o.noteProblems(sum)
	if !changes {
		o.report.update(func(op *agentpb.Operation) { op.Changes, op.OmittedChanges = sum.planned.list, sum.planned.omitted })
	}
	return sum, nil
}

// engineCommand is a command of the CLI that runs the engine.
type engineCommand struct {
	args []string
	// changes is true for a process that changes the stack, and may leave something behind when it is killed.
	changes bool
	// plan records the changes; nil when nobody needs them.
	plan *planRecord
	// progress is told of each event that matters; nil when nobody needs to know.
	progress func(*summary)
}

// command runs a command of the engine that has to succeed, and returns the summary of its events. An error that is a *failure says why the
// CLI failed, or that a command which changes nothing did not say what would change. If it failed because the secrets provider was changed, the
// command runs again.
func (o *operation) command(ctx context.Context, c engineCommand) (*summary, cli.Result, error) {
	sum, res, err := o.runCommand(ctx, c)
	switch {
	case err != nil:
	case res.Stopped:
		// This counts even if the exit code is 0: pulumi exits so when it is asked to stop before it has found out what to do.
		err = stopError(res)
	case res.BySignal() && c.changes:
		err = interrupted("pulumi was ended by a signal from outside; the outcome is not known")
	case res.BySignal():
		err = interrupted(fmt.Sprintf("pulumi %s was ended by a signal from outside; it changed nothing", c.args[0]))
	case res.Code != 0:
		err = classify(res, sum)
	case sum.complete:
	case c.changes:
		// It has done its work. Outputs are read from the state then, see outputs.
		o.notes = append(o.notes, eventsLost+": more may have changed than is listed, and warnings may be missing")
	default:
		err = failed(agentpb.FailureReason_FAILURE_REASON_UPDATE_FAILED, "%s: what would change is not known. Nothing was changed, and the next "+
			"attempt looks again", eventsLost)
	}
	if f, known := errors.AsType[*failure](err); known && f.reason == agentpb.FailureReason_FAILURE_REASON_SECRETS_PROVIDER {
		changed, problem := o.useProviderOfState(ctx)
		switch {
		case problem != nil:
			err = problem
		case changed:
			return o.command(ctx, c)
		}
	}
	return sum, res, err
}

// eventsLost says that the summary of a process that succeeded is not complete.
const eventsLost = "pulumi succeeded, but not all of its events arrived"

// runCommand runs a command of the engine to its end. If the command makes a preview before its changes, the steps of the preview do not
// count.
func (o *operation) runCommand(ctx context.Context, c engineCommand) (*summary, cli.Result, error) {
	stdout, stderr, closeLog := o.logStreams(o.findPermalink)
	defer closeLog()
	inv := &cli.Invocation{Args: c.args, Dir: o.dir, Env: o.env, Stdout: stdout, Stderr: stderr, Grace: o.cancelGrace()}
	progress := c.progress
	if progress == nil {
		progress = func(*summary) {}
	}
	withPreview := c.changes && o.usesPlanFile()
	sum := &summary{redactor: o.redactor, withPreview: withPreview}
	if c.changes {
		defer o.record(inv)(sum)
	}
	during := func(event []byte) {
		sum.planned.digest = c.plan.add(event)
		if sum.add(event) {
			progress(sum)
		}
	}
	if !withPreview {
		res, err := o.runner.cli.RunEngine(ctx, inv, during, nil)
		return sum, res, err
	}
	done := &summary{redactor: o.redactor, withPreview: true}
	res, err := o.runner.cli.RunEngine(ctx, inv, during, func(event []byte) { done.add(event) })
	progress(done)
	return done, res, err
}

// record records the process of the invocation as one that changes the stack. The function that it returns is called when the process has ended
// and all of its events are in the summary; that is empty for a command without events.
func (o *operation) record(inv *cli.Invocation) func(*summary) {
	var pid int
	var res *cli.Result
	inv.Started = o.stack.Started
	inv.Ended = func(ended int, result cli.Result) { pid, res = ended, &result }
	return func(sum *summary) {
		// A process that was killed, or crashed, may have left its lock and pending operations, so its record stays.
		if res == nil || res.BySignal() || res.Terminated || panicked.MatchString(res.Stderr) || goPanicked.MatchString(res.Stderr) {
			return
		}
		// Whatever it says at the end, once the engine was at work it had the lock.
		reason := classify(*res, &summary{}).reason
		o.stack.Ended(pid, res.Code == 0 || sum.started || reason == agentpb.FailureReason_FAILURE_REASON_UPDATE_FAILED ||
			reason == agentpb.FailureReason_FAILURE_REASON_AWAITING)
	}
}

// cancelGrace is how long pulumi may take to stop.
func (o *operation) cancelGrace() time.Duration {
	if grace := o.request.GetCancelGrace(); grace != nil && grace.AsDuration() > 0 {
		return grace.AsDuration()
	}
	return defaultGrace
}

// showProgress reports what the engine does.
func (o *operation) showProgress(sum *summary) {
	text := plaintext.Cut(o.redactor.String(progressText(sum.changes, sum.current)), maxMessage)
	changes := maps.Clone(sum.changes)
	o.report.update(func(op *agentpb.Operation) { op.ResourceChanges, op.Message = changes, text })
}

// noteProblems keeps what pulumi complained about although it succeeded: a YAML program goes on after an error in an expression that
// depends on a secret, and after a warning about a field that it does not know.
func (o *operation) noteProblems(sum *summary) {
	if reported := slices.Concat(sum.errors, sum.policyText()); len(reported) > 0 {
		o.notes = append(o.notes, "pulumi succeeded, but reported: "+strings.Join(reported, "\n"))
	}
	if len(sum.warnings) > 0 {
		o.notes = append(o.notes, "pulumi warned: "+strings.Join(sum.warnings, "\n"))
	}
	var warnings []string
	for _, warning := range sum.warnings {
		warnings = append(warnings, plaintext.Cut(o.readable(warning), agentpb.MaxWarning))
	}
	o.report.update(func(op *agentpb.Operation) { op.Warnings = warnings })
}

// permalinkMarks are the texts that the CLI prints before the address of the update in Pulumi Cloud.
var permalinkMarks = []string{"View Live: ", "View in Browser (Ctrl+O): ", "View in Browser: ", "Permalink: "}

func (o *operation) findPermalink(line string) {
	for _, mark := range permalinkMarks {
		if _, link, ok := strings.Cut(line, mark); ok && strings.HasPrefix(link, "http") {
			o.report.update(func(op *agentpb.Operation) {
				op.Permalink = plaintext.Cut(o.withNames(strings.Fields(link)[0]), agentpb.MaxPermalink)
			})
		}
	}
}

// withNames puts the names of the stack back into a link to ORGANIZATION/PROJECT/STACK/updates/NUMBER, or a preview, if they are masked. A secret can
// have the same text, such as "production"; that the stack has this name is no secret.
func (o *operation) withNames(link string) string {
	parts := strings.Split(link, "/")
	if len(parts) < 2 || !slices.Contains([]string{"updates", "previews"}, parts[len(parts)-2]) {
		return link
	}
	names := append([]string{o.project.Name}, strings.Split(o.stack.Name, "/")...)
	switch len(names) {
	case 3: // the stack with its organization
		names[0], names[1] = names[1], names[0]
	case 4: // the project twice
		names = names[1:]
	}
	for i, at := len(names)-1, len(parts)-3; i >= 0 && at > 2; i, at = i-1, at-1 {
		if strings.Contains(parts[at], redact.Mask) {
			parts[at] = names[i]
		}
	}
	return strings.Join(parts, "/")
}

// stopError returns how an operation ended that was asked to stop.
func stopError(res cli.Result) error {
	switch {
	case res.Killed:
		return interrupted("pulumi did not stop and was killed: the stack's lock and pending operations may be left")
	case res.Terminated:
		return interrupted("pulumi did not stop within the grace period and was stopped in the middle of a resource operation")
	}
	return interrupted("pulumi stopped gracefully")
}

// helper runs a command that is not the operation itself, by default in the directory of the stack. An exit code other than 0 is not an
// error.
func (o *operation) helper(ctx context.Context, timeout time.Duration, inv cli.Invocation) (cli.Result, error) {
	limited, cancel := context.WithTimeoutCause(ctx, timeout, fmt.Errorf("pulumi %s took longer than %s", inv.Args[0], timeout))
	defer cancel()
	if inv.Dir == "" {
		inv.Dir = o.stack.Dir
	}
	if inv.Env == nil {
		inv.Env = o.env
	}
	stdout, stderr, closeLog := o.logStreams(nil)
	defer closeLog()
	if inv.Stdout == nil {
		inv.Stdout = stdout
	}
	if inv.Stderr == nil {
		inv.Stderr = stderr
	}
	res, err := o.runner.cli.Run(limited, &inv)
	if err != nil {
		return res, err
	}
	switch cause := context.Cause(limited); {
	case res.Code == 0:
	case cause != nil:
		return res, cause
	case res.Stopped:
		return res, ErrShutdown
	case res.BySignal():
		return res, interrupted(fmt.Sprintf("pulumi %s was ended by a signal from outside", inv.Args[0]))
	}
	return res, nil
}

// must is like helper, for a command that has to succeed. The error begins with the argument what. Its reason is the argument otherwise,
// unless the CLI gives a more specific one.
func (o *operation) must(ctx context.Context, inv cli.Invocation, otherwise agentpb.FailureReason, what string) error {
	res, err := o.helper(ctx, commandTimeout, inv)
	if err != nil || res.Code == 0 {
		return err
	}
	return classifyAs(res, otherwise, what)
}

// mustChange is like must, for a command that changes the stack, and may leave something behind when it is killed.
func (o *operation) mustChange(ctx context.Context, inv cli.Invocation, otherwise agentpb.FailureReason, what string) error {
	defer o.record(&inv)(&summary{})
	return o.must(ctx, inv, otherwise, what)
}

// logStreams returns writers that log each line, redacted. Each redacted line of stdout is also passed to see.
func (o *operation) logStreams(see func(line string)) (stdout, stderr io.Writer, closeAll func()) {
	var closers []io.Closer
	logger := func(stream string, see func(string)) io.Writer {
		lines := &cli.LineWriter{Line: func(line string) {
			// The line is redacted once more: colours may have been in the middle of a secret.
			line = o.redactor.String(plaintext.Strip(line))
			if see != nil {
				see(line)
			}
			o.log.Info(line, "stream", stream)
		}}
		writer := o.redactor.Writer(lines)
		closers = append(closers, writer, lines)
		return writer
	}
	stdout, stderr = logger("stdout", see), logger("stderr", nil)
	return stdout, stderr, func() {
		for _, closer := range closers {
			_ = closer.Close()
		}
	}
}

// createExpectedStack creates a stack that probably does not exist. This saves the operation that would find that out. If the creation
// fails, the operation reports why, unless the stack exists. In a backend with the old layout, the stack must not be created.
func (o *operation) createExpectedStack(ctx context.Context) error {
	if !o.request.GetNewStack() || !o.request.GetCreateStack() {
		return nil
	}
	if stackFile, err := o.sourceConfig(); err == nil && stackFile.Kind() == "" {
		o.secretsProvider = o.request.GetSecretsProvider() // configure comes later
	}
	err := o.createStack(ctx)
	if f, failed := errors.AsType[*failure](err); failed && f.reason != agentpb.FailureReason_FAILURE_REASON_STATE_UPGRADE_REQUIRED {
		o.log.Info("the stack was not created, perhaps because it exists", "error", o.readable(err.Error()))
		return nil
	}
	return err
}

// createStack creates the stack in the backend. The CLI writes how the stack is encrypted into the stack's directory.
func (o *operation) createStack(ctx context.Context) error {
	if err := o.checkLayout(ctx); err != nil {
		return err
	}
	args := []string{"stack", "init", "--stack", o.stack.Name}
	if o.secretsProvider != "" {
		args = append(args, "--secrets-provider="+o.secretsProvider)
	}
	o.log.Info("creating the stack")
	err := o.mustChange(ctx, cli.Invocation{Args: args}, agentpb.FailureReason_FAILURE_REASON_UPDATE_FAILED, "cannot create the stack")
	if err != nil {
		return err
	}
	o.exported, o.created = nil, true
	if o.secretsProvider != "" {
		return o.stack.Note(state.SecretsProvider, o.secretsProvider)
	}
	return nil
}

// releaseLock removes a lock that a killed process of this agent left, and reports whether it did.
func (o *operation) releaseLock(ctx context.Context, holders []*agentpb.LockHolder) bool {
	if !o.stack.Abandoned(o.runner.host, o.request.GetInterrupted(), holders) {
		return false
	}
	for _, holder := range holders {
		o.stack.Gone(int(holder.GetPid()))
	}
	o.log.Info("releasing the lock of a pulumi process that was killed", "pid", holders[0].GetPid())
	res, err := o.helper(ctx, commandTimeout, cli.Invocation{Args: []string{"cancel", "--yes", "--stack", o.stack.Name}})
	if err != nil {
		o.log.Info("the lock was not released", "error", o.readable(err.Error()))
	}
	return err == nil && res.Code == 0
}

// removeStack removes a destroyed stack from the backend if the request says so. Without --preserve-config, the CLI would delete the
// configuration as well.
func (o *operation) removeStack(ctx context.Context) error {
	if !o.request.GetOptions().GetRemove() {
		return nil
	}
	// Without the note, a second attempt would report that the stack is missing.
	_ = o.stack.Note(state.Removal, "")
	return o.mustChange(ctx, cli.Invocation{Args: []string{"stack", "rm", "--yes", "--preserve-config", "--stack", o.stack.Name}},
		agentpb.FailureReason_FAILURE_REASON_UPDATE_FAILED, "everything is destroyed, but the stack cannot be removed")
}

// removedBefore reports whether a destroy failed because an earlier destroy, which was cut off, had already removed the stack.
func (o *operation) removedBefore(err error) bool {
	f, ok := errors.AsType[*failure](err)
	if !ok || f.reason != agentpb.FailureReason_FAILURE_REASON_STACK_NOT_FOUND ||
		o.kind() != agentpb.OperationKind_OPERATION_KIND_DESTROY || o.stack == nil {
		return false
	}
	_, removed := o.stack.Noted(state.Removal)
	return removed
}
