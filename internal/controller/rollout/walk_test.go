package rollout

import (
	"maps"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	autov1alpha1 "github.com/stack-controller/stack-controller/api/auto/v1alpha1"
	pulumiv1 "github.com/stack-controller/stack-controller/api/pulumi/v1"
	"github.com/stack-controller/stack-controller/internal/report/reasons"
	"github.com/stack-controller/stack-controller/internal/waves"
	"github.com/stack-controller/stack-controller/tests/framework/suite"
)

// walker is a fleet with Stacks that do what the Stack controller does, their sources, and somebody who changes all of them. It checks what a
// StackRollout promises after each step.
//
// It has no controller whose cache has a part of the Stacks: the tests of shards have that.
type walker struct {
	*fleet
	random *rand.Rand
	actors []*actor
	joined int
	// letters are the revisions of the repository, newest is the last one, and main is what the source of the StackRollout offers.
	letters      []string
	newest, main autov1alpha1.RolloutRevision
	// kept has the letters of the revisions that the store has.
	kept map[string]bool
	// woken is true when a watch brings the StackRollout back, and due when the time in its last decision does; zero when none does.
	woken bool
	due   time.Time
	// settling is true in the end, when only what a decision names brings the StackRollout back.
	settling bool
	// version changes with each change of the StackRollout, and resources counts the changes of Stacks.
	version, resources int
	// most is how many Stacks may be updated at once. A lower maxConcurrent takes effect when as few are.
	most int
	// sight is what another controller has seen.
	sight *sight
	// updates is how many have ended, and ran when the last one did, as far as the StackRollout knows.
	updates int
	ran     time.Time
	// before is the StackRollout before its last decision: some Stacks see it for longer.
	before *autov1alpha1.StackRollout
	// complete has the revisions that all Stacks, and at least one, have had: new ones begin with them. completeBefore is what it was before the last decision.
	complete, completeBefore map[string]bool
	// gone has the tiers of waves that a Stack has left since the last decision about waves: what another one does there meanwhile takes its place.
	gone map[string]bool
	// steps is what happened, and broken the promises that do not hold.
	steps, broken []string
}

const (
	walkSoak     = time.Hour
	walkInterval = 30 * time.Minute
	// walkLetters stand for the revisions of a repository, of which there are at most maxLetters before the end. Each is a digit of a checksum.
	walkLetters = "abcdef123456789"
	maxLetters  = 10
	// walkLong is longer than everything that a StackRollout waits for.
	walkLong = 100 * time.Hour
)

