package rollout

import (
	"fmt"
	"slices"
	"time"

	autov1alpha1 "github.com/stack-controller/stack-controller/api/auto/v1alpha1"
	"github.com/stack-controller/stack-controller/internal/waves"
)

// openWave is the first wave that is not complete.
type openWave struct {
	// index is the number of waves when all are complete.
	index int
	// done is how many Stacks of all waves have the target.
	done int
	// soaks is true when it only waits for the end of its soak, of which left is left.
	soaks bool
	left  time.Duration
	// awaits is true when it waits for its promotion.
	awaits bool
	// halted is the name of a wave, open or complete, with too many failures; empty when there is none. hopeless is true when one of the
	// Stacks that fail in it is stalled.
	halted   string
	failing  int
	allowed  int
	hopeless bool
}

// judgeWaves counts the Stacks of each wave, and finds the wave that is open.
func (w *walk) judgeWaves() openWave {
	open := openWave{index: len(w.byWave)}
	all := 0
	w.status.Failing = nil
	for i, members := range w.byWave {
		entry := &w.status.Waves[i]
		entry.Stacks = int32(len(members)) //nolint:gosec // far fewer fit into an API server
		stalled := false
		was := w.stateBefore(entry.Name)
		wasOpen := was != "" && was != autov1alpha1.RolloutWavePending
		if i <= open.index || wasOpen {
			w.checkMembers(i)
			w.blockDependents(members)
		}
		for _, m := range members {
			w.count(entry, m)
			stalled = stalled || m.State == waves.Failing && m.Stalled
		}
		w.soakAgain(entry, members)
		open.done += int(entry.Updated + entry.Unchanged)
		all += waves.CountOf(entry)
		allowed := waves.MaxFailures(w.spec, &w.spec.Waves[i], waves.CountOf(entry))
		if int(entry.Failing) > allowed && open.halted == "" && (i <= open.index || wasOpen) {
			open.halted, open.failing, open.allowed, open.hopeless = entry.Name, int(entry.Failing), allowed, stalled
		}
		if i > open.index {
			if wasOpen { // before a Stack joined an earlier one
				entry.State = was
				if entry.Running+entry.Waiting > 0 {
					entry.State = autov1alpha1.RolloutWaveRunning
				}
			}
			continue
		}
		entry.State = autov1alpha1.RolloutWaveComplete
		left := w.soakLeft(i)
		switch {
		case entry.Waiting > 0 && w.needsPromotion(i):
			// A Stack that came with a turn from another wave may go on, but no other Stack follows.
			entry.State, open.index, open.awaits = autov1alpha1.RolloutWavePending, i, true
			if wasOpen {
				entry.State = autov1alpha1.RolloutWaveRunning
			}
		case entry.Waiting+entry.Running > 0 || int(entry.Failing) > allowed:
			entry.State, open.index = autov1alpha1.RolloutWaveRunning, i
		case left > 0:
			entry.State, open.index, open.soaks, open.left = autov1alpha1.RolloutWaveSoaking, i, true, left
			w.comeBackIn(left)
		}
	}
	w.status.Done = fmt.Sprintf("%d/%d", open.done, all)
	w.announceWaves()
	w.status.Wave = ""
	if open.index < len(w.byWave) {
		w.status.Wave = w.spec.Waves[open.index].Name
	}
	return open
}

// stateBefore returns the state of the wave by the last decision about this target; empty when there was none.
func (w *walk) stateBefore(wave string) autov1alpha1.RolloutWaveState {
	if had := w.waveBefore(wave); had != nil {
		return had.State
	}
	return ""
}

// waveBefore returns the wave by the last decision about this target; nil when there was none.
func (w *walk) waveBefore(wave string) *autov1alpha1.RolloutWaveStatus {
	for i := range w.initial.Waves {
		if w.initial.Waves[i].Name == wave && w.targetIsSame() {
			return &w.initial.Waves[i]
		}
	}
	return nil
}

// soakAgain lets a wave soak again when a Stack was updated that has no turn any longer: it failed and was tried again, or was suspended meanwhile.
// A Stack that is updated again, as by a resync, was done before.
func (w *walk) soakAgain(entry *autov1alpha1.RolloutWaveStatus, members []*waves.Member) {
	had := w.waveBefore(entry.Name)
	if had == nil || entry.Updated <= had.Updated || entry.Updated+entry.Unchanged <= had.Updated+had.Unchanged {
		return
	}
	for _, m := range members {
		if m.State == waves.Updated {
			w.soakSince(entry, m.Ended)
		}
	}
}

// targetIsSame reports whether the last decision was made for the same target.
func (w *walk) targetIsSame() bool {
	before := w.initial.Target
	return before != nil && waves.SameArtifact(before.RolloutRevision, w.status.Target.RolloutRevision)
}

// targetIsNew reports whether the target was none before, so that no Stack was updated to it by another decision.
func (w *walk) targetIsNew() bool {
	return !w.targetIsSame() && !slices.ContainsFunc(w.initial.Earlier, func(earlier autov1alpha1.RolloutRevision) bool {
		return waves.SameArtifact(earlier, w.status.Target.RolloutRevision)
	})
}

