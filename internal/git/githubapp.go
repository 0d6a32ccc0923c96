package git

import (
	"context"
	"crypto/rsa"
	"crypto/sha256"
	"crypto/x509"
	"encoding/hex"
	"encoding/json"
	"encoding/pem"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/go-jose/go-jose/v4"
	"github.com/go-jose/go-jose/v4/jwt"
	"golang.org/x/sync/singleflight"
)

const (
	// tokenMargin is how long before its end a token is not used any more. GitHub's are valid for an hour.
	tokenMargin = 5 * time.Minute

	// assertionLife is how long the proof of the App's identity is valid; GitHub accepts ten minutes at most.
	assertionLife = 9 * time.Minute

	// clockSkew is how much GitHub's clock may be behind.
	clockSkew = time.Minute

	maxTokenAnswer  = 256 << 10
	maxTokenLength  = 4096
	maxCachedTokens = 1000
)

// gitHubAPI is where GitHub documents the API of the installation that serves the host: github.com, an enterprise with data residency
// (NAME.ghe.com), or a GitHub Enterprise Server.
func gitHubAPI(host string) string {
	switch {
	case host == "github.com" || host == "www.github.com":
		return "https://api.github.com"
	case strings.HasSuffix(host, ".ghe.com"):
		return "https://api." + host
	default:
		return "https://" + host + "/api/v3"
	}
}

// appTokens exchanges GitHub Apps for tokens and keeps those until shortly before their end.
type appTokens struct {
	// now is the clock.
	now func() time.Time

	exchanges singleflight.Group
	mutex     sync.Mutex
	kept      map[string]appToken
}

type appToken struct {
	value   string
	expires time.Time
}

func newAppTokens() *appTokens { return &appTokens{now: time.Now, kept: map[string]appToken{}} }

// appKey identifies the token of an App. The whole Remote counts, so that a token never leaves the trust it was obtained with.
func (r *repository) appKey() string {
	remote := r.remote
	remote.URL, remote.RecurseSubmodules = r.client.options.GitHubAPI(r.endpoint.host), false
	remote.KnownHosts = nil
	digest := sha256.Sum256([]byte(remote.Key()))
	return hex.EncodeToString(digest[:])
}

// forget drops the token, which the server did not accept.
func (a *appTokens) forget(r *repository) {
	if r.remote.Auth.GitHubApp == nil {
		return
	}
	a.mutex.Lock()
	defer a.mutex.Unlock()
	delete(a.kept, r.appKey())
}

// token gives a token that is valid for some minutes at least. Callers at the same time share one exchange.
func (a *appTokens) token(ctx context.Context, r *repository, transport http.RoundTripper) (string, error) {
	key := r.appKey()
	if token, ok := a.get(key); ok {
		r.secrets.add(token)
		return token, nil
	}
	exchange := a.exchanges.DoChan(key, func() (any, error) {
		// Not the caller's context: others wait for the same answer.
		ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), r.client.options.Timeout)
		defer cancel()
		token, err := a.exchange(ctx, r, transport)
		if err != nil {
			return nil, err
		}
		a.put(key, token)
		return token.value, nil
	})
	select {
	case <-ctx.Done():
		return "", r.failure(ctx, "get a token for the GitHub App", ctx.Err())
	case result := <-exchange:
		if result.Err != nil {
			return "", result.Err
		}
		r.secrets.add(result.Val.(string))
		return result.Val.(string), nil
	}
}

func (a *appTokens) get(key string) (string, bool) {
	a.mutex.Lock()
	defer a.mutex.Unlock()
	token, found := a.kept[key]
	return token.value, found && a.now().Before(token.expires.Add(-tokenMargin))
}

func (a *appTokens) put(key string, token appToken) {
	a.mutex.Lock()
	defer a.mutex.Unlock()
	if len(a.kept) >= maxCachedTokens {
		clear(a.kept) // They are cheap to get again.
	}
	a.kept[key] = token
}

