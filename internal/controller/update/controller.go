// Package update is the controller of Updates. An Update is one operation of pulumi. The controller starts the operation at the agent of
// its Workspace with everything that it needs, watches it and records its result, but never waits for it. The agent owns the operation, so
// the operation goes on when the controller is replaced.
package update

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/tools/record"
	"k8s.io/utils/lru"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/builder"
	ctrlclient "sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/controller"
	"sigs.k8s.io/controller-runtime/pkg/event"
	"sigs.k8s.io/controller-runtime/pkg/handler"
	"sigs.k8s.io/controller-runtime/pkg/predicate"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"
	ctrlsource "sigs.k8s.io/controller-runtime/pkg/source"

	autov1alpha1 "github.com/stack-controller/stack-controller/api/auto/v1alpha1"
	pulumiv1 "github.com/stack-controller/stack-controller/api/pulumi/v1"
	"github.com/stack-controller/stack-controller/internal/agentruntime"
	"github.com/stack-controller/stack-controller/internal/controller/inputs"
	"github.com/stack-controller/stack-controller/internal/informercache"
	"github.com/stack-controller/stack-controller/internal/references"
	"github.com/stack-controller/stack-controller/internal/report/metrics"
	"github.com/stack-controller/stack-controller/internal/shard"
	"github.com/stack-controller/stack-controller/internal/source"
	"github.com/stack-controller/stack-controller/internal/source/artifact"
)

const (
	// defaultProgressInterval is the shortest time between two writes of the progress; the end of an operation is written at once.
	defaultProgressInterval = 2 * time.Second
	// conflictInterval is the time to the next reconcile of an Update that was changed while the controller decided on it.
	conflictInterval = 100 * time.Millisecond
	// notFoundInterval is the time to the next reconcile of an Update when an object disappeared while the controller acted on it.
	notFoundInterval = time.Second
	// maxWoken is how many Updates that wait for one Workspace look again when it, or the first of them, has changed.
	maxWoken = 20
)

// Reconciler reconciles Updates. Its exported fields are set before SetupWithManager, and do not change.
type Reconciler struct {
	// Client reads Updates and Workspaces from the cache, and writes.
	ctrlclient.Client
	// APIReader reads from the API server. Secrets and ConfigMaps are never cached.
	APIReader ctrlclient.Reader
	record.EventRecorder
	// Runtime connects to the agents.
	Runtime agentruntime.Runtime
	// Store has the artifacts.
	Store *artifact.Store
	// Artifacts fetches into the store. No other controller may use it, because its events wake Updates. The caller runs it.
	Artifacts *artifact.Fetcher
	// Sources finds the artifacts that Updates name.
	Sources *source.Set
	// Git finds the commits of the repositories that Workspaces name, as long as an Update waits for one.
	Git *source.GitSubscriber
	// ProgressInterval is the shortest time between two writes of the progress of a running operation; 2 seconds when zero.
	ProgressInterval time.Duration
	// MaxOperations is how many operations may run at the same time; zero stands for no limit.
	MaxOperations int
	// Pods is true when agents run in pods of their own. Then the image or an init container may contain the program, and a variable may have
	// a value that only its container knows.
	Pods bool
	// References watches Secrets and ConfigMaps; nil when they are not watched. An object that appears wakes the Updates that may wait for it.
	References *references.Watcher

	// Shard selects the Updates and Workspaces of this controller; nil selects all.
	Shard *shard.Shard
	// Scope says whether operations may use outputs of Stacks in other namespaces.
	Scope references.Scope
	// Metrics receives the metrics of Updates; nil measures nothing.
	Metrics *metrics.Updates
	// RecentOutputs gets the outputs that were just stored.
	RecentOutputs *RecentOutputs
	// StoredOutputs has outputs of Stacks that were read a moment ago.
	StoredOutputs *inputs.Stored

	background *background
	turns      *turns
	// warned has the digests of the warnings of the last operation of each kind.
	warned *lru.Cache
}

