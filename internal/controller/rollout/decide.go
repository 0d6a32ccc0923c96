package rollout

import (
	"cmp"
	"errors"
	"fmt"
	"slices"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	autov1alpha1 "github.com/stack-controller/stack-controller/api/auto/v1alpha1"
	pulumiv1 "github.com/stack-controller/stack-controller/api/pulumi/v1"
	"github.com/stack-controller/stack-controller/internal/source"
	"github.com/stack-controller/stack-controller/internal/waves"
	"github.com/stack-controller/stack-controller/internal/windows"
)

// Reasons of events that are not reasons of conditions.
const (
	eventStarted      = "RolloutStarted"
	eventSuperseded   = "RolloutSuperseded"
	eventWaveComplete = "WaveComplete"
	eventRefused      = "StackNotInRollout"
)

// sourceInterval is how often a source is looked for that no watch covers.
const sourceInterval = 30 * time.Second

const (
	// maxStatus bounds the status, in bytes of JSON: everybody who watches gets it with each turn. With smallSpec for the spec and the metadata, that is what
	// a cache keeps whole (informercache.MaxSize, which counts more per byte). Turns get what the rest leaves, but at least leastTurns. The rest is bounded by these numbers, and these bytes: earlier targets, those that Stacks still have among them; the first Stack that
	// fails and those that cannot take part; the message of a condition, and all conditions.
	maxStatus        = 48 << 10
	smallSpec        = 2 << 10
	leastTurns       = 4 << 10
	maxEarlier       = 10
	maxKept          = 50
	earlierLength    = 6 << 10
	maxFailing       = 10
	maxRefused       = 10
	failuresLength   = 7 << 10
	maxMessage       = 512
	conditionsLength = 2 << 10
	// maxCycle is how many Stacks that wait for each other the message names at most, and looks at.
	maxCycle = 10
	// maxPlans is how many Stacks may make plans at once, and plansLength the bytes that they take of the status.
	maxPlans    = 200
	plansLength = 9 << 10
)

// observation is everything that a decision is made from.
type observation struct {
	now time.Time
	// started is since when this controller reconciles. Nobody may have been there before.
	started time.Time
	rollout *autov1alpha1.StackRollout
	// offer is what the source offers; nil when problem says why it offers nothing.
	offer   *autov1alpha1.RolloutRevision
	problem *source.Problem
	// unwatched says that nobody notices when a source, its own or that of a Stack, offers something else.
	unwatched bool
	// published is when one of the other sources of its Stacks has last published something; zero when there are none.
	published time.Time
	// commit is the git commit that the offer was made from; nil when it is not known.
	commit *autov1alpha1.CommitInfo
	// members are the Stacks that name the StackRollout and are admitted, as they are with the target in the status.
	members []*waves.Member
	// observeAgain returns the members as they are with another status. It is pure: it looks at the same Stacks.
	observeAgain func(*autov1alpha1.StackRolloutStatus) []*waves.Member
	// approvals are the decisions about the StackRollout that count, also those about earlier revisions. The digest of one is that of the target that
	// it was accepted for; empty when that is not known.
	approvals []autov1alpha1.ApprovalSpec
	// hours evaluates the windows of a Stack.
	hours func(*waves.Member) windows.State
	// check evaluates the check of a wave for a Stack. problem is why the Stack does not pass; known is false when that has to wait.
	// invalidCheck is why a check cannot be used.
	check        func(stack types.NamespacedName, expression string) (problem string, known bool)
	invalidCheck error
	// unknownNamespace says why nobody knows which namespaces are selected; nil when everybody does, or nobody asks.
	unknownNamespace error
	// refused are Stacks that name the StackRollout and have another source, and uninvited those that are not admitted: each at most maxRefused.
	refused, uninvited []autov1alpha1.RolloutFailure
}

// waker names what brings a StackRollout back, besides the time in the decision.
type waker string

const (
	// byEdit is the watch on the StackRollout itself.
	byEdit waker = "edit"
	// bySource is the watch on the source.
	bySource waker = "source"
	// byStacks is the watch on the Stacks that name the StackRollout.
	byStacks waker = "stacks"
	// byApproval is the watch on Approvals.
	byApproval waker = "approval"
	// byTime is only the time in the decision.
	byTime waker = "time"
)

