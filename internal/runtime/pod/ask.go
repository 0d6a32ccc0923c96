package pod

import (
	"context"
	"errors"
	"time"

	"google.golang.org/grpc/codes"

	autov1alpha1 "github.com/stack-controller/stack-controller/api/auto/v1alpha1"
	"github.com/stack-controller/stack-controller/internal/agent/client"
	"github.com/stack-controller/stack-controller/internal/agent/proto"
	"github.com/stack-controller/stack-controller/internal/runtime/pod/credentials"
)

const (
	// askTimeout bounds how long an agent, which answers from memory, may take.
	askTimeout = 5 * time.Second
	// recordTime is how long the result of an operation may take to be recorded in the cluster. Until the agent is told to
	// forget it, the only copy is in the pod.
	recordTime = 2 * time.Minute
)

// ask asks the agent whether its pod may go.
func (r *Runtime) ask(ctx context.Context, t *tracker, workspace *autov1alpha1.Workspace, now time.Time) agentView {
	info, err := r.info(ctx, workspace)
	if ctx.Err() != nil {
		return agentView{err: ctx.Err(), silentSince: now}
	}
	view := agentView{err: err, silentSince: t.answered(now, err)}
	for _, operation := range info.GetOperations() {
		view.busy = view.busy || unfinished(operation, now)
	}
	return view
}

func (r *Runtime) info(ctx context.Context, workspace *autov1alpha1.Workspace) (*proto.Info, error) {
	ctx, cancel := context.WithTimeout(ctx, askTimeout)
	defer cancel()
	agent, err := r.Connect(ctx, workspace)
	if err != nil {
		return nil, err
	}
	info, err := agent.GetInfo(ctx)
	var failed *client.Error
	if errors.As(err, &failed) && failed.Code == codes.Unauthenticated {
		// The token may have been revoked before its time.
		r.tokens.Forget(credentials.Audience(workspace.Namespace, workspace.Name))
	}
	return info, err
}

// unfinished tells whether something would be lost with the pod.
func unfinished(operation *proto.Operation, now time.Time) bool {
	return !operation.GetState().Final() || now.Sub(operation.GetEndTime().AsTime()) < recordTime
}
