package informercache

import (
	"context"
	"fmt"

	"sigs.k8s.io/controller-runtime/pkg/client"

	autov1alpha1 "github.com/stack-controller/stack-controller/api/auto/v1alpha1"
	pulumiv1 "github.com/stack-controller/stack-controller/api/pulumi/v1"
	"github.com/stack-controller/stack-controller/internal/waves"
)

// UpdatesByWorkspace is the field by which a cache finds the Updates of a Workspace in the same namespace. AddIndexes adds the index.
const UpdatesByWorkspace = "spec.workspaceName"

// StacksByRollout is the field by which a cache finds the Stacks of a StackRollout, "namespace/name", in all namespaces.
const StacksByRollout = "spec.rolloutRef"

// ApprovalsByRollout is the field by which a cache finds the Approvals of a StackRollout in the same namespace.
const ApprovalsByRollout = "spec.rollout"

// AddIndexes adds the indexes that several controllers use; an index can be added only once.
func AddIndexes(ctx context.Context, indexer client.FieldIndexer) error {
	err := indexer.IndexField(ctx, &autov1alpha1.Update{}, UpdatesByWorkspace, func(object client.Object) []string {
		return []string{object.(*autov1alpha1.Update).Spec.WorkspaceName}
	})
	if err != nil {
		return fmt.Errorf("index the Updates by Workspace: %w", err)
	}
	err = indexer.IndexField(ctx, &pulumiv1.Stack{}, StacksByRollout, func(object client.Object) []string {
		if key, named := waves.RolloutOf(object.(*pulumiv1.Stack)); named {
			return []string{key.String()}
		}
		return nil
	})
	if err != nil {
		return fmt.Errorf("index the Stacks by StackRollout: %w", err)
	}
	err = indexer.IndexField(ctx, &autov1alpha1.Approval{}, ApprovalsByRollout, func(object client.Object) []string {
		if rollout := object.(*autov1alpha1.Approval).Spec.Rollout; rollout != "" {
			return []string{rollout}
		}
		return nil
	})
	if err != nil {
		return fmt.Errorf("index the Approvals by StackRollout: %w", err)
	}
	return nil
}
