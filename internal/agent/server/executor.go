package server

import (
	"context"
	"fmt"
	"log/slog"
	"runtime/debug"
	"sync"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	gproto "google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/stack-controller/stack-controller/internal/agent/agentpb"
	"github.com/stack-controller/stack-controller/internal/agent/operation"
	"github.com/stack-controller/stack-controller/internal/plaintext"
)

// maxFinishedOperations is how many final operations are kept if the controller does not call ForgetOperation.
const maxFinishedOperations = 50

// Runner runs pulumi. *operation.Runner is the real one.
type Runner interface {
	// Version is the version of the pulumi CLI.
	Version() string
	// Run runs one operation to its end. When ctx is cancelled, the operation stops gracefully; context.Cause(ctx) is operation.ErrCancelled,
	// operation.ErrTimeout or operation.ErrShutdown. progress is called with the changed operation, by one goroutine at a time. The returned
	// operation is final.
	Run(ctx context.Context, request *agentpb.StartOperationRequest, paths operation.Paths, progress func(*agentpb.Operation)) *agentpb.Operation
	// EndBy makes everything that Run started, or is about to start, end before the time.
	EndBy(end time.Time)
}

// executor owns the operations: it runs one at a time, and keeps those that were not forgotten.
type executor struct {
	log     *slog.Logger
	runner  Runner
	records *records
	sources *sources
	plans   *plans

	mu         sync.Mutex
	operations map[string]*trackedOperation
	// current is the operation that is not final; nil when there is none.
	current *trackedOperation
	// ended is when the last operation ended; without one, when the executor was created.
	ended   time.Time
	closing bool
	// running waits for the current operation.
	running sync.WaitGroup
	// forgotten has an entry after an operation was forgotten.
	forgotten chan struct{}
}

// newExecutor returns an executor with the operations that an earlier agent recorded.
func newExecutor(log *slog.Logger, runner Runner, records *records, sources *sources, plans *plans) (*executor, error) {
	e := &executor{log: log, runner: runner, records: records, sources: sources, plans: plans, operations: map[string]*trackedOperation{}, ended: time.Now(), forgotten: make(chan struct{}, 1)}
	ids, err := records.ids()
	if err != nil {
		return nil, err
	}
	for _, id := range ids {
		if known := e.restore(id); known != nil {
			e.operations[id] = track(known, func(error) {})
		}
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	e.prune()
	return e, nil
}

// start runs the operation of a valid request, unless its id is known.
func (e *executor) start(request *agentpb.StartOperationRequest) (*agentpb.Operation, error) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if known := e.operations[request.GetId()]; known != nil {
		return known.snapshot(), nil
	}
	if err := e.occupied(); err != nil {
		return nil, err
	}
	if !e.sources.use() {
		return nil, agentpb.Refuse(agentpb.ReasonBusy, "the source is being replaced")
	}
	queued, err := e.queue(request)
	if err != nil {
		e.sources.release()
		return nil, err
	}
	ctx, cancel := context.WithCancelCause(context.Background())
	started := track(queued, cancel)
	e.operations[request.GetId()] = started
	e.current = started
	e.running.Go(func() { e.run(ctx, started, request) })
	e.log.Info("operation started", "operation", queued.GetId(), "kind", queued.GetKind().String(), "stack", request.GetStack())
	return queued, nil
}

// queue records the operation as queued. The artifact and the plan of the operation must be here.
func (e *executor) queue(request *agentpb.StartOperationRequest) (*agentpb.Operation, error) {
	if artifact := request.GetArtifact(); artifact != nil && artifact.GetDigest() != e.sources.digest() {
		return nil, agentpb.Refuse(agentpb.ReasonSourceMissing, "artifact "+artifact.GetDigest()+" is not here")
	}
	if needsPlan(request) && !e.plans.has(request.GetPlan().GetFileDigest()) {
		return nil, agentpb.Refuse(agentpb.ReasonPlanMissing, "plan "+request.GetPlan().GetFileDigest()+" is not here")
	}
	queued := &agentpb.Operation{
		Id: request.GetId(), Kind: request.GetKind(),
		State: agentpb.OperationState_OPERATION_STATE_QUEUED, StartTime: timestamppb.Now(),
	}
	err := e.records.create(queued)
	if err == nil && needsPlan(request) {
		err = e.plans.take(request.GetId())
	}
	if err != nil {
		return nil, status.Error(codes.Internal, err.Error())
	}
	return queued, nil
}

// run runs the operation to its end and records the result.
func (e *executor) run(ctx context.Context, o *trackedOperation, request *agentpb.StartOperationRequest) {
	defer o.cancel(nil)
	if timeout := request.GetTimeout().AsDuration(); timeout > 0 {
		limited, stop := context.WithTimeoutCause(ctx, timeout, operation.ErrTimeout)
		defer stop()
		ctx = limited
	}
	result := e.execute(ctx, o, request)
	e.finish(o, result)
	// An idle agent should use little memory; without this call, memory from the operation would stay allocated for minutes.
	debug.FreeOSMemory()
}

