package stack

import (
	"cmp"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"strconv"
	"strings"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	autov1alpha1 "github.com/stack-controller/stack-controller/api/auto/v1alpha1"
	pulumiv1 "github.com/stack-controller/stack-controller/api/pulumi/v1"
	"github.com/stack-controller/stack-controller/internal/controller/inputs"
	"github.com/stack-controller/stack-controller/internal/references"
	"github.com/stack-controller/stack-controller/internal/report/events"
	"github.com/stack-controller/stack-controller/internal/source"
)

// The status has the inputs of up to three updates: the current one, the last one, and the plan. What the inputs of a Stack are, when those
// of an update differ from them, and how an Update records them, is decided here only.

// namedReferences is how many changed Secrets and ConfigMaps the message of an update names at most.
const namedReferences = 3

// namedInputs is how many changed inputs the message of an update names at most.
const namedInputs = 3

// inputsNow returns the inputs that the Stack has now, as far as they were observed.
func inputsNow(o *observation) pulumiv1.UpdateInputs {
	now := pulumiv1.UpdateInputs{
		Generation: o.stack.Generation, SpecDigest: specDigest(o.stack), Commit: commitOf(o.artifact),
		ContentDigest: o.content.digest, ReferencesDigest: references.Digest(o.references),
	}
	if o.artifact != nil {
		now.Revision = o.artifact.Revision
	}
	switch last := o.stack.Status.LastUpdate; {
	case len(o.inputs.values) > 0:
		now.InputValuesDigest, now.InputVersionsDigest = inputs.Digest(o.inputs.values), o.inputs.versions
	case last != nil && last.Generation == o.stack.Generation:
		now.InputValuesDigest, now.InputVersionsDigest = last.InputValuesDigest, last.InputVersionsDigest // as far as that is known
	}
	return now
}

// inputAnnotations are the annotations of an Update with its inputs. The generation is a number, and the commit and the revision are in the
// specification of the Update.
var inputAnnotations = map[string]func(*pulumiv1.UpdateInputs) *string{
	pulumiv1.SpecDigestAnnotation:          func(inputs *pulumiv1.UpdateInputs) *string { return &inputs.SpecDigest },
	pulumiv1.ContentDigestAnnotation:       func(inputs *pulumiv1.UpdateInputs) *string { return &inputs.ContentDigest },
	pulumiv1.ReferencesDigestAnnotation:    func(inputs *pulumiv1.UpdateInputs) *string { return &inputs.ReferencesDigest },
	pulumiv1.InputValuesDigestAnnotation:   func(inputs *pulumiv1.UpdateInputs) *string { return &inputs.InputValuesDigest },
	pulumiv1.InputVersionsDigestAnnotation: func(inputs *pulumiv1.UpdateInputs) *string { return &inputs.InputVersionsDigest },
}

// annotateInputs records the inputs on the Update that is created for them.
func annotateInputs(update *autov1alpha1.Update, inputs pulumiv1.UpdateInputs) {
	metav1.SetMetaDataAnnotation(&update.ObjectMeta, pulumiv1.StackGenerationAnnotation, strconv.FormatInt(inputs.Generation, 10))
	for annotation, field := range inputAnnotations {
		if value := *field(&inputs); value != "" {
			metav1.SetMetaDataAnnotation(&update.ObjectMeta, annotation, value)
		}
	}
}

// annotatedInputs returns the inputs that the Update was created for. Whoever may edit Updates can change them, so it is only for an Update
// that the controller has just created, or whose record in the status was lost.
func annotatedInputs(update *autov1alpha1.Update) (inputs pulumiv1.UpdateInputs) {
	// An annotation that is not a number counts as no generation, so that the next reconcile starts a new update.
	inputs.Generation, _ = strconv.ParseInt(update.Annotations[pulumiv1.StackGenerationAnnotation], 10, 64)
	for annotation, field := range inputAnnotations {
		*field(&inputs) = update.Annotations[annotation]
	}
	if from := update.Spec.Source; from != nil {
		inputs.Commit, inputs.Revision = source.CommitOf(from), from.Revision
	}
	return inputs
}

