package rollout

import (
	"fmt"
	"maps"
	"slices"
	"time"

	autov1alpha1 "github.com/stack-controller/stack-controller/api/auto/v1alpha1"
	pulumiv1 "github.com/stack-controller/stack-controller/api/pulumi/v1"
	"github.com/stack-controller/stack-controller/internal/waves"
)

func (w *walker) promise(kept bool, format string, args ...any) {
	if !kept {
		w.broken = append(w.broken, fmt.Sprintf(format, args...))
	}
}

// decideNow lets the StackRollout decide, and checks what it has decided.
func (w *walker) decideNow() {
	w.before = w.rollout.DeepCopy()
	before := &w.before.Status
	w.completeBefore = maps.Clone(w.complete)
	if w.offer = nil; w.problem == nil {
		w.offer = new(w.main)
	}
	d := w.decide()
	w.due = time.Time{}
	if d.after > 0 {
		w.due = w.now.Add(d.after)
	}
	w.promise(w.offer == nil || w.target() == w.offered(), "the target is %s, and the source offers %s", w.target(), w.offered())
	w.promise(d.wake != "", "the decision %s names no waker", d.reason)
	w.promise(d.wake != byTime || d.after > 0, "the decision %s waits for no time", d.reason)
	if d.complete && slices.ContainsFunc(w.actors, func(a *actor) bool { return !a.Spec.Suspend && a.succeededWith(w.target()) }) {
		w.complete[w.target()] = true
	}
	w.forgetRejected()
	w.followWaves()
	same := before.Target != nil && letter(before.Target.Digest) == w.target()
	if len(before.Waves) == 0 {
		w.ran = w.now // nobody knows when updates ended
	}
	for _, a := range w.actors {
		a.overdue = a.overdue && a.running != nil || w.turnOf(a) != nil && (same && a.overdue || w.isTooLate(a))
		if a.running != nil {
			w.ran = w.now
		}
	}
	held := 0 // places that turns take
	for _, a := range w.actors {
		if w.turnOf(a) == nil {
			continue
		}
		if !same || !waves.HasTurn(before, a.Namespace, a.Name) {
			w.judgeTurn(a)
			a.released[w.target()] = true
		}
		w.judgeOldTurn(a)
		if !a.hasDrift() && !a.overdue {
			held++
		}
	}
	w.promise(held <= w.most, "%d turns", held)
	if most := w.rollout.Spec.MaxConcurrent.IntValue(); held <= most && w.running() <= most {
		w.most = most
	}
	for _, a := range w.actors {
		name := waves.Name(a.Namespace, a.Name)
		if slices.Contains(w.rollout.Status.Plans, name) && (!same || !slices.Contains(before.Plans, name)) {
			w.judge(a, "may plan")
			w.promise(!w.reports(a) || a.edited, "%s may plan, and has the target", a.Name)
			w.promise(a.Spec.Approval != nil, "%s may plan, and needs no approval", a.Name)
		}
	}
	w.judgeCounts(d)
	w.remember(d.reason != pulumiv1.SpecInvalidReason && d.reason != pulumiv1.InvalidCELExpressionReason)
	w.promise(d.reason != autov1alpha1.RolloutSoakingReason || w.now.Sub(w.ran) < walkSoak, "it soaks, and nothing was updated since %s", w.ran)
}

// remember remembers what the StackRollout has seen of its Stacks; all says that it has looked at all of them. A wave is complete without those that are left
// out, and opens no more for a check.
func (w *walker) remember(all bool) {
	for _, a := range w.actors {
		switch {
		case w.target() != "" && w.reports(a):
			a.done = w.target()
		case all:
			a.done = ""
		}
		if a.isOut() && all {
			a.clean[a.has()] = true
		}
	}
	if all {
		clear(w.gone)
	}
}

// followWaves forgets of Stacks that came to another wave what they did in the one before: nobody ran there.
func (w *walker) followWaves() {
	for _, a := range w.actors {
		a.wave = w.waveOf(a)
		tier := identityOf(&w.rollout.Spec.Waves[a.wave])
		if tier == a.tier {
			continue
		}
		w.gone[a.tier] = true
		if a.tier = tier; w.entryOf(w.rollout.Spec.Waves[a.wave].Name) == nil {
			continue // the wave is new, and what they did before counts there
		}
		for letter := range a.ended {
			a.clean[letter] = true
		}
		clear(a.ended)
	}
	for _, a := range w.actors {
		if w.gone[a.tier] {
			delete(a.ended, w.target())
		}
	}
}

