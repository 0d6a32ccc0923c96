package app

import (
	"cmp"
	"slices"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"

	sourcev1 "github.com/fluxcd/source-controller/api/v1"

	autov1alpha1 "github.com/stack-controller/stack-controller/api/auto/v1alpha1"
	pulumiv1 "github.com/stack-controller/stack-controller/api/pulumi/v1"
)

// actions has the actions of the events whose reason says more than that an object was reconciled.
var actions = map[pulumiv1.Action][]string{
	pulumiv1.ResolveSourceAction: {
		pulumiv1.SourceNotFoundReason, pulumiv1.SourceNotReadyReason, pulumiv1.ArtifactNotFoundReason, pulumiv1.SourceNotVerifiedReason,
		pulumiv1.SourceKindNotInstalledReason, pulumiv1.AccessDeniedReason, pulumiv1.SourceUnavailableReason, pulumiv1.AuthenticationFailedReason,
		pulumiv1.HostKeyUnknownReason, pulumiv1.RepositoryNotFoundReason, pulumiv1.RevisionNotFoundReason, pulumiv1.RateLimitedReason,
		pulumiv1.LFSPointersReason, pulumiv1.ArtifactFetchFailedReason, pulumiv1.ArtifactDigestMismatchReason, pulumiv1.ArtifactTooLargeReason,
		pulumiv1.ArtifactUnusableReason,
	},
	pulumiv1.CheckDependenciesAction: {
		pulumiv1.PrerequisiteNotSatisfiedReason, pulumiv1.DependencyNotReadyReason, pulumiv1.InvalidCELExpressionReason,
		pulumiv1.DependencyCycleReason, pulumiv1.DependentsExistReason,
	},
	pulumiv1.RolloutAction: {
		pulumiv1.RolloutNotFoundReason, pulumiv1.WaveNotOpenReason, pulumiv1.RevisionNotKeptReason, pulumiv1.WindowClosedReason,
	},
	pulumiv1.PrepareWorkspaceAction: {
		pulumiv1.WorkspaceNotReadyReason, pulumiv1.WorkspaceFailedReason, pulumiv1.WorkspaceInUseReason, pulumiv1.PulumiVersionTooLowReason,
	},
	pulumiv1.ApproveAction: {
		pulumiv1.ApprovalRequiredReason, pulumiv1.PlanRejectedReason, pulumiv1.PlanStaleReason, pulumiv1.PlanViolatedReason,
		pulumiv1.PlanTooLargeReason, "PlanApproved",
	},
	pulumiv1.DetectDriftAction: {
		pulumiv1.NoDriftReason, pulumiv1.DriftDetectedReason, pulumiv1.DriftComesBackReason, pulumiv1.DriftCheckFailedReason,
	},
	pulumiv1.UpdateAction: {
		pulumiv1.SecretNotFoundReason, pulumiv1.InputNotFoundReason, pulumiv1.RetryingAfterFailureReason, pulumiv1.StackLostReason, pulumiv1.StateUpgradeRequiredReason, pulumiv1.PolicyViolationReason,
		pulumiv1.PreviewFailedReason, pulumiv1.UpdateFailedReason, pulumiv1.UpdateInterruptedReason, pulumiv1.UpdateConflictReason, pulumiv1.AwaitingResourcesReason,
		"StackCreated", "StackUpdateDetected", "StackUpdateFailure", "StackUpdateInterrupted", "StackUpdateConflictDetected",
		"UpdateSucceeded", "PulumiWarning", "OutputsNotStored",
		pulumiv1.OutputsNotWrittenReason, pulumiv1.OutputsConflictReason, pulumiv1.OutputSecretReason, pulumiv1.OutputNotFoundReason,
		pulumiv1.OutputsTooLargeReason,
	},
	pulumiv1.FinalizeAction: {
		pulumiv1.PulumiStacksLeftReason, pulumiv1.NamespaceTerminatingReason, "StackReleased", "WorkspaceDeleted", "UpdateExpired",
	},
}

// actionOf returns what the controller did when an event with the reason occurred.
func actionOf(object runtime.Object, reason string) string {
	for action, reasons := range actions {
		if slices.Contains(reasons, reason) {
			return string(action)
		}
	}
	switch object.(type) {
	case *autov1alpha1.Workspace:
		return string(pulumiv1.PrepareWorkspaceAction)
	case *autov1alpha1.StackRollout:
		return string(pulumiv1.RolloutAction)
	}
	return string(pulumiv1.ReconcileAction)
}

// relatedOf returns the object that the events of an object are about as well: the source of a Stack if it is an object, and the Stack that
// owns an Update or a Workspace.
func relatedOf(object runtime.Object) *corev1.ObjectReference {
	switch about := object.(type) {
	case *pulumiv1.Stack:
		switch spec := about.Spec; {
		case spec.FluxSource != nil:
			ref := spec.FluxSource.SourceRef
			return &corev1.ObjectReference{
				APIVersion: cmp.Or(ref.APIVersion, sourcev1.GroupVersion.String()), Kind: ref.Kind, Namespace: cmp.Or(ref.Namespace, about.Namespace), Name: ref.Name,
			}
		case spec.ProgramRef != nil:
			return &corev1.ObjectReference{
				APIVersion: pulumiv1.GroupVersion.String(), Kind: pulumiv1.ProgramKind, Namespace: about.Namespace, Name: spec.ProgramRef.Name,
			}
		}
	case metav1.Object:
		if owner := metav1.GetControllerOf(about); owner != nil {
			return &corev1.ObjectReference{
				APIVersion: owner.APIVersion, Kind: owner.Kind, Namespace: about.GetNamespace(), Name: owner.Name, UID: owner.UID,
			}
		}
	}
	return nil
}
