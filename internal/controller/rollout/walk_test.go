package rollout

import (
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/event"

	autov1alpha1 "github.com/stack-controller/stack-controller/api/auto/v1alpha1"
	pulumiv1 "github.com/stack-controller/stack-controller/api/pulumi/v1"
	"github.com/stack-controller/stack-controller/internal/waves"
	"github.com/stack-controller/stack-controller/tests/framework/suite"
)

// walker is a fleet with Stacks that do what the Stack controller does, a source, and somebody who changes all of them. It checks what a
// StackRollout promises after each step.
type walker struct {
	*fleet
	// running has the letter of the revision that each Stack is being updated to; empty when it is not. names has the name that it has meanwhile.
	running []string
	names   map[string]string
	// contents has what each Stack consists of with each revision, by its letter.
	contents map[string][]string
	// woken is true when a watch brings the StackRollout back, and due when the time in its last decision does; zero when none does.
	woken bool
	due   time.Time
	// updates is how many have ended.
	updates int
	// clean has the Stacks of wave early and the revisions after which they looked for drift and found none.
	clean map[string]bool
	// released has the revisions that each Stack was let have, and ended when its last update to a revision ended.
	released []map[string]bool
	ended    map[string]time.Time
	// before is the StackRollout before its last decision: some Stacks see it for longer. late is true after one acted on it.
	before *autov1alpha1.StackRollout
	late   bool
	// requires is the Stack that each Stack depends on; -1 for none.
	requires []int
	// byHand is true for those that an annotation lets have the revision, and complete for revisions that all Stacks, and at least one, have had: new ones begin with them.
	byHand   []map[string]bool
	complete map[string]bool
	// completeBefore is what complete was before the last decision, and begins what whoever acts now sees.
	completeBefore, begins map[string]bool
	// steps is what happened, and broken the promises that do not hold.
	steps, broken []string
}

const (
	walkSoak     = time.Hour
	walkInterval = 30 * time.Minute
)

// newWalker returns a walker with a Stack in wave canary, one in wave early and the others in wave rest. Of its other rules, which ones it has
// is random.
func newWalker(t *testing.T, random *rand.Rand) *walker {
	stacks, maxConcurrent := 2+random.IntN(3), 1+random.IntN(2)
	w := &walker{fleet: newFleet(t), contents: map[string][]string{"a": {}}, ended: map[string]time.Time{}, clean: map[string]bool{}, names: map[string]string{},
		complete: map[string]bool{"a": true}}
	w.rollout.Spec.MaxConcurrent = number(maxConcurrent)
	early := autov1alpha1.RolloutWave{Name: "early", Stacks: &metav1.LabelSelector{MatchLabels: map[string]string{"tier": "early"}}}
	w.rollout.Spec.Waves = slices.Insert(w.rollout.Spec.Waves, 1, early)
	w.rollout.Spec.Waves[1].NoDrift = true
	w.rollout.Spec.Waves[0].Soak = &metav1.Duration{Duration: walkSoak}
	w.stacks = nil // those of the fleet
	sometimes := func() bool { return random.IntN(3) == 0 }
	if sometimes() {
		w.rollout.Spec.MaxFailures = number(1)
	}
	if sometimes() {
		w.rollout.Spec.Waves[1+random.IntN(2)].Promotion = autov1alpha1.PromoteManual
	}
	if sometimes() {
		w.rollout.Spec.Windows = []autov1alpha1.Window{
			between(autov1alpha1.WindowAllow, -time.Hour, 2*time.Hour), between(autov1alpha1.WindowAllow, 4*time.Hour, 10_000*time.Hour),
		}
	}
	tiers := []string{"canary", "early"}
	for i := range stacks {
		tier := ""
		if i < len(tiers) {
			tier = tiers[i]
		}
		w.join(tier)
		succeed(w.stacks[i], "a")
		w.stacks[i].Status.LastUpdate.LastResyncTime = metav1.NewTime(noon.Add(-24 * time.Hour))
		w.released[i]["a"] = true
		if i > 0 && sometimes() {
			w.requires[i] = random.IntN(i)
			w.stacks[i].Spec.DependsOn = []pulumiv1.DependencyReference{{Name: w.stacks[w.requires[i]].Name}}
		}
	}
	w.before = w.rollout.DeepCopy()
	w.woken = true
	w.reconcile()
	return w
}

