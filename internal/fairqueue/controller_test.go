package fairqueue

import (
	"crypto/rand"
	"fmt"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	. "github.com/onsi/gomega"
	"k8s.io/client-go/util/workqueue"
	"sigs.k8s.io/controller-runtime/pkg/controller"
	"sigs.k8s.io/controller-runtime/pkg/metrics"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"
)

func requestOf(namespace, name string) reconcile.Request {
	return reconcile.Request{Namespace: namespace, Name: name}
}

// controllerQueue is the queue of a controller with four workers for a namespace.
func controllerQueue() workqueue.TypedRateLimitingInterface[reconcile.Request] {
	limiter := workqueue.NewTypedItemExponentialFailureRateLimiter[reconcile.Request](time.Second, time.Minute)
	return ControllerOptions(4, controller.Options{}).NewQueue("", limiter)
}

func TestReconcileOfAnotherNamespaceIsNextButOneAfterTenThousand(t *testing.T) {
	g := NewWithT(t)
	q := controllerQueue()
	defer q.ShutDown()
	for i := range 10_000 {
		q.Add(requestOf("flood", fmt.Sprint(i)))
	}
	q.Add(requestOf("team", "app"))
	var taken []reconcile.Request
	for range 3 {
		request, _ := q.Get()
		taken = append(taken, request)
		q.Done(request)
	}
	g.Expect(taken).To(ContainElement(requestOf("team", "app")))
}

func TestStormOfWakesBecomesBoundedReconcilesAndTheLastIsNotLost(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := NewWithT(t)
		q := controllerQueue()
		request := requestOf("flood", "app")
		var last, seen, reconciled atomic.Int64
		go func() {
			for {
				request, shutdown := q.Get()
				if shutdown {
					return
				}
				reconciled.Add(1)
				seen.Store(last.Load())
				q.Done(request)
			}
		}()
		for range 60_000 { // for a minute
			switch last.Add(1) % 3 {
			case 0:
				q.Add(request)
			case 1:
				q.AddAfter(request, 100*time.Millisecond)
			default:
				q.AddRateLimited(request)
				q.Forget(request)
			}
			time.Sleep(time.Millisecond)
		}
		time.Sleep(2 * time.Second)
		synctest.Wait()
		g.Expect(reconciled.Load()).To(And(BeNumerically(">=", 120), BeNumerically("<=", wakeBurst+120+6)))
		g.Expect(seen.Load()).To(BeEquivalentTo(60_000))

		reconciled.Store(0)
		time.Sleep(time.Minute)
		for range wakeBurst {
			q.Add(request)
			synctest.Wait()
		}
		g.Expect(reconciled.Load()).To(BeEquivalentTo(wakeBurst), "who has rested may hurry again")
		q.ShutDown()
	})
}

func TestQueueHasTheMetricsOfOthers(t *testing.T) {
	g := NewWithT(t)
	name := rand.Text() // metrics last as long as the process
	limiter := workqueue.NewTypedItemExponentialFailureRateLimiter[reconcile.Request](time.Second, time.Minute)
	q := ControllerOptions(4, controller.Options{}).NewQueue(name, limiter)
	defer q.ShutDown()
	q.Add(requestOf("team", "app"))
	q.AddRateLimited(requestOf("team", "app"))
	families, err := metrics.Registry.Gather()
	g.Expect(err).NotTo(HaveOccurred())
	values := map[string]float64{}
	for _, family := range families {
		for _, metric := range family.GetMetric() {
			for _, label := range metric.GetLabel() {
				if label.GetName() == "controller" && label.GetValue() == name {
					values[family.GetName()] = metric.GetGauge().GetValue() + metric.GetCounter().GetValue()
				}
			}
		}
	}
	g.Expect(values).To(And(HaveKeyWithValue("workqueue_depth", 1.0), HaveKeyWithValue("workqueue_adds_total", 1.0), HaveKeyWithValue("workqueue_retries_total", 1.0)))
}

func TestObjectsThatRestedAreForgotten(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := NewWithT(t)
		p := newPaced(workqueue.NewTypedDelayingQueue[string]())
		for i := range 20 * minSweep {
			p.Add(fmt.Sprint(i))
			item, _ := p.Get()
			p.Done(item)
			time.Sleep(10 * time.Millisecond)
		}
		g.Expect(len(p.rested)).To(BeNumerically("<=", minSweep))
		p.ShutDown()
	})
}
