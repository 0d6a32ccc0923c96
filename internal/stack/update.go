package stack

import (
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"strconv"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/fluxcd/pkg/apis/meta"

	autov1alpha1 "github.com/stack-controller/stack-controller/api/auto/v1alpha1"
	pulumiv1 "github.com/stack-controller/stack-controller/api/pulumi/v1"
	"github.com/stack-controller/stack-controller/internal/references"
	"github.com/stack-controller/stack-controller/internal/template"
)

// defaultUpdateTTL is how long a finished Update stays, unless the update template says otherwise.
const defaultUpdateTTL = 24 * time.Hour

// desiredUpdate is the Update for what was decided.
func desiredUpdate(o *observation, d decision) (*autov1alpha1.Update, error) {
	stack := o.stack
	update := &autov1alpha1.Update{
		Spec: updateSpec(o, d),
	}
	update, err := template.Update(update, stack.Spec.UpdateTemplate)
	if err != nil {
		return nil, fmt.Errorf("spec.updateTemplate: %w", err)
	}
	if d.kind == autov1alpha1.UpdateTypeDestroy {
		// Whatever is destroyed in part only is no proof that nothing is left.
		update.Spec.Target, update.Spec.TargetDependents = nil, nil
	}
	if mustExist(stack) {
		update.Spec.RequireStack = new(true)
	}
	update.Namespace = stack.Namespace
	update.Name = updateName(stack)
	for key, value := range labelsOf(stack) {
		metav1.SetMetaDataLabel(&update.ObjectMeta, key, value)
	}
	metav1.SetMetaDataAnnotation(&update.ObjectMeta, pulumiv1.StackGenerationAnnotation, strconv.FormatInt(stack.Generation, 10))
	if request := reconcileRequest(stack); request != "" {
		metav1.SetMetaDataAnnotation(&update.ObjectMeta, pulumiv1.ReconcileRequestAnnotation, request)
	}
	if token := requestedAt(stack); token != "" && token != stack.Status.LastHandledReconcileAt {
		metav1.SetMetaDataAnnotation(&update.ObjectMeta, meta.ReconcileRequestAnnotation, token)
	}
	if digest := references.Digest(o.references); digest != "" {
		metav1.SetMetaDataAnnotation(&update.ObjectMeta, pulumiv1.ReferencesDigestAnnotation, digest)
	}
	if o.content.digest != "" {
		metav1.SetMetaDataAnnotation(&update.ObjectMeta, pulumiv1.ContentDigestAnnotation, o.content.digest)
	}
	metav1.SetMetaDataAnnotation(&update.ObjectMeta, autov1alpha1.WorkspaceGenerationAnnotation, strconv.FormatInt(o.workspace.Generation, 10))
	update.Finalizers = []string{pulumiv1.Finalizer}
	update.OwnerReferences = ownersOf(o)
	return update, nil
}

func updateSpec(o *observation, d decision) autov1alpha1.UpdateSpec {
	stack := o.stack
	message := d.message + describeCommit(o, d)
	spec := autov1alpha1.UpdateSpec{
		WorkspaceName:     stack.Name,
		StackName:         stack.Spec.Stack,
		Type:              d.kind,
		Message:           &message,
		TTLAfterCompleted: &metav1.Duration{Duration: defaultUpdateTTL},
		Timeout:           stack.Spec.Timeout,
	}
	if o.artifact != nil {
		spec.Source = updateSource(o)
	}
	spec.Refresh = optional(stack.Spec.Refresh)
	spec.AfterInterruption = optional(unsettled(stack))
	if d.kind == autov1alpha1.UpdateTypeDestroy {
		spec.RunProgram = optional(stack.Spec.RunProgram)
		return spec
	}
	spec.ExpectNoRefreshChanges = optional(stack.Spec.ExpectNoRefreshChanges)
	spec.Target = stack.Spec.Targets
	spec.TargetDependents = optional(stack.Spec.TargetDependents)
	return spec
}

// updateSource names the artifact, and where it can be had again: an operation carries all its inputs.
func updateSource(o *observation) *autov1alpha1.UpdateSource {
	found := o.artifact
	from := &autov1alpha1.UpdateSource{
		Digest: found.Digest, Revision: found.Revision, Size: found.Size, Dir: o.desired.dir, Commit: found.CommitInfo,
	}
	switch {
	case found.Git != nil:
		from.Git = found.Git.DeepCopy()
		from.Git.Dir = ""
	case found.Program != nil:
		from.Program = found.Program
	default:
		from.URL = found.URL
	}
	return from
}

// describeCommit adds the first line of the commit message to why an update runs, where it runs the commit for the first time. It
// is how the history of the stack shows it: see the documentation of Stacks.
func describeCommit(o *observation, d decision) string {
	last := o.stack.Status.LastUpdate
	switch {
	case d.kind == autov1alpha1.UpdateTypeDestroy, o.artifact == nil, o.artifact.CommitInfo == nil, o.artifact.CommitInfo.Message == "",
		last != nil && last.LastAttemptedCommit == commitOf(o.artifact):
		return ""
	}
	return ": " + o.artifact.CommitInfo.Message
}

// ownersOf makes the Workspace the controller of the Update and the Stack its second owner: the history outlives the Workspace.
func ownersOf(o *observation) []metav1.OwnerReference {
	yes := true
	return []metav1.OwnerReference{
		*metav1.NewControllerRef(o.workspace, autov1alpha1.GroupVersion.WithKind(autov1alpha1.WorkspaceKind)),
		{APIVersion: pulumiv1.GroupVersion.String(), Kind: pulumiv1.StackKind, Name: o.stack.Name, UID: o.stack.UID, BlockOwnerDeletion: &yes},
	}
}

// updateName is made of the Update that was recorded last, and of nothing that the next one is for: only one can follow. Whoever decides
// after a crash, with an old cache, or while another controller leads already, finds the Update that exists instead of creating a second
// one, which would run after the first with inputs that are older.
func updateName(stack *pulumiv1.Stack) string {
	previous := ""
	if last := stack.Status.LastUpdate; last != nil {
		previous = last.Name
	}
	hash := sha256.Sum256([]byte(string(stack.UID) + "/" + previous))
	return stack.Name + "-" + hex.EncodeToString(hash[:])[:10]
}

// currentOf reads from an Update what the Stack's status says about it.
func currentOf(update *autov1alpha1.Update) *pulumiv1.CurrentStackUpdate {
	// Somebody else's annotation counts as no generation at all: then the next look starts a new update.
	generation, _ := strconv.ParseInt(update.Annotations[pulumiv1.StackGenerationAnnotation], 10, 64)
	current := &pulumiv1.CurrentStackUpdate{
		Generation:       generation,
		ReconcileRequest: update.Annotations[pulumiv1.ReconcileRequestAnnotation],
		RequestedAt:      update.Annotations[meta.ReconcileRequestAnnotation],
		Name:             update.Name,
		ContentDigest:    update.Annotations[pulumiv1.ContentDigestAnnotation],
		ReferencesDigest: update.Annotations[pulumiv1.ReferencesDigestAnnotation],
	}
	if from := update.Spec.Source; from != nil {
		current.Commit, current.Revision = from.Digest, from.Revision
		if from.Git != nil {
			current.Commit = from.Git.Ref
		}
	}
	return current
}

// optional leaves out what is the default.
func optional(value bool) *bool {
	if !value {
		return nil
	}
	return &value
}
