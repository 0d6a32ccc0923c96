package stack

import (
	"strings"
	"unicode/utf8"

	"github.com/fluxcd/pkg/apis/meta"
	"github.com/fluxcd/pkg/runtime/conditions"
	"k8s.io/apimachinery/pkg/api/equality"

	autov1alpha1 "github.com/stack-controller/stack-controller/api/auto/v1alpha1"
	pulumiv1 "github.com/stack-controller/stack-controller/api/pulumi/v1"
	"github.com/stack-controller/stack-controller/internal/controller/plans"
	"github.com/stack-controller/stack-controller/internal/plaintext"
)

// A status may have been written by another controller, or lost: backups leave it out, and it can be edited. It is corrected here, in
// memory, before anything is decided.

// repair corrects what the status says with what was observed, as far as that came.
func repair(o *observation) {
	if !o.readUpdates {
		return // nothing is known of its Updates, or they are being taken over
	}
	// First come what is deployed and which Update runs: the next steps change what the status says about them.
	restoreStatus(o)
	if !o.readAll {
		return
	}
	// A status of the Pulumi Kubernetes Operator gets the digests by which the steps after this one compare.
	adoptOperatorStatus(o)
	followGeneration(o.stack)
	followVerification(o)
	followOutputs(o)
}

// followVerification records in the status what Flux has verified, and forgets it when Flux refuses it. What the Stack has stays recorded: it may
// get the newest artifact later, or never, and its source says nothing any longer about an earlier one.
func followVerification(o *observation) {
	status := &o.stack.Status
	switch {
	case o.verified:
		var earlier []string
		for _, digest := range status.VerifiedDigests() {
			if digest != o.artifact.Digest && isInUse(status, digest) {
				earlier = append(earlier, digest)
			}
		}
		status.VerifiedDigest, status.EarlierVerifiedDigests = o.artifact.Digest, earlier
	case o.sourceProblem != nil && o.sourceProblem.Revoked:
		status.VerifiedDigest, status.EarlierVerifiedDigests = "", nil
	}
}

// isInUse reports whether the artifact with the digest is the one that the Stack ran last, or that its Update runs.
func isInUse(status *pulumiv1.StackStatus, digest string) bool {
	last, current := status.LastUpdate, status.CurrentUpdate
	return digest != "" && (last != nil && last.LastAttemptedCommit == digest || current != nil && current.Commit == digest)
}

// restoreStatus corrects the status where the annotations of the Stack, or its Updates, show that it is wrong or incomplete.
func restoreStatus(o *observation) {
	status := &o.stack.Status
	restoreDeployed(o.stack)
	restoreDeployedByOperator(o)
	keepLaterCondition(o.stack)
	if o.updateRemoved {
		forgetRemoved(status)
	}
	if o.update != nil && (status.CurrentUpdate == nil || madeForOthers(status.CurrentUpdate, o.update)) {
		// The controller that created the Update could not write the status, or did not have to yet. The conditions become what they would have
		// been.
		status.Deployed = status.Deployed || o.deployed
		setCurrent(o.stack, o.update)
		status.CurrentUpdate.First = !status.Deployed && o.update.Spec.Type == autov1alpha1.UpdateTypeUp
		status.Deployed = status.Deployed || mayHaveDeployed(o.stack, o.update)
		restoreInputs(o.stack, o.update)
		if !keepsReady(o.stack) && !failsRepeatedly(o.stack) {
			markProgressing(o.stack, describeProgress(nil, o.update))
		}
	}
	status.Deployed = status.Deployed || o.deployed
	if o.update != nil && !o.update.DeletionTimestamp.IsZero() && o.update.Status.NotRun {
		// The Update controller keeps the Update until the status says so: afterwards nothing else would.
		status.CurrentUpdate.Withdrawn = true
	}
}

// forgetRemoved records that the current Update is gone and has no result. Whoever deleted it, it may have run, because the controller can end
// before it records a start. Only if that is known not to be so, there is nothing that it has deployed or left half done.
func forgetRemoved(status *pulumiv1.StackStatus) {
	removed := status.CurrentUpdate
	status.CurrentUpdate = nil
	switch {
	case removed.Withdrawn && removed.First:
		status.Deployed = false
	case !removed.Withdrawn && status.LastUpdate != nil:
		status.LastUpdate.PendingOperations = true
	}
}

// madeForOthers reports whether the Update was made for other inputs than the status says, if that does not identify the Update. An Update of
// the Pulumi Kubernetes Operator does not record its inputs.
func madeForOthers(current *pulumiv1.CurrentStackUpdate, update *autov1alpha1.Update) bool {
	return current.UID == "" && update.Annotations[pulumiv1.SpecDigestAnnotation] != "" && !equality.Semantic.DeepEqual(current, currentOf(update))
}

// restoreInputs corrects what the status says about the current Update if that carries out the plan in the status: its inputs are those of
// the plan, whatever the annotations of the Update say.
func restoreInputs(stack *pulumiv1.Stack, update *autov1alpha1.Update) {
	current, plan := stack.Status.CurrentUpdate, stack.Status.Plan
	if plans.CarriedOutBy(update).Names(plan) {
		current.UpdateInputs, current.Drift = plan.UpdateInputs, plan.Drift
	}
}

