package informercache

import (
	"context"
	"fmt"

	"sigs.k8s.io/controller-runtime/pkg/client"

	autov1alpha1 "github.com/stack-controller/stack-controller/api/auto/v1alpha1"
)

// UpdatesByWorkspace is the field by which a cache finds the Updates of a Workspace in the same namespace. AddIndexes adds the index.
const UpdatesByWorkspace = "spec.workspaceName"

// StacksByRollout is the field by which a cache finds the Stacks of a StackRollout, "namespace/name", in all namespaces, StacksBySource those of
// the key of a source, see source.Set.Key, and ApprovalsByRollout
// the one by which it finds the Approvals of a StackRollout in the same namespace. The controller of Stacks adds both indexes.
const (
	StacksByRollout    = "spec.rolloutRef"
	StacksBySource     = "spec.source"
	ApprovalsByRollout = "spec.rollout"
)

// AddIndexes adds the indexes that several controllers use; an index can be added only once.
func AddIndexes(ctx context.Context, indexer client.FieldIndexer) error {
	err := indexer.IndexField(ctx, &autov1alpha1.Update{}, UpdatesByWorkspace, func(object client.Object) []string {
		return []string{object.(*autov1alpha1.Update).Spec.WorkspaceName}
	})
	if err != nil {
		return fmt.Errorf("index the Updates by Workspace: %w", err)
	}
	return nil
}
