package rollout

import (
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	autov1alpha1 "github.com/stack-controller/stack-controller/api/auto/v1alpha1"
	"github.com/stack-controller/stack-controller/internal/waves"
)

// startGrace is how long, at most, a controller that was just started lets Stacks go on whose time was over by then. Maybe nobody was there to begin
// their updates, or to record how these ended.
const startGrace = 10 * time.Minute

// refusalGrace is how long, at most, a Stack with a turn may be Stalled before its update has begun. It may be so because of what its source had before.
const refusalGrace = 10 * time.Minute

// compareGrace is how long, at most, Stacks take to find out that what their source has published changes nothing for them.
const compareGrace = 5 * time.Minute

// endTurns keeps the turns of Stacks that are not done with the target, and have not failed. A Stack that took too long keeps its turn, so
// that it can still end, and counts as failing; so does one with drift, which looks for it again. A Stack that has not begun loses its turn while it
// cannot use it, and with it its place.
func (w *walk) endTurns() {
	var kept []autov1alpha1.RolloutTurn
	for _, turn := range w.status.Turns {
		namespace, name, _ := strings.Cut(turn.Stack, "/")
		m := w.byName[types.NamespacedName{Namespace: namespace, Name: name}]
		if m == nil {
			continue
		}
		wave := &w.spec.Waves[m.Wave]
		turn.Since = *w.past(&turn.Since)
		switch {
		case m.State == waves.Updated:
			w.soakSince(&w.status.Waves[m.Wave], m.Ended)
			continue
		case m.State == waves.Waiting && !m.Begun && !m.HasTarget && (m.Behind || m.Approval && !m.Approved || w.isShut(m) || w.waitsForMember(m)):
			continue
		case m.State == waves.LeftOut && m.Begun && w.now.Sub(turn.Since.Time) < waves.TimeoutOf(wave):
			// Its update goes on, and so it keeps its place.
			m.Since = turn.Since.Time
			w.comeBackIn(waves.TimeoutOf(wave) - w.now.Sub(m.Since))
		case m.State == waves.Waiting, m.State == waves.CheckingDrift:
			if w.initial.Paused && !w.status.Paused {
				turn.Since = w.time() // it may not have begun
			}
			m.Since = turn.Since.Time
			w.limitTurn(m, waves.TimeoutOf(wave))
		case !m.Drifted:
			continue
		}
		turn.Wave, turn.CheckDrift = wave.Name, wave.NoDrift
		kept = append(kept, turn)
	}
	w.status.Turns = kept
}

// past returns a time of the status. One that a clock which was ahead has written counts as now: it would be long until anything that counts from it
// is over.
func (w *walk) past(recorded *metav1.Time) *metav1.Time {
	if recorded != nil && recorded.After(w.now) {
		return new(w.time())
	}
	return recorded
}

// limitTurn lets a Stack go on with its turn for that long.
func (w *walk) limitTurn(m *waves.Member, limit time.Duration) {
	problem := fmt.Sprintf("not updated within %s", limit)
	switch {
	case m.State == waves.CheckingDrift:
		problem = fmt.Sprintf("not checked for drift within %s", limit)
	case w.status.Paused && !m.Begun:
		return // it may not begin
	default:
		m.State = waves.Running
		if limit = limitOf(m, limit); m.Refusal != "" {
			problem = m.Refusal
		}
	}
	left := limit - w.now.Sub(m.Since)
	if grace := min(startGrace, limit) - w.now.Sub(w.started); left <= 0 && grace > 0 && !w.wasFailing(m) {
		left = grace
	}
	switch {
	case w.status.Paused: // the time does not count
	case left <= 0:
		m.State, m.Message = waves.Failing, problem
	default:
		w.comeBackIn(left)
	}
}

// limitOf returns for how long a Stack may have its turn before its update ends, where all may have it for the timeout.
func limitOf(m *waves.Member, timeout time.Duration) time.Duration {
	if m.Refusal != "" {
		return min(timeout, refusalGrace)
	}
	return timeout
}

// wasFailing reports whether the Stack may have been failing by the last decision, which names some of those that were.
func (w *walk) wasFailing(m *waves.Member) bool {
	count := 0
	for i := range w.initial.Waves {
		count += int(w.initial.Waves[i].Failing)
	}
	return count > len(w.initial.Failing) ||
		slices.ContainsFunc(w.initial.Failing, func(failed autov1alpha1.RolloutFailure) bool { return failed.Stack == m.String() })
}

