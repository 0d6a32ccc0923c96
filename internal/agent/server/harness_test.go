package server

import (
	"bytes"
	"context"
	"errors"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"sync"
	"testing"
	"time"

	. "github.com/onsi/gomega"

	"github.com/stack-controller/stack-controller/internal/agent/agentpb"
	"github.com/stack-controller/stack-controller/internal/agent/client"
	"github.com/stack-controller/stack-controller/internal/agent/operation"
	"github.com/stack-controller/stack-controller/internal/source/artifact/archive"
)

const (
	queued        = agentpb.OperationState_OPERATION_STATE_QUEUED
	preparing     = agentpb.OperationState_OPERATION_STATE_PREPARING
	running       = agentpb.OperationState_OPERATION_STATE_RUNNING
	succeeded     = agentpb.OperationState_OPERATION_STATE_SUCCEEDED
	failed        = agentpb.OperationState_OPERATION_STATE_FAILED
	isInterrupted = agentpb.OperationState_OPERATION_STATE_INTERRUPTED
	cancelled     = agentpb.OperationState_OPERATION_STATE_CANCELLED
)

// patience is how long a test waits for something that has to happen.
const patience = 20 * time.Second

// scriptedRunner is a Runner whose operations the test controls.
type scriptedRunner struct {
	// run is the operation. If it is nil, the operation reports that it is running, and ends when the test sends to end or ctx is done.
	run func(ctx context.Context, call call) *agentpb.Operation
	// calls receives one value for each operation that is run.
	calls chan call
	// end makes a running operation end with the result that is sent.
	end chan *agentpb.Operation
	// endBy receives the time with which EndBy is called; nil if the test does not need it.
	endBy chan time.Time
}

type call struct {
	request  *agentpb.StartOperationRequest
	project  string
	paths    operation.Paths
	progress func(*agentpb.Operation)
}

func newScriptedRunner() *scriptedRunner {
	return &scriptedRunner{calls: make(chan call, 1000), end: make(chan *agentpb.Operation)}
}

func (r *scriptedRunner) Version() string { return "v3.250.0" }

func (r *scriptedRunner) EndBy(end time.Time) {
	if r.endBy != nil {
		r.endBy <- end
	}
}

func (r *scriptedRunner) Run(ctx context.Context, request *agentpb.StartOperationRequest, paths operation.Paths, progress func(*agentpb.Operation)) *agentpb.Operation {
	this := call{request: request, project: paths.Project, paths: paths, progress: progress}
	if r.run != nil {
		r.calls <- this
		return r.run(ctx, this)
	}
	progress(&agentpb.Operation{State: running, Message: "updating"})
	r.calls <- this
	select {
	case end := <-r.end:
		return end
	case <-ctx.Done():
		return stopped(ctx)
	}
}

// stopped returns the result of an operation that ended because its context did, as operation.Runner does.
func stopped(ctx context.Context) *agentpb.Operation {
	switch cause := context.Cause(ctx); {
	case errors.Is(cause, operation.ErrCancelled):
		return &agentpb.Operation{State: cancelled, Message: cause.Error()}
	case errors.Is(cause, operation.ErrTimeout):
		return &agentpb.Operation{State: failed, Failure: agentpb.FailureReason_FAILURE_REASON_TIMEOUT, Message: cause.Error()}
	default:
		return &agentpb.Operation{State: isInterrupted, Message: cause.Error()}
	}
}

// agent is a server with a client.
type agent struct {
	*client.Client
	*WithT
	t       *testing.T
	dir     string
	address string
	runner  *scriptedRunner
	server  *Server
	log     *buffer
	stop    func() error
}

// buffer collects logs.
type buffer struct {
	mu      sync.Mutex
	content bytes.Buffer
}

func (b *buffer) Write(p []byte) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.content.Write(p)
}

func (b *buffer) String() string {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.content.String()
}

