package source

import (
	"cmp"
	"fmt"
	"sync"
	"time"

	"golang.org/x/time/rate"
	apimeta "k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/utils/lru"
)

const (
	// discoveryInterval is how often a namespace may cause a request to the API server for a kind that may not be served. discoveryBurst is
	// how many such requests it may cause at once before that.
	discoveryInterval = 10 * time.Second
	discoveryBurst    = 10
	// maxAsking is how many namespaces have a recorded limiter. A namespace whose limiter is dropped starts with a full burst again.
	maxAsking = 1024
)

// fluxKinds finds the served versions of kinds. Its zero value is ready for use.
//
// For an unknown kind, a mapper asks the API server for all kinds, under a lock that all callers wait for. Anybody who may create Stacks
// can name kinds that do not exist. So each namespace may ask for only a few kinds other than Flux's own. Until it may ask again, a kind
// that is not known to be served counts as not served.
type fluxKinds struct {
	mu     sync.Mutex
	served sets.Set[schema.GroupKind]
	asking *lru.Cache // *rate.Limiter by namespace
	// renewed replaces the mapper that Flux was created with, since the time. It is nil until the cluster stops to serve a version.
	renewed apimeta.RESTMapper
	since   time.Time
}

// mapperOr returns the mapper to use: the first one, until it is renewed.
func (k *fluxKinds) mapperOr(first apimeta.RESTMapper) apimeta.RESTMapper {
	k.mu.Lock()
	defer k.mu.Unlock()
	return cmp.Or(k.renewed, first)
}

// renew replaces a mapper that has named a version which the cluster does not serve: a mapper keeps what it has found. It reports whether
// there is another mapper now. A mapper asks the API server for all kinds, so it is replaced once in discoveryInterval at most.
func (k *fluxKinds) renew(outdated apimeta.RESTMapper, create func() (apimeta.RESTMapper, error)) (bool, error) {
	k.mu.Lock()
	defer k.mu.Unlock()
	switch {
	case k.renewed != nil && k.renewed != outdated:
		return true, nil // somebody else has
	case create == nil || time.Since(k.since) < discoveryInterval:
		return false, nil
	}
	mapper, err := create()
	if err != nil {
		return false, fmt.Errorf("find the kinds that the cluster serves now: %w", err)
	}
	k.renewed, k.since = mapper, time.Now()
	return true, nil
}

// mapping returns the mapping of the kind of the source, or a NoMatchError. namespace is that of the object that names the source, because
// anybody may name a source of any namespace.
func (k *fluxKinds) mapping(mapper apimeta.RESTMapper, namespace string, source fluxKey) (*apimeta.RESTMapping, error) {
	if !source.isFlux(storedKinds...) && !k.mayAsk(namespace, source) {
		return nil, &apimeta.NoKindMatchError{GroupKind: source.GroupKind}
	}
	mapping, err := mapper.RESTMapping(source.GroupKind)
	k.mu.Lock()
	defer k.mu.Unlock()
	switch {
	case apimeta.IsNoMatchError(err):
		k.served.Delete(source.GroupKind)
	case err == nil:
		if k.served == nil {
			k.served = sets.New[schema.GroupKind]()
		}
		k.served.Insert(source.GroupKind)
	}
	return mapping, err
}

func (k *fluxKinds) mayAsk(namespace string, source fluxKey) bool {
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.served.Has(source.GroupKind) {
		return true
	}
	if k.asking == nil {
		k.asking = lru.New(maxAsking)
	}
	limiter, found := k.asking.Get(namespace)
	if !found {
		limiter = rate.NewLimiter(rate.Every(discoveryInterval), discoveryBurst)
		k.asking.Add(namespace, limiter)
	}
	return limiter.(*rate.Limiter).Allow()
}
