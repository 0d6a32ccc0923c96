package rollout

import (
	"maps"
	"slices"

	autov1alpha1 "github.com/stack-controller/stack-controller/api/auto/v1alpha1"
	pulumiv1 "github.com/stack-controller/stack-controller/api/pulumi/v1"
)

// otherOptions are what can happen besides to what is decided about the target, and to what new Stacks begin with.
func (w *walker) otherOptions() map[string]func() {
	return map[string]func(){
		"lose the status": func() {
			w.rollout.Status, w.woken = autov1alpha1.StackRolloutStatus{}, true
			w.forgetNames()
		},
		"the same content under another name": func() {
			if target := w.rollout.Status.Target; target == nil || target.Revision != w.offer.Revision {
				return // it was not seen under the name that it has
			}
			w.offer, w.woken = again(w.offered(), len(w.steps)), true
		},
		"the first wave gets another name": func() {
			w.rollout.Spec.Waves[0].Name += "+"
			w.woken = true
		},
		"all are suspended": func() {
			for i, stack := range w.stacks {
				w.change(i, func(stack *pulumiv1.Stack) { stack.Spec.Suspend = true })
				w.clean[stack.Name+letterOf(stack)] = true // its wave is complete without it, and opens no more for a check
			}
		},
	}
}

// forgetNames forgets which Stacks were updated under another name to what the source offers: nobody knows that without the status.
func (w *walker) forgetNames() {
	for _, stack := range w.stacks {
		if last := stack.Status.LastUpdate; last != nil && last.Revision != w.offer.Revision {
			delete(w.ended, stack.Name+letterOf(stack))
		}
	}
}

// forgetRejected removes the revisions that somebody has rejected from those that new Stacks begin with.
func (w *walker) forgetRejected() {
	maps.DeleteFunc(w.complete, func(letter string, _ bool) bool {
		return slices.ContainsFunc(w.approvals, func(approval autov1alpha1.ApprovalSpec) bool {
			return approval.Decision == autov1alpha1.ApprovalReject && approval.Revision == revision(letter).Revision
		})
	})
}

// decidedAbout reports whether an Approval that counts decides so about the target.
func (w *walker) decidedAbout(decision autov1alpha1.ApprovalDecision) bool {
	return slices.ContainsFunc(w.approvals, func(approval autov1alpha1.ApprovalSpec) bool {
		return approval.Decision == decision && approval.Revision == revision(w.target()).Revision
	})
}

// promoted reports whether an Approval that counts promotes the wave, or all waves if it is empty.
func (w *walker) promoted(wave string) bool {
	return slices.ContainsFunc(w.approvals, func(approval autov1alpha1.ApprovalSpec) bool {
		return approval.Decision == autov1alpha1.ApprovalApprove && approval.Revision == revision(w.target()).Revision && approval.Wave == wave
	})
}
