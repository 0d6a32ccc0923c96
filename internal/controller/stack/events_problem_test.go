package stack

import (
	"context"
	"errors"
	"strings"
	"testing"
	"time"

	. "github.com/onsi/gomega"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/tools/record"

	autov1alpha1 "github.com/stack-controller/stack-controller/api/auto/v1alpha1"
	pulumiv1 "github.com/stack-controller/stack-controller/api/pulumi/v1"
	"github.com/stack-controller/stack-controller/internal/report/reasons"
)

// announcements plays reconciles at the given time, and returns the events.
func announcements(stack *pulumiv1.Stack, at time.Time, changes ...func(*outcome)) (events []string, after time.Duration) {
	recorder := record.NewFakeRecorder(10)
	r := &Reconciler{EventRecorder: recorder}
	result := outcome{}
	for _, change := range changes {
		change(&result)
	}
	r.announceProblem(stack, at, &result)
	for _, step := range result.then {
		_ = step(nil)
	}
	close(recorder.Events)
	for event := range recorder.Events {
		events = append(events, event)
	}
	return events, result.after
}

func TestEveryProblemIsAnnouncedOnceAndSoIsItsEnd(t *testing.T) {
	tried := 0
	for _, reason := range reasons.All() {
		stalls, waits := strings.Contains(reason.State, "Stalled"), reason.State != "Stalled"
		if reason.Kind != pulumiv1.StackKind || reason.Reason == pulumiv1.WaveNotOpenReason || reason.State == "ready" || reason.State == "in progress" || reason.State == "not used" {
			continue
		}
		for _, show := range []struct {
			name  string
			tried bool
			mark  func(*pulumiv1.Stack)
		}{
			{"waiting", waits, func(s *pulumiv1.Stack) { markWaiting(s, reason.Reason, "why") }},
			{"stalled", stalls, func(s *pulumiv1.Stack) { markStalled(s, reason.Reason, "why") }},
		} {
			if !show.tried {
				continue
			}
			tried++
			t.Run(reason.Reason+" "+show.name, func(t *testing.T) {
				g := NewWithT(t)
				stack, begin := &pulumiv1.Stack{}, now
				show.mark(stack)
				events, after := announcements(stack, begin)
				if show.name == "waiting" {
					g.Expect(events).To(BeEmpty())
					g.Expect(after).To(Equal(problemGrace), "the next reconcile announces it")
					events, _ = announcements(stack, begin.Add(after))
				}
				first := "Warning " + reason.Reason + " why"
				g.Expect(events).To(ConsistOf(HavePrefix(first)))
				announced := events[0]
				events, after = announcements(stack, begin.Add(time.Hour))
				g.Expect(events).To(BeEmpty(), "once")
				g.Expect(after).To(BeZero())
				markReady(stack)
				events, _ = announcements(stack, begin.Add(2*time.Hour))
				g.Expect(events).To(ConsistOf(HavePrefix("Normal StackRecovered " + reason.Reason + " is over: ")))
				g.Expect(stack.Status.Problem).To(BeNil())
				events, _ = announcements(stack, begin.Add(3*time.Hour))
				g.Expect(events).To(BeEmpty())

				show.mark(stack)
				begin = begin.Add(4 * time.Hour)
				announcements(stack, begin)
				markReady(stack)
				announcements(stack, begin)
				show.mark(stack)
				events, after = announcements(stack, begin.Add(2*time.Second))
				if show.name == "waiting" {
					events, _ = announcements(stack, begin.Add(after+2*time.Second))
				}
				g.Expect(events).To(ConsistOf(And(HavePrefix(first), Not(Equal(announced)))), "with another token, or it would be taken for the first one")
			})
		}
	}
	NewWithT(t).Expect(tried).To(BeNumerically(">", 30))
}

