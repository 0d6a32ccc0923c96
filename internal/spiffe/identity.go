// Package spiffe gives the controller the identity that a SPIFFE Workload API issues, and speaks mutual TLS with it to Flux's controllers,
// as they do among themselves. It uses go-spiffe, except for its X509Source: that one waits for an identity for ever, without a word and
// before the controller answers its probes. Here the controller starts without an identity, says in its log, its metrics and its readiness
// what it waits for, and works as soon as the identity comes.
package spiffe

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net/http"
	"sync"
	"time"

	"github.com/go-logr/logr"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/spiffe/go-spiffe/v2/bundle/x509bundle"
	"github.com/spiffe/go-spiffe/v2/spiffeid"
	"github.com/spiffe/go-spiffe/v2/svid/x509svid"
	"github.com/spiffe/go-spiffe/v2/workloadapi"
	"golang.org/x/time/rate"
	"google.golang.org/grpc"
	"google.golang.org/grpc/backoff"
	"google.golang.org/grpc/codes"
	grpcstatus "google.golang.org/grpc/status"
)

const (
	// defaultPatience is how long the Workload API may be silent when it should have sent an identity.
	defaultPatience = 30 * time.Second
	// firstAnswerTimeout is how long a request waits for the first answer of the Workload API.
	firstAnswerTimeout = 5 * time.Second
	// logInterval is how often at most a problem that lasts is logged.
	logInterval = time.Minute
	// restartInterval is the least time between two watches of the Workload API.
	restartInterval = time.Second
)

// ErrNoIdentity means that the Workload API has not issued an identity yet, or that the last one has expired.
var ErrNoIdentity = errors.New("this controller has no SPIFFE identity")

// Options of an Identity.
type Options struct {
	// Address of the Workload API, a URI of the scheme unix or tcp; see WorkloadAPIAddress.
	Address string
	// Log says when the identity changes, and what is wrong.
	Log logr.Logger
	// Registerer receives the metrics.
	Registerer prometheus.Registerer
	// Patience is how long the Workload API may be silent when it should have sent an identity; 30 seconds when zero.
	Patience time.Duration
}

// Identity is the newest X.509 identity of this process: the first one, if the Workload API issues several. It is renewed while Start runs,
// and can be used until it expires. It is safe for concurrent use, a manager.Runnable, and a source of certificates and trust bundles for
// go-spiffe.
type Identity struct {
	options  Options
	client   *workloadapi.Client
	answered chan struct{} // closed when the Workload API has answered or failed for the first time
	answer   func()        // closes it

	mu         sync.Mutex
	current    *workloadapi.X509Context  // nil before the first
	failure    error                     // of the Workload API since then; nil when there was none
	renewed    func()                    // called after each renewal; nil while no watch runs
	limits     map[state]*rate.Sometimes // of the log of failures
	transports []*http.Transport         // they use no connection again after a change of the identity or of the trust bundles
}

// WorkloadAPIAddress returns the address of the Workload API from the environment, or an error when it is missing or cannot be one.
func WorkloadAPIAddress() (string, error) {
	address, _ := workloadapi.GetDefaultAddress()
	if address == "" {
		return "", fmt.Errorf("mutual TLS needs the address of the SPIFFE Workload API in the environment variable %s", workloadapi.SocketEnv)
	}
	if err := workloadapi.ValidateAddress(address); err != nil {
		return "", fmt.Errorf("environment variable %s: %w", workloadapi.SocketEnv, err)
	}
	return address, nil
}