// newWalker returns a walker with a Stack in each of the first waves, and the others in wave rest. Of other rules, which ones it has is random.
func newWalker(t *testing.T, random *rand.Rand) *walker {
	w := &walker{fleet: newFleet(t), random: random, letters: []string{"a"}, main: revision("a"), newest: revision("a")}
	w.kept, w.complete, w.gone = map[string]bool{"a": true}, map[string]bool{"a": true}, map[string]bool{}
	w.behind = func(stack *pulumiv1.Stack, status *autov1alpha1.StackRolloutStatus) bool {
		i := slices.IndexFunc(w.actors, func(a *actor) bool { return a.Stack == stack })
		own := w.actors[i].own
		return own != nil && (status.Target == nil || !waves.Same(*own, status.Target.RolloutRevision))
	}
	w.stacks = nil // those of the fleet
	sometimes := func() bool { return random.IntN(3) == 0 }
	spec := &w.rollout.Spec
	spec.MaxConcurrent = number(1 + random.IntN(2))
	w.most = spec.MaxConcurrent.IntValue()
	if !sometimes() {
		spec.Waves = slices.Insert(spec.Waves, 1, earlyWave())
	}
	if sometimes() {
		spec.Waves[random.IntN(len(spec.Waves))].Check = walkCheck
	}
	soaks, checks := random.IntN(len(spec.Waves)), random.IntN(len(spec.Waves))
	spec.Waves[soaks].Soak, spec.Waves[checks].NoDrift = &metav1.Duration{Duration: walkSoak}, true
	if sometimes() {
		spec.Waves[0].Limit = number(1)
	}
	if sometimes() {
		spec.MaxFailures = number(1)
	}
	if sometimes() {
		spec.Waves[1+random.IntN(len(spec.Waves)-1)].Promotion = autov1alpha1.PromoteManual
	}
	if sometimes() {
		spec.Windows = w.someWindows()
	}
	tiers := []string{"canary", "early", "", ""}
	for i := range 2 + random.IntN(3) {
		a := w.join(tiers[i])
		a.contents["a"] = "a"
		succeed(a.Stack, "a")
		if a.own != nil {
			a.Status.LastUpdate.LastAttemptedCommit, a.Status.LastUpdate.LastSuccessfulCommit = a.own.Digest, a.own.Digest
		}
		a.Status.LastUpdate.LastResyncTime = metav1.NewTime(noon.Add(-24 * time.Hour))
		a.released["a"] = true
	}
	for _, a := range w.actors {
		if other := w.actors[random.IntN(len(w.actors))]; sometimes() && other != a {
			a.requires, a.Spec.DependsOn = other, []pulumiv1.DependencyReference{{Name: other.Name}}
		}
	}
	for i := range w.rollout.Status.Waves {
		w.rollout.Status.Waves[i].SoakingSince = nil
	}
	w.before, w.woken = w.rollout.DeepCopy(), true
	w.reconcile()
	return w
}

func (w *walker) target() string {
	if w.rollout.Status.Target == nil {
		return ""
	}
	return letter(w.rollout.Status.Target.Digest)
}

func (w *walker) offered() string { return letter(w.main.Digest) }

// reconcile lets the StackRollout decide if something brings it back.
func (w *walker) reconcile() {
	if !w.woken && (w.due.IsZero() || w.now.Before(w.due)) {
		return
	}
	w.woken = false
	w.version++
	w.decideNow()
}

// step lets something happen.
func (w *walker) step() {
	options, name := map[string]func(){}, "reconcile" // it is seldom late
	switch n := w.random.IntN(20); {
	case n < 8:
		options[name] = w.reconcile
	case n < 10 && w.last.complete && w.target() == letter(w.newest.Digest) && len(w.letters) < maxLetters:
		options = w.commits()
		fallthrough
	case n < 15:
		maps.Copy(options, w.progress())
		fallthrough
	default:
		if n >= 15 {
			options = w.options()
		}
		options["time"] = func() { w.now = w.now.Add(walkInterval) }
		options["more time"] = func() { w.now = w.now.Add(4 * walkInterval) }
		names := slices.Sorted(maps.Keys(options))
		name = names[w.random.IntN(len(names))]
	}
	w.steps = append(w.steps, name)
	options[name]()
}

// settle lets everybody do what they do by themselves, and what a decision waits for, and expects that all Stacks have the newest revision in the end.
func (w *walker) settle() {
	for _, a := range w.actors {
		w.change(a, func(stack *pulumiv1.Stack) { stack.Spec.Suspend = false })
	}
	if w.problem == nil {
		w.poll()
	}
	w.woken = true
	w.reconcile()
	w.settling = true
	for range 200 {
		w.reconcile()
		if w.last.complete && !w.woken && w.isSettled() || len(w.broken) > 0 {
			break
		}
		w.comply()
		for _, a := range w.actors {
			w.act(a, w.rollout)
			w.approvePlan(a)
			w.act(a, w.rollout)
			w.end(a, succeeds)
		}
		switch left := w.due.Sub(w.now); {
		case w.woken:
		case w.last.complete, slices.ContainsFunc(w.actors, w.isShut):
			w.now = w.now.Add(walkInterval) // Stacks that failed wait for their own windows
		case !w.due.IsZero():
			w.promise(left <= walkLong, "only time brings it back, in %s", left)
			w.now = w.due
		}
	}
	w.promise(w.last.complete && w.isSettled(), "it ends, and not with %s, which waits for %s: %s", w.last.reason, w.last.wake, w.last.message)
}

