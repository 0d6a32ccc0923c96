package stack

import (
	"testing"
	"time"

	. "github.com/onsi/gomega"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/fluxcd/pkg/apis/meta"
	"github.com/fluxcd/pkg/runtime/conditions"

	autov1alpha1 "github.com/stack-controller/stack-controller/api/auto/v1alpha1"
	pulumiv1 "github.com/stack-controller/stack-controller/api/pulumi/v1"
)

// A clock that was wrong leaves a time in the status that is far from now.
func TestAClockThatWasWrongKeepsNoStackWaiting(t *testing.T) {
	const century = 100 * 365 * 24 * time.Hour
	for name, since := range map[string]time.Duration{"a century ahead": -century, "an hour ahead": -time.Hour, "a century behind": century} {
		resynced := upToDate()
		resynced.stack.Spec.ContinueResyncOnCommitMatch = true
		resynced.stack.Status.LastUpdate.LastResyncTime = ago(since)
		deleted := deleting()
		deleted.stack.Status.LastUpdate = failed(9, since).stack.Status.LastUpdate
		deleted.stack.Status.LastUpdate.Type = autov1alpha1.UpdateTypeDestroy
		conflict := failed(0, since)
		conflict.stack.Status.LastUpdate.Conflicts = 9
		for what, o := range map[string]*observation{
			"after failures": failed(9, since), "after interruptions": interrupted(9, since), "after a conflict": conflict,
			"up to date with resyncs": resynced, "deleted": deleted,
		} {
			t.Run(what+", "+name, func(t *testing.T) {
				NewWithT(t).Expect(decide(*o).action).To(Equal(actionUpdate))
			})
		}
	}
}

func TestAClockThatWasWrongDelaysNoCheckForDrift(t *testing.T) {
	const century = 100 * 365 * 24 * time.Hour
	for name, ahead := range map[string]time.Duration{"a century ahead": century, "two hours ahead": 2 * time.Hour, "a minute ahead": time.Minute} {
		t.Run(name, func(t *testing.T) {
			g := NewWithT(t)
			o := watchful("")
			o.sees(-ahead)
			g.Expect(decideOnDrift(*o, decide(*o)).step).To(Equal(driftStart))
			o.driftCheck = checked(0)
			o.driftCheck.Status, o.driftCheck.CreationTimestamp = autov1alpha1.UpdateStatus{}, ago(time.Second)
			g.Expect(decideOnDrift(*o, decide(*o)).step).To(Equal(driftNone), "the check is left to run")
			o.driftCheck = checked(0)
			g.Expect(decideOnDrift(*o, decide(*o)).step).To(Equal(driftRecord))
			o.driftCheck = nil
			o.stack.Status.Drift = &pulumiv1.DriftStatus{FirstCheckTime: new(ago(-ahead))}
			g.Expect(decideOnDrift(*o, decide(*o)).after).To(BeNumerically("<=", time.Hour))
		})
	}
}

func TestAnUpdateThatEndedByAnAgentsClockAheadEndedNow(t *testing.T) {
	g := NewWithT(t)
	for since, want := range map[time.Duration]time.Time{-time.Hour: now, 0: now, time.Hour: now.Add(-time.Hour)} {
		end := ago(since)
		update := &autov1alpha1.Update{Status: autov1alpha1.UpdateStatus{EndTime: &end}}
		g.Expect(endedBy(update, metav1.NewTime(now)).Time).To(Equal(want))
	}
}

func TestAnAttemptThatFailedJustNowIsNotRepeatedAtOnce(t *testing.T) {
	o := failed(1, 0)
	NewWithT(t).Expect(untilDue(o.stack, retryDue(o.stack, 0), now)).To(Equal(firstBackoff))
	NewWithT(t).Expect(untilDue(&pulumiv1.Stack{}, now.Add(time.Second), now)).To(Equal(time.Second))
}

// lockedOut is a Stack whose last attempts ended with a conflict: so many of them, the first and the last one the given times ago.
func lockedOut(conflicts int64, first, last time.Duration) *observation {
	o := failed(2, last)
	o.stack.Status.LastUpdate.Message = "the stack is locked by alice@laptop (pid 7)"
	o.stack.Status.LastUpdate.Conflicts = conflicts
	o.stack.Status.LastUpdate.ConflictsSince = new(ago(first))
	return o
}

func eager(o *observation) { o.stack.Spec.RetryOnUpdateConflict = true }

