package automation

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"github.com/stack-controller/stack-controller/internal/agent/proto"
)

// maxPending is how many pending operations a message names.
const maxPending = 10

// checkPending looks for what an earlier operation left half done when it was cut off, as far as this agent or the request knows of it.
//
// It refuses an update when that was the creation of a resource: the update would create it again, and nobody would know about the first
// one. Pulumi keeps such an entry for ever. A destroy is carried out, and is no success. What was being updated or deleted pulumi deals
// with, and the message says so.
func (o *operation) checkPending(ctx context.Context) error {
	if o.pendingChecked || len(o.stack.leftOver()) == 0 && !o.request.GetAfterInterruption() {
		return nil
	}
	kind := o.request.GetKind()
	if kind != proto.OperationKind_OPERATION_KIND_UP && kind != proto.OperationKind_OPERATION_KIND_DESTROY {
		return nil
	}
	facts, exists, err := o.exportState(ctx)
	if err != nil {
		return err
	}
	o.pendingChecked, o.exported = true, &exportedState{facts: facts, exists: exists}
	if len(facts.pendingOthers) > 0 {
		o.notes = append(o.notes, fmt.Sprintf("an earlier operation was cut off while it was %s: a refresh shows whether that took effect",
			firstOf(facts.pendingOthers)))
	}
	if len(facts.pendingCreates) == 0 {
		return nil
	}
	if kind == proto.OperationKind_OPERATION_KIND_DESTROY {
		o.pendingCreates = facts.pendingCreates
		return nil
	}
	if err := o.freeForRepair(ctx); err != nil {
		return err
	}
	return failed(proto.FailureReason_FAILURE_REASON_UPDATE_FAILED,
		"an earlier update was killed while it created %s: another update could create it twice. %s", firstOf(facts.pendingCreates), repair)
}

// repair tells what to do about a pending creation.
const repair = "See whether it exists, then import it or forget the attempt, with `pulumi refresh --import-pending-creates` or `--clear-pending-creates`"

// proveDestroyed fails when something may be left: a resource of which the state has no more than that its creation began, or all of them
// when pulumi did not delete any. A signal can end pulumi successfully before it has found out what to do, whoever sent it.
func (o *operation) proveDestroyed(ctx context.Context, sum *summary) error {
	if len(o.pendingCreates) > 0 {
		return failed(proto.FailureReason_FAILURE_REASON_UPDATE_FAILED,
			"everything is destroyed but what may be left of an earlier update: it was killed while it created %s. %s", firstOf(o.pendingCreates), repair)
	}
	options := o.request.GetOptions()
	if changes, _ := sum.snapshot(); changes["delete"] > 0 || len(options.GetTarget()) > 0 || options.GetRemove() {
		return nil // a stack that has resources cannot be removed
	}
	facts, _, err := o.exportState(ctx)
	if err != nil {
		return fmt.Errorf("see whether everything is destroyed: %w", err)
	}
	if facts.resources > 0 {
		return failed(proto.FailureReason_FAILURE_REASON_UPDATE_FAILED, "pulumi ended successfully without destroying anything, but the stack has %d resources", facts.resources)
	}
	return nil
}

// firstOf lists what fits into a message.
func firstOf(pending []string) string {
	text := strings.Join(pending[:min(len(pending), maxPending)], ", ")
	if len(pending) > maxPending {
		text += fmt.Sprintf(" and %d more", len(pending)-maxPending)
	}
	return text
}

// freeForRepair releases the lock that the killed process left, so that the commands which mend the state work at once. A lock that
// somebody else holds is an error: it may be that of just these commands.
//
// No command tells of locks. What finds out about them without changing anything is to create the stack, which exists: the CLI looks for
// locks first.
func (o *operation) freeForRepair(ctx context.Context) error {
	if !o.selfManaged() {
		return nil
	}
	dir := filepath.Join(o.stack.dir, "probe")
	if err := o.stack.makeScratch(dir, cryptoSettings{}); err != nil {
		return fmt.Errorf("look for a lock: %w", err)
	}
	defer os.RemoveAll(dir)
	res, err := o.helper(ctx, commandTimeout, invocation{args: []string{"stack", "init", "--no-select", "--stack", o.stack.name}, dir: dir})
	if err != nil || res.code == 0 {
		return err
	}
	if f := classify(res, &summary{}); f.reason == proto.FailureReason_FAILURE_REASON_UPDATE_CONFLICT && !o.releaseLock(ctx, f.holders) {
		return f
	}
	return nil
}
