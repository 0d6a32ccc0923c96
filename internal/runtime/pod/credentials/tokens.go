package credentials

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"strings"
	"sync"
	"time"

	"golang.org/x/sync/singleflight"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/status"
	authenticationv1 "k8s.io/api/authentication/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
)

const (
	// tokenSeconds is the life of a token that is asked for, the shortest that the API server gives.
	tokenSeconds = 600
	// requestTimeout bounds a request to the API server.
	requestTimeout = 10 * time.Second
	// requestRate and requestBurst bound the requests per second. A restarted controller asks once per workspace that
	// it talks to, and again before each token ends.
	requestRate, requestBurst = 50, 100
	// retryInterval is how long a token that could not be renewed, and is still good, is used before the next attempt.
	retryInterval = 10 * time.Second
	// dropAge is how old a token has to be to be dropped: a new one from the same moment would fare no better.
	dropAge = 5 * time.Second
	// pruneInterval is how often tokens that have ended are dropped.
	pruneInterval = time.Minute
	// serviceAccountPrefix is how the name of a user begins who is a ServiceAccount.
	serviceAccountPrefix = "system:serviceaccount:"
)

// errNoServiceAccount says that the controller does not run as a ServiceAccount, so that there is no token for it.
var errNoServiceAccount = errors.New("the controller does not run as a ServiceAccount")

// Audience is whom a token is for that is sent to the agent of the Workspace. No other agent, and not the API server,
// accepts such a token: what one agent received is worth nothing elsewhere.
func Audience(namespace, name string) string {
	return "auto.pulumi.com/workspaces/" + namespace + "/" + name
}

// Tokens gets tokens of the ServiceAccount that the controller runs as, one per audience, and keeps them until shortly
// before they end. It is safe for concurrent use.
type Tokens struct {
	client kubernetes.Interface
	// requests makes those who want the same wait for one request.
	requests singleflight.Group

	mu       sync.Mutex
	identity string
	tokens   map[string]token
	pruned   time.Time
}

// token is one that the API server issued.
type token struct {
	value string
	// issued is when it was asked for, renew when to ask for the next, expires when this one ends.
	issued, renew, expires time.Time
}

// NewTokens returns the tokens of whom the configuration is. It does not call the API server; the only error is a
// configuration that can never work.
func NewTokens(config *rest.Config) (*Tokens, error) {
	config = rest.CopyConfig(config)
	config.Timeout = requestTimeout
	config.RateLimiter, config.QPS, config.Burst = nil, requestRate, requestBurst
	client, err := kubernetes.NewForConfig(config)
	if err != nil {
		return nil, fmt.Errorf("create a client for tokens: %w", err)
	}
	return &Tokens{client: client, tokens: map[string]token{}}, nil
}

// Identity returns as whom the API server knows the controller, for example system:serviceaccount:NAMESPACE:NAME. It
// asks until it has had an answer, which cannot change while the controller runs.
func (t *Tokens) Identity(ctx context.Context) (string, error) {
	t.mu.Lock()
	identity := t.identity
	t.mu.Unlock()
	if identity != "" {
		return identity, nil
	}
	return t.once(ctx, "identity", func(ctx context.Context) (string, error) {
		review, err := t.client.AuthenticationV1().SelfSubjectReviews().Create(ctx, &authenticationv1.SelfSubjectReview{}, metav1.CreateOptions{})
		if err != nil {
			return "", fmt.Errorf("ask the API server who the controller is: %w", err)
		}
		t.mu.Lock()
		defer t.mu.Unlock()
		t.identity = review.Status.UserInfo.Username
		return t.identity, nil
	})
}

// For returns what proves to the agent of this audience who is calling, for client.Options. It refuses connections that
// are not encrypted. A call that gets no token fails as tokenError says.
func (t *Tokens) For(audience string) credentials.PerRPCCredentials {
	return &perCall{tokens: t, audience: audience}
}

// Drop removes the token of the audience, so that the next call has a new one: after an agent has answered
// Unauthenticated. A token that is only seconds old stays.
func (t *Tokens) Drop(audience string) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if time.Since(t.tokens[audience].issued) >= dropAge {
		delete(t.tokens, audience)
	}
}

// get returns a token that is good for a while. gRPC ends the call with the code of the error.
func (t *Tokens) get(ctx context.Context, audience string) (string, error) {
	t.mu.Lock()
	known := t.tokens[audience]
	t.mu.Unlock()
	if now := time.Now(); now.Before(known.renew) && now.Before(known.expires) {
		return known.value, nil
	}
	value, err := t.once(ctx, "token "+audience, func(ctx context.Context) (string, error) { return t.request(ctx, audience) })
	if err == nil {
		return value, nil
	}
	if time.Now().Before(known.expires) {
		t.postpone(audience, known)
		return known.value, nil
	}
	return "", tokenError(audience, err)
}

