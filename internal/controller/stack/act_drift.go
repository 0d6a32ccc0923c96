package stack

import (
	"context"
	"errors"
	"fmt"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/fluxcd/pkg/runtime/conditions"

	autov1alpha1 "github.com/stack-controller/stack-controller/api/auto/v1alpha1"
	pulumiv1 "github.com/stack-controller/stack-controller/api/pulumi/v1"
	"github.com/stack-controller/stack-controller/internal/patch"
	"github.com/stack-controller/stack-controller/internal/plaintext"
	"github.com/stack-controller/stack-controller/internal/source"
	"github.com/stack-controller/stack-controller/internal/template"
	"github.com/stack-controller/stack-controller/internal/urn"
)

const (
	// maxNamedResources is how many drifted resources a message names, and how many of the properties of each.
	maxNamedResources = 5
	// maxDriftText bounds such a message, in bytes.
	maxDriftText = 2 << 10
)

// isDriftCheck reports whether the Update was made to look for drift.
func isDriftCheck(update *autov1alpha1.Update) bool {
	return update.Labels[pulumiv1.ComponentLabel] == pulumiv1.ComponentDriftCheck
}

// isDriftCheckOf reports whether the Update is in the place of the one that looks for drift of the Stack. There is only one at a time.
func isDriftCheckOf(stack *pulumiv1.Stack, update *autov1alpha1.Update) bool {
	return update.Name == driftCheckName(stack) && stack.Owns(update) && isDriftCheck(update)
}

func driftCheckName(stack *pulumiv1.Stack) string { return stack.Name + "-drift" }

// onlyChecksDrift reports whether the Update compares the resources of the Stack with the state, and nothing else, as createDriftCheck asks
// for. It no longer does when the Stack has other resources, another program or another name in the backend since. Anybody who may create
// Updates can label one as a check, and drift that is corrected without an approval must not be something else.
func onlyChecksDrift(stack *pulumiv1.Stack, update *autov1alpha1.Update) bool {
	spec := &update.Spec
	options, err := driftOptions(stack)
	return err == nil && spec.Type == autov1alpha1.UpdateTypeRefresh && ptr.Deref(spec.PreviewOnly, false) && spec.StackName == stack.Spec.Stack &&
		isOfLastUpdate(stack, spec) &&
		equality.Semantic.DeepEqual(spec.Selection, options.Selection) &&
		!ptr.Deref(spec.RunProgram, false) && update.Generation <= 1
}

// isOfLastUpdate reports whether the check works from the state alone, or with the program that the Stack deployed last if that has providers.
func isOfLastUpdate(stack *pulumiv1.Stack, spec *autov1alpha1.UpdateSpec) bool {
	info, last := stack.Status.ProjectInfo, stack.Status.LastUpdate
	if spec.Source == nil {
		return spec.ProjectInfo != nil && ptr.Equal(spec.ProjectInfo, info)
	}
	return spec.ProjectInfo == nil && info != nil && info.NeedsProgram && last != nil && last.LastSuccessfulCommit == source.CommitOf(spec.Source) &&
		spec.Source.Dir == dirOf(stack)
}

// driftOptions returns the options of an update of the Stack. A check for drift is for the same resources, because an update corrects no others.
// The error means that spec.updateTemplate does not fit.
func driftOptions(stack *pulumiv1.Stack) (autov1alpha1.UpdateSpec, error) {
	update, err := template.Update(&autov1alpha1.Update{Spec: template.Options(stack)}, stack.Spec.UpdateTemplate)
	if err != nil {
		return autov1alpha1.UpdateSpec{}, fmt.Errorf("spec.updateTemplate: %w", err)
	}
	return update.Spec, nil
}

// actOnDrift carries out what was decided about drift. A step that fails is tried again later and affects nothing else.
func (r *Reconciler) actOnDrift(ctx context.Context, o *observation, d driftDecision, result *outcome) {
	if d.forget {
		o.stack.Status.Drift = nil
		conditions.Delete(o.stack, pulumiv1.DriftedCondition)
	}
	if d.begin {
		o.stack.Status.Drift = &pulumiv1.DriftStatus{FirstCheckTime: new(metav1.NewTime(o.now.Add(d.after)).Rfc3339Copy())}
	}
	var err error
	switch d.step {
	case driftStart:
		err = r.createDriftCheck(ctx, o)
	case driftRecord:
		result.after = soonest(result.after, outdatedInterval)
		if event := recordDrift(o); event != nil {
			result.addEvent(func() { event(r) })
		}
		// The next reconcile deletes the check, when it sees the result in the status. So no reconcile finds neither the check nor its result,
		// however late the cache is, and makes another check at once.
	case driftDiscard:
		err = r.deleteDriftCheck(ctx, o.driftCheck)
	}
	if err != nil {
		ctrl.LoggerFrom(ctx).Error(err, "cannot look for drift, trying again", "step", d.step)
		showCheckProblem(o.stack, err)
		d.after = r.WaitInterval
	}
	result.after = soonest(result.after, d.after)
}