// +kubebuilder:rbac:groups=auto.pulumi.com,resources=updates,verbs=get;list;watch;patch;delete
// +kubebuilder:rbac:groups=auto.pulumi.com,resources=updates/status,verbs=patch
// +kubebuilder:rbac:groups=auto.pulumi.com,resources=updates/finalizers,verbs=update
// +kubebuilder:rbac:groups=auto.pulumi.com,resources=workspaces,verbs=get;list;watch
// +kubebuilder:rbac:groups=pulumi.com,resources=stacks,verbs=get;list;watch
// +kubebuilder:rbac:groups="",resources=secrets,verbs=get;create
// +kubebuilder:rbac:groups="",resources=configmaps,verbs=get
// +kubebuilder:rbac:groups="",resources=events,verbs=create;patch

// SetupWithManager adds the controller to the manager.
func (r *Reconciler) SetupWithManager(ctx context.Context, mgr ctrl.Manager, options controller.Options) error {
	r.background, r.warned = newBackground(), lru.New(maxWarned)
	r.turns = newTurns(r.MaxOperations, r.Pods, r.background)
	if r.ProgressInterval == 0 {
		r.ProgressInterval = defaultProgressInterval
	}
	if err := mgr.GetFieldIndexer().IndexField(ctx, &autov1alpha1.Update{}, waitingIndex, indexWaiting); err != nil {
		return fmt.Errorf("index the updates that wait: %w", err)
	}
	if err := mgr.Add(r.background); err != nil {
		return fmt.Errorf("add the background work of updates: %w", err)
	}
	// An Update is not woken by the controller's own writes, which do not change the generation. A deletion and an edit do.
	changed := predicate.Or[ctrlclient.Object](predicate.GenerationChangedPredicate{}, onChange(false, func(before, after *autov1alpha1.Update) bool {
		return !pulumiv1.CancelRequested(before) && pulumiv1.CancelRequested(after)
	}))
	planChanged := onChange(false, func(before, after *pulumiv1.Stack) bool { return planIdentity(before) != planIdentity(after) })
	withdrawn := onChange(false, func(before, after *pulumiv1.Stack) bool {
		return !slices.Equal(withdrawnUpdate(ctx, before), withdrawnUpdate(ctx, after))
	})
	completed := onChange(true, func(before, after *autov1alpha1.Update) bool { return !before.IsComplete() && after.IsComplete() })
	err := ctrl.NewControllerManagedBy(mgr).
		Named("update").
		For(&autov1alpha1.Update{}, builder.WithPredicates(changed)).
		Watches(&autov1alpha1.Update{}, handler.EnqueueRequestsFromMapFunc(r.updatesOfWorkspace), builder.WithPredicates(completed)).
		// The Workspace of a Stack has the name of the Stack.
		Watches(&pulumiv1.Stack{}, handler.EnqueueRequestsFromMapFunc(r.updatesOfWorkspace), builder.WithPredicates(planChanged)).
		Watches(&pulumiv1.Stack{}, handler.EnqueueRequestsFromMapFunc(withdrawnUpdate), builder.WithPredicates(withdrawn)).
		Watches(&autov1alpha1.Workspace{}, handler.EnqueueRequestsFromMapFunc(r.updatesOfWorkspace)).
		WatchesRawSource(ctrlsource.Func(r.background.useQueue)).
		WatchesRawSource(ctrlsource.Channel(r.Artifacts.Events(), &handler.EnqueueRequestForObject{})).
		WatchesRawSource(ctrlsource.Channel(r.Git.Events(), &handler.EnqueueRequestForObject{})).
		WatchesRawSource(r.References.Source(r.updatesOfReference)).
		WithOptions(options).
		Complete(informercache.ShowingTooLarge(r, r.Client, r.EventRecorder, &autov1alpha1.Update{},
			metav1.Condition{Type: autov1alpha1.UpdateFailed, Status: metav1.ConditionTrue, Reason: autov1alpha1.ConfigInvalidReason},
			metav1.Condition{Type: autov1alpha1.UpdateComplete, Status: metav1.ConditionTrue, Reason: autov1alpha1.UpdateEndedFailedReason},
			metav1.Condition{Type: autov1alpha1.UpdateProgressing, Status: metav1.ConditionFalse, Reason: autov1alpha1.UpdateEndedFailedReason}))
	if err != nil {
		return fmt.Errorf("set up the update controller: %w", err)
	}
	return nil
}

