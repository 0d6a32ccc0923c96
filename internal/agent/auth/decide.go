package auth

import (
	"context"
	"errors"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

const (
	// decideTimeout bounds a decision with all its requests.
	decideTimeout = 10 * time.Second
	// offlineTime is how long the API server is not asked again after it has said that the agent may not ask.
	offlineTime = 10 * time.Minute
	// awayTime is how long an older decision counts before the API server that was away is tried again.
	awayTime = 10 * time.Second
)

// authorize returns nil when the bearer of the token may call the agent. Otherwise the error is a gRPC status:
// Unauthenticated for a token that proves nothing here, PermissionDenied for a user who may not, and Unavailable when
// that cannot be found out now.
func (a *Authorizer) authorize(ctx context.Context, token string) error {
	k := keyOf(token)
	known, ok := a.cache.get(k)
	now := time.Now()
	if ok && now.Before(known.until) {
		return known.err
	}
	trusted := ok && known.err == nil && now.Before(known.tokenEnd)
	if !trusted && !a.limit.Allow() {
		return status.Error(codes.Unavailable, "too many calls with unknown tokens; try again")
	}
	// Whoever comes first decides for all, and must not take the decision along when it goes.
	outcome := a.reviews.DoChan(string(k[:]), func() (any, error) {
		ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), decideTimeout)
		defer cancel()
		d, err := a.decide(ctx, token)
		if err != nil {
			if !trusted {
				return nil, status.Errorf(codes.Unavailable, "the token cannot be verified now: %v; try again", err)
			}
			a.log.Warn("a token that was accepted before is accepted on", "reason", err.Error(), "tokenEnd", known.tokenEnd)
			d = known
			d.until = earlier(time.Now().Add(awayTime), known.tokenEnd)
		}
		a.cache.put(k, d)
		return nil, d.err
	})
	select {
	case <-ctx.Done():
		return status.FromContextError(ctx.Err()).Err()
	case result := <-outcome:
		return result.Err
	}
}

// decide decides on a token. The error says why nothing can be decided now.
func (a *Authorizer) decide(ctx context.Context, token string) (decision, error) {
	if a.offline() {
		return a.decideOffline(ctx, token)
	}
	d, err := a.decideOnline(ctx, token)
	var forbidden *forbiddenError
	if !errors.As(err, &forbidden) {
		if err == nil {
			a.online.Do(func() { a.log.Info("the API server is asked who calls the agent and whether that user may") })
		}
		return d, err
	}
	a.goOffline(forbidden)
	return a.decideOffline(ctx, token)
}

func (a *Authorizer) offline() bool {
	a.mu.Lock()
	defer a.mu.Unlock()
	return time.Now().Before(a.offlineUntil)
}

func (a *Authorizer) goOffline(because error) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.offlineUntil.IsZero() {
		a.log.Info("the agent's ServiceAccount may not ask the API server about callers: tokens are verified with its public keys and "+
			"only the controller is accepted; the ClusterRole system:auth-delegator would let the agent ask",
			"controller", a.options.Controller, "answer", because.Error())
	}
	a.offlineUntil = time.Now().Add(offlineTime)
}

// allow is the decision for a token that is accepted until it ends; a zero time means that this is not known.
func allow(tokenEnd time.Time) decision {
	until := time.Now().Add(allowTime)
	if !tokenEnd.IsZero() {
		until = earlier(until, tokenEnd)
	}
	return decision{until: until, tokenEnd: tokenEnd}
}

// deny is the decision for a token that is refused with this status.
func deny(code codes.Code, format string, args ...any) decision {
	return decision{err: status.Errorf(code, format, args...), until: time.Now().Add(denyTime)}
}

func earlier(a, b time.Time) time.Time {
	if a.Before(b) {
		return a
	}
	return b
}
