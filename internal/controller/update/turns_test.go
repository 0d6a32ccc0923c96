package update

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"sync/atomic"
	"testing"
	"time"

	. "github.com/onsi/gomega"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	ctrlclient "sigs.k8s.io/controller-runtime/pkg/client"

	autov1alpha1 "github.com/stack-controller/stack-controller/api/auto/v1alpha1"
	"github.com/stack-controller/stack-controller/internal/agent/agentpb"
	"github.com/stack-controller/stack-controller/internal/agentruntime"
	"github.com/stack-controller/stack-controller/internal/fairqueue"
)

func TestOperationsBeyondTheLimitWaitForTheirTurns(t *testing.T) {
	s := newFixture(t)
	other := s.newNamespace()
	s.maxOperations = 2
	release := s.agents.script.blocks()
	stop := s.startController()
	var first, all []*autov1alpha1.Update
	create := func(namespace, name string) *autov1alpha1.Update {
		_, update := s.newUpdateOf(namespace, name, nil)
		all = append(all, update)
		return update
	}
	for i := range 2 {
		first = append(first, create(s.namespace, fmt.Sprint("first-", i)))
		s.Eventually(s.current(first[i])).Should(beProgressing())
	}
	third := create(s.namespace, "third")
	s.Eventually(s.current(third)).Should(waitFor(autov1alpha1.QueuedReason, "place 1 in the queue, 2 operations may run"))
	s.Eventually(s.current(create(s.namespace, "fourth"))).Should(waitFor(autov1alpha1.QueuedReason, "place 2 in the queue"))
	s.Eventually(s.current(create(other, "fifth"))).Should(waitFor(autov1alpha1.QueuedReason, "place 2 in the queue"), "namespaces go in turn")
	s.Expect(s.agents.script.requests()).To(HaveLen(2))
	isConnected := func(update *autov1alpha1.Update) bool {
		_, connected := s.agents.connected.Load(types.NamespacedName{Namespace: update.Namespace, Name: update.Spec.WorkspaceName})
		return connected
	}
	s.Expect(isConnected(first[0])).To(BeTrue())
	s.Expect(isConnected(third)).To(BeFalse(), "an agent that rests is not started before it has something to do")

	// Operations that run count for the next controller, too.
	stop()
	s.startController()
	s.Consistently(s.agents.script.requests, "1s").Should(HaveLen(2))

	// An Update that waits may be cancelled or deleted, and the Updates behind it go on.
	s.askToEnd(third)
	s.Expect(s.finished(third)).To(haveFailed(autov1alpha1.CanceledReason, "before its operation started"))
	release()
	for _, update := range all {
		if update != third {
			s.Expect(s.finished(update)).To(haveSucceeded())
		}
	}
}

func TestAgentThatRestsIsWokenWhenItIsTheTurnOfItsUpdate(t *testing.T) {
	s := newFixture(t)
	s.maxOperations = 1
	release := s.agents.script.blocks()
	s.startController()
	_, first := s.newUpdateOf(s.namespace, "first", nil)
	s.Eventually(s.current(first)).Should(beProgressing())
	s.agents.resting.Store(s.key("second"), true)
	_, second := s.newUpdateOf(s.namespace, "second", nil)
	s.Eventually(s.current(second)).Should(waitFor(autov1alpha1.QueuedReason, "place 1 in the queue"))
	s.Expect(s.agents.woken.Load()).To(BeZero())

	release()
	s.Expect(s.finished(second)).To(haveSucceeded())
	s.Expect(s.agents.woken.Load()).To(BeEquivalentTo(1))
}

