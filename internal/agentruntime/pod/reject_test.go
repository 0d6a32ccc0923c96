package pod

import (
	"errors"
	"fmt"
	"testing"

	. "github.com/onsi/gomega"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/validation/field"

	autov1alpha1 "github.com/stack-controller/stack-controller/api/auto/v1alpha1"
	"github.com/stack-controller/stack-controller/internal/agentruntime/pod/podspec"
)

func TestRefusalsOfTheAPIServerAreAStatus(t *testing.T) {
	resource := schema.GroupResource{Group: "apps", Resource: "statefulsets"}
	forbidden := func(text string) error { return apierrors.NewForbidden(resource, "app", errors.New(text)) }
	invalid := func(text string) error {
		return apierrors.NewInvalid(schema.GroupKind{Group: "apps", Kind: "StatefulSet"}, "app", field.ErrorList{field.Forbidden(field.NewPath("spec"), text)})
	}
	terminating := apierrors.NewForbidden(resource, "app", errors.New("x"))
	terminating.ErrStatus.Details.Causes = []metav1.StatusCause{{Type: corev1.NamespaceTerminatingCause}}
	for _, tt := range []struct {
		name            string
		err             error
		reason, message string
		stalled, wake   bool
	}{
		{"template", &podspec.InvalidError{Problems: field.ErrorList{field.Required(field.NewPath("spec", "podTemplate"), "why")}},
			autov1alpha1.PodTemplateInvalidReason, "spec.podTemplate: Required value: why", true, false},
		{"invalid", invalid("no"), autov1alpha1.ObjectRejectedReason, "spec: Forbidden: no", true, true},
		{"immutable", invalid("updates to statefulset spec for fields other than 'replicas' are forbidden"), autov1alpha1.ObjectRejectedReason, "delete the StatefulSet when no operation runs", true, true},
		{"quota", forbidden("exceeded quota: q"), autov1alpha1.QuotaExceededReason, "exceeded quota: q", false, true},
		{"rights", forbidden("User cannot patch"), autov1alpha1.ObjectRejectedReason, "User cannot patch", false, true},
		{"webhook", apierrors.NewBadRequest("denied"), autov1alpha1.ObjectRejectedReason, "denied", true, true},
		{"terminating namespace", terminating, autov1alpha1.NamespaceTerminatingReason, "nothing can be created in the namespace", false, true},
		{"somebody else's", &conflictError{message: "app belongs to ReplicaSet x"}, autov1alpha1.NameConflictReason, "app belongs to ReplicaSet x", true, true},
		{"an earlier workspace's", &conflictError{ending: true, message: "has to go first"}, autov1alpha1.DeletingReason, "has to go first", false, true},
	} {
		t.Run(tt.name, func(t *testing.T) {
			g := NewWithT(t)
			status := refusalStatus(fmt.Errorf("apply it: %w", tt.err))
			g.Expect(status).NotTo(BeNil())
			g.Expect(status.Ready).To(BeFalse())
			g.Expect(status.Reason).To(Equal(tt.reason))
			g.Expect(status.Message).To(ContainSubstring(tt.message))
			g.Expect(status.Stalled).To(Equal(tt.stalled))
			g.Expect(status.RetryAfter > 0).To(Equal(tt.wake))
		})
	}
}

func TestErrorsOfTheAPIServerAreTriedAgain(t *testing.T) {
	for _, err := range []error{
		errors.New("connection refused"), apierrors.NewInternalError(errors.New("x")), apierrors.NewTooManyRequests("x", 1),
		apierrors.NewConflict(schema.GroupResource{}, "x", nil), apierrors.NewAlreadyExists(schema.GroupResource{}, "x"), apierrors.NewServerTimeout(schema.GroupResource{}, "x", 1),
	} {
		NewWithT(t).Expect(refusalStatus(err)).To(BeNil(), err.Error())
	}
}
