package update

import (
	"context"
	"testing"

	. "github.com/onsi/gomega"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	ctrlclient "sigs.k8s.io/controller-runtime/pkg/client"

	autov1alpha1 "github.com/stack-controller/stack-controller/api/auto/v1alpha1"
	"github.com/stack-controller/stack-controller/internal/agent/agentpb"
)

func TestEndThatWasSeenIsRecordedThoughTheAgentIsGone(t *testing.T) {
	s := newFixture(t)
	s.newReadyWorkspace("app")
	s.agents.script.blocks()
	s.startController()
	update := s.newUpdate("up")
	s.Eventually(s.current(update)).Should(beProgressing())
	s.Eventually(func() int { return s.agents.count("WatchOperation") }).Should(BeNumerically(">", 0))
	// The pod is ending: its agent reports how the operation ended, and no longer answers.
	s.agents.answerWith(func(method string, _ any) error {
		if method == "GetOperation" {
			return status.Error(codes.Unavailable, "the pod is ending")
		}
		return nil
	})
	s.agents.stop(s.key("app"))
	s.agents.wipe(s.key("app"))
	s.Eventually(s.current(update)).Should(haveFailed(autov1alpha1.InterruptedReason, "the agent ended"))
	s.agents.answerWith(nil)
	s.agents.start(s.key("app"))
	s.finished(update)
	s.Expect(s.agents.script.requests()).To(HaveLen(1))
}

func TestEndThatWasSeenCountsUnlessOutputsAreMissing(t *testing.T) {
	g := NewWithT(t)
	succeeded, failed := agentpb.OperationState_OPERATION_STATE_SUCCEEDED, agentpb.OperationState_OPERATION_STATE_FAILED
	up, destroy := agentpb.OperationKind_OPERATION_KIND_UP, agentpb.OperationKind_OPERATION_KIND_DESTROY
	update := &autov1alpha1.Update{Namespace: "team", Name: "up", UID: "1234"}
	another := update.DeepCopy()
	another.UID = "5678"
	for _, test := range []struct {
		kind  agentpb.OperationKind
		state agentpb.OperationState
		known bool
	}{{up, failed, true}, {up, succeeded, false}, {destroy, succeeded, true}} {
		b, noted := newBackground(), make(chan struct{})
		b.ensure(update, "watch", func(ctx context.Context, note func(func(*task))) {
			note(func(task *task) { task.ended = &agentpb.Operation{Id: "1234", Kind: test.kind, State: test.state} })
			close(noted)
			<-ctx.Done()
		})
		<-noted
		g.Expect(b.ending(update) != nil).To(Equal(test.known), "%s %s", test.kind, test.state)
		g.Expect(b.ending(another)).To(BeNil(), "another Update of that name")
		b.stop(ctrlclient.ObjectKeyFromObject(update))
		g.Expect(b.ending(update)).To(BeNil())
	}
}

func TestUpdateThatAnotherControllerStartedDoesNotBlockTheWorkspace(t *testing.T) {
	s := newFixture(t)
	s.newReadyWorkspace("app")
	former := s.newUpdate("former", withFinalizer)
	s.markStarted(former)
	next := s.newUpdate("next")
	s.startController()
	s.Expect(s.finished(former)).To(haveFailed(autov1alpha1.InterruptedReason, "its outcome is not known"))
	s.Expect(s.finished(next)).To(haveSucceeded())
	s.Expect(s.agents.script.requests()).To(HaveLen(1))
	s.Expect(s.client.Delete(t.Context(), former)).To(Succeed())
	s.Eventually(s.gone(former)).Should(BeTrue())
}