// exchange asks GitHub for a token.
func (a *appTokens) exchange(ctx context.Context, r *repository, transport http.RoundTripper) (appToken, error) {
	const attempt = "get a token for the GitHub App"
	app := r.remote.Auth.GitHubApp
	if number, err := strconv.ParseUint(strings.TrimSpace(app.InstallationID), 10, 63); err != nil || number == 0 {
		return appToken{}, r.fail(InvalidCredentials, "the installation ID of the GitHub App is not a number")
	}
	assertion, err := a.assertion(r, app)
	if err != nil {
		return appToken{}, err
	}
	address := strings.TrimSuffix(r.client.options.GitHubAPI(r.endpoint.host), "/") + "/app/installations/" +
		strings.TrimSpace(app.InstallationID) + "/access_tokens"
	request, err := http.NewRequestWithContext(ctx, http.MethodPost, address, nil)
	if err != nil {
		return appToken{}, r.fail(Other, "%s: the address of the API is not valid", attempt)
	}
	request.Header.Set("Authorization", "Bearer "+assertion)
	request.Header.Set("Accept", "application/vnd.github+json")
	request.Header.Set("X-GitHub-Api-Version", "2022-11-28")
	request.Header.Set("User-Agent", r.client.options.UserAgent)
	client := &http.Client{Transport: transport, CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }}
	response, err := client.Do(request)
	if err != nil {
		return appToken{}, r.failure(ctx, attempt, err)
	}
	defer response.Body.Close()
	if response.StatusCode != http.StatusCreated {
		return appToken{}, r.appStatus(response, a.now())
	}
	return a.readToken(ctx, r, response)
}

func (a *appTokens) readToken(ctx context.Context, r *repository, response *http.Response) (appToken, error) {
	const attempt = "get a token for the GitHub App"
	content, err := io.ReadAll(&boundedReader{source: response.Body, remaining: maxTokenAnswer})
	if err != nil {
		return appToken{}, r.failure(ctx, attempt, err)
	}
	var answer struct {
		Token     string    `json:"token"`
		ExpiresAt time.Time `json:"expires_at"`
	}
	if err := json.Unmarshal(content, &answer); err != nil || answer.Token == "" || len(answer.Token) > maxTokenLength {
		return appToken{}, r.fail(Unreachable, "%s: GitHub's answer has no token", attempt)
	}
	return appToken{value: answer.Token, expires: answer.ExpiresAt}, nil
}

// appStatus tells what a status other than 201 means.
func (r *repository) appStatus(response *http.Response, now time.Time) error {
	if wait, limited := rateLimit(response, now); limited {
		failed := r.fail(RateLimited, "GitHub wants fewer requests for tokens of the GitHub App (status %d)", response.StatusCode)
		failed.RetryAfter = wait
		return failed
	}
	switch response.StatusCode {
	case http.StatusUnauthorized:
		return r.fail(AuthenticationFailed, "GitHub does not accept the App's ID and private key (status 401)")
	case http.StatusForbidden:
		return r.fail(AuthenticationFailed, "GitHub refuses a token for the App; it may be suspended (status 403)")
	case http.StatusNotFound:
		return r.fail(AuthenticationFailed, "GitHub knows no such installation of the App (status 404)")
	default:
		return r.fail(Unreachable, "GitHub gives no token for the App (status %d)", response.StatusCode)
	}
}

// assertion is the signed proof of the App's identity.
func (a *appTokens) assertion(r *repository, app *GitHubApp) (string, error) {
	key, err := parseRSAKey(app.PrivateKey)
	if err != nil {
		return "", r.fail(InvalidCredentials, "the private key of the GitHub App %s", err)
	}
	id := strings.TrimSpace(app.AppID)
	if id == "" {
		return "", r.fail(InvalidCredentials, "the ID of the GitHub App is missing")
	}
	signer, err := jose.NewSigner(jose.SigningKey{Algorithm: jose.RS256, Key: key}, (&jose.SignerOptions{}).WithType("JWT"))
	if err != nil {
		return "", r.fail(InvalidCredentials, "the private key of the GitHub App cannot sign")
	}
	now := a.now()
	assertion, err := jwt.Signed(signer).Claims(jwt.Claims{Issuer: id, IssuedAt: jwt.NewNumericDate(now.Add(-clockSkew)),
		Expiry: jwt.NewNumericDate(now.Add(assertionLife))}).Serialize()
	if err != nil {
		return "", r.fail(InvalidCredentials, "the private key of the GitHub App cannot sign")
	}
	r.secrets.values = append(r.secrets.values, assertion)
	return assertion, nil
}

// parseRSAKey reads a key in the PEM format with PKCS#1, as GitHub hands it out, or PKCS#8. Its errors go on with "the private key".
func parseRSAKey(content []byte) (*rsa.PrivateKey, error) {
	block, _ := pem.Decode(content)
	if block == nil {
		return nil, errors.New("is not in the PEM format")
	}
	if key, err := x509.ParsePKCS1PrivateKey(block.Bytes); err == nil {
		return key, nil
	}
	parsed, err := x509.ParsePKCS8PrivateKey(block.Bytes)
	if err != nil {
		return nil, fmt.Errorf("cannot be parsed: it must be an RSA key with PKCS#1 or PKCS#8 inside, without a passphrase")
	}
	key, isRSA := parsed.(*rsa.PrivateKey)
	if !isRSA {
		return nil, errors.New("is not an RSA key")
	}
	return key, nil
}
