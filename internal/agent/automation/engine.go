package automation

import (
	"context"
	"errors"
	"time"

	"github.com/stack-controller/stack-controller/internal/agent/proto"
)

// commandTimeout bounds the small commands around an operation: each reads or writes a few objects of the backend.
const commandTimeout = 5 * time.Minute

// runEngine runs the operation proper. What can be put right is put right once: a stack that does not exist is created, a
// lock that we left is released.
func (o *operation) runEngine(ctx context.Context) (*summary, error) {
	created, released := false, false
	for {
		sum, err := o.update(ctx)
		if err == nil {
			return sum, nil
		}
		var f *failure
		if !errors.As(err, &f) || context.Cause(ctx) != nil {
			return nil, err
		}
		switch {
		case f.reason == proto.FailureReason_FAILURE_REASON_STACK_NOT_FOUND && o.request.GetCreateStack() && !created:
			created = true
			if err := o.createStack(ctx); err != nil {
				return nil, err
			}
		case f.reason == proto.FailureReason_FAILURE_REASON_UPDATE_CONFLICT && !released:
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

// update runs the operation once. An error that is a *failure was told by the CLI.
func (o *operation) update(ctx context.Context) (*summary, error) {
	cmd := &command{operation: o}
	res, err := cmd.run(ctx)
	switch {
	case err != nil:
		return nil, err
	case res.stopped:
		// Even when it says that it succeeded: pulumi does so when it is asked to stop before it has found out what to do.
		return nil, stopError(res)
	case res.code == 0:
		// What a killed process left is dealt with now, or is in the state for everyone to see.
		if o.request.GetKind() != proto.OperationKind_OPERATION_KIND_PREVIEW && len(o.pendingCreates) == 0 {
			o.stack.settle()
		}
		return &cmd.summary, nil
	case res.bySignal():
		return nil, &interrupted{message: "pulumi was ended by a signal from outside; the outcome is not known"}
	}
	return nil, classify(res, &cmd.summary)
}

// stopError says how an operation ended that was asked to.
func stopError(res result) error {
	switch {
	case res.killed:
		return &interrupted{message: "pulumi did not stop and was killed: the stack's lock and pending operations may be left"}
	case res.code == exitCancelled:
		return &interrupted{message: "pulumi did not stop within the grace period and was stopped in the middle of a resource operation"}
	}
	return &interrupted{message: "pulumi stopped gracefully"}
}

// createStack creates the stack in the backend. What the CLI decides about its encryption goes to the stack's directory.
func (o *operation) createStack(ctx context.Context) error {
	args := []string{"stack", "init", "--stack", o.stack.name}
	if o.secretsProvider != "" {
		args = append(args, "--secrets-provider="+o.secretsProvider)
	}
	o.log.Info("creating the stack")
	res, err := o.helper(ctx, commandTimeout, invocation{args: args, started: o.stack.started, ended: o.stack.ended})
	if err != nil {
		return err
	}
	if res.code != 0 {
		f := classify(res, &summary{})
		f.message = "cannot create the stack: " + f.message
		return f
	}
	o.exported = nil
	if o.secretsProvider != "" {
		return o.stack.noteProvider(o.secretsProvider)
	}
	return nil
}

// releaseLock removes a lock that a killed process of this agent left, and tells whether it did.
func (o *operation) releaseLock(ctx context.Context, holders []*proto.LockHolder) bool {
	if !o.runner.abandoned(o.stack, holders) {
		return false
	}
	for _, holder := range holders {
		o.stack.gone(int(holder.GetPid()))
	}
	o.log.Info("releasing the lock of a pulumi process that was killed", "pid", holders[0].GetPid())
	res, err := o.helper(ctx, commandTimeout, invocation{args: []string{"cancel", "--yes", "--stack", o.stack.name}})
	if err != nil {
		o.log.Error(err, "the lock was not released")
	}
	return err == nil && res.code == 0
}

// removeStack removes the record of a destroyed stack when the request says so. The CLI would delete the configuration as well.
func (o *operation) removeStack(ctx context.Context) error {
	if !o.request.GetOptions().GetRemove() {
		return nil
	}
	args := []string{"stack", "rm", "--yes", "--preserve-config", "--stack", o.stack.name}
	o.stack.noteRemoval()
	res, err := o.helper(ctx, commandTimeout, invocation{args: args, started: o.stack.started, ended: o.stack.ended})
	if err != nil {
		return err
	}
	if res.code != 0 {
		f := classify(res, &summary{})
		f.message = "everything is destroyed, but the stack cannot be removed: " + f.message
		return f
	}
	return nil
}

// removedBefore tells whether the operation is a destroy that failed because an earlier one, which was cut off, removed the stack.
func (o *operation) removedBefore(err error) bool {
	var f *failure
	return errors.As(err, &f) && f.reason == proto.FailureReason_FAILURE_REASON_STACK_NOT_FOUND &&
		o.request.GetKind() == proto.OperationKind_OPERATION_KIND_DESTROY && o.stack != nil && o.stack.removed()
}
