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
	"github.com/stack-controller/stack-controller/internal/agent/proto"
	"github.com/stack-controller/stack-controller/internal/fairqueue"
	"github.com/stack-controller/stack-controller/internal/throughput"
)

// maxDeliveries is how many artifacts are on their way to agents at the same time; at most half of them to those of one namespace.
const maxDeliveries = 16

// panicWait is how long an Update rests whose work has panicked: what caused it may still be there.
const panicWait = time.Minute

// background has the goroutines that work for Updates, at most one for each: it delivers the artifact, later it watches the
// operation. They only watch and carry; whatever they find out, the reconciler finds out as well when it is woken. It is a
// manager.Runnable; the goroutines end with it.
type background struct {
	// ctx ends when the manager stops.
	ctx    context.Context
	cancel context.CancelFunc
	queue  workqueue.TypedRateLimitingInterface[reconcile.Request]
	// slots bounds how many deliveries run at once, and shares them between namespaces: agents belong to tenants, and may take their time.
	slots *fairqueue.Pool
	// plans bounds how many plans are being stored or delivered at once.
	plans *fairqueue.Pool
	// window is how long an agent may receive less than the minimum throughput.
	window  time.Duration
	waiting sync.WaitGroup

	mu sync.Mutex
	// tasks has the last one of each Update that is not finalized. It is not bounded by itself: there is one for each of these Updates.
	tasks map[types.NamespacedName]*task
}

// task is the work for an Update, and what it found out.
type task struct {
	uid     types.UID
	kind    string
	running bool
	cancel  context.CancelFunc
	// delivery is how the delivery ended, until that is reported.
	delivery delivery
	// stored is how the plan of the operation was stored.
	stored storedPlan
	// ended is the final operation that the watch saw. An agent whose pod is ended reports how its operation ended, and may be gone, with
	// all that it knew, before it can be asked again. It is without outputs, which a watch does not carry, and was proto.MaxOperationSize at
	// most when it was received.
	ended *proto.Operation
}

// delivery is how an attempt ended to bring an artifact to the agent: the digest, or the error.
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

// useQueue is a source of the controller, which hands over its queue before it begins to work.
func (b *background) useQueue(_ context.Context, queue workqueue.TypedRateLimitingInterface[reconcile.Request]) error {
	b.queue = queue
	return nil
}

// Start waits for the end of ctx, and then for that of all goroutines.
func (b *background) Start(ctx context.Context) error {
	<-ctx.Done()
	b.mu.Lock()
	b.cancel()
	b.mu.Unlock()
	b.waiting.Wait()
	return nil
}

// ensure runs the work for the Update, unless it is running, and keeps what the work notes in its task until it is ended. Other work for it
// is ended: an Update that was made again under its old name, or a delivery after the start. The Update is reconciled when the work is done.
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
		panicked := doesPanic(key, func() { work(ctx, note) })
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

// doesPanic does the work for the Update and reports whether it panicked, which strange answers of an agent may cause, and which would end
// the process for all tenants. What it panicked with may be anything, so that the log does not have it.
func doesPanic(update types.NamespacedName, work func()) (panicked bool) {
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

// stop ends the work for an Update that needs none any more, and forgets what is known from it.
func (b *background) stop(key types.NamespacedName) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if current := b.tasks[key]; current != nil {
		current.cancel()
		delete(b.tasks, key)
	}
}

// takeDelivery returns, once, how the last delivery for the Update ended; it is empty when there was none.
func (b *background) takeDelivery(update *autov1alpha1.Update) delivery {
	b.mu.Lock()
	defer b.mu.Unlock()
	current := b.taskOf(update)
	last := current.delivery
	current.delivery = delivery{}
	return last
}

// taskOf returns the task of the Update, an empty one when it has none. Callers hold the lock.
func (b *background) taskOf(update *autov1alpha1.Update) *task {
	if current := b.tasks[ctrlclient.ObjectKeyFromObject(update)]; current != nil && current.uid == update.UID {
		return current
	}
	return &task{}
}

// ending returns how the operation of the Update ended, as its watch saw it. It is nil when no watch of this controller did, and when outputs or
// a plan belong to it that only the agent had. Without an agent that knows it such an operation counts as lost: see decideOnOperation.
func (b *background) ending(update *autov1alpha1.Update) *proto.Operation {
	b.mu.Lock()
	defer b.mu.Unlock()
	ended := b.taskOf(update).ended
	if ended == nil || mayHaveOutputs(ended) || savesPlan(update, ended) {
		return nil
	}
	return ended
}
