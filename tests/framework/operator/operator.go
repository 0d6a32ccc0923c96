// Package operator imitates the Pulumi Kubernetes Operator 2.9 for tests: how it writes its objects, and its definitions. It follows what
// is documented and observed of the operator, and runs none of its code.
package operator

import (
	"context"
	"encoding/json"
	"fmt"
	"time"

	apimeta "k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/fluxcd/pkg/apis/meta"

	autov1alpha1 "github.com/stack-controller/stack-controller/api/auto/v1alpha1"
	pulumiv1 "github.com/stack-controller/stack-controller/api/pulumi/v1"
)

// Field managers of the operator.
const (
	Owner               = "pulumi-kubernetes-operator"
	StackStatusOwner    = Owner + "/stack-status"
	StackFinalizerOwner = Owner + "/stack-finalizer"
	UpdateStatusOwner   = Owner + "/update-status"
	ProgramStatusOwner  = Owner + "/program-status"
)

// MaxFailures is the number of failures after which the operator gives up.
const MaxFailures = 3

// Operator writes objects as the operator does.
type Operator struct {
	Client client.Client
}

// MarkReady sets the conditions of a Stack that is up to date.
func MarkReady(stack *pulumiv1.Stack) {
	setCondition(stack, meta.ReadyCondition, metav1.ConditionTrue, "ProcessingCompleted", "the stack has been processed and is up to date")
	apimeta.RemoveStatusCondition(&stack.Status.Conditions, meta.ReconcilingCondition)
	apimeta.RemoveStatusCondition(&stack.Status.Conditions, meta.StalledCondition)
}

// MarkReconciling sets the conditions of a Stack on which the operator works.
func MarkReconciling(stack *pulumiv1.Stack, reason, message string) {
	setCondition(stack, meta.ReconcilingCondition, metav1.ConditionTrue, reason, message)
	setCondition(stack, meta.ReadyCondition, metav1.ConditionFalse, "NotReadyInProgress", "reconciliation is in progress")
	apimeta.RemoveStatusCondition(&stack.Status.Conditions, meta.StalledCondition)
}

// MarkStalled sets the conditions of a Stack on which the operator has given up.
func MarkStalled(stack *pulumiv1.Stack, reason, message string) {
	setCondition(stack, meta.StalledCondition, metav1.ConditionTrue, reason, message)
	setCondition(stack, meta.ReadyCondition, metav1.ConditionFalse, "NotReadyStalled", "reconciliation is stalled")
	apimeta.RemoveStatusCondition(&stack.Status.Conditions, meta.ReconcilingCondition)
}

func setCondition(stack *pulumiv1.Stack, kind string, status metav1.ConditionStatus, reason, message string) {
	apimeta.SetStatusCondition(&stack.Status.Conditions, metav1.Condition{Type: kind, Status: status, Reason: reason, Message: message})
}

// MarkResult sets the conditions that follow from the result of the last update.
func MarkResult(stack *pulumiv1.Stack) {
	switch last := stack.Status.LastUpdate; {
	case last.State == pulumiv1.StackUpdateSucceeded:
		MarkReady(stack)
	case last.Failures >= MaxFailures:
		MarkStalled(stack, "UpdateFailed", fmt.Sprintf("%s failed %d times; not retrying until the spec or source changes", last.Type, last.Failures))
	default:
		MarkReconciling(stack, "RetryingAfterFailure", fmt.Sprintf("%d update failure(s)", last.Failures))
	}
}

// IsSynced reports whether a Stack whose source has this commit needs no update at the moment.
func IsSynced(stack *pulumiv1.Stack, commit string) bool {
	last := stack.Status.LastUpdate
	switch {
	case last == nil, last.Generation != stack.Generation, last.ReconcileRequest != stack.Annotations["pulumi.com/reconciliation-request"]:
		return false
	case last.State == pulumiv1.StackUpdateSucceeded && !stack.DeletionTimestamp.IsZero():
		return last.Type == autov1alpha1.UpdateTypeDestroy
	case last.State == pulumiv1.StackUpdateSucceeded:
		return last.LastSuccessfulCommit == commit
	case last.LastAttemptedCommit != commit:
		return false
	}
	return last.Failures >= MaxFailures
}

