package stack

import (
	"context"
	"fmt"
	"maps"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/utils/ptr"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"

	eventv1 "github.com/fluxcd/pkg/apis/event/v1"

	autov1alpha1 "github.com/stack-controller/stack-controller/api/auto/v1alpha1"
	pulumiv1 "github.com/stack-controller/stack-controller/api/pulumi/v1"
	"github.com/stack-controller/stack-controller/internal/plaintext"
	"github.com/stack-controller/stack-controller/internal/report/events"
	"github.com/stack-controller/stack-controller/internal/steps"
	"github.com/stack-controller/stack-controller/internal/urn"
)

// resyncMessage says why an update starts that nothing but the time asked for.
const resyncMessage = "Resync time elapsed"

// Event reasons. Whether a problem that the status still shows is announced again is decided in events_problem.go.
const (
	eventConfigInvalid     = "StackConfigInvalid"
	eventPathUnmatched     = "SourcePathUnmatched"
	eventUpdateConflict    = "StackUpdateConflictDetected"
	eventUpdateDetected    = "StackUpdateDetected"
	eventUpdateFailure     = "StackUpdateFailure"
	eventUpdateInterrupted = "StackUpdateInterrupted"
	eventUpdateRemoved     = "UnknownUpdateRemoved"
	eventUpdateSuccess     = "StackCreated"
	eventPlanApproved      = "PlanApproved"
	eventRecovered         = "StackRecovered"
	eventStackLeft         = "PulumiStackLeft"
	eventStackReleased     = "StackReleased"
	eventWorkspaceDeleted  = "WorkspaceDeleted"
)

const (
	// maxEventChanges and maxEventChangesText bound the changes that an event lists for a preview, in resources and in bytes. The message of a
	// Kubernetes event has at most 1,024 bytes.
	maxEventChanges     = 20
	maxEventChangesText = 700
)

// announceResult records an event about how an Update ended, unless that is quiet.
func (r *Reconciler) announceResult(
	ctx context.Context, stack *pulumiv1.Stack, earlier, last *pulumiv1.StackUpdateStatus, update *autov1alpha1.Update,
) {
	if isQuiet(earlier, last, update) {
		return
	}
	metadata := eventMetadata(last.Revision, last.LastAttemptedCommit, update)
	// Flux's git providers set a commit status for an event that names a commit. The other way to get a commit status, the key commit_status,
	// would keep the event away from every chat.
	if commit := events.CommitRevision(commitOfUpdate(update)); commit != "" {
		metadata[eventv1.Group+"/"+eventv1.MetaCommitKey] = commit
	}
	kind, reason, message := corev1.EventTypeWarning, eventUpdateFailure, "failed: "+last.Message
	switch {
	case last.Conflicts > 1:
		return // There was an event about the first one.
	case last.Conflicts == 1:
		reason, message = eventUpdateConflict, "waits for the lock of the stack: "+last.Message
	case isAwaiting(last) && isAwaiting(earlier):
		return // The same.
	case isAwaiting(last):
		kind, reason, message = corev1.EventTypeNormal, pulumiv1.AwaitingResourcesReason, "waits for resources: "+last.Message
	case update.WasInterrupted():
		reason, message = eventUpdateInterrupted, "was interrupted"+describeRepetition(stack)+": "+last.Message
	case last.State != pulumiv1.StackUpdateFailed:
		kind, reason = corev1.EventTypeNormal, eventUpdateSuccess
		message = "succeeded: " + describeChanges(last.ResourceChanges) + describeApplied(last) + r.previewedResources(ctx, update)
	}
	if last.Conflicts > 0 || update.WasInterrupted() || isAwaiting(last) {
		metadata = withoutRevision(metadata)
	}
	r.AnnotatedEventf(stack, metadata, kind, reason, "%s %s", last.Type, message)
}

// isQuiet reports whether there is no event about how an Update ended: a resync that found nothing to do, after an update that succeeded. Its start
// was announced, and nothing is different now.
func isQuiet(earlier, last *pulumiv1.StackUpdateStatus, update *autov1alpha1.Update) bool {
	return changesNothing(earlier, last) && ptr.Deref(update.Spec.Message, "") == resyncMessage
}

// announcesSuccess reports whether there is an event that the Update succeeded.
func (e *endedUpdate) announcesSuccess() bool {
	return !e.planned && e.result.State == pulumiv1.StackUpdateSucceeded && !isQuiet(e.earlier, e.result, e.update)
}

