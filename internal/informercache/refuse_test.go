package informercache

import (
	"context"
	"sync"
	"sync/atomic"
	"testing"

	. "github.com/onsi/gomega"
	"sigs.k8s.io/controller-runtime/pkg/client"

	pulumiv1 "github.com/stack-controller/stack-controller/api/pulumi/v1"
)

// slowReader blocks each request until the test lets it answer.
type slowReader struct {
	client.Reader
	reading, most atomic.Int64
	answer        chan struct{}
}

func (r *slowReader) read() {
	now := r.reading.Add(1)
	defer r.reading.Add(-1)
	for most := r.most.Load(); now > most && !r.most.CompareAndSwap(most, now); most = r.most.Load() {
	}
	<-r.answer
}

func (r *slowReader) Get(context.Context, client.ObjectKey, client.Object, ...client.GetOption) error {
	r.read()
	return nil
}

func (r *slowReader) List(context.Context, client.ObjectList, ...client.ListOption) error {
	r.read()
	return nil
}

func TestFewObjectsAreDecodedAtTheSameTime(t *testing.T) {
	g := NewWithT(t)
	slow := &slowReader{answer: make(chan struct{})}
	var running sync.WaitGroup
	get := func(namespace string) {
		running.Go(func() {
			// Each of these is one of the readers that there are in a process.
			g.Expect(NewReader(slow).Get(t.Context(), client.ObjectKey{Namespace: namespace, Name: "app"}, &pulumiv1.Stack{})).To(Succeed())
		})
	}
	for range 20 {
		get("flood")
	}
	g.Eventually(slow.reading.Load).Should(BeEquivalentTo(concurrentReads - 1))
	g.Consistently(slow.reading.Load, "100ms").Should(BeEquivalentTo(concurrentReads-1), "one namespace leaves some to others")
	get("team")
	running.Go(func() {
		g.Expect(NewReader(slow).List(t.Context(), &pulumiv1.StackList{}, client.InNamespace("other"))).To(Succeed())
	})
	g.Eventually(slow.reading.Load).Should(BeEquivalentTo(concurrentReads))
	ended, cancel := context.WithCancel(t.Context())
	cancel()
	g.Expect(NewReader(slow).Get(ended, client.ObjectKey{Namespace: "late", Name: "app"}, &pulumiv1.Stack{})).To(MatchError(context.Canceled))
	close(slow.answer)
	running.Wait()
	g.Expect(slow.most.Load()).To(BeEquivalentTo(concurrentReads))
}
