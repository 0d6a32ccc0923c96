package stack

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"slices"

	"k8s.io/apimachinery/pkg/api/equality"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/util/workqueue"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/builder"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/controller"
	"sigs.k8s.io/controller-runtime/pkg/event"
	"sigs.k8s.io/controller-runtime/pkg/handler"
	"sigs.k8s.io/controller-runtime/pkg/predicate"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"
	ctrlsource "sigs.k8s.io/controller-runtime/pkg/source"

	"github.com/fluxcd/pkg/apis/meta"
	"github.com/fluxcd/pkg/runtime/conditions"
	"github.com/fluxcd/pkg/runtime/predicates"

	autov1alpha1 "github.com/stack-controller/stack-controller/api/auto/v1alpha1"
	pulumiv1 "github.com/stack-controller/stack-controller/api/pulumi/v1"
	"github.com/stack-controller/stack-controller/internal/controller/inputs"
	"github.com/stack-controller/stack-controller/internal/informercache"
	"github.com/stack-controller/stack-controller/internal/objectwatch"
	"github.com/stack-controller/stack-controller/internal/references"
	"github.com/stack-controller/stack-controller/internal/waves"
)

// requestQueue is the queue of the controller.
type requestQueue = workqueue.TypedRateLimitingInterface[reconcile.Request]

// Indexes of the cache.
const (
	dependencyIndex  = "spec.prerequisites"
	readyExprIndex   = "spec.dependsOn.readyExpr"
	objectsIndex     = "spec.dependsOn.kind"
	referencesIndex  = "spec.references"
	outputsIndex     = "spec.outputs"
	updateOwnerIndex = "metadata.ownerReferences.stack"
	approvalIndex    = "spec.update"
)

// maxIndexed bounds the values that a Stack has in an index. Each value takes 600 bytes of memory, and a name of four letters is enough for
// one.
const maxIndexed = 256

