package client

import (
	"context"
	"errors"
	"fmt"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/stack-controller/stack-controller/internal/agent/agentpb"
)

// The kinds of errors that callers decide on; use errors.Is. If the context of a call is done, the error is that of the context.
var (
	// ErrSourceMissing means that the agent does not have the artifact of the operation; push it and start again.
	ErrSourceMissing = errors.New("the agent does not have the source")
	// ErrPlanMissing means that the agent does not have the plan of the operation; push it and start again.
	ErrPlanMissing = errors.New("the agent does not have the plan")
	// ErrBusy means that another operation is not done, or the source is being replaced; try again later.
	ErrBusy = errors.New("the agent is busy")
	// ErrNotFound means that the agent does not know the operation.
	ErrNotFound = errors.New("the agent does not know the operation")
	// ErrUnavailable means that the agent cannot be reached, does not answer in time, or is stopping. The call may or may not have had an
	// effect; every call may be repeated.
	ErrUnavailable = errors.New("the agent is unavailable")
	// ErrUnasked is the ErrUnavailable of a call that was given up early, because calls to other agents wait. It says nothing about the agent.
	ErrUnasked = fmt.Errorf("%w for now", ErrUnavailable)
	// ErrInvalid means that the request, or the archive, can never work.
	ErrInvalid = errors.New("the agent refuses the request")
	// ErrFetchFailed means that the agent could not download the artifact; try again later.
	ErrFetchFailed = errors.New("the agent cannot fetch the source")
	// ErrDigestMismatch means that the received content does not have the digest.
	ErrDigestMismatch = errors.New("the digest does not match")
	// ErrTooLarge means that a limit of the agent or of the protocol is exceeded.
	ErrTooLarge = errors.New("a limit of the agent is exceeded")
	// ErrPulumiUnsupported means that the version of the pulumi CLI in the workspace is not supported by the agent.
	ErrPulumiUnsupported = errors.New("the pulumi CLI is not supported")
	// errBadAnswer means that the answer of the agent was refused: it exceeds the limits or is malformed.
	errBadAnswer = errors.New("the answer of the agent is refused")
	// ErrDenied means that the agent does not accept the caller.
	ErrDenied = errors.New("the agent denies access")
)

// Error is a failed call.
type Error struct {
	// What describes what was attempted, and on what.
	What string
	// Message is the original message of the agent or of the transport. It has at most 32 KiB; the method Error shows the beginning of it as
	// readable text.
	Message string
	// Kind is one of the errors above, or nil if none of them fits.
	Kind error
	// Code is the gRPC status code of the answer.
	Code codes.Code
	// Answered is true if the error is an answer of the agent to a unary call. It is false if there was no answer, or if there was no token for
	// the call.
	Answered bool
}

// Error returns what was attempted, and the kind and message of the failure.
func (e *Error) Error() string {
	message := cleanText(e.Message, maxErrorText)
	if e.Kind == nil {
		return fmt.Sprintf("%s: %s: %s", e.What, e.Code, message)
	}
	return fmt.Sprintf("%s: %v: %s", e.What, e.Kind, message)
}

// Unwrap returns the kind.
func (e *Error) Unwrap() error {
	return e.Kind
}

// Unanswered reports whether a call failed without an answer, or with one that was refused: it may or may not have had an effect.
func Unanswered(err error) bool {
	failed := (*Error)(nil)
	return err != nil && (!errors.As(err, &failed) || errors.Is(err, ErrUnavailable) || errors.Is(err, errBadAnswer))
}

// Silent reports whether a unary call failed because the agent gave no answer, although it had the time for one.
func Silent(err error) bool {
	if failed, ok := errors.AsType[*Error](err); ok {
		return !failed.Answered && errors.Is(failed, ErrUnavailable) && !errors.Is(failed, ErrUnasked)
	}
	return errors.Is(err, context.DeadlineExceeded)
}

// deadlineSlack is how much earlier than the caller's own timer the agent may notice the caller's deadline.
const deadlineSlack = 100 * time.Millisecond

// wrap converts an error of the generated client into an error that callers can decide on. ctx is the caller's.
func wrap(ctx context.Context, what string, err error) error {
	if ctx.Err() != nil {
		return fmt.Errorf("%s: %w", what, ctx.Err())
	}
	answer := status.Convert(err)
	if deadline, ok := ctx.Deadline(); ok && answer.Code() == codes.DeadlineExceeded && time.Until(deadline) < deadlineSlack {
		return fmt.Errorf("%s: %w", what, context.DeadlineExceeded)
	}
	return &Error{What: what, Message: answer.Message(), Kind: kindOf(err, answer.Code()), Code: answer.Code()}
}

// kindOf returns the kind for a code of the protocol, or for a code that gRPC itself returns.
func kindOf(err error, code codes.Code) error {
	switch code {
	case codes.FailedPrecondition:
		return map[agentpb.Reason]error{
			agentpb.ReasonSourceMissing:     ErrSourceMissing,
			agentpb.ReasonPlanMissing:       ErrPlanMissing,
			agentpb.ReasonBusy:              ErrBusy,
			agentpb.ReasonFetchFailed:       ErrFetchFailed,
			agentpb.ReasonPulumiUnsupported: ErrPulumiUnsupported,
		}[agentpb.ReasonOf(err)]
	// DeadlineExceeded comes from the timeouts of this package, Canceled and Aborted from an agent that is stopping or has given up the call.
	case codes.Unavailable, codes.DeadlineExceeded, codes.Canceled, codes.Aborted:
		return ErrUnavailable
	case codes.Unauthenticated, codes.PermissionDenied:
		return ErrDenied
	}
	return map[codes.Code]error{
		codes.NotFound: ErrNotFound, codes.InvalidArgument: ErrInvalid, codes.DataLoss: ErrDigestMismatch, codes.ResourceExhausted: ErrTooLarge,
	}[code]
}
