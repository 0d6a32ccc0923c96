package pod

import (
	"context"
	"errors"
	"testing"
	"time"

	. "github.com/onsi/gomega"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/utils/ptr"

	autov1alpha1 "github.com/stack-controller/stack-controller/api/auto/v1alpha1"
	"github.com/stack-controller/stack-controller/internal/agent/client"
	"github.com/stack-controller/stack-controller/internal/agentruntime"
)

var (
	changedByUser       = otherPod(revisions{inputs: "r0", agent: "a1"})
	changedByController = otherPod(revisions{inputs: "r1", agent: "a0"})
	// ofTheOperator is a pod that another controller created. Both have a revision of the inputs.
	ofTheOperator = otherPod(revisions{inputs: "r0"})
)

// busy makes the agent answer that it has an operation.
func busy(o *observation) { o.agent.busy = true }

func silentFor(d time.Duration) func(*observation) {
	return func(o *observation) { o.agent.err, o.agent.silence.noAnswer = errors.New("no answer"), d }
}

// deniesFor makes the agent answer that it does not let the controller in.
func deniesFor(d time.Duration) func(*observation) {
	return func(o *observation) { o.agent.err, o.agent.silence.refusal = errors.New("you may not"), d }
}

// unasked keeps the controller from asking the agent.
func unasked(o *observation) { o.agent.err, o.agent.unasked = errors.New("no token for it"), true }

func announcedFor(d time.Duration) func(*observation) {
	return func(o *observation) { o.announcedAt = noon.Add(-d) }
}