// SetupWithManager adds the controller to the manager.
func (r *Reconciler) SetupWithManager(ctx context.Context, mgr ctrl.Manager, options controller.Options) error {
	if err := r.addIndexes(ctx, mgr.GetFieldIndexer()); err != nil {
		return err
	}
	owner := handler.EnqueueRequestForOwner(mgr.GetScheme(), mgr.GetRESTMapper(), &pulumiv1.Stack{})
	setup := ctrl.NewControllerManagedBy(mgr).
		For(&pulumiv1.Stack{}, builder.WithPredicates(predicate.Or[client.Object](
			predicate.GenerationChangedPredicate{}, predicates.ReconcileRequestedPredicate{}, updated(requestChanged), updated(foregroundDeletionEnded)))).
		Owns(&autov1alpha1.Workspace{}, builder.WithPredicates(workspaceChanged)).
		Watches(&autov1alpha1.Update{}, owner, builder.WithPredicates(updated(updateChanged))).
		Watches(&autov1alpha1.Approval{}, handler.EnqueueRequestsFromMapFunc(r.requestsForApproval)).
		Watches(&pulumiv1.Stack{}, r.requestsFor(dependencyIndex), builder.WithPredicates(dependencyChanged)).
		Watches(&pulumiv1.Stack{}, handler.EnqueueRequestsFromMapFunc(r.requestsForDependencies), builder.WithPredicates(dependentChanged)).
		// A Stack whose outputs are stored nowhere has to be updated when another Stack has them as inputs.
		Watches(&pulumiv1.Stack{}, handler.EnqueueRequestsFromMapFunc(r.requestsForInputs), builder.WithPredicates(
			predicate.Or[client.Object](predicate.GenerationChangedPredicate{}, updated(beganToAwait)))).
		// An expression may read any field, and the creation of a Stack matters to those for which it only has to exist.
		Watches(&pulumiv1.Stack{}, r.requestsFor(readyExprIndex), builder.WithPredicates(predicate.ResourceVersionChangedPredicate{})).
		Watches(&autov1alpha1.StackRollout{}, handler.Funcs{
			CreateFunc: func(ctx context.Context, e event.CreateEvent, queue requestQueue) {
				r.wakeRollout(ctx, e.Object, queue)
			},
			DeleteFunc: func(ctx context.Context, e event.DeleteEvent, queue requestQueue) {
				r.wakeRollout(ctx, e.Object, queue)
			},
			UpdateFunc: r.rolloutChanged,
		}).
		WatchesRawSource(r.Namespaces.Source(r.membersIn)).
		WatchesRawSource(ctrlsource.Channel(r.Artifacts.Events(), &handler.EnqueueRequestForObject{})).
		WatchesRawSource(ctrlsource.Channel(r.Contents.Events(), &handler.EnqueueRequestForObject{})).
		WatchesRawSource(r.Objects.Source(func(ctx context.Context, name objectwatch.Name) []reconcile.Request {
			return r.findStacks(ctx, objectsIndex, name.String())
		})).
		WatchesRawSource(r.References.Source(func(ctx context.Context, key references.Key) []reconcile.Request {
			return r.findStacks(ctx, referencesIndex, key.String())
		})).
		WatchesRawSource(r.References.SourceWithDeletions(func(ctx context.Context, key references.Key) []reconcile.Request {
			return r.findStacks(ctx, outputsIndex, key.String())
		})).
		WithOptions(options)
	stacksOf := func(ctx context.Context, key string) []reconcile.Request {
		return r.findStacks(ctx, informercache.StacksBySource, key)
	}
	for _, watch := range r.Sources.Watches(mgr.GetCache(), stacksOf) {
		setup = setup.WatchesRawSource(watch)
	}
	large := informercache.ShowingTooLarge(r, r.Client, r.EventRecorder, &pulumiv1.Stack{},
		metav1.Condition{Type: meta.ReadyCondition, Status: metav1.ConditionFalse, Reason: pulumiv1.SpecInvalidReason},
		metav1.Condition{Type: meta.StalledCondition, Status: metav1.ConditionTrue, Reason: pulumiv1.SpecInvalidReason})
	if err := setup.Complete(large); err != nil {
		return fmt.Errorf("build the Stack controller: %w", err)
	}
	return nil
}

// stackIndexes are the values under which the cache finds a Stack. What another namespace does not let it use is not among them: its changes
// would wake the Stack.
func (r *Reconciler) stackIndexes() map[string]func(*pulumiv1.Stack) []string {
	return map[string]func(*pulumiv1.Stack) []string{
		dependencyIndex: func(stack *pulumiv1.Stack) []string {
			return namesOf(r.allowedDependencies(stack, namedDependencies), anyDependency)
		},
		readyExprIndex: func(stack *pulumiv1.Stack) []string {
			return namesOf(r.allowedDependencies(stack, dependenciesOf), func(item dependency) bool { return item.expression != "" || item.onlyExists })
		},
		informercache.StacksByRollout: func(stack *pulumiv1.Stack) []string {
			if key, named := waves.RolloutOf(stack); named {
				return []string{key.String()}
			}
			return nil
		},
		objectsIndex: func(stack *pulumiv1.Stack) []string {
			var values []string
			for _, item := range r.allowedDependencies(stack, objectsOf) {
				values = append(values, item.objectName().String())
			}
			return values
		},
		// The Secrets and ConfigMaps that it writes.
		outputsIndex: func(stack *pulumiv1.Stack) []string {
			var values []string
			for i := range stack.Spec.Outputs {
				object := &stack.Spec.Outputs[i]
				kind := references.Kind(cmp.Or(object.Kind, pulumiv1.OutputSecret))
				values = append(values, references.Key{Kind: kind, Namespace: stack.Namespace, Name: object.Name}.String())
			}
			return values
		},
		// The Secrets and ConfigMaps that it may use.
		referencesIndex: func(stack *pulumiv1.Stack) []string {
			var values []string
			for _, key := range append(references.OfStack(stack), references.OfInputs(stack.Namespace, stack.Spec.Inputs)...) {
				values = append(values, key.String())
			}
			return values[:min(len(values), maxIndexed)]
		},
	}
}