// judge checks that the Stack may have something of the target: a turn, or a plan.
func (w *walker) judge(a *actor, gets string) {
	name, target := a.Name, w.target()
	w.promise(target == w.offered() && w.problem == nil, "%s %s for %s, and the source offers %s", name, gets, target, w.offered())
	w.promise(!w.rollout.Spec.Suspend, "%s %s while the StackRollout is suspended", name, gets)
	w.promise(!w.decidedAbout(autov1alpha1.ApprovalReject), "%s %s for a revision that was rejected", name, gets)
	w.promise(!a.isOut(), "%s %s, and is left out", name, gets)
	w.promise(w.reports(a) || !a.waitsFor(target), "%s %s before the Stack that it depends on has %s", name, gets, target)
	w.promise(w.reports(a) || !w.isBehind(a), "%s %s for %s, and its source offers %s", name, gets, target, w.offerOf(a).Revision)
	failures, allowed := map[int]int{}, w.allowed()
	for _, other := range w.actors {
		culprit := w.culprit(other, target, nil)
		failed, brokenBefore := culprit != nil || w.isDrifted(other), culprit != nil && !culprit.released[successOf(culprit)]
		if other.isOut() || brokenBefore {
			continue
		}
		if failed && other.wave <= a.wave {
			failures[other.wave]++
			w.promise(failures[other.wave] <= allowed, "%s %s although %s failed with %s", name, gets, other.Name, target)
		}
		if other.wave < a.wave && !failed && !w.lags(other, nil) { // as many may fail
			w.judgeEarlier(a, other, gets)
		}
	}
}

// judgeEarlier checks that a Stack of an earlier wave has the target.
func (w *walker) judgeEarlier(a, other *actor, gets string) {
	target, wave := w.target(), &w.rollout.Spec.Waves[other.wave]
	w.promise(other.isDone(target), "%s %s before %s has %s", a.Name, gets, other.Name, target)
	ended, ran := other.ended[target]
	w.promise(!wave.NoDrift || !ran || other.clean[target], "%s %s before %s has looked for drift", a.Name, gets, other.Name)
	soaked := !ran || w.now.Sub(ended) >= waves.SoakOf(wave) || w.promoted("")
	w.promise(soaked, "%s %s %s after %s was updated", a.Name, gets, w.now.Sub(ended), other.Name)
}

// judgeTurn checks that the Stack may get a turn.
func (w *walker) judgeTurn(a *actor) {
	if a.hasDrift() && a.has() == w.target() {
		return // it has the target, and looks for drift again
	}
	const gets = "gets a turn"
	w.judge(a, gets)
	wave, promoted := &w.rollout.Spec.Waves[a.wave], w.promoted("")
	if w.reports(a) {
		w.promise(wave.NoDrift && !a.isChecked(), "%s %s for what it has, which it has looked for drift with", a.Name, gets)
		return
	}
	w.promise(promoted || w.isOpen(), "%s %s while no window is open", a.Name, gets)
	w.promise(promoted || wave.Promotion != autov1alpha1.PromoteManual || w.promoted(wave.Name), "%s %s in a wave that nobody promoted", a.Name, gets)
	w.promise(!w.isShut(a), "%s %s while its own windows are closed", a.Name, gets)
	w.promise(w.isApproved(a), "%s %s, and its plan is not approved", a.Name, gets)
}

// judgeOldTurn checks that a Stack that cannot use its turn does not have it any longer.
func (w *walker) judgeOldTurn(a *actor) {
	if target := w.target(); a.running == nil && !a.isDone(target) && w.culprit(a, target, nil) == nil && !a.isOut() && !a.overdue {
		w.promise(!w.isShut(a) && w.isApproved(a) && !a.waitsFor(target) && !w.isBehind(a), "%s keeps its turn, and cannot use it", a.Name)
	}
}

// judgeCounts checks that Stacks that have the target count as what they are: updated to it, or with the same content.
func (w *walker) judgeCounts(d decision) {
	if d.failed || len(w.rollout.Status.Waves) == 0 {
		return
	}
	updated, unchanged := 0, 0
	for _, entry := range w.rollout.Status.Waves {
		updated, unchanged = updated+int(entry.Updated), unchanged+int(entry.Unchanged)
	}
	have, ran := 0, 0
	for _, a := range w.actors {
		if !a.isOut() && w.reports(a) {
			have++
			if waves.IsNameOfTarget(a.Status.LastUpdate.Revision, &w.rollout.Status) {
				ran++
			}
		}
	}
	w.promise(updated <= ran, "%d count as updated, and %d were", updated, ran)
	w.promise(unchanged <= have, "%d count as unchanged, and %d have it", unchanged, have)
}

