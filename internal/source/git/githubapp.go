package git

import (
	"context"
	"crypto/rsa"
	"encoding/json"
	"errors"
	"net/http"
	"strconv"
	"strings"
	"time"

	"github.com/go-jose/go-jose/v4"
	"github.com/go-jose/go-jose/v4/jwt"
	"golang.org/x/crypto/ssh"
	"golang.org/x/sync/singleflight"
	"k8s.io/utils/lru"

	"github.com/stack-controller/stack-controller/internal/file"
)

const (
	// tokenMargin is how long before its expiry a token is no longer used. The tokens of GitHub are valid for an hour.
	tokenMargin = 5 * time.Minute

	// assertionLife is how long the proof of the App's identity is valid; GitHub accepts ten minutes at most.
	assertionLife = 9 * time.Minute

	// clockSkew is how much GitHub's clock may be behind.
	clockSkew = time.Minute

	// tokenSettling is how old a token is when all servers of GitHub know it. A younger one is refused by some, as if it were invalid, or the
	// repository did not exist.
	tokenSettling = time.Minute

	// renewalAge is, in multiples of tokenSettling, how old a token is at least that is replaced because the App may not read a repository:
	// all its repositories share the token, and servers may refuse each new one for a while.
	renewalAge = 5

	maxTokenAnswer  = 256 << 10
	maxTokenLength  = 4096
	maxCachedTokens = 1000

	attemptToken = "get a token for the GitHub App"
)

// ErrNewToken is in the chain of an Error of a server that may not know a new token of a GitHub App yet. It says nothing about what the App
// may read.
var ErrNewToken = errors.New("the token is new")

// defaultTokenWaits returns the times between the attempts with a new token.
func defaultTokenWaits() []time.Duration {
	return []time.Duration{time.Second, 2 * time.Second, 4 * time.Second}
}

// gitHubAPI returns the address of the API that issues tokens for the repository. Without a BaseURL it is the address that GitHub documents
// for the host: github.com, an enterprise with data residency (NAME.ghe.com), or a GitHub Enterprise Server.
func (r *repository) gitHubAPI() string {
	app, host := r.remote.Auth.GitHubApp, r.endpoint.host
	switch {
	case app != nil && app.BaseURL != "":
		return strings.TrimSuffix(strings.TrimSpace(app.BaseURL), "/")
	case host == "github.com" || host == "www.github.com":
		return "https://api.github.com"
	case strings.HasSuffix(host, ".ghe.com"):
		return "https://api." + host
	default:
		return "https://" + bracketed(host) + "/api/v3"
	}
}

// appTokens gets tokens for GitHub Apps, and keeps them until shortly before they expire.
type appTokens struct {
	exchanges singleflight.Group
	kept      *lru.Cache
}

// appToken is a token as the API returns it.
type appToken struct {
	Value     string    `json:"token"`
	ExpiresAt time.Time `json:"expires_at"`
	// issued is when it was obtained.
	issued time.Time
}

func newAppTokens() *appTokens { return &appTokens{kept: lru.New(maxCachedTokens)} }

// appKey identifies the token of an App. It includes all credentials and trust settings of the Remote but known hosts, so that a token is
// used only with those that it was obtained with.
func (r *repository) appKey() string {
	remote := r.remote
	remote.URL, remote.RecurseSubmodules, remote.KnownHosts = r.gitHubAPI(), false, nil
	return remote.Key()
}

// hasNewToken reports whether the request was sent with a token that servers may not know yet.
func (r *repository) hasNewToken(now time.Time) bool {
	return !r.tokenIssued.IsZero() && now.Sub(r.tokenIssued) < r.client.tokenSettling
}

// mayRenew reports whether another token may be accepted where the server refused the one of the request with the status: it may have been
// revoked, or what the App may read may have changed since it was issued.
func (r *repository) mayRenew(status int, now time.Time) bool {
	return status == http.StatusUnauthorized || now.Sub(r.tokenIssued) >= renewalAge*r.client.tokenSettling
}

