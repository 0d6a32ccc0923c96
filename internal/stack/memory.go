package stack

import (
	"context"
	"fmt"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	autov1alpha1 "github.com/stack-controller/stack-controller/api/auto/v1alpha1"
	pulumiv1 "github.com/stack-controller/stack-controller/api/pulumi/v1"
)

// A status can be lost: backups leave it out, and it can be edited. That a Stack has deployed something must not be lost with it, because
// the finalizer would then go without a destroy. So it is kept a second time, in an annotation, which backups have.

// recall restores from the annotation what the status does not say any more.
func recall(stack *pulumiv1.Stack) {
	status := &stack.Status
	deployed, known := stack.Annotations[pulumiv1.DeployedStackAnnotation]
	last := status.LastUpdate
	destroyed := last != nil && last.Type == autov1alpha1.UpdateTypeDestroy && last.State == pulumiv1.StackUpdateSucceeded
	if !known || status.Deployed || destroyed {
		return
	}
	status.Deployed = true
	if status.DeployedStack == "" {
		status.DeployedStack = deployed
	}
}

// remember writes the annotation when the Stack has deployed something, and when it knows more of it than before. The write fails with a
// conflict when the Stack is not any more what the decision was made from.
func (r *Reconciler) remember(ctx context.Context, before, stack *pulumiv1.Stack) error {
	deployed, known := stack.Annotations[pulumiv1.DeployedStackAnnotation]
	if !stack.Status.Deployed || known && deployed == stack.Status.DeployedStack {
		return nil
	}
	marked := before.DeepCopy()
	metav1.SetMetaDataAnnotation(&marked.ObjectMeta, pulumiv1.DeployedStackAnnotation, stack.Status.DeployedStack)
	patch := client.MergeFromWithOptions(before, client.MergeFromWithOptimisticLock{})
	if err := r.Patch(ctx, marked, patch, client.FieldOwner(fieldOwner)); err != nil {
		return client.IgnoreNotFound(fmt.Errorf("remember what is deployed: %w", err))
	}
	// Nothing else changed: the status that was decided on is still that of this object.
	for _, object := range []*pulumiv1.Stack{before, stack} {
		object.ResourceVersion = marked.ResourceVersion
		metav1.SetMetaDataAnnotation(&object.ObjectMeta, pulumiv1.DeployedStackAnnotation, stack.Status.DeployedStack)
	}
	return nil
}
