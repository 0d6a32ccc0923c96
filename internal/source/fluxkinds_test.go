package source

import (
	"fmt"
	"testing"

	. "github.com/onsi/gomega"
	apimeta "k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/runtime/schema"

	sourcev1 "github.com/fluxcd/source-controller/api/v1"
)

// countingMapper knows one kind, and counts what it is asked.
type countingMapper struct {
	apimeta.RESTMapper
	asked int
}

func (m *countingMapper) RESTMapping(kind schema.GroupKind, _ ...string) (*apimeta.RESTMapping, error) {
	m.asked++
	if kind.Group != sourcev1.GroupVersion.Group {
		return nil, &apimeta.NoKindMatchError{GroupKind: kind}
	}
	return &apimeta.RESTMapping{GroupVersionKind: kind.WithVersion("v1")}, nil
}

func TestKindsThatThereAreNotCauseFewQuestionsAndHideNoOthers(t *testing.T) {
	g := NewWithT(t)
	kinds, mapper := &fluxKinds{}, &countingMapper{}
	bucket := schema.GroupKind{Group: sourcev1.GroupVersion.Group, Kind: sourcev1.BucketKind}
	g.Expect(kinds.mapping(mapper, bucket)).To(HaveField("GroupVersionKind.Version", "v1"))
	for i := range 1000 {
		_, err := kinds.mapping(mapper, schema.GroupKind{Group: fmt.Sprintf("n%d.example.com", i), Kind: "Bucket"})
		g.Expect(apimeta.IsNoMatchError(err)).To(BeTrue())
	}
	g.Expect(mapper.asked).To(BeNumerically("<=", 1+discoveryBurst+5))
	g.Expect(kinds.mapping(mapper, bucket)).To(HaveField("GroupVersionKind.Version", "v1"))
}