// invalidate drops the token that the server did not accept, unless there is another one already.
func (a *appTokens) invalidate(r *repository) {
	key := r.appKey()
	if known, found := a.kept.Get(key); found && known.(appToken).issued.Equal(r.tokenIssued) {
		a.kept.Remove(key)
	}
}

// token returns a token that is valid for some minutes at least. Concurrent callers with the same key share one exchange.
func (a *appTokens) token(ctx context.Context, r *repository, transport http.RoundTripper) (appToken, error) {
	key := r.appKey()
	if token := a.valid(key); token.Value != "" {
		return token, nil
	}
	exchange := a.exchanges.DoChan(key, func() (value any, err error) {
		defer func() {
			if recover() != nil { // a panic in this goroutine would end the process
				value, err = appToken{}, r.fail(Other, "%s: an internal error", attemptToken)
			}
		}()
		// Another exchange may have ended since.
		if token := a.valid(key); token.Value != "" {
			return token, nil
		}
		// Not the caller's context: others wait for the same answer.
		ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), r.client.options.Timeout)
		defer cancel()
		token, err := r.exchange(ctx, transport)
		if err == nil {
			token.issued = time.Now()
			a.kept.Add(key, token)
		}
		return token, err
	})
	select {
	case <-ctx.Done():
		return appToken{}, r.failure(ctx, attemptToken, ctx.Err())
	case result := <-exchange:
		return result.Val.(appToken), result.Err
	}
}

// valid returns the token that is kept under the key; an empty one when there is none that is valid for some minutes.
func (a *appTokens) valid(key string) appToken {
	known, _ := a.kept.Get(key)
	if token, _ := known.(appToken); time.Now().Before(token.ExpiresAt.Add(-tokenMargin)) {
		return token
	}
	return appToken{}
}

// exchange asks GitHub for a token of the App.
func (r *repository) exchange(ctx context.Context, transport http.RoundTripper) (appToken, error) {
	app := r.remote.Auth.GitHubApp
	assertion, err := r.assertion(app)
	if err != nil {
		return appToken{}, err
	}
	installation := strings.TrimSpace(app.InstallationID)
	if owner := strings.TrimSpace(app.InstallationOwner); installation == "" && owner != "" {
		var answer struct {
			ID uint64 `json:"id"`
		}
		// The owner is an organization or a user.
		status, err := r.askAPI(ctx, transport, assertion, http.MethodGet, &answer, "orgs", owner, "installation")
		if status == http.StatusNotFound {
			_, err = r.askAPI(ctx, transport, assertion, http.MethodGet, &answer, "users", owner, "installation")
		}
		if err != nil {
			return appToken{}, err
		}
		installation = strconv.FormatUint(answer.ID, 10)
	}
	if number, err := strconv.ParseUint(installation, 10, 63); err != nil || number == 0 {
		return appToken{}, r.fail(InvalidCredentials, "the installation ID of the GitHub App is not a number")
	}
	var token appToken
	if _, err := r.askAPI(ctx, transport, assertion, http.MethodPost, &token, "app", "installations", installation, "access_tokens"); err != nil {
		return appToken{}, err
	}
	if token.Value == "" || len(token.Value) > maxTokenLength {
		return appToken{}, r.fail(Unreachable, "%s: GitHub's answer has no token", attemptToken)
	}
	return token, nil
}

