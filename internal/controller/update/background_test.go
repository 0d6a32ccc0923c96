package update

import (
	"context"
	"testing"

	. "github.com/onsi/gomega"
	"k8s.io/client-go/util/workqueue"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	autov1alpha1 "github.com/stack-controller/stack-controller/api/auto/v1alpha1"
)

// Unlike a panic in a reconciler, nothing else would catch a panic in these goroutines: it would end the process for all tenants.
func TestPanicOfWorkForAnUpdateEndsThatWorkOnly(t *testing.T) {
	g := NewWithT(t)
	b := newBackground()
	b.queue = workqueue.NewTypedRateLimitingQueue(workqueue.DefaultTypedControllerRateLimiter[reconcile.Request]())
	defer b.queue.ShutDown()
	update := &autov1alpha1.Update{Namespace: "team", Name: "up", UID: "1234"}
	b.ensure(update, "watch", func(context.Context, func(func(*task))) { panic("canary") })
	b.waiting.Wait()
	g.Expect(b.queue.Len()).To(BeZero(), "the Update rests before the next attempt")
	done := make(chan struct{})
	b.ensure(update, "watch", func(context.Context, func(func(*task))) { close(done) })
	b.waiting.Wait()
	g.Expect(done).To(BeClosed(), "the work can be done again")
	g.Expect(b.queue.Len()).To(Equal(1))
}
