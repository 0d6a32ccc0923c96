package source

import (
	"sync"
	"time"

	"golang.org/x/time/rate"
	apimeta "k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/sets"
)

const (
	// discoveryInterval is how often the API server is asked for a kind that may not be served, after discoveryBurst times at once.
	discoveryInterval = 2 * time.Second
	discoveryBurst    = 20
)

// fluxKinds finds the served versions of kinds. Its zero value is ready for use.
//
// For a kind that it does not know, a mapper asks the API server for all that there are, under a lock that everybody waits for. Anybody who
// may create Stacks can name kinds that there are not: such questions are limited, and until the next one a kind is taken not to be served.
type fluxKinds struct {
	mu        sync.Mutex
	served    sets.Set[schema.GroupKind]
	discovery *rate.Limiter
}

// mapping returns the mapping of the kind, or a NoMatchError.
func (k *fluxKinds) mapping(mapper apimeta.RESTMapper, kind schema.GroupKind) (*apimeta.RESTMapping, error) {
	if !k.mayAsk(kind) {
		return nil, &apimeta.NoKindMatchError{GroupKind: kind}
	}
	mapping, err := mapper.RESTMapping(kind)
	if err == nil {
		k.mu.Lock()
		defer k.mu.Unlock()
		k.served.Insert(kind)
	}
	return mapping, err
}

func (k *fluxKinds) mayAsk(kind schema.GroupKind) bool {
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.discovery == nil {
		k.served, k.discovery = sets.New[schema.GroupKind](), rate.NewLimiter(rate.Every(discoveryInterval), discoveryBurst)
	}
	return k.served.Has(kind) || k.discovery.Allow()
}
