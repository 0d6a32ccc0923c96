package update

import (
	"context"
	"fmt"
	"sync"
	"time"

	"k8s.io/apimachinery/pkg/types"
	ctrlclient "sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	"github.com/fluxcd/pkg/apis/meta"

	autov1alpha1 "github.com/stack-controller/stack-controller/api/auto/v1alpha1"
	pulumiv1 "github.com/stack-controller/stack-controller/api/pulumi/v1"
	"github.com/stack-controller/stack-controller/internal/fairqueue"
)

// The place in the queue is shown anew after a time that depends on it, between these.
const (
	shortestPlaceInterval = 10 * time.Second
	longestPlaceInterval  = 5 * time.Minute
)

// turns bound how many operations run at the same time, each of them a pulumi process with its plugins. It is nil without a limit.
type turns struct {
	limit int
	slots *fairqueue.Turns

	mu sync.Mutex
	// counted says that the operations count that an earlier controller started. The first one that is started here waits for that.
	counted bool
	// shown are the places that are shown.
	shown map[types.NamespacedName]shownPlace
}

// shownPlace is the place in the queue that the status has, and when it was written. It is zero once the operation may run, and at is since
// when. A place is written again only after a time: in a long queue it changes with each operation that begins.
type shownPlace struct {
	place int
	at    time.Time
}

func newTurns(limit int, pods bool, background *background) *turns {
	if limit <= 0 {
		return nil
	}
	mayTake := fairqueue.AllSlots
	if pods {
		mayTake = fairqueue.MayTake // operations are those of tenants, and may hang
	}
	return &turns{limit: limit, shown: map[types.NamespacedName]shownPlace{}, slots: fairqueue.NewTurns(limit, mayTake, func(key types.NamespacedName) {
		background.queue.Add(reconcile.Request{NamespacedName: key})
	})}
}

// turnView is how an Update stands in the queue for operations.
type turnView struct {
	// place is zero when the operation may run, else that in the queue when it was shown first; 1 is the next one.
	place int
	// limit is how many operations may run.
	limit int
	// again is when the place is to be shown anew.
	again time.Duration
	// granted is since when an operation that had to wait may run; zero for another one.
	granted time.Time
}

func (v turnView) String() string {
	return fmt.Sprintf("waits for its turn: place %d in the queue, %d operations may run at the same time (--max-operations)", v.place, v.limit)
}

// interval is for how long a place is shown.
func interval(place int) time.Duration {
	return min(max(time.Duration(place)*time.Second, shortestPlaceInterval), longestPlaceInterval)
}

// ask gives the Update a slot or a place in the queue, which it keeps until it leaves.
func (t *turns) ask(ctx context.Context, reader ctrlclient.Reader, update *autov1alpha1.Update, now time.Time) (view turnView, err error) {
	if t == nil {
		return turnView{}, nil
	}
	if err := t.countRunning(ctx, reader); err != nil {
		return turnView{}, err
	}
	key := ctrlclient.ObjectKeyFromObject(update)
	return t.show(key, t.slots.Ask(key, isUrgent(update)), now), nil
}

// countRunning gives slots to the operations that an earlier controller started, once.
func (t *turns) countRunning(ctx context.Context, reader ctrlclient.Reader) error {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.counted {
		return nil
	}
	list := &autov1alpha1.UpdateList{}
	if err := reader.List(ctx, list, ctrlclient.UnsafeDisableDeepCopy); err != nil {
		return fmt.Errorf("list the updates that run: %w", err)
	}
	for i := range list.Items {
		if item := &list.Items[i]; item.HasStarted() && !item.IsComplete() {
			t.hold(item)
		}
	}
	t.counted = true
	return nil
}

// show returns what is to be shown of the place.
func (t *turns) show(key types.NamespacedName, place int, now time.Time) turnView {
	t.mu.Lock()
	defer t.mu.Unlock()
	shown, known := t.shown[key]
	if place == 0 {
		if known && shown.place > 0 {
			shown = shownPlace{at: now}
			t.shown[key] = shown
		}
		return turnView{granted: shown.at}
	}
	if !known || shown.place == 0 || now.Sub(shown.at) >= interval(shown.place) {
		shown = shownPlace{place: place, at: now}
		t.shown[key] = shown
	}
	return turnView{place: shown.place, limit: t.limit, again: interval(shown.place) - now.Sub(shown.at)}
}

// isUrgent reports whether somebody waits for the operation: one that was asked for, or that frees resources.
func isUrgent(update *autov1alpha1.Update) bool {
	return pulumiv1.OwningStack(update) == nil || update.Spec.Type == autov1alpha1.UpdateTypeDestroy ||
		update.Annotations[meta.ReconcileRequestAnnotation] != "" || update.Annotations[pulumiv1.LastUpdateAnnotation] != ""
}

// hold counts an operation that runs.
func (t *turns) hold(update *autov1alpha1.Update) {
	if t != nil {
		t.slots.Hold(ctrlclient.ObjectKeyFromObject(update))
	}
}

// leave gives back the slot of the Update, or its place in the queue.
func (t *turns) leave(key types.NamespacedName) {
	if t == nil {
		return
	}
	t.slots.Leave(key)
	t.mu.Lock()
	defer t.mu.Unlock()
	delete(t.shown, key)
}
