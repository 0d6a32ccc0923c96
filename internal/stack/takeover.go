package stack

import (
	"context"
	"errors"
	"fmt"
	"maps"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	autov1alpha1 "github.com/stack-controller/stack-controller/api/auto/v1alpha1"
	pulumiv1 "github.com/stack-controller/stack-controller/api/pulumi/v1"
	"github.com/stack-controller/stack-controller/internal/informercache"
	"github.com/stack-controller/stack-controller/internal/patch"
)

// A Stack moves to another shard when its labels change. Its Workspace and Updates have the labels of before, so that the new controller
// does not see them, and the old one goes on with them. The new one gives them the labels of the Stack, upon which they are gone for the
// old one. The Workspace is the last: a controller that has it has all. An operation that runs goes on in its agent meanwhile, and its new
// controller follows it. Where that one cannot reach the agent, the old one follows the operation to its end.

// errOutdated says that something is not any more what it was when it was observed.
var errOutdated = errors.New("the objects changed since they were observed")

// otherShard are a Workspace with an operation that only the controller of another shard can follow, and the Stack's Updates.
type otherShard struct {
	workspace *autov1alpha1.Workspace
	updates   []autov1alpha1.Update
}

// adoptFromShard makes the Workspace and the Updates of a Stack those of this shard, if they are not. It returns true when they were not: the
// Stack is to be observed again when the cache has them. If they cannot be taken over yet, they are in the observation.
func (r *Reconciler) adoptFromShard(ctx context.Context, o *observation) (moved bool, err error) {
	if r.Shard == nil {
		return false, nil
	}
	key := client.ObjectKeyFromObject(o.stack)
	workspace := &autov1alpha1.Workspace{}
	if err := r.Get(ctx, key, workspace, client.UnsafeDisableDeepCopy); err == nil || !apierrors.IsNotFound(err) {
		return false, err
	}
	if err := r.Live.Get(ctx, key, workspace); err != nil {
		o.noWorkspace = apierrors.IsNotFound(err)
		return false, client.IgnoreNotFound(err)
	}
	if !isOwn(o.stack, workspace) || !workspace.DeletionTimestamp.IsZero() {
		return false, nil
	}
	if r.Shard.Has(workspace) {
		return true, nil
	}
	// Those of others keep their labels: whoever made them says which controller runs them.
	own, err := r.listUpdates(ctx, o.stack)
	if err != nil {
		return false, err
	}
	if !r.reachAll(ctx, workspace, own) {
		o.otherShard = &otherShard{workspace: workspace, updates: own}
		return false, nil
	}
	for i := range own {
		if err := r.adopt(ctx, o.stack, &own[i]); err != nil {
			return false, err
		}
	}
	return true, r.adopt(ctx, o.stack, workspace)
}

// maxUpdates bounds how many Updates of a Stack are taken over. Everybody who may create Updates can say that they are the Stack's.
const maxUpdates = 1000

// listUpdates asks the API server for the Stack's Updates, of which it returns as much as the cache would have, oldest first.
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

// reachAll reports whether all operations that are under way in the Workspace can be followed from here.
func (r *Reconciler) reachAll(ctx context.Context, workspace *autov1alpha1.Workspace, updates []autov1alpha1.Update) bool {
	for i := range updates {
		update := &updates[i]
		if r.Reaches != nil && !update.IsComplete() && !r.Shard.Has(update) && !r.Reaches(ctx, workspace, update) {
			return false
		}
	}
	return true
}

// adopt gives the object the labels of the Stack that decide on its shard.
func (r *Reconciler) adopt(ctx context.Context, stack *pulumiv1.Stack, object client.Object) error {
	if r.Shard.Has(object) {
		return nil
	}
	kind, err := r.GroupVersionKindFor(object)
	if err != nil {
		return err
	}
	// The answer has all of the object, and the observation may have many, which take little memory.
	metadata := &metav1.PartialObjectMetadata{ObjectMeta: metav1.ObjectMeta{
		Namespace: object.GetNamespace(), Name: object.GetName(), Labels: maps.Clone(object.GetLabels())}}
	metadata.SetGroupVersionKind(kind)
	before := metadata.DeepCopy()
	metadata.SetLabels(r.Shard.Follow(metadata.Labels, stack))
	if err := r.Patch(ctx, metadata, client.MergeFrom(before), patch.FieldOwner); client.IgnoreNotFound(err) != nil {
		return fmt.Errorf("take over %T %s from another shard: %w", object, object.GetName(), err)
	}
	return nil
}