// shortDir returns a directory whose path is short enough for a socket in it.
func shortDir(t *testing.T) string {
	t.Helper()
	dir, err := os.MkdirTemp("", "agent")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	return dir
}

// startAgent starts an agent on the directory, which may come from an earlier agent. The agent runs until stop is called or the test ends.
func startAgent(t *testing.T, dir string, change ...func(*Options)) *agent {
	t.Helper()
	g := NewWithT(t)
	a := &agent{WithT: g, t: t, dir: dir, runner: newScriptedRunner(), log: &buffer{}, address: "unix:" + filepath.Join(shortDir(t), "s")}
	options := Options{
		Dir: dir, Workspace: filepath.Join(dir, "workspace"), Runner: a.runner, Version: "test",
		Limits: archive.Limits{MaxDownloadSize: 8 << 20, MaxUnpackedSize: 16 << 20, MaxEntries: 1000},
		Log:    slog.New(slog.NewJSONHandler(a.log, &slog.HandlerOptions{Level: slog.LevelDebug})),
	}
	for _, c := range change {
		c(&options)
	}
	listener, err := Listen(a.address)
	g.Expect(err).NotTo(HaveOccurred())
	a.server, err = New(options)
	g.Expect(err).NotTo(HaveOccurred())
	a.stop = sync.OnceValue(serveInBackground(a.server, listener))
	a.Client, err = client.New(a.address, client.Options{})
	g.Expect(err).NotTo(HaveOccurred())
	t.Cleanup(func() {
		_ = a.Close()
		if err := a.stop(); err != nil {
			t.Errorf("serve: %v", err)
		}
	})
	return a
}

// serveInBackground serves, and returns a function that ends the server.
func serveInBackground(server *Server, listener net.Listener) func() error {
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() { ended <- server.Serve(ctx, listener) }()
	return func() error {
		cancel()
		err := <-ended
		_ = server.Close()
		return err
	}
}

// request returns the request for a destroy, which needs no source.
func request(id string) *agentpb.StartOperationRequest {
	return &agentpb.StartOperationRequest{
		Id: id, Kind: agentpb.OperationKind_OPERATION_KIND_DESTROY, Stack: "dev",
		Source: &agentpb.StartOperationRequest_Project{Project: &agentpb.ProjectSource{Name: "demo", Runtime: "yaml"}},
	}
}

// start starts an operation and waits until it runs.
func (a *agent) start(id string) call {
	a.t.Helper()
	return a.startRequest(request(id))
}

// startRequest starts the operation and waits until it runs.
func (a *agent) startRequest(request *agentpb.StartOperationRequest) (started call) {
	a.t.Helper()
	a.accept(request)
	a.Eventually(a.runner.calls).WithTimeout(patience).Should(Receive(&started))
	return started
}

// accept starts the operation.
func (a *agent) accept(request *agentpb.StartOperationRequest) {
	a.t.Helper()
	a.Expect(a.StartOperation(a.t.Context(), request)).Error().NotTo(HaveOccurred())
}

// finish ends the running operation, waits until the agent reports its end, and returns it.
func (a *agent) finish(id string, result *agentpb.Operation) *agentpb.Operation {
	a.t.Helper()
	select {
	case a.runner.end <- result:
	case <-time.After(patience):
		a.t.Fatal("no operation runs")
	}
	return a.wait(id)
}

// wait returns the operation once it is final.
func (a *agent) wait(id string) *agentpb.Operation {
	a.t.Helper()
	ctx, cancel := context.WithTimeout(a.t.Context(), patience)
	defer cancel()
	final, err := a.WatchOperation(ctx, id, func(*agentpb.Operation) {})
	NewWithT(a.t).Expect(err).NotTo(HaveOccurred())
	return final
}

// together calls the function n times concurrently and returns the error of each call.
func together(n int, do func(i int) error) []error {
	errs := make([]error, n)
	var calls sync.WaitGroup
	for i := range n {
		calls.Go(func() { errs[i] = do(i) })
	}
	calls.Wait()
	return errs
}