// restoreDeployed restores from the annotation that the Stack has deployed something: otherwise its finalizer would be removed without a
// destroy.
func restoreDeployed(stack *pulumiv1.Stack) {
	status := &stack.Status
	deployed, known := stack.Annotations[pulumiv1.DeployedStackAnnotation]
	if !known || status.Deployed || wasDestroyed(status.LastUpdate) {
		return
	}
	status.Deployed = true
	if status.DeployedStack == "" {
		status.DeployedStack = deployed
	}
}

// restoreDeployedByOperator records that the Pulumi Kubernetes Operator may have deployed something: it wrote a status without a history, and Updates
// that the status names without their UIDs. That holds before the source is known, which a Stack that is being deleted may not have any more.
func restoreDeployedByOperator(o *observation) {
	status := &o.stack.Status
	if len(status.History) > 0 {
		return
	}
	last, current := status.LastUpdate, status.CurrentUpdate
	// A Stack that only previews may share its Pulumi stack with one that deploys. The operator never destroys for it.
	ran := last != nil && last.Type != autov1alpha1.UpdateTypePreview && !wasDestroyed(last)
	runs := current != nil && current.UID == "" && !o.stack.IsPreview() && (o.update == nil || !o.update.ChangesNothing())
	status.Deployed = status.Deployed || ran || runs
}

// keepLaterCondition keeps the later of the conditions Reconciling and Stalled when both are true. They exclude each other, but a
// controller that applies its own conditions leaves those of others.
func keepLaterCondition(stack *pulumiv1.Stack) {
	reconciling, stalled := conditions.Get(stack, meta.ReconcilingCondition), conditions.Get(stack, meta.StalledCondition)
	switch {
	case !conditions.IsTrue(stack, meta.ReconcilingCondition) || !conditions.IsTrue(stack, meta.StalledCondition):
	case stalled.LastTransitionTime.Before(&reconciling.LastTransitionTime):
		conditions.Delete(stack, meta.StalledCondition)
	default:
		conditions.Delete(stack, meta.ReconcilingCondition)
	}
}

// adoptOperatorStatus turns a status that the Pulumi Kubernetes Operator wrote into one of this controller, so that nothing runs merely
// because the controller changed. Such a status has no history: this controller never records an update without one.
func adoptOperatorStatus(o *observation) {
	status := &o.stack.Status
	translateCommits(o)
	last := status.LastUpdate
	if last == nil || len(status.History) > 0 {
		return
	}
	last.Message = readableMessage(last.Message)
	if hasSource(o.stack) && o.artifact == nil {
		return
	}
	metadata := map[string]string(nil)
	if o.artifact != nil && last.LastAttemptedCommit == o.artifact.Commit() {
		last.Revision = o.artifact.Revision
		metadata = historyMetadata(last.Revision)
	}
	if last.Generation == o.stack.Generation {
		last.SpecDigest = specDigest(o.stack)
	}
	status.History.Upsert(historyDigest(last.LastAttemptedCommit), last.LastResyncTime.Time, 0, string(last.State), metadata)
	// The operator does not know these annotations, so a value that is there already is no request.
	status.LastHandledReconcileAt, status.ObservedLastUpdateRequest = requestedAt(o.stack), lastUpdateRequest(o.stack)
	if status.Deployed && last.State == pulumiv1.StackUpdateSucceeded {
		status.DeployedStack = o.stack.Spec.Stack
	}
}

const (
	// maxMessage bounds the message of an update, in bytes.
	maxMessage = 4 << 10
	// maxSummary bounds the first line of a message of which a part is left out, in bytes.
	maxSummary = 256
	// leftOut stands for lines that a message leaves out.
	leftOut = "; …; "
)

// readableMessage turns the message of the Pulumi Kubernetes Operator, which is everything that the CLI printed, with escape sequences,
// into one line of a bounded size. The reason of a failure is at the end. Of a long message, readableMessage therefore keeps the first
// line, and the part from the last line that begins with "error:"; if that line is near the end, it keeps as much of the end as there is
// room for. A message that was made readable stays as it is.
func readableMessage(message string) string {
	var lines []string
	for line := range strings.Lines(plaintext.Strip(strings.ToValidUTF8(message, "\uFFFD"))) {
		if line = strings.TrimSpace(line); line != "" {
			lines = append(lines, line)
		}
	}
	whole := strings.Join(lines, "; ")
	if len(whole) <= maxMessage {
		return whole
	}
	summary := plaintext.Start(lines[0], maxSummary) + leftOut
	room := maxMessage - len(summary)
	from := len(whole) - room
	if lastError := strings.LastIndex("; "+whole, "; error:"); lastError > 0 {
		from = min(from, lastError)
	}
	for !utf8.RuneStart(whole[from]) {
		from++
	}
	return strings.TrimSpace(summary + plaintext.Start(whole[from:], room))
}
