package stack

import (
	"fmt"

	corev1 "k8s.io/api/core/v1"

	eventv1 "github.com/fluxcd/pkg/apis/event/v1beta1"
	"github.com/fluxcd/pkg/apis/meta"
	"github.com/fluxcd/pkg/runtime/conditions"

	autov1alpha1 "github.com/stack-controller/stack-controller/api/auto/v1alpha1"
	pulumiv1 "github.com/stack-controller/stack-controller/api/pulumi/v1"
	"github.com/stack-controller/stack-controller/internal/source"
)

// Event reasons.
const (
	eventConfigInvalid     = "StackConfigInvalid"
	eventPathUnmatched     = "SourcePathUnmatched"
	eventUpdateConflict    = "StackUpdateConflictDetected"
	eventUpdateDetected    = "StackUpdateDetected"
	eventUpdateFailure     = "StackUpdateFailure"
	eventUpdateInterrupted = "StackUpdateInterrupted"
	eventUpdateSuccess     = "StackCreated"
	eventStackReleased     = "StackReleased"
	eventWorkspaceDeleted  = "WorkspaceDeleted"
)

// announce tells the world how an Update ended.
func (r *Reconciler) announce(stack *pulumiv1.Stack, last *pulumiv1.StackUpdateStatus, update *autov1alpha1.Update) {
	metadata := metadataOf(last.Revision, last.LastAttemptedCommit, update)
	// Flux's git providers set a commit status for a success only when they are asked to.
	metadata[pulumiv1.GroupVersion.Group+"/"+eventv1.MetaCommitStatusKey] = eventv1.MetaCommitStatusUpdateValue
	switch {
	case last.Conflicts > 1:
		// The first one was told.
	case last.Conflicts == 1:
		r.AnnotatedEventf(stack, metadata, corev1.EventTypeWarning, eventUpdateConflict, "%s waits for the lock of the stack: %s", last.Type, last.Message)
	case update.WasInterrupted():
		r.AnnotatedEventf(stack, metadata, corev1.EventTypeWarning, eventUpdateInterrupted, "%s was interrupted and will be repeated: %s", last.Type, last.Message)
	case last.State == pulumiv1.StackUpdateFailed:
		r.AnnotatedEventf(stack, metadata, corev1.EventTypeWarning, eventUpdateFailure, "%s failed: %s", last.Type, last.Message)
	default:
		r.AnnotatedEventf(stack, metadata, corev1.EventTypeNormal, eventUpdateSuccess, "%s succeeded: %s%s", last.Type, describeChanges(last.ResourceChanges), describeApplied(last))
	}
}

// announceUnmatched tells, once per update, which paths of the spec the source does not have. It is not an error, because they may
// come later, and often it is a mistake.
func (r *Reconciler) announceUnmatched(o *observation) {
	if len(o.content.unmatched) > 0 {
		r.Eventf(o.stack, corev1.EventTypeWarning, eventPathUnmatched, "spec.sourcePaths: nothing in %s matches %q",
			describeRevision(o.artifact), o.content.unmatched)
	}
}

// eventMetadata names the revision and the operation, under the keys that notification-controller hands on.
func eventMetadata(artifact *source.Artifact, update *autov1alpha1.Update) map[string]string {
	if artifact == nil {
		return metadataOf("", "", update)
	}
	return metadataOf(artifact.Revision, artifact.Digest, update)
}

func metadataOf(revision, digest string, update *autov1alpha1.Update) map[string]string {
	metadata := map[string]string{pulumiv1.GroupVersion.Group + "/token": string(update.UID)}
	if revision != "" {
		metadata[pulumiv1.GroupVersion.Group+"/revision"] = revision
	}
	if digest != "" {
		metadata[pulumiv1.GroupVersion.Group+"/digest"] = digest
	}
	return metadata
}

func describeApplied(last *pulumiv1.StackUpdateStatus) string {
	if last.Revision == "" {
		return ""
	}
	return ", revision " + last.Revision
}

// stallEvent is the event reason for a condition reason: the spec's problems have an event of their own.
func stallEvent(reason string) string {
	if reason == pulumiv1.SpecInvalidReason {
		return eventConfigInvalid
	}
	return reason
}

// stalledFor tells whether the Stack already shows this very problem, so that no event repeats it.
func stalledFor(stack *pulumiv1.Stack, d decision) bool {
	stalled := conditions.Get(stack, meta.StalledCondition)
	return stalled != nil && stalled.Reason == d.reason && stalled.Message == d.message && stalled.ObservedGeneration == stack.Generation
}

// describeChanges lists resource operations in a fixed order.
func describeChanges(changes map[string]int64) string {
	text := ""
	for _, operation := range []string{"create", "update", "replace", "delete", "same"} {
		if count := changes[operation]; count > 0 {
			text += fmt.Sprintf("%s%d %s", separator(text), count, operation)
		}
	}
	if text == "" {
		return "no resource changed"
	}
	return text
}

func separator(text string) string {
	if text == "" {
		return ""
	}
	return ", "
}