// newInputs returns why an update with the recorded inputs is not up to date, as the message of the next one says it: the Stack has other
// inputs now, or somebody asks for an update (requests.go). It is empty when the update is up to date, as far as that was observed, see contentMatters.
func newInputs(o observation, recorded pulumiv1.UpdateInputs) (why string) {
	switch {
	case recorded.Generation != o.stack.Generation:
		return fmt.Sprintf("New stack generation: %d", o.stack.Generation)
	case forceRequested(o.stack):
		return forcedRequestTrigger + fmt.Sprintf("%q", requestedAt(o.stack))
	case unhandledRequest(o.stack) != "":
		return syncRequestTrigger + fmt.Sprintf("%q", unhandledRequest(o.stack))
	case newContent(o, recorded):
		return newCommitTrigger + describeRevision(o.artifact)
	}
	return cmp.Or(newReferences(o, recorded), newInputValues(o, recorded))
}

// What the reason for an update begins with that only the source asks for, that an annotation asks for, and that one asks for which forces it.
const (
	newCommitTrigger     = "New commit detected: "
	syncRequestTrigger   = "Sync request: "
	forcedRequestTrigger = "Forced sync request: "
)

// newContent reports whether the source offers something else than the recorded inputs. If that depends on content that was not observed
// yet, it returns false: see contentMatters. A destroy does not depend on new content.
func newContent(o observation, recorded pulumiv1.UpdateInputs) bool {
	switch {
	case !o.stack.DeletionTimestamp.IsZero():
		return false
	case contentMatters(o, recorded):
		return o.content.digest != "" && o.content.digest != recorded.ContentDigest
	}
	return recorded.Commit != commitOf(o.artifact) || o.artifact != nil && isNewRevision(o.stack, recorded, o.artifact.Revision)
}

// contentMatters reports whether there is a new commit whose content decides whether there is an update. It returns false if the content is
// not recorded, and for a Stack that uses the whole artifact (usesWholeArtifact): a new commit updates such a Stack in any case.
func contentMatters(o observation, recorded pulumiv1.UpdateInputs) bool {
	return o.artifact != nil && recorded.ContentDigest != "" && recorded.Commit != commitOf(o.artifact) && !usesWholeArtifact(o.stack)
}

// usesWholeArtifact reports whether every change of the artifact is a change of the Stack. A Program is one file, and a Stack may ask for
// an update with every revision.
func usesWholeArtifact(stack *pulumiv1.Stack) bool {
	ofProgram := stack.Spec.ProgramRef != nil && stack.Spec.FluxSource == nil && !stack.HasGitSource()
	return ofProgram || stack.Spec.UpdateOn == pulumiv1.UpdateOnRevision
}

// isNewRevision reports whether the Stack asks for an update with every revision, and the revision is not the recorded one.
func isNewRevision(stack *pulumiv1.Stack, recorded pulumiv1.UpdateInputs, revision string) bool {
	return stack.Spec.UpdateOn == pulumiv1.UpdateOnRevision && recorded.Revision != "" && recorded.Revision != revision
}

// newReferences returns a message that names the Secrets and ConfigMaps with a version that is not recorded; empty if there are none. A
// deleted object is not a change: what was deployed stays as it is. If no version is recorded, nothing was watched then, and it is not a
// change that objects are watched now.
func newReferences(o observation, recorded pulumiv1.UpdateInputs) string {
	if recorded.ReferencesDigest == "" {
		return ""
	}
	changed := references.NotIn(o.references, recorded.ReferencesDigest)
	if len(changed) == 0 {
		return ""
	}
	var names []string
	for _, version := range changed[:min(len(changed), namedReferences)] {
		names = append(names, fmt.Sprintf("%s %q", version.Kind, version.Name))
	}
	if more := len(changed) - len(names); more > 0 {
		names = append(names, fmt.Sprintf("and %d more", more))
	}
	return "Referenced Secret or ConfigMap changed: " + strings.Join(names, ", ")
}