// Reconcile observes, decides and acts.
func (r *Reconciler) Reconcile(ctx context.Context, request ctrl.Request) (ctrl.Result, error) {
	update := &autov1alpha1.Update{}
	if err := r.Get(ctx, request.NamespacedName, update); err != nil {
		if apierrors.IsNotFound(err) {
			r.background.stop(request.NamespacedName)
			r.turns.forget(request.NamespacedName)
			r.Git.Forget(request.NamespacedName)
			r.Metrics.Forget(request.NamespacedName)
			return ctrl.Result{}, nil
		}
		return ctrl.Result{}, fmt.Errorf("read the update: %w", err)
	}
	observed, err := r.observe(ctx, update)
	if err != nil {
		return ctrl.Result{}, err
	}
	result, err := r.decideAndAct(ctx, observed)
	switch {
	case ctx.Err() != nil:
		// The manager is stopping. The next controller starts from what the API server and the agents know.
		return ctrl.Result{}, nil
	case apierrors.IsConflict(err) || errors.Is(err, errChanged):
		// The cache was behind. The change that it missed may be one that wakes nothing.
		return ctrl.Result{RequeueAfter: conflictInterval}, nil
	case apierrors.IsNotFound(err):
		// Most likely the Update was just deleted, and the cache will show that soon. If not, the Update has to be observed again.
		return ctrl.Result{RequeueAfter: notFoundInterval}, nil
	}
	return result, err
}

// decideAndAct decides and acts. Some actions add to what is known, and then it decides again: each of them at most once, because it is not
// chosen for what it has added.
func (r *Reconciler) decideAndAct(ctx context.Context, o *observation) (ctrl.Result, error) {
	var err error
	for err == nil {
		d := decide(o)
		ctrl.LoggerFrom(ctx).V(1).Info("decided",
			"action", d.action, "reason", d.reason, "message", d.message, "waker", d.wake, "after", d.after.String())
		switch d.action {
		case actionQueue:
			err = r.queue(ctx, o)
		case actionAsk:
			err = r.observeAgent(ctx, o)
		case actionWake:
			agent, failed := r.Runtime.Wake(ctx, o.workspace)
			o.woken = &connection{agent, failed}
			err = r.observeAgent(ctx, o)
		case actionStoreOutputs:
			o.outputs = r.storeOutputs(ctx, o.update, o.agent.operation)
		case actionStart:
			var result ctrl.Result
			if result, err = r.startAndFollow(ctx, o, d); err != nil || o.startError == nil {
				return result, err
			}
		default:
			return r.act(ctx, o, d)
		}
	}
	return ctrl.Result{}, err
}

// queue asks for a slot, and with a slot the agent. Without one, the agent is asked only for an operation that may run already.
func (r *Reconciler) queue(ctx context.Context, o *observation) (err error) {
	if o.turn, err = r.turns.ask(ctx, r, o.update, o.now); err != nil || o.turn.place > 0 && !o.turn.unconfirmed {
		return err
	}
	if err := r.observeAgent(ctx, o); err != nil {
		return err
	}
	if o.turn.place > 0 && errors.Is(o.agent.err, agentruntime.ErrResting) {
		o.agent = agentView{} // it runs nothing, and rests until it is the turn of the Update
	}
	if o.agent.err == nil {
		r.turns.settle(ctrlclient.ObjectKeyFromObject(o.update))
		o.turn.tried = false
	}
	return nil
}

