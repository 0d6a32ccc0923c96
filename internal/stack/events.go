package stack

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"maps"
	"strings"

	corev1 "k8s.io/api/core/v1"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"

	eventv1 "github.com/fluxcd/pkg/apis/event/v1beta1"

	autov1alpha1 "github.com/stack-controller/stack-controller/api/auto/v1alpha1"
	pulumiv1 "github.com/stack-controller/stack-controller/api/pulumi/v1"
	"github.com/stack-controller/stack-controller/internal/plaintext"
	"github.com/stack-controller/stack-controller/internal/urn"
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
	eventPlanApproved      = "PlanApproved"
	eventStackReleased     = "StackReleased"
	eventWorkspaceDeleted  = "WorkspaceDeleted"
)

const (
	// maxToldChanges and maxToldText bound what an event lists of a preview, in resources and in bytes. An event of Kubernetes has 1,024 bytes.
	maxToldChanges = 20
	maxToldText    = 700
)

// announceResult tells how an Update ended.
func (r *Reconciler) announceResult(ctx context.Context, stack *pulumiv1.Stack, last *pulumiv1.StackUpdateStatus, update *autov1alpha1.Update) {
	metadata := eventMetadata(last.Revision, last.LastAttemptedCommit, update)
	// Flux's git providers set a commit status for an event that names a commit. The other way to ask for one, the key commit_status, would
	// keep the event from every chat.
	if commit := commitRevision(commitOfUpdate(update)); commit != "" {
		metadata[eventv1.Group+"/"+eventv1.MetaCommitKey] = commit
	}
	kind, reason, message := corev1.EventTypeWarning, eventUpdateFailure, "failed: "+last.Message
	switch {
	case last.Conflicts > 1:
		return // The first one was told.
	case last.Conflicts == 1:
		reason, message = eventUpdateConflict, "waits for the lock of the stack: "+last.Message
	case update.WasInterrupted():
		reason, message = eventUpdateInterrupted, "was interrupted"+describeRepetition(stack)+": "+last.Message
	case last.State != pulumiv1.StackUpdateFailed:
		kind, reason = corev1.EventTypeNormal, eventUpdateSuccess
		message = "succeeded: " + describeChanges(last.ResourceChanges) + describeApplied(last) + r.previewedResources(ctx, update)
	}
	r.AnnotatedEventf(stack, metadata, kind, reason, "%s %s", last.Type, message)
}

// describeRepetition says what follows an interrupted update. That of a Stack that was deleted meanwhile is followed by what its deletion asks for.
func describeRepetition(stack *pulumiv1.Stack) string {
	if stack.DeletionTimestamp.IsZero() {
		return " and will be repeated"
	}
	return ""
}

// announcePlan tells that a plan is out of date, or that one is carried out which needs no approval. That one waits for approval is told by
// awaitApproval.
func (r *Reconciler) announcePlan(stack *pulumiv1.Stack, update *autov1alpha1.Update) {
	plan := stack.Status.Plan
	switch {
	case plan == nil:
	case update.WasStale():
		r.AnnotatedEventf(stack, planMetadata(plan), corev1.EventTypeNormal, pulumiv1.PlanStaleReason,
			"plan %s is out of date, and another one is made: %s", plan.Name, update.Status.Message)
	case plan.State == pulumiv1.PlanApproved:
		r.AnnotatedEventf(stack, planMetadata(plan), corev1.EventTypeNormal, eventPlanApproved, "plan %s (%s) is carried out %s",
			plan.Name, plan.Summary, describeApprovers(plan, stack.Spec.Approval))
	}
}

// announceStart tells why an Update starts, and which paths of the spec the source does not have. The latter is not an error, because they
// may come later, and often it is a mistake.
func (r *Reconciler) announceStart(o *observation, d decision, update *autov1alpha1.Update) {
	revision, digest := "", ""
	if o.artifact != nil {
		revision, digest = o.artifact.Revision, o.artifact.Digest
	}
	// Attempts that follow a conflict on the same inputs have no events.
	if last := o.stack.Status.LastUpdate; d.fresh || last == nil || last.Conflicts == 0 {
		r.AnnotatedEventf(o.stack, eventMetadata(revision, digest, update), corev1.EventTypeNormal, eventUpdateDetected, "%s", d.message)
	}
	if len(o.content.unmatched) > 0 {
		r.Eventf(o.stack, corev1.EventTypeWarning, eventPathUnmatched, "spec.sourcePaths: nothing in %s matches %q",
			describeRevision(o.artifact), o.content.unmatched)
	}
}

