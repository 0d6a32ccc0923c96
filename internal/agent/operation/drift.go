package operation

import (
	"context"
	"errors"
	"fmt"
	"strings"

	"github.com/stack-controller/stack-controller/internal/agent/agentpb"
)

// Drift is what a refresh would change in the state, because somebody changed or removed a resource outside of pulumi. An operation with a
// refresh accepts drift and goes on. An operation that expects no drift must not even write it to the state, because the next attempt would
// not find it any longer. So a process of its own, which changes nothing, looks for drift beforehand.

// expectsNoDrift reports whether the operation has to look for drift.
func (o *operation) expectsNoDrift() bool {
	options, kind := o.request.GetOptions(), o.kind()
	return options.GetRefresh() && options.GetExpectNoRefreshChanges() &&
		(kind == agentpb.OperationKind_OPERATION_KIND_UP || kind == agentpb.OperationKind_OPERATION_KIND_PREVIEW)
}

// checkDrift returns an error if the operation expects no drift and there is some. A stack that does not exist has none.
func (o *operation) checkDrift(ctx context.Context) error {
	if !o.expectsNoDrift() {
		return nil
	}
	o.report.update(func(op *agentpb.Operation) { op.Message = "looking for changes that were made outside of pulumi" })
	sum, _, err := o.command(ctx, engineCommand{args: o.driftArguments()})
	f, known := errors.AsType[*failure](err)
	switch {
	case !known:
		return err
	case f.reason == agentpb.FailureReason_FAILURE_REASON_STACK_NOT_FOUND:
		return nil
	case f.reason == agentpb.FailureReason_FAILURE_REASON_UNEXPECTED_CHANGES:
		f.message = describeUnexpectedChanges(sum)
	default:
		f.message = "cannot look for changes that were made outside of pulumi: " + f.message
	}
	return f
}

// driftArguments are the arguments of a refresh that changes nothing, for the resources that the operation would refresh.
func (o *operation) driftArguments() []string {
	return append([]string{"refresh", "--preview-only", "--expect-no-changes"}, o.commonArguments()...)
}

// describeUnexpectedChanges names some of the changes, and says what the user can do.
func describeUnexpectedChanges(sum *summary) string {
	what := "resources"
	if len(sum.changed) > 0 {
		what = strings.Join(sum.changed, ", ")
	}
	if sum.changedMore > 0 {
		what += fmt.Sprintf(" and %d more", sum.changedMore)
	}
	return "the refresh would change the state, because of what was changed outside of pulumi: " + what + ". Nothing was changed, and every " +
		"attempt looks again. Undo these changes, or accept them by setting expectNoRefreshChanges to false or with `pulumi refresh`"
}
