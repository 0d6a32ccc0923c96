package server

import (
	"context"
	"errors"
	"fmt"
	"net"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/health"
	"google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/keepalive"

	"github.com/stack-controller/stack-controller/internal/agent/agentpb"
)

const (
	// handshakeTimeout bounds the handshake of a new connection.
	handshakeTimeout = 10 * time.Second
	// maxStreams bounds the concurrent calls of one connection, including watches.
	maxStreams = 1000
	// drainTimeout is how long calls may take to end once the operation has.
	drainTimeout = 5 * time.Second
	// terminationReserve is how long before the agent is killed everything has to have ended.
	terminationReserve = 5 * time.Second
	// lingerTimeout is how long the agent still answers after its last operation has ended: its disk is deleted with the pod, so the
	// controller has to read the result before.
	lingerTimeout = 20 * time.Second
)

// ErrIdle is returned by Serve when it ended because there was nothing to do.
var ErrIdle = errors.New("the agent was idle")

// Serve answers calls on the listener until ctx is done, or until the agent is idle; in the second case it returns ErrIdle. Before it
// returns, it asks a running operation to stop gracefully and records the result, which takes as long as pulumi does. It closes the
// listener.
func (s *Server) Serve(ctx context.Context, listener net.Listener) error {
	server := grpc.NewServer(s.grpcOptions()...)
	agentpb.RegisterAgentServer(server, s)
	status := health.NewServer()
	grpc_health_v1.RegisterHealthServer(server, status)

	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	if s.options.IdleTimeout > 0 {
		go s.endWhenIdle(ctx, cancel)
	}
	failed := make(chan error, 1)
	go func() { failed <- server.Serve(listener) }()
	var outcome error
	select {
	case err := <-failed:
		outcome = fmt.Errorf("serve: %w", err)
	case <-ctx.Done():
		if errors.Is(context.Cause(ctx), ErrIdle) {
			outcome = ErrIdle
		}
	}
	// The server still answers, so that watchers see how the operation ends.
	status.Shutdown()
	if grace := s.options.TerminationGrace; grace > 0 && outcome == nil {
		s.terminate(time.Now().Add(grace), grace)
	} else {
		s.executor.shutdown(time.Time{})
	}
	stop(server)
	return outcome
}

func (s *Server) grpcOptions() []grpc.ServerOption {
	options := []grpc.ServerOption{
		grpc.MaxRecvMsgSize(agentpb.MaxMessageSize),
		// A request is decoded before its caller is authenticated.
		grpc.ForceServerCodecV2(&agentpb.Codec{MaxFields: agentpb.MaxRequestFields}),
		grpc.MaxConcurrentStreams(maxStreams),
		grpc.ConnectionTimeout(handshakeTimeout),
		// A dead peer is noticed within 30 s; the controller checks the agent as often.
		grpc.KeepaliveParams(keepalive.ServerParameters{Time: 20 * time.Second, Timeout: 10 * time.Second}),
		grpc.KeepaliveEnforcementPolicy(keepalive.EnforcementPolicy{MinTime: 10 * time.Second, PermitWithoutStream: true}),
	}
	return append(append(options, s.activity.options()...), s.options.GRPC...)
}

// endWhenIdle cancels with ErrIdle once there was neither a call nor an operation for the timeout.
func (s *Server) endWhenIdle(ctx context.Context, cancel context.CancelCauseFunc) {
	timeout := s.options.IdleTimeout
	for {
		idle := min(s.activity.idle(), s.executor.idle())
		if idle >= timeout {
			cancel(ErrIdle)
			return
		}
		select {
		case <-time.After(timeout - idle):
		case <-ctx.Done():
			return
		}
	}
}

// stop waits for the running calls to end, and cuts them off after drainTimeout.
func stop(server *grpc.Server) {
	timer := time.AfterFunc(drainTimeout, server.Stop)
	defer timer.Stop()
	server.GracefulStop()
}

// terminate ends the running operation. Then it answers calls until the controller has recorded and forgotten all final operations, but for
// at most lingerTimeout. killed is when the agent is killed, and grace the time until then.
func (s *Server) terminate(killed time.Time, grace time.Duration) {
	// If the grace is short, the reserve is half of it.
	reserve := min(terminationReserve, grace/2)
	s.executor.shutdown(killed.Add(-reserve))
	timer := time.NewTimer(min(lingerTimeout, time.Until(killed.Add(-reserve/2))))
	defer timer.Stop()
	s.executor.awaitForgotten(timer.C)
}
