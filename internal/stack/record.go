package stack

import (
	"context"
	"fmt"
	"slices"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/fluxcd/pkg/runtime/conditions"

	autov1alpha1 "github.com/stack-controller/stack-controller/api/auto/v1alpha1"
	pulumiv1 "github.com/stack-controller/stack-controller/api/pulumi/v1"
)

// recordResult takes the result of a finished Update into the status. Doing it twice changes nothing.
func (r *Reconciler) recordResult(ctx context.Context, stack *pulumiv1.Stack, update *autov1alpha1.Update) error {
	current := stack.Status.CurrentUpdate
	if current == nil {
		current = currentOf(update)
	}
	previous := stack.Status.LastUpdate
	if previous == nil {
		previous = &pulumiv1.StackUpdateStatus{}
	}
	last := &pulumiv1.StackUpdateStatus{
		Generation:           current.Generation,
		ReconcileRequest:     current.ReconcileRequest,
		Name:                 update.Name,
		Type:                 update.Spec.Type,
		State:                pulumiv1.StackUpdateSucceeded,
		LastAttemptedCommit:  current.Commit,
		LastSuccessfulCommit: current.Commit,
		Revision:             current.Revision,
		ContentDigest:        current.ContentDigest,
		ReferencesDigest:     usedReferences(current, update),
		Permalink:            update.Status.Permalink,
		LastResyncTime:       endedBy(update, metav1.Now()),
		ResourceChanges:      update.Status.ResourceChanges,
	}
	if update.HasFailed() {
		last.State = pulumiv1.StackUpdateFailed
		last.Message = update.Status.Message
		last.Reason = conditions.GetReason(update, autov1alpha1.UpdateFailed)
		last.LastSuccessfulCommit = previous.LastSuccessfulCommit
		last.Failures = previous.Failures + 1
		switch {
		case update.WasInterrupted():
			last.Failures, last.Interruptions = previous.Failures, previous.Interruptions+1
		case update.WasLockedOut():
			recordConflict(last, previous)
		case wasCanceled(stack, update):
			last.Failures = previous.Failures
		}
	} else if err := r.recordSuccess(ctx, stack, update, current); err != nil {
		return err
	}
	recordDeployedStack(stack, update)
	last.Unsettled = leavesUnsettled(update, previous)
	stack.Status.LastUpdate = last
	stack.Status.CurrentUpdate = nil
	stack.Status.History = dropConflicts(stack.Status.History, historyDigest(current.Commit), last)
	stack.Status.History.Upsert(historyDigest(current.Commit), endOf(update).Time, durationOf(update), historyStatus(last), historyMetadata(current.Revision))
	return nil
}

// recordSuccess keeps what only a success brings.
func (r *Reconciler) recordSuccess(ctx context.Context, stack *pulumiv1.Stack, update *autov1alpha1.Update, current *pulumiv1.CurrentStackUpdate) error {
	if update.Status.ProjectInfo != nil {
		stack.Status.ProjectInfo = update.Status.ProjectInfo
	}
	switch update.Spec.Type {
	case autov1alpha1.UpdateTypeDestroy:
		stack.Status.Outputs = nil
		stack.Status.Deployed = false
		stack.Status.LastAppliedRevision = ""
	case autov1alpha1.UpdateTypePreview:
	default:
		outputs, err := r.readOutputs(ctx, update)
		if err != nil {
			return err
		}
		stack.Status.Outputs = outputs
		stack.Status.LastAppliedRevision = current.Revision
	}
	return nil
}

// pruneUpdates deletes the oldest finished Updates beyond the limit, and all that merely met a lock. The one that was recorded last
// always stays.
func (r *Reconciler) pruneUpdates(ctx context.Context, stack *pulumiv1.Stack, recorded string) error {
	updates, err := r.updatesOf(ctx, stack)
	if err != nil {
		return err
	}
	finished := slices.DeleteFunc(updates, func(update autov1alpha1.Update) bool {
		return !update.IsComplete() || update.Name == recorded
	})
	slices.SortFunc(finished, func(a, b autov1alpha1.Update) int {
		return b.CreationTimestamp.Compare(a.CreationTimestamp.Time)
	})
	keep := max(stack.GetUpdateHistoryLimit()-1, 0)
	kept := 0
	for i := range finished {
		if !finished[i].WasLockedOut() && kept < keep {
			kept++
			continue
		}
		if err := r.Delete(ctx, &finished[i]); client.IgnoreNotFound(err) != nil {
			return fmt.Errorf("delete the old update %s: %w", finished[i].Name, err)
		}
	}
	return nil
}

// endedBy is when the update ended. Its agent's clock may be ahead of this one, by which the next attempt is due.
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

func durationOf(update *autov1alpha1.Update) time.Duration {
	if update.Status.StartTime == nil {
		return 0
	}
	return endOf(update).Sub(update.Status.StartTime.Time)
}

// historyDigest identifies an entry of the history; a Stack without source has one entry.
func historyDigest(commit string) string {
	if commit == "" {
		return "none"
	}
	return commit
}

// historyConflict is the status of attempts that met a lock.
const historyConflict = "conflict"

// historyStatus tells an interruption, whose outcome is not known, from a failure.
func historyStatus(last *pulumiv1.StackUpdateStatus) string {
	switch {
	case last.Conflicts > 0:
		return historyConflict
	case last.Interruptions > 0:
		return "interrupted"
	case last.Reason == autov1alpha1.CanceledReason:
		return "cancelled"
	}
	return string(last.State)
}

func historyMetadata(revision string) map[string]string {
	if revision == "" {
		return nil
	}
	return map[string]string{"revision": revision}
}
