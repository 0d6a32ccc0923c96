package cloud

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/go-jose/go-jose/v4"
)

// Trust says which tokens the service exchanges for access tokens, as the registered issuer and its policy do in Pulumi Cloud.
type Trust struct {
	// Organization that the tokens are for, with the audience "urn:pulumi:org:ORGANIZATION".
	Organization string
	// Subject of the tokens.
	Subject string
	// Scope that is allowed: "", "team:NAME" or "user:NAME".
	Scope string
	// Key is the public key of the issuer, *ecdsa.PublicKey or *rsa.PublicKey.
	Key any
	// MaxExpiration is how long an access token may be valid; 0 for no limit.
	MaxExpiration time.Duration
	// Expired makes the client believe that an access token has expired as soon as the client has it.
	Expired bool
}

// Exchange is an access token that the service has issued.
type Exchange struct {
	// Type is the last part of the type of the access token: organization, team or personal.
	Type, Scope string
	// Expiration is what the client asked for.
	Expiration time.Duration
	// AccessToken begins with IssuedPrefix.
	AccessToken string
}

// IssuedPrefix begins every access token that the service issues for a token of an issuer.
const IssuedPrefix = "pul-issued-"

// Trust makes the service exchange such tokens from now on, and no others.
func (s *Server) Trust(trust Trust) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.trust = &trust
}

// Exchanges returns the access tokens that the service has issued, the oldest first.
func (s *Server) Exchanges() []Exchange {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.Clone(s.exchanges)
}

// Revoke makes the service refuse all access tokens that it has issued.
func (s *Server) Revoke() {
	s.mu.Lock()
	defer s.mu.Unlock()
	clear(s.issued)
}

// knows reports whether the access token is valid.
func (s *Server) knows(token string) bool {
	expires, issued := s.issued[token]
	return token == s.token && token != "" || issued && time.Now().Before(expires)
}

// exchange issues an access token for a token of the issuer, as in RFC 8693.
func (s *Server) exchange(request *http.Request) (int, any) {
	if err := request.ParseForm(); err != nil {
		return badRequest(err)
	}
	form := request.PostForm
	exchange := Exchange{Scope: form.Get("scope"), AccessToken: IssuedPrefix + rand.Text()}
	exchange.Type = strings.TrimPrefix(form.Get("requested_token_type"), "urn:pulumi:token-type:access_token:")
	seconds, err := strconv.Atoi(form.Get("expiration"))
	exchange.Expiration = time.Duration(seconds) * time.Second
	switch {
	case form.Get("grant_type") != "urn:ietf:params:oauth:grant-type:token-exchange":
		return badRequest(errors.New("unknown grant type"))
	case form.Get("subject_token_type") != "urn:ietf:params:oauth:token-type:id_token":
		return badRequest(errors.New("unknown type of the token"))
	case exchange.Type != typeOf(exchange.Scope):
		return badRequest(errors.New("the type of the access token does not fit the scope"))
	case err != nil || seconds <= 0:
		return badRequest(errors.New("invalid expiration"))
	}
	if err := s.trust.check(form.Get("audience"), exchange.Scope, form.Get("subject_token")); err != nil {
		return problem(http.StatusUnauthorized, "Unauthorized: "+err.Error())
	}
	if limit := s.trust.MaxExpiration; limit > 0 && exchange.Expiration > limit {
		return badRequest(fmt.Errorf("the expiration is more than %s", limit))
	}
	s.issued[exchange.AccessToken] = time.Now().Add(exchange.Expiration)
	s.exchanges = append(s.exchanges, exchange)
	if s.trust.Expired {
		seconds = 0
	}
	return http.StatusOK, map[string]any{
		"access_token": exchange.AccessToken, "token_type": "token", "expires_in": seconds, "scope": exchange.Scope,
		"issued_token_type": form.Get("requested_token_type"),
	}
}

// typeOf is the type of an access token with the scope.
func typeOf(scope string) string {
	switch kind, _, _ := strings.Cut(scope, ":"); kind {
	case "team":
		return "team"
	case "user":
		return "personal"
	}
	return "organization"
}

// check returns an error unless the token may be exchanged.
func (t *Trust) check(audience, scope, token string) error {
	if t == nil {
		return errors.New("no issuer is registered")
	}
	signed, err := jose.ParseSignedCompact(token, []jose.SignatureAlgorithm{jose.ES256, jose.RS256})
	if err != nil {
		return errors.New("no JSON Web Token")
	}
	payload, err := signed.Verify(t.Key)
	if err != nil {
		return errors.New("the signature is not that of the issuer")
	}
	var claims struct {
		Subject  string   `json:"sub"`
		Audience []string `json:"aud"`
		Expires  int64    `json:"exp"`
	}
	if err := json.Unmarshal(payload, &claims); err != nil {
		return errors.New("the token has no claims")
	}
	switch {
	case audience != "urn:pulumi:org:"+t.Organization || !slices.Contains(claims.Audience, audience):
		return errors.New("another audience")
	case claims.Subject != t.Subject:
		return errors.New("the subject is not allowed")
	case scope != t.Scope:
		return errors.New("the scope is not allowed")
	case !time.Now().Before(time.Unix(claims.Expires, 0)):
		return errors.New("the token has expired")
	}
	return nil
}

// Issuer signs tokens as the API server of a cluster does for ServiceAccounts.
type Issuer struct {
	key *ecdsa.PrivateKey
}

// NewIssuer returns an issuer with a new key.
func NewIssuer() (*Issuer, error) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return nil, fmt.Errorf("generate the key of the issuer: %w", err)
	}
	return &Issuer{key: key}, nil
}

// Key is what verifies the tokens.
func (i *Issuer) Key() *ecdsa.PublicKey { return &i.key.PublicKey }

// Token returns a token of the subject for an organization, which is valid for the time.
func (i *Issuer) Token(subject, organization string, valid time.Duration) (string, error) {
	payload, err := json.Marshal(map[string]any{
		"iss": "https://cluster.test", "sub": subject, "aud": []string{"urn:pulumi:org:" + organization}, "exp": time.Now().Add(valid).Unix(),
	})
	if err != nil {
		return "", fmt.Errorf("encode the claims of a token: %w", err)
	}
	signer, err := jose.NewSigner(jose.SigningKey{Algorithm: jose.ES256, Key: i.key}, (&jose.SignerOptions{}).WithType("JWT"))
	if err != nil {
		return "", fmt.Errorf("sign a token: %w", err)
	}
	signed, err := signer.Sign(payload)
	if err != nil {
		return "", fmt.Errorf("sign a token: %w", err)
	}
	return signed.CompactSerialize()
}
