package update

import (
	"context"
	"errors"
	"runtime/debug"
	"sync"
	"time"

	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/util/workqueue"
	ctrl "sigs.k8s.io/controller-runtime"
	ctrlclient "sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	autov1alpha1 "github.com/stack-controller/stack-controller/api/auto/v1alpha1"
	"github.com/stack-controller/stack-controller/internal/agent/agentpb"
	"github.com/stack-controller/stack-controller/internal/fairqueue"
	"github.com/stack-controller/stack-controller/internal/throughput"
)

// maxDeliveries is how many artifacts are delivered to agents at the same time; at most half of them to the agents of one namespace.
const maxDeliveries = 16

// panicWait is the time until an Update is reconciled again whose background work panicked: the cause may still be there.
const panicWait = time.Minute

// background runs the goroutines that work for Updates, at most one for each Update: it delivers the artifact or a plan, then watches the
// operation, then stores the plan that the operation saved. The goroutines only transfer data and watch. They wake the Update, and the
// reconciler decides what to do. background is a manager.Runnable, and its goroutines end with the manager.
type background struct {
	// ctx ends when the manager stops.
	ctx    context.Context
	cancel context.CancelFunc
	queue  workqueue.TypedRateLimitingInterface[reconcile.Request]
	// slots bounds how many deliveries run at the same time, and shares them between namespaces: agents belong to tenants, and may be slow.
	slots *fairqueue.Pool
	// plans bounds how many plans are being stored or delivered at once.
	plans *fairqueue.Pool
	// window is how long an agent may receive less than the minimum throughput.
	window  time.Duration
	waiting sync.WaitGroup

	mu sync.Mutex
	// tasks has the latest task of each Update that is not finalized. It needs no bound of its own, because each of these Updates has one
	// entry.
	tasks map[types.NamespacedName]*task
}

// task is the background work for an Update, with the results of the work.
type task struct {
	uid     types.UID
	kind    string
	running bool
	cancel  context.CancelFunc
	// delivery is how the delivery ended, until forgetDelivery.
	delivery delivery
	// stored is how the plan of the operation was stored.
	stored storedPlan
	// ended is the final operation that the watch saw. When its pod is stopped, an agent reports how its operation ended, and may then be
	// gone, with all its records, before it can be asked again. ended has no outputs, because a watch does not carry them, and was at most
	// agentpb.MaxOperationSize when it was received.
	ended *agentpb.Operation
}

// delivery is how an attempt to deliver an artifact or a plan ended: its digest, and the error if the attempt failed.
type delivery struct {
	digest string
	err    error
}

func newBackground() *background {
	ctx, cancel := context.WithCancel(context.Background())
	return &background{
		ctx: ctx, cancel: cancel, slots: fairqueue.NewPool(maxDeliveries), plans: fairqueue.NewPool(maxPlans), window: throughput.Window, tasks: map[types.NamespacedName]*task{},
	}
}

// useQueue is a source of the controller: the controller passes its queue to each source before its workers start.
func (b *background) useQueue(_ context.Context, queue workqueue.TypedRateLimitingInterface[reconcile.Request]) error {
	b.queue = queue
	return nil
}

// Start waits until ctx ends, and then until all goroutines have ended.
func (b *background) Start(ctx context.Context) error {
	<-ctx.Done()
	b.mu.Lock()
	b.cancel()
	b.mu.Unlock()
	b.waiting.Wait()
	return nil
}

// ensure runs the work for the Update, unless the same work is running already. Other work under the name of the Update is ended: work for
// a deleted Update that had the same name, or a delivery after the operation started. The work calls note to put its results into the task
// of the Update, which keeps them until it is ended. The Update is reconciled when the work is done.
func (b *background) ensure(update *autov1alpha1.Update, kind string, work func(ctx context.Context, note func(change func(*task)))) {
	key := ctrlclient.ObjectKeyFromObject(update)
	b.mu.Lock()
	defer b.mu.Unlock()
	if current := b.tasks[key]; current != nil {
		if current.running && current.uid == update.UID && current.kind == kind {
			return
		}
		current.cancel()
	}
	if b.ctx.Err() != nil {
		return
	}
	ctx, cancel := context.WithCancel(b.ctx)
	started := &task{uid: update.UID, kind: kind, running: true, cancel: cancel}
	b.tasks[key] = started
	note := func(change func(*task)) {
		b.mu.Lock()
		defer b.mu.Unlock()
		if ctx.Err() == nil {
			change(started)
		}
	}
	b.waiting.Go(func() {
		defer cancel()
		panicked := runRecovered(key, func() { work(ctx, note) })
		note(func(ended *task) { ended.running = false })
		switch request := (reconcile.Request{NamespacedName: key}); {
		case ctx.Err() != nil:
		case panicked:
			b.queue.AddAfter(request, panicWait)
		default:
			b.queue.Add(request)
		}
	})
}

var errPanicked = errors.New("an internal error")

// runRecovered does the work for the Update and reports whether the work panicked. An unexpected answer of an agent may cause a panic,
// which would end the process for all tenants. The log does not have the value of the panic, because that may be anything.
func runRecovered(update types.NamespacedName, work func()) (panicked bool) {
	defer func() {
		if recover() != nil {
			panicked = true
			log := ctrl.Log.WithName("update")
			log.Error(errPanicked, "the work for an update ended early", "update", update, "stack", string(debug.Stack()))
		}
	}()
	work()
	return false
}

// stop ends the work for an Update that needs none any longer, and forgets its results.
func (b *background) stop(key types.NamespacedName) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if current := b.tasks[key]; current != nil {
		current.cancel()
		delete(b.tasks, key)
	}
}

// lastDelivery returns how the last delivery for the Update ended; it is empty when there was none since forgetDelivery.
func (b *background) lastDelivery(update *autov1alpha1.Update) delivery {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.taskOf(update).delivery
}

// forgetDelivery forgets how the last delivery for the Update ended, so that the next reconcile makes another attempt.
func (b *background) forgetDelivery(update *autov1alpha1.Update) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.taskOf(update).delivery = delivery{}
}

// taskOf returns the task of the Update, an empty one when it has none. Callers hold the lock.
func (b *background) taskOf(update *autov1alpha1.Update) *task {
	if current := b.tasks[ctrlclient.ObjectKeyFromObject(update)]; current != nil && current.uid == update.UID {
		return current
	}
	return &task{}
}

// ending returns how the operation of the Update ended, as its watch saw it. It returns nil when no watch of this controller saw the end,
// and when the operation may have outputs or a plan, which only the agent has. If no agent knows such an operation, it counts as lost: see
// decideOnOperation.
func (b *background) ending(update *autov1alpha1.Update) *agentpb.Operation {
	b.mu.Lock()
	defer b.mu.Unlock()
	ended := b.taskOf(update).ended
	if ended == nil || mayHaveOutputs(ended) || savesPlan(update, ended) {
		return nil
	}
	return ended
}