// join creates a Stack that was never updated.
func (w *walker) join(tier string) {
	stack := w.add(fmt.Sprintf("s%d", len(w.stacks)), false)
	if tier != "" {
		stack.Labels = map[string]string{"tier": tier}
	}
	stack.Status = pulumiv1.StackStatus{}
	w.running, w.requires, w.woken = append(w.running, ""), append(w.requires, -1), true
	w.released, w.byHand = append(w.released, map[string]bool{}), append(w.byHand, map[string]bool{})
	for letter, contents := range w.contents {
		w.contents[letter] = append(contents, letter)
	}
}

// letterOf returns the letter of the revision that the Stack ran last; "" if it never ran one.
func letterOf(stack *pulumiv1.Stack) string {
	if stack.Status.LastUpdate == nil {
		return ""
	}
	return strings.TrimPrefix(stack.Status.LastUpdate.LastAttemptedCommit, "sha256:")[:1]
}

func (w *walker) target() string {
	if w.rollout.Status.Target == nil {
		return ""
	}
	return strings.TrimPrefix(w.rollout.Status.Target.Digest, "sha256:")[:1]
}

func (w *walker) offered() string { return strings.TrimPrefix(w.offer.Digest, "sha256:")[:1] }

func (w *walker) promise(kept bool, format string, args ...any) {
	if !kept {
		w.broken = append(w.broken, fmt.Sprintf(format, args...))
	}
}

// change changes the Stack, which wakes the StackRollout as its watch does.
func (w *walker) change(i int, change func(*pulumiv1.Stack)) {
	before := w.stacks[i].DeepCopy()
	change(w.stacks[i])
	w.woken = w.woken || concerns(event.UpdateEvent{ObjectOld: before, ObjectNew: w.stacks[i]})
}

// commit makes the source offer a new revision, which has other content for the Stacks for which differs returns true.
func (w *walker) commit(content func(stack int, letter string) string) {
	letter := string(rune('a' + len(w.contents)))
	w.contents[letter] = make([]string, len(w.stacks))
	for i := range w.stacks {
		w.contents[letter][i] = content(i, letter)
	}
	w.offer, w.woken = new(revision(letter)), true
}

// act does what the Stack controller does with a Stack that is not being updated, and that sees the StackRollout so.
func (w *walker) act(i int, rollout *autov1alpha1.StackRollout) {
	stack, offer := w.stacks[i], w.offered()
	if w.begins = w.complete; rollout != w.rollout {
		w.begins = w.completeBefore
	}
	if w.running[i] != "" || stack.Spec.Suspend {
		return
	}
	if waves.ChecksDrift(stack, rollout) && stack.Status.LastUpdate.State == pulumiv1.StackUpdateSucceeded {
		w.change(i, func(stack *pulumiv1.Stack) { looks(stack, "") })
		w.clean[stack.Name+letterOf(stack)] = true
		return
	}
	last, has := stack.Status.LastUpdate, letterOf(stack)
	failed := last != nil && last.State == pulumiv1.StackUpdateFailed
	released := waves.Release(stack, rollout, *w.offer, w.offer.Digest, nil).Released
	same := last != nil && w.contents[has][i] == w.contents[offer][i]
	switch {
	case !failed && has != offer && same:
		w.change(i, func(stack *pulumiv1.Stack) {
			unchanged(stack, offer)
			stack.Status.LastUpdate.LastAttemptedCommit, stack.Status.LastUpdate.LastSuccessfulCommit = revision(offer).Digest, revision(offer).Digest
		})
	case released && w.waitsFor(i, offer):
	case released && (failed || has != offer):
		w.run(i, offer)
	case failed:
		w.run(i, has)
	}
}

// waitsFor reports whether the Stack depends on one that does not have the revision, and is not suspended.
func (w *walker) waitsFor(i int, letter string) bool {
	if w.requires[i] < 0 {
		return false
	}
	other := w.stacks[w.requires[i]]
	return !other.Spec.Suspend && !succeededWith(other, letter)
}

// succeededWith reports whether the last update of the Stack was one to the revision, and succeeded.
func succeededWith(stack *pulumiv1.Stack, letter string) bool {
	return letterOf(stack) == letter && stack.Status.LastUpdate.State == pulumiv1.StackUpdateSucceeded
}

