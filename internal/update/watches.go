package update

import (
	"context"

	"k8s.io/apimachinery/pkg/api/equality"
	ctrl "sigs.k8s.io/controller-runtime"
	ctrlclient "sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/event"
	"sigs.k8s.io/controller-runtime/pkg/predicate"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	autov1alpha1 "github.com/stack-controller/stack-controller/api/auto/v1alpha1"
	watched "github.com/stack-controller/stack-controller/internal/references"
)

// workspaceNameIndex finds the Updates of a Workspace.
const workspaceNameIndex = "spec.workspaceName"

func indexByWorkspace(object ctrlclient.Object) []string {
	update, ok := object.(*autov1alpha1.Update)
	if !ok {
		return nil
	}
	return []string{update.Spec.WorkspaceName}
}

// waitingIndex finds the Updates that have not started; its only value is notStarted.
const (
	waitingIndex = "status.startTime"
	notStarted   = "none"
)

func indexWaiting(object ctrlclient.Object) []string {
	update, ok := object.(*autov1alpha1.Update)
	if !ok || update.HasStarted() || update.IsComplete() {
		return nil
	}
	return []string{notStarted}
}

// updatesWaiting returns the Updates that may wait for the Secret or ConfigMap. Those whose status does not say so yet count too: they
// may just have missed it.
func (r *Reconciler) updatesWaiting(ctx context.Context, key watched.Key) []reconcile.Request {
	list := &autov1alpha1.UpdateList{}
	err := r.client.List(ctx, list, ctrlclient.InNamespace(key.Namespace), ctrlclient.MatchingFields{waitingIndex: notStarted}, ctrlclient.UnsafeDisableDeepCopy)
	if err != nil {
		ctrl.LoggerFrom(ctx).Error(err, "cannot find the updates to wake", "reference", key.String())
		return nil
	}
	requests := make([]reconcile.Request, len(list.Items))
	for i := range list.Items {
		requests[i].NamespacedName = ctrlclient.ObjectKeyFromObject(&list.Items[i])
	}
	return requests
}

// madeRoom passes what lets the next Update of a Workspace start: one completed or is gone.
var madeRoom = predicate.Funcs{
	CreateFunc: func(event.CreateEvent) bool { return false },
	UpdateFunc: func(e event.UpdateEvent) bool {
		before, isUpdate := e.ObjectOld.(*autov1alpha1.Update)
		after, isUpdateToo := e.ObjectNew.(*autov1alpha1.Update)
		return isUpdate && isUpdateToo && !before.IsComplete() && after.IsComplete()
	},
	DeleteFunc:  func(event.DeleteEvent) bool { return true },
	GenericFunc: func(event.GenericEvent) bool { return false },
}

// cancelAsked passes an Update that somebody asked to end.
var cancelAsked = predicate.Funcs{
	CreateFunc: func(event.CreateEvent) bool { return false },
	UpdateFunc: func(e event.UpdateEvent) bool {
		before, isUpdate := e.ObjectOld.(*autov1alpha1.Update)
		after, isUpdateToo := e.ObjectNew.(*autov1alpha1.Update)
		return isUpdate && isUpdateToo && !cancelRequested(before) && cancelRequested(after)
	},
	DeleteFunc:  func(event.DeleteEvent) bool { return false },
	GenericFunc: func(event.GenericEvent) bool { return false },
}

// workspaceChanged passes what may change whether operations can run in a Workspace.
var workspaceChanged = predicate.Funcs{
	UpdateFunc: func(e event.UpdateEvent) bool {
		before, isWorkspace := e.ObjectOld.(*autov1alpha1.Workspace)
		after, isWorkspaceToo := e.ObjectNew.(*autov1alpha1.Workspace)
		return isWorkspace && isWorkspaceToo && (before.Generation != after.Generation ||
			!equality.Semantic.DeepEqual(before.Status, after.Status))
	},
	GenericFunc: func(event.GenericEvent) bool { return false },
}

// updatesOf returns the Updates that may wait for the Workspace.
func (r *Reconciler) updatesOf(ctx context.Context, workspace ctrlclient.Object) []reconcile.Request {
	return r.incompleteRequests(ctx, workspace.GetNamespace(), workspace.GetName())
}

// updatesBehind returns the Updates that may wait for this one.
func (r *Reconciler) updatesBehind(ctx context.Context, object ctrlclient.Object) []reconcile.Request {
	update, ok := object.(*autov1alpha1.Update)
	if !ok {
		return nil
	}
	return r.incompleteRequests(ctx, update.Namespace, update.Spec.WorkspaceName)
}

func (r *Reconciler) incompleteRequests(ctx context.Context, namespace, workspace string) []reconcile.Request {
	updates, err := r.incompleteUpdates(ctx, namespace, workspace)
	if err != nil {
		ctrl.LoggerFrom(ctx).Error(err, "cannot find the updates to wake", "workspace", workspace)
		return nil
	}
	requests := make([]reconcile.Request, 0, len(updates))
	for i := range updates {
		requests = append(requests, reconcile.Request{NamespacedName: ctrlclient.ObjectKeyFromObject(&updates[i])})
	}
	return requests
}