// repeats reports whether the running update has the inputs of the last one, and the Stack has not been edited since.
func repeats(stack *pulumiv1.Stack) bool {
	last, current := stack.Status.LastUpdate, stack.Status.CurrentUpdate
	if last == nil || current == nil || !stack.DeletionTimestamp.IsZero() {
		return false
	}
	requested := last.ReconcileRequest != current.ReconcileRequest || current.RequestedAt != "" || current.LastUpdateRequest != ""
	return !requested && last.Generation == stack.Generation && areRepeated(stack, last.Inputs(), current.UpdateInputs)
}

// areRepeated reports whether an update with the later inputs does what an update with the earlier ones did. Of equal commits, the content
// is equal as well, and of equal generations the specification.
func areRepeated(stack *pulumiv1.Stack, earlier, later pulumiv1.UpdateInputs) bool {
	newValues := earlier.InputValuesDigest != later.InputValuesDigest
	newReferences := earlier.ReferencesDigest != "" && !references.Covers(earlier.ReferencesDigest, later.ReferencesDigest)
	return earlier.Generation == later.Generation && earlier.Commit == later.Commit && !newReferences && !newValues &&
		!isNewRevision(stack, earlier, later.Revision)
}

// acceptInputs records that the last attempt covers the current inputs, too. The current revision has the same content, and the current
// versions of Secrets that were not watched during the attempt are those that later versions are compared with.
func acceptInputs(o *observation) {
	status := &o.stack.Status
	if last := status.LastUpdate; last != nil && last.ReferencesDigest == "" {
		last.ReferencesDigest = references.Digest(o.references)
	}
	acceptInputVersions(o)
	if o.artifact == nil || o.held != nil || !o.stack.DeletionTimestamp.IsZero() {
		return
	}
	status.LastAttemptedRevision = o.artifact.Revision
	status.LastUpdate.LastAttemptedCommit = commitOf(o.artifact)
	if status.LastUpdate.State != pulumiv1.StackUpdateSucceeded {
		return
	}
	status.LastUpdate.LastSuccessfulCommit = commitOf(o.artifact)
	if status.LastUpdate.Type != autov1alpha1.UpdateTypePreview {
		status.LastAppliedRevision = o.artifact.Revision
		status.LastAppliedOriginRevision = events.OriginRevision(o.artifact.Revision, o.artifact.Origin.Commit)
	}
}

// acceptUnchanged records that the last attempt covers a new commit with the same content, although something else that the Stack waits with is
// due: a Stack that depends on this one, or its StackRollout, need not wait for that. A plan of what is deployed stays one of what is deployed.
func acceptUnchanged(o *observation) {
	status := &o.stack.Status
	last, deployed := status.LastUpdate, status.LastAppliedRevision
	if last == nil || !o.stack.DeletionTimestamp.IsZero() || !contentMatters(*o, last.Inputs()) || o.content.digest != last.ContentDigest {
		return
	}
	acceptInputs(o)
	if plan := status.Plan; plan != nil && deployed != "" && plan.Revision == deployed {
		plan.Revision = status.LastAppliedRevision
	}
}

// acceptCommit records that the plan covers the commit that the source has now. The plan is not void, so the content of both is the same. A
// StackRollout gives a turn to a Stack with an approved plan of its target. What is deployed needs no turn, so its plan keeps the revision.
func acceptCommit(o *observation) {
	if o.artifact == nil || !o.stack.DeletionTimestamp.IsZero() {
		return
	}
	plan := o.stack.Status.Plan
	plan.Commit = commitOf(o.artifact)
	if plansNewRevision(o.stack) {
		plan.Revision = o.artifact.Revision
	}
}

