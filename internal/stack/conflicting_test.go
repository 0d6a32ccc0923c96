package stack

import (
	"encoding/json"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	. "github.com/onsi/gomega"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/fluxcd/pkg/runtime/conditions"

	autov1alpha1 "github.com/stack-controller/stack-controller/api/auto/v1alpha1"
	pulumiv1 "github.com/stack-controller/stack-controller/api/pulumi/v1"
)

// conflicts answers writes of a Stack's status with a conflict as long as it is on.
type conflicts struct {
	http.RoundTripper
	on *atomic.Bool
}

// RoundTrip implements http.RoundTripper.
func (c conflicts) RoundTrip(request *http.Request) (*http.Response, error) {
	path := request.URL.Path
	if !c.on.Load() || request.Method != http.MethodPatch || !strings.Contains(path, "/stacks/") || !strings.HasSuffix(path, "/status") {
		return c.RoundTripper.RoundTrip(request)
	}
	answer := httptest.NewRecorder()
	answer.Header().Set("Content-Type", "application/json")
	answer.WriteHeader(http.StatusConflict)
	status := apierrors.NewConflict(pulumiv1.GroupVersion.WithResource("stacks").GroupResource(), "app", nil).ErrStatus
	status.TypeMeta = metav1.TypeMeta{APIVersion: "v1", Kind: "Status"}
	if err := json.NewEncoder(answer).Encode(status); err != nil {
		return nil, err
	}
	return answer.Result(), nil
}

// Here only watches wake a Stack, and that of the Update told of its end when nothing could be written.
func TestUpdateThatEndedBeforeAStatusCouldNameItIsRecorded(t *testing.T) {
	s := newStage(t)
	s.conflicting.Store(true)
	stack := s.dependent("app")
	updates := &autov1alpha1.UpdateList{}
	s.Eventually(func(g Gomega) {
		g.Expect(s.client.List(t.Context(), updates, client.InNamespace(s.namespace))).To(Succeed())
		g.Expect(updates.Items).To(HaveLen(1))
	}).Should(Succeed())
	update := &updates.Items[0]
	before := update.DeepCopy()
	update.Status.StartTime, update.Status.EndTime = new(metav1.Now()), new(metav1.Now())
	conditions.MarkTrue(update, autov1alpha1.UpdateComplete, "Complete", "done")
	s.Expect(s.client.Status().Patch(t.Context(), update, client.MergeFrom(before))).To(Succeed())
	s.Consistently(func(g Gomega) {
		g.Expect(s.client.Get(t.Context(), client.ObjectKeyFromObject(stack), stack)).To(Succeed())
		g.Expect(stack.Status.CurrentUpdate).To(BeNil())
	}).WithTimeout(time.Second).Should(Succeed())

	s.conflicting.Store(false)
	s.await(stack, func(stack *pulumiv1.Stack) bool { return conditions.IsReady(stack) })
	s.Expect(stack.Status.LastUpdate.Name).To(Equal(update.Name))
	s.Expect(s.client.List(t.Context(), updates, client.InNamespace(s.namespace))).To(Succeed())
	s.Expect(updates.Items).To(HaveLen(1), "it is not repeated")
}

func TestUpdateThatSomebodyRemovedMayHaveBeenCutOff(t *testing.T) {
	s := newStage(t)
	stack := s.newStack(func(*pulumiv1.Stack) {})
	s.succeed(stack, time.Now())
	s.edit(stack, withImage("two"))
	s.await(stack, func(stack *pulumiv1.Stack) bool { return stack.Status.CurrentUpdate != nil })
	removed, next := &autov1alpha1.Update{}, &autov1alpha1.Update{}
	key := client.ObjectKey{Namespace: s.namespace, Name: stack.Status.CurrentUpdate.Name}
	s.Expect(s.client.Get(t.Context(), key, removed)).To(Succeed())
	s.Expect(removed.Spec.AfterInterruption).To(BeNil())
	s.Expect(s.client.Patch(t.Context(), removed, client.RawPatch(types.MergePatchType, []byte(`{"metadata":{"finalizers":null}}`)))).To(Succeed())
	s.Expect(s.client.Delete(t.Context(), removed)).To(Succeed())
	s.await(stack, func(stack *pulumiv1.Stack) bool {
		current := stack.Status.CurrentUpdate
		return current != nil && s.client.Get(t.Context(), client.ObjectKey{Namespace: s.namespace, Name: current.Name}, next) == nil && next.UID != removed.UID
	})
	s.Expect(next.Spec.AfterInterruption).To(HaveValue(BeTrue()))
	s.succeed(stack, time.Now())
	s.Expect(stack.Status.LastUpdate.Unsettled).To(BeFalse())
}

func TestUpdateThatNoStatusNamedMayHaveBeenCutOff(t *testing.T) {
	s := newStage(t)
	stack := s.newStack(func(*pulumiv1.Stack) {})
	s.succeed(stack, time.Now().Add(-time.Minute))
	s.conflicting.Store(true)
	s.edit(stack, withImage("two"))
	updates := &autov1alpha1.UpdateList{}
	count := func(expected int) {
		s.Eventually(func(g Gomega) {
			g.Expect(s.client.List(t.Context(), updates, client.InNamespace(s.namespace))).To(Succeed())
			g.Expect(updates.Items).To(HaveLen(expected))
		}).Should(Succeed())
	}
	count(2)
	for i := range updates.Items {
		if update := &updates.Items[i]; !update.IsComplete() {
			before := update.DeepCopy()
			started(update)
			wasInterrupted(update)
			s.Expect(s.client.Status().Patch(t.Context(), update, client.MergeFrom(before))).To(Succeed())
		}
	}
	s.edit(stack, withImage("three"))
	count(3)
	for _, update := range updates.Items {
		if !update.IsComplete() {
			s.Expect(update.Spec.AfterInterruption).To(HaveValue(BeTrue()))
		}
	}
}
