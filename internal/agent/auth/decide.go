package auth

import (
	"context"
	"crypto/sha256"
	"errors"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"k8s.io/utils/lru"
)

const (
	// decideTimeout bounds a decision with all its requests.
	decideTimeout = 10 * time.Second
	// offlineTime is how long the agent does not ask the API server again after it was forbidden to ask.
	offlineTime = 10 * time.Minute
	// awayTime is how long an older decision is used before an API server that was unavailable is tried again.
	awayTime = 10 * time.Second
	// maxEntries is how many accepted tokens, and how many refused ones, are cached. The least recently used one is removed first. A flood
	// consists of refused tokens, so it removes no accepted ones.
	maxEntries = 500
	// allowTime and denyTime are how long a decision is used at most. allowTime is the maximum delay until a revoked right is noticed, and
	// denyTime until a granted right is.
	allowTime, denyTime = 5 * time.Minute, 5 * time.Second
)

// authorize returns nil if the bearer of the token may call the agent. Otherwise the error is a gRPC status: Unauthenticated for a token
// that is not valid here, PermissionDenied for a user without the right, and Unavailable if no decision is possible now.
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
	// The first call decides for all calls with this token, so the decision must not end when that call is cancelled.
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
			if d.until = time.Now().Add(awayTime); known.tokenEnd.Before(d.until) {
				d.until = known.tokenEnd
			}
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

// decide decides on a token. It returns an error if no decision is possible now.
func (a *Authorizer) decide(ctx context.Context, token string) (decision, error) {
	if until := a.offlineUntil.Load(); until != nil && time.Now().Before(*until) {
		return a.decideOffline(ctx, token)
	}
	d, err := a.decideOnline(ctx, token)
	if forbidden, ok := errors.AsType[*forbiddenError](err); ok {
		a.goOffline(forbidden)
		return a.decideOffline(ctx, token)
	}
	// A ServiceAccount that was created again has another UID, and kubelet renews the token much later. The keys of the cluster stay the same.
	if _, ok := errors.AsType[*unauthorizedError](err); ok && a.offlineUntil.Load() != nil {
		return a.decideOffline(ctx, token)
	}
	if err == nil {
		a.online.Do(func() { a.log.Info("the API server is asked who calls the agent and whether that user may") })
	}
	return d, err
}

func (a *Authorizer) goOffline(because error) {
	until := time.Now().Add(offlineTime)
	if a.offlineUntil.Swap(&until) == nil {
		a.log.Info("the agent's ServiceAccount may not ask the API server about callers: tokens are verified with its public keys and "+
			"only the controller is accepted; the ClusterRole system:auth-delegator would let the agent ask",
			"controller", a.options.Controller, "answer", because.Error())
	}
}

// key identifies a token by its SHA-256, so that no tokens accumulate in the memory of the agent.
type key [sha256.Size]byte

func keyOf(token string) key {
	return sha256.Sum256([]byte(token))
}

// decision is the decision on a token.
type decision struct {
	// err is the gRPC status of a refused call; nil if the call is allowed.
	err error
	// until is the time until which the decision is used.
	until time.Time
	// tokenEnd is when an accepted token expires; zero if that is not known.
	tokenEnd time.Time
}

// allow returns the decision for a token that is accepted until it expires; tokenEnd is zero if that is not known.
func allow(tokenEnd time.Time) decision {
	until := time.Now().Add(allowTime)
	if !tokenEnd.IsZero() && tokenEnd.Before(until) {
		until = tokenEnd
	}
	return decision{until: until, tokenEnd: tokenEnd}
}

// deny returns the decision for a token that is refused with this status.
func deny(code codes.Code, format string, args ...any) decision {
	return decision{err: status.Errorf(code, format, args...), until: time.Now().Add(denyTime)}
}

// cache remembers the latest decisions. It is safe for concurrent use.
type cache struct {
	accepted, refused *lru.Cache
}

func newCache(size int) *cache {
	return &cache{accepted: lru.New(size), refused: lru.New(size)}
}

// get returns the decision on the token, no matter how old it is.
func (c *cache) get(k key) (decision, bool) {
	known, found := c.accepted.Get(k)
	if !found {
		known, found = c.refused.Get(k)
	}
	d, _ := known.(decision)
	return d, found
}

// put remembers the decision. A refusal never pushes out a token that is accepted.
func (c *cache) put(k key, d decision) {
	if d.err == nil {
		c.refused.Remove(k)
		c.accepted.Add(k, d)
		return
	}
	c.accepted.Remove(k)
	c.refused.Add(k, d)
}
