package server

import (
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/status"

	"github.com/stack-controller/stack-controller/internal/agent/proto"
)

// watchInterval is the least time between two messages of a watch, but for the final one. A large stack makes thousands
// of changes per second, and nobody reads faster than this.
const watchInterval = 200 * time.Millisecond

// WatchOperation implements the call of the protocol. A watcher holds no lock and no queue: it takes what the operation is
// when it can send, so a slow one only sees fewer of the changes.
func (s *Server) WatchOperation(request *proto.WatchOperationRequest, stream grpc.ServerStreamingServer[proto.Operation]) error {
	watched, err := s.engine.find(request.GetId())
	if err != nil {
		return err
	}
	ctx := stream.Context()
	pause := time.NewTimer(watchInterval)
	defer pause.Stop()
	for {
		current, changed := watched.observe()
		if err := stream.Send(current); err != nil {
			return err
		}
		if current.GetState().Final() {
			return nil
		}
		pause.Reset(watchInterval)
		select {
		case <-changed:
		case <-ctx.Done():
			return status.FromContextError(ctx.Err()).Err()
		}
		select {
		case <-pause.C:
		case <-watched.ended:
		case <-ctx.Done():
			return status.FromContextError(ctx.Err()).Err()
		}
	}
}
