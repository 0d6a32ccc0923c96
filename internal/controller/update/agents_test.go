package update

import (
	"context"
	"errors"
	"log/slog"
	"os"
	"path/filepath"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	. "github.com/onsi/gomega"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/event"

	autov1alpha1 "github.com/stack-controller/stack-controller/api/auto/v1alpha1"
	"github.com/stack-controller/stack-controller/internal/agent/agentpb"
	"github.com/stack-controller/stack-controller/internal/agent/client"
	"github.com/stack-controller/stack-controller/internal/agent/operation"
	"github.com/stack-controller/stack-controller/internal/agent/server"
	"github.com/stack-controller/stack-controller/internal/agentruntime"
)

// agents is a runtime of real agents in this process; only pulumi is replaced, by a script.
type agents struct {
	t      *testing.T
	dir    string
	script *script

	mu      sync.Mutex
	running map[types.NamespacedName]*agent
	// answer, if set, is called before the agent. If it returns an error, that is the answer.
	answer func(method string, request any) error
	calls  map[string]int
	// connected has the workspaces for which Connect was called.
	connected sync.Map
	// resting are the keys of the agents that rest until they are woken; woken counts how often one was.
	resting sync.Map
	woken   atomic.Int32
	// hidden are the keys of the agents that cannot be found although they run.
	hidden sync.Map
	// held is closed when deliveries may go on; nil when none is held.
	held atomic.Pointer[chan struct{}]
	// attack, if set, handles streams instead of the agent. It returns false for a stream that the agent is to handle.
	attack atomic.Pointer[func(key types.NamespacedName, method string, stream grpc.ServerStream) bool]
}

type agent struct {
	client *client.Client
	stop   func()
}

var _ agentruntime.Runtime = &agents{}

func newAgents(t *testing.T) *agents {
	t.Helper()
	// The path of t.TempDir would be too long for a socket.
	dir, err := os.MkdirTemp("", "agents-")
	NewWithT(t).Expect(err).NotTo(HaveOccurred())
	a := &agents{t: t, dir: dir, script: newScript(), running: map[types.NamespacedName]*agent{}, calls: map[string]int{}}
	t.Cleanup(func() {
		a.mu.Lock()
		running := a.running
		a.running = nil
		a.mu.Unlock()
		for _, agent := range running {
			agent.stop()
		}
		_ = os.RemoveAll(dir)
	})
	return a
}

// start starts the agent of the workspace, with the files that an earlier agent left.
func (a *agents) start(key types.NamespacedName) {
	a.t.Helper()
	g := NewWithT(a.t)
	dir := filepath.Join(a.dir, key.Name)
	local := filepath.Join(dir, "workspace")
	g.Expect(os.MkdirAll(local, 0o700)).To(Succeed())
	g.Expect(os.WriteFile(filepath.Join(local, "Pulumi.yaml"), []byte("name: local\nruntime: yaml\n"), 0o600)).To(Succeed())
	served, err := server.New(server.Options{
		Dir: dir, Workspace: local, Runner: a.script, Log: slog.New(slog.DiscardHandler),
		GRPC: []grpc.ServerOption{grpc.ChainUnaryInterceptor(a.intercept), grpc.ChainStreamInterceptor(a.interceptStream(key))},
	})
	g.Expect(err).NotTo(HaveOccurred())
	address := "unix:" + filepath.Join(a.dir, key.Name+".sock")
	listener, err := server.Listen(address)
	g.Expect(err).NotTo(HaveOccurred())
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan struct{})
	go func() {
		defer close(done)
		_ = served.Serve(ctx, listener)
	}()
	connection, err := client.New(address, client.Options{})
	g.Expect(err).NotTo(HaveOccurred())
	a.mu.Lock()
	defer a.mu.Unlock()
	a.running[key] = &agent{client: connection, stop: func() {
		cancel()
		<-done
		_ = connection.Close()
		_ = served.Close()
	}}
}

// stop ends the agent in an orderly way: its operation is interrupted.
func (a *agents) stop(key types.NamespacedName) {
	a.mu.Lock()
	stopped := a.running[key]
	delete(a.running, key)
	a.mu.Unlock()
	stopped.stop()
}

// wipe removes all files of the agent.
func (a *agents) wipe(key types.NamespacedName) {
	NewWithT(a.t).Expect(os.RemoveAll(filepath.Join(a.dir, key.Name))).To(Succeed())
}

func (a *agents) agent(key types.NamespacedName) *client.Client {
	a.mu.Lock()
	defer a.mu.Unlock()
	if running := a.running[key]; running != nil {
		return running.client
	}
	return nil
}

// answerWith sets the function that is called before the agent.
func (a *agents) answerWith(answer func(method string, request any) error) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.answer = answer
}

// attackWith sets the function that handles streams instead of agents.
func (a *agents) attackWith(attack func(key types.NamespacedName, method string, stream grpc.ServerStream) bool) {
	a.attack.Store(&attack)
}

// holdDeliveries keeps every delivery of an artifact from completing until release is called.
func (a *agents) holdDeliveries() (release func()) {
	held := make(chan struct{})
	a.held.Store(&held)
	return func() { close(held) }
}

// count returns how often the method was called.
func (a *agents) count(method string) int {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.calls[method]
}

func (a *agents) ask(method string, request any) error {
	a.mu.Lock()
	defer a.mu.Unlock()
	method = filepath.Base(method)
	a.calls[method]++
	if a.answer == nil {
		return nil
	}
	return a.answer(method, request)
}

