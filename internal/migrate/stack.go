package migrate

import (
	"context"
	"fmt"
	"strings"

	apimeta "k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/fluxcd/pkg/apis/meta"

	autov1alpha1 "github.com/stack-controller/stack-controller/api/auto/v1alpha1"
	pulumiv1 "github.com/stack-controller/stack-controller/api/pulumi/v1"
)

// stalledAfterFailures is after how many failures the operator gives up.
const stalledAfterFailures = 3

// handBackStacks replaces the status of every Stack by one of the operator. The finalizer stays, because both controllers use the same one.
func (h *handBack) handBackStacks(ctx context.Context) error {
	return h.each(ctx, &pulumiv1.StackList{}, func(ctx context.Context, object client.Object) error {
		stack := object.(*pulumiv1.Stack)
		if !isOurs(stack) {
			if len(stack.Status.Conditions) == 0 { // nobody has reconciled it, as when it was created suspended
				h.say(stack, "stays as it is%s", startOf(stack, stack.Status))
			}
			return nil
		}
		finished, err := h.isCurrentUpdateComplete(ctx, stack)
		if err != nil {
			return err
		}
		status := operatorStatus(stack, finished)
		if err := h.replaceStatus(ctx, stack, status); err != nil {
			return err
		}
		if err := h.applyStatus(ctx, stack, status); err != nil {
			return err
		}
		if err := h.disownStatus(ctx, stack); err != nil {
			return err
		}
		h.did(stack, "handed back, %s%s", describeStatus(status), startOf(stack, status))
		return nil
	})
}

// startOf returns what the operator starts for the Stack with this status even if its source does not change, to be read after a
// description of the Stack; empty if it starts nothing.
func startOf(stack *pulumiv1.Stack, status pulumiv1.StackStatus) string {
	last := status.LastUpdate
	switch {
	case !stack.DeletionTimestamp.IsZero() && stack.Spec.DestroyOnFinalize:
		return "; the operator destroys it"
	case !stack.DeletionTimestamp.IsZero(), status.CurrentUpdate != nil:
		return ""
	case last == nil, last.Generation != stack.Generation, last.ReconcileRequest != stack.Annotations[pulumiv1.ReconcileRequestAnnotation],
		last.State != pulumiv1.StackUpdateSucceeded && last.Failures < stalledAfterFailures:
		return "; the operator runs an update"
	}
	return ""
}

// isCurrentUpdateComplete reports whether the Stack has a complete Update whose result is not recorded yet. The operator can record it.
func (h *handBack) isCurrentUpdateComplete(ctx context.Context, stack *pulumiv1.Stack) (bool, error) {
	current := stack.Status.CurrentUpdate
	if current == nil {
		return false, nil
	}
	update := &autov1alpha1.Update{}
	err := h.Client.Get(ctx, client.ObjectKey{Namespace: stack.Namespace, Name: current.Name}, update)
	if client.IgnoreNotFound(err) != nil {
		return false, fmt.Errorf("read the update %s: %w", current.Name, err)
	}
	return err == nil && update.IsComplete(), nil
}

// operatorStatus returns the status that the operator would have written. The operator waits for ever for a current Update that does not
// exist, so the current Update is kept only if it is finished.
func operatorStatus(stack *pulumiv1.Stack, finished bool) pulumiv1.StackStatus {
	from := &stack.Status
	status := pulumiv1.StackStatus{
		ObservedGeneration:       from.ObservedGeneration,
		ObservedReconcileRequest: from.ObservedReconcileRequest,
		Outputs:                  from.Outputs,
		ProjectInfo:              from.ProjectInfo,
		LastUpdate:               operatorLastUpdate(stack),
	}
	if current := from.CurrentUpdate; finished {
		status.CurrentUpdate = &pulumiv1.CurrentStackUpdate{
			Generation: current.Generation, ReconcileRequest: current.ReconcileRequest, Name: current.Name,
			Commit: operatorCommit(current.Commit, current.Revision),
		}
	}
	for _, condition := range operatorConditions(&status) {
		condition.LastTransitionTime = metav1.Now().Rfc3339Copy()
		if was := apimeta.FindStatusCondition(from.Conditions, condition.Type); was != nil && was.Status == condition.Status {
			condition.LastTransitionTime = was.LastTransitionTime
		}
		status.Conditions = append(status.Conditions, condition)
	}
	return status
}

