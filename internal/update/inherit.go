package update

import (
	"context"
	"fmt"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	ctrlclient "sigs.k8s.io/controller-runtime/pkg/client"

	autov1alpha1 "github.com/stack-controller/stack-controller/api/auto/v1alpha1"
	pulumiv1 "github.com/stack-controller/stack-controller/api/pulumi/v1"
)

// inheritedSource returns, for an Update that somebody made by hand for the Workspace of a Stack, the source of the Update before it:
// that Workspace names none, because the Stack says with each Update what it runs. Nil when there is none to inherit.
func (r *Reconciler) inheritedSource(ctx context.Context, workspace *autov1alpha1.Workspace, update *autov1alpha1.Update) (*autov1alpha1.UpdateSource, error) {
	if ofStack(update) || !ofStack(workspace) {
		return nil, nil
	}
	list := &autov1alpha1.UpdateList{}
	err := r.client.List(ctx, list, ctrlclient.InNamespace(update.Namespace), ctrlclient.MatchingFields{workspaceNameIndex: workspace.Name})
	if err != nil {
		return nil, fmt.Errorf("list the updates of workspace %q: %w", workspace.Name, err)
	}
	var latest *autov1alpha1.Update
	for i := range list.Items {
		other := &list.Items[i]
		if other.Spec.Source != nil && other.HasStarted() && (latest == nil || comesBefore(latest, other)) {
			latest = other
		}
	}
	if latest == nil {
		return nil, nil
	}
	return latest.Spec.Source, nil
}

func ofStack(object metav1.Object) bool {
	owner := metav1.GetControllerOf(object)
	return owner != nil && owner.Kind == pulumiv1.StackKind
}
