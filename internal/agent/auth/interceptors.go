package auth

import (
	"context"
	"errors"
	"fmt"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"
)

// maxStreamAge is how long a stream may go on after its call was authorised. A watch outlives the token that it began
// with, because an operation takes longer than a token lives; but whoever lost the right to use the workspace does not
// watch it for ever. The client calls again, with a new token.
const maxStreamAge = time.Hour

// unary authorises a call with one request.
func (a *Authorizer) unary(ctx context.Context, request any, info *grpc.UnaryServerInfo, handler grpc.UnaryHandler) (any, error) {
	if err := a.check(ctx, info.FullMethod); err != nil {
		return nil, err
	}
	return handler(ctx, request)
}

// stream authorises a stream, when it begins.
func (a *Authorizer) stream(service any, stream grpc.ServerStream, info *grpc.StreamServerInfo, handler grpc.StreamHandler) error {
	if err := a.check(stream.Context(), info.FullMethod); err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(stream.Context(), a.streamAge)
	defer cancel()
	err := handler(service, &agingStream{ServerStream: stream, ctx: ctx})
	if err != nil && errors.Is(ctx.Err(), context.DeadlineExceeded) && stream.Context().Err() == nil {
		return status.Errorf(codes.Unavailable, "the call has lasted %s; call again to be authorised anew", a.streamAge)
	}
	return err
}

// agingStream is a stream with the context that ends it.
type agingStream struct {
	grpc.ServerStream
	ctx context.Context
}

// Context implements grpc.ServerStream.
func (s *agingStream) Context() context.Context {
	return s.ctx
}

// check authorises the call whose context this is.
func (a *Authorizer) check(ctx context.Context, method string) error {
	headers, _ := metadata.FromIncomingContext(ctx)
	token, err := bearerToken(headers)
	if err != nil {
		return a.malformed(err)
	}
	if err := a.authorize(ctx, token); err != nil {
		if a.logLimit.Allow() {
			a.log.Warn("call refused", "method", method, "reason", status.Convert(err).Message())
		}
		return err
	}
	prove(ctx)
	return nil
}

// malformed refuses a call without a usable token.
func (a *Authorizer) malformed(err error) error {
	return status.Error(codes.Unauthenticated, fmt.Sprintf("%v; it needs a token for audience %s", err, a.options.Audience))
}