// run begins an update.
func (w *walker) run(i int, letter string) {
	stack := w.stacks[i]
	has := letterOf(stack)
	begins := has == "" && w.begins[letter]
	w.promise(letter == has || w.released[i][letter] || w.byHand[i][letter] || begins, "%s has %s and runs %s, which was never released to it", stack.Name, has, letter)
	w.running[i], w.names[stack.Name] = letter, revision(letter).Revision
	if letter == w.offered() {
		w.names[stack.Name] = w.offer.Revision
	}
	count := 0
	for j := range w.stacks {
		if w.running[j] == letter && letterOf(w.stacks[j]) != letter && w.released[j][letter] && !w.byHand[j][letter] {
			count++
		}
	}
	most := int(w.rollout.Spec.MaxConcurrent.IntVal)
	w.promise(count <= most || w.late, "%d Stacks run %s for the first time, and maxConcurrent is %d", count, letter, most)
}

// end ends an update.
func (w *walker) end(i int, well bool) {
	letter := w.running[i]
	if letter == "" {
		return
	}
	w.running[i] = ""
	w.ended[w.stacks[i].Name+letter] = w.now
	w.change(i, func(stack *pulumiv1.Stack) {
		if well {
			succeed(stack, letter)
		} else {
			fail(stack, letter)
		}
		w.updates++
		stack.Status.LastUpdate.Revision = w.names[stack.Name]
		stack.Status.LastUpdate.Name = fmt.Sprint(w.updates)
	})
}

// reconcile lets the StackRollout decide if something brings it back.
func (w *walker) reconcile() {
	if !w.woken && (w.due.IsZero() || w.now.Before(w.due)) {
		return
	}
	w.before = w.rollout.DeepCopy()
	before := &w.before.Status
	w.completeBefore = maps.Clone(w.complete)
	d := w.decide()
	w.woken, w.due = false, time.Time{}
	w.promise(w.target() == w.offered(), "the target is %s, and the source offers %s", w.target(), w.offered())
	if d.after > 0 {
		w.due = w.now.Add(d.after)
	}
	if d.complete && slices.ContainsFunc(w.stacks, func(stack *pulumiv1.Stack) bool {
		return !stack.Spec.Suspend && stack.Status.LastAppliedRevision == revision(w.target()).Revision
	}) {
		w.complete[w.target()] = true
	}
	w.forgetRejected()
	w.promise(d.wake != "", "the decision %s names no waker", d.reason)
	w.promise(d.wake != byTime || d.after > 0, "the decision %s waits for no time", d.reason)
	target := w.target()
	for i, stack := range w.stacks {
		had := waves.HasTurn(before, stack.Namespace, stack.Name) && before.Target != nil && before.Target.Digest == w.offer.Digest
		if has := waves.HasTurn(&w.rollout.Status, stack.Namespace, stack.Name); has && !had {
			w.judgeTurn(i)
			w.released[i][target] = true
		}
	}
	drifted := 0
	for i := range w.stacks {
		if found := w.stacks[i].Status.Drift; found != nil && found.Digest != "" {
			drifted++ // such a Stack keeps its turn, and takes no place
		}
	}
	w.promise(len(w.rollout.Status.Turns)-drifted <= int(w.rollout.Spec.MaxConcurrent.IntVal), "%d turns", len(w.rollout.Status.Turns))
}