// waitingIndex is the index of the Updates that have not started. Their value is notStarted.
const (
	waitingIndex = "status.startTime"
	notStarted   = "none"
)

func indexWaiting(object ctrlclient.Object) []string {
	if update := object.(*autov1alpha1.Update); update.HasStarted() || update.IsComplete() {
		return nil
	}
	return []string{notStarted}
}

// onChange returns a predicate for the changes for which passes returns true, and for deletions if deletions is true.
func onChange[Object ctrlclient.Object](deletions bool, passes func(before, after Object) bool) predicate.Predicate {
	return predicate.Funcs{
		CreateFunc: func(event.CreateEvent) bool { return false },
		UpdateFunc: func(e event.UpdateEvent) bool {
			return passes(e.ObjectOld.(Object), e.ObjectNew.(Object))
		},
		DeleteFunc:  func(event.DeleteEvent) bool { return deletions },
		GenericFunc: func(event.GenericEvent) bool { return false },
	}
}

// updatesOfWorkspace returns the Updates that may wait for the Workspace, for its Stack, or for another Update of it. Of those that have not begun,
// it returns the next ones: each looks at all of them, and somebody can create any number.
func (r *Reconciler) updatesOfWorkspace(ctx context.Context, object ctrlclient.Object) []reconcile.Request {
	name := object.GetName()
	if update, ok := object.(*autov1alpha1.Update); ok {
		name = update.Spec.WorkspaceName
	}
	updates, err := r.updatesOf(ctx, object.GetNamespace(), name)
	if err != nil {
		ctrl.LoggerFrom(ctx).Error(err, "cannot find the updates to reconcile", "namespace", object.GetNamespace())
	}
	return nextOf(updates, maxWoken)
}

// nextOf returns a request for each Update that an agent may know, and for that many of the others, the oldest first. Complete ones have none.
func nextOf(updates []autov1alpha1.Update, limit int) (requests []reconcile.Request) {
	var waiting []*autov1alpha1.Update
	for i := range updates {
		switch update := &updates[i]; {
		case update.IsComplete():
		case mayHaveStarted(update):
			requests = append(requests, reconcile.Request{NamespacedName: ctrlclient.ObjectKeyFromObject(update)})
		case len(waiting) < limit || comesBefore(update, waiting[len(waiting)-1]):
			at, _ := slices.BinarySearchFunc(waiting, update, compareAge)
			waiting = slices.Insert(waiting, at, update)
			waiting = waiting[:min(len(waiting), limit)]
		}
	}
	for _, update := range waiting {
		requests = append(requests, reconcile.Request{NamespacedName: ctrlclient.ObjectKeyFromObject(update)})
	}
	return requests
}

// updatesOfReference returns the Updates that may wait for the Secret or ConfigMap. An Update whose status does not say so yet counts too,
// because its reconcile may have just missed the object.
func (r *Reconciler) updatesOfReference(ctx context.Context, key references.Key) (requests []reconcile.Request) {
	list := &autov1alpha1.UpdateList{}
	selected := ctrlclient.MatchingFields{waitingIndex: notStarted}
	if err := r.List(ctx, list, ctrlclient.InNamespace(key.Namespace), selected, ctrlclient.UnsafeDisableDeepCopy); err != nil {
		ctrl.LoggerFrom(ctx).Error(err, "cannot find the updates to reconcile", "namespace", key.Namespace)
		return nil
	}
	for i := range list.Items {
		if !list.Items[i].IsComplete() {
			requests = append(requests, reconcile.Request{NamespacedName: ctrlclient.ObjectKeyFromObject(&list.Items[i])})
		}
	}
	return requests
}

// CacheTransform removes what the cache must not keep. Of an Update that is status.changes, which can be large; code that needs it reads it
// from the API server. No code writes the status of an Update that has it. For all objects see source.CacheTransform.
func CacheTransform(object any) (any, error) {
	if update, ok := object.(*autov1alpha1.Update); ok {
		update.Status.Changes = nil
	}
	return source.CacheTransform(object)
}