// specDigest identifies what the specification says. Fields that are false, zero or empty count as absent where the API does not
// distinguish them from absent ones; configuration is the user's own data and counts as it is. spec.drift, spec.approval, spec.outputs,
// spec.shareOutputs, spec.rolloutRef and spec.windows do not count, because a change of them needs no update.
//
// A new generation does not always mean that the specification has changed: the Pulumi Kubernetes Operator drops the fields that are false,
// zero or empty when it adds its finalizer, and the next apply of the manifest brings them back.
func specDigest(stack *pulumiv1.Stack) string {
	spec := stack.Spec
	spec.Drift, spec.Approval, spec.Outputs, spec.ShareOutputs, spec.RolloutRef, spec.Windows = nil, nil, nil, nil, nil, nil
	content, err := json.Marshal(spec)
	if err != nil {
		// This cannot happen: the specification was decoded from JSON. An empty digest counts as none.
		return ""
	}
	sum := sha256.Sum256(content)
	return hex.EncodeToString(sum[:8])
}

// followGeneration sets the generation of the updates and the plan that were made for an equal specification to the generation that the
// Stack has now. A deletion also increases the generation, but it asks for something else.
func followGeneration(stack *pulumiv1.Stack) {
	if !stack.DeletionTimestamp.IsZero() || stack.Spec.Suspend {
		return
	}
	follow := func(recorded *pulumiv1.InputsWithoutCommit) {
		if recorded.Generation != stack.Generation && recorded.SpecDigest != "" && recorded.SpecDigest == specDigest(stack) {
			recorded.Generation = stack.Generation
		}
	}
	status := &stack.Status
	if status.LastUpdate != nil {
		follow(&status.LastUpdate.InputsWithoutCommit)
	}
	if status.Plan != nil {
		follow(&status.Plan.InputsWithoutCommit)
	}
	if status.CurrentUpdate != nil {
		follow(&status.CurrentUpdate.InputsWithoutCommit)
	}
}

// dropSpecDigest makes a Stack run once after it is resumed, even if its specification is the same then: the resources may be behind it.
func dropSpecDigest(stack *pulumiv1.Stack) {
	if last := stack.Status.LastUpdate; last != nil {
		last.SpecDigest = ""
	}
}

// translateCommits replaces a revision in the status by the digest of the artifact with this revision, because this controller records the
// digest as the commit.
func translateCommits(o *observation) {
	if o.artifact == nil || o.artifact.Revision == "" {
		return
	}
	commits := []*string{}
	if last := o.stack.Status.LastUpdate; last != nil {
		commits = append(commits, &last.LastAttemptedCommit, &last.LastSuccessfulCommit)
	}
	if current := o.stack.Status.CurrentUpdate; current != nil {
		commits = append(commits, &current.Commit)
	}
	for _, commit := range commits {
		if *commit == o.artifact.Revision {
			*commit = o.artifact.Commit()
		}
	}
}

// newInputValues returns a message that names the inputs whose values are not the recorded ones; empty if there are none, or if it is not
// known. inputs.ValueIDs hashes the values, and observeInputs reads them when an object has another version. What an update used is recorded by
// the Update controller (startAndFollow in internal/controller/update/act.go), and then by recordResult.
func newInputValues(o observation, recorded pulumiv1.UpdateInputs) string {
	if recorded.InputValuesDigest == "" && len(o.inputs.values) > 0 {
		return "The inputs of the last update are not known"
	}
	changed := inputs.Changed(o.inputs.values, recorded.InputValuesDigest)
	switch {
	case len(changed) == 0:
		return ""
	case len(changed) > namedInputs:
		changed = append(changed[:namedInputs], fmt.Sprintf("and %d more", len(changed)-namedInputs))
	}
	return "Input " + strings.Join(changed, ", ") + " changed"
}

// acceptInputVersions records that the values are the same in the versions that there are now, so that they are not read again.
func acceptInputVersions(o *observation) {
	if last := o.stack.Status.LastUpdate; last != nil && len(o.inputs.values) > 0 && newInputValues(*o, last.Inputs()) == "" {
		last.InputVersionsDigest = o.inputs.versions
	}
}
