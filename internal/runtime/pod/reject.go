package pod

import (
	"errors"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"

	autov1alpha1 "github.com/stack-controller/stack-controller/api/auto/v1alpha1"
	"github.com/stack-controller/stack-controller/internal/runtime"
	"github.com/stack-controller/stack-controller/internal/runtime/pod/shape"
)

const (
	// rejectedInterval is how often something is tried again that the API server did not accept.
	rejectedInterval = time.Minute
	// conflictInterval is how often an object is looked at that is in the way.
	conflictInterval = 5 * time.Second
	// immutable is what the API server says about a change to a StatefulSet that it can never make.
	immutable = "updates to statefulset spec for fields other than"
)

// rejection turns an error about an object of the workspace into a status, if it is one that somebody has to mend; nil for
// an error that is tried again at once.
func rejection(err error) *runtime.Status {
	var invalid *shape.InvalidError
	if errors.As(err, &invalid) {
		return &runtime.Status{
			Failing: true, Stalled: true, Reason: autov1alpha1.PodTemplateInvalidReason,
			Message: "the pod of the workspace cannot be made; change the workspace: " + quote(invalid.Error()),
		}
	}
	if conflict := asConflict(err); conflict != nil {
		if conflict.ending {
			return &runtime.Status{Reason: autov1alpha1.DeletingReason, Message: conflict.message, RetryAfter: conflictInterval}
		}
		return &runtime.Status{
			Failing: true, Stalled: true, Reason: autov1alpha1.NameConflictReason, Message: conflict.message, RetryAfter: rejectedInterval,
		}
	}
	status := &runtime.Status{Failing: true, RetryAfter: rejectedInterval, Message: "the API server refuses, trying again: " + quote(err.Error())}
	switch {
	case apierrors.HasStatusCause(err, corev1.NamespaceTerminatingCause), apierrors.IsNotFound(err):
		status.Reason = autov1alpha1.NamespaceTerminatingReason
		status.Message = "nothing can be created in the namespace: " + quote(err.Error())
	case apierrors.IsForbidden(err):
		if status.Reason, _ = creationProblem(err.Error()); status.Reason == autov1alpha1.PodCreationFailedReason {
			status.Reason = autov1alpha1.ObjectRejectedReason
		}
	case apierrors.IsInvalid(err), apierrors.IsBadRequest(err), apierrors.IsRequestEntityTooLargeError(err):
		status.Reason, status.Stalled = autov1alpha1.ObjectRejectedReason, true
		if strings.Contains(err.Error(), immutable) {
			status.Message += "; delete the StatefulSet when no operation runs, and it is made anew"
		}
	default:
		return nil
	}
	return status
}
