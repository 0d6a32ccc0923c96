package stack

import (
	"fmt"
	"testing"
	"time"

	. "github.com/onsi/gomega"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/fluxcd/pkg/apis/meta"
	"github.com/fluxcd/pkg/runtime/conditions"

	pulumiv1 "github.com/stack-controller/stack-controller/api/pulumi/v1"
)

// A Stack that was restored from a backup, or created again, has another UID. Whoever has its outputs should keep them.
func TestOutputsOfAnEarlierStackOfThisNameAreTakenOver(t *testing.T) {
	s := newFixture(t, func(r *Reconciler) { r.WaitInterval = time.Second })
	other := s.dependent("other", func(stack *pulumiv1.Stack) { stack.Spec.Suspend = true })
	leave := func(name, uid string, annotations map[string]string) *corev1.Secret {
		secret := &corev1.Secret{Namespace: s.namespace, Name: name, StringData: map[string]string{"url": "old"}, Annotations: annotations,
			Labels: map[string]string{pulumiv1.StackUIDLabel: uid}}
		s.Expect(s.client.Create(t.Context(), secret)).To(Succeed())
		return secret
	}
	ofApp := map[string]string{pulumiv1.StackNameAnnotation: "app"}
	left := leave("left", "gone", ofApp)
	forged := leave("forged", string(other.UID), ofApp)
	unnamed := leave("unnamed", "gone", nil)
	stack := s.newStack(func(stack *pulumiv1.Stack) {
		stack.Spec.Outputs = []pulumiv1.OutputObject{{Name: "left"}, {Name: "forged"}, {Name: "unnamed"}}
	})
	s.give(stack, map[string]string{"url": `"new"`})
	s.await(stack, reasonIs(meta.StalledCondition, pulumiv1.OutputsConflictReason))
	s.Expect(conditions.GetMessage(stack, meta.ReadyCondition)).To(And(ContainSubstring("Secret forged exists and belongs to another Stack"),
		ContainSubstring("if an earlier Stack app has left it, set its label pulumi.com/stack-uid to "+string(stack.UID)), Not(ContainSubstring("Secret left"))))
	before := left.UID
	s.Expect(s.client.Get(t.Context(), client.ObjectKeyFromObject(left), left)).To(Succeed())
	s.Expect(left.UID).To(Equal(before))
	s.Expect(metav1.IsControlledBy(left, stack)).To(BeTrue())
	s.Expect(s.secretData("left")).To(Equal(map[string]string{"url": "new"}))
	s.Expect(s.secretData("forged")).To(Equal(map[string]string{"url": "old"}))

	// As the message says.
	s.Expect(s.client.Patch(t.Context(), unnamed, client.RawPatch(client.Merge.Type(),
		fmt.Appendf(nil, `{"metadata": {"labels": {%q: %q}}}`, pulumiv1.StackUIDLabel, stack.UID)))).To(Succeed())
	s.Expect(s.client.Delete(t.Context(), forged)).To(Succeed())
	s.await(stack, isReady)
	s.Expect(s.secretData("unnamed")).To(Equal(map[string]string{"url": "new"}))
}