// showCheckProblem shows why the controller cannot check for drift, if a human has to fix that.
func showCheckProblem(stack *pulumiv1.Stack, err error) {
	if errors.As(err, new(*notOwnedError)) && !goesByItself(err) || patch.IsRefused(err) {
		conditions.MarkUnknown(stack, pulumiv1.DriftedCondition, pulumiv1.DriftCheckFailedReason,
			"cannot look for changes that were made outside of Pulumi: %s", err)
	}
}

// createDriftCheck creates the Update that looks for drift. The Update uses the Workspace of the Stack and works from the state alone. It
// looks only at what an update of the Stack may correct.
func (r *Reconciler) createDriftCheck(ctx context.Context, o *observation) error {
	if err := r.applyWorkspace(ctx, o, o.artifact != nil); err != nil {
		return err
	}
	stack := o.stack
	options, err := driftOptions(stack)
	if err != nil {
		return err
	}
	check := &autov1alpha1.Update{
		Namespace: stack.Namespace, Name: driftCheckName(stack),
		Labels:          r.Shard.Follow(labelsOf(stack), stack),
		Annotations:     map[string]string{pulumiv1.DriftUpdateAnnotation: stack.Status.LastUpdate.Name},
		OwnerReferences: ownersOfUpdate(o),
		Spec: autov1alpha1.UpdateSpec{
			WorkspaceName: stack.Name, StackName: stack.Spec.Stack, Type: autov1alpha1.UpdateTypeRefresh,
			PreviewOnly: new(true), RequireStack: new(true), ProjectInfo: stack.Status.ProjectInfo,
			Selection: options.Selection,
			Timeout:   stack.Spec.Timeout,
		},
	}
	if info := stack.Status.ProjectInfo; info.NeedsProgram && o.artifact != nil && o.artifact.Commit() == stack.Status.LastUpdate.LastSuccessfulCommit {
		check.Spec.ProjectInfo, check.Spec.Source = nil, o.artifact.UpdateSource(dirOf(stack))
	}
	if check.Spec.Timeout == nil {
		// Nobody waits for the check, so nobody would notice that it hangs.
		check.Spec.Timeout = &metav1.Duration{Duration: driftInterval(driftSpec(*o))}
	}
	check.Labels[pulumiv1.ComponentLabel] = pulumiv1.ComponentDriftCheck
	if request := stack.Annotations[pulumiv1.DriftCheckAnnotation]; request != "" {
		check.Annotations[pulumiv1.DriftCheckAnnotation] = request
	}
	err = r.Create(ctx, check, patch.FieldOwner)
	if !apierrors.IsAlreadyExists(err) {
		return err
	}
	existing, err := r.liveUpdate(ctx, client.ObjectKeyFromObject(check))
	switch {
	case err != nil || existing == nil:
		return err
	case !isDriftCheckOf(stack, existing):
		return notOwned(stack, autov1alpha1.UpdateKind, existing)
	}
	return r.adopt(ctx, stack, existing)
}

// deleteDriftCheck deletes the Update that looks for drift. A check that runs is cancelled.
func (r *Reconciler) deleteDriftCheck(ctx context.Context, check *autov1alpha1.Update) error {
	err := r.Delete(ctx, check, client.Preconditions{UID: &check.UID})
	if client.IgnoreNotFound(err) != nil {
		return fmt.Errorf("remove the update %s that looks for drift: %w", check.Name, err)
	}
	return nil
}

