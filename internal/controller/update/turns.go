package update

import (
	"cmp"
	"context"
	"fmt"
	"maps"
	"slices"
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

// The status shows a new place in the queue after a time that depends on the place, between these two.
const (
	shortestPlaceInterval = 10 * time.Second
	longestPlaceInterval  = time.Hour
)

// turns bounds how many operations run at the same time, each of them a pulumi process with its plugins. It is nil when there is no limit.
// fairqueue.Turns decides the order: pushAfter in internal/fairqueue/turns.go within a namespace, next in shares.go between them.
type turns struct {
	limit int
	slots *fairqueue.Turns

	mu sync.Mutex
	// counted is true once the operations that an earlier controller started have slots. The first call of ask gives them these slots.
	counted bool
	// unconfirmed are the Updates whose operations may run although no start was recorded. Their agents are asked without a slot, too: what
	// runs has to be followed. The value says whether the start was this controller's; an earlier one may have started any that waited.
	unconfirmed map[types.NamespacedName]bool
	// shown are the places that the statuses show.
	shown map[types.NamespacedName]shownPlace
}

// shownPlace is the place in the queue that the status shows, and when it was written. Once the operation may run, place is zero, and at is
// since when. A place is written again only after a time, because in a long queue it changes with each operation that starts.
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
		mayTake = fairqueue.MayTake // operations belong to tenants, and may hang
	}
	return &turns{
		limit: limit, unconfirmed: map[types.NamespacedName]bool{}, shown: map[types.NamespacedName]shownPlace{},
		slots: fairqueue.NewTurns(limit, mayTake, func(key types.NamespacedName) {
			background.queue.Add(reconcile.Request{NamespacedName: key})
		}),
	}
}

// turnView is the slot of an Update, or its place in the queue for operations.
type turnView struct {
	// asked is true when the Update has a slot or a place.
	asked bool
	// place is zero when the operation may run, and otherwise the place in the queue that the status shows; 1 is the next one.
	place int
	// limit is how many operations may run.
	limit int
	// again is the time until a new place is shown.
	again time.Duration
	// granted is since when an operation that had to wait may run; zero for any other operation.
	granted time.Time
	// unconfirmed is true if the operation may run although no start was recorded.
	unconfirmed bool
	// tried is true if this controller asked the agent to start the operation, and no answer says that it did not. Then it keeps what it has.
	tried bool
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
		return turnView{asked: true}, nil
	}
	if err := t.countRunning(ctx, reader); err != nil {
		return turnView{}, err
	}
	key := ctrlclient.ObjectKeyFromObject(update)
	view = t.show(key, t.slots.Ask(key, isUrgent(update)), now)
	view.asked = true
	t.mu.Lock()
	defer t.mu.Unlock()
	view.tried, view.unconfirmed = t.unconfirmed[key]
	return view, nil
}

// countRunning gives slots to the operations that an earlier controller started, and notes those that it may have started without having
// recorded it. It does so once.
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
	running := map[string][]*autov1alpha1.Update{}
	for i := range list.Items {
		switch item := &list.Items[i]; {
		case item.IsComplete():
		case item.HasStarted():
			running[item.Namespace] = append(running[item.Namespace], item)
		default:
			t.unconfirmed[ctrlclient.ObjectKeyFromObject(item)] = false
		}
	}
	for _, updates := range mostFirst(running) {
		for _, update := range updates {
			t.hold(update)
		}
	}
	t.counted = true
	return nil
}

// mostFirst returns the Updates of each namespace, those of the namespace with most of them first. In this order, all that had a turn are within the
// shares of their namespaces again, see fairqueue.Turns.Hold: the more a namespace has, the earlier it had to take them.
func mostFirst(running map[string][]*autov1alpha1.Update) [][]*autov1alpha1.Update {
	return slices.SortedFunc(maps.Values(running), func(a, b []*autov1alpha1.Update) int { return cmp.Compare(len(b), len(a)) })
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

// isUrgent reports whether somebody waits for the operation: it was requested, or it frees resources.
func isUrgent(update *autov1alpha1.Update) bool {
	return pulumiv1.OwningStack(update) == nil || update.Spec.Type == autov1alpha1.UpdateTypeDestroy ||
		update.Annotations[meta.ReconcileRequestAnnotation] != "" || update.Annotations[pulumiv1.LastUpdateAnnotation] != ""
}

// hold gives a slot to an operation that runs, even if none is free.
func (t *turns) hold(update *autov1alpha1.Update) {
	if t != nil {
		t.slots.Hold(ctrlclient.ObjectKeyFromObject(update))
	}
}

// trying notes that the agent is asked to start the operation: until settle, it may run.
func (t *turns) trying(update *autov1alpha1.Update) {
	if t == nil {
		return
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	t.unconfirmed[ctrlclient.ObjectKeyFromObject(update)] = true
}

// settle notes that the agent has said whether it has the operation.
func (t *turns) settle(key types.NamespacedName) {
	if t == nil {
		return
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	delete(t.unconfirmed, key)
}

// forget is for an Update that is complete or gone.
func (t *turns) forget(key types.NamespacedName) {
	t.settle(key)
	t.leave(key)
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