func (r *Reconciler) addIndexes(ctx context.Context, indexer client.FieldIndexer) error {
	type index struct {
		object client.Object
		values func(client.Object) []string
	}
	indexes := map[string]index{
		informercache.StacksBySource: {&pulumiv1.Stack{}, func(object client.Object) []string {
			if key := r.Sources.Key(object.(*pulumiv1.Stack)); key != "" {
				return []string{key}
			}
			return nil
		}},
		approvalIndex: {&autov1alpha1.Approval{}, func(object client.Object) []string {
			if update := object.(*autov1alpha1.Approval).Spec.Update; update != "" {
				return []string{update}
			}
			return nil
		}},
		informercache.ApprovalsByRollout: {&autov1alpha1.Approval{}, func(object client.Object) []string {
			if rollout := object.(*autov1alpha1.Approval).Spec.Rollout; rollout != "" {
				return []string{rollout}
			}
			return nil
		}},
		updateOwnerIndex: {&autov1alpha1.Update{}, func(object client.Object) []string {
			if owner := pulumiv1.OwningStack(object); owner != nil {
				return []string{string(owner.UID)}
			}
			return nil
		}},
	}
	for name, values := range r.stackIndexes() {
		indexes[name] = index{&pulumiv1.Stack{}, func(object client.Object) []string { return values(object.(*pulumiv1.Stack)) }}
	}
	for name, index := range indexes {
		if err := indexer.IndexField(ctx, index.object, name, index.values); err != nil {
			return fmt.Errorf("index %T by %s: %w", index.object, name, err)
		}
	}
	return nil
}

// namesOf returns the names of the chosen dependencies.
func namesOf(dependencies []dependency, chosen func(dependency) bool) []string {
	var names []string
	for _, item := range dependencies {
		if chosen(item) {
			names = append(names, item.name.String())
		}
	}
	return names
}

func anyDependency(dependency) bool { return true }

// requestsFor wakes the Stacks that have the name of the object in the index.
func (r *Reconciler) requestsFor(index string) handler.EventHandler {
	return handler.EnqueueRequestsFromMapFunc(func(ctx context.Context, object client.Object) []reconcile.Request {
		return r.findStacks(ctx, index, client.ObjectKeyFromObject(object).String())
	})
}

func (r *Reconciler) findStacks(ctx context.Context, index, value string) []reconcile.Request {
	return r.findStacksThat(ctx, index, value, func(*pulumiv1.Stack) bool { return true })
}

// findStacksThat returns the chosen ones of these Stacks.
func (r *Reconciler) findStacksThat(ctx context.Context, index, value string, chosen func(*pulumiv1.Stack) bool) (requests []reconcile.Request) {
	var stacks pulumiv1.StackList
	// The objects are only read, and there may be many.
	if err := r.List(ctx, &stacks, client.MatchingFields{index: value}, client.UnsafeDisableDeepCopy); err != nil {
		ctrl.LoggerFrom(ctx).Error(err, "cannot list the Stacks to wake")
		return nil
	}
	for i := range stacks.Items {
		if stack := &stacks.Items[i]; chosen(stack) {
			requests = append(requests, reconcile.Request{NamespacedName: client.ObjectKeyFromObject(stack)})
		}
	}
	return requests
}

// requestsForDependencies returns the dependencies of the Stack that may wait for the Stack to be deleted. The Stack does not wake one that it
// is not allowed to depend on.
func (r *Reconciler) requestsForDependencies(ctx context.Context, object client.Object) []reconcile.Request {
	var requests []reconcile.Request
	for _, item := range r.allowedDependencies(object.(*pulumiv1.Stack), namedDependencies) {
		named := &pulumiv1.Stack{}
		err := informercache.Cached(r.Client).Get(ctx, item.name, named, client.UnsafeDisableDeepCopy)
		if client.IgnoreNotFound(err) != nil {
			ctrl.LoggerFrom(ctx).Error(err, "cannot read a stack that may have to be woken", "stack", item.name)
		}
		if err == nil && (informercache.IsShortened(named) || destroysAfterDependents(named)) {
			requests = append(requests, reconcile.Request{NamespacedName: item.name})
		}
	}
	return requests
}

