package source

import (
	"cmp"
	"fmt"
	"sync"
	"time"

	apimeta "k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/sets"

	"github.com/stack-controller/stack-controller/internal/discovery"
)

// fluxKinds finds the served versions of kinds. Its zero value is ready for use.
//
// Each namespace may ask for only a few kinds other than Flux's own, see discovery.Limits. Until it may ask again, a kind that is not known to be
// served counts as not served.
type fluxKinds struct {
	mu     sync.Mutex
	served sets.Set[schema.GroupKind]
	limits discovery.Limits
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
// there is another mapper now. A mapper asks the API server for all kinds, so it is replaced once in discovery.Interval at most.
func (k *fluxKinds) renew(outdated apimeta.RESTMapper, create func() (apimeta.RESTMapper, error)) (bool, error) {
	k.mu.Lock()
	defer k.mu.Unlock()
	switch {
	case k.renewed != nil && k.renewed != outdated:
		return true, nil // somebody else has
	case create == nil || time.Since(k.since) < discovery.Interval:
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
	return k.limits.Allow(namespace)
}