// operatorLastUpdate returns the last update with the fields that the operator knows.
func operatorLastUpdate(stack *pulumiv1.Stack) *pulumiv1.StackUpdateStatus {
	last := stack.Status.LastUpdate
	if last == nil {
		return nil
	}
	attempted := last.Revision
	if stack.Status.LastAttemptedRevision != "" {
		attempted = stack.Status.LastAttemptedRevision
	}
	succeeded := stack.Status.LastAppliedRevision
	if last.LastSuccessfulCommit == last.LastAttemptedCommit {
		succeeded = attempted
	}
	result := &pulumiv1.StackUpdateStatus{
		Generation: last.Generation, ReconcileRequest: last.ReconcileRequest,
		Name: last.Name, Type: last.Type, State: last.State, Message: last.Message,
		LastAttemptedCommit:  operatorCommit(last.LastAttemptedCommit, attempted),
		LastSuccessfulCommit: operatorCommit(last.LastSuccessfulCommit, succeeded),
		Permalink:            last.Permalink, LastResyncTime: last.LastResyncTime, Failures: last.Failures,
	}
	if isUpToDate(stack) {
		// This controller found that the Stack needs no update, so the operator must not start one.
		result.Generation = stack.Generation
		result.ReconcileRequest = stack.Annotations[pulumiv1.ReconcileRequestAnnotation]
	}
	return result
}

func isUpToDate(stack *pulumiv1.Stack) bool {
	status := &stack.Status
	return stack.DeletionTimestamp.IsZero() &&
		status.LastUpdate.State == pulumiv1.StackUpdateSucceeded &&
		status.CurrentUpdate == nil &&
		status.ObservedGeneration == stack.Generation &&
		status.ObservedReconcileRequest == stack.Annotations[pulumiv1.ReconcileRequestAnnotation] &&
		apimeta.IsStatusConditionTrue(status.Conditions, meta.ReadyCondition)
}

// operatorCommit returns what the operator records as the commit. For a git repository both controllers record the hash. For a Flux source
// or a Program the operator records the revision, and this controller the digest.
func operatorCommit(commit, revision string) string {
	if revision != "" && strings.Contains(commit, ":") {
		return revision
	}
	return commit
}

// operatorConditions returns the conditions that the operator would set for such a status. They stay until the operator reconciles the
// Stack.
func operatorConditions(status *pulumiv1.StackStatus) []metav1.Condition {
	ready := func(status metav1.ConditionStatus, reason, message string) metav1.Condition {
		return metav1.Condition{Type: meta.ReadyCondition, Status: status, Reason: reason, Message: message}
	}
	inProgress := func(reason, message string) []metav1.Condition {
		return []metav1.Condition{
			ready(metav1.ConditionFalse, pulumiv1.NotReadyInProgressReason, "reconciliation is in progress"),
			{Type: meta.ReconcilingCondition, Status: metav1.ConditionTrue, Reason: reason, Message: message},
		}
	}
	last := status.LastUpdate
	switch {
	case status.CurrentUpdate != nil, last == nil:
		return inProgress(pulumiv1.StackProcessingReason, "stack is being processed")
	case last.State == pulumiv1.StackUpdateSucceeded:
		return []metav1.Condition{ready(metav1.ConditionTrue, pulumiv1.ProcessingCompletedReason, "the stack has been processed and is up to date")}
	case last.Failures >= stalledAfterFailures:
		return []metav1.Condition{
			ready(metav1.ConditionFalse, notReadyStalledReason, "reconciliation is stalled"),
			{Type: meta.StalledCondition, Status: metav1.ConditionTrue, Reason: pulumiv1.UpdateFailedReason,
				Message: fmt.Sprintf("%s failed %d times; not retrying until the spec or source changes", last.Type, last.Failures)},
		}
	case last.Type == autov1alpha1.UpdateTypePreview:
		return inProgress(pulumiv1.PreviewFailedReason, fmt.Sprintf("preview failed (%d attempt(s))", last.Failures))
	}
	return inProgress(pulumiv1.RetryingAfterFailureReason, fmt.Sprintf("%d update failure(s)", last.Failures))
}

// notReadyStalledReason is the reason of Ready=False on a Stack that the operator has stopped retrying.
const notReadyStalledReason = "NotReadyStalled"

// describeStatus describes the last condition of the new status, for the output.
func describeStatus(status pulumiv1.StackStatus) string {
	condition := status.Conditions[len(status.Conditions)-1]
	return fmt.Sprintf("%s=%s %s", condition.Type, condition.Status, condition.Reason)
}