// withoutRevision returns the metadata of an event that says nothing about what the commit contains: Flux's git providers set the status of the
// commit, or else of the revision, that an event names.
func withoutRevision(metadata map[string]string) map[string]string {
	token := pulumiv1.GroupVersion.Group + "/" + eventv1.MetaTokenKey
	return map[string]string{token: metadata[token]}
}

// changesNothing reports whether an update changed no resource and not whether the Stack is up to date.
func changesNothing(earlier, last *pulumiv1.StackUpdateStatus) bool {
	if earlier == nil || earlier.State != pulumiv1.StackUpdateSucceeded || last.State != pulumiv1.StackUpdateSucceeded {
		return false
	}
	// A resource that was only read has other outputs.
	for _, count := range steps.Counts(last.ResourceChanges) {
		if count.Name != steps.Same {
			return false
		}
	}
	return earlier.LastAttemptedCommit == last.LastAttemptedCommit && earlier.Type == last.Type
}

// describeRepetition returns what a message about an interrupted update adds about its repetition. The update of a Stack that was deleted
// meanwhile is not repeated: the deletion decides what follows.
func describeRepetition(stack *pulumiv1.Stack) string {
	if stack.DeletionTimestamp.IsZero() {
		return " and will be repeated"
	}
	return ""
}

// announcePlan records an event when a plan is out of date, or when a plan is carried out without waiting, because it needs no approval or
// has those of an earlier plan. awaitApproval records the event about a plan that waits for approval.
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

// announceStart records an event about why an Update starts, with the message of the decision (decideOnTrigger; describeDrift for a
// correction), and one about paths of the spec that the source does not have. Such paths are not an error, because the files may be added
// later, but often they are a mistake.
func (r *Reconciler) announceStart(o *observation, d decision, update *autov1alpha1.Update) {
	revision, digest := "", ""
	if o.artifact != nil {
		revision, digest = o.artifact.Revision, o.artifact.Digest
	}
	// Attempts that follow a conflict on the same inputs have no events.
	if last := o.stack.Status.LastUpdate; d.fresh || last == nil || last.Conflicts == 0 {
		r.AnnotatedEventf(o.stack, eventMetadata(revision, digest, update), corev1.EventTypeNormal, eventUpdateDetected, "%s", d.message)
	}
	r.announceLeft(o.stack, d)
	if len(o.content.unmatched) > 0 {
		r.Eventf(o.stack, corev1.EventTypeNormal, eventPathUnmatched, "spec.sourcePaths: nothing in %s matches %q",
			describeRevision(o.artifact), o.content.unmatched)
	}
}

// warn returns an outcome that records the event once the status is written, unless that problem is known.
func (r *Reconciler) warn(stack *pulumiv1.Stack, known bool, reason, message string) (result outcome) {
	result.announcesProblem = true
	if !known {
		result.addEvent(func() { r.Event(stack, corev1.EventTypeWarning, reason, message) })
	}
	return result
}

// eventMetadata returns the revision and the operation, under the keys that notification-controller forwards.
func eventMetadata(revision, digest string, update *autov1alpha1.Update) map[string]string {
	group := pulumiv1.GroupVersion.Group + "/"
	metadata := map[string]string{
		group + "token": string(update.UID), group + eventv1.MetaRevisionKey: revision, group + eventv1.MetaDigestKey: digest,
		group + eventv1.MetaOriginRevisionKey: events.OriginRevision(revision, commitOfUpdate(update)),
	}
	maps.DeleteFunc(metadata, func(_, value string) bool { return value == "" })
	return metadata
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

// previewedResources lists what a preview would change, one resource in each line: reviewers of a pull request read the event as a comment.
// It reads the changes from the API server, because the cache leaves them out.
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

// describeResources lists changes of resources, one in each line.
func describeResources(changes []autov1alpha1.ResourceChange, omitted int64) string {
	text := &strings.Builder{}
	for i, change := range changes {
		words := strings.Fields(plaintext.Strip(change.Operation + " " + urn.Type(change.URN) + " " + urn.Name(change.URN)))
		line := strings.Join(words, " ")
		if i == maxEventChanges || text.Len()+len(line) > maxEventChangesText {
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

// describeChanges lists the numbers of steps by their kind.
func describeChanges(changes map[string]int64) string {
	var counts []string
	for _, count := range steps.Counts(changes) {
		counts = append(counts, fmt.Sprintf("%d %s", count.Steps, count.Name))
	}
	if len(counts) == 0 {
		return "no resource changed"
	}
	return strings.Join(counts, ", ")
}
