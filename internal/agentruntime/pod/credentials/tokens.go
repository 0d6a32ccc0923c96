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
	// requestRate and requestBurst bound the requests per second. A restarted controller requests a token for each workspace whose agent it
	// calls, and again before each token expires.
	requestRate, requestBurst = 50, 100
	// retryInterval is how long a token that could not be renewed, and has not expired, is used before the next attempt.
	retryInterval = 10 * time.Second
	// dropAge is the age from which a token is dropped. A new token from about the same time would be rejected as well.
	dropAge = 5 * time.Second
	// pruneInterval is how often expired tokens are removed.
	pruneInterval = time.Minute
	// serviceAccountPrefix is the start of the user name of a ServiceAccount.
	serviceAccountPrefix = "system:serviceaccount:"
)

// errNoServiceAccount is the error when the controller does not run as a ServiceAccount, so that it cannot request tokens.
var errNoServiceAccount = errors.New("the controller does not run as a ServiceAccount")

// Audience returns the audience of tokens for the agent of the Workspace. No other agent, and not the API server, accepts such a token: a
// token that one agent received is worth nothing elsewhere.
func Audience(namespace, name string) string {
	return "auto.pulumi.com/workspaces/" + namespace + "/" + name
}

// Tokens requests tokens of the ServiceAccount that the controller runs as, one per audience, and keeps them until shortly before they
// expire. It is safe for concurrent use.
type Tokens struct {
	client kubernetes.Interface
	// requests makes concurrent callers that need the same token wait for one request.
	requests singleflight.Group

	mu       sync.Mutex
	identity string
	tokens   map[string]token
	pruned   time.Time
}

// token is one that the API server issued.
type token struct {
	value string
	// issued is when the token was requested, renew when to request the next one, expires when this one expires.
	issued, renew, expires time.Time
}

// NewTokens returns the Tokens of the identity in the configuration. It does not call the API server. It fails only for a configuration
// that can never work.
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

// Identity returns the user name by which the API server knows the controller, for example system:serviceaccount:NAMESPACE:NAME. It calls
// the API server until it has received the name once; the name cannot change while the controller runs.
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

// For returns the credentials, for client.Options, that prove the controller's identity to the agent of this audience. They refuse
// connections that are not encrypted. A call for which there is no token fails with the error of tokenError.
func (t *Tokens) For(audience string) credentials.PerRPCCredentials {
	return &perCall{tokens: t, audience: audience}
}

// Have makes sure that there is a token for the audience. Otherwise it returns the error that a call would fail with.
func (t *Tokens) Have(ctx context.Context, audience string) error {
	_, err := t.get(ctx, audience)
	return err
}

// Drop removes the token of the audience, so that the next call requests a new one. Callers use it after an agent has answered
// Unauthenticated. A token that is younger than dropAge stays.
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
	// The API server returns the life that it granted, which may be longer or shorter. Counting it from before the request makes the result
	// independent of the clocks of the two machines.
	life := time.Until(response.Status.ExpirationTimestamp.Time)
	if granted := response.Spec.ExpirationSeconds; granted != nil {
		life = time.Duration(*granted) * time.Second
	}
	t.keep(audience, newToken(response.Status.Token, issued, life))
	return response.Status.Token, nil
}

// newToken decides when to renew a token: after 70 to 80 per cent of its life. Thousands of tokens that were issued together are then not
// renewed together, and the remaining time is enough for a call, and for an API server that is briefly unavailable.
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

// postpone delays the next attempt to renew a token that could not be renewed.
func (t *Tokens) postpone(audience string, known token) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if current, ok := t.tokens[audience]; ok && current.value == known.value {
		current.renew = time.Now().Add(retryInterval + rand.N(retryInterval))
		t.tokens[audience] = current
	}
}

// once runs the function once for all concurrent callers with the same key. Each caller waits at most until its own context is done; the
// function itself goes on, for the other callers and the next ones.
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

// tokenError returns why the controller has no token for a call. The code is Unauthenticated when the API server does not know the
// controller or does not permit the request, which somebody has to fix, and Unavailable when a later attempt may work. The error contains
// no token.
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
