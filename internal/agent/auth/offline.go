package auth

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"sync"
	"time"

	"github.com/go-jose/go-jose/v4"
	"github.com/go-jose/go-jose/v4/jwt"
	"google.golang.org/grpc/codes"

	"github.com/stack-controller/stack-controller/internal/plaintext"
)

const (
	// leeway is the accepted difference between the clocks of the API server and of this node.
	leeway = 30 * time.Second

	discoveryPath, keysPath = "/.well-known/openid-configuration", "/openid/v1/jwks"
	// refreshInterval is the minimum time between two reads of the keys, however many tokens have unknown keys.
	refreshInterval = 10 * time.Second
	// keysAge is the age at which keys are read again. If that fails, the old ones are still used.
	keysAge = time.Hour
)

// algorithms returns the algorithms that API servers sign tokens with. Neither "none" nor symmetric algorithms are among them.
func algorithms() []jose.SignatureAlgorithm {
	return []jose.SignatureAlgorithm{jose.RS256, jose.RS384, jose.RS512, jose.ES256, jose.ES384, jose.ES512}
}

// decideOffline verifies the token with the public keys of the issuer, and accepts only the controller. It does not notice that a token was
// revoked before it expired.
func (a *Authorizer) decideOffline(ctx context.Context, token string) (decision, error) {
	claims, err := a.verify(ctx, token)
	var untrusted untrustedError
	switch {
	case errors.As(err, &untrusted):
		return deny(codes.Unauthenticated, "the token is not accepted for audience %s: %s", a.options.Audience, untrusted), nil
	case err != nil:
		return decision{}, err
	case claims.Subject != a.options.Controller:
		return deny(codes.PermissionDenied,
			"user %q is not the controller %q; to let others use workspace %s/%s, bind the agent's ServiceAccount to the ClusterRole system:auth-delegator",
			plaintext.Cut(claims.Subject, maxQuote), a.options.Controller, a.options.Namespace, a.options.Name), nil
	}
	return allow(claims.Expiry.Time()), nil
}

// untrustedError is the reason why a token is not valid here.
type untrustedError string

// Error returns the reason.
func (e untrustedError) Error() string {
	return string(e)
}

// verify returns the claims of a token that the issuer issued for this agent. The error is an untrustedError, or the reason why the token
// cannot be verified now. Errors of the parser are not included, because they quote their input.
func (a *Authorizer) verify(ctx context.Context, token string) (*jwt.Claims, error) {
	parsed, err := jwt.ParseSigned(token, algorithms())
	if err != nil || len(parsed.Headers) != 1 {
		return nil, untrustedError("it is not a JSON Web Token with a signature of a public key")
	}
	name, key, err := a.issuer.key(ctx, parsed.Headers[0].KeyID)
	if errors.Is(err, errUnknownKey) {
		return nil, untrustedError("it is not signed with a key of this cluster")
	}
	if err != nil {
		return nil, err
	}
	if key.Algorithm != "" && key.Algorithm != parsed.Headers[0].Algorithm {
		return nil, untrustedError("it is not signed as the key is meant to")
	}
	var claims jwt.Claims
	if err := parsed.Claims(key, &claims); err != nil {
		return nil, untrustedError("its signature does not match, or its claims are malformed")
	}
	return &claims, a.validate(&claims, name)
}

// validate checks the claims of the token. The audience of this agent has to be the only one: another recipient of a token with a second
// audience could replay it.
func (a *Authorizer) validate(claims *jwt.Claims, issuer string) error {
	now := time.Now()
	switch {
	case claims.Issuer != issuer:
		return untrustedError("it is of another issuer")
	case len(claims.Audience) != 1 || claims.Audience[0] != a.options.Audience:
		return untrustedError("it is for another audience")
	case claims.Expiry == nil:
		return untrustedError("it never ends")
	case now.After(claims.Expiry.Time().Add(leeway)):
		return untrustedError("it has ended")
	case claims.NotBefore != nil && now.Add(leeway).Before(claims.NotBefore.Time()),
		claims.IssuedAt != nil && now.Add(leeway).Before(claims.IssuedAt.Time()):
		return untrustedError("it is not valid yet; are the clocks right?")
	}
	return nil
}

// unverifiedEnd returns when a token expires that the API server has verified; zero if the token has no expiry.
func unverifiedEnd(token string) time.Time {
	parsed, err := jwt.ParseSigned(token, algorithms())
	if err != nil {
		return time.Time{}
	}
	var claims jwt.Claims
	if err := parsed.UnsafeClaimsWithoutVerification(&claims); err != nil || claims.Expiry == nil {
		return time.Time{}
	}
	return claims.Expiry.Time()
}

// errUnknownKey is the error when the issuer has no key with the id.
var errUnknownKey = errors.New("the issuer has no such key")

// issuer has the name and the public keys of the issuer of tokens. The keys always come from the API server itself, even if its
// configuration names another place for them.
type issuer struct {
	api *apiServer

	mu   sync.Mutex
	name string
	keys map[string]jose.JSONWebKey
	// read is when the keys were read, tried when the last attempt was made, and failure the error of that attempt.
	read, tried time.Time
	failure     error
}

// key returns the issuer's name and the key with the id. The error is errUnknownKey, or the reason why the keys are not known.
func (i *issuer) key(ctx context.Context, id string) (string, jose.JSONWebKey, error) {
	i.mu.Lock()
	defer i.mu.Unlock()
	key, known := i.keys[id]
	if !known || time.Since(i.read) > keysAge {
		i.refresh(ctx)
		key, known = i.keys[id]
	}
	switch {
	case known:
		return i.name, key, nil
	case i.failure != nil:
		return "", jose.JSONWebKey{}, i.failure
	}
	return "", jose.JSONWebKey{}, errUnknownKey
}

// refresh reads the keys, unless the last attempt was less than refreshInterval ago. If it fails, the keys stay as they are.
func (i *issuer) refresh(ctx context.Context) {
	if time.Since(i.tried) < refreshInterval {
		return
	}
	i.tried = time.Now()
	name, keys, err := i.fetch(ctx)
	if i.failure = err; err == nil {
		i.name, i.keys, i.read = name, keys, i.tried
	}
}

func (i *issuer) fetch(ctx context.Context) (string, map[string]jose.JSONWebKey, error) {
	var discovery struct {
		Issuer string `json:"issuer"`
	}
	if err := i.api.call(ctx, http.MethodGet, discoveryPath, nil, &discovery); err != nil {
		return "", nil, fmt.Errorf("read the issuer of tokens: %w", err)
	}
	if discovery.Issuer == "" {
		return "", nil, errors.New("read the issuer of tokens: the API server names none")
	}
	var set jose.JSONWebKeySet
	if err := i.api.call(ctx, http.MethodGet, keysPath, nil, &set); err != nil {
		return "", nil, fmt.Errorf("read the keys of the issuer of tokens: %w", err)
	}
	keys := map[string]jose.JSONWebKey{}
	for _, key := range set.Keys {
		// IsPublic is false for a symmetric key. Everybody who can verify with a symmetric key can also sign with it.
		if key.KeyID != "" && key.Valid() && key.IsPublic() && (key.Use == "" || key.Use == "sig") {
			keys[key.KeyID] = key
		}
	}
	return discovery.Issuer, keys, nil
}
