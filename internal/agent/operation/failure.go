package operation

import (
	"context"
	"errors"
	"fmt"

	"github.com/stack-controller/stack-controller/internal/agent/agentpb"
)

// failure is an error with the cause that the result names. Its message is for people and may contain secrets: it is
// redacted when the result is made.
type failure struct {
	reason  agentpb.FailureReason
	message string
	// holders are the holders of the lock, if a lock caused the failure.
	holders []*agentpb.LockHolder
}

func (f *failure) Error() string {
	return f.message
}

func failed(reason agentpb.FailureReason, format string, args ...any) *failure {
	return &failure{reason: reason, message: fmt.Sprintf(format, args...)}
}

func projectInvalid(format string, args ...any) *failure {
	return failed(agentpb.FailureReason_FAILURE_REASON_PROJECT_INVALID, format, args...)
}

func configInvalid(format string, args ...any) *failure {
	return failed(agentpb.FailureReason_FAILURE_REASON_CONFIG_INVALID, format, args...)
}

func secretsProviderFailed(format string, args ...any) *failure {
	return failed(agentpb.FailureReason_FAILURE_REASON_SECRETS_PROVIDER, format, args...)
}

// interrupted is the error of a CLI process that did not run to its end: it was asked to stop, or was ended from outside.
type interrupted string

func (i interrupted) Error() string {
	return string(i)
}

// outcome returns the final state and, for a failure, its reason. If ctx shows that the operation was asked to end, any error is taken as a
// consequence of that.
func outcome(ctx context.Context, err error) (agentpb.OperationState, agentpb.FailureReason) {
	const none = agentpb.FailureReason_FAILURE_REASON_UNSPECIFIED
	if err == nil {
		return agentpb.OperationState_OPERATION_STATE_SUCCEEDED, none
	}
	if cause := context.Cause(ctx); cause != nil {
		switch {
		case errors.Is(cause, ErrCancelled):
			return agentpb.OperationState_OPERATION_STATE_CANCELLED, none
		case errors.Is(cause, ErrTimeout), errors.Is(cause, context.DeadlineExceeded):
			return agentpb.OperationState_OPERATION_STATE_FAILED, agentpb.FailureReason_FAILURE_REASON_TIMEOUT
		default:
			return agentpb.OperationState_OPERATION_STATE_INTERRUPTED, none
		}
	}
	if _, ended := errors.AsType[interrupted](err); ended {
		return agentpb.OperationState_OPERATION_STATE_INTERRUPTED, none
	}
	if known, ok := errors.AsType[*failure](err); ok {
		return agentpb.OperationState_OPERATION_STATE_FAILED, known.reason
	}
	return agentpb.OperationState_OPERATION_STATE_FAILED, agentpb.FailureReason_FAILURE_REASON_UPDATE_FAILED
}
