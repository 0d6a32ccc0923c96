package operation

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/stack-controller/stack-controller/internal/agent/agentpb"
	"github.com/stack-controller/stack-controller/internal/agent/cli"
	"github.com/stack-controller/stack-controller/internal/agent/config"
	"github.com/stack-controller/stack-controller/internal/agent/state"
)

const (
	// maxPending is how many pending operations a message names.
	maxPending = 10
	// exportTimeout bounds `pulumi stack export`: the state may be large and far away.
	exportTimeout = 10 * time.Minute
	// exportMemory is how much memory the export uses before it collects garbage, as a value of GOMEMLIMIT.
	exportMemory = "128MiB"
)

// checkPending looks for what an earlier operation left half done when it was cut off, or could not save what it had done, if this agent or the
// request knows of such an operation.
//
// If the creation of a resource was cut off, checkPending refuses an update: the update would create the resource again, and nobody would
// know about the first one. Pulumi keeps such an entry for ever. A destroy is carried out, but does not succeed, see proveDestroyed. If an
// update or a deletion of a resource was cut off, Pulumi deals with that, and the message says so.
func (o *operation) checkPending(ctx context.Context) error {
	if o.pendingChecked || len(o.stack.LeftOver()) == 0 && !o.request.GetAfterInterruption() {
		return nil
	}
	kind := o.kind()
	if kind != agentpb.OperationKind_OPERATION_KIND_UP && kind != agentpb.OperationKind_OPERATION_KIND_DESTROY {
		return nil
	}
	facts, err := o.exportState(ctx)
	if err != nil {
		return err
	}
	o.pendingChecked, o.exported = true, facts
	if len(facts.PendingOthers) > 0 {
		o.notes = append(o.notes, fmt.Sprintf("an earlier operation was cut off while it was %s: a refresh shows whether that took effect",
			firstOf(facts.PendingOthers)))
	}
	if len(facts.PendingCreates) == 0 || kind == agentpb.OperationKind_OPERATION_KIND_DESTROY {
		return nil
	}
	if err := o.releaseLockForRepair(ctx); err != nil {
		return err
	}
	return failed(agentpb.FailureReason_FAILURE_REASON_UPDATE_FAILED,
		"an earlier update did not finish creating %s: another update could create it twice. %s", firstOf(facts.PendingCreates), repair)
}

// repair says what to do about a pending create.
const repair = "See whether it exists, then import it or forget the attempt, with `pulumi refresh --import-pending-creates` or `--clear-pending-creates`"

// proveDestroyed returns an error when something may be left: a resource of which the state has only a pending create, or all resources
// when pulumi did not delete any. A signal, whoever sent it, can make pulumi end successfully before it has found out what to do.
func (o *operation) proveDestroyed(ctx context.Context, sum *summary) error {
	if creates := o.pendingCreates(); len(creates) > 0 {
		return failed(agentpb.FailureReason_FAILURE_REASON_UPDATE_FAILED,
			"all known resources are destroyed, but an earlier update did not finish creating %s, which may still exist. %s", firstOf(creates), repair)
	}
	options := o.request.GetOptions()
	if sum.changes["delete"] > 0 || len(options.GetTarget())+len(options.GetExclude()) > 0 || options.GetRemove() {
		return nil // a stack that has resources cannot be removed
	}
	facts, err := o.exportState(ctx)
	if err != nil {
		return fmt.Errorf("see whether everything is destroyed: %w", err)
	}
	if facts.Resources > 0 {
		return failed(agentpb.FailureReason_FAILURE_REASON_UPDATE_FAILED,
			"pulumi ended successfully without destroying anything, but the stack has %d resources", facts.Resources)
	}
	return nil
}

// firstOf lists as many of the pending operations as a message names.
func firstOf(pending []string) string {
	text := strings.Join(pending[:min(len(pending), maxPending)], ", ")
	if len(pending) > maxPending {
		text += fmt.Sprintf(" and %d more", len(pending)-maxPending)
	}
	return text
}