// judgeTurn checks that the Stack may get a turn.
func (w *walker) judgeTurn(i int) {
	name, target := w.stacks[i].Name, w.target()
	if found := w.stacks[i].Status.Drift; found != nil && found.Digest != "" && letterOf(w.stacks[i]) == target {
		return // it has the target, and looks for drift again
	}
	w.promise(target == w.offered(), "%s gets a turn for %s, and the source offers %s", name, target, w.offered())
	w.promise(!w.rollout.Spec.Suspend, "%s gets a turn while the StackRollout is suspended", name)
	w.promise(!w.decidedAbout(autov1alpha1.ApprovalReject), "%s gets a turn for a revision that was rejected", name)
	wave, promoted := &w.rollout.Spec.Waves[w.waveOf(i)], w.promoted("")
	w.promise(promoted || w.isOpen(), "%s gets a turn while no window is open", name)
	w.promise(promoted || wave.Promotion != autov1alpha1.PromoteManual || w.promoted(wave.Name), "%s gets a turn in a wave that nobody promoted", name)
	w.promise(!w.waitsFor(i, target), "%s gets a turn before the Stack that it depends on has %s", name, target)
	failures, allowed := map[int]int{}, 0
	if most := w.rollout.Spec.MaxFailures; most != nil {
		allowed = most.IntValue()
	}
	for j, other := range w.stacks {
		failed := w.fails(j, target)
		brokenBefore := failed && !w.released[j][successOf(other)]
		if other.Spec.Suspend || brokenBefore {
			continue
		}
		if failed && w.waveOf(j) <= w.waveOf(i) {
			failures[w.waveOf(j)]++
			w.promise(failures[w.waveOf(j)] <= allowed, "%s gets a turn although %s failed with %s", name, other.Name, target)
		}
		if w.waveOf(j) >= w.waveOf(i) {
			continue
		}
		if failed {
			continue // as many may fail
		}
		applied := other.Status.LastAppliedRevision == revision(target).Revision && succeededWith(other, target)
		w.promise(applied, "%s gets a turn before %s has %s", name, other.Name, target)
		ended, ran := w.ended[other.Name+target]
		// One that failed, as one may, and was tried again opens its wave no more.
		w.promise(w.waveOf(j) != 1 || !ran || w.clean[other.Name+target] || allowed > 0, "%s gets a turn before %s has looked for drift", name, other.Name)
		soaked := !ran || w.waveOf(j) != 0 || w.now.Sub(ended) >= walkSoak || w.promoted("")
		w.promise(soaked, "%s gets a turn %s after %s was updated", name, w.now.Sub(ended), other.Name)
	}
}

// fails reports whether the Stack failed with the revision, or depends on one that did.
func (w *walker) fails(i int, letter string) bool {
	last, has := w.stacks[i].Status.LastUpdate, letterOf(w.stacks[i])
	if last != nil && has == letter && last.State == pulumiv1.StackUpdateFailed {
		return true
	}
	return w.requires[i] >= 0 && has != letter && !w.stacks[w.requires[i]].Spec.Suspend && w.fails(w.requires[i], letter)
}

// isOpen reports whether the windows of the StackRollout allow updates.
func (w *walker) isOpen() bool {
	return len(w.rollout.Spec.Windows) == 0 || slices.ContainsFunc(w.rollout.Spec.Windows, func(window autov1alpha1.Window) bool {
		return !w.now.Before(window.From.Time) && w.now.Before(window.Until.Time)
	})
}

// successOf returns the letter of the revision with which the Stack succeeded last; "" if it never did.
func successOf(stack *pulumiv1.Stack) string {
	if last := stack.Status.LastUpdate; last != nil && last.LastSuccessfulCommit != "" {
		return strings.TrimPrefix(last.LastSuccessfulCommit, "sha256:")[:1]
	}
	return ""
}

func (w *walker) waveOf(i int) int {
	return map[string]int{"canary": 0, "early": 1, "": 2}[w.stacks[i].Labels["tier"]]
}

// options are what can happen next.
func (w *walker) options() map[string]func() {
	all := map[string]func(){
		"reconcile": w.reconcile,
		"time":      func() { w.now = w.now.Add(walkInterval) },
		"suspend": func() {
			w.rollout.Spec.Suspend, w.woken = !w.rollout.Spec.Suspend, true
		},
	}
	maps.Copy(all, w.otherOptions())
	if len(w.contents) < 6 {
		had := w.contents[w.offered()]
		all["commit"] = func() { w.commit(func(_ int, letter string) string { return letter }) }
		all["commit for the first"] = func() {
			w.commit(func(i int, letter string) string {
				if i == 0 {
					return letter
				}
				return had[i]
			})
		}
		all["revert"] = func() { w.commit(func(int, string) string { return "a" }) }
	}
	if target := w.target(); target != "" && len(w.approvals) < 3 {
		all["approve"] = func() { w.approve(autov1alpha1.ApprovalApprove, "", target); w.woken = true }
		for i := range w.rollout.Spec.Waves {
			if wave := &w.rollout.Spec.Waves[i]; wave.Promotion == autov1alpha1.PromoteManual {
				all["promote "+wave.Name] = func() { w.approve(autov1alpha1.ApprovalApprove, wave.Name, target); w.woken = true }
			}
		}
		all["reject"] = func() { w.approve(autov1alpha1.ApprovalReject, "", target); w.woken = true }
	}
	if len(w.stacks) < 5 {
		for _, tier := range []string{"canary", "early", ""} {
			all["one joins wave "+tier] = func() { w.join(tier) }
		}
	}
	for i, stack := range w.stacks {
		all[stack.Name+" is let have it"] = func() {
			metav1.SetMetaDataAnnotation(&stack.ObjectMeta, pulumiv1.ReleaseRevisionAnnotation, w.offer.Revision)
			w.byHand[i][w.offered()], w.woken = true, true
		}
		if w.running[i] == "" {
			all[stack.Name+" acts"] = func() { w.act(i, w.rollout) }
			all[stack.Name+" acts late"] = func() {
				w.late = true
				w.act(i, w.before)
			}
		} else {
			all[stack.Name+" ends"] = func() { w.end(i, true) }
			all[stack.Name+" fails"] = func() { w.end(i, false) }
		}
		if waves.ChecksDrift(stack, w.rollout) && w.running[i] == "" {
			all[stack.Name+" finds drift"] = func() { w.change(i, func(stack *pulumiv1.Stack) { looks(stack, "drift") }) }
		}
		all[stack.Name+" is suspended or resumed"] = func() {
			w.change(i, func(stack *pulumiv1.Stack) { stack.Spec.Suspend = !stack.Spec.Suspend; stack.Generation++ })
			w.change(i, func(stack *pulumiv1.Stack) { stack.Status.ObservedGeneration = stack.Generation })
		}
	}
	return all
}