// checkDrift lets Stacks of waves with noDrift that were updated count as done only when they have looked for drift since, and have none. Those
// of a wave that is complete do so only as long as they have a turn: what somebody changes later, or another update of such a Stack, does not
// open the wave again. In a wave that soaks, drift that is found stops the others, but another update does not need another check.
func (w *walk) checkDrift() {
	turns := map[string]bool{}
	for i := range w.status.Turns {
		turns[w.status.Turns[i].Stack] = true
	}
	for i := range w.byWave {
		if !w.spec.Waves[i].NoDrift {
			continue
		}
		was := w.stateBefore(w.spec.Waves[i].Name)
		for _, m := range w.byWave[i] {
			if m.State != waves.Updated {
				continue
			}
			turn := turns[m.String()]
			switch {
			case was == autov1alpha1.RolloutWaveComplete && !turn:
			case m.Drift == nil && was == autov1alpha1.RolloutWaveSoaking && !turn:
			case m.Drift == nil:
				m.State = waves.CheckingDrift
			case m.Drift.Problem != "":
				m.State, m.Message, m.Drifted, m.Stalled = waves.Failing, m.Drift.Problem, true, m.Drift.Found
				if !turn && len(w.status.Turns) < maxFailing {
					// The status was lost: it looks for drift again, and takes no place.
					w.status.Turns = append(w.status.Turns, autov1alpha1.RolloutTurn{Stack: m.String(), Since: w.time()})
				}
			}
		}
	}
}

// beingChecked returns how many Stacks of the wave have a turn, and look for drift.
func (w *walk) beingChecked(wave int) (count int32) {
	for _, m := range w.byWave[wave] {
		if m.State == waves.CheckingDrift && !m.Since.IsZero() {
			count++
		}
	}
	return count
}

// checkMembers applies the check of the wave to its Stacks that have the target. One that does not pass counts as failing: only somebody who
// knows what the check means can mend that.
func (w *walk) checkMembers(wave int) {
	expression := w.spec.Waves[wave].Check
	if expression == "" {
		return
	}
	for _, m := range w.byWave[wave] {
		if !m.State.IsDone() {
			continue
		}
		switch problem, known := w.check(m.NamespacedName, expression); {
		case !known:
			m.State = waves.Checking
			w.unchecked++
			w.comeBackIn(checkInterval)
		case problem != "":
			m.State, m.Message, m.Stalled = waves.Failing, problem, true
		}
	}
}

// blockDependents lets Stacks that depend on ones which failed count as these do: they cannot be updated, and nothing else would say so.
func (w *walk) blockDependents(members []*waves.Member) {
	seen := map[*waves.Member]bool{}
	for _, m := range members {
		w.blockedBy(m, seen)
	}
}

// blockedBy returns the Stack itself if it failed, or a Stack that failed and that it depends on, directly or not; nil when there is none.
func (w *walk) blockedBy(m *waves.Member, seen map[*waves.Member]bool) *waves.Member {
	switch {
	case m.State == waves.Failing, m.State == waves.BrokenBefore:
		return m
	case m.State != waves.Waiting || len(m.DependsOn) == 0 || seen[m]:
		return nil
	}
	seen[m] = true
	for _, key := range m.DependsOn {
		other := w.byName[key]
		if other == nil || other.Wave > m.Wave {
			continue
		}
		if failed := w.blockedBy(other, seen); failed != nil {
			m.State, m.Stalled, m.Message = failed.State, failed.Stalled, fmt.Sprintf("depends on Stack %s, which failed", failed)
			return failed
		}
	}
	return nil
}

// soakLeft returns for how much longer the wave soaks. The last wave does not, because nothing waits for it.
func (w *walk) soakLeft(wave int) time.Duration {
	since := w.status.Waves[wave].SoakingSince
	if since == nil || wave == len(w.byWave)-1 || w.promotesAll {
		return 0
	}
	return max(0, waves.SoakOf(&w.spec.Waves[wave])-w.now.Sub(since.Time))
}

func (w *walk) count(entry *autov1alpha1.RolloutWaveStatus, m *waves.Member) {
	switch m.State {
	case waves.LeftOut:
		entry.LeftOut++
	case waves.Updated:
		entry.Updated++
	case waves.Unchanged:
		entry.Unchanged++
	case waves.Running:
		entry.Running++
	case waves.CheckingDrift:
		if m.Since.IsZero() {
			entry.Waiting++
		} else {
			entry.Running++
		}
	case waves.Waiting, waves.Checking:
		entry.Waiting++
	case waves.BrokenBefore:
		entry.BrokenBefore++
	case waves.Failing:
		entry.Failing++
		if len(w.status.Failing) < maxFailing {
			w.status.Failing = append(w.status.Failing, autov1alpha1.RolloutFailure{Stack: m.String(), Message: m.Message})
		}
	}
}

// refuse lists the Stacks that name the StackRollout and get nothing. Those that are not admitted take no place from the others.
func (w *walk) refuse() {
	w.status.Refused = slices.Concat(w.refused, w.uninvited)
	w.status.Refused = w.status.Refused[:min(len(w.status.Refused), maxRefused)]
	for i, refused := range w.status.Refused {
		if slices.Contains(w.initial.Refused, refused) {
			continue
		}
		w.announceWarning(eventRefused, fmt.Sprintf("Stack %s gets no revision: %s", refused.Stack, refused.Message))
		if i >= len(w.refused) {
			w.events[len(w.events)-1].uninvited = true
			break // .status.refused has the others
		}
	}
}

func (w *walk) announceWaves() {
	for i := range w.status.Waves {
		entry := &w.status.Waves[i]
		if entry.State != autov1alpha1.RolloutWaveComplete || entry.Updated == 0 {
			continue
		}
		for j := range w.initial.Waves {
			had := &w.initial.Waves[j]
			if had.Name == entry.Name && had.State != entry.State && had.State != autov1alpha1.RolloutWavePending {
				w.announce(eventWaveComplete, fmt.Sprintf("wave %s of %s is complete: %d Stacks updated, %d unchanged",
					entry.Name, w.status.Target.Revision, entry.Updated, entry.Unchanged))
			}
		}
	}
}
