package stack

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/fluxcd/pkg/apis/meta"
	"github.com/fluxcd/pkg/runtime/conditions"

	autov1alpha1 "github.com/stack-controller/stack-controller/api/auto/v1alpha1"
	pulumiv1 "github.com/stack-controller/stack-controller/api/pulumi/v1"
	"github.com/stack-controller/stack-controller/internal/references"
	"github.com/stack-controller/stack-controller/internal/report/events"
)

// recordResult records the result of a finished Update in the status. If an old cache makes the controller record it again, the status is
// the same. outputs is the Secret with the outputs of the Update; nil when it has none.
func recordResult(stack *pulumiv1.Stack, update *autov1alpha1.Update, outputs *corev1.Secret) {
	current, previous := stack.Status.CurrentUpdate, stack.Status.LastUpdate
	if previous == nil {
		// What the first Update deployed that is gone without a result may be half done, see mayHavePendingOperations.
		previous = &pulumiv1.StackUpdateStatus{PendingOperations: stack.Status.Deployed && !current.First}
	}
	last := &pulumiv1.StackUpdateStatus{
		ReconcileRequest:     current.ReconcileRequest,
		Name:                 update.Name,
		Type:                 update.Spec.Type,
		State:                pulumiv1.StackUpdateSucceeded,
		LastSuccessfulCommit: current.Commit,
		Permalink:            update.Status.Permalink,
		LastResyncTime:       endedBy(update, metav1.Now()),
		ResourceChanges:      update.Status.ResourceChanges,
		PendingOperations:    leavesPendingOperations(update, previous),
		Drift:                current.Drift,
	}
	last.SetInputs(current.UpdateInputs)
	// The versions that the Update read when it started, and those that were observed when it was created. The observed ones alone may be
	// wrong: the cache may be behind the API server or, if somebody edited the Workspace, be about other objects. So a change causes at most
	// one unnecessary update.
	last.ReferencesDigest = references.Union(current.ReferencesDigest, update.Status.ReferencesDigest)
	// The values that the Update read when it started; if these are not known, those that it was created for.
	if update.Status.InputValuesDigest != "" {
		last.InputValuesDigest, last.InputVersionsDigest = update.Status.InputValuesDigest, update.Status.InputVersionsDigest
	}
	recordNotRun(stack, update)
	recordDeployedStack(stack, update)
	// A failed update may have created resources, which are destroyed from the state. It does not replace the project of others.
	if info := update.Status.ProjectInfo; info != nil && (!update.HasFailed() || stack.Status.ProjectInfo == nil && stack.Status.Deployed) {
		stack.Status.ProjectInfo = info
	}
	if update.HasFailed() {
		recordFailure(last, previous, stack, update)
	} else {
		recordSuccess(stack, update, current, outputs)
	}
	recordCorrection(stack, current, update)
	stack.Status.LastUpdate, stack.Status.CurrentUpdate = last, nil
	recordHistory(stack, last, update)
}

// recordNotRun records that nothing is deployed if the first Update that would have deployed something failed before it ran Pulumi.
func recordNotRun(stack *pulumiv1.Stack, update *autov1alpha1.Update) {
	if stack.Status.CurrentUpdate.First && update.HasFailed() && update.Status.NotRun {
		stack.Status.Deployed = false
	}
}

// recordFailure counts a failure. An interruption and a conflict are counted separately. An update that was cancelled while the Stack is
// suspended is not counted, because it is to go on later, and neither is a failure that needs mending. Earlier failures still count in all
// of these cases. They do not when Pulumi only waits for resources: nothing is wrong then.
func recordFailure(last, previous *pulumiv1.StackUpdateStatus, stack *pulumiv1.Stack, update *autov1alpha1.Update) {
	last.State = pulumiv1.StackUpdateFailed
	last.Message = update.Status.Message
	last.Reason = conditions.GetReason(update, autov1alpha1.UpdateFailed)
	last.LastSuccessfulCommit = previous.LastSuccessfulCommit
	last.Failures = previous.Failures
	switch {
	case update.WasInterrupted():
		last.Interruptions = previous.Interruptions + 1
	case update.WasLockedOut():
		last.Interruptions, last.Conflicts, last.ConflictsSince = previous.Interruptions, previous.Conflicts+1, previous.ConflictsSince
		if last.ConflictsSince == nil {
			last.ConflictsSince = last.LastResyncTime.DeepCopy()
		}
	case update.AwaitsResources():
		last.Failures = 0
	case stack.Spec.Suspend && last.Reason == autov1alpha1.CanceledReason, needsManualFix(last):
	default:
		last.Failures++
	}
}

// recordSuccess records what only a successful update has: the outputs and the applied revision.
func recordSuccess(stack *pulumiv1.Stack, update *autov1alpha1.Update, current *pulumiv1.CurrentStackUpdate, outputs *corev1.Secret) {
	switch update.Spec.Type {
	case autov1alpha1.UpdateTypeDestroy:
		stack.Status.Outputs, stack.Status.StoredOutputs, stack.Status.OutputsNotStored = nil, nil, ""
		stack.Status.Deployed = false
		stack.Status.LastAppliedRevision, stack.Status.LastAppliedOriginRevision = "", ""
	case autov1alpha1.UpdateTypePreview:
	default:
		if stack.Status.OutputsNotStored = update.Status.OutputsNotStored; givesOutputs(update) {
			stack.Status.Outputs, stack.Status.StoredOutputs = shownOutputs(outputs), sourceOfOutputs(update)
		}
		stack.Status.LastAppliedRevision = current.Revision
		stack.Status.LastAppliedOriginRevision = events.OriginRevision(current.Revision, commitOfUpdate(update))
	}
}