// request gets a new token and keeps it.
func (t *Tokens) request(ctx context.Context, audience string) (string, error) {
	identity, err := t.Identity(ctx)
	if err != nil {
		return "", err
	}
	account, isAccount := strings.CutPrefix(identity, serviceAccountPrefix)
	namespace, name, complete := strings.Cut(account, ":")
	if !isAccount || !complete {
		return "", fmt.Errorf("%w but as %q", errNoServiceAccount, identity)
	}
	seconds := int64(tokenSeconds)
	issued := time.Now()
	response, err := t.client.CoreV1().ServiceAccounts(namespace).CreateToken(ctx, name, &authenticationv1.TokenRequest{
		Spec: authenticationv1.TokenRequestSpec{Audiences: []string{audience}, ExpirationSeconds: &seconds},
	}, metav1.CreateOptions{})
	if err != nil {
		return "", fmt.Errorf("request a token of ServiceAccount %s/%s: %w", namespace, name, err)
	}
	// The API server says what it granted, which may be more or less. Counted from before the request, the clocks of the
	// two machines do not matter.
	life := time.Until(response.Status.ExpirationTimestamp.Time)
	if granted := response.Spec.ExpirationSeconds; granted != nil {
		life = time.Duration(*granted) * time.Second
	}
	t.keep(audience, newToken(response.Status.Token, issued, life))
	return response.Status.Token, nil
}

// newToken decides when to renew: after 70 to 80 per cent of its life, so that thousands that were issued together are
// not renewed together, and what is left is enough for a call and for an API server that is away for a moment.
func newToken(value string, issued time.Time, life time.Duration) token {
	used := time.Duration(float64(life) * (0.7 + 0.1*rand.Float64()))
	return token{value: value, issued: issued, renew: issued.Add(used), expires: issued.Add(life * 95 / 100)}
}

func (t *Tokens) keep(audience string, kept token) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.tokens[audience] = kept
	now := time.Now()
	if now.Sub(t.pruned) < pruneInterval {
		return
	}
	t.pruned = now
	maps.DeleteFunc(t.tokens, func(_ string, kept token) bool { return now.After(kept.expires) })
}

// postpone lets a token that could not be renewed be used for a moment more.
func (t *Tokens) postpone(audience string, known token) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if current, ok := t.tokens[audience]; ok && current.value == known.value {
		current.renew = time.Now().Add(retryInterval + rand.N(retryInterval))
		t.tokens[audience] = current
	}
}

// once runs the function once for all who want the same at a time. Each waits no longer than its own context says; the
// function itself goes on, for the others and for the next.
func (t *Tokens) once(ctx context.Context, what string, run func(context.Context) (string, error)) (string, error) {
	outcome := t.requests.DoChan(what, func() (any, error) {
		ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), requestTimeout)
		defer cancel()
		return run(ctx)
	})
	select {
	case <-ctx.Done():
		return "", ctx.Err()
	case result := <-outcome:
		value, _ := result.Val.(string)
		return value, result.Err
	}
}

// tokenError says why the controller has no token for a call: Unauthenticated when the API server does not know or does not let the
// controller, which somebody has to fix, Unavailable when it may work later. It holds no token.
func tokenError(audience string, err error) error {
	code := codes.Unavailable
	switch {
	case errors.Is(err, errNoServiceAccount), apierrors.IsUnauthorized(err), apierrors.IsForbidden(err),
		apierrors.IsNotFound(err), apierrors.IsInvalid(err):
		code = codes.Unauthenticated
	case errors.Is(err, context.Canceled):
		code = codes.Canceled
	case errors.Is(err, context.DeadlineExceeded):
		code = codes.DeadlineExceeded
	}
	return status.Errorf(code, "get a token of the controller for audience %s: %v", audience, err)
}

// perCall adds the token to each call.
type perCall struct {
	tokens   *Tokens
	audience string
}

var _ credentials.PerRPCCredentials = (*perCall)(nil)

// GetRequestMetadata implements credentials.PerRPCCredentials.
func (c *perCall) GetRequestMetadata(ctx context.Context, _ ...string) (map[string]string, error) {
	request, _ := credentials.RequestInfoFromContext(ctx)
	if err := credentials.CheckSecurityLevel(request.AuthInfo, credentials.PrivacyAndIntegrity); err != nil {
		return nil, fmt.Errorf("send a token to audience %s: %w", c.audience, err)
	}
	token, err := c.tokens.get(ctx, c.audience)
	if err != nil {
		return nil, err
	}
	return map[string]string{"authorization": "Bearer " + token}, nil
}

// RequireTransportSecurity implements credentials.PerRPCCredentials.
func (c *perCall) RequireTransportSecurity() bool {
	return true
}
