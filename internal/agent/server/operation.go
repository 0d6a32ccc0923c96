package server

import (
	"context"
	"sync"
	"sync/atomic"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/status"
	gproto "google.golang.org/protobuf/proto"

	"github.com/stack-controller/stack-controller/internal/agent/agentpb"
)

// trackedOperation is an operation of the agent, with channels that report its changes.
type trackedOperation struct {
	// cancel asks the operation to end, with a cause. Only the first cause has an effect.
	cancel context.CancelCauseFunc
	// unsaved is the result when it could not be written to the disk.
	unsaved atomic.Pointer[agentpb.Operation]

	mu sync.Mutex
	// current has no outputs. It is replaced, never modified, so that watchers can read it without the lock.
	current *agentpb.Operation
	// changed is closed when current is replaced.
	changed chan struct{}
	// ended is closed when current is final.
	ended chan struct{}
}

// track wraps the operation as it is now.
func track(current *agentpb.Operation, cancel context.CancelCauseFunc) *trackedOperation {
	o := &trackedOperation{cancel: cancel, current: current, changed: make(chan struct{}), ended: make(chan struct{})}
	if current.GetState().Final() {
		close(o.ended)
	}
	return o
}

// observe returns the current operation, and a channel that is closed when the operation changes.
func (o *trackedOperation) observe() (*agentpb.Operation, <-chan struct{}) {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.current, o.changed
}

// snapshot returns the current operation.
func (o *trackedOperation) snapshot() *agentpb.Operation {
	current, _ := o.observe()
	return current
}

// final reports whether the operation is over.
func (o *trackedOperation) final() bool {
	return o.snapshot().GetState().Final()
}

// replace sets the current operation and notifies watchers.
func (o *trackedOperation) replace(next *agentpb.Operation) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.current = next
	close(o.changed)
	o.changed = make(chan struct{})
	if next.GetState().Final() {
		close(o.ended)
	}
}

// advanced returns current with the progress that the runner reported. The state only moves forward, and never to a final state, which only
// the result sets.
func advanced(current, progress *agentpb.Operation) *agentpb.Operation {
	next := gproto.CloneOf(current)
	if state := progress.GetState(); state > current.GetState() && !state.Final() {
		next.State = state
	}
	next.ResourceChanges = progress.GetResourceChanges()
	next.Message = progress.GetMessage()
	next.Permalink = progress.GetPermalink()
	next.LockHolder = progress.GetLockHolder()
	next.Project = progress.GetProject()
	// The runner may keep modifying the message that it passed.
	return gproto.CloneOf(next)
}

// withoutOutputs returns a copy without the outputs, the changes and the plan.
func withoutOutputs(result *agentpb.Operation) *agentpb.Operation {
	bare := gproto.CloneOf(result)
	bare.Outputs, bare.Changes, bare.OmittedChanges, bare.Plan = nil, nil, 0, nil
	return bare
}

// watchInterval is the minimum time between two messages of a watch, except before the final one. A large stack makes thousands of changes
// per second, and nobody reads faster than this.
const watchInterval = 200 * time.Millisecond

// WatchOperation implements the call of the protocol. A watcher holds neither a lock nor a queue: it sends the operation as it is when it
// can send, so a slow watcher only receives fewer of the changes.
func (s *Server) WatchOperation(request *agentpb.WatchOperationRequest, stream grpc.ServerStreamingServer[agentpb.Operation]) error {
	watched, err := s.executor.find(request.GetId())
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
