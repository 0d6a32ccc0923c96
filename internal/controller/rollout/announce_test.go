package rollout

import (
	"fmt"
	"slices"
	"testing"
	"time"

	. "github.com/onsi/gomega"
	"k8s.io/client-go/tools/record"
	"sigs.k8s.io/controller-runtime/pkg/client"

	autov1alpha1 "github.com/stack-controller/stack-controller/api/auto/v1alpha1"
)

// TestCommitStatusIsSetByWhatIsDecidedAboutTheRevision: notification-controller sets the status of a commit that an event names, and of the
// revision of each warning.
func TestCommitStatusIsSetByWhatIsDecidedAboutTheRevision(t *testing.T) {
	g := NewWithT(t)
	recorder := record.NewFakeRecorder(10)
	rollout := &autov1alpha1.StackRollout{Status: autov1alpha1.StackRolloutStatus{
		Target: &autov1alpha1.RolloutTarget{RolloutRevision: autov1alpha1.RolloutRevision{Revision: "latest@sha256:1"}},
	}}
	r := &Reconciler{EventRecorder: recorder}
	announced := func(a announcement) string {
		r.announce(rollout, &autov1alpha1.CommitInfo{SHA: "abc"}, []announcement{a})
		return <-recorder.Events
	}
	const commit, revision, origin = "event.toolkit.fluxcd.io/commit:sha1:abc", "auto.pulumi.com/revision:latest@sha256:1", "auto.pulumi.com/originRevision:sha1:abc"
	g.Expect(announced(announcement{reason: eventStarted})).To(And(ContainSubstring(revision), ContainSubstring(origin), Not(ContainSubstring(commit))))
	g.Expect(announced(announcement{reason: autov1alpha1.RolloutCompleteReason, verdict: true})).To(And(ContainSubstring(revision), ContainSubstring(commit)))
	g.Expect(announced(announcement{reason: eventRefused, warning: true})).NotTo(ContainSubstring("sha"), "it says nothing about the commit")

	f := newFleet(t)
	f.offers("b")
	f.finish("b")
	f.Expect(f.last.events[len(f.last.events)-1].verdict).To(BeTrue())

	// A later failure with the same revision is one of the commit, too, until it is mended.
	f.events = nil
	fail(f.stacks[0], "b")
	f.decide()
	succeed(f.stacks[0], "b")
	f.decide()
	f.decide()
	f.Expect(f.events).To(Equal([]string{autov1alpha1.RolloutHaltedReason, eventWaveComplete, autov1alpha1.RolloutCompleteReason}))
}

func TestStackThatIsRefusedIsAnnouncedOnce(t *testing.T) {
	f := newFleet(t)
	f.refused = []autov1alpha1.RolloutFailure{{Stack: "other/s", Message: "its source is another one"}}
	f.decide()
	f.Expect(f.rollout.Status.Refused).To(Equal(f.refused))
	f.decide()
	f.offers("b")
	f.Expect(f.events).To(Equal([]string{eventRefused, eventStarted}))
}

// Whoever may create Stacks anywhere can name any StackRollout.
func TestStacksThatAreNotAdmittedTakeNoPlaceAndAreAnnouncedOnceAnHour(t *testing.T) {
	f := newFleet(t)
	f.refused = []autov1alpha1.RolloutFailure{{Stack: "ns/s", Message: "its source is another one"}}
	for i := range maxRefused {
		f.uninvited = append(f.uninvited, autov1alpha1.RolloutFailure{Stack: fmt.Sprint("aaa/", i), Message: "not admitted"})
	}
	f.decide()
	f.Expect(f.rollout.Status.Refused).To(Equal(slices.Concat(f.refused, f.uninvited[:maxRefused-1])))
	f.Expect(f.last.events).To(HaveLen(2))
	f.Expect(f.last.events[0].message).To(ContainSubstring("ns/s"))
	f.Expect(f.last.events[1].message).To(ContainSubstring("aaa/0"))

	recorder := record.NewFakeRecorder(10)
	r := &Reconciler{EventRecorder: recorder}
	for range 3 {
		r.announce(f.rollout, nil, f.last.events)
	}
	f.Expect(recorder.Events).To(HaveLen(4), "its own three times")
	key := client.ObjectKeyFromObject(f.rollout)
	f.Expect(r.mayWarn(key, time.Now().Add(warnInterval-time.Minute))).To(BeFalse())
	f.Expect(r.mayWarn(key, time.Now().Add(warnInterval+time.Minute))).To(BeTrue())
}

// TestEachNameOfTheContentGetsItsVerdict: a pipeline waits for the status of its commit, also if that changes nothing in the artifact.
func TestEachNameOfTheContentGetsItsVerdict(t *testing.T) {
	f := newFleet(t)
	verdicts := func() (reasons []string) {
		f.events = nil
		for range 2 {
			f.decide()
			for _, event := range f.last.events {
				f.Expect(event.verdict).To(BeTrue())
				f.Expect(event.message).To(ContainSubstring(f.offer.Revision))
			}
		}
		return f.events
	}
	f.offers("b")
	f.finish("b")
	f.offer = again("b", 1)
	f.Expect(verdicts()).To(Equal([]string{autov1alpha1.RolloutCompleteReason}))
	f.Expect(f.rollout.Status.Stable).To(HaveValue(Equal(*f.offer)))
	fail(f.stacks[0], "b")
	f.decide()
	f.offer = again("b", 2)
	f.Expect(verdicts()).To(Equal([]string{autov1alpha1.RolloutHaltedReason}))
}