func TestConflictIsTriedAgainInItsTime(t *testing.T) {
	for _, test := range []struct {
		name    string
		given   *observation
		starts  bool
		after   time.Duration
		stalled bool
	}{
		{name: "the first waits as a failure does", given: lockedOut(1, time.Second, time.Second), after: 9 * time.Second},
		{name: "and is tried again when its time has come", given: lockedOut(1, 10*time.Second, 10*time.Second), starts: true},
		{name: "waits grow", given: lockedOut(3, 2*time.Minute, time.Second), after: 89 * time.Second},
		{name: "no further than ten minutes", given: lockedOut(30, time.Hour, time.Second), after: 10*time.Minute - time.Second, stalled: true},
		{name: "nor than the spec's limit", given: with(lockedOut(30, 2*time.Minute, time.Second), func(o *observation) {
			o.stack.Spec.RetryMaxBackoffDurationSeconds = 20
		}), after: 19 * time.Second},
		{name: "an interval for retries holds for locks", given: with(lockedOut(9, 2*time.Minute, time.Second), func(o *observation) {
			o.stack.Spec.RetryInterval = &metav1.Duration{Duration: time.Minute}
		}), after: 59 * time.Second},
		{name: "the Stack stalls in the middle of a wait", given: lockedOut(5, 9*time.Minute, time.Minute), after: time.Minute},
		{name: "and stays so", given: lockedOut(5, 10*time.Minute, 2*time.Minute), after: 8 * time.Minute, stalled: true},
		{name: "eager tries do not wait longer each time", given: with(lockedOut(30, 9*time.Minute, 16*time.Second), eager), starts: true},
		{name: "nor start at once", given: with(lockedOut(30, 5*time.Minute, 0), eager), after: 12500 * time.Millisecond},
		{name: "eager tries stall, too", given: with(lockedOut(60, 11*time.Minute, 16*time.Second), eager), starts: true},
	} {
		t.Run(test.name, func(t *testing.T) {
			g := NewWithT(t)
			d := decide(*test.given)
			if test.starts {
				g.Expect(d.action).To(Equal(actionUpdate))
				g.Expect(d.fresh).To(BeFalse())
				return
			}
			g.Expect(d.action).To(Equal(actionRetry))
			g.Expect(d.reason).To(Equal(pulumiv1.UpdateConflictReason))
			g.Expect(d.message).To(And(HavePrefix("up waits for the lock of the stack, next attempt in"), HaveSuffix("locked by alice@laptop (pid 7)")))
			g.Expect(d.after).To(BeNumerically("~", test.after, 2500*time.Millisecond))
			retry(test.given, d)
			g.Expect(conditions.GetReason(test.given.stack, meta.ReadyCondition)).To(Equal(pulumiv1.UpdateConflictReason))
			g.Expect(conditions.IsStalled(test.given.stack)).To(Equal(test.stalled))
			g.Expect(conditions.IsReconciling(test.given.stack)).To(Equal(!test.stalled))
		})
	}
}

func TestConflictOfADestroyWaitsForTheLock(t *testing.T) {
	g := NewWithT(t)
	d := decide(*with(lockedOut(1, time.Second, time.Second), toDestroy, lastDestroys))
	g.Expect(d.action).To(Equal(actionRetry))
	g.Expect(d.reason).To(Equal(pulumiv1.UpdateConflictReason))
	g.Expect(d.message).To(HavePrefix("destroy waits for the lock of the stack"))
}

func TestNewInputsDoNotWaitForTheLock(t *testing.T) {
	g := NewWithT(t)
	o := with(lockedOut(9, time.Hour, time.Second), newDigest)
	d := decide(*o)
	g.Expect(d.action).To(Equal(actionUpdate))
	g.Expect(d.fresh).To(BeTrue())
	recordStart(o.stack, d, &autov1alpha1.Update{})
	g.Expect(o.stack.Status.LastUpdate.Conflicts).To(BeZero())
	g.Expect(o.stack.Status.LastUpdate.ConflictsSince).To(BeNil())
}

func TestConflictIsNeitherFailureNorInterruption(t *testing.T) {
	g := NewWithT(t)
	o := failed(2, time.Minute)
	o.stack.Status.LastUpdate.Interruptions = 1
	record := func(reason string) *pulumiv1.StackUpdateStatus {
		o.stack.Status.CurrentUpdate = &pulumiv1.CurrentStackUpdate{Name: "app-2", Generation: 2, Commit: "sha256:a"}
		recordResult(o.stack, ended(reason), nil)
		return o.stack.Status.LastUpdate
	}
	for i := range int64(3) {
		last := record(autov1alpha1.UpdateConflictReason)
		g.Expect(last.State).To(Equal(pulumiv1.StackUpdateFailed))
		g.Expect([]int64{last.Failures, last.Interruptions, last.Conflicts}).To(Equal([]int64{2, 1, i + 1}))
		g.Expect(last.ConflictsSince.Time).To(Equal(now))
	}
	g.Expect(o.stack.Status.History).To(HaveLen(1))
	g.Expect(o.stack.Status.History[0].LastReconciledStatus).To(Equal("conflict"))
	g.Expect(o.stack.Status.History[0].TotalReconciliations).To(BeEquivalentTo(3))

	last := record(autov1alpha1.UpdateFailedReason)
	g.Expect([]int64{last.Failures, last.Interruptions, last.Conflicts}).To(Equal([]int64{3, 0, 0}))
	g.Expect(last.ConflictsSince).To(BeNil())
	g.Expect(o.stack.Status.History).To(HaveLen(1))
	g.Expect(o.stack.Status.History[0].LastReconciledStatus).To(Equal("failed"))
}

func TestStackSaysWhoHoldsTheLockWhileItTriesAgain(t *testing.T) {
	g := NewWithT(t)
	o := lockedOut(1, time.Second, time.Second)
	retry(o, decide(*o))
	o.stack.Status.CurrentUpdate = &pulumiv1.CurrentStackUpdate{Name: "app-2", Generation: 2, Commit: "sha256:a"}
	update := &autov1alpha1.Update{CreationTimestamp: ago(time.Hour)}
	g.Expect(conflictShownFor(o.stack, update, now)).To(BeZero(), "it waits for something else")
	update.Status.StartTime = new(ago(5 * time.Second))
	g.Expect(conflictShownFor(o.stack, update, now)).To(Equal(10 * time.Second))
	update.Status.StartTime = new(ago(15 * time.Second))
	g.Expect(conflictShownFor(o.stack, update, now)).To(BeZero(), "it has the lock")
	update.Status.StartTime = new(ago(0))
	o.stack.Status.CurrentUpdate.Commit = "sha256:b"
	g.Expect(conflictShownFor(o.stack, update, now)).To(BeZero(), "it is another one")
}
