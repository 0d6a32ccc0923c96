package stack

import (
	"context"
	"encoding/json"
	"fmt"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	autov1alpha1 "github.com/stack-controller/stack-controller/api/auto/v1alpha1"
	pulumiv1 "github.com/stack-controller/stack-controller/api/pulumi/v1"
)

// formerOwner is the field manager of the Pulumi Kubernetes Operator, whose objects this controller takes over.
const formerOwner = "pulumi-kubernetes-operator"

// takeOver makes a status that the Pulumi Kubernetes Operator wrote one of this controller, so that nothing runs merely because the
// controller is another one. It knows that status by what it lacks: this controller never records an update without history.
func takeOver(o *observation) {
	status := &o.stack.Status
	translateCommits(o)
	last := status.LastUpdate
	if last == nil || len(status.History) > 0 || hasSource(o.stack) && o.artifact == nil {
		return
	}
	metadata := map[string]string(nil)
	if o.artifact != nil && last.LastAttemptedCommit == o.artifact.Commit() {
		last.Revision = o.artifact.Revision
		metadata = historyMetadata(last.Revision)
	}
	status.History.Upsert(historyDigest(last.LastAttemptedCommit), last.LastResyncTime.Time, 0, string(last.State), metadata)
	// That system did not know Flux's annotation, so a value that is there already asked for nothing.
	status.LastHandledReconcileAt = requestedAt(o.stack)
	// A Stack that previews may share its stack with one that deploys; such a one never destroyed anything.
	destroyed := last.Type == autov1alpha1.UpdateTypeDestroy && last.State == pulumiv1.StackUpdateSucceeded
	status.Deployed = status.Deployed || last.Type != autov1alpha1.UpdateTypePreview && !destroyed
	if status.Deployed && last.State == pulumiv1.StackUpdateSucceeded {
		status.DeployedStack = o.stack.Spec.Stack
	}
}

// translateCommits replaces a revision by the digest of the artifact that has it: what this controller records as the commit.
func translateCommits(o *observation) {
	if o.artifact == nil || o.artifact.Revision == "" {
		return
	}
	commits := []*string{}
	if last := o.stack.Status.LastUpdate; last != nil {
		commits = append(commits, &last.LastAttemptedCommit, &last.LastSuccessfulCommit)
	}
	if current := o.stack.Status.CurrentUpdate; current != nil {
		commits = append(commits, &current.Commit)
	}
	for _, commit := range commits {
		if *commit == o.artifact.Revision {
			*commit = o.artifact.Commit()
		}
	}
}

// inheritFields makes the fields that the Pulumi Kubernetes Operator applied to the Workspace those of this controller.
// Otherwise a value that the Stack does not ask for any more would stay for ever, as somebody else's.
func (r *Reconciler) inheritFields(ctx context.Context, workspace *autov1alpha1.Workspace) error {
	if workspace == nil || workspace.Annotations[appliedHashAnnotation] != "" {
		return nil
	}
	// The cache leaves out who owns which field.
	live := &autov1alpha1.Workspace{}
	if err := r.Live.Get(ctx, client.ObjectKeyFromObject(workspace), live); err != nil {
		return client.IgnoreNotFound(err)
	}
	changed := false
	for i := range live.ManagedFields {
		entry := &live.ManagedFields[i]
		if entry.Manager == formerOwner && entry.Operation == metav1.ManagedFieldsOperationApply && entry.Subresource == "" {
			entry.Manager, changed = fieldOwner, true
		}
	}
	if !changed {
		return nil
	}
	patch, err := json.Marshal([]map[string]any{
		{"op": "replace", "path": "/metadata/managedFields", "value": live.ManagedFields},
		{"op": "replace", "path": "/metadata/resourceVersion", "value": live.ResourceVersion},
	})
	if err != nil {
		return fmt.Errorf("encode the owners of the workspace's fields: %w", err)
	}
	if err := r.Patch(ctx, live, client.RawPatch(types.JSONPatchType, patch), client.FieldOwner(fieldOwner)); err != nil {
		return fmt.Errorf("take over the fields of the workspace: %w", err)
	}
	workspace.ResourceVersion = live.ResourceVersion
	return nil
}