// givePlans lets Stacks with spec.approval of the open wave, and of those before it, make plans of the target: so all of them can be approved
// while others are updated, and a Stack whose plan waits takes no place. After a failure, or while the StackRollout is suspended, nobody begins to plan.
func (w *walk) givePlans(open openWave) {
	had := map[string]bool{}
	for _, name := range w.status.Plans {
		had[name] = true
	}
	w.status.Plans = nil
	if w.rejectedBy != "" || open.index == len(w.byWave) {
		return
	}
	length, onlyThose := 0, open.halted != "" || w.spec.Suspend
	for i := range w.byWave {
		for _, m := range w.byWave[i] {
			if !m.Approval || m.State != waves.Waiting || m.Behind || w.waitsForMember(m) || (onlyThose || i > open.index) && !had[m.String()] {
				continue
			}
			if length += lengthOf(m.String()); length > plansLength || len(w.status.Plans) == maxPlans {
				return
			}
			w.status.Plans = append(w.status.Plans, m.String())
		}
	}
}

// giveTurns lets as many Stacks of the open wave, and of those before it, be updated as may be at once. Stacks of a complete wave that do not
// have the target came later; they come first.
func (w *walk) giveTurns(open openWave) {
	if m, other := w.laterDependency(); m != nil {
		pair := fmt.Sprintf("Stack %s in wave %s depends on Stack %s in the later wave %s", m, w.spec.Waves[m.Wave].Name, other, w.spec.Waves[other.Wave].Name)
		// Nobody begins before it is known. What was never deployed has nothing to compare.
		left := compareGrace - w.now.Sub(w.offeredSince())
		if left <= 0 || other.Has == "" || w.wasShown(autov1alpha1.DependencyInLaterWaveReason) {
			w.stall(autov1alpha1.DependencyInLaterWaveReason, pair+": put it into the same or an earlier wave")
			w.wake = byStacks // the later one may have the target already, and say so
			return
		}
		w.comparing = pair
		w.comeBackIn(left)
		return
	}
	if open.halted != "" || w.status.Paused || open.index == len(w.byWave) || open.soaks || open.awaits {
		return
	}
	active, room := 0, w.roomForTurns()
	for _, m := range w.members {
		if m.State == waves.Running || (m.State == waves.CheckingDrift || m.State == waves.LeftOut) && !m.Since.IsZero() {
			active++
		}
	}
	for i := 0; i <= open.index; i++ {
		most := waves.MaxConcurrent(w.spec, &w.spec.Waves[i], waves.CountOf(&w.status.Waves[i]))
		for _, m := range w.byWave[i] {
			if active >= most {
				break
			}
			if m.State == waves.Waiting && m.Behind {
				w.behind++
			} else if m.State == waves.Waiting && m.Approval && !m.Approved && !m.HasTarget {
				if !w.waitsForMember(m) { // otherwise it does not plan yet
					w.unapproved++
					if m.Rejected {
						w.rejectedPlans++
					}
				}
				continue
			}
			switch {
			case m.State == waves.CheckingDrift && m.Since.IsZero():
			case m.State != waves.Waiting || m.Behind || w.waitsForMember(m) || w.waitsForWindow(m):
				continue
			}
			turn := autov1alpha1.RolloutTurn{Stack: m.String(), Wave: w.spec.Waves[i].Name, Since: w.time(), CheckDrift: w.spec.Waves[i].NoDrift}
			if room -= lengthOf(turn); room < 0 {
				return
			}
			if m.State == waves.Waiting {
				m.State = waves.Running
			}
			m.Since = w.now
			w.status.Turns = append(w.status.Turns, turn)
			w.status.Waves[i].Running++
			w.status.Waves[i].Waiting--
			active++
			w.comeBackIn(limitOf(m, waves.TimeoutOf(&w.spec.Waves[i])))
		}
	}
}

// describeProgress says what the open wave waits for.
func (w *walk) describeProgress(open openWave) {
	entry, checked, revision := w.status.Waves[open.index], w.beingChecked(open.index), w.status.Target.Revision
	w.blocked = entry.Running == 0 && entry.Waiting > 0 && (w.unchecked+w.behind > 0 || w.unapproved+w.shut == 0)
	switch {
	case checked > 0 && checked == entry.Running:
		w.message = fmt.Sprintf("wave %s waits: %d of its Stacks look for drift", w.status.Wave, checked)
	case entry.Running > 0 || entry.Waiting == 0:
		w.message = fmt.Sprintf("wave %s is updated to %s", w.status.Wave, revision)
	case w.comparing != "":
		w.message = fmt.Sprintf("wave %s waits: %s, and whether %s changes anything for that one is not known yet", w.status.Wave, w.comparing, revision)
	case w.unchecked > 0:
		w.wake = byTime
		w.message = fmt.Sprintf("wave %s waits: %d of its Stacks are being checked", w.status.Wave, w.unchecked)
	case w.behind > 0:
		w.wake = bySource
		w.message = fmt.Sprintf("wave %s waits: the sources of %d of its Stacks do not offer %s", w.status.Wave, w.behind, revision)
	case w.unapproved > 0:
		w.message = fmt.Sprintf("wave %s waits: the plans of %d of its Stacks are not approved", w.status.Wave, w.unapproved)
		if w.rejectedPlans > 0 {
			w.message += fmt.Sprintf(" (%d rejected)", w.rejectedPlans)
		}
	case w.shut > 0:
		w.message = fmt.Sprintf("wave %s waits: %d of its Stacks wait for their own windows", w.status.Wave, w.shut)
	default:
		w.message = fmt.Sprintf("wave %s waits: %d of its Stacks depend on Stacks that do not have %s", w.status.Wave, entry.Waiting, revision)
		if cycle := w.cycle(open.index); cycle != "" {
			w.message = fmt.Sprintf("wave %s waits: its Stacks wait for each other, remove one of these dependencies: %s", w.status.Wave, cycle)
		} else if slices.ContainsFunc(w.members, func(m *waves.Member) bool { return m.State == waves.Waiting && m.Behind }) {
			w.wake = bySource // of one in a later wave, for which the target may change nothing
		}
	}
}

