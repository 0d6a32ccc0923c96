package stack

import (
	"testing"

	. "github.com/onsi/gomega"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	autov1alpha1 "github.com/stack-controller/stack-controller/api/auto/v1alpha1"
	pulumiv1 "github.com/stack-controller/stack-controller/api/pulumi/v1"
)

// ended is an Update of the settled Stack that failed for the reason, or succeeded without one.
func ended(reason string) *autov1alpha1.Update {
	update := &autov1alpha1.Update{
		ObjectMeta: metav1.ObjectMeta{Name: "app-2"},
		Spec:       autov1alpha1.UpdateSpec{Type: autov1alpha1.UpdateTypeUp},
		Status:     autov1alpha1.UpdateStatus{Message: "why", EndTime: &metav1.Time{Time: now}},
	}
	update.Status.Conditions = []metav1.Condition{{Type: autov1alpha1.UpdateComplete, Status: metav1.ConditionTrue}}
	if reason != "" {
		update.Status.Conditions = append(update.Status.Conditions, metav1.Condition{Type: autov1alpha1.UpdateFailed, Status: metav1.ConditionTrue, Reason: reason})
	}
	return update
}

func TestResultIsRecordedOnceAndTheSameTwice(t *testing.T) {
	for _, test := range []struct {
		name, reason string
		earlier      int64
		failures     int64
		interrupted  int64
		history      string
		succeeded    bool
	}{
		{name: "success clears the failures", earlier: 2, failures: 0, succeeded: true, history: "succeeded"},
		{name: "failure counts", reason: autov1alpha1.UpdateFailedReason, earlier: 2, failures: 3, history: "failed"},
		{name: "interruption is no failure", reason: autov1alpha1.InterruptedReason, earlier: 2, failures: 2, interrupted: 3, history: "interrupted"},
	} {
		t.Run(test.name, func(t *testing.T) {
			g := NewWithT(t)
			o := failed(test.earlier, 0)
			o.stack.Status.LastUpdate.Interruptions = 2
			o.stack.Status.CurrentUpdate = &pulumiv1.CurrentStackUpdate{Name: "app-2", Generation: 2, Commit: "sha256:b", Revision: "main@sha1:b"}
			update := ended(test.reason)
			again := o.stack.DeepCopy()
			r := &Reconciler{}
			g.Expect(r.recordResult(t.Context(), o.stack, update)).To(Succeed())
			last := o.stack.Status.LastUpdate
			g.Expect(last.Failures).To(Equal(test.failures))
			g.Expect(last.Interruptions).To(Equal(test.interrupted))
			g.Expect(o.stack.Status.History.Latest().LastReconciledStatus).To(Equal(test.history))
			g.Expect(last.LastAttemptedCommit).To(Equal("sha256:b"))
			g.Expect(last.LastSuccessfulCommit == "sha256:b").To(Equal(test.succeeded))
			g.Expect(o.stack.Status.CurrentUpdate).To(BeNil())
			// An old cache may make the controller record the same result twice.
			g.Expect(r.recordResult(t.Context(), again, update)).To(Succeed())
			g.Expect(again.Status).To(Equal(o.stack.Status))
		})
	}
}

func TestDestroyLeavesNothingToDestroy(t *testing.T) {
	g := NewWithT(t)
	o := deleting()
	o.stack.Status.CurrentUpdate = &pulumiv1.CurrentStackUpdate{Name: "app-2"}
	update := ended("")
	update.Spec.Type = autov1alpha1.UpdateTypeDestroy
	g.Expect((&Reconciler{}).recordResult(t.Context(), o.stack, update)).To(Succeed())
	g.Expect(o.stack.Status.Deployed).To(BeFalse())
	g.Expect(nothingToDestroy(o.stack)).To(Equal("the resources were destroyed"))
}