// requestsForInputs returns the Stacks whose outputs the Stack has as inputs. The Stack does not wake one that shares no output with it.
func (r *Reconciler) requestsForInputs(ctx context.Context, object client.Object) []reconcile.Request {
	var requests []reconcile.Request
	user := object.(*pulumiv1.Stack)
	for _, name := range autov1alpha1.StacksOf(user.Namespace, user.Spec.Inputs) {
		giver := &pulumiv1.Stack{}
		if !r.Scope.Reaches(user.Namespace, name.Namespace) || informercache.Cached(r.Client).Get(ctx, name, giver, client.UnsafeDisableDeepCopy) != nil {
			continue // A Stack that is not in the cache is not reconciled here, see observeGivers, and one that appears looks who uses it.
		}
		if inputs.Uses(user, giver, r.Scope) {
			requests = append(requests, reconcile.Request{NamespacedName: name})
		}
	}
	return requests
}

// wakeRollout wakes the Stacks that name the StackRollout.
func (r *Reconciler) wakeRollout(ctx context.Context, rollout client.Object, queue requestQueue) {
	for _, request := range r.findStacks(ctx, informercache.StacksByRollout, client.ObjectKeyFromObject(rollout).String()) {
		queue.Add(request)
	}
}

// membersIn returns the Stacks of the namespace, of all if it is empty, that a StackRollout may admit by its labels.
func (r *Reconciler) membersIn(ctx context.Context, namespace string) (requests []reconcile.Request) {
	list := &pulumiv1.StackList{}
	if err := r.List(ctx, list, client.InNamespace(namespace), client.UnsafeDisableDeepCopy); err != nil {
		ctrl.LoggerFrom(ctx).Error(err, "cannot find the stacks of a namespace", "namespace", namespace)
	}
	for i := range list.Items {
		if ref := list.Items[i].Spec.RolloutRef; ref != nil && ref.Namespace != "" {
			requests = append(requests, reconcile.Request{NamespacedName: client.ObjectKeyFromObject(&list.Items[i])})
		}
	}
	return requests
}

// rolloutChanged wakes the Stacks that may have something now, and all when something changed that may concern each of them. What new Stacks begin with
// concerns only those that have run nothing. Of a large StackRollout the cache has only the first turns.
func (r *Reconciler) rolloutChanged(ctx context.Context, e event.UpdateEvent, queue requestQueue) {
	before, after := e.ObjectOld.(*autov1alpha1.StackRollout), e.ObjectNew.(*autov1alpha1.StackRollout)
	if informercache.IsShortened(after) || !equality.Semantic.DeepEqual(before.Spec.AllowedNamespaces, after.Spec.AllowedNamespaces) {
		r.wakeRollout(ctx, after, queue)
		return
	}
	if !equality.Semantic.DeepEqual(before.Status.Stable, after.Status.Stable) {
		for _, request := range r.findStacksThat(ctx, informercache.StacksByRollout, client.ObjectKeyFromObject(after).String(), mayHaveRunNothing) {
			queue.Add(request)
		}
	}
	for _, stack := range waves.Woken(&before.Status, &after.Status) {
		queue.Add(reconcile.Request{NamespacedName: stack})
	}
}

// updated passes updates for which differ returns true, and all other events.
func updated[Object client.Object](differ func(before, after Object) bool) predicate.Funcs {
	return predicate.Funcs{UpdateFunc: func(e event.UpdateEvent) bool {
		before, ok := e.ObjectOld.(Object)
		after, same := e.ObjectNew.(Object)
		return !ok || !same || differ(before, after)
	}}
}

// updatedOrDeleted passes updates for which differ returns true, and deletions, but no creations.
func updatedOrDeleted[Object client.Object](differ func(before, after Object) bool) predicate.Funcs {
	passes := updated(differ)
	passes.CreateFunc = func(event.CreateEvent) bool { return false }
	return passes
}