// assertion returns the signed proof of the App's identity. The key of the App is PEM with PKCS#1 inside, as GitHub hands it out, or
// PKCS#8.
func (r *repository) assertion(app *GitHubApp) (string, error) {
	if err := r.checkKeySize(app.PrivateKey); err != nil {
		return "", err
	}
	key, err := ssh.ParseRawPrivateKey(app.PrivateKey)
	if err != nil {
		return "", r.fail(InvalidCredentials, "the private key of the GitHub App cannot be parsed: it must be an RSA key in the PEM format, without a passphrase")
	}
	if private, ok := key.(*rsa.PrivateKey); ok {
		if err := r.checkKeyBits(&private.PublicKey); err != nil {
			return "", err
		}
	}
	id := strings.TrimSpace(app.AppID)
	if id == "" {
		return "", r.fail(InvalidCredentials, "the ID of the GitHub App is missing")
	}
	signer, err := jose.NewSigner(jose.SigningKey{Algorithm: jose.RS256, Key: key}, (&jose.SignerOptions{}).WithType("JWT"))
	if err != nil {
		return "", r.fail(InvalidCredentials, "the private key of the GitHub App is not an RSA key")
	}
	now := time.Now()
	assertion, err := jwt.Signed(signer).Claims(jwt.Claims{Issuer: id, IssuedAt: jwt.NewNumericDate(now.Add(-clockSkew)),
		Expiry: jwt.NewNumericDate(now.Add(assertionLife))}).Serialize()
	if err != nil {
		return "", r.fail(InvalidCredentials, "the private key of the GitHub App cannot sign")
	}
	r.secrets.values = append(r.secrets.values, assertion)
	return assertion, nil
}

// askAPI sends a request to GitHub's API as the App, and decodes the answer. A tenant may choose any address. So it has to be one that a
// repository could have, only paths of this API are requested there, redirects are not followed, and the message shows only the status of
// the answer.
func (r *repository) askAPI(ctx context.Context, transport http.RoundTripper, assertion, method string, answer any, path ...string) (status int, err error) {
	base, err := parseBase(r.gitHubAPI())
	if err != nil {
		return 0, r.fail(InvalidCredentials, "the address of the API of GitHub is %s", err.Error())
	}
	address, err := base.appendPath(path...)
	if err != nil {
		return 0, r.fail(InvalidCredentials, "the owner of the installation of the GitHub App is %s", err.Error())
	}
	request, err := http.NewRequestWithContext(ctx, method, address.String(), nil)
	if err != nil {
		return 0, r.failure(ctx, attemptToken, err)
	}
	request.Header.Set("Authorization", "Bearer "+assertion)
	request.Header.Set("Accept", "application/vnd.github+json")
	request.Header.Set("X-GitHub-Api-Version", "2022-11-28")
	request.Header.Set("User-Agent", "stack-controller")
	var response *http.Response
	if err = r.checkHost(request.URL.Hostname()); err == nil {
		response, err = transport.RoundTrip(request)
	}
	if err != nil {
		return 0, r.failure(ctx, attemptToken, err)
	}
	defer response.Body.Close()
	return response.StatusCode, r.readAPI(ctx, response, time.Now(), answer)
}

func (r *repository) readAPI(ctx context.Context, response *http.Response, now time.Time, answer any) error {
	if wait, limited := rateLimit(response, now); limited {
		failed := r.fail(RateLimited, "GitHub wants fewer requests for tokens of the GitHub App (status %d)", response.StatusCode)
		failed.RetryAfter = wait
		return failed
	}
	switch response.StatusCode {
	case http.StatusOK, http.StatusCreated:
	case http.StatusUnauthorized:
		return r.fail(AuthenticationFailed, "GitHub does not accept the App's ID and private key (status 401)")
	case http.StatusForbidden:
		return r.fail(AuthenticationFailed, "GitHub refuses a token for the App; it may be suspended (status 403)")
	case http.StatusNotFound:
		return r.fail(AuthenticationFailed, "GitHub knows no such installation of the App (status 404)")
	default:
		return r.fail(Unreachable, "GitHub gives no token for the App (status %d)", response.StatusCode)
	}
	content, err := file.ReadAll(response.Body, maxTokenAnswer)
	if err == nil {
		err = json.Unmarshal(content, answer)
	}
	switch {
	case err == nil:
		return nil
	case ctx.Err() != nil:
		return r.failure(ctx, attemptToken, err)
	}
	return r.fail(Unreachable, "%s: GitHub's answer cannot be read", attemptToken)
}
