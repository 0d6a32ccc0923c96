package update

import (
	"crypto/rand"
	"fmt"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	. "github.com/onsi/gomega"
	"google.golang.org/grpc"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	autov1alpha1 "github.com/stack-controller/stack-controller/api/auto/v1alpha1"
	"github.com/stack-controller/stack-controller/internal/agent/agentpb"
	"github.com/stack-controller/stack-controller/internal/source/artifact"
	"github.com/stack-controller/stack-controller/tests/framework/suite"
)

// newNamespace creates a namespace that the controller serves too.
func (s *fixture) newNamespace() string {
	s.t.Helper()
	namespace := &corev1.Namespace{GenerateName: "evil-"}
	s.Expect(s.client.Create(s.t.Context(), namespace)).To(Succeed())
	s.others = append(s.others, namespace.Name)
	return namespace.Name
}

// newUpdateOf creates a Workspace with an agent and an Update for it in the namespace, both with this name.
func (s *fixture) newUpdateOf(namespace, name string, source *autov1alpha1.UpdateSource) (*autov1alpha1.Workspace, *autov1alpha1.Update) {
	s.t.Helper()
	workspace := s.newReadyWorkspace(name, func(workspace *autov1alpha1.Workspace) { workspace.Namespace = namespace })
	return workspace, s.newUpdate(name, func(update *autov1alpha1.Update) {
		update.Namespace, update.Spec.WorkspaceName, update.Spec.Source = namespace, name, source
	})
}

// decisions counts the reconciles of the Update that came to a decision.
func (s *fixture) decisions(update *autov1alpha1.Update) int {
	count := 0
	for line := range strings.Lines(s.log.String()) {
		if strings.Contains(line, "decided") && strings.Contains(line, fmt.Sprintf("%q", update.Namespace)) && strings.Contains(line, fmt.Sprintf("%q", update.Name)) {
			count++
		}
	}
	return count
}

func TestDeliveriesThatHangLeaveSlotsToOtherNamespaces(t *testing.T) {
	s := newFixture(t)
	evil := s.newNamespace()
	var hanging atomic.Int32
	s.agents.attackWith(func(key types.NamespacedName, method string, stream grpc.ServerStream) bool {
		if key.Namespace != evil || method != "PushSource" {
			return false
		}
		hanging.Add(1)
		defer hanging.Add(-1)
		<-stream.Context().Done()
		return true
	})
	s.startController()
	source, evilSource := s.publish("name: p"), s.publishIn(evil, "name: evil")
	for i := range 20 {
		s.newUpdateOf(evil, fmt.Sprint("evil-", i), evilSource)
	}
	s.Eventually(hanging.Load).Should(BeEquivalentTo(maxDeliveries / 2))

	for i := range 3 {
		_, update := s.newUpdateOf(s.namespace, fmt.Sprint("app-", i), source)
		s.Expect(s.finished(update)).To(haveSucceeded())
	}
	s.Expect(hanging.Load()).To(BeEquivalentTo(maxDeliveries/2), "the attacker still has all that it may have, and no more")
}

func TestAgentThatTakesAlmostNothingIsGivenUp(t *testing.T) {
	suite.Long(t, "waits until a transfer is too slow")
	g := NewWithT(t)
	noise := make([]byte, 8<<20) // more than fits into the buffers of gRPC and of the system
	_, _ = rand.Read(noise)
	published := newSources(t).serve(string(noise))
	store, err := artifact.NewStore(artifact.Options{Dir: t.TempDir()})
	g.Expect(err).NotTo(HaveOccurred())
	reference := artifact.Reference{URL: published.URL, Digest: published.Digest}
	g.Expect(store.Fetch(t.Context(), reference)).To(Succeed())
	wanted := artifactView{digest: published.Digest, reference: reference}
	for name, take := range map[string]func(grpc.ServerStream){
		"nothing":         func(grpc.ServerStream) {},
		"a chunk, slowly": func(stream grpc.ServerStream) { _ = stream.RecvMsg(&agentpb.PushSourceRequest{}) },
	} {
		t.Run(name, func(t *testing.T) {
			g := NewWithT(t)
			agents := newAgents(t)
			workspace := &autov1alpha1.Workspace{Namespace: "evil", Name: "app"}
			agents.start(types.NamespacedName{Namespace: "evil", Name: "app"})
			agents.attackWith(func(_ types.NamespacedName, _ string, stream grpc.ServerStream) bool {
				take(stream)
				<-stream.Context().Done()
				return true
			})
			r := &Reconciler{Runtime: agents, Store: store, background: newBackground()}
			r.background.window = 2 * time.Second
			err := r.push(t.Context(), workspace, wanted)
			g.Expect(err).To(MatchError(MatchRegexp(`^push source sha256:.*: the transfer is too slow: \d+ bytes in 2s, where at least 64 KiB/s are expected$`)))
			d := decide(ready(deliveryFails(err)))
			g.Expect(d.action).To(Equal(actionWait))
			g.Expect(d.reason).To(Equal(autov1alpha1.UpdateTransientFailureReason))

			agents.attack.Store(nil)
			g.Expect(r.push(t.Context(), workspace, wanted)).To(Succeed())
		})
	}
}

func TestTimeOfADeliverySuitsItsSize(t *testing.T) {
	g := NewWithT(t)
	g.Expect(deliveryTime(1)).To(Equal(time.Minute))
	g.Expect(deliveryTime(1 << 20)).To(Equal(76 * time.Second))
	g.Expect(deliveryTime(50 << 20)).To(Equal(deliveryTimeout))
}

func TestStormsOfOneNamespaceCauseBoundedReconciles(t *testing.T) {
	s := newFixture(t)
	evil := s.newNamespace()
	var sent atomic.Int64
	s.agents.attackWith(func(key types.NamespacedName, method string, stream grpc.ServerStream) bool {
		if key.Namespace != evil || method != "WatchOperation" {
			return false
		}
		request := &agentpb.WatchOperationRequest{}
		_ = stream.RecvMsg(request)
		states := []agentpb.OperationState{agentpb.OperationState_OPERATION_STATE_PREPARING, agentpb.OperationState_OPERATION_STATE_RUNNING}
		for stream.SendMsg(&agentpb.Operation{Id: request.GetId(), State: states[sent.Add(1)%2], Message: strings.Repeat("x", 1000)}) == nil {
		}
		return true
	})
	release := s.agents.script.blocks()
	defer release()
	s.startController()
	workspace, flapping := s.newUpdateOf(evil, "flapping", nil)
	s.Eventually(s.current(flapping)).Should(beProgressing())
	start, before := time.Now(), s.decisions(flapping)
	s.Eventually(sent.Load).Should(BeNumerically(">", 100))

	// The victim works meanwhile, and the attacker changes the Workspace as fast as it can.
	_, update := s.newUpdateOf(s.namespace, "app", nil)
	s.Eventually(s.current(update)).Should(beProgressing())
	for i := range 300 {
		s.setReady(workspace, true, fmt.Sprint("ready ", i))
	}
	release()
	s.Expect(s.finished(update)).To(haveSucceeded())
	elapsed := int(time.Since(start).Seconds())
	s.Expect(s.decisions(flapping) - before).To(BeNumerically("<=", 100+2*elapsed+2))
	s.Expect(sent.Load()).To(BeNumerically("<=", 1000+observedPerSecond*elapsed), "what is not read stays with the agent, but for what is on the way")
}
