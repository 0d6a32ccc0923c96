package rollout

import (
	"cmp"
	"fmt"
	"slices"
	"time"

	apimeta "k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/event"

	"github.com/fluxcd/pkg/apis/meta"
	sourcev1 "github.com/fluxcd/source-controller/api/v1"

	autov1alpha1 "github.com/stack-controller/stack-controller/api/auto/v1alpha1"
	pulumiv1 "github.com/stack-controller/stack-controller/api/pulumi/v1"
	"github.com/stack-controller/stack-controller/internal/waves"
	"github.com/stack-controller/stack-controller/internal/windows"
)

// actor is a Stack that does what the Stack controller does, with what a walker remembers of it.
type actor struct {
	*pulumiv1.Stack
	// contents has what it consists of with each revision, by its letter.
	contents map[string]string
	// own is what its source offers, if that is another one of the same repository, and packs it differently; nil if it has the source of the StackRollout.
	own *autov1alpha1.RolloutRevision
	// requires is the Stack that it depends on; nil for none.
	requires *actor
	// running is the revision that it is being updated to; nil when it is not. free is true if that needs no turn, or the StackRollout does not know of it:
	// the Stack saw an earlier status, or the status was lost since.
	running *autov1alpha1.RolloutRevision
	free    bool
	// done is the letter of the target that it had by the last decision.
	done string
	// overdue is true once it has its turn for longer than it may: it keeps it and counts as failing, or, after a pause, gets its time again.
	overdue bool
	// edited is true when it has to be updated because of its own specification.
	edited bool
	// released has the letters of the revisions that it was let have, and byHand of those that an annotation let it have.
	released, byHand map[string]bool
	// ended has when its last update to a revision ended, and clean after which revisions it looked for drift and found none, since it came to its wave.
	ended map[string]time.Time
	clean map[string]bool
	// wave is the index of its wave, and tier what that is known by, see identityOf.
	wave int
	tier string
}

// has returns the letter of the revision that the Stack ran last; "" if it never ran one.
func (a *actor) has() string {
	if a.Status.LastUpdate == nil {
		return ""
	}
	return letter(a.Status.LastUpdate.LastAttemptedCommit)
}

// failed reports whether its last update did not succeed.
func (a *actor) failed() bool {
	return a.Status.LastUpdate != nil && a.Status.LastUpdate.State == pulumiv1.StackUpdateFailed
}

// counts reports whether that is a failure of what it ran, and no interruption.
func (a *actor) counts() bool {
	return a.failed() && a.Status.LastUpdate.Interruptions == 0 && a.Status.LastUpdate.Conflicts == 0
}

// succeededWith reports whether the last update of the Stack was one to the revision, or to one with the same content, and succeeded.
func (a *actor) succeededWith(letter string) bool { return a.has() == letter && !a.failed() }

// isDone reports whether it succeeded with the revision, and an update to the same at most was interrupted since.
func (a *actor) isDone(letter string) bool {
	return a.has() == letter && !a.counts() && successOf(a) == letter
}

// isOut reports whether nobody waits for the Stack.
func (a *actor) isOut() bool { return a.Spec.Suspend || !a.DeletionTimestamp.IsZero() }

// waitsFor reports whether the Stack depends on one that does not have the revision.
func (a *actor) waitsFor(letter string) bool {
	return a.requires != nil && !a.requires.isOut() && !a.requires.isDone(letter)
}

// isShut reports whether its own windows forbid what changes something.
func (w *walker) isShut(a *actor) bool {
	state, err := windows.At(a.Spec.Windows, w.now)
	return err != nil || !state.Open
}

// hasDrift reports whether its last check has found drift.
func (a *actor) hasDrift() bool { return a.Status.Drift != nil && a.Status.Drift.Digest != "" }

// offerOf returns what the source of the Stack offers.
func (w *walker) offerOf(a *actor) autov1alpha1.RolloutRevision {
	if a.own != nil {
		return *a.own
	}
	return w.main
}

// change changes the Stack, which wakes the StackRollout as its watch does.
func (w *walker) change(a *actor, change func(*pulumiv1.Stack)) {
	before := a.DeepCopy()
	change(a.Stack)
	w.resources++
	a.ResourceVersion = fmt.Sprint(w.resources)
	if concerns(event.UpdateEvent{ObjectOld: before, ObjectNew: a.Stack}) {
		w.wake(byStacks)
	}
}