func TestPodIsReplacedOnlyWhenThatDisturbsNobody(t *testing.T) {
	notRunning := waits("CrashLoopBackOff", "")
	killed := corev1.ContainerStateTerminated{Reason: "OOMKilled", StartedAt: ago(time.Hour), FinishedAt: ago(time.Minute)}
	restarts := container(func(s *corev1.ContainerStatus) { s.State.Terminated = &killed })
	restarted := container(func(s *corev1.ContainerStatus) {
		s.RestartCount, s.LastTerminationState.Terminated, s.State.Waiting = 1, &killed, &corev1.ContainerStateWaiting{Reason: "ContainerCreating"}
	})
	crashes := ended(7, killed)
	longAgo := container(func(s *corev1.ContainerStatus) {
		s.State.Terminated = &corev1.ContainerStateTerminated{StartedAt: ago(time.Hour), FinishedAt: ago(maxSilence)}
	})
	behind := func(o *observation) { o.statefulSet.Status.ObservedGeneration = 1 }
	notYours := func(o *observation) { o.mayRoll = false }
	for _, tt := range []struct {
		name     string
		observed func(*observation)
		ready    bool
		action   action
		// after is the time after which the Workspace is reconciled again; zero when an event follows.
		after time.Duration
	}{
		{"the user's change, idle", changedByUser, false, actionAnnounce, announceTime},
		{"the user's change, idle, told", of(changedByUser, announcedFor(announceTime)), false, actionReplace, 0},
		{"the user's change, told a moment ago", of(changedByUser, announcedFor(announceTime/2)), false, actionAnnounce, announceTime},
		{"the user's change, busy", of(changedByUser, busy), false, actionNone, busyInterval},
		{"the user's change, busy after all", of(changedByUser, busy, announcedFor(time.Minute)), false, actionNone, busyInterval},
		{"the user's change, silent", of(changedByUser, silentFor(time.Second)), false, actionNone, silentInterval},
		{"the user's change, unasked", of(changedByUser, unasked, announcedFor(time.Hour)), false, actionNone, silentInterval},
		{"the user's change, silent for long", of(changedByUser, silentFor(maxSilence)), false, actionAnnounce, announceTime},
		{"the user's change, denies", of(changedByUser, deniesFor(maxSilence)), false, actionNone, silentInterval},
		{"the user's change, denies for long", of(changedByUser, deniesFor(maxRefusal)), false, actionAnnounce, announceTime},
		{"the user's change, not running", of(changedByUser, notRunning), false, actionReplace, 0},
		{"the user's change, restarting", of(changedByUser, restarts), false, actionNone, maxSilence - time.Minute},
		{"the user's change, restarting with its node", of(changedByUser, restarted), false, actionNone, maxSilence - time.Minute},
		{"the user's change, crashing again and again", of(changedByUser, crashes), false, actionReplace, 0},
		{"the user's change, not restarted for long", of(changedByUser, longAgo), false, actionReplace, 0},
		{"of the operator, restarting", of(ofTheOperator, restarts), false, actionReplace, 0},
		{"the user's change, not known to the StatefulSet controller", of(changedByUser, behind), false, actionNone, 0},
		{"the user's change, of a pod that is ending", of(changedByUser, deleted(time.Minute)), false, actionNone, time.Minute + endSlack},

		{"of the operator", ofTheOperator, false, actionAnnounce, announceTime},
		{"of the operator, told", of(ofTheOperator, announcedFor(announceTime)), false, actionReplace, 0},
		{"of the operator, not running", of(ofTheOperator, notRunning), false, actionReplace, 0},
		{"of the operator, ending", of(ofTheOperator, deleted(time.Minute), silentFor(time.Second)), false, actionNone, time.Minute + endSlack},
		{"of the operator, not known to the StatefulSet controller", of(ofTheOperator, behind), false, actionNone, 0},

		{"another controller, idle", changedByController, false, actionAnnounce, announceTime},
		{"another controller, idle, told", of(changedByController, announcedFor(announceTime)), false, actionReplace, 0},
		{"another controller, turn not asked for", of(changedByController, func(o *observation) { o.rollAsked, o.mayRoll = false, false }), true, actionQueue, 0},
		{"another controller, could not be deleted", of(changedByController, func(o *observation) {
			o.rollAsked, o.mayRoll, o.keptUntil = false, false, noon.Add(time.Minute)
		}), true, actionNone, time.Minute},
		{"another controller, not its turn", of(changedByController, notYours), true, actionNone, 0},
		{"another controller, busy", of(changedByController, busy), true, actionNone, outdatedAgentInterval},
		{"another controller, silent", of(changedByController, silentFor(time.Second)), true, actionNone, silentInterval},
		{"another controller, unasked", of(changedByController, unasked), true, actionNone, silentInterval},
		{"another controller, silent for long", of(changedByController, silentFor(maxSilence), announcedFor(announceTime)), false, actionReplace, 0},
		{"another controller, not running", of(changedByController, notRunning, notYours), false, actionReplace, 0},
		{"another controller, restarting", of(changedByController, restarts, notYours), false, actionNone, maxSilence - time.Minute},
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
		{"of the operator, whose agent cannot answer", ofTheOperator, false},
		{"of the operator, idle", of(ofTheOperator, func(o *observation) { o.idle = true }), false},
		{"another controller", changedByController, true},
		{"another controller, not its turn", of(changedByController, func(o *observation) { o.mayRoll = false }), false},
		{"not running", of(changedByUser, waits("CrashLoopBackOff", "")), false},
		{"ending", of(changedByUser, deleted(time.Minute)), false},
		{"no pod", withoutPod, false},
		{"somebody else's", of(changedByUser, func(o *observation) { o.pod.OwnerReferences = nil }), false},
	} {
		t.Run(tt.name, func(t *testing.T) {
			NewWithT(t).Expect(needsAnswer(observed(tt.observed))).To(Equal(tt.want))
		})
	}
}

func TestPodOfAnIdleWorkspaceGoesWhenItsAgentAgrees(t *testing.T) {
	idle := func(o *observation) { o.idle = true }
	scaled := func(o *observation) { o.statefulSet.Spec.Replicas = new(int32) }
	for _, tt := range []struct {
		name     string
		observed func(*observation)
		asked    bool
		action   action
		after    time.Duration
		reason   string
	}{
		{"not told", idle, true, actionAnnounce, announceTime, autov1alpha1.IdleReason},
		{"told", of(idle, announcedFor(announceTime)), true, actionScaleDown, 0, autov1alpha1.IdleReason},
		{"busy after all", of(idle, busy, announcedFor(announceTime)), true, actionNone, busyInterval, autov1alpha1.SucceededReason},
		{"silent", of(idle, silentFor(time.Second)), true, actionNone, silentInterval, autov1alpha1.SucceededReason},
		{"the user's change", of(idle, changedByUser, announcedFor(announceTime)), true, actionScaleDown, 0, autov1alpha1.IdleReason},
		{"not running", of(idle, waits("CrashLoopBackOff", "")), false, actionScaleDown, 0, autov1alpha1.IdleReason},
		{"ending", of(idle, scaled, deleted(time.Minute)), false, actionNone, 0, autov1alpha1.IdleReason},
		{"gone", of(idle, scaled, withoutPod), false, actionNone, 0, autov1alpha1.IdleReason},
		{"needed again, ending", of(scaled, deleted(time.Minute)), false, actionNone, time.Minute + endSlack, autov1alpha1.PodTerminatingReason},
	} {
		t.Run(tt.name, func(t *testing.T) {
			g := NewWithT(t)
			o := observed(tt.observed)
			g.Expect(needsAnswer(o)).To(Equal(tt.asked))
			d := decide(o)
			g.Expect(d.action).To(Equal(tt.action))
			g.Expect(d.status.RetryAfter).To(Equal(tt.after))
			g.Expect(d.status.Reason).To(Equal(tt.reason))
			g.Expect(d.status.Resting).To(Equal(tt.reason == autov1alpha1.IdleReason))
		})
	}
}