// requestChanged reports whether an annotation of a Stack that asks for something has another value. It leaves out Flux's request
// annotation, which predicates.ReconcileRequestedPredicate handles, see SetupWithManager.
func requestChanged(before, after client.Object) bool {
	return slices.ContainsFunc([]string{
		pulumiv1.ReconcileRequestAnnotation, pulumiv1.LastUpdateAnnotation, pulumiv1.OrphanAnnotation,
		pulumiv1.CreateMissingStackAnnotation, pulumiv1.CancelUpdateAnnotation, pulumiv1.DriftCheckAnnotation,
		pulumiv1.ReleaseRevisionAnnotation,
	}, func(name string) bool { return before.GetAnnotations()[name] != after.GetAnnotations()[name] })
}

// foregroundDeletionEnded reports whether the garbage collector has deleted everything that the Stack owned.
func foregroundDeletionEnded(before, after *pulumiv1.Stack) bool {
	return isDeletedInForeground(before) && !isDeletedInForeground(after)
}

// updateChanged reports whether something changed in an Update that its Stack shows. Progress counts do not wake the Stack.
func updateChanged(before, after *autov1alpha1.Update) bool {
	oldReason, oldMessage := before.WaitingProblem()
	newReason, newMessage := after.WaitingProblem()
	return before.HasStarted() != after.HasStarted() || before.IsComplete() != after.IsComplete() ||
		oldReason != newReason || oldMessage != newMessage || !before.DeletionTimestamp.Equal(after.DeletionTimestamp) ||
		!after.HasStarted() && describeProgress(nil, before) != describeProgress(nil, after)
}

// workspaceChanged passes the deletion of a Workspace, and changes that its Stack shows.
var workspaceChanged = updatedOrDeleted(func(before, after *autov1alpha1.Workspace) bool {
	return workspaceFailureOf(before) != workspaceFailureOf(after) || !before.DeletionTimestamp.Equal(after.DeletionTimestamp) ||
		informercache.IsTooLarge(before) != informercache.IsTooLarge(after)
})

// beganToAwait reports whether an update of the Stack waits for an input since this change.
func beganToAwait(before, after *pulumiv1.Stack) bool {
	return !inputs.Awaits(before) && inputs.Awaits(after)
}

// dependentChanged passes a Stack that was deleted, is being deleted, or has other dependencies than before.
var dependentChanged = updatedOrDeleted(func(before, after *pulumiv1.Stack) bool {
	return before.DeletionTimestamp.IsZero() != after.DeletionTimestamp.IsZero() ||
		!slices.Equal(namesOf(namedDependencies(before), anyDependency), namesOf(namedDependencies(after), anyDependency))
})

// dependencyChanged passes the changes that dependents wait for. When a Stack enters or leaves a cycle, this predicate passes the change on
// from Stack to Stack along the cycle. It does the same for an edit that closes or breaks a cycle.
var dependencyChanged = updatedOrDeleted(func(before, after *pulumiv1.Stack) bool {
	return seenByDependents(before) != seenByDependents(after)
})

// seenByDependents returns a text with everything that dependents see of a Stack.
func seenByDependents(stack *pulumiv1.Stack) string {
	update, commit := "", ""
	if last := stack.Status.LastUpdate; last != nil {
		update, commit = last.Name, last.LastAttemptedCommit
	}
	inCycle := conditions.GetReason(stack, meta.StalledCondition) == pulumiv1.DependencyCycleReason
	dependencies := namesOf(dependenciesOf(stack), anyDependency)
	outputs := [2]any{stack.Status.StoredOutputs, stack.Spec.ShareOutputs}
	content, _ := json.Marshal(outputs) // they have only texts
	return fmt.Sprintf("%q %q %q %t %t %t %q %s",
		notReady(stack), update, commit, inCycle, stack.Spec.Suspend, !stack.DeletionTimestamp.IsZero(), dependencies, content)
}