// decision is what the status becomes, and what wakes the StackRollout afterwards.
type decision struct {
	// status has everything except the conditions.
	status autov1alpha1.StackRolloutStatus
	// reason and message are those of the condition Ready, which is true unless failed is; stalled says that somebody has to do something,
	// and complete that all Stacks have the target.
	reason, message           string
	failed, stalled, complete bool
	// blocked is true when no Stack gets the target, and nobody was asked to do something: its Stacks wait for sources, checks or each other, or it waits
	// for its own source. That should end by itself. A Stack that is updated is no such wait, because its turn has a timeout.
	blocked bool
	// wake names the watch that brings the StackRollout back, after the time at which it comes back in any case; zero for none.
	wake  waker
	after time.Duration
	// events are what is announced.
	events []announcement
}

// announcement is an event.
type announcement struct {
	reason, message string
	warning         bool
	// verdict is whether it says if the revision is good, as the status of its commit does.
	verdict bool
	// uninvited is whether it is about Stacks of others, who can cause any number of them.
	uninvited bool
}

// walk is a decision in the making.
type walk struct {
	observation
	decision
	spec    *autov1alpha1.StackRolloutSpec
	byWave  [][]*waves.Member
	byName  map[types.NamespacedName]*waves.Member
	initial autov1alpha1.StackRolloutStatus
	// rejectedBy is who rejected the target, and rejection says so; empty when nobody did. promoted has the names of the waves that somebody promoted, and promotesAll
	// is true when all were.
	rejectedBy  string
	rejection   string
	promoted    []string
	promotesAll bool
	// window says whether the windows allow turns, and shut is how many Stacks of open waves wait for a window of their own.
	window windows.State
	shut   int
	// behind is how many of them have a source that does not offer the target, and unchecked how many have the target and wait until the check
	// of their wave is evaluated.
	behind, unchecked int
	// comparing names a Stack that depends on one in a later wave, for which the target may change nothing; empty when there is none.
	comparing string
	// unapproved is how many of them wait until a plan of the target is approved, and rejectedPlans how many of these have one that was rejected.
	unapproved, rejectedPlans int
}

// decide gives turns to Stacks, wave by wave. It is given what the Stacks report, and decides everything else anew each time; what cannot be
// found out from them is in the status: the target, who has a turn and since when, and since when a wave soaks.
func decide(o observation) decision {
	w := &walk{observation: o, spec: &o.rollout.Spec, initial: o.rollout.Status}
	w.status = *o.rollout.Status.DeepCopy()
	w.status.ObservedGeneration = o.rollout.Generation
	w.refuse()
	w.followSource()
	if w.unwatched {
		w.comeBackIn(sourceInterval)
	}
	if w.status.Target == nil {
		w.waitForSource()
		return w.decision
	}
	w.readApprovals() // a rejection counts, whatever else is wrong
	if err := w.invalidCheck; err != nil {
		w.stall(pulumiv1.InvalidCELExpressionReason, err.Error())
		w.status.Turns, w.status.Plans = nil, nil
		return w.decision
	}
	w.settle()
	err := errors.Join(w.unknownNamespace, w.readWindows())
	if err == nil { // otherwise some Stacks may not be among the members, and a limit would choose others
		err = w.assign()
	}
	if err != nil {
		w.stall(pulumiv1.SpecInvalidReason, err.Error())
		w.status.Turns, w.status.Plans = nil, nil
		return w.decision
	}
	w.pause()
	w.checkDrift()
	w.endTurns()
	open := w.judgeWaves()
	if w.problem != nil {
		w.waitForSource()
		return w.decision
	}
	w.giveTurns(open)
	w.givePlans(open)
	w.fit()
	w.describe(open)
	return w.decision
}