// An event about a success that nobody gets is not the end of a problem.
func TestResyncWithoutChangesEndsAProblem(t *testing.T) {
	for _, test := range []struct {
		name      string
		message   string
		earlier   pulumiv1.StackUpdateState
		announced bool
	}{
		{"a resync", resyncMessage, pulumiv1.StackUpdateSucceeded, false},
		{"a resync after a failure", resyncMessage, pulumiv1.StackUpdateFailed, true},
		{"a request", "requested", pulumiv1.StackUpdateSucceeded, true},
	} {
		t.Run(test.name, func(t *testing.T) {
			g := NewWithT(t)
			recorder := record.NewFakeRecorder(1)
			update := &autov1alpha1.Update{Spec: autov1alpha1.UpdateSpec{Message: &test.message}}
			ended := &endedUpdate{update: update, earlier: &pulumiv1.StackUpdateStatus{State: test.earlier}, result: &pulumiv1.StackUpdateStatus{State: pulumiv1.StackUpdateSucceeded}}
			(&Reconciler{EventRecorder: recorder}).announceResult(t.Context(), &pulumiv1.Stack{}, ended.earlier, ended.result, update)
			g.Expect(recorder.Events).To(HaveLen(map[bool]int{true: 1}[test.announced]))
			g.Expect(ended.announcesSuccess()).To(Equal(test.announced))
		})
	}
}

func TestEventsAreRecordedAlsoIfAnOldUpdateCannotBeDeleted(t *testing.T) {
	g := NewWithT(t)
	recorded, denied := 0, errors.New("denied")
	result := outcome{then: []func(context.Context) error{func(context.Context) error { return denied }}}
	result.addEvent(func() { recorded++ })
	g.Expect(result.finish(t.Context())).To(MatchError(denied), "it is tried again")
	g.Expect(recorded).To(Equal(1))
}

// That there is no StackRollout, somebody has to mend. That a wave is not open, nobody has to, and many new Stacks wait for theirs.
func TestNewStackThatWaitsForItsWaveIsNoProblem(t *testing.T) {
	g := NewWithT(t)
	stack := &pulumiv1.Stack{}
	markWaiting(stack, pulumiv1.WaveNotOpenReason, "a new Stack waits")
	for _, at := range []time.Time{now, now.Add(time.Hour)} {
		events, after := announcements(stack, at)
		g.Expect(events).To(BeEmpty())
		g.Expect(after).To(BeZero())
	}
	markWaiting(stack, pulumiv1.RolloutNotFoundReason, "there is none")
	announcements(stack, now)
	events, _ := announcements(stack, now.Add(problemGrace))
	g.Expect(events).To(ConsistOf(HavePrefix("Warning RolloutNotFound there is none")))
	markWaiting(stack, pulumiv1.WaveNotOpenReason, "a new Stack waits")
	events, _ = announcements(stack, now.Add(time.Hour))
	g.Expect(events).To(ConsistOf(HavePrefix("Normal StackRecovered RolloutNotFound is over: a new Stack waits")))
	g.Expect(stack.Status.Problem).To(BeNil())
}

func TestProblemsThatNobodyHasToHearOf(t *testing.T) {
	g := NewWithT(t)
	stack := &pulumiv1.Stack{}
	markWaiting(stack, pulumiv1.SourceNotFoundReason, "why")
	announcements(stack, now)
	markReady(stack)
	events, _ := announcements(stack, now.Add(problemGrace/2))
	g.Expect(events).To(BeEmpty(), "it ended before it was announced")

	// Another problem in between, and a running update, are not the end.
	markStalled(stack, pulumiv1.SpecInvalidReason, "why")
	announcements(stack, now, func(o *outcome) { o.announcesProblem = true })
	g.Expect(stack.Status.Problem.Announced).To(Equal(pulumiv1.SpecInvalidReason), "an event of its own is not repeated")
	markProgressing(stack, "runs")
	events, _ = announcements(stack, now)
	g.Expect(events).To(BeEmpty())
	markWaiting(stack, pulumiv1.SourceNotFoundReason, "why")
	announcements(stack, now)
	markReady(stack)
	events, _ = announcements(stack, now.Add(time.Second), func(o *outcome) { o.announcesSuccess = true })
	g.Expect(events).To(BeEmpty(), "the event about the update is the end")

	stack.Spec.Suspend = true
	markWaiting(stack, pulumiv1.SourceNotFoundReason, "why")
	events, after := announcements(stack, now.Add(time.Hour))
	g.Expect(events).To(BeEmpty())
	g.Expect(after).To(BeZero())
	stack.DeletionTimestamp = &metav1.Time{Time: now}
	markStalled(stack, pulumiv1.SuspendedReason, "why")
	events, _ = announcements(stack, now.Add(time.Hour))
	g.Expect(events).To(HaveLen(1), "a deletion waits for somebody")
}