// settle lets everybody do what they do by themselves, and expects that all Stacks have what the source offers in the end.
func (w *walker) settle() {
	w.rollout.Spec.Suspend, w.woken = false, true
	for i := range w.rollout.Spec.Waves {
		w.rollout.Spec.Waves[i].Promotion = ""
	}
	for i := range w.stacks {
		w.change(i, func(stack *pulumiv1.Stack) { stack.Spec.Suspend = false })
	}
	w.reconcile()
	if w.decidedAbout(autov1alpha1.ApprovalReject) {
		w.commit(func(_ int, letter string) string { return letter })
	}
	for range 100 {
		w.reconcile()
		for i := range w.stacks {
			w.act(i, w.rollout)
			w.end(i, true)
		}
		if w.last.complete && !w.woken {
			break
		}
		if !w.woken {
			if w.due.IsZero() {
				break
			}
			w.now = w.due
		}
	}
	w.promise(w.last.complete, "it ends, and not with %s: %s", w.last.reason, w.last.message)
	for _, stack := range w.stacks {
		w.promise(stack.Status.LastAppliedRevision == revision(w.offered()).Revision, "%s has %s in the end, and not %s", stack.Name, stack.Status.LastAppliedRevision, w.offered())
	}
}

// TestWhateverHappensTheRolloutKeepsItsPromises walks at random, with seeds that are always the same, and checks after each step that no Stack
// runs what was not released to it, that no wave begins before those before are done and have soaked, that no more Stacks are updated at once than may be, and,
// after each walk, that all Stacks get the newest revision when nothing fails any longer.
func TestWhateverHappensTheRolloutKeepsItsPromises(t *testing.T) {
	suite.WithoutRaceDetector(t)
	start, steps := time.Now(), 0
	happened := map[string]int{}
	for seed := range uint64(4000) {
		random := rand.New(rand.NewPCG(seed, 1))
		w := newWalker(t, random)
		for range 30 {
			options := w.options()
			names := slices.Sorted(maps.Keys(options))
			name := names[random.IntN(len(names))]
			if random.IntN(2) == 0 {
				name = "reconcile" // it is seldom late
			}
			w.steps = append(w.steps, name)
			options[name]()
			steps++
			if len(w.broken) > 0 {
				t.Fatalf("seed %d: %s\nafter: %s", seed, strings.Join(w.broken, "; "), strings.Join(w.steps, ", "))
			}
			happened[w.last.reason]++
		}
		w.settle()
		if len(w.broken) > 0 {
			t.Fatalf("seed %d: %s\nafter: %s", seed, strings.Join(w.broken, "; "), strings.Join(w.steps, ", "))
		}
	}
	t.Logf("%d steps in %s, with the reasons %v", steps, time.Since(start).Round(time.Millisecond), happened)
	for _, reason := range []string{
		autov1alpha1.RolloutCompleteReason, autov1alpha1.RolloutProgressingReason, autov1alpha1.RolloutSoakingReason, autov1alpha1.RolloutSuspendedReason,
		autov1alpha1.RolloutHaltedReason, autov1alpha1.RevisionRejectedReason,
	} {
		if happened[reason] == 0 {
			t.Errorf("%s never happened", reason)
		}
	}
}