// isSettled reports whether all Stacks have the newest revision.
func (w *walker) isSettled() bool {
	return !slices.ContainsFunc(w.actors, func(a *actor) bool { return !a.DeletionTimestamp.IsZero() || !a.succeededWith(letter(w.newest.Digest)) })
}

// comply does what the last decision waits for, if that is something that nobody does by themselves.
func (w *walker) comply() {
	if w.last.wake == bySource {
		for _, a := range w.actors {
			w.pollOwn(a)
		}
	}
	switch w.last.reason {
	case autov1alpha1.RolloutSuspendedReason:
		w.edit(func(spec *autov1alpha1.StackRolloutSpec) { spec.Suspend = false })
	case pulumiv1.SpecInvalidReason, pulumiv1.InvalidCELExpressionReason:
		w.mend()
	case pulumiv1.SourceNotFoundReason:
		w.problem = nil
		w.poll()
	case autov1alpha1.RevisionRejectedReason:
		w.commit(func(_ *actor, letter string) string { return letter })
		w.poll()
	case autov1alpha1.PromotionRequiredReason:
		w.approve(autov1alpha1.ApprovalApprove, w.rollout.Status.Wave, w.target())
		w.wake(byApproval)
	case autov1alpha1.RolloutHaltedReason, autov1alpha1.RolloutCompleteReason:
		if w.last.wake == byStacks {
			w.heal()
		}
	case autov1alpha1.DependencyInLaterWaveReason:
		w.makeIndependent()
	case autov1alpha1.RolloutProgressingReason:
		if strings.Contains(w.last.message, "wait for each other") {
			w.makeIndependent()
		}
	}
}

// makeIndependent removes the dependency of the Stack that the last message names first.
func (w *walker) makeIndependent() {
	first, at := (*actor)(nil), len(w.last.message)
	for _, a := range w.actors {
		if i := strings.Index(w.last.message, waves.Name(a.Namespace, a.Name)+" "); i >= 0 && i < at {
			first, at = a, i
		}
	}
	if w.promise(first != nil && first.requires != nil, "it names no Stack that depends on another one: %s", w.last.message); first != nil {
		w.require(first, nil)
	}
}

// TestWhateverHappensTheRolloutKeepsItsPromises walks at random, with seeds that are always the same, and checks after each step that no Stack
// runs what was not released to it, that no wave begins before those before are done and have soaked, that no more Stacks are updated at once than may be, and,
// after each walk, that all Stacks get the newest revision when nothing fails any longer, and whatever a decision waits for is done.
func TestWhateverHappensTheRolloutKeepsItsPromises(t *testing.T) {
	suite.WithoutRaceDetector(t)
	start, steps, walks := time.Now(), 0, uint64(60_000)
	if testing.Short() {
		walks = 6000
	}
	happened := map[string]int{}
	for seed := range walks {
		w := newWalker(t, rand.New(rand.NewPCG(seed, 1)))
		for range 40 {
			if len(w.broken) > 0 {
				break
			}
			w.step()
			steps++
			happened[w.last.reason]++
		}
		if len(w.broken) == 0 {
			w.settle()
		}
		if len(w.broken) > 0 {
			t.Fatalf("seed %d: %s\nafter: %s", seed, strings.Join(w.broken, "; "), strings.Join(w.steps, ", "))
		}
	}
	t.Logf("%d steps in %s, with the reasons %v", steps, time.Since(start).Round(time.Millisecond), happened)
	for _, table := range reasons.Tables() {
		for _, row := range table.Rows {
			if table.Kind == "StackRollout" && happened[row.Reason] == 0 {
				t.Errorf("%s never happened", row.Reason)
			}
		}
	}
}