func TestFailedCreationIsTriedAgainWithoutAHuman(t *testing.T) {
	g := NewWithT(t)
	refused := of(withoutPod, happenedAgo(time.Minute, "Warning", "FailedCreate", "exceeded quota"))
	d := decide(observed(refused, func(o *observation) { o.retryCreationAt = noon.Add(3 * time.Second) }))
	g.Expect(d.action).To(Equal(actionNone))
	g.Expect(d.status.RetryAfter).To(Equal(3 * time.Second))
	d = decide(observed(refused, func(o *observation) { o.retryCreationAt = noon }))
	g.Expect(d.action).To(Equal(actionRetryCreation))
	d = decide(observed(withoutPod))
	g.Expect(d.action).To(Equal(actionNone), "nothing failed")
}

func TestAttemptsToCreateThePodComeEvery30SecondsInTheEnd(t *testing.T) {
	g := NewWithT(t)
	tracked := &tracker{}
	missing := &observation{now: noon}
	tracked.update(missing)
	now := noon
	var intervals []time.Duration
	for range 7 {
		intervals = append(intervals, tracked.retryCreationAt().Sub(now))
		now = tracked.retryCreationAt()
		tracked.retried(now)
	}
	const s = time.Second
	g.Expect(intervals).To(Equal([]time.Duration{2 * s, 4 * s, 8 * s, 16 * s, 30 * s, 30 * s, 30 * s}))
	later := &observation{now: now}
	tracked.update(later)
	g.Expect(later.missingSince).To(Equal(noon))
	tracked.update(observed())
	tracked.update(later)
	g.Expect(later.missingSince).To(Equal(now))
}

func TestPodThatStaysBecauseNobodyCanAskItsAgentNamesTheCause(t *testing.T) {
	g := NewWithT(t)
	status := decide(observed(changedByUser, unasked)).status
	g.Expect(status.Failing).To(BeTrue())
	g.Expect(status.Message).To(HaveSuffix("no token for it"))
}

func TestAgentIsSilentOnlyForAsLongAsItWasAsked(t *testing.T) {
	silent, denied := &client.Error{Kind: client.ErrUnavailable}, &client.Error{Kind: client.ErrDenied, Answered: true}
	type asked struct {
		after time.Duration
		err   error
	}
	for name, tt := range map[string]struct {
		asked             []asked
		noAnswer, refusal time.Duration
	}{
		"again and again":          {[]asked{{0, silent}, {10 * time.Second, context.DeadlineExceeded}, {10 * time.Second, silent}}, 20 * time.Second, 0},
		"once":                     {[]asked{{0, silent}}, 0, 0},
		"an hour ago, and now":     {[]asked{{0, silent}, {time.Hour, silent}}, maxAskInterval, 0},
		"until it answered":        {[]asked{{0, silent}, {10 * time.Second, silent}, {time.Second, nil}, {10 * time.Second, silent}}, 0, 0},
		"while others kept it":     {[]asked{{0, silent}, {10 * time.Second, &client.Error{Kind: client.ErrUnasked}}, {5 * time.Second, silent}}, 5 * time.Second, 0},
		"it denied":                {[]asked{{0, denied}, {10 * time.Second, denied}}, 0, 10 * time.Second},
		"it cannot decide":         {[]asked{{0, denied}, {10 * time.Second, &client.Error{Kind: client.ErrUnavailable, Answered: true}}}, 0, 10 * time.Second},
		"no agent answers":         {[]asked{{0, &client.Error{}}, {10 * time.Second, &client.Error{}}}, 0, 10 * time.Second},
		"it denied after silence":  {[]asked{{0, silent}, {10 * time.Second, silent}, {10 * time.Second, denied}}, 0, 10 * time.Second},
		"it was silent in between": {[]asked{{0, denied}, {10 * time.Second, denied}, {10 * time.Second, silent}}, 10 * time.Second, 10 * time.Second},
	} {
		t.Run(name, func(t *testing.T) {
			g := NewWithT(t)
			observed, now := silence{}, noon
			for _, one := range tt.asked {
				now = now.Add(one.after)
				observed.note(now, one.err)
			}
			g.Expect(observed.noAnswer).To(Equal(tt.noAnswer))
			g.Expect(observed.refusal).To(Equal(tt.refusal))
		})
	}
}

