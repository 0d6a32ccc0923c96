package credentials

import (
	"context"
	"errors"
	"fmt"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
)

// ErrNoServiceAccount says that the controller does not run as a ServiceAccount, so that there is no token for it.
var ErrNoServiceAccount = errors.New("the controller does not run as a ServiceAccount")

// TokenError says why the controller has no token for a call. gRPC ends the call with its code: Unauthenticated when
// the API server does not know or does not let the controller, which somebody has to mend, Unavailable when it may
// work later.
type TokenError struct {
	// Audience is whom the token was meant for.
	Audience string
	// Err is what the API server, or the way to it, said. It holds no token.
	Err error
}

// Error says what was attempted and what came of it.
func (e *TokenError) Error() string {
	return fmt.Sprintf("get a token of the controller for audience %s: %v", e.Audience, e.Err)
}

// Unwrap returns the cause.
func (e *TokenError) Unwrap() error {
	return e.Err
}

// GRPCStatus makes gRPC end the call with this code.
func (e *TokenError) GRPCStatus() *status.Status {
	return status.New(e.code(), e.Error())
}

func (e *TokenError) code() codes.Code {
	switch {
	case errors.Is(e.Err, ErrNoServiceAccount), apierrors.IsUnauthorized(e.Err), apierrors.IsForbidden(e.Err),
		apierrors.IsNotFound(e.Err), apierrors.IsInvalid(e.Err):
		return codes.Unauthenticated
	case errors.Is(e.Err, context.Canceled):
		return codes.Canceled
	case errors.Is(e.Err, context.DeadlineExceeded):
		return codes.DeadlineExceeded
	}
	return codes.Unavailable
}