// execute runs the operation and returns its outcome.
func (e *executor) execute(ctx context.Context, o *trackedOperation, request *agentpb.StartOperationRequest) (result *agentpb.Operation) {
	project, err := e.sources.project(request)
	var paths operation.Paths
	if err == nil {
		paths, err = e.sources.pathsOf(request, project)
	}
	if err != nil {
		return &agentpb.Operation{
			State:   agentpb.OperationState_OPERATION_STATE_FAILED,
			Failure: agentpb.FailureReason_FAILURE_REASON_PROJECT_INVALID,
			Message: plaintext.Cut(err.Error(), agentpb.MaxText), // the error quotes the directory, which may be long
		}
	}
	e.sources.linkWorkspace(request, project)
	defer func() {
		if recovered := recover(); recovered != nil {
			// The recovered value itself may contain a secret.
			e.log.Error("operation panicked", "operation", request.GetId(), "stack", string(debug.Stack()))
			result = nil
		}
	}()
	defer e.records.dropPlan(request.GetId())
	return e.runner.Run(ctx, request, paths, func(progress *agentpb.Operation) { e.progress(o, progress) })
}

// progress publishes what the runner reported, and records it when the state changed.
func (e *executor) progress(o *trackedOperation, progress *agentpb.Operation) {
	before := o.snapshot()
	next := advanced(before, progress)
	if next.GetState() != before.GetState() {
		// A failure here loses nothing: after a restart the operation is Interrupted in any case.
		if err := e.records.save(next, false); err != nil {
			e.log.Error("cannot record the state", "operation", next.GetId(), "error", err.Error())
		}
	}
	o.replace(next)
}

// finish records the result, and only then notifies watchers.
func (e *executor) finish(o *trackedOperation, result *agentpb.Operation) {
	before := o.snapshot()
	if !result.GetState().Final() {
		result = &agentpb.Operation{
			State:   agentpb.OperationState_OPERATION_STATE_INTERRUPTED,
			Message: "the agent failed while it ran the operation; the outcome is not known",
		}
	}
	result = gproto.CloneOf(result)
	result.Id, result.Kind, result.StartTime, result.EndTime = before.GetId(), before.GetKind(), before.GetStartTime(), timestamppb.Now()
	if err := e.records.save(result, true); err != nil {
		e.log.Error("cannot record the result; it is kept in memory", "operation", result.GetId(), "error", err.Error())
		o.unsaved.Store(result)
	}
	e.log.Info("operation ended", "operation", result.GetId(), "state", result.GetState().String(), "failure", result.GetFailure().String(),
		"duration", result.GetEndTime().AsTime().Sub(result.GetStartTime().AsTime()).Round(time.Millisecond).String())
	e.mu.Lock()
	defer e.mu.Unlock()
	// A client that sees the end of the operation may start the next one at once.
	e.sources.release()
	e.current, e.ended = nil, time.Now()
	o.replace(withoutOutputs(result))
	e.prune()
}

// cancelOperation asks the operation to end gracefully.
func (e *executor) cancelOperation(id string) (*agentpb.Operation, error) {
	known, err := e.find(id)
	if err != nil {
		return nil, err
	}
	if !known.final() {
		e.log.Info("operation is cancelled", "operation", id)
		known.cancel(operation.ErrCancelled)
	}
	return known.snapshot(), nil
}

// occupied returns why the agent can accept neither an operation nor a source now; nil if it can. e.mu is held.
func (e *executor) occupied() error {
	switch {
	case e.closing:
		return status.Error(codes.Unavailable, "the agent is stopping")
	case e.current != nil:
		return agentpb.Refuse(agentpb.ReasonBusy, fmt.Sprintf("operation %s is not done", e.current.snapshot().GetId()))
	}
	return nil
}

// idle returns for how long there was no operation; 0 while there is one.
func (e *executor) idle() time.Duration {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.current != nil {
		return 0
	}
	return time.Since(e.ended)
}

// shutdown refuses new operations, asks the current one to stop gracefully, and waits for its end. If end is not zero, the operation ends
// before that time.
func (e *executor) shutdown(end time.Time) {
	if !end.IsZero() {
		e.runner.EndBy(end)
	}
	e.mu.Lock()
	e.closing = true
	if e.current != nil {
		e.current.cancel(operation.ErrShutdown)
	}
	e.mu.Unlock()
	e.running.Wait()
}

// awaitForgotten waits until the controller has called ForgetOperation for all operations, or done fires.
func (e *executor) awaitForgotten(done <-chan time.Time) {
	for len(e.list()) > 0 {
		select {
		case <-e.forgotten:
		case <-done:
			return
		}
	}
}