// roomForTurns returns how many bytes of the status are left for other turns.
func (w *walk) roomForTurns() int {
	rest := w.status
	rest.Conditions, rest.Turns, rest.Plans, rest.Failing, rest.Refused = nil, nil, nil, nil, nil
	large := max(0, lengthOf(w.spec)+lengthOf(w.rollout.Annotations)+lengthOf(w.rollout.Labels)-smallSpec)
	return max(maxStatus-conditionsLength-plansLength-failuresLength-lengthOf(rest)-large, leastTurns) - lengthOf(w.status.Turns)
}

// fit leaves out Stacks that failed, and that the status has no room for: it names some as examples only.
func (w *walk) fit() {
	rest := w.status
	for rest.Conditions = nil; len(rest.Failing) > 1 && lengthOf(rest) > maxStatus-conditionsLength; {
		rest.Failing = rest.Failing[:len(rest.Failing)-1]
	}
	w.status.Failing = rest.Failing
}

// lengthOf returns how many bytes a part of the status takes, with the comma after it.
func lengthOf(part any) int {
	encoded, _ := json.Marshal(part) // it has only texts and numbers
	return len(encoded) + 1
}

// waitsForMember reports whether the Stack depends on another one of the StackRollout that does not have the target yet. It gets no turn, so
// that it takes no place from that one.
func (w *walk) waitsForMember(m *waves.Member) bool { return w.waitedFor(m) != nil }

// waitedFor returns the first Stack of the StackRollout that the Stack depends on, and that does not have the target yet; nil when there is none.
func (w *walk) waitedFor(m *waves.Member) *waves.Member {
	for _, key := range m.DependsOn {
		if other := w.byName[key]; other != nil && other != m && !other.State.IsDone() && other.State != waves.LeftOut {
			return other
		}
	}
	return nil
}

// cycle describes Stacks of a wave that wait for each other, as far as the first dependency of each shows it; empty when none do.
func (w *walk) cycle(wave int) string {
	for _, m := range w.byWave[wave] {
		path := []string{m.String()}
		for next := w.waitedFor(m); m.State == waves.Waiting && next != nil && len(path) < maxCycle; next = w.waitedFor(next) {
			path = append(path, next.String())
			if next == m {
				return strings.Join(path, " → ")
			}
		}
	}
	return ""
}

// waitsForWindow reports whether the windows of the Stack itself allow no update. It gets no turn, so that it takes no place.
func (w *walk) waitsForWindow(m *waves.Member) bool {
	shut := w.isShut(m)
	if shut {
		w.shut++
	}
	return shut
}

// isShut reports whether the windows of the Stack allow no update, and lets the StackRollout come back when that changes.
func (w *walk) isShut(m *waves.Member) bool {
	if len(m.Windows) == 0 {
		return false
	}
	state := w.hours(m)
	if !state.Next.IsZero() {
		w.comeBackIn(max(state.Next.Sub(w.now), time.Second))
	}
	return !state.Open
}

// laterDependency returns a Stack that waits for another one in a later wave, which waits for it; nil when there is none. It does not wait for one that may
// begin with the target. Of one whose source does not offer the target, nobody knows yet whether it will have to wait.
func (w *walk) laterDependency() (m, other *waves.Member) {
	first := waves.Beginning(&w.status)
	begins := first != nil && waves.SameArtifact(*first, w.status.Target.RolloutRevision)
	for _, m := range w.members {
		if m.State != waves.Waiting {
			continue
		}
		for _, key := range m.DependsOn {
			other := w.byName[key]
			switch {
			case other == nil, other.Wave <= m.Wave, other.State.IsDone(), other.State == waves.LeftOut:
			case other.Behind, other.Has == "" && begins:
			default:
				return m, other
			}
		}
	}
	return nil, nil
}

// offeredSince returns since when all sources that offer the target do so, or a later time. One that is not over counts for nothing: a tenant may have
// written it.
func (w *walk) offeredSince() time.Time {
	if since := w.status.Target.Since.Time; since.After(w.published) || w.published.After(w.now) {
		return since
	}
	return w.published
}
