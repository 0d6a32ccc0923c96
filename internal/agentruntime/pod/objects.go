package pod

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	autov1alpha1 "github.com/stack-controller/stack-controller/api/auto/v1alpha1"
	"github.com/stack-controller/stack-controller/internal/agentruntime"
	"github.com/stack-controller/stack-controller/internal/agentruntime/pod/credentials"
	"github.com/stack-controller/stack-controller/internal/agentruntime/pod/podspec"
	"github.com/stack-controller/stack-controller/internal/patch"
)

const (
	// formerOwner is the field manager of the Pulumi Kubernetes Operator, whose objects this controller takes over.
	formerOwner = "pulumi-kubernetes-operator"
	// rejectedInterval is how long to wait before a request that the API server did not accept is tried again.
	rejectedInterval = time.Minute
	// conflictInterval is how often an object that is in the way is read again.
	conflictInterval = 5 * time.Second
	// immutableMessage is part of the API server's error for a change to an immutable field of a StatefulSet.
	immutableMessage = "updates to statefulset spec for fields other than"
)

// conflictError is the error for an object that cannot be used because of its owner.
type conflictError struct {
	// ending is true when the object is being deleted, or will be.
	ending  bool
	message string
}

func (e *conflictError) Error() string { return e.message }

// checkOwner returns a *conflictError for an object that must not be written for the Workspace, so that a user who may only create
// Workspaces cannot change, or take values from, an object that somebody else created. An object without an owner may be used when its
// labels say that it was created for the Workspace, or when the Pulumi Kubernetes Operator applied it. Labels and field managers can be
// forged, but only by a user who can write to the object itself. Such a user gains nothing: the address of the pod is read from the pod,
// not from the Service, and a server at that address needs the key from the Secret, see certificate.
func checkOwner(workspace *autov1alpha1.Workspace, kind string, object client.Object) error {
	owner := metav1.GetControllerOf(object)
	switch {
	case owner != nil && owner.UID != workspace.UID && owner.Kind == autov1alpha1.WorkspaceKind && owner.Name == workspace.Name:
		return &conflictError{ending: true, message: fmt.Sprintf("%s of an earlier workspace of this name has to go first", object.GetName())}
	case owner != nil && owner.UID != workspace.UID:
		return &conflictError{message: fmt.Sprintf("%s %s belongs to %s %s; delete it or choose another name for the workspace",
			kind, object.GetName(), owner.Kind, owner.Name)}
	case object.GetDeletionTimestamp() != nil:
		return &conflictError{ending: true, message: fmt.Sprintf("%s is being deleted and will be made again", object.GetName())}
	case owner == nil && (kind == "Secret" || !madeFor(workspace, object)):
		return &conflictError{message: fmt.Sprintf(
			"%s %s exists already and was not made for this workspace; delete it or choose another name for the workspace", kind, object.GetName())}
	}
	return nil
}

// madeFor reports whether the object has the labels of the Workspace, which the Pulumi Kubernetes Operator uses as well, or was applied by
// that operator.
func madeFor(workspace *autov1alpha1.Workspace, object client.Object) bool {
	if labels.SelectorFromSet(podspec.Selector(workspace)).Matches(labels.Set(object.GetLabels())) {
		return true
	}
	return slices.ContainsFunc(object.GetManagedFields(), func(entry metav1.ManagedFieldsEntry) bool {
		return entry.Manager == formerOwner && entry.Operation == metav1.ManagedFieldsOperationApply
	})
}

// certificate reads the certificate of the agent from its Secret. If there is no such Secret, the error satisfies IsNotFound. The Secret
// must be one that this controller generated: the controller creates it with its owner, whose UID nobody can know before the Workspace
// exists. A Secret without owner is never used, whatever its labels are; generating another one costs nothing.
func (r *Runtime) certificate(ctx context.Context, workspace *autov1alpha1.Workspace) ([]byte, error) {
	secret := &corev1.Secret{}
	key := types.NamespacedName{Namespace: workspace.Namespace, Name: podspec.SecretName(workspace)}
	if err := r.options.APIReader.Get(ctx, key, secret); err != nil {
		return nil, fmt.Errorf("read the Secret %s: %w", key.Name, err)
	}
	if err := checkOwner(workspace, "Secret", secret); err != nil {
		return nil, err
	}
	certificate := secret.Data[corev1.TLSCertKey]
	if _, err := credentials.Pinned(certificate); err != nil {
		return nil, &conflictError{message: fmt.Sprintf("the Secret %s has no usable certificate (%v); delete it, and the controller creates it again", key.Name, err)}
	}
	return certificate, nil
}

// refusalStatus returns the status for an error about an object of the workspace that somebody has to fix. It returns nil if there is no
// error, or if the error is one to try again at once.
func refusalStatus(err error) *agentruntime.Status {
	if err == nil {
		return nil
	}
	if invalid, ok := errors.AsType[*podspec.InvalidError](err); ok {
		return &agentruntime.Status{
			Failing: true, Stalled: true, Reason: autov1alpha1.PodTemplateInvalidReason,
			Message: "the pod of the workspace cannot be made; change the workspace: " + quote(invalid.Error()),
		}
	}
	if conflict, ok := errors.AsType[*conflictError](err); ok {
		if conflict.ending {
			return &agentruntime.Status{Reason: autov1alpha1.DeletingReason, Message: conflict.message, RetryAfter: conflictInterval}
		}
		return &agentruntime.Status{
			Failing: true, Stalled: true, Reason: autov1alpha1.NameConflictReason, Message: conflict.message, RetryAfter: rejectedInterval,
		}
	}
	status := failing(autov1alpha1.ObjectRejectedReason, "the API server refuses, trying again: %s", quote(err.Error()))
	status.RetryAfter = rejectedInterval
	switch {
	case apierrors.HasStatusCause(err, corev1.NamespaceTerminatingCause), apierrors.IsNotFound(err):
		status.Reason = autov1alpha1.NamespaceTerminatingReason
		status.Message = "nothing can be created in the namespace: " + quote(err.Error())
	case apierrors.IsForbidden(err):
		if reason, _ := creationProblem(err.Error()); reason != autov1alpha1.PodCreationFailedReason {
			status.Reason = reason
		}
	case patch.IsRefused(err):
		status.Stalled = true
		if strings.Contains(err.Error(), immutableMessage) {
			status.Message += "; delete the StatefulSet when no operation runs, and the controller creates it again"
		}
	default:
		return nil
	}
	return &status
}