// join creates a Stack that was never updated.
func (w *walker) join(tier string) *actor {
	w.joined++
	stack := w.add(fmt.Sprintf("s%d", w.joined), false)
	if tier != "" {
		stack.Labels = map[string]string{"tier": tier}
	}
	stack.Status = pulumiv1.StackStatus{}
	a := &actor{Stack: stack, contents: map[string]string{}, released: map[string]bool{}, byHand: map[string]bool{}}
	a.ended, a.clean = map[string]time.Time{}, map[string]bool{}
	for _, letter := range w.letters {
		a.contents[letter] = letter
	}
	if w.random.IntN(4) == 0 {
		stack.Spec.FluxSource.SourceRef = pulumiv1.FluxSourceReference{Kind: sourcev1.GitRepositoryKind, Name: "own-" + stack.Name}
		a.own = packed(w.main)
	}
	if w.random.IntN(4) == 0 {
		stack.Spec.Approval = &pulumiv1.ApprovalPolicy{}
	}
	if w.random.IntN(4) == 0 {
		stack.Spec.Windows = w.someWindows()
	}
	w.actors = append(w.actors, a)
	a.wave = w.waveOf(a)
	a.tier = identityOf(&w.rollout.Spec.Waves[a.wave])
	w.wake(byStacks)
	return a
}

// leave removes a Stack that was deleted, and what depends on it.
func (w *walker) leave(a *actor) {
	w.actors = slices.DeleteFunc(slices.Clone(w.actors), func(other *actor) bool { return other == a })
	w.stacks = slices.DeleteFunc(slices.Clone(w.stacks), func(stack *pulumiv1.Stack) bool { return stack == a.Stack })
	for _, other := range w.actors {
		if other.requires == a {
			w.require(other, nil)
		}
	}
	w.gone[a.tier] = true
	w.wake(byStacks)
}

// require makes the Stack depend on another one, or on none.
func (w *walker) require(a, other *actor) {
	w.change(a, func(stack *pulumiv1.Stack) {
		stack.Generation++
		stack.Spec.DependsOn = nil
		if other != nil {
			stack.Spec.DependsOn = []pulumiv1.DependencyReference{{Name: other.Name}}
		}
	})
	a.requires, a.edited = other, true
}

// act does what the Stack controller does with a Stack that is not being updated, and that sees the StackRollout so.
func (w *walker) act(a *actor, rollout *autov1alpha1.StackRollout) {
	switch {
	case a.running != nil:
		return
	case !a.DeletionTimestamp.IsZero():
		w.leave(a)
		return
	case a.Spec.Suspend:
		return
	}
	offer, has := w.offerOf(a), a.has()
	wants := letter(offer.Digest)
	verdict := waves.Release(a.Stack, rollout, offer, offer.Digest, nil)
	isSame := has != "" && a.contents[has] == a.contents[wants]
	if last := a.Status.LastUpdate; isSame && (last.LastAttemptedCommit != offer.Digest || !a.failed() && a.Status.LastAppliedRevision != offer.Revision) {
		w.change(a, func(stack *pulumiv1.Stack) { accept(stack, offer) })
		return
	}
	if waves.ChecksDrift(a.Stack, rollout) && !a.failed() && !a.edited {
		w.change(a, func(stack *pulumiv1.Stack) { looks(stack, "") })
		a.clean[has] = true
		return
	}
	if !verdict.Released && !isSame { // it is held: it goes on with what it has
		if offer = w.keptFor(a, rollout); !w.kept[letter(offer.Digest)] {
			return
		}
		wants, verdict.PlanOnly = letter(offer.Digest), false
	}
	byHand := waves.IsReleasedByHand(a.Stack, offer) && (has == "" || successOf(a) != wants)
	switch {
	case has == wants && !a.failed() && !a.edited:
	case has != wants && a.waitsFor(wants):
	case a.Spec.Approval != nil && !w.isPlanned(a, offer):
	case verdict.PlanOnly, w.isShut(a) && !byHand:
	default:
		w.run(a, rollout, offer)
	}
}

