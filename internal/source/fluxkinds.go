package source

import (
	"sync"
	"time"

	"golang.org/x/time/rate"
	apimeta "k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/utils/lru"
)

const (
	// discoveryInterval is how often a namespace may have the API server asked for a kind that may not be served, after discoveryBurst
	// times at once.
	discoveryInterval = 10 * time.Second
	discoveryBurst    = 10
	// maxAsking is how many namespaces are remembered that have asked. One that is forgotten may ask anew.
	maxAsking = 1024
)

// fluxKinds finds the served versions of kinds. Its zero value is ready for use.
//
// For a kind that it does not know, a mapper asks the API server for all that there are, under a lock that everybody waits for. Anybody who
// may create Stacks can name kinds that there are not. So each namespace may ask for few others than Flux's own; until it may ask again,
// such a kind is taken not to be served.
type fluxKinds struct {
	mu     sync.Mutex
	served sets.Set[schema.GroupKind]
	asking *lru.Cache // *rate.Limiter by namespace
}

// mapping returns the mapping of the kind of the source, or a NoMatchError. The namespace that asks is not that of the source, which
// anybody may name.
func (k *fluxKinds) mapping(mapper apimeta.RESTMapper, namespace string, source fluxKey) (*apimeta.RESTMapping, error) {
	if !source.isFlux(storedKinds...) && !k.mayAsk(namespace, source) {
		return nil, &apimeta.NoKindMatchError{GroupKind: source.GroupKind}
	}
	mapping, err := mapper.RESTMapping(source.GroupKind)
	if err == nil {
		k.mu.Lock()
		defer k.mu.Unlock()
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
