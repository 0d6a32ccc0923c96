package update

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	ctrlclient "sigs.k8s.io/controller-runtime/pkg/client"

	autov1alpha1 "github.com/stack-controller/stack-controller/api/auto/v1alpha1"
	"github.com/stack-controller/stack-controller/internal/agent/client"
	"github.com/stack-controller/stack-controller/internal/agent/proto"
	watched "github.com/stack-controller/stack-controller/internal/references"
)

// observe gathers what a decision is made from, the cheap facts first. It stops where the rest cannot matter any more.
func (r *Reconciler) observe(ctx context.Context, update *autov1alpha1.Update) (*observation, error) {
	o := &observation{now: time.Now(), update: update}
	if update.IsComplete() || isAbandoned(update) {
		return o, nil
	}
	var err error
	if o.workspace, err = r.workspaceOf(ctx, update); err != nil {
		return nil, err
	}
	// An operation is asked for wherever it may be. One that was never started can only be with an agent that is ready.
	settled := !update.DeletionTimestamp.IsZero() || update.HasStarted() || cancelRequested(update)
	if o.workspace == nil || !settled && workspaceProblem(o.workspace) != "" {
		return o, nil
	}
	o.agent = r.askAgent(ctx, o.workspace, update)
	if o.agent.operation == nil {
		if ended := r.endings.of(ctrlclient.ObjectKeyFromObject(update), update.UID); ended != nil {
			o.agent = agentView{operation: ended}
		}
	}
	if settled || o.agent.err != nil || o.agent.operation != nil {
		return o, nil
	}
	if o.ahead, err = r.updateAhead(ctx, update); err != nil || o.ahead != "" {
		return o, err
	}
	if err := r.observeSource(ctx, o); err != nil || !o.artifact.ready {
		return o, err
	}
	values := newReferences(r.live, update.Namespace)
	values.pods, values.watcher = r.pods, r.watcher
	o.request, o.requestError = r.describeOperation(ctx, o, values)
	o.references = watched.Digest(values.versions)
	return o, nil
}

// workspaceOf returns the Workspace of the Update, nil when there is none.
func (r *Reconciler) workspaceOf(ctx context.Context, update *autov1alpha1.Update) (*autov1alpha1.Workspace, error) {
	workspace := &autov1alpha1.Workspace{}
	key := types.NamespacedName{Namespace: update.Namespace, Name: update.Spec.WorkspaceName}
	err := r.client.Get(ctx, key, workspace)
	if apierrors.IsNotFound(err) {
		return nil, nil
	}
	if err == nil && isBehind(workspace, update) {
		// The Update got here before the change of the Workspace that it follows on.
		workspace = &autov1alpha1.Workspace{}
		err = ctrlclient.IgnoreNotFound(r.live.Get(ctx, key, workspace))
	}
	if err != nil {
		return nil, fmt.Errorf("read workspace %q: %w", key.Name, err)
	}
	if workspace.UID == "" {
		return nil, nil
	}
	return workspace, nil
}

// isBehind tells whether the Update was created for a later generation of this very Workspace.
func isBehind(workspace *autov1alpha1.Workspace, update *autov1alpha1.Update) bool {
	// Somebody else's annotation asks for nothing.
	wanted, _ := strconv.ParseInt(update.Annotations[autov1alpha1.WorkspaceGenerationAnnotation], 10, 64)
	return metav1.IsControlledBy(update, workspace) && workspace.Generation < wanted
}

// askAgent looks for the operation of the Update. The id is the UID: an Update that was deleted and made again under
// its old name is another operation.
func (r *Reconciler) askAgent(ctx context.Context, workspace *autov1alpha1.Workspace, update *autov1alpha1.Update) agentView {
	agent, err := r.runtime.Connect(ctx, workspace)
	if err != nil {
		return agentView{err: err}
	}
	id := string(update.UID)
	operation, err := agent.GetOperation(ctx, id)
	switch {
	case errors.Is(err, client.ErrNotFound):
		return agentView{}
	case errors.Is(err, client.ErrDigestMismatch):
		operation, err = operationWithoutResult(ctx, agent, id)
		return agentView{err: err, operation: operation, resultLost: true}
	}
	return agentView{err: err, operation: operation}
}

// operationWithoutResult returns an operation whose result the agent cannot read from its disk any more. How it ended is
// still known.
func operationWithoutResult(ctx context.Context, agent *client.Client, id string) (*proto.Operation, error) {
	info, err := agent.GetInfo(ctx)
	if err != nil {
		return nil, err
	}
	for _, operation := range info.GetOperations() {
		if operation.GetId() == id {
			return operation, nil
		}
	}
	return nil, nil
}

// updateAhead returns the name of the oldest Update of the same Workspace that was created earlier and is not complete.
// Two that were created in the same second go by their names.
func (r *Reconciler) updateAhead(ctx context.Context, update *autov1alpha1.Update) (string, error) {
	updates, err := r.incompleteUpdates(ctx, update.Namespace, update.Spec.WorkspaceName)
	if err != nil {
		return "", err
	}
	first := update
	for i := range updates {
		if comesBefore(&updates[i], first) {
			first = &updates[i]
		}
	}
	if first.Name == update.Name {
		return "", nil
	}
	return first.Name, nil
}

func comesBefore(a, b *autov1alpha1.Update) bool {
	if a.CreationTimestamp.Equal(&b.CreationTimestamp) {
		return a.Name < b.Name
	}
	return a.CreationTimestamp.Before(&b.CreationTimestamp)
}

// incompleteUpdates returns the Updates of a Workspace that are not complete.
func (r *Reconciler) incompleteUpdates(ctx context.Context, namespace, workspace string) ([]autov1alpha1.Update, error) {
	list := &autov1alpha1.UpdateList{}
	if err := r.client.List(ctx, list, ctrlclient.InNamespace(namespace), ctrlclient.MatchingFields{workspaceNameIndex: workspace}); err != nil {
		return nil, fmt.Errorf("list the updates of workspace %q: %w", workspace, err)
	}
	incomplete := list.Items[:0]
	for i := range list.Items {
		if !list.Items[i].IsComplete() {
			incomplete = append(incomplete, list.Items[i])
		}
	}
	return incomplete, nil
}
