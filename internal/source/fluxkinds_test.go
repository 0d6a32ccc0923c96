package source

import (
	"fmt"
	"testing"

	. "github.com/onsi/gomega"
	apimeta "k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"

	sourcev1 "github.com/fluxcd/source-controller/api/v1"

	"github.com/stack-controller/stack-controller/internal/discovery"
)

// servedGroup is a group that the cluster serves.
const servedGroup = "served.example.com"

// countingMapper knows servedGroup and Flux's Buckets, and counts the requests.
type countingMapper struct {
	apimeta.RESTMapper
	asked int
}

func (m *countingMapper) RESTMapping(kind schema.GroupKind, _ ...string) (*apimeta.RESTMapping, error) {
	m.asked++
	if kind.Group != servedGroup && kind != sourcev1.GroupVersion.WithKind(sourcev1.BucketKind).GroupKind() {
		return nil, &apimeta.NoKindMatchError{GroupKind: kind}
	}
	return &apimeta.RESTMapping{GroupVersionKind: kind.WithVersion("v1")}, nil
}

func TestUnknownKindsCauseFewDiscoveryRequestsAndHideNoServedKinds(t *testing.T) {
	g := NewWithT(t)
	kinds, mapper := &fluxKinds{}, &countingMapper{}
	sourceIn := func(namespace, group, kind string) fluxKey {
		return fluxKey{schema.GroupKind{Group: group, Kind: kind}, types.NamespacedName{Namespace: namespace, Name: "app"}}
	}
	for i := range 1000 {
		_, err := kinds.mapping(mapper, "attacker", sourceIn("attacker", fmt.Sprintf("n%d.example.com", i), "Bucket"))
		g.Expect(apimeta.IsNoMatchError(err)).To(BeTrue())
		_, err = kinds.mapping(mapper, "attacker", sourceIn("attacker", sourcev1.GroupVersion.Group, fmt.Sprint("Kind", i)))
		g.Expect(apimeta.IsNoMatchError(err)).To(BeTrue())
		// With --no-cross-namespace-refs=false.
		for _, other := range []string{"victim", fmt.Sprint("namespace-", i)} {
			_, err = kinds.mapping(mapper, "attacker", sourceIn(other, fmt.Sprintf("n%d.example.com", i), "Bucket"))
			g.Expect(apimeta.IsNoMatchError(err)).To(BeTrue())
		}
	}
	g.Expect(mapper.asked).To(BeNumerically("<=", discovery.Burst+5))

	// The mapper is always asked for Flux's own kinds, also first after a restart, and for other kinds if the namespace has not asked too
	// often.
	for _, source := range []fluxKey{
		sourceIn("attacker", sourcev1.GroupVersion.Group, sourcev1.BucketKind), sourceIn("victim", servedGroup, "Bundle"), sourceIn("attacker", servedGroup, "Bundle"),
	} {
		g.Expect(kinds.mapping(mapper, source.Namespace, source)).To(HaveField("GroupVersionKind.Version", "v1"))
	}
}
