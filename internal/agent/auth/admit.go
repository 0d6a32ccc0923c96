package auth

import (
	"context"
	"sync"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/grpc/tap"
)

const (
	// maxUnproven is how many calls at a time may have a token that nobody has decided on yet. gRPC reads the whole request
	// before the interceptors see the call, and a request may have megabytes: this bounds what strangers can make it hold.
	maxUnproven = 16
	// unprovenTimeout is how long such a call may take until its request is here and its token was decided on.
	unprovenTimeout = 20 * time.Second
)

// admit looks at the headers of a call before anything of its request is read. It must not wait, because the connection
// waits for it: it only refuses what is refused for certain and counts what is not known yet.
func (a *Authorizer) admit(ctx context.Context, info *tap.Info) (context.Context, error) {
	token, err := bearerToken(info.Header)
	if err != nil {
		return ctx, a.malformed(err)
	}
	known, ok := a.cache.get(keyOf(token))
	switch now := time.Now(); {
	case ok && known.err != nil && now.Before(known.until):
		return ctx, known.err
	case ok && known.err == nil && (now.Before(known.until) || now.Before(known.tokenEnd)):
		return ctx, nil
	}
	return a.unproven.take(ctx)
}

// slots are the places of calls that are not proven; a value in the channel is a place that is taken.
type slots chan struct{}

// provenKey is the key of what frees the place of a call, in its context.
type provenKey struct{}

// take gives the call a place until it is proven or ends, which is after unprovenTimeout at the latest.
func (s slots) take(ctx context.Context) (context.Context, error) {
	select {
	case s <- struct{}{}:
	default:
		return ctx, status.Error(codes.Unavailable, "too many calls with unknown tokens wait for a decision; try again")
	}
	ctx, cancel := context.WithCancel(ctx)
	timer := time.AfterFunc(unprovenTimeout, cancel)
	free := sync.OnceFunc(func() {
		timer.Stop()
		<-s
	})
	context.AfterFunc(ctx, free)
	return context.WithValue(ctx, provenKey{}, free), nil
}

// prove frees the place of a call that was authorised.
func prove(ctx context.Context) {
	if free, ok := ctx.Value(provenKey{}).(func()); ok {
		free()
	}
}