// isDrifted reports whether drift that it has found after its last update counts as a failure.
func (w *walker) isDrifted(a *actor) bool {
	return w.rollout.Spec.Waves[a.wave].NoDrift && w.turnOf(a) != nil && w.reports(a) && !a.edited && a.hasDrift() && a.isChecked()
}

// isChecked reports whether it has looked for drift since its last update.
func (a *actor) isChecked() bool {
	drift := a.Status.Drift
	return drift != nil && drift.CheckedUpdate == a.Status.LastUpdate.Name
}

// allowed is how many Stacks of a wave may fail.
func (w *walker) allowed() int {
	if most := w.rollout.Spec.MaxFailures; most != nil {
		return most.IntValue()
	}
	return 0
}

// isApproved reports whether the Stack needs no plan, or has one of the target that is approved.
func (w *walker) isApproved(a *actor) bool {
	plan := a.Status.Plan
	return a.Spec.Approval == nil || plan != nil && plan.State == pulumiv1.PlanApproved && letter(plan.Commit) == w.target()
}

// isBehind reports whether the source of the Stack offers something else than the target.
func (w *walker) isBehind(a *actor) bool {
	return a.own != nil && a.own.Revision != w.rollout.Status.Target.Revision
}

// reports reports whether the status of the Stack says that it has the target. One with its own source knows the name of the revision only.
func (w *walker) reports(a *actor) bool {
	return a.isDone(w.target()) && (a.own == nil || a.Status.LastAppliedRevision == w.rollout.Status.Target.Revision)
}

// culprit returns the Stack if it failed with the revision, or one that it depends on and that did; nil when there is none.
func (w *walker) culprit(a *actor, letter string, seen []*actor) *actor {
	if w.reports(a) && w.isUnhealthy(a) || a.counts() && a.has() == letter && (a.own == nil || waves.IsNameOfTarget(a.Status.LastUpdate.Revision, &w.rollout.Status)) {
		return a
	}
	other := a.requires
	if other == nil || a.has() == letter || other.isOut() || other.wave > a.wave || slices.Contains(seen, a) {
		return nil
	}
	return w.culprit(other, letter, append(seen, a))
}

// lags reports whether the Stack takes too long, or depends on one that does: it counts as failing.
func (w *walker) lags(a *actor, seen []*actor) bool {
	return a != nil && !slices.Contains(seen, a) && (a.overdue || w.lags(a.requires, append(seen, a)))
}

// isOpen reports whether the windows of the StackRollout allow updates.
func (w *walker) isOpen() bool {
	return len(w.rollout.Spec.Windows) == 0 || slices.ContainsFunc(w.rollout.Spec.Windows, func(window autov1alpha1.Window) bool {
		return !w.now.Before(window.From.Time) && w.now.Before(window.Until.Time)
	})
}

// successOf returns the letter of the revision with which the Stack succeeded last; "" if it never did.
func successOf(a *actor) string {
	if a.Status.LastUpdate == nil {
		return ""
	}
	return letter(a.Status.LastUpdate.LastSuccessfulCommit)
}

// forgetRejected removes the revisions that somebody has rejected from those that new Stacks begin with.
func (w *walker) forgetRejected() {
	maps.DeleteFunc(w.complete, func(letter string, _ bool) bool {
		return slices.ContainsFunc(w.approvals, func(approval autov1alpha1.ApprovalSpec) bool {
			return approval.Decision == autov1alpha1.ApprovalReject && approval.Digest == revision(letter).Digest
		})
	})
}

// decidedAbout reports whether an Approval that counts decides so about the target.
func (w *walker) decidedAbout(decision autov1alpha1.ApprovalDecision) bool {
	return slices.ContainsFunc(w.approvals, func(approval autov1alpha1.ApprovalSpec) bool {
		return approval.Decision == decision && approval.Digest == revision(w.target()).Digest
	})
}

// promoted reports whether an Approval that counts promotes the wave, or all waves if it is empty.
func (w *walker) promoted(wave string) bool {
	return slices.ContainsFunc(w.approvals, func(approval autov1alpha1.ApprovalSpec) bool {
		return approval.Decision == autov1alpha1.ApprovalApprove && approval.Digest == revision(w.target()).Digest && approval.Wave == wave
	})
}
