package pod

import (
	"errors"
	"testing"
	"time"

	. "github.com/onsi/gomega"

	autov1alpha1 "github.com/stack-controller/stack-controller/api/auto/v1alpha1"
	"github.com/stack-controller/stack-controller/internal/runtime"
)

var (
	changedByUser       = otherPod(marks{revision: "r0", agent: "a1"})
	changedByController = otherPod(marks{revision: "r1", agent: "a0"})
)

// answers are what an agent may say.
func busy(o *observation) { o.agent.busy = true }

func silentFor(d time.Duration) func(*observation) {
	return func(o *observation) { o.agent.err, o.agent.silentSince = errors.New("no answer"), noon.Add(-d) }
}

func drainingFor(d time.Duration) func(*observation) {
	return func(o *observation) { o.drainingSince = noon.Add(-d) }
}

func TestPodIsReplacedOnlyWhenThatDisturbsNobody(t *testing.T) {
	notRunning := waits("CrashLoopBackOff", "")
	behind := func(o *observation) { o.statefulSet.Status.ObservedGeneration = 1 }
	notYours := func(o *observation) { o.mayRoll = false }
	for _, tt := range []struct {
		name     string
		observed func(*observation)
		ready    bool
		action   action
		// after is when it is looked at again; zero when an event follows.
		after time.Duration
	}{
		{"the user's change, idle", changedByUser, false, actionDrain, drainTime},
		{"the user's change, idle, told", of(changedByUser, drainingFor(drainTime)), false, actionReplace, 0},
		{"the user's change, told a moment ago", of(changedByUser, drainingFor(drainTime/2)), false, actionDrain, drainTime},
		{"the user's change, busy", of(changedByUser, busy), false, actionNone, busyInterval},
		{"the user's change, busy after all", of(changedByUser, busy, drainingFor(time.Minute)), false, actionNone, busyInterval},
		{"the user's change, silent", of(changedByUser, silentFor(time.Second)), false, actionNone, silentInterval},
		{"the user's change, silent for long", of(changedByUser, silentFor(silence)), false, actionDrain, drainTime},
		{"the user's change, not running", of(changedByUser, notRunning), false, actionReplace, 0},
		{"the user's change, not known to the StatefulSet controller", of(changedByUser, behind), false, actionNone, 0},
		{"the user's change, of a pod that is ending", of(changedByUser, deleted(time.Minute)), false, actionNone, time.Minute + endSlack},

		{"another controller, idle", changedByController, false, actionDrain, drainTime},
		{"another controller, idle, told", of(changedByController, drainingFor(drainTime)), false, actionReplace, 0},
		{"another controller, not its turn", of(changedByController, notYours), true, actionNone, 0},
		{"another controller, busy", of(changedByController, busy), true, actionNone, patientInterval},
		{"another controller, silent", of(changedByController, silentFor(time.Second)), true, actionNone, silentInterval},
		{"another controller, silent for long", of(changedByController, silentFor(silence), drainingFor(drainTime)), false, actionReplace, 0},
		{"another controller, not running", of(changedByController, notRunning, notYours), false, actionReplace, 0},
		{"another controller, not known to the StatefulSet controller", of(changedByController, behind), true, actionNone, 0},
	} {
		t.Run(tt.name, func(t *testing.T) {
			g := NewWithT(t)
			d := decide(observed(tt.observed))
			g.Expect(d.action).To(Equal(tt.action))
			g.Expect(d.status.Ready).To(Equal(tt.ready))
			g.Expect(d.status.RetryAfter).To(Equal(tt.after))
			if !tt.ready && d.status.Reason != autov1alpha1.CrashLoopBackOffReason && tt.name != "another controller, not running" {
				g.Expect(d.status.Reason).To(Equal(autov1alpha1.RollingUpdateReason))
			}
		})
	}
}

func TestAgentIsAskedOnlyWhenItsPodHasToGo(t *testing.T) {
	for _, tt := range []struct {
		name     string
		observed func(*observation)
		want     bool
	}{
		{"up to date", func(*observation) {}, false},
		{"the user's change", changedByUser, true},
		{"another controller", changedByController, true},
		{"another controller, not its turn", of(changedByController, func(o *observation) { o.mayRoll = false }), false},
		{"not running", of(changedByUser, waits("CrashLoopBackOff", "")), false},
		{"ending", of(changedByUser, deleted(time.Minute)), false},
		{"no pod", withoutPod, false},
		{"somebody else's", of(changedByUser, func(o *observation) { o.pod.OwnerReferences = nil }), false},
	} {
		t.Run(tt.name, func(t *testing.T) {
			NewWithT(t).Expect(wantsAnswer(observed(tt.observed))).To(Equal(tt.want))
		})
	}
}

func TestFailedCreationIsTriedAgainWithoutAHuman(t *testing.T) {
	g := NewWithT(t)
	refused := of(withoutPod, happenedAgo(time.Minute, "Warning", "FailedCreate", "exceeded quota"))
	d := decide(observed(refused, func(o *observation) { o.nudgeAt = noon.Add(3 * time.Second) }))
	g.Expect(d.action).To(Equal(actionNone))
	g.Expect(d.status.RetryAfter).To(Equal(3 * time.Second))
	d = decide(observed(refused, func(o *observation) { o.nudgeAt = noon }))
	g.Expect(d.action).To(Equal(actionNudge))
	d = decide(observed(withoutPod))
	g.Expect(d.action).To(Equal(actionNone), "nothing failed")
}

func TestAttemptsToCreateThePodComeEvery30SecondsInTheEnd(t *testing.T) {
	g := NewWithT(t)
	tracked := &tracker{}
	now := tracked.missedPod(noon)
	var intervals []time.Duration
	for range 7 {
		intervals = append(intervals, tracked.nudgeAt().Sub(now))
		now = tracked.nudgeAt()
		tracked.nudged(now)
	}
	const s = time.Second
	g.Expect(intervals).To(Equal([]time.Duration{2 * s, 4 * s, 8 * s, 16 * s, 30 * s, 30 * s, 30 * s}))
	g.Expect(tracked.missedPod(now)).To(Equal(noon))
	tracked.sawPod("pod")
	g.Expect(tracked.missedPod(now)).To(Equal(now))
}

func TestRefusedObjectsDoNotStopAPodThatIsWhatTheUserWants(t *testing.T) {
	g := NewWithT(t)
	refused := func(o *observation) {
		o.rejected = &runtime.Status{Failing: true, Stalled: true, Reason: autov1alpha1.ObjectRejectedReason}
		o.statefulSet.Spec.Template.Annotations = o.pod.Annotations
	}
	d := decide(observed(changedByController, refused))
	g.Expect(d.status.Ready).To(BeTrue())
	g.Expect(d.action).To(Equal(actionNone))
	d = decide(observed(changedByUser, refused))
	g.Expect(d.status).To(And(HaveField("Ready", false), HaveField("Reason", autov1alpha1.ObjectRejectedReason)))
	g.Expect(d.action).To(Equal(actionNone))
	g.Expect(decide(observed(withoutPod, func(o *observation) { o.rejected = &runtime.Status{Reason: "x"} })).status.Reason).To(Equal("x"))
}
