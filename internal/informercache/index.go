package informercache

import (
	"context"
	"fmt"

	"sigs.k8s.io/controller-runtime/pkg/client"

	autov1alpha1 "github.com/stack-controller/stack-controller/api/auto/v1alpha1"
)

// UpdatesByWorkspace is the field by which a cache finds the Updates of a Workspace in the same namespace. AddIndexes adds the index.
const UpdatesByWorkspace = "spec.workspaceName"

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
