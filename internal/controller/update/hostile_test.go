package update

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"path/filepath"
	"sync/atomic"
	"testing"
	"time"

	. "github.com/onsi/gomega"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	autov1alpha1 "github.com/stack-controller/stack-controller/api/auto/v1alpha1"
	"github.com/stack-controller/stack-controller/internal/agent/agentpb"
	"github.com/stack-controller/stack-controller/internal/agent/client"
)

// liar is an agent that a tenant put in the place of the real one.
type liar struct {
	agentpb.UnimplementedAgentServer
	// missing is true for an agent that always reports that it does not have the artifact which it took.
	missing bool
	asked   atomic.Int64
	watched atomic.Int64
	pushed  atomic.Int64
}

func (l *liar) StartOperation(_ context.Context, request *agentpb.StartOperationRequest) (*agentpb.Operation, error) {
	if l.missing {
		return nil, agentpb.Refuse(agentpb.ReasonSourceMissing, "push it")
	}
	return &agentpb.Operation{Id: request.GetId(), State: agentpb.OperationState_OPERATION_STATE_RUNNING}, nil
}

// GetOperation returns something else each time.
func (l *liar) GetOperation(_ context.Context, request *agentpb.GetOperationRequest) (*agentpb.Operation, error) {
	asked := l.asked.Add(1)
	if l.missing {
		return nil, status.Error(codes.NotFound, "not known")
	}
	return &agentpb.Operation{
		Id: request.GetId(), State: agentpb.OperationState(2 + asked%2), Message: fmt.Sprintf("lie %d", asked),
	}, nil
}

// WatchOperation sends all states up to success, and ends, each time it is called.
func (l *liar) WatchOperation(request *agentpb.WatchOperationRequest, stream grpc.ServerStreamingServer[agentpb.Operation]) error {
	l.watched.Add(1)
	for state := range agentpb.OperationState_OPERATION_STATE_SUCCEEDED {
		if err := stream.Send(&agentpb.Operation{Id: request.GetId(), State: state + 1, Kind: agentpb.OperationKind_OPERATION_KIND_UP}); err != nil {
			return err
		}
	}
	return nil
}

// PushSource takes everything.
func (l *liar) PushSource(stream grpc.ClientStreamingServer[agentpb.PushSourceRequest, agentpb.PushSourceResponse]) error {
	l.pushed.Add(1)
	for {
		if _, err := stream.Recv(); errors.Is(err, io.EOF) {
			return stream.SendAndClose(&agentpb.PushSourceResponse{})
		} else if err != nil {
			return err
		}
	}
}

// replace puts the liar in the place of the agent of the workspace. If by is nil, there is a socket that nothing reads from.
func (a *agents) replace(s *fixture, name string, by *liar, group *client.Group) {
	key := s.key(name)
	a.stop(key)
	address := filepath.Join(a.dir, name+"-liar.sock")
	listener, err := net.Listen("unix", address)
	s.Expect(err).NotTo(HaveOccurred())
	server := grpc.NewServer()
	if by != nil {
		agentpb.RegisterAgentServer(server, by)
		go func() { _ = server.Serve(listener) }()
	}
	connection, err := client.New("unix:"+address, client.Options{Group: group})
	s.Expect(err).NotTo(HaveOccurred())
	a.mu.Lock()
	defer a.mu.Unlock()
	a.running[key] = &agent{client: connection, stop: func() {
		server.Stop()
		_, _ = connection.Close(), listener.Close()
	}}
}

func TestAgentThatEndsItsOperationOverAndOverCostsLittle(t *testing.T) {
	s := newFixture(t)
	s.newReadyWorkspace("app")
	lying := &liar{}
	s.agents.replace(s, "app", lying, nil)
	s.startController()
	update := s.newUpdate("up")
	s.Eventually(s.current(update)).Should(beProgressing())
	s.Eventually(lying.watched.Load).Should(BeNumerically(">=", 2))
	s.Consistently(lying.asked.Load).WithTimeout(6*time.Second).Should(BeNumerically("<", 40), "each is a reconcile, and a write of the status")
	s.Expect(lying.watched.Load()).To(BeNumerically("<", 6))
}

func TestAgentThatNeverHasWhatItTookCostsLittle(t *testing.T) {
	s := newFixture(t)
	s.newReadyWorkspace("app")
	lying := &liar{missing: true}
	s.agents.replace(s, "app", lying, nil)
	source := s.publish("name: p")
	s.startController()
	update := s.newUpdate("up", func(update *autov1alpha1.Update) { update.Spec.Source = source })
	s.Eventually(s.current(update)).Should(waitFor(autov1alpha1.UpdateTransientFailureReason, "says that it does not have it"))
	s.Consistently(lying.pushed.Load).WithTimeout(4 * time.Second).Should(BeNumerically("<", 4))
}

func TestAgentsThatDoNotAnswerDoNotHoldUpOthers(t *testing.T) {
	s := newFixture(t)
	groups := &client.Groups{}
	for i := range 12 {
		name := fmt.Sprintf("silent-%d", i)
		s.newReadyWorkspace(name)
		s.agents.replace(s, name, nil, groups.Of("evil"))
		s.newUpdate(name, func(update *autov1alpha1.Update) { update.Spec.WorkspaceName = name })
	}
	s.newReadyWorkspace("app")
	s.startController()
	s.Eventually(s.log.String).Should(ContainSubstring("calls to other agents of its namespace wait already"))
	start := time.Now()
	s.Expect(s.finished(s.newUpdate("up"))).To(haveSucceeded())
	took := time.Since(start)
	t.Logf("the victim took %s", took)
	s.Expect(took).To(BeNumerically("<", 10*time.Second), "as long as one call to a silent agent may take; there are 4 workers")
}