func TestOperationWithoutAnAgentHoldsNoSlotUntilItIsFoundAgain(t *testing.T) {
	s := newFixture(t)
	s.maxOperations = 1
	release := s.agents.script.blocks()
	s.startController()
	workspace, lost := s.newUpdateOf(s.namespace, "lost", nil)
	s.Eventually(s.current(lost)).Should(beProgressing())
	_, next := s.newUpdateOf(s.namespace, "next", nil)
	s.Eventually(s.current(next)).Should(waitFor(autov1alpha1.QueuedReason, "place 1 in the queue"))

	s.agents.hidden.Store(s.key("lost"), true)
	s.touch(workspace)
	answers := HaveField("Status.Message", Not(ContainSubstring("the agent does not answer")))
	s.Eventually(s.current(lost)).ShouldNot(answers)
	s.Consistently(s.current(next), "1s").Should(waitFor(autov1alpha1.QueuedReason, ""), "the workspace still has an agent, according to its status")
	s.setReady(workspace, false, "the pod cannot be scheduled")
	s.Eventually(s.current(next)).Should(beProgressing())

	// An operation that runs after all counts.
	s.agents.hidden.Delete(s.key("lost"))
	s.setReady(workspace, true, "")
	s.Eventually(s.current(lost)).Should(answers)
	_, third := s.newUpdateOf(s.namespace, "third", nil)
	s.Eventually(s.current(third)).Should(waitFor(autov1alpha1.QueuedReason, "place 1 in the queue"))
	s.askToEnd(next)
	s.finished(next)
	s.Consistently(s.current(third), "1s").Should(waitFor(autov1alpha1.QueuedReason, ""))
	release()
	for _, update := range []*autov1alpha1.Update{lost, third} {
		s.Expect(s.finished(update)).To(haveSucceeded())
	}
}

func TestOperationWhoseStartWasNotConfirmedKeepsItsSlotAndIsFollowed(t *testing.T) {
	s := newFixture(t)
	s.maxOperations = 1
	release := s.agents.script.blocks()
	var lost atomic.Bool
	s.agents.answerWith(func(method string, _ any) error {
		if method == "StartOperation" && lost.CompareAndSwap(false, true) {
			return errAnswerLost
		}
		return nil
	})
	s.startController()
	workspace, first := s.newUpdateOf(s.namespace, "first", nil)
	s.Eventually(s.current(first)).Should(waitFor(autov1alpha1.UpdateTransientFailureReason, "the answer was lost"))
	s.agents.hidden.Store(s.key("first"), true)
	s.touch(workspace)
	s.Eventually(s.current(first)).Should(waitFor(autov1alpha1.UpdateTransientFailureReason, agentruntime.ErrNoAgent.Error()))
	_, second := s.newUpdateOf(s.namespace, "second", nil)
	s.Eventually(s.current(second)).Should(waitFor(autov1alpha1.QueuedReason, "place 1 in the queue"))

	s.agents.hidden.Delete(s.key("first"))
	s.touch(workspace)
	s.Eventually(s.current(first)).Should(beProgressing())
	s.Expect(s.agents.script.requests()).To(HaveLen(1))
	release()
	for _, update := range []*autov1alpha1.Update{first, second} {
		s.Expect(s.finished(update)).To(haveSucceeded())
	}
}

func TestOperationWhoseStartWasNotRecordedIsFollowedAlthoughItIsNotItsTurn(t *testing.T) {
	s := newFixture(t)
	s.maxOperations = 1
	release := s.agents.script.blocks()
	stop := s.startController()
	_, first := s.newUpdateOf(s.namespace, "first", nil)
	s.Eventually(s.current(first)).Should(beProgressing())
	stop()
	_, unrecorded := s.newUpdateOf(s.namespace, "unrecorded", nil)
	_, err := s.agents.agent(s.key("unrecorded")).StartOperation(t.Context(), &agentpb.StartOperationRequest{
		Id: string(unrecorded.UID), Kind: agentpb.OperationKind_OPERATION_KIND_UP, Stack: "dev",
		Source: &agentpb.StartOperationRequest_Local{Local: &agentpb.LocalSource{}},
	})
	s.Expect(err).NotTo(HaveOccurred())
	s.agents.resting.Store(s.key("resting"), true)
	_, resting := s.newUpdateOf(s.namespace, "resting", nil)

	s.startController()
	s.Eventually(s.current(unrecorded)).Should(beProgressing())
	s.Eventually(s.current(resting)).Should(waitFor(autov1alpha1.QueuedReason, "place 1 in the queue"))
	s.Expect(s.agents.woken.Load()).To(BeZero(), "an agent that rests runs nothing")
	s.askToEnd(first)
	s.finished(first)
	s.Consistently(s.current(resting), "1s").Should(waitFor(autov1alpha1.QueuedReason, ""), "what runs has a slot")
	release()
	for _, update := range []*autov1alpha1.Update{unrecorded, resting} {
		s.Expect(s.finished(update)).To(haveSucceeded())
	}
}

// unreadable is a reader that fails the first time.
type unreadable struct {
	ctrlclient.Reader
	asked int
}