// followSource makes what the source offers the target. Turns for another target end: a Stack that has begun finishes its update.
func (w *walk) followSource() {
	target := w.status.Target
	switch {
	case w.offer == nil:
		return
	case target != nil && waves.SameArtifact(target.RolloutRevision, *w.offer):
		// The same content may be published again under another name. Updates that were begun under the one before are updates to the target.
		if target.Revision != w.offer.Revision {
			w.status.Earlier = slices.Insert(w.status.Earlier, 0, target.RolloutRevision)
			w.forgetEarlier()
			target.RolloutRevision = *w.offer
			w.members = w.observeAgain(&w.status)
		}
		return
	case target != nil:
		if w.status.Stable == nil || !waves.SameArtifact(*w.status.Stable, target.RolloutRevision) {
			w.announce(eventSuperseded, fmt.Sprintf("%s takes the place of %s", w.offer.Revision, target.Revision))
		}
		w.status.Earlier = append([]autov1alpha1.RolloutRevision{target.RolloutRevision}, w.status.Earlier...)
		w.forgetEarlier()
	}
	cutShort, members := w.status.Turns, map[string]*waves.Member{}
	for _, m := range w.members {
		members[m.String()] = m
	}
	w.status.Turns, w.status.Plans, w.status.Halted = nil, nil, ""
	w.status.Target = &autov1alpha1.RolloutTarget{RolloutRevision: *w.offer, Since: w.time()}
	for i, had := range w.status.Waves { // what it counts is about the earlier target, also if the specification is invalid now
		w.status.Waves[i] = autov1alpha1.RolloutWaveStatus{Name: had.Name, SoakingSince: had.SoakingSince, State: autov1alpha1.RolloutWavePending}
	}
	w.members = w.observeAgain(&w.status)
	w.announce(eventStarted, "rolling out "+w.offer.Revision)
	// Whoever had a turn may have been updated to the earlier target, or still is. Its wave soaks from then on, also if the new target is the same
	// for it.
	if target == nil {
		return
	}
	for _, turn := range cutShort {
		switch m, wave := members[turn.Stack], w.waveStatusOf(turn.Stack); {
		case m == nil, wave == nil:
		case m.Begun:
			w.soakSince(wave, w.now)
		case m.Changed:
			w.soakSince(wave, m.Ended)
		}
	}
}

// soakSince makes the wave soak since an update ended, unless it does since a later time. A time that is not known, or not over, counts as now.
func (w *walk) soakSince(wave *autov1alpha1.RolloutWaveStatus, ended time.Time) {
	if ended.IsZero() || ended.After(w.now) {
		ended = w.now
	}
	if wave.SoakingSince == nil || wave.SoakingSince.Time.Before(ended) {
		wave.SoakingSince = new(metav1.NewTime(ended).Rfc3339Copy())
	}
}

// forgetEarlier bounds the earlier targets, and keeps older ones that Stacks have succeeded with: what those fail with is not broken before.
func (w *walk) forgetEarlier() {
	succeeded := map[string]bool{}
	for _, m := range w.members {
		succeeded[m.Succeeded] = true
	}
	var kept []autov1alpha1.RolloutRevision
	length := 0
	for i, earlier := range w.status.Earlier {
		if i >= maxEarlier && (!succeeded[earlier.Digest] || len(kept) == maxKept) {
			continue
		}
		succeeded[earlier.Digest] = false // another name for it is not needed
		if length += lengthOf(earlier); length <= earlierLength {
			kept = append(kept, earlier)
		}
	}
	w.status.Earlier = kept
}

// waveStatusOf returns the status of the wave that a Stack is in by the last decision; nil if that is not known.
func (w *walk) waveStatusOf(stack string) *autov1alpha1.RolloutWaveStatus {
	for i := range w.initial.Turns {
		if turn := &w.initial.Turns[i]; turn.Stack == stack {
			return w.waveNamed(turn.Wave)
		}
	}
	return nil
}

func (w *walk) waveNamed(name string) *autov1alpha1.RolloutWaveStatus {
	for i := range w.status.Waves {
		if w.status.Waves[i].Name == name {
			return &w.status.Waves[i]
		}
	}
	return nil
}