// releaseLockForRepair releases the lock that a killed process left, so that the commands which repair the state work at once. A lock that
// somebody else holds is an error: one of just these commands may hold it.
//
// No command of the CLI lists locks. Creating the stack, which exists, finds them without changing anything, because the CLI looks for
// locks first.
func (o *operation) releaseLockForRepair(ctx context.Context) error {
	if !o.selfManaged() {
		return nil
	}
	dir, err := o.stack.Scratch(config.Settings{})
	if err != nil {
		return fmt.Errorf("look for a lock: %w", err)
	}
	defer os.RemoveAll(dir)
	args := []string{"stack", "init", "--no-select", "--stack", o.stack.Name}
	res, err := o.helper(ctx, commandTimeout, cli.Invocation{Args: args, Dir: dir})
	if err != nil || res.Code == 0 {
		return err
	}
	if f := classify(res, &summary{}); f.reason == agentpb.FailureReason_FAILURE_REASON_UPDATE_CONFLICT && !o.releaseLock(ctx, f.holders) {
		return f
	}
	return nil
}

// pendingCreates returns the resources that an earlier operation was creating when it was cut off, as far as checkPending found any.
func (o *operation) pendingCreates() []string {
	if !o.pendingChecked || o.exported == nil {
		return nil
	}
	return o.exported.PendingCreates
}

// shutdownLockTimeout bounds how long an agent that is about to end looks for a lock that one of its processes left.
const shutdownLockTimeout = 20 * time.Second

// releaseLockAtShutdown releases the lock of a process that was killed because the agent ends. The record of that process is lost if the
// agent's directory is removed with the agent.
func (o *operation) releaseLockAtShutdown(ctx context.Context) {
	if !errors.Is(context.Cause(ctx), ErrShutdown) || o.stack == nil || !o.selfManaged() ||
		len(o.stack.LeftOver()) == 0 || o.runner.cli.OutOfTime() {
		return
	}
	limited, cancel := context.WithTimeout(context.WithoutCancel(ctx), shutdownLockTimeout)
	defer cancel()
	facts, err := o.exportState(limited)
	if err == nil && facts.Exists {
		err = o.releaseLockForRepair(limited)
	}
	if err != nil {
		o.log.Info("a lock may be left", "error", o.readable(err.Error()))
	}
}

// knownState is exportState, but reads the state only once while an operation is prepared.
func (o *operation) knownState(ctx context.Context) (facts *state.Facts, err error) {
	if o.exported == nil {
		o.exported, err = o.exportState(ctx)
	}
	return o.exported, err
}

// exportState reads the parts of the stack's state that matter.
func (o *operation) exportState(ctx context.Context) (*state.Facts, error) {
	path := filepath.Join(o.stack.Dir, "state.json")
	defer os.Remove(path)
	exists, err := o.exportTo(ctx, path)
	switch {
	case err != nil:
		return nil, err
	case !exists:
		return &state.Facts{}, nil
	}
	return state.ReadFacts(path)
}

// exportTo writes the state of the stack to the file. It reports whether the stack exists.
func (o *operation) exportTo(ctx context.Context, path string) (exists bool, err error) {
	env := maps.Clone(o.env)
	// The process only passes the state on, and collecting garbage would be a third of its cost.
	env["GOGC"], env["GOMEMLIMIT"] = "off", exportMemory
	res, err := o.helper(ctx, exportTimeout, cli.Invocation{Args: []string{"stack", "export", "--stack", o.stack.Name, "--file", path}, Env: env})
	if err != nil || res.Code == 0 {
		return err == nil, err
	}
	if f := classify(res, &summary{}); f.reason != agentpb.FailureReason_FAILURE_REASON_STACK_NOT_FOUND {
		return false, f
	}
	return false, nil
}