// recordCorrection counts a correction of drift. After one that failed, the drift has not come back: it is still there.
func recordCorrection(stack *pulumiv1.Stack, current *pulumiv1.CurrentStackUpdate, update *autov1alpha1.Update) {
	if current.Drift != "" && stack.Status.Drift != nil && !update.HasFailed() {
		stack.Status.Drift.Correction = countCorrection(stack.Status.Drift, current.Drift, endOf(update).Time)
	}
}

// leavesPendingOperations reports whether pending operations may be in the state after the Update. An operation that was cut off can leave
// some, and so can one that failed, whatever for: it may not have been able to save the state any longer. A new agent does not know that, and the
// lock may have been removed or have expired. So the status of the Stack records it until an operation succeeds.
func leavesPendingOperations(update *autov1alpha1.Update, previous *pulumiv1.StackUpdateStatus) bool {
	switch {
	case update.ChangesNothing():
		return previous.PendingOperations
	case !update.HasFailed():
		return false
	}
	ran := !update.Status.NotRun && !update.WasLockedOut()
	return ran || update.WasCutOff() || previous.PendingOperations
}

// mayHavePendingOperations reports whether pending operations may be in the state now. A Stack that has deployed something and has no
// result may have had an Update that somebody removed while it ran.
func mayHavePendingOperations(stack *pulumiv1.Stack) bool {
	last := stack.Status.LastUpdate
	return last != nil && last.PendingOperations || last == nil && stack.Status.Deployed
}

// pruneUpdates deletes the oldest finished Updates beyond the limit, and all finished Updates that ended with a conflict. It always keeps
// the Update that was recorded last, the one that made the plan in the status, checks for drift, and the one whose outputs are needed
// (KeepsOutputsOf). The Update controller may delete them before, when their
// ttlAfterCompleted ends, see internal/controller/update/finalize.go.
func (r *Reconciler) pruneUpdates(ctx context.Context, stack *pulumiv1.Stack, recorded string) error {
	updates, err := r.updatesOf(ctx, stack)
	if err != nil {
		return err
	}
	room := max(stack.GetUpdateHistoryLimit()-1, 0)
	for i := range slices.Backward(updates) {
		update := &updates[i]
		if !update.IsComplete() || update.Name == recorded || isPlanOf(stack, update) || isDriftCheck(update) || stack.KeepsOutputsOf(update, true) {
			continue
		}
		if !update.WasLockedOut() && room > 0 {
			room--
			continue
		}
		if err := r.Delete(ctx, update); client.IgnoreNotFound(err) != nil {
			return fmt.Errorf("delete the old update %s: %w", update.Name, err)
		}
	}
	return nil
}

// isPlanOf reports whether the Update made the plan in the status of the Stack, and nobody has edited its specification since.
func isPlanOf(stack *pulumiv1.Stack, update *autov1alpha1.Update) bool {
	plan := stack.Status.Plan
	return plan != nil && plan.Name == update.Name && plan.UID == update.UID && update.Generation == 1
}

// endedBy returns when the update ended, or now if that is earlier: the clock of the agent may be ahead of the controller's, which decides
// when the next attempt is due.
func endedBy(update *autov1alpha1.Update, now metav1.Time) metav1.Time {
	if end := endOf(update); end.Before(&now) {
		return end
	}
	return now
}

func endOf(update *autov1alpha1.Update) metav1.Time {
	if update.Status.EndTime != nil {
		return *update.Status.EndTime
	}
	return metav1.Now()
}

// historyConflict is the status in the history of attempts that ended with a conflict.
const historyConflict = "conflict"

// recordHistory adds the result to the history. A result other than a conflict replaces the entry about conflicts of the same digest.
func recordHistory(stack *pulumiv1.Stack, last *pulumiv1.StackUpdateStatus, update *autov1alpha1.Update) {
	history, digest := &stack.Status.History, historyDigest(last.LastAttemptedCommit)
	if last.Conflicts == 0 {
		*history = slices.DeleteFunc(*history, func(snapshot meta.Snapshot) bool {
			return snapshot.Digest == digest && snapshot.LastReconciledStatus == historyConflict
		})
	}
	status := string(last.State)
	switch {
	case last.Conflicts > 0:
		status = historyConflict
	case isAwaiting(last):
		status = "awaiting"
	case last.Interruptions > 0: // Its outcome is not known.
		status = "interrupted"
	case last.Reason == autov1alpha1.CanceledReason:
		status = "cancelled"
	}
	end, duration := endOf(update).Time, time.Duration(0)
	if update.Status.StartTime != nil {
		duration = end.Sub(update.Status.StartTime.Time)
	}
	history.Upsert(digest, end, duration, status, historyMetadata(last.Revision))
}

// historyDigest identifies an entry of the history; a Stack without source has one entry.
func historyDigest(commit string) string {
	return cmp.Or(commit, "none")
}

func historyMetadata(revision string) map[string]string {
	if revision == "" {
		return nil
	}
	return map[string]string{"revision": revision}
}
