package sharedwork

import (
	"context"
	"os"
	"testing"
	"time"

	"github.com/go-logr/logr"
	. "github.com/onsi/gomega"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/stack-controller/stack-controller/tests/framework/allocation"
	"github.com/stack-controller/stack-controller/tests/framework/suite"
	"github.com/stack-controller/stack-controller/tests/framework/worstobjects"
)

const (
	// mostForEvent is how much memory it takes to read an event, besides four times its text: of a small object, the small parts are decoded.
	mostForEvent = 8 << 20
	// mostForHandlers is how much memory all index functions and handlers of one event allocate. They see what the cache keeps of the object.
	mostForHandlers = 2 << 20
)

func TestMain(m *testing.M) {
	ctrl.SetLogger(logr.Discard())
	os.Exit(m.Run())
}

func TestNoObjectCostsMuchInSharedGoroutines(t *testing.T) {
	suite.WithoutRaceDetector(t)
	g := NewWithT(t)
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	works, err := New(ctx, t.TempDir())
	g.Expect(err).NotTo(HaveOccurred())
	g.Expect(works).To(HaveLen(len(worstobjects.Kinds)))
	for _, kind := range worstobjects.Kinds {
		for name, object := range worstobjects.Of(kind) {
			t.Run(kind.Kind+"/"+name, func(t *testing.T) {
				g := NewWithT(t)
				work := works[kind]
				var kept client.Object
				g.Expect(allocation.Of(func() {
					kept, err = work.Receive(object)
					g.Expect(err).NotTo(HaveOccurred())
				})).To(BeNumerically("<=", mostForEvent+4*len(object)))
				g.Expect(client.ObjectKeyFromObject(kept)).To(Equal(client.ObjectKey{Namespace: worstobjects.Namespace, Name: worstobjects.Name}))
				after := kept.DeepCopyObject().(client.Object)
				after.SetGeneration(2)
				after.SetResourceVersion("2")
				g.Expect(allocation.Of(func() {
					work.Index(kept)
					work.Handle(kept, after)
				})).To(BeNumerically("<=", mostForHandlers))
			})
		}
	}
}
