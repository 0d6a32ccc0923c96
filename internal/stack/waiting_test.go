package stack

import (
	"testing"

	. "github.com/onsi/gomega"
	corev1 "k8s.io/api/core/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/fluxcd/pkg/apis/meta"
	"github.com/fluxcd/pkg/runtime/conditions"

	autov1alpha1 "github.com/stack-controller/stack-controller/api/auto/v1alpha1"
	pulumiv1 "github.com/stack-controller/stack-controller/api/pulumi/v1"
)

func TestProblemThatAnUpdateWaitsForIsToldOnce(t *testing.T) {
	s := newStage(t)
	stack := s.newStack(func(*pulumiv1.Stack) {})
	for _, problem := range []struct{ reason, message string }{
		{pulumiv1.SecretNotFoundReason, "waiting for the secret one"},
		{pulumiv1.SecretNotFoundReason, "waiting for the secret two"},
		{autov1alpha1.UpdateTransientFailureReason, "the agent does not answer"},
	} {
		s.setUpdate(stack, func(update *autov1alpha1.Update) {
			conditions.MarkFalse(update, autov1alpha1.UpdateProgressing, problem.reason, "%s", problem.message)
		})
		s.await(stack, reasonIs(meta.ReadyCondition, problem.reason))
		s.await(stack, func(stack *pulumiv1.Stack) bool {
			return conditions.GetMessage(stack, meta.ReadyCondition) == problem.message
		})
	}

	s.Eventually(func() ([]string, error) {
		list := &corev1.EventList{}
		err := s.client.List(t.Context(), list, client.InNamespace(s.namespace))
		var told []string
		for _, event := range list.Items {
			if event.Type == corev1.EventTypeWarning {
				told = append(told, event.Reason+": "+event.Message)
			}
		}
		return told, err
	}).Should(Equal([]string{"SecretNotFound: waiting for the secret one"}))
}