// warn returns an outcome that records the event once the status is written, unless that problem is known.
func (r *Reconciler) warn(stack *pulumiv1.Stack, known bool, reason, message string) (result outcome) {
	if !known {
		result.addEvent(func() { r.Event(stack, corev1.EventTypeWarning, reason, message) })
	}
	return result
}

// eventMetadata names the revision and the operation, under the keys that notification-controller hands on.
func eventMetadata(revision, digest string, update *autov1alpha1.Update) map[string]string {
	group := pulumiv1.GroupVersion.Group + "/"
	metadata := map[string]string{
		group + "token": string(update.UID), group + eventv1.MetaRevisionKey: revision, group + eventv1.MetaDigestKey: digest,
		group + eventv1.MetaOriginRevisionKey: originRevision(revision, commitOfUpdate(update)),
	}
	maps.DeleteFunc(metadata, func(_, value string) bool { return value == "" })
	return metadata
}

// commitRevision is the git commit, as Flux writes one in a revision; empty when none is known.
func commitRevision(commit *autov1alpha1.CommitInfo) string {
	switch {
	case commit == nil || commit.SHA == "":
		return ""
	case len(commit.SHA) == hex.EncodedLen(sha256.Size):
		return "sha256:" + commit.SHA
	}
	return "sha1:" + commit.SHA
}

// originRevision is the git commit that an artifact of the revision was made from, when the revision does not name it, as those of other
// sources than git repositories do not.
func originRevision(revision string, commit *autov1alpha1.CommitInfo) string {
	if origin := commitRevision(commit); !strings.HasSuffix(revision, origin) {
		return origin
	}
	return ""
}

func commitOfUpdate(update *autov1alpha1.Update) *autov1alpha1.CommitInfo {
	if update.Spec.Source == nil {
		return nil
	}
	return update.Spec.Source.Commit
}

func describeApplied(last *pulumiv1.StackUpdateStatus) string {
	if last.Revision == "" {
		return ""
	}
	return ", revision " + last.Revision
}

// previewedResources lists what a preview would change, in a line for each resource: whoever reviews a pull request reads the event as a
// comment. The cache does not have it.
func (r *Reconciler) previewedResources(ctx context.Context, update *autov1alpha1.Update) string {
	if update.Spec.Type != autov1alpha1.UpdateTypePreview {
		return ""
	}
	live, err := r.liveUpdate(ctx, client.ObjectKeyFromObject(update))
	if err != nil {
		ctrl.LoggerFrom(ctx).Info("an event does not list what a preview would change", "update", update.Name, "error", err.Error())
	}
	if live == nil {
		return ""
	}
	return describeResources(live.Status.Changes, live.Status.OmittedChanges)
}

// describeResources lists changes of resources, each in a line of its own.
func describeResources(changes []autov1alpha1.ResourceChange, omitted int64) string {
	text := &strings.Builder{}
	for i, change := range changes {
		words := strings.Fields(plaintext.Strip(change.Operation + " " + urn.Type(change.URN) + " " + urn.Name(change.URN)))
		line := strings.Join(words, " ")
		if i == maxToldChanges || text.Len()+len(line) > maxToldText {
			omitted += int64(len(changes) - i)
			break
		}
		fmt.Fprintf(text, "\n- %s", line)
	}
	if omitted > 0 {
		fmt.Fprintf(text, "\n- and %d more", omitted)
	}
	return text.String()
}

// describeChanges lists resource operations in a fixed order.
func describeChanges(changes map[string]int64) string {
	var counts []string
	for _, operation := range []string{"create", "update", "replace", "delete", "same"} {
		if count := changes[operation]; count > 0 {
			counts = append(counts, fmt.Sprintf("%d %s", count, operation))
		}
	}
	if len(counts) == 0 {
		return "no resource changed"
	}
	return strings.Join(counts, ", ")
}