func TestRefusedObjectsDoNotStopAPodThatIsWhatTheUserWants(t *testing.T) {
	g := NewWithT(t)
	refused := func(o *observation) {
		o.rejected = &agentruntime.Status{Failing: true, Stalled: true, Reason: autov1alpha1.ObjectRejectedReason}
		o.statefulSet.Spec.Template.Annotations = o.pod.Annotations
	}
	d := decide(observed(changedByController, refused))
	g.Expect(d.status.Ready).To(BeTrue())
	g.Expect(d.action).To(Equal(actionNone))
	d = decide(observed(changedByUser, refused))
	g.Expect(d.status).To(And(HaveField("Ready", false), HaveField("Reason", autov1alpha1.ObjectRejectedReason)))
	g.Expect(d.action).To(Equal(actionNone))
	g.Expect(decide(observed(withoutPod, func(o *observation) { o.rejected = &agentruntime.Status{Reason: "x"} })).status.Reason).To(Equal("x"))
	orphaned := func(o *observation) {
		o.rejected, o.statefulSet = &agentruntime.Status{Reason: "x", RetryAfter: time.Minute}, nil
	}
	g.Expect(decide(observed(orphaned)).status).To(Equal(agentruntime.Status{Reason: "x", RetryAfter: time.Minute}))
}

func TestPodWhoseAgentDidNotGetTheSignalEndsSooner(t *testing.T) {
	// ends makes the observed pod one that was deleted that long ago, with the default grace period.
	ends := func(ago time.Duration) func(*observation) {
		return of(deleted(10*time.Minute-ago), func(o *observation) { o.pod.DeletionGracePeriodSeconds = ptr.To[int64](600) })
	}
	short := func(o *observation) { o.pod.DeletionGracePeriodSeconds = ptr.To[int64](shortGrace) }
	foreign := func(o *observation) { o.pod.OwnerReferences = nil }
	late := signalTime + time.Second
	for name, tt := range map[string]struct {
		observed func(*observation)
		asked    bool
		action   action
		after    time.Duration
	}{
		"a moment ago":                     {ends(time.Second), false, actionNone, signalTime - time.Second},
		"idle":                             {ends(late), true, actionShortenGrace, 10*time.Minute - late + endSlack},
		"busy":                             {of(ends(late), busy), true, actionNone, busyInterval},
		"does not answer":                  {of(ends(late), silentFor(time.Second)), true, actionNone, busyInterval},
		"not running":                      {of(ends(late), waits("CrashLoopBackOff", "")), false, actionNone, 10*time.Minute - late + endSlack},
		"somebody else's":                  {of(ends(late), foreign), false, actionNone, maxInterval},
		"has a short grace period already": {of(ends(late), deleted(time.Second), short), false, actionNone, time.Second + endSlack},
		"its node does not answer":         {of(ends(late), lostNode), false, actionNone, 10*time.Minute - late + endSlack},
		"its time is over":                 {ends(10*time.Minute + endSlack + time.Second), false, actionNone, 0},
		"deleted without grace":            {deleted(0), false, actionNone, endSlack},
	} {
		t.Run(name, func(t *testing.T) {
			g := NewWithT(t)
			o := observed(tt.observed)
			g.Expect(needsAnswer(o)).To(Equal(tt.asked))
			d := decide(o)
			g.Expect(d.action).To(Equal(tt.action))
			g.Expect(d.status.RetryAfter).To(Equal(tt.after))
			g.Expect(d.status.Ready).To(BeFalse())
		})
	}
}