// recordDrift records the result of a check in the status. It returns a function that records the event about the result; nil when there is
// no event.
func recordDrift(o *observation) func(*Reconciler) {
	stack, check := o.stack, o.driftCheck
	if stack.Status.Drift == nil {
		stack.Status.Drift = &pulumiv1.DriftStatus{}
	}
	drift := stack.Status.Drift
	drift.FirstCheckTime, drift.LastCheckTime, drift.CheckedUpdate = nil, new(checkEnd(o)), check.Annotations[pulumiv1.DriftUpdateAnnotation]
	if request := check.Annotations[pulumiv1.DriftCheckAnnotation]; request != drift.LastHandledCheckAt {
		drift.LastHandledCheckAt = request
		if request != "" {
			// The user who requested the check may have removed the cause of the drift, so corrections are counted from zero.
			drift.Correction = nil
		}
	}
	if check.HasFailed() || !check.IsComplete() {
		drift.Failures++
		cause := check.Status.Message
		if !check.IsComplete() {
			cause = fmt.Sprintf("it was not started within %s: %s", checkStartTimeout, describeProgress(o.workspace, check))
		}
		message := "cannot look for changes that were made outside of Pulumi: " + cause
		conditions.MarkUnknown(stack, pulumiv1.DriftedCondition, pulumiv1.DriftCheckFailedReason, "%s", message)
		return driftEvent(stack, drift.Failures == 1, corev1.EventTypeWarning, pulumiv1.DriftCheckFailedReason, message)
	}
	failed := drift.Failures > 0
	drift.Failures = 0
	spec := driftSpec(*o)
	resources, omitted, digest := driftOf(check, spec.Ignore)
	switch known := drift.Digest; {
	case digest == "":
		*drift = pulumiv1.DriftStatus{LastCheckTime: drift.LastCheckTime, CheckedUpdate: drift.CheckedUpdate,
			LastHandledCheckAt: drift.LastHandledCheckAt, Correction: drift.Correction}
		const message = "no resource was changed outside of Pulumi"
		conditions.MarkFalse(stack, pulumiv1.DriftedCondition, pulumiv1.NoDriftReason, message)
		return driftEvent(stack, known != "" || failed, corev1.EventTypeNormal, pulumiv1.NoDriftReason, message+" any longer")
	case digest != known && digest != drift.Unconfirmed && drift.UnconfirmedChecks < maxUnconfirmed:
		drift.Unconfirmed = digest
		drift.UnconfirmedChecks++
		return nil
	case digest != known:
		drift.Since = new(checkEnd(o))
	}
	isNew := digest != drift.Digest
	drift.Unconfirmed, drift.UnconfirmedChecks = "", 0
	drift.Digest, drift.Resources, drift.OmittedResources = digest, resources, omitted
	reason, message := pulumiv1.DriftDetectedReason, describeDrift(drift)
	switch correct := spec.Mode == pulumiv1.DriftModeCorrect && !stack.IsPreview() && len(correctable(resources)) > 0; {
	case correct && comesBack(drift):
		reason = pulumiv1.DriftComesBackReason
		corrections := drift.Correction.Count
		if corrections < maxCorrections {
			corrections = drift.Correction.Total
		}
		message += fmt.Sprintf(". It came back after %d corrections and is no longer corrected: something else changes these resources. "+
			"Stop that, change the program, or ignore the drift with spec.drift.ignore; a new value of the annotation %s starts again",
			corrections, pulumiv1.DriftCheckAnnotation)
	case correct:
		message += ". An update corrects it"
	default:
		message += ". Revert it, or correct it with an update that refreshes"
	}
	isNew = isNew || conditions.GetReason(stack, pulumiv1.DriftedCondition) != reason
	conditions.MarkTrue(stack, pulumiv1.DriftedCondition, reason, "%s", message)
	return driftEvent(stack, isNew, corev1.EventTypeWarning, reason, message)
}

// checkEnd returns when the check ended; for a check that was not started in time, the current time.
func checkEnd(o *observation) metav1.Time {
	if !o.driftCheck.IsComplete() {
		return metav1.NewTime(o.now).Rfc3339Copy()
	}
	return endOf(o.driftCheck)
}

// driftEvent returns a function that records the event; nil when the event is not new.
func driftEvent(stack *pulumiv1.Stack, isNew bool, kind, reason, message string) func(*Reconciler) {
	if !isNew {
		return nil
	}
	metadata := tokenMetadata(*stack.Status.Drift.LastCheckTime)
	return func(r *Reconciler) { r.AnnotatedEventf(stack, metadata, kind, reason, "%s", message) }
}

// describeDrift returns a message that names some of the drifted resources.
func describeDrift(drift *pulumiv1.DriftStatus) string {
	count := int64(len(drift.Resources)) + drift.OmittedResources
	text := fmt.Sprintf("%d resources were changed outside of Pulumi: ", count)
	if count == 1 {
		text = "1 resource was changed outside of Pulumi: "
	}
	var named []string
	for _, drifted := range drift.Resources[:min(len(drift.Resources), maxNamedResources)] {
		name := urn.Type(drifted.URN) + " " + urn.Name(drifted.URN)
		switch paths := drifted.Paths[:min(len(drifted.Paths), maxNamedResources)]; {
		case drifted.Change == pulumiv1.DriftGone:
			name += " (gone)"
		case len(paths) > 0:
			name += " (" + strings.Join(paths, ", ") + ")"
		}
		named = append(named, name)
	}
	if more := count - int64(len(named)); more > 0 {
		named = append(named, fmt.Sprintf("%d more", more))
	}
	return plaintext.Cut(text+strings.Join(named, ", "), maxDriftText)
}
