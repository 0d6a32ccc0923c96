package server

import (
	"context"
	"strings"
	"sync"
	"time"

	"google.golang.org/grpc"

	"github.com/stack-controller/stack-controller/internal/agent/agentpb"
)

// activity measures how long the agent has had no call. Health checks do not count, because a probe would keep the agent alive for ever.
type activity struct {
	mu     sync.Mutex
	active int
	last   time.Time
}

func newActivity() *activity {
	return &activity{last: time.Now()}
}

// begin counts a call until the function that it returns is called.
func (a *activity) begin(method string) func() {
	if !strings.HasPrefix(method, "/"+agentpb.Agent_ServiceDesc.ServiceName+"/") {
		return func() {}
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	a.active++
	return a.end
}

func (a *activity) end() {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.active--
	a.last = time.Now()
}

// idle returns for how long there was no call; 0 while there is one.
func (a *activity) idle() time.Duration {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.active > 0 {
		return 0
	}
	return time.Since(a.last)
}

// options returns the options with which a gRPC server counts its calls.
func (a *activity) options() []grpc.ServerOption {
	return []grpc.ServerOption{
		grpc.ChainUnaryInterceptor(func(ctx context.Context, request any, info *grpc.UnaryServerInfo, handler grpc.UnaryHandler) (any, error) {
			defer a.begin(info.FullMethod)()
			return handler(ctx, request)
		}),
		grpc.ChainStreamInterceptor(func(service any, stream grpc.ServerStream, info *grpc.StreamServerInfo, handler grpc.StreamHandler) error {
			defer a.begin(info.FullMethod)()
			return handler(service, stream)
		}),
	}
}