// assign finds the wave of each Stack. The status gets an entry for each wave, with what the entry of that name had. A wave that has none may have
// another name by now: it goes on with the soak of one that is gone, and soaks since its last update to the target.
func (w *walk) assign() error {
	entries, bounds := make([]autov1alpha1.RolloutWaveStatus, len(w.spec.Waves)), make([]waves.Bound, len(w.spec.Waves))
	for i := range entries {
		entries[i] = autov1alpha1.RolloutWaveStatus{Name: w.spec.Waves[i].Name, State: autov1alpha1.RolloutWavePending}
		if had := w.waveNamed(entries[i].Name); had != nil {
			entries[i].SoakingSince = w.past(had.SoakingSince)
			if limit := w.spec.Waves[i].Limit; limit != nil && had.Limit == limit.String() {
				was := w.stateBefore(had.Name)
				bounds[i] = waves.Bound{Place: had.Order, Kept: was == autov1alpha1.RolloutWaveSoaking || was == autov1alpha1.RolloutWaveComplete}
			}
		}
	}
	lost, isNew := len(w.status.Waves) == 0, w.inheritSoak(entries)
	w.status.Waves = entries
	target := w.status.Target
	if err := waves.Assign(w.members, w.spec.Waves, cmp.Or(target.Digest, target.Revision), bounds); err != nil {
		return err
	}
	w.byWave = make([][]*waves.Member, len(entries))
	w.byName = make(map[types.NamespacedName]*waves.Member, len(w.members))
	for _, m := range w.members {
		w.byWave[m.Wave] = append(w.byWave[m.Wave], m)
		w.byName[m.NamespacedName] = m
		switch {
		case m.State != waves.Updated:
		case lost: // or it is new: when the wave began to soak is not known
			entries[m.Wave].SoakingSince = new(w.time())
		case isNew[m.Wave], w.targetIsNew(): // or the Stack was faster: it failed with the same content and was tried again, or has the annotation
			w.soakSince(&entries[m.Wave], m.Ended)
		}
	}
	for i := range entries {
		if entries[i].Order = bounds[i].Place; entries[i].Order != nil {
			entries[i].Limit = w.spec.Waves[i].Limit.String()
		}
	}
	return nil
}

// inheritSoak returns which of the waves had no entry, and lets them soak since the latest time of those that are gone.
func (w *walk) inheritSoak(entries []autov1alpha1.RolloutWaveStatus) (isNew []bool) {
	for i := range entries {
		isNew = append(isNew, w.waveNamed(entries[i].Name) == nil)
		for _, had := range w.status.Waves {
			isThere := slices.ContainsFunc(entries, func(entry autov1alpha1.RolloutWaveStatus) bool { return entry.Name == had.Name })
			if isNew[i] && !isThere && had.SoakingSince != nil {
				w.soakSince(&entries[i], had.SoakingSince.Time)
			}
		}
	}
	return isNew
}

// settle lets a Stack that has the target and is not ready count as done, unless it has a turn: then it was updated just now, and is waited for.
// Without a turn, it was done before, or the target changes nothing for it.
func (w *walk) settle() {
	for _, m := range w.members {
		switch {
		case m.State != waves.Settling:
		case m.HasTurn:
			m.State = waves.Waiting
		default:
			m.Settle()
		}
	}
}

// readWindows evaluates the windows of the StackRollout.
func (w *walk) readWindows() (err error) {
	if w.window, err = windows.At(w.spec.Windows, w.now); err != nil {
		return fmt.Errorf("spec.windows: %w", err)
	}
	if !w.window.Next.IsZero() {
		w.comeBackIn(max(w.window.Next.Sub(w.now), time.Second))
	}
	return nil
}

// pause decides whether updates to the target may begin.
func (w *walk) pause() {
	if w.promotesAll {
		w.window = windows.State{Open: true}
	}
	w.status.Paused = w.rejectedBy != "" || w.spec.Suspend || !w.window.Open
}