// keptFor returns the revision that a Stack has which may not have what its source offers: what it ran last, or what new Stacks begin with.
func (w *walker) keptFor(a *actor, rollout *autov1alpha1.StackRollout) (kept autov1alpha1.RolloutRevision) {
	if last := a.Status.LastUpdate; last != nil {
		return autov1alpha1.RolloutRevision{Revision: a.Status.LastAttemptedRevision, Digest: last.LastAttemptedCommit}
	}
	if stable := waves.Beginning(&rollout.Status); stable != nil && a.own == nil {
		kept = *stable
	}
	return kept
}

// accept makes the Stack report that the revision changes nothing for it. One that failed has tried it so, too.
func accept(stack *pulumiv1.Stack, offer autov1alpha1.RolloutRevision) {
	last := stack.Status.LastUpdate
	stack.Status.LastAttemptedRevision, last.LastAttemptedCommit = offer.Revision, offer.Digest
	if last.State == pulumiv1.StackUpdateSucceeded {
		stack.Status.LastAppliedRevision, last.LastSuccessfulCommit = offer.Revision, offer.Digest
	}
}

// isPlanned reports whether a plan of the revision is approved, and makes one if there is none.
func (w *walker) isPlanned(a *actor, offer autov1alpha1.RolloutRevision) bool {
	plan := a.Status.Plan
	isOpen := plan != nil && (plan.State == pulumiv1.PlanPending || plan.State == pulumiv1.PlanApproved)
	if isOpen && a.contents[letter(plan.Commit)] == a.contents[letter(offer.Digest)] {
		w.change(a, func(stack *pulumiv1.Stack) {
			stack.Status.Plan.Commit, stack.Status.Plan.Revision = offer.Digest, offer.Revision
		})
	} else if plan == nil || plan.Commit != offer.Digest || plan.State == pulumiv1.PlanApplied || plan.State == pulumiv1.PlanFailed {
		w.change(a, func(stack *pulumiv1.Stack) {
			stack.Status.Plan = &pulumiv1.PlanStatus{State: pulumiv1.PlanPending, Operation: pulumiv1.ApprovedUp}
			stack.Status.Plan.Commit, stack.Status.Plan.Revision = offer.Digest, offer.Revision
		})
	}
	return a.Status.Plan.State == pulumiv1.PlanApproved
}

// run begins an update.
func (w *walker) run(a *actor, rollout *autov1alpha1.StackRollout, offer autov1alpha1.RolloutRevision) {
	has, wants := a.has(), letter(offer.Digest)
	begins := w.complete
	if rollout != w.rollout {
		begins = w.completeBefore
	}
	isFree := a.byHand[wants] || has == "" && begins[wants]
	w.promise(wants == has || a.released[wants] || isFree, "%s has %s and runs %s, which was never released to it", a.Name, has, wants)
	a.running, a.free = new(offer), rollout != w.rollout || isFree
	a.Status.CurrentUpdate = &pulumiv1.CurrentStackUpdate{Name: "current"}
	a.Status.CurrentUpdate.Commit, a.Status.CurrentUpdate.Revision = offer.Digest, offer.Revision
	w.promise(w.running() <= w.most, "%d Stacks run %s for the first time, and maxConcurrent is %d", w.running(), wants, w.most)
}

// running returns how many Stacks run a revision for the first time: at most the largest number for one revision.
func (w *walker) running() (most int) {
	counts := map[string]int{}
	for _, a := range w.actors {
		if a.running == nil || a.free || a.isOut() || a.overdue || w.isTooLate(a) {
			continue
		}
		if runs := letter(a.running.Digest); runs != a.has() {
			counts[runs]++
			most = max(most, counts[runs])
		}
	}
	return most
}

// outcome is how an update ends.
type outcome string

const (
	succeeds      outcome = "succeeds"
	fails         outcome = "fails"
	isInterrupted outcome = "is interrupted"
	isLocked      outcome = "finds a lock"
)

