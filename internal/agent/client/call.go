package client

import (
	"context"
	"errors"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"

	"github.com/stack-controller/stack-controller/internal/agent/agentpb"
)

// answerLimit limits the answer of a method.
type answerLimit struct {
	// size is the maximum size in bytes, fields the maximum number of fields.
	size, fields int
}

// The limits of the methods' answers. Only the answer of GetOperation has outputs.
var (
	infoAnswer      = answerLimit{size: agentpb.MaxInfoSize, fields: agentpb.MaxInfoFields}
	operationAnswer = answerLimit{size: agentpb.MaxOperationSize, fields: agentpb.MaxOperationFields}
	resultAnswer    = answerLimit{size: agentpb.MaxResultSize, fields: agentpb.MaxResultFields}
	planAnswer      = answerLimit{size: agentpb.MaxPlanPartSize, fields: agentpb.MaxPlanPartFields}
	emptyAnswer     = answerLimit{size: agentpb.MaxEmptySize, fields: agentpb.MaxEmptyFields}
)

// options returns the options that limit the answer of one call. After the call has failed because the answer was refused by the codec,
// refused is the reason.
func (a answerLimit) options() (options []grpc.CallOption, refused *error) {
	refused = new(error)
	codec := &agentpb.Codec{MaxFields: a.fields, Refused: func(err error) { *refused = err }}
	return []grpc.CallOption{grpc.MaxCallRecvMsgSize(a.size), grpc.ForceCodecV2(codec)}, refused
}

// failure returns the error of a call or of a stream, nil if it succeeded. If the codec refused the answer, refused is the reason. It reports
// credentials that the agent does not accept.
func (c *Client) failure(ctx context.Context, what string, refused, err error) error {
	switch {
	case err == nil:
		return nil
	case refused != nil:
		return &Error{What: what, Message: refused.Error(), Kind: errBadAnswer}
	case status.Code(err) == codes.Unauthenticated:
		c.rejected()
	}
	return wrap(ctx, what, err)
}

// call makes one unary call with a deadline.
func call[Request, Response any](
	ctx context.Context, c *Client, what string, limit answerLimit, request Request,
	method func(context.Context, Request, ...grpc.CallOption) (Response, error),
) (Response, error) {
	var none Response
	suspect := c.suspect.Load()
	timeout := callTimeout
	if suspect {
		timeout = suspectTimeout
	}
	limited, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	options, refused := limit.options()
	start := time.Now()
	bounded, done := c.group.wait(limited, suspect)
	var trailer metadata.MD
	response, err := method(bounded, request, append(options, grpc.Trailer(&trailer))...)
	crowded := errors.Is(context.Cause(bounded), errCrowded)
	inVain := err != nil && (crowded || time.Since(start) >= promptTime)
	c.suspect.Store(inVain)
	done(inVain)
	if err == nil {
		return response, nil
	}
	if crowded && ctx.Err() == nil && *refused == nil {
		return none, &Error{What: what, Message: errCrowded.Error(), Kind: ErrUnasked}
	}
	err = c.failure(ctx, what, *refused, err)
	if failed, ok := errors.AsType[*Error](err); ok {
		// Every answer has a trailer, if only with the type of its content; an error that gRPC made here has none.
		failed.Answered = *refused != nil || len(trailer) > 0
	}
	return none, err
}
