package stack

import (
	"context"
	"fmt"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/builder"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/controller"
	"sigs.k8s.io/controller-runtime/pkg/event"
	"sigs.k8s.io/controller-runtime/pkg/handler"
	"sigs.k8s.io/controller-runtime/pkg/predicate"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"
	ctrlsource "sigs.k8s.io/controller-runtime/pkg/source"

	"github.com/fluxcd/pkg/runtime/predicates"

	autov1alpha1 "github.com/stack-controller/stack-controller/api/auto/v1alpha1"
	pulumiv1 "github.com/stack-controller/stack-controller/api/pulumi/v1"
	"github.com/stack-controller/stack-controller/internal/source"
)

// Indexes of the cache.
const (
	sourceIndex       = "spec.fluxSource.sourceRef"
	programIndex      = "spec.programRef"
	prerequisiteIndex = "spec.prerequisites"
	readyExprIndex    = "spec.dependsOn.readyExpr"
	updateOwnerIndex  = "metadata.ownerReferences.stack"
)

// SetupWithManager adds the controller to the manager.
func (r *Reconciler) SetupWithManager(ctx context.Context, mgr ctrl.Manager, options controller.Options) error {
	if err := addIndexes(ctx, mgr.GetFieldIndexer()); err != nil {
		return err
	}
	built, err := ctrl.NewControllerManagedBy(mgr).
		For(&pulumiv1.Stack{}, builder.WithPredicates(predicate.Or[client.Object](
			predicate.GenerationChangedPredicate{}, predicates.ReconcileRequestedPredicate{}, annotationChanged(pulumiv1.ReconcileRequestAnnotation),
			annotationChanged(pulumiv1.OrphanAnnotation), annotationChanged(pulumiv1.CreateMissingStackAnnotation), annotationChanged(pulumiv1.CancelUpdateAnnotation)))).
		Owns(&autov1alpha1.Workspace{}, builder.WithPredicates(workspaceChanged)).
		Watches(&autov1alpha1.Update{}, handler.EnqueueRequestForOwner(mgr.GetScheme(), mgr.GetRESTMapper(), &pulumiv1.Stack{}), builder.WithPredicates(updateChanged)).
		Watches(&pulumiv1.Stack{}, handler.EnqueueRequestsFromMapFunc(r.dependentsOf), builder.WithPredicates(dependencyChanged)).
		Watches(&pulumiv1.Stack{}, handler.EnqueueRequestsFromMapFunc(r.waitingForDependent), builder.WithPredicates(dependentChanged)).
		Watches(&pulumiv1.Stack{}, handler.EnqueueRequestsFromMapFunc(r.judgesOf), builder.WithPredicates(predicate.ResourceVersionChangedPredicate{})).
		Watches(&pulumiv1.Program{}, handler.EnqueueRequestsFromMapFunc(r.usersOfProgram), builder.WithPredicates(programChanged)).
		WatchesRawSource(ctrlsource.Channel(r.Sources.Git.Events(), &handler.EnqueueRequestForObject{})).
		WatchesRawSource(ctrlsource.Channel(r.Artifacts.Events(), &handler.EnqueueRequestForObject{})).
		WatchesRawSource(ctrlsource.Channel(r.Contents.Events(), &handler.EnqueueRequestForObject{})).
		WatchesRawSource(r.References.Source(r.usersOfReference)).
		WithOptions(options).
		Build(r)
	if err != nil {
		return fmt.Errorf("build the Stack controller: %w", err)
	}
	r.Sources.Flux.Watcher = &sourceWatches{
		cache:      mgr.GetCache(),
		controller: built,
		handler:    handler.EnqueueRequestsFromMapFunc(r.usersOf),
		predicate:  artifactChanged,
		informers:  map[schema.GroupKind]cache.Informer{},
	}
	return nil
}

func addIndexes(ctx context.Context, indexer client.FieldIndexer) error {
	if err := indexer.IndexField(ctx, &pulumiv1.Stack{}, sourceIndex, func(object client.Object) []string {
		if key, ok := source.KeyOf(object.(*pulumiv1.Stack)); ok {
			return []string{key.String()}
		}
		return nil
	}); err != nil {
		return fmt.Errorf("index the Stacks by source: %w", err)
	}
	if err := indexer.IndexField(ctx, &pulumiv1.Stack{}, programIndex, func(object client.Object) []string {
		if program, ok := source.ProgramOf(object.(*pulumiv1.Stack)); ok {
			return []string{program.String()}
		}
		return nil
	}); err != nil {
		return fmt.Errorf("index the Stacks by Program: %w", err)
	}
	if err := indexer.IndexField(ctx, &pulumiv1.Stack{}, prerequisiteIndex, func(object client.Object) []string {
		return namesOf(object.(*pulumiv1.Stack), func(dependency) bool { return true })
	}); err != nil {
		return fmt.Errorf("index the Stacks by prerequisite: %w", err)
	}
	if err := indexer.IndexField(ctx, &pulumiv1.Stack{}, readyExprIndex, func(object client.Object) []string {
		stack := object.(*pulumiv1.Stack)
		return namesOf(stack, func(item dependency) bool { return item.expression != "" && stack.DeletionTimestamp.IsZero() })
	}); err != nil {
		return fmt.Errorf("index the Stacks by dependency with an expression: %w", err)
	}
	if err := indexer.IndexField(ctx, &pulumiv1.Stack{}, referencesIndex, indexByReferences); err != nil {
		return fmt.Errorf("index the Stacks by the Secrets and ConfigMaps that they use: %w", err)
	}
	if err := indexer.IndexField(ctx, &autov1alpha1.Update{}, updateOwnerIndex, func(object client.Object) []string {
		for _, owner := range object.GetOwnerReferences() {
			if owner.Kind == pulumiv1.StackKind {
				return []string{string(owner.UID)}
			}
		}
		return nil
	}); err != nil {
		return fmt.Errorf("index the Updates by Stack: %w", err)
	}
	return nil
}