// SaveStatus applies the status of a Stack that was read and changed: the fields that the operator knows, and all conditions. Afterwards
// the Stack has the content that the API server returned.
func (o Operator) SaveStatus(ctx context.Context, stack *pulumiv1.Stack) error {
	status := map[string]any{
		"observedGeneration":       stack.Generation,
		"observedReconcileRequest": stack.Annotations["pulumi.com/reconciliation-request"],
		"conditions":               stack.Status.Conditions,
	}
	if outputs := stack.Status.Outputs; outputs != nil {
		status["outputs"] = outputs
	}
	if info := stack.Status.ProjectInfo; info != nil {
		status["projectInfo"] = info
	}
	if current := stack.Status.CurrentUpdate; current != nil {
		status["currentUpdate"] = &pulumiv1.CurrentStackUpdate{
			Generation: current.Generation, ReconcileRequest: current.ReconcileRequest, Name: current.Name, Commit: current.Commit,
		}
	}
	if last := stack.Status.LastUpdate; last != nil {
		status["lastUpdate"] = &pulumiv1.StackUpdateStatus{
			Generation: last.Generation, ReconcileRequest: last.ReconcileRequest, Name: last.Name, Type: last.Type, State: last.State,
			Message: last.Message, LastAttemptedCommit: last.LastAttemptedCommit, LastSuccessfulCommit: last.LastSuccessfulCommit,
			Permalink: last.Permalink, LastResyncTime: last.LastResyncTime, Failures: last.Failures,
		}
	}
	return o.applyStatus(ctx, stack, pulumiv1.GroupVersion.String(), pulumiv1.StackKind, StackStatusOwner, status)
}

// SaveProgram applies the status of a Program. Its revision is the generation.
func (o Operator) SaveProgram(ctx context.Context, program *pulumiv1.Program) error {
	path := fmt.Sprintf("programs/%s/%s/%d", program.Namespace, program.Name, program.Generation)
	return o.applyStatus(ctx, program, pulumiv1.GroupVersion.String(), pulumiv1.ProgramKind, ProgramStatusOwner, map[string]any{
		"observedGeneration": program.Generation,
		"artifact": map[string]any{
			"path": path + ".tar.gz", "url": "http://pulumi-kubernetes-operator.pulumi-kubernetes-operator/" + path,
			"revision": fmt.Sprint(program.Generation), "lastUpdateTime": time.Now().UTC().Format(time.RFC3339), "size": 200,
			"digest": "sha256:e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855",
		},
	})
}

// SaveUpdate applies the status of an Update with the three conditions progressing, failed and complete.
func (o Operator) SaveUpdate(ctx context.Context, update *autov1alpha1.Update, progressing, failed, complete metav1.Condition, message string) error {
	now := metav1.Now().Rfc3339Copy()
	progressing.Type, failed.Type, complete.Type = autov1alpha1.UpdateProgressing, autov1alpha1.UpdateFailed, autov1alpha1.UpdateComplete
	conditions := []metav1.Condition{progressing, failed, complete}
	for i := range conditions {
		conditions[i].ObservedGeneration, conditions[i].LastTransitionTime = update.Generation, now
	}
	status := map[string]any{"observedGeneration": update.Generation, "conditions": conditions}
	if message != "" {
		status["message"] = message
	}
	if complete.Status == metav1.ConditionTrue {
		status["startTime"], status["endTime"] = now, now
	}
	return o.applyStatus(ctx, update, autov1alpha1.GroupVersion.String(), autov1alpha1.UpdateKind, UpdateStatusOwner, status)
}

// ApplyWorkspace applies the Workspace of a Stack, without force.
func (o Operator) ApplyWorkspace(ctx context.Context, stack *pulumiv1.Stack) (*autov1alpha1.Workspace, error) {
	workspace := &autov1alpha1.Workspace{Namespace: stack.Namespace, Name: stack.Name}
	content := map[string]any{
		"apiVersion": autov1alpha1.GroupVersion.String(),
		"kind":       autov1alpha1.WorkspaceKind,
		"metadata": map[string]any{
			"namespace": stack.Namespace, "name": stack.Name, "labels": labelsOf(stack),
			"ownerReferences": []metav1.OwnerReference{*metav1.NewControllerRef(stack, pulumiv1.GroupVersion.WithKind(pulumiv1.StackKind))},
		},
		"spec": map[string]any{
			"env":         []map[string]any{{"name": "PULUMI_BACKEND_URL", "value": stack.Spec.Backend}},
			"podTemplate": map[string]any{"spec": map[string]any{"containers": []map[string]any{{"name": "pulumi", "resources": map[string]any{}}}}},
			"resources":   map[string]any{},
			"stacks":      []map[string]any{{"name": stack.Spec.Stack, "create": true}},
		},
	}
	return workspace, o.apply(ctx, workspace, content, client.FieldOwner(Owner))
}