// describe chooses the conditions.
func (w *walk) describe(open openWave) {
	if w.stalled {
		return
	}
	revision := w.status.Target.Revision
	switch {
	case w.rejectedBy != "" && open.index < len(w.byWave):
		w.reason, w.failed, w.stalled, w.wake = autov1alpha1.RevisionRejectedReason, true, true, bySource
		w.message = w.rejection
	case open.halted != "":
		w.reason, w.failed, w.stalled, w.wake = autov1alpha1.RolloutHaltedReason, true, open.hopeless, byStacks
		w.message = fmt.Sprintf("%d of the Stacks of wave %s failed with %s, and maxFailures is %d: no other Stack gets it before they are mended "+
			"or suspended, or maxFailures is raised", open.failing, open.halted, revision, open.allowed)
		if !w.wasShown(autov1alpha1.RolloutHaltedReason) || w.status.Halted != revision {
			w.announceVerdict(true)
		}
		w.status.Halted = revision
	case open.index == len(w.byWave):
		w.reason, w.complete, w.wake = autov1alpha1.RolloutCompleteReason, true, bySource
		w.message = fmt.Sprintf("all waves are complete: %s Stacks have %s", w.status.Done, revision)
		if slices.ContainsFunc(w.members, func(m *waves.Member) bool { return !m.State.IsDone() && m.State != waves.LeftOut }) {
			w.wake = byStacks // those that failed, as some may
		}
		w.setStable(open)
	case w.spec.Suspend:
		w.reason, w.message, w.wake = autov1alpha1.RolloutSuspendedReason, "suspended: no other Stack gets "+revision, byEdit
	case open.soaks:
		w.reason, w.wake = autov1alpha1.RolloutSoakingReason, byTime
		w.message = fmt.Sprintf("wave %s soaks until %s", w.status.Wave, w.now.Add(open.left).UTC().Format(time.RFC3339))
	case open.awaits:
		w.reason, w.wake = autov1alpha1.PromotionRequiredReason, byApproval
		w.message = fmt.Sprintf("wave %s waits for a promotion of %s", w.status.Wave, revision)
		if !slices.ContainsFunc(w.initial.Conditions, func(shown metav1.Condition) bool { return shown.Message == w.message }) {
			w.announce(autov1alpha1.PromotionRequiredReason, fmt.Sprintf("%s: flux-pulumi rollout promote %s -n %s --wave %s --revision %s",
				w.message, w.rollout.Name, w.rollout.Namespace, w.status.Wave, revision))
		}
	case !w.window.Open:
		w.reason, w.wake = autov1alpha1.RolloutWindowClosedReason, byTime
		w.message = fmt.Sprintf("wave %s waits: %s", w.status.Wave, w.window.Message)
		if w.window.Next.IsZero() {
			w.wake = byEdit
		}
	default:
		w.reason, w.wake = autov1alpha1.RolloutProgressingReason, byStacks
		w.describeProgress(open)
	}
}

func (w *walk) waitForSource() {
	if w.problem.Permanent {
		w.stall(w.problem.Reason, w.problem.Message)
		return
	}
	w.reason, w.message, w.failed, w.blocked, w.wake = w.problem.Reason, w.problem.Message, true, true, bySource
	if !w.problem.Watched {
		w.wake = byTime
		w.comeBackIn(sourceInterval)
	}
}

// stall reports what somebody has to change, with an event when it is new.
func (w *walk) stall(reason, message string) {
	w.reason, w.message, w.failed, w.stalled, w.wake = reason, message, true, true, byEdit
	if !w.wasShown(reason) {
		w.announceWarning(reason, message)
	}
}

func (w *walk) wasShown(reason string) bool {
	return slices.ContainsFunc(w.initial.Conditions, func(condition metav1.Condition) bool { return condition.Reason == reason })
}

func (w *walk) announce(reason, message string) {
	w.events = append(w.events, announcement{reason: reason, message: message})
}

// announceVerdict announces what the decision says of the revision.
func (w *walk) announceVerdict(warning bool) {
	w.events = append(w.events, announcement{reason: w.reason, message: w.message, warning: warning, verdict: true})
}

func (w *walk) announceWarning(reason, message string) {
	w.events = append(w.events, announcement{reason: reason, message: message, warning: true})
}

// comeBackIn makes the StackRollout come back after the time, or sooner.
func (w *walk) comeBackIn(after time.Duration) {
	if after > 0 && (w.after == 0 || after < w.after) {
		w.after = after
	}
}

func (w *walk) time() metav1.Time { return metav1.NewTime(w.now).Rfc3339Copy() }