// usersOf returns the Stacks that use the source.
func (r *Reconciler) usersOf(ctx context.Context, object client.Object) []reconcile.Request {
	key := source.Key{
		GroupKind:      object.GetObjectKind().GroupVersionKind().GroupKind(),
		NamespacedName: client.ObjectKeyFromObject(object),
	}
	return r.requestsFor(ctx, client.MatchingFields{sourceIndex: key.String()})
}

// usersOfProgram returns the Stacks that run the Program.
func (r *Reconciler) usersOfProgram(ctx context.Context, object client.Object) []reconcile.Request {
	return r.requestsFor(ctx, client.MatchingFields{programIndex: client.ObjectKeyFromObject(object).String()})
}

// dependentsOf returns the Stacks that wait for the Stack.
func (r *Reconciler) dependentsOf(ctx context.Context, object client.Object) []reconcile.Request {
	return r.requestsFor(ctx, client.MatchingFields{prerequisiteIndex: client.ObjectKeyFromObject(object).String()})
}

// judgesOf returns the Stacks that judge the Stack with an expression, which may look at anything in it.
func (r *Reconciler) judgesOf(ctx context.Context, object client.Object) []reconcile.Request {
	return r.requestsFor(ctx, client.MatchingFields{readyExprIndex: client.ObjectKeyFromObject(object).String()})
}

func (r *Reconciler) requestsFor(ctx context.Context, selected client.ListOption) []reconcile.Request {
	var stacks pulumiv1.StackList
	// Nothing is changed in what is looked through here, and it may be many.
	if err := r.List(ctx, &stacks, selected, client.UnsafeDisableDeepCopy); err != nil {
		ctrl.LoggerFrom(ctx).Error(err, "cannot list the Stacks to wake")
		return nil
	}
	requests := make([]reconcile.Request, len(stacks.Items))
	for i := range stacks.Items {
		requests[i].NamespacedName = client.ObjectKeyFromObject(&stacks.Items[i])
	}
	return requests
}

// namesOf returns the names of the chosen dependencies of the Stack.
func namesOf(stack *pulumiv1.Stack, chosen func(dependency) bool) []string {
	var keys []string
	for _, item := range namedBy(stack) {
		if chosen(item) {
			keys = append(keys, item.name.String())
		}
	}
	return keys
}

// updateChanged passes what a Stack shows of its Update; progress counts do not wake it.
var updateChanged = predicate.Funcs{
	UpdateFunc: func(e event.UpdateEvent) bool {
		before, ok := e.ObjectOld.(*autov1alpha1.Update)
		after, same := e.ObjectNew.(*autov1alpha1.Update)
		return !ok || !same || before.HasStarted() != after.HasStarted() || before.IsComplete() != after.IsComplete() ||
			waitingReasonChanged(before, after) || !before.DeletionTimestamp.Equal(after.DeletionTimestamp)
	},
}

func waitingReasonChanged(before, after *autov1alpha1.Update) bool {
	oldReason, oldMessage := waitingFor(before)
	newReason, newMessage := waitingFor(after)
	return oldReason != newReason || oldMessage != newMessage || !after.HasStarted() && describeProgress(before) != describeProgress(after)
}

// artifactChanged passes a source whose artifact differs in revision, digest or place, or that has none and tells anew why.
var artifactChanged = predicate.Funcs{
	UpdateFunc: func(e event.UpdateEvent) bool {
		before, ok := e.ObjectOld.(*unstructured.Unstructured)
		after, same := e.ObjectNew.(*unstructured.Unstructured)
		return !ok || !same || source.Changed(before, after)
	},
}

// programChanged passes a Program that offers something else, or nothing for another reason.
var programChanged = predicate.Funcs{
	UpdateFunc: func(e event.UpdateEvent) bool {
		before, ok := e.ObjectOld.(*pulumiv1.Program)
		after, same := e.ObjectNew.(*pulumiv1.Program)
		return !ok || !same || source.ProgramChanged(before, after)
	},
}

// annotationChanged passes an object whose annotation has another value than before.
func annotationChanged(name string) predicate.Predicate {
	return predicate.Funcs{
		UpdateFunc: func(e event.UpdateEvent) bool {
			return e.ObjectOld.GetAnnotations()[name] != e.ObjectNew.GetAnnotations()[name]
		},
	}
}