// CreateUpdate creates an Update of the Stack and adds the finalizer.
func (o Operator) CreateUpdate(ctx context.Context, stack *pulumiv1.Stack, workspace *autov1alpha1.Workspace, kind autov1alpha1.UpdateType) (*autov1alpha1.Update, error) {
	yes := true
	update := &autov1alpha1.Update{
		Namespace: stack.Namespace, Name: fmt.Sprintf("%s-%x", stack.Name, time.Now().UnixMilli()), Labels: labelsOf(stack),
		OwnerReferences: []metav1.OwnerReference{
			*metav1.NewControllerRef(workspace, autov1alpha1.GroupVersion.WithKind(autov1alpha1.WorkspaceKind)),
			{APIVersion: pulumiv1.GroupVersion.String(), Kind: pulumiv1.StackKind, Name: stack.Name, UID: stack.UID, BlockOwnerDeletion: &yes},
		},
		Spec: autov1alpha1.UpdateSpec{
			WorkspaceName: workspace.Name, StackName: stack.Spec.Stack, Type: kind,
			TTLAfterCompleted: &metav1.Duration{Duration: 24 * time.Hour},
		},
	}
	if err := o.Client.Create(ctx, update, client.FieldOwner(Owner)); err != nil {
		return nil, fmt.Errorf("create an Update as the operator: %w", err)
	}
	return update, o.applyFinalizers(ctx, update, pulumiv1.Finalizer)
}

// FinalizeUpdate removes the finalizer that the operator applied.
func (o Operator) FinalizeUpdate(ctx context.Context, update *autov1alpha1.Update) error {
	return o.applyFinalizers(ctx, update)
}

func (o Operator) applyFinalizers(ctx context.Context, update *autov1alpha1.Update, finalizers ...string) error {
	metadata := map[string]any{"namespace": update.Namespace, "name": update.Name}
	if len(finalizers) > 0 {
		metadata["finalizers"] = finalizers
	}
	return o.apply(ctx, update, map[string]any{
		"apiVersion": autov1alpha1.GroupVersion.String(), "kind": autov1alpha1.UpdateKind, "metadata": metadata,
	}, client.FieldOwner(StackFinalizerOwner))
}

func labelsOf(stack *pulumiv1.Stack) map[string]string {
	return map[string]string{"pulumi.com/component": "stack", "pulumi.com/stack-name": stack.Name}
}

func (o Operator) apply(ctx context.Context, object client.Object, content map[string]any, owner client.FieldOwner) error {
	body, err := json.Marshal(content)
	if err != nil {
		return fmt.Errorf("encode %s: %w", object.GetName(), err)
	}
	if err := o.Client.Patch(ctx, object, client.RawPatch(types.ApplyPatchType, body), owner); err != nil {
		return fmt.Errorf("apply %s as the operator: %w", object.GetName(), err)
	}
	return nil
}

func (o Operator) applyStatus(ctx context.Context, object client.Object, version, kind, owner string, status map[string]any) error {
	body, err := json.Marshal(map[string]any{
		"apiVersion": version, "kind": kind,
		"metadata": map[string]any{"namespace": object.GetNamespace(), "name": object.GetName()},
		"status":   status,
	})
	if err != nil {
		return fmt.Errorf("encode the status of %s: %w", object.GetName(), err)
	}
	patch := client.RawPatch(types.ApplyPatchType, body)
	if err := o.Client.Status().Patch(ctx, object, patch, client.FieldOwner(owner), client.ForceOwnership); err != nil {
		return fmt.Errorf("apply the status of %s %s as the operator: %w", kind, object.GetName(), err)
	}
	return nil
}