// New returns an Identity, which Start brings.
func New(options Options) (*Identity, error) {
	options.Patience = cmp.Or(options.Patience, defaultPatience)
	client, err := workloadapi.New(context.Background(), workloadapi.WithAddr(options.Address), workloadapi.WithDialOptions(
		// The Workload API is on this machine. By default, connections are tried at intervals of up to two minutes.
		grpc.WithNoProxy(),
		grpc.WithConnectParams(grpc.ConnectParams{
			Backoff:           backoff.Config{BaseDelay: time.Second, Multiplier: 1.6, Jitter: 0.2, MaxDelay: 10 * time.Second},
			MinConnectTimeout: 5 * time.Second,
		}),
	))
	if err != nil {
		return nil, fmt.Errorf("connect to the SPIFFE Workload API: %w", err)
	}
	answered := make(chan struct{})
	i := &Identity{
		options: options, client: client, answered: answered, answer: sync.OnceFunc(func() { close(answered) }), limits: newLogLimits(),
	}
	if err := options.Registerer.Register(i); err != nil {
		return nil, fmt.Errorf("register the metrics of the SPIFFE identity: %w", err)
	}
	return i, nil
}

// NeedLeaderElection implements manager.LeaderElectionRunnable: an instance that waits to be the leader has its identity already.
func (i *Identity) NeedLeaderElection() bool { return false }

// errSilent ends a watch in which no identity came when one was due.
var errSilent = errors.New("the Workload API has sent no identity, or no newer one, for too long")

// Start keeps the identity up to date until the context ends. A Workload API that is silent for too long is asked anew.
func (i *Identity) Start(ctx context.Context) error {
	defer i.client.Close()
	for ctx.Err() == nil {
		watch, cancel := context.WithCancelCause(ctx)
		silence := time.AfterFunc(i.untilSilent(), func() { cancel(errSilent) })
		i.onRenewal(func() { silence.Reset(i.untilSilent()) })
		// go-spiffe tries again by itself, at growing intervals, except after answers that it takes as final.
		err := i.client.WatchX509Context(watch, (*watcher)(i))
		i.onRenewal(nil)
		silence.Stop()
		if ctx.Err() == nil {
			i.fail(cmp.Or(context.Cause(watch), err))
		}
		cancel(nil)
		select {
		case <-ctx.Done():
		case <-time.After(restartInterval):
		}
	}
	return nil
}

// untilSilent returns how long the Workload API may be silent from now on: until the identity should have been renewed, and a while.
func (i *Identity) untilSilent() time.Duration {
	i.mu.Lock()
	defer i.mu.Unlock()
	if i.current == nil {
		return i.options.Patience
	}
	return max(time.Until(renewalDue(i.current.DefaultSVID())), i.options.Patience)
}

// renewalDue is when an identity should have been renewed: when a quarter of its lifetime is left. SPIRE renews it after half of it.
func renewalDue(svid *x509svid.SVID) time.Time {
	leaf := svid.Certificates[0]
	return leaf.NotAfter.Add(-leaf.NotAfter.Sub(leaf.NotBefore) / 4)
}

func (i *Identity) onRenewal(call func()) {
	i.mu.Lock()
	defer i.mu.Unlock()
	i.renewed = call
}

// watcher receives what the Workload API sends.
type watcher Identity

// OnX509ContextUpdate implements workloadapi.X509ContextWatcher.
func (w *watcher) OnX509ContextUpdate(received *workloadapi.X509Context) {
	(*Identity)(w).accept(received)
}

// OnX509ContextWatchError implements workloadapi.X509ContextWatcher.
func (w *watcher) OnX509ContextWatchError(err error) {
	if grpcstatus.Code(err) != codes.Canceled { // Start ended the watch, and knows why
		(*Identity)(w).fail(err)
	}
}

