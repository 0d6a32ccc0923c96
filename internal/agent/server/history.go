package server

import (
	"errors"
	"fmt"
	"io/fs"
	"slices"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/stack-controller/stack-controller/internal/agent/agentpb"
	"github.com/stack-controller/stack-controller/internal/plaintext"
)

// restore returns the recorded operation. An operation that was not done when its agent ended becomes Interrupted. restore returns nil if
// the start was never recorded: then no client was told that the operation had started.
func (e *executor) restore(id string) *agentpb.Operation {
	recorded, err := e.records.read(id)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		e.removeRecord(id)
		return nil
	case err != nil:
		e.log.Warn("lost the record of an operation", "operation", id, "error", err.Error())
		recorded = &agentpb.Operation{Id: id}
	case recorded.GetState().Final():
		return withoutOutputs(recorded)
	}
	lost := interrupted(recorded)
	// A full disk must not prevent the agent from starting. If the state is not saved here, the next agent restores the same state again.
	if err := e.records.save(lost, true); err != nil {
		e.log.Error("cannot record the state", "operation", id, "error", err.Error())
	}
	return lost
}

// interrupted returns the operation as one whose outcome is lost, so that it may be run again.
func interrupted(operation *agentpb.Operation) *agentpb.Operation {
	lost := withoutOutputs(operation)
	lost.Message = interruption(operation.GetState())
	lost.State = agentpb.OperationState_OPERATION_STATE_INTERRUPTED
	lost.EndTime = timestamppb.Now()
	return lost
}

// interruption explains to people what the end of the agent means for an operation in that state.
func interruption(state agentpb.OperationState) string {
	switch state {
	case agentpb.OperationState_OPERATION_STATE_UNSPECIFIED:
		return "the record of the operation is not readable; its outcome is not known"
	case agentpb.OperationState_OPERATION_STATE_QUEUED, agentpb.OperationState_OPERATION_STATE_PREPARING:
		return "the agent ended before pulumi ran; no resource was changed"
	case agentpb.OperationState_OPERATION_STATE_SUCCEEDED:
		return "the operation succeeded, but its result was lost"
	}
	return "the agent ended while pulumi ran, perhaps for lack of memory; the outcome is not known"
}

// find returns the operation; the error is NOT_FOUND.
func (e *executor) find(id string) (*trackedOperation, error) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if known := e.operations[id]; known != nil {
		return known, nil
	}
	return nil, status.Errorf(codes.NotFound, "operation %q is not known", plaintext.Cut(id, 64))
}

// get returns the operation, with its outputs when it is done.
func (e *executor) get(id string) (*agentpb.Operation, error) {
	known, err := e.find(id)
	if err != nil {
		return nil, err
	}
	current := known.snapshot()
	if current.GetState() != agentpb.OperationState_OPERATION_STATE_SUCCEEDED {
		return current, nil
	}
	if kept := known.unsaved.Load(); kept != nil {
		return kept, nil
	}
	result, err := e.records.read(id)
	if err == nil && result.GetState() != current.GetState() {
		err = fmt.Errorf("its record says %s", result.GetState())
	}
	if err != nil {
		e.log.Error("lost the result of an operation", "operation", id, "error", err.Error())
		return interrupted(current), nil
	}
	return result, nil
}

// forget removes a final operation.
func (e *executor) forget(id string) error {
	e.mu.Lock()
	defer e.mu.Unlock()
	known := e.operations[id]
	if known == nil {
		return nil
	}
	if !known.final() {
		return agentpb.Refuse(agentpb.ReasonBusy, fmt.Sprintf("operation %s is not done", id))
	}
	if err := e.records.remove(id); err != nil {
		return status.Error(codes.Internal, err.Error())
	}
	delete(e.operations, id)
	select {
	case e.forgotten <- struct{}{}:
	default:
	}
	return nil
}

// shortened returns the fields that GetInfo returns for an operation. They are few because there may be dozens of operations.
func shortened(operation *agentpb.Operation) *agentpb.Operation {
	return &agentpb.Operation{
		Id: operation.GetId(), Kind: operation.GetKind(), State: operation.GetState(), Failure: operation.GetFailure(),
		StartTime: operation.GetStartTime(), EndTime: operation.GetEndTime(), Message: plaintext.Cut(operation.GetMessage(), agentpb.MaxBriefText),
	}
}

// list returns the operations that were not forgotten, oldest first.
func (e *executor) list() []*agentpb.Operation {
	e.mu.Lock()
	defer e.mu.Unlock()
	all := make([]*agentpb.Operation, 0, len(e.operations))
	for _, known := range e.operations {
		all = append(all, shortened(known.snapshot()))
	}
	slices.SortFunc(all, func(a, b *agentpb.Operation) int {
		return a.GetStartTime().AsTime().Compare(b.GetStartTime().AsTime())
	})
	return all
}

// prune removes the oldest final operations beyond maxFinishedOperations. e.mu is held.
func (e *executor) prune() {
	var finished []*agentpb.Operation
	for _, known := range e.operations {
		if current := known.snapshot(); current.GetState().Final() {
			finished = append(finished, current)
		}
	}
	if len(finished) <= maxFinishedOperations {
		return
	}
	slices.SortFunc(finished, func(a, b *agentpb.Operation) int {
		return a.GetEndTime().AsTime().Compare(b.GetEndTime().AsTime())
	})
	for _, oldest := range finished[:len(finished)-maxFinishedOperations] {
		e.removeRecord(oldest.GetId())
		delete(e.operations, oldest.GetId())
	}
}

// removeRecord removes a record that is no longer needed. If that fails, the next agent tries again.
func (e *executor) removeRecord(id string) {
	if err := e.records.remove(id); err != nil {
		e.log.Error("cannot remove an operation", "operation", id, "error", err.Error())
	}
}
