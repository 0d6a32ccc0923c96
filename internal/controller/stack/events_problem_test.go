package stack

import (
	"strings"
	"testing"
	"time"

	. "github.com/onsi/gomega"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/tools/record"

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
		if reason.Kind != pulumiv1.StackKind || reason.State == "ready" || reason.State == "in progress" || reason.State == "not used" {
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
				g.Expect(events).To(ConsistOf("Warning " + reason.Reason + " why"))
				events, after = announcements(stack, begin.Add(time.Hour))
				g.Expect(events).To(BeEmpty(), "once")
				g.Expect(after).To(BeZero())
				markReady(stack)
				events, _ = announcements(stack, begin.Add(2*time.Hour))
				g.Expect(events).To(ConsistOf(HavePrefix("Normal StackRecovered " + reason.Reason + " is over: ")))
				g.Expect(stack.Status.Problem).To(BeNil())
				events, _ = announcements(stack, begin.Add(3*time.Hour))
				g.Expect(events).To(BeEmpty())
			})
		}
	}
	NewWithT(t).Expect(tried).To(BeNumerically(">", 30))
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
