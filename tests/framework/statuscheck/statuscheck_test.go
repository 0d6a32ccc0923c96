package statuscheck

import (
	"testing"

	. "github.com/onsi/gomega"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/fluxcd/pkg/apis/meta"
	"github.com/fluxcd/pkg/runtime/conditions"

	autov1alpha1 "github.com/stack-controller/stack-controller/api/auto/v1alpha1"
	pulumiv1 "github.com/stack-controller/stack-controller/api/pulumi/v1"
)

// ended returns an Update that ended with this state.
func ended(state autov1alpha1.UpdateState, failed bool, change ...func(*autov1alpha1.Update)) *autov1alpha1.Update {
	update := &autov1alpha1.Update{Generation: 1}
	update.Status.State, update.Status.Message = state, "it ended"
	update.Status.StartTime, update.Status.EndTime = new(metav1.Now()), new(metav1.Now())
	conditions.MarkFalse(update, autov1alpha1.UpdateProgressing, "Ended", "it ended")
	conditions.MarkTrue(update, autov1alpha1.UpdateComplete, "Ended", "it ended")
	conditions.MarkFalse(update, autov1alpha1.UpdateFailed, "Ended", "it ended")
	if failed {
		conditions.MarkTrue(update, autov1alpha1.UpdateFailed, "Ended", "it ended")
	}
	for _, change := range change {
		change(update)
	}
	return update
}

func TestUpdateThatContradictsItselfIsFound(t *testing.T) {
	for name, test := range map[string]struct {
		update *autov1alpha1.Update
		wrong  string
	}{
		"succeeded":   {update: ended(autov1alpha1.UpdateStateSucceeded, false)},
		"interrupted": {update: ended(autov1alpha1.UpdateStateInterrupted, true)},
		"succeeded and failed": {
			update: ended(autov1alpha1.UpdateStateSucceeded, true), wrong: "either succeeded or failed",
		},
		"complete and running": {
			update: ended(autov1alpha1.UpdateStateRunning, true), wrong: "final state",
		},
		"complete and progressing": {
			update: ended(autov1alpha1.UpdateStateFailed, true, func(u *autov1alpha1.Update) {
				conditions.MarkTrue(u, autov1alpha1.UpdateProgressing, "Running", "it runs")
			}), wrong: "must not progress",
		},
		"without a condition": {
			update: ended(autov1alpha1.UpdateStateFailed, true, func(u *autov1alpha1.Update) {
				conditions.Delete(u, autov1alpha1.UpdateProgressing)
			}), wrong: "Progressing must always be present",
		},
		"without an end": {
			update: ended(autov1alpha1.UpdateStateFailed, true, func(u *autov1alpha1.Update) { u.Status.EndTime = nil }), wrong: "end time",
		},
		"without a message": {
			update: ended(autov1alpha1.UpdateStateFailed, true, func(u *autov1alpha1.Update) { u.Status.Message = "" }), wrong: "message",
		},
	} {
		t.Run(name, func(t *testing.T) {
			g, err := NewWithT(t), Lint(t.Context(), test.update)
			if test.wrong == "" {
				g.Expect(err).NotTo(HaveOccurred())
				return
			}
			g.Expect(err).To(MatchError(ContainSubstring(test.wrong)))
		})
	}
}

func TestStackThatContradictsItselfIsFoundUnlessItIsSuspended(t *testing.T) {
	g := NewWithT(t)
	stack := &pulumiv1.Stack{Generation: 1}
	stack.Status.ObservedGeneration = 1
	conditions.MarkTrue(stack, meta.ReadyCondition, "Done", "it is done")
	g.Expect(Lint(t.Context(), stack)).To(Succeed())
	conditions.MarkStalled(stack, "Broken", "it is broken")
	g.Expect(Lint(t.Context(), stack)).NotTo(Succeed())
	stack.Spec.Suspend = true
	g.Expect(Lint(t.Context(), stack)).To(Succeed())
}