// accept takes what the Workload API has sent, which may be what it has sent before.
func (i *Identity) accept(received *workloadapi.X509Context) {
	defer i.answer()
	svid := received.DefaultSVID()
	if bundle, err := received.Bundles.GetX509BundleForTrustDomain(svid.ID.TrustDomain()); err != nil || bundle.Empty() {
		i.fail(errors.New("the Workload API has sent an identity without the certificates of its trust domain"))
		return
	}
	i.mu.Lock()
	isNew := i.current == nil || !svid.Certificates[0].Equal(i.current.DefaultSVID().Certificates[0])
	if isNew {
		i.limits = newLogLimits()
	}
	i.current, i.failure = received, nil
	renewed, transports := i.renewed, i.transports
	i.mu.Unlock()
	// A server that was trusted may be trusted no longer.
	for _, transport := range transports {
		transport.CloseIdleConnections()
	}
	if !isNew {
		return
	}
	i.options.Log.Info("received a SPIFFE identity", "id", svid.ID.String(), "expires", svid.Certificates[0].NotAfter)
	if renewed != nil {
		renewed()
	}
}

// newLogLimits let the first failure in each state be logged, and others now and then.
func newLogLimits() map[state]*rate.Sometimes {
	limits := map[state]*rate.Sometimes{}
	for _, known := range states {
		limits[known] = &rate.Sometimes{First: 1, Interval: logInterval}
	}
	return limits
}

// fail notes that the Workload API has failed, and logs what this means.
func (i *Identity) fail(err error) {
	defer i.answer()
	i.mu.Lock()
	i.failure = err
	limits := i.limits
	i.mu.Unlock()
	now, expires := i.state(time.Now())
	limits[now].Do(func() {
		log := i.options.Log.WithValues("address", i.options.Address)
		switch now {
		case valid:
			log.Error(err, "the SPIFFE Workload API has failed; the identity is still valid", "expires", expires)
		case expiring:
			log.Error(err, "the SPIFFE identity is not renewed and will expire", "expires", expires)
		case expired:
			log.Error(err, "the SPIFFE identity has expired and is not renewed", "expires", expires)
		default:
			log.Error(err, "waiting for a SPIFFE identity")
		}
	})
}

// usable returns the newest identity with its trust bundles, or an error that wraps ErrNoIdentity and says what is missing.
func (i *Identity) usable() (*workloadapi.X509Context, error) {
	now, expires := i.state(time.Now())
	i.mu.Lock()
	defer i.mu.Unlock()
	missing := ""
	switch now {
	case starting:
		missing = "the SPIFFE Workload API has not answered yet"
	case refused:
		missing = "the SPIFFE Workload API has none for it, an entry for its ServiceAccount is missing"
	case unreachable:
		missing = "the SPIFFE Workload API does not answer"
	case failing:
		missing = "what the SPIFFE Workload API answers is of no use, as the log of this controller says"
	case expired:
		missing = "it expired at " + expires.UTC().Format(time.RFC3339) + ", and the SPIFFE Workload API has not renewed it"
		if grpcstatus.Code(i.failure) == codes.PermissionDenied {
			missing += ": its entry was removed"
		}
	default:
		return i.current, nil
	}
	return nil, fmt.Errorf("%w: %s", ErrNoIdentity, missing)
}

// await waits for the first answer of the Workload API, so that requests right after the start do not fail without a reason.
func (i *Identity) await(ctx context.Context) {
	ctx, cancel := context.WithTimeout(ctx, firstAnswerTimeout)
	defer cancel()
	select {
	case <-i.answered:
	case <-ctx.Done():
	}
}

// Ready is a readiness check: an instance without an identity is not ready.
func (i *Identity) Ready(*http.Request) error {
	_, err := i.usable()
	return err
}

// GetX509SVID implements x509svid.Source.
func (i *Identity) GetX509SVID() (*x509svid.SVID, error) {
	usable, err := i.usable()
	if err != nil {
		return nil, err
	}
	return usable.DefaultSVID(), nil
}

// GetX509BundleForTrustDomain implements x509bundle.Source.
func (i *Identity) GetX509BundleForTrustDomain(domain spiffeid.TrustDomain) (*x509bundle.Bundle, error) {
	usable, err := i.usable()
	if err != nil {
		return nil, err
	}
	return usable.Bundles.GetX509BundleForTrustDomain(domain)
}
