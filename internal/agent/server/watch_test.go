package server

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	. "github.com/onsi/gomega"
	"google.golang.org/grpc"

	"github.com/stack-controller/stack-controller/internal/agent/agentpb"
)

// watchStream is the agent's end of a watch, in a test with a fake clock.
type watchStream struct {
	grpc.ServerStream
	ctx  context.Context
	sent chan *agentpb.Operation
}

func (s *watchStream) Context() context.Context { return s.ctx }

func (s *watchStream) Send(operation *agentpb.Operation) error {
	s.sent <- operation
	return nil
}

func TestProgressIsReportedAtIntervalsAndTheEndAtOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := NewWithT(t)
		watched := track(&agentpb.Operation{Id: "a", State: running}, func(error) {})
		server := &Server{executor: &executor{operations: map[string]*trackedOperation{"a": watched}}}
		stream := &watchStream{ctx: t.Context(), sent: make(chan *agentpb.Operation, 100)}
		ended := make(chan error, 1)
		start := time.Now()
		go func() { ended <- server.WatchOperation(&agentpb.WatchOperationRequest{Id: "a"}, stream) }()
		synctest.Wait()
		g.Expect(stream.sent).To(Receive(HaveField("State", running)))

		for range 50 {
			watched.replace(&agentpb.Operation{Id: "a", State: running, Message: "many changes"})
			synctest.Wait()
		}
		g.Expect(stream.sent).NotTo(Receive())
		<-stream.sent
		g.Expect(time.Since(start)).To(Equal(watchInterval))

		watched.replace(&agentpb.Operation{Id: "a", State: running, Message: "one more"})
		synctest.Wait()
		watched.replace(&agentpb.Operation{Id: "a", State: succeeded})
		synctest.Wait()
		g.Expect(stream.sent).To(Receive(HaveField("State", succeeded)))
		g.Expect(ended).To(Receive(BeNil()))
		g.Expect(time.Since(start)).To(Equal(watchInterval))
	})
}
