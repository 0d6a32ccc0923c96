package auth

import (
	"context"
	"errors"
	"time"

	"github.com/go-jose/go-jose/v4"
	"github.com/go-jose/go-jose/v4/jwt"
	"google.golang.org/grpc/codes"
)

// leeway is how far the clocks of the API server and of this node may be apart.
const leeway = 30 * time.Second

// algorithms are those that API servers sign with. Neither "none" nor the symmetric ones are among them.
func algorithms() []jose.SignatureAlgorithm {
	return []jose.SignatureAlgorithm{jose.RS256, jose.RS384, jose.RS512, jose.ES256, jose.ES384, jose.ES512}
}

// decideOffline verifies the token with the public keys of the issuer, and accepts the controller only. It does not
// notice when a token was revoked before its end.
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
			bounded(claims.Subject), a.options.Controller, a.options.Namespace, a.options.Name), nil
	}
	return allow(claims.Expiry.Time()), nil
}

// untrustedError says why a token proves nothing.
type untrustedError string

// Error returns the reason.
func (e untrustedError) Error() string {
	return string(e)
}

// verify returns the claims of a token that the issuer made for this agent. The error is an untrustedError, or why that
// cannot be found out. Errors of the parser are left out, because they quote what they parse.
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

// validate checks what the claims say about the token. A token with a second audience could be replayed by whoever else
// receives it, so ours has to be the only one.
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

// unverifiedEnd returns when a token ends that somebody else has verified; zero when it does not say.
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
