package stack

import (
	"testing"

	. "github.com/onsi/gomega"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/fluxcd/pkg/apis/meta"
	"github.com/fluxcd/pkg/runtime/conditions"

	autov1alpha1 "github.com/stack-controller/stack-controller/api/auto/v1alpha1"
	pulumiv1 "github.com/stack-controller/stack-controller/api/pulumi/v1"
)

func TestCancellationOfASuspendedStackIsNoFailure(t *testing.T) {
	for _, suspended := range both {
		g := NewWithT(t)
		o := failed(2, 0)
		o.stack.Spec.Suspend = suspended
		o.stack.Status.CurrentUpdate = &pulumiv1.CurrentStackUpdate{Name: "app-2", Generation: 2, Commit: "sha256:b"}
		g.Expect((&Reconciler{}).recordResult(t.Context(), o.stack, ended(autov1alpha1.CanceledReason))).To(Succeed())
		last := o.stack.Status.LastUpdate
		g.Expect(last.Failures == 2).To(Equal(suspended), "a Stack that is not suspended tries again, with the backoff")
		g.Expect(o.stack.Status.History.Latest().LastReconciledStatus).To(Equal("cancelled"))
	}
}

func TestOperationThatWasCutOffIsRememberedUntilOneSucceeds(t *testing.T) {
	const up, preview = autov1alpha1.UpdateTypeUp, autov1alpha1.UpdateTypePreview
	for _, test := range []struct {
		name      string
		kind      autov1alpha1.UpdateType
		reason    string
		unstarted bool
		before    bool
		after     bool
	}{
		{name: "interrupted", kind: up, reason: autov1alpha1.InterruptedReason, after: true},
		{name: "timed out", kind: up, reason: autov1alpha1.TimeoutReason, after: true},
		{name: "cancelled", kind: up, reason: autov1alpha1.CanceledReason, after: true},
		{name: "cancelled before it started", kind: up, reason: autov1alpha1.CanceledReason, unstarted: true},
		{name: "a destroy", kind: autov1alpha1.UpdateTypeDestroy, reason: autov1alpha1.InterruptedReason, after: true},
		{name: "a preview changes nothing", kind: preview, reason: autov1alpha1.InterruptedReason},
		{name: "failed", kind: up, reason: autov1alpha1.UpdateFailedReason},
		{name: "failed, after one that was cut off", kind: up, reason: autov1alpha1.InstallFailedReason, before: true, after: true},
		{name: "locked, after one that was cut off", kind: up, reason: autov1alpha1.UpdateConflictReason, before: true, after: true},
		{name: "succeeded", kind: up, before: true},
		{name: "previewed, after one that was cut off", kind: preview, before: true, after: true},
	} {
		t.Run(test.name, func(t *testing.T) {
			g := NewWithT(t)
			o := failed(1, 0)
			o.stack.Status.LastUpdate.Unsettled = test.before
			o.stack.Status.CurrentUpdate = &pulumiv1.CurrentStackUpdate{Name: "app-2"}
			update := ended(test.reason)
			update.Spec.Type = test.kind
			if !test.unstarted {
				update.Status.StartTime = &metav1.Time{Time: now}
			}
			g.Expect(leavesUnsettled(update, o.stack.Status.LastUpdate)).To(Equal(test.after))
			if test.reason != "" {
				g.Expect((&Reconciler{}).recordResult(t.Context(), o.stack, update)).To(Succeed())
				g.Expect(unsettled(o.stack)).To(Equal(test.after))
			}
		})
	}
	g := NewWithT(t)
	g.Expect(unsettled(&pulumiv1.Stack{})).To(BeFalse())
	g.Expect(unsettled(&pulumiv1.Stack{Status: pulumiv1.StackStatus{Deployed: true}})).To(BeTrue(), "somebody removed the first Update while it ran")
}

func TestSuspendedStackSaysHowTheUpdateEndedThatRan(t *testing.T) {
	for name, test := range map[string]struct {
		last *pulumiv1.StackUpdateStatus
		says string
	}{
		"none":   {nil, "it was never updated"},
		"one":    {&pulumiv1.StackUpdateStatus{Type: "up", State: pulumiv1.StackUpdateSucceeded, Revision: "main@sha1:a"}, "its last up succeeded, revision main@sha1:a"},
		"failed": {&pulumiv1.StackUpdateStatus{Type: "up", State: pulumiv1.StackUpdateFailed, Message: "why"}, "its last up did not succeed: why"},
	} {
		t.Run(name, func(t *testing.T) {
			g := NewWithT(t)
			stack := &pulumiv1.Stack{}
			stack.Status.LastUpdate = test.last
			markWorking(stack, "stack is being processed")
			showSuspended(stack)
			g.Expect(conditions.GetMessage(stack, meta.ReadyCondition)).To(HaveSuffix(test.says))
			g.Expect(conditions.GetReason(stack, meta.StalledCondition)).To(Equal(pulumiv1.SuspendedReason))
			g.Expect(conditions.IsReconciling(stack)).To(BeFalse())

			// One that was up to date stays so.
			markSettled(stack)
			showSuspended(stack)
			g.Expect(conditions.IsReady(stack)).To(BeTrue())
		})
	}
}