func (u *unreadable) List(_ context.Context, list ctrlclient.ObjectList, _ ...ctrlclient.ListOption) error {
	if u.asked++; u.asked == 1 {
		return errors.New("the cache is not there yet")
	}
	running := autov1alpha1.Update{Namespace: "ns", Name: "running"}
	running.Status.StartTime = new(metav1.Now())
	list.(*autov1alpha1.UpdateList).Items = []autov1alpha1.Update{running}
	return nil
}

func TestOperationsThatRunAreCountedEvenIfTheyCannotBeListedAtFirst(t *testing.T) {
	g := NewWithT(t)
	turns, reader := newTurns(1, false, nil), &unreadable{}
	update := &autov1alpha1.Update{Namespace: "ns", Name: "update"}
	_, err := turns.ask(t.Context(), reader, update, time.Now())
	g.Expect(err).To(MatchError(ContainSubstring("list the updates that run")))
	for range 2 {
		view, err := turns.ask(t.Context(), reader, update, time.Now())
		g.Expect(err).NotTo(HaveOccurred())
		g.Expect(view.place).To(Equal(1), "it has no slot while the other one runs")
	}
	g.Expect(reader.asked).To(Equal(2))
}

func TestPlaceIsShownAgainAfterATimeThatDependsOnIt(t *testing.T) {
	g := NewWithT(t)
	turns, key := newTurns(1, false, nil), types.NamespacedName{Namespace: "ns", Name: "update"}
	begin := time.Now()
	g.Expect(turns.show(key, 100, begin)).To(Equal(turnView{place: 100, limit: 1, again: 100 * time.Second}))
	g.Expect(turns.show(key, 50, begin.Add(40*time.Second))).To(Equal(turnView{place: 100, limit: 1, again: time.Minute}))
	g.Expect(turns.show(key, 3, begin.Add(100*time.Second))).To(Equal(turnView{place: 3, limit: 1, again: shortestPlaceInterval}))
	granted := begin.Add(101 * time.Second)
	g.Expect(turns.show(key, 0, granted)).To(Equal(turnView{granted: granted}))
	g.Expect(turns.show(key, 0, granted.Add(time.Second))).To(Equal(turnView{granted: granted}))
	g.Expect(turns.show(key, 10_000, granted.Add(time.Minute)).again).To(Equal(longestPlaceInterval))
	turns.leave(key)
	g.Expect(turns.show(key, 0, granted)).To(Equal(turnView{}), "it never had to wait")
	g.Expect(turns.shown).To(BeEmpty())
}

// TestWhatHadATurnIsWithinTheSharesAfterARestart: in random order, namespaces take what they may, and some of it ends.
func TestWhatHadATurnIsWithinTheSharesAfterARestart(t *testing.T) {
	for seed := range uint64(500) {
		g, random := NewWithT(t), rand.New(rand.NewPCG(seed, 1))
		limit := 1 + random.IntN(12)
		running := map[string][]*autov1alpha1.Update{}
		granted := fairqueue.NewTurns(limit, fairqueue.MayTake, func(types.NamespacedName) {})
		count := 0
		for i := range 60 {
			key := types.NamespacedName{Namespace: string(rune('a' + random.IntN(5))), Name: fmt.Sprint(i)}
			if mine := running[key.Namespace]; random.IntN(3) == 0 && len(mine) > 0 {
				granted.Leave(ctrlclient.ObjectKeyFromObject(mine[0]))
				running[key.Namespace], count = mine[1:], count-1
			} else if granted.Ask(key, false) == 0 {
				running[key.Namespace], count = append(mine, &autov1alpha1.Update{Namespace: key.Namespace, Name: key.Name}), count+1
			} else {
				granted.Leave(key)
			}
		}
		after := fairqueue.NewTurns(limit, fairqueue.MayTake, func(types.NamespacedName) {})
		for _, updates := range mostFirst(running) {
			for _, update := range updates {
				after.Hold(ctrlclient.ObjectKeyFromObject(update))
			}
		}
		free := 0
		for i := range limit {
			if after.Ask(types.NamespacedName{Namespace: fmt.Sprint("new", i)}, false) == 0 {
				free++
			}
		}
		g.Expect(free).To(Equal(limit-count), "seed %d: %d of %d run", seed, count, limit)
	}
}
