package workspace

import (
	"context"
	"fmt"

	ctrl "sigs.k8s.io/controller-runtime"
	ctrlclient "sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/event"
	"sigs.k8s.io/controller-runtime/pkg/predicate"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	"github.com/fluxcd/pkg/runtime/conditions"

	autov1alpha1 "github.com/stack-controller/stack-controller/api/auto/v1alpha1"
	"github.com/stack-controller/stack-controller/internal/informercache"
)

// The Pulumi Kubernetes Operator installs dependencies and selects the stack before a Workspace is ready, so its users expect such problems
// in the status of the Workspace. In this controller, both are a part of each operation. So the Workspace shows the problem of the last
// operation, and still accepts operations.

// workspaceReasons maps the reason of an Update whose preparation failed to the reason that its Workspace shows.
var workspaceReasons = map[string]string{
	autov1alpha1.InvalidAccessTokenReason:    autov1alpha1.UnauthenticatedReason,
	autov1alpha1.InstallFailedReason:         autov1alpha1.InstallationFailedReason,
	autov1alpha1.StackNotFoundReason:         autov1alpha1.InitializationFailedReason,
	autov1alpha1.SecretsProviderFailedReason: autov1alpha1.InitializationFailedReason,
	autov1alpha1.ConfigInvalidReason:         autov1alpha1.InitializationFailedReason,
}

// failure is a failure of the last operation that the Workspace has to show. The zero value means that there is none.
type failure struct {
	update, reason, message string
}

// history is a summary of the Updates of a Workspace.
type history struct {
	// last is the last operation that ran; nil when there is none.
	last *autov1alpha1.Update
	// unfinished is true when some Updates are not complete.
	unfinished bool
}

// historyOf reads the Updates of the Workspace.
func (r *Reconciler) historyOf(ctx context.Context, workspace *autov1alpha1.Workspace) (found history, err error) {
	list := &autov1alpha1.UpdateList{}
	err = r.List(ctx, list, ctrlclient.InNamespace(workspace.Namespace), ctrlclient.MatchingFields{informercache.UpdatesByWorkspace: workspace.Name},
		ctrlclient.UnsafeDisableDeepCopy)
	if err != nil {
		return history{}, fmt.Errorf("list the updates of the workspace: %w", err)
	}
	for i := range list.Items {
		update := &list.Items[i]
		found.unfinished = found.unfinished || !update.IsComplete()
		// An older Update belongs to an earlier Workspace of the same name.
		if hasRun(update) && !update.CreationTimestamp.Before(&workspace.CreationTimestamp) &&
			(found.last == nil || found.last.Status.EndTime.Before(update.Status.EndTime)) {
			found.last = update
		}
	}
	return found, nil
}

// hasRun reports whether the Update had an operation that has ended.
func hasRun(update *autov1alpha1.Update) bool {
	return update.IsComplete() && update.Status.StartTime != nil && update.Status.EndTime != nil
}

func failureOfUpdate(update *autov1alpha1.Update) failure {
	if update == nil || !hasRun(update) || !update.HasFailed() {
		return failure{}
	}
	reason := workspaceReasons[conditions.GetReason(update, autov1alpha1.UpdateFailed)]
	if reason == "" {
		return failure{}
	}
	return failure{update: update.Name, reason: reason, message: fmt.Sprintf("%s by update %q failed, and the next operation tries again: %s",
		update.Spec.Type, update.Name, update.Status.Message)}
}

// updateCameOrEnded passes Updates that are new, and the end of an operation.
var updateCameOrEnded = predicate.Funcs{
	UpdateFunc: func(e event.UpdateEvent) bool {
		return !e.ObjectOld.(*autov1alpha1.Update).IsComplete() && e.ObjectNew.(*autov1alpha1.Update).IsComplete()
	},
}

// shownChanged passes a Workspace that shows another failure than before, or that became idle or is no longer idle. The reconcile that
// wrote this did not consider an Update that was created or ended meanwhile.
var shownChanged = predicate.Funcs{
	CreateFunc: func(event.CreateEvent) bool { return false },
	UpdateFunc: func(e event.UpdateEvent) bool {
		before, after := e.ObjectOld.(*autov1alpha1.Workspace), e.ObjectNew.(*autov1alpha1.Workspace)
		return before.Status.FailedUpdate != after.Status.FailedUpdate || isIdle(before) != isIdle(after)
	},
}

// requestsForUpdate returns the Workspace of an Update, if the Workspace shows a failure or has to show one, or if it can become idle. All
// others, which are most of them, are not reconciled, so that their agents get no request.
func (r *Reconciler) requestsForUpdate(ctx context.Context, object ctrlclient.Object) []reconcile.Request {
	update := object.(*autov1alpha1.Update)
	key := ctrlclient.ObjectKey{Namespace: update.Namespace, Name: update.Spec.WorkspaceName}
	workspace := &autov1alpha1.Workspace{}
	if err := informercache.Cached(r.Client).Get(ctx, key, workspace, ctrlclient.UnsafeDisableDeepCopy); err != nil {
		if ctrlclient.IgnoreNotFound(err) != nil {
			ctrl.LoggerFrom(ctx).Error(err, "cannot find the workspace of an update", "update", update.Name)
		}
		return nil
	}
	if workspace.Status.FailedUpdate == "" && failureOfUpdate(update) == (failure{}) && !isIdle(workspace) && r.idleTimeout(workspace) == 0 {
		return nil
	}
	return []reconcile.Request{{NamespacedName: key}}
}
