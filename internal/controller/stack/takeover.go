package stack

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"strings"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	autov1alpha1 "github.com/stack-controller/stack-controller/api/auto/v1alpha1"
	pulumiv1 "github.com/stack-controller/stack-controller/api/pulumi/v1"
	"github.com/stack-controller/stack-controller/internal/informercache"
	"github.com/stack-controller/stack-controller/internal/patch"
)

// A Stack moves to another shard when its labels change. Its Workspace and Updates still have the old labels: the controller of the new
// shard does not see them, and the controller of the old shard continues to reconcile them. The new controller then gives them the labels
// of the Stack, and the old one no longer sees them. It changes the Workspace last, so that a controller that sees the Workspace
// also sees all Updates. A running operation goes on in its agent meanwhile, and the new controller follows it. If the new controller
// cannot reach the agent, the old one follows the operation to its end.

// errLabelsKept is returned when the API server accepts the labels of the Stack for an object, and the object does not have them.
var errLabelsKept = errors.New("something changes its labels back")

// errOutdated is returned when an object is no longer what it was when it was observed.
var errOutdated = errors.New("the objects changed since they were observed")

// otherShard has a Workspace with an operation that only the controller of another shard can follow, and the Stack's Updates.
type otherShard struct {
	workspace *autov1alpha1.Workspace
	updates   []autov1alpha1.Update
}

// observeShard finds the Workspace and the Updates of a Stack that still belong to another shard.
func (r *Reconciler) observeShard(ctx context.Context, o *observation) error {
	if r.Shard == nil {
		return nil
	}
	key := client.ObjectKeyFromObject(o.stack)
	workspace := &autov1alpha1.Workspace{}
	if err := r.Get(ctx, key, workspace, client.UnsafeDisableDeepCopy); err == nil || !apierrors.IsNotFound(err) {
		return err
	}
	if err := r.APIReader.Get(ctx, key, workspace); err != nil {
		o.noWorkspace = apierrors.IsNotFound(err)
		return client.IgnoreNotFound(err)
	}
	if !isOwn(o.stack, workspace) || !workspace.DeletionTimestamp.IsZero() {
		return nil
	}
	if r.Shard.Has(workspace) {
		o.moving = true // the cache does not have the Workspace yet
		return nil
	}
	// Updates that the Stack does not own keep their labels: their creator decides which controller runs them.
	own, err := r.listUpdates(ctx, o.stack)
	if err != nil {
		return err
	}
	o.otherShard, o.moving = &otherShard{workspace: workspace, updates: own}, r.reachAll(ctx, workspace, own)
	return nil
}

// takeOver gives the Stack's Workspace and Updates in another shard, or the current Update alone, the labels of the Stack. There is nothing to
// do if the cache is behind, or if the operation in the other shard has just ended.
func (r *Reconciler) takeOver(ctx context.Context, o *observation) error {
	switch {
	case o.otherShard == nil && o.update == nil:
		return nil
	case o.otherShard == nil:
		return r.adopt(ctx, o.stack, o.update)
	}
	for i := range o.otherShard.updates {
		if err := r.adopt(ctx, o.stack, &o.otherShard.updates[i]); err != nil {
			return err
		}
	}
	return r.adopt(ctx, o.stack, o.otherShard.workspace)
}

// maxUpdates bounds how many Updates of a Stack are taken over. Any user who may create Updates can claim that they belong to the Stack.
const maxUpdates = 1000

// listUpdates reads the Stack's Updates from the API server, and returns them oldest first, with as much as the cache would have of them.
func (r *Reconciler) listUpdates(ctx context.Context, stack *pulumiv1.Stack) (own []autov1alpha1.Update, err error) {
	err = r.listLive(ctx, func() client.ObjectList { return &autov1alpha1.UpdateList{} }, func(page client.ObjectList) {
		for _, update := range page.(*autov1alpha1.UpdateList).Items {
			if stack.Owns(&update) && len(own) < maxUpdates {
				own = append(own, *informercache.Shortened(&update).(*autov1alpha1.Update))
			}
		}
	}, client.InNamespace(stack.Namespace), client.MatchingLabels{pulumiv1.StackNameLabel: stack.Name})
	if err != nil {
		return nil, fmt.Errorf("list the updates of another shard: %w", err)
	}
	sortByAge(own)
	return own, nil
}

// reachAll reports whether this controller can follow all operations that are in progress in the Workspace.
func (r *Reconciler) reachAll(ctx context.Context, workspace *autov1alpha1.Workspace, updates []autov1alpha1.Update) bool {
	for i := range updates {
		update := &updates[i]
		if r.Reaches != nil && !update.IsComplete() && !r.Shard.Has(update) && !r.Reaches(ctx, workspace, update) {
			return false
		}
	}
	return true
}

// adopt gives the object those labels of the Stack that decide on its shard.
func (r *Reconciler) adopt(ctx context.Context, stack *pulumiv1.Stack, object client.Object) error {
	if r.Shard.Has(object) {
		return nil
	}
	kind, err := r.GroupVersionKindFor(object)
	if err != nil {
		return err
	}
	// Only the metadata is sent and returned. The response to a patch of the object itself would have all of it, and the observation may have
	// many objects, which take little memory as they are.
	metadata := &metav1.PartialObjectMetadata{
		Namespace: object.GetNamespace(), Name: object.GetName(), Labels: maps.Clone(object.GetLabels())}
	metadata.SetGroupVersionKind(kind)
	before := metadata.DeepCopy()
	metadata.SetLabels(r.Shard.Follow(metadata.Labels, stack))
	err = client.IgnoreNotFound(r.Patch(ctx, metadata, client.MergeFrom(before), patch.FieldOwner))
	if err == nil && !r.Shard.Has(metadata) {
		err = errLabelsKept
	}
	if err != nil {
		return fmt.Errorf("take over the %s %s from another shard: %w", strings.ToLower(kind.Kind), object.GetName(), err)
	}
	return nil
}
