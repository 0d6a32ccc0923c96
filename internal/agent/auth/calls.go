package auth

import (
	"context"
	"errors"
	"fmt"
	"regexp"
	"sync"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"
	"google.golang.org/grpc/tap"
)

const (
	// maxTokenSize is the maximum length of a token, in bytes.
	maxTokenSize = 16 << 10
	// maxUnproven is how many calls at a time may have a token without a decision. gRPC reads the whole request before interceptors run, and a
	// request may have megabytes: this bounds the memory that unknown callers can use.
	maxUnproven = 16
	// undecidedTimeout is how long such a call may take until its request is read and its token is decided on.
	undecidedTimeout = 20 * time.Second
	// maxStreamAge is how long a stream may last after its call was authorised. A watch may outlive the token that it began with, because an
	// operation takes longer than the life of a token. But a user who loses the right to use the workspace must not watch it for ever. The
	// client calls again, with a new token.
	maxStreamAge = time.Hour
)

// bearer matches the header of RFC 6750.
var bearer = regexp.MustCompile(`^(?i:bearer) ([-._~+/=A-Za-z0-9]+)$`)

// bearerToken returns the token in the headers of a call.
func bearerToken(headers metadata.MD) (string, error) {
	values := headers.Get("authorization")
	switch {
	case len(values) == 0:
		return "", errors.New("the call has no bearer token")
	case len(values) > 1:
		return "", errors.New("the call has more than one authorization header")
	}
	match := bearer.FindStringSubmatch(values[0])
	switch {
	case match == nil:
		return "", errors.New("the authorization header is not of the form: Bearer TOKEN")
	case len(match[1]) > maxTokenSize:
		return "", errors.New("the bearer token is longer than 16 KiB")
	}
	return match[1], nil
}

// malformed returns the error for a call without a usable token.
func (a *Authorizer) malformed(err error) error {
	return status.Error(codes.Unauthenticated, fmt.Sprintf("%v; it needs a token for audience %s", err, a.options.Audience))
}

// admit decides from the headers of a call, before its request is read. It must not block, because the connection waits for it: it refuses
// only calls that are certain to be refused, and counts calls with an unknown token.
func (a *Authorizer) admit(ctx context.Context, info *tap.Info) (context.Context, error) {
	token, err := bearerToken(info.Header)
	if err != nil {
		return ctx, a.malformed(err)
	}
	known, ok := a.cache.get(keyOf(token))
	now := time.Now()
	if ok && (now.Before(known.until) || known.err == nil && now.Before(known.tokenEnd)) {
		return ctx, known.err
	}
	return a.undecided.take(ctx)
}

// undecidedCalls are the places of calls whose token has no decision yet. A value in the channel is a place that is taken.
type undecidedCalls chan struct{}

// releaseKey is the context key of the function that frees the place of a call.
type releaseKey struct{}

// take gives the call a place until the call is authorised or ends, which is after undecidedTimeout at the latest.
func (s undecidedCalls) take(ctx context.Context) (context.Context, error) {
	select {
	case s <- struct{}{}:
	default:
		return ctx, status.Error(codes.Unavailable, "too many calls with unknown tokens wait for a decision; try again")
	}
	ctx, cancel := context.WithCancel(ctx)
	timer := time.AfterFunc(undecidedTimeout, cancel)
	free := sync.OnceFunc(func() {
		timer.Stop()
		<-s
	})
	context.AfterFunc(ctx, free)
	return context.WithValue(ctx, releaseKey{}, free), nil
}

// prove frees the place of a call that was authorised.
func prove(ctx context.Context) {
	if free, ok := ctx.Value(releaseKey{}).(func()); ok {
		free()
	}
}

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

// agingStream is a stream with a context that ends after the maximum age.
type agingStream struct {
	grpc.ServerStream
	ctx context.Context
}

// Context implements grpc.ServerStream.
func (s *agingStream) Context() context.Context {
	return s.ctx
}

// check authorises the call with this context.
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
