package rollout

import (
	"fmt"
	"slices"

	autov1alpha1 "github.com/stack-controller/stack-controller/api/auto/v1alpha1"
	"github.com/stack-controller/stack-controller/internal/waves"
)

// readApprovals finds what was decided about the target. A rejection overrides all promotions. What was rejected after it had reached all Stacks
// is not what new Stacks begin with, also when another commit comes: without its digest, nobody does.
func (w *walk) readApprovals() {
	w.status.Rejected = ""
	target, isNamed := w.status.Target.RolloutRevision, false
	for _, approval := range w.approvals {
		about := autov1alpha1.RolloutRevision{Revision: approval.Revision, Digest: approval.Digest}
		isRejection := approval.Decision == autov1alpha1.ApprovalReject
		isTarget := waves.Same(target, about) || about.Digest == "" && waves.IsNameOfTarget(about.Revision, &w.status)
		// A rejection without a digest was not accepted yet: of what is not the target, it will be refused.
		if stable := w.status.Stable; stable != nil && isRejection && (about.Digest != "" && waves.Same(*stable, about) || isTarget && waves.SameArtifact(*stable, target)) {
			stable.Digest = ""
		}
		switch {
		case !isTarget:
		case isRejection:
			isNamed = isNamed || waves.Same(target, autov1alpha1.RolloutRevision{Revision: approval.Revision})
			if w.rejectedBy == "" || approval.By < w.rejectedBy { // the cache has them in no order
				w.rejectedBy = approval.By
			}
		case approval.Wave == "":
			w.promotesAll = true
		default:
			w.promoted = append(w.promoted, approval.Wave)
		}
	}
	if w.rejectedBy == "" {
		return
	}
	what := target.Revision
	if !isNamed {
		what = "the content of " + what
	}
	w.status.Rejected, w.rejection = target.Revision, fmt.Sprintf("%s rejected %s: no other Stack gets it", w.rejectedBy, what)
	if w.initial.Rejected != w.status.Rejected {
		w.events = append(w.events, announcement{reason: autov1alpha1.RevisionRejectedReason, message: w.rejection, warning: true, verdict: true})
	}
}

// needsPromotion reports whether the wave has to be promoted first.
func (w *walk) needsPromotion(wave int) bool {
	entry := &w.spec.Waves[wave]
	return entry.Promotion == autov1alpha1.PromoteManual && !w.promotesAll && !slices.Contains(w.promoted, entry.Name)
}

// setStable makes the target what new Stacks begin with, and says so. One that no Stack has, because there are none or all are left out, was not
// tried by anybody: whoever comes then begins wave by wave. Nor is one that was rejected.
func (w *walk) setStable(open openWave) {
	if open.done == 0 || w.rejectedBy != "" {
		return
	}
	// The commit of another name for the same content waits for its verdict, too.
	isNew := w.status.Stable == nil || *w.status.Stable != w.status.Target.RolloutRevision
	w.status.Stable = w.status.Target.RolloutRevision.DeepCopy()
	if isNew || w.status.Halted != "" {
		w.announceVerdict(false)
	}
	w.status.Halted = ""
}