// errAnswerLost is an answer that does not arrive although the agent has done what it was asked for.
var errAnswerLost = status.Error(codes.Unavailable, "the answer was lost")

func (a *agents) intercept(ctx context.Context, request any, info *grpc.UnaryServerInfo, handle grpc.UnaryHandler) (any, error) {
	if err := a.ask(info.FullMethod, request); err != nil {
		if errors.Is(err, errAnswerLost) {
			_, _ = handle(ctx, request)
		}
		return nil, err
	}
	return handle(ctx, request)
}

func (a *agents) interceptStream(key types.NamespacedName) grpc.StreamServerInterceptor {
	return func(server any, stream grpc.ServerStream, info *grpc.StreamServerInfo, handle grpc.StreamHandler) error {
		if err := a.ask(info.FullMethod, nil); err != nil {
			return err
		}
		method := filepath.Base(info.FullMethod)
		if attack := a.attack.Load(); attack != nil && (*attack)(key, method, stream) {
			return status.FromContextError(stream.Context().Err()).Err()
		}
		if held := a.held.Load(); held != nil && method == "PushSource" {
			<-*held
		}
		return handle(server, stream)
	}
}

// Connect implements agentruntime.Runtime.
func (a *agents) Connect(_ context.Context, workspace *autov1alpha1.Workspace) (*client.Client, error) {
	key := types.NamespacedName{Namespace: workspace.Namespace, Name: workspace.Name}
	if _, rests := a.resting.Load(key); rests {
		return nil, agentruntime.ErrResting
	}
	a.connected.Store(key, true)
	if _, hidden := a.hidden.Load(key); hidden {
		return nil, agentruntime.ErrNoAgent
	}
	if found := a.agent(key); found != nil {
		return found, nil
	}
	return nil, agentruntime.ErrNoAgent
}

// Wake implements agentruntime.Runtime.
func (a *agents) Wake(ctx context.Context, workspace *autov1alpha1.Workspace) (*client.Client, error) {
	if _, rested := a.resting.LoadAndDelete(types.NamespacedName{Namespace: workspace.Namespace, Name: workspace.Name}); rested {
		a.woken.Add(1)
	}
	return a.Connect(ctx, workspace)
}

// Ensure implements agentruntime.Runtime; the Update controller does not use it.
func (a *agents) Ensure(context.Context, *autov1alpha1.Workspace, bool) (agentruntime.Status, error) {
	panic("not for the Update controller")
}

// Delete implements agentruntime.Runtime; the Update controller does not use it.
func (a *agents) Delete(context.Context, types.NamespacedName) error {
	panic("not for the Update controller")
}

// Events implements agentruntime.Runtime; the Update controller does not use it.
func (a *agents) Events() <-chan event.GenericEvent {
	panic("not for the Update controller")
}

// script is a pulumi that does what the test says.
type script struct {
	mu   sync.Mutex
	runs []*agentpb.StartOperationRequest
	// paths are the paths of the last operation.
	paths operation.Paths
	// play runs one operation and returns its result.
	play func(ctx context.Context, request *agentpb.StartOperationRequest, progress func(*agentpb.Operation)) *agentpb.Operation
}

func newScript() *script {
	s := &script{}
	s.returns(&agentpb.Operation{State: agentpb.OperationState_OPERATION_STATE_SUCCEEDED, Message: "all is well"})
	return s
}

// returns makes operations end at once with the result.
func (s *script) returns(result *agentpb.Operation) {
	s.plays(func(context.Context, *agentpb.StartOperationRequest, func(*agentpb.Operation)) *agentpb.Operation {
		return result
	})
}

// blocks makes operations run until the returned function is called; then they succeed. A cancelled operation ends as Cancelled, and an
// operation whose agent ends as Interrupted.
func (s *script) blocks() (release func()) {
	released := make(chan struct{})
	s.plays(func(ctx context.Context, _ *agentpb.StartOperationRequest, progress func(*agentpb.Operation)) *agentpb.Operation {
		progress(&agentpb.Operation{State: agentpb.OperationState_OPERATION_STATE_RUNNING, Message: "creating things"})
		select {
		case <-released:
			return &agentpb.Operation{State: agentpb.OperationState_OPERATION_STATE_SUCCEEDED, Message: "all is well"}
		case <-ctx.Done():
		}
		if errors.Is(context.Cause(ctx), operation.ErrCancelled) {
			return &agentpb.Operation{State: agentpb.OperationState_OPERATION_STATE_CANCELLED, Message: "cancelled"}
		}
		return &agentpb.Operation{State: agentpb.OperationState_OPERATION_STATE_INTERRUPTED, Message: "the agent ended"}
	})
	return sync.OnceFunc(func() { close(released) })
}

func (s *script) plays(play func(context.Context, *agentpb.StartOperationRequest, func(*agentpb.Operation)) *agentpb.Operation) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.play = play
}

// requests returns the operations that were run.
func (s *script) requests() []*agentpb.StartOperationRequest {
	s.mu.Lock()
	defer s.mu.Unlock()
	return append([]*agentpb.StartOperationRequest{}, s.runs...)
}

// Version implements server.Runner.
func (s *script) Version() string { return "v3.250.0" }

// EndBy implements server.Runner.
func (s *script) EndBy(time.Time) {}

// Run implements server.Runner.
func (s *script) Run(ctx context.Context, request *agentpb.StartOperationRequest, paths operation.Paths, progress func(*agentpb.Operation)) *agentpb.Operation {
	s.mu.Lock()
	s.paths = paths
	s.runs = append(s.runs, request)
	play := s.play
	s.mu.Unlock()
	return play(ctx, request, progress)
}
