// Package discovery limits how often tenants cause questions to the API server about kinds that it may not serve.
//
// For a kind or a version that it does not know, a mapper asks the API server, under a lock that all callers wait for. Anybody who may create
// Stacks can name what does not exist. So each namespace may ask for only a few.
package discovery

import (
	"sync"
	"time"

	"golang.org/x/time/rate"
	"k8s.io/utils/lru"
)

const (
	// Interval is how often a namespace may ask.
	Interval = 10 * time.Second
	// Burst is how many times it may ask at once before that.
	Burst = 10
	// maxNamespaces is how many namespaces have a recorded limiter. A namespace whose limiter is dropped starts with a full burst again.
	maxNamespaces = 1024
)

// Limits has the limit of each namespace. Its zero value is ready for use.
type Limits struct {
	mu         sync.Mutex
	namespaces *lru.Cache // *rate.Limiter by namespace
}

// Allow reports whether the namespace, which is that of the object that names the kind, may ask now.
func (l *Limits) Allow(namespace string) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.namespaces == nil {
		l.namespaces = lru.New(maxNamespaces)
	}
	limiter, found := l.namespaces.Get(namespace)
	if !found {
		limiter = rate.NewLimiter(rate.Every(Interval), Burst)
		l.namespaces.Add(namespace, limiter)
	}
	return limiter.(*rate.Limiter).Allow()
}