// end ends an update.
func (w *walker) end(a *actor, how outcome) {
	if a.running == nil {
		return
	}
	ran := *a.running
	repeated := a.done == letter(ran.Digest) || how != fails && a.isDone(letter(ran.Digest)) // which no wave soaks after
	a.running, a.free = nil, false
	w.updates, w.ran = w.updates+1, w.now
	w.change(a, func(stack *pulumiv1.Stack) {
		had, failures := "", pulumiv1.StackUpdateStatus{}
		if last := stack.Status.LastUpdate; last != nil {
			had, failures = last.LastSuccessfulCommit, *last
		}
		last := &pulumiv1.StackUpdateStatus{Name: fmt.Sprint(w.updates), State: pulumiv1.StackUpdateSucceeded}
		last.LastAttemptedCommit, last.LastSuccessfulCommit = ran.Digest, ran.Digest
		last.Revision, last.LastResyncTime = ran.Revision, metav1.NewTime(w.now)
		stack.Status.LastUpdate, stack.Status.CurrentUpdate, stack.Status.LastAttemptedRevision = last, nil, ran.Revision
		ready, plan := metav1.ConditionTrue, pulumiv1.PlanApplied
		switch how {
		case succeeds:
			stack.Status.LastAppliedRevision, stack.Status.ObservedGeneration = ran.Revision, stack.Generation
		case isInterrupted:
			last.Interruptions = failures.Interruptions + 1
		case isLocked:
			last.Conflicts = failures.Conflicts + 1
		default:
			last.Message = "quota exceeded"
		}
		if how != succeeds {
			last.State, last.LastSuccessfulCommit, ready, plan = pulumiv1.StackUpdateFailed, had, metav1.ConditionFalse, pulumiv1.PlanFailed
		}
		if stack.Status.Plan != nil {
			stack.Status.Plan.State = plan
		}
		apimeta.SetStatusCondition(&stack.Status.Conditions, metav1.Condition{Type: meta.ReadyCondition, Status: ready})
	})
	a.edited = a.edited && how != succeeds
	// After the status was lost, nobody knows that what it ran was another name of the target.
	target := w.rollout.Status.Target
	isUnknown := a.has() == w.offered() && ran.Revision != w.main.Revision && (target == nil || !waves.IsNameOfTarget(ran.Revision, &w.rollout.Status))
	if !repeated && !isUnknown {
		a.ended[a.has()] = w.now
	}
	if entry := w.entryOf(w.rollout.Spec.Waves[a.wave].Name); entry != nil && isOver(entry) {
		a.clean[letter(ran.Digest)] = true // one that failed, as one may, and was tried again opens its wave no more
	}
}

// turnOf returns the turn of the Stack; nil when it has none.
func (w *walker) turnOf(a *actor) *autov1alpha1.RolloutTurn {
	i := slices.IndexFunc(w.rollout.Status.Turns, func(turn autov1alpha1.RolloutTurn) bool { return turn.Stack == waves.Name(a.Namespace, a.Name) })
	if i < 0 {
		return nil
	}
	return &w.rollout.Status.Turns[i]
}

// isTooLate reports whether the Stack has a turn for longer than it may: it counts as failing then.
func (w *walker) isTooLate(a *actor) bool {
	turn := w.turnOf(a)
	return turn != nil && w.now.Sub(turn.Since.Time) >= waves.TimeoutOf(&w.rollout.Spec.Waves[a.wave])
}

// tierOf returns the wave that selects the Stack by its labels.
func (w *walker) tierOf(a *actor) int {
	for i := range w.rollout.Spec.Waves {
		if stacks := w.rollout.Spec.Waves[i].Stacks; stacks != nil && stacks.MatchLabels["tier"] == cmp.Or(a.Labels["tier"], "none") {
			return i
		}
	}
	return len(w.rollout.Spec.Waves) - 1
}

// waveOf returns the wave of the Stack: a later one, if its place is beyond the bound that the StackRollout has drawn for this target.
func (w *walker) waveOf(a *actor) int {
	tier, last := w.tierOf(a), len(w.rollout.Spec.Waves)-1
	if w.rollout.Spec.Waves[tier].Limit == nil || w.rollout.Status.Target == nil {
		return tier
	}
	alone := []*waves.Member{{UID: a.UID}}
	target := w.rollout.Status.Target
	if waves.Assign(alone, []autov1alpha1.RolloutWave{{}}, cmp.Or(target.Digest, target.Revision), nil) != nil {
		return last
	}
	for _, entry := range w.rollout.Status.Waves {
		if entry.Name == w.rollout.Spec.Waves[tier].Name && entry.Order != nil && alone[0].Place <= *entry.Order {
			return tier
		}
	}
	return last
}
