package client_test

import (
	"bytes"
	"context"
	"errors"
	"io"
	"net"
	"path/filepath"
	"strings"
	"testing"
	"time"

	. "github.com/onsi/gomega"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/stack-controller/stack-controller/internal/agent/agentpb"
	"github.com/stack-controller/stack-controller/internal/agent/client"
)

const patience = 20 * time.Second

// fakeAgent answers calls as a test determines. The package of the real agent tests that agent with this client.
type fakeAgent struct {
	agentpb.UnimplementedAgentServer
	answer func() error
	push   func(grpc.ClientStreamingServer[agentpb.PushSourceRequest, agentpb.PushSourceResponse]) error
	watch  func(grpc.ServerStreamingServer[agentpb.Operation]) error
}

func (f *fakeAgent) GetInfo(context.Context, *agentpb.GetInfoRequest) (*agentpb.Info, error) {
	return &agentpb.Info{}, f.answer()
}

func (f *fakeAgent) PushSource(stream grpc.ClientStreamingServer[agentpb.PushSourceRequest, agentpb.PushSourceResponse]) error {
	return f.push(stream)
}

func (f *fakeAgent) WatchOperation(_ *agentpb.WatchOperationRequest, stream grpc.ServerStreamingServer[agentpb.Operation]) error {
	return f.watch(stream)
}

// serve serves the fake agent and returns a client for it.
func serve(t *testing.T, fake *fakeAgent, options ...client.Options) *client.Client {
	t.Helper()
	g := NewWithT(t)
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	g.Expect(err).NotTo(HaveOccurred())
	server := grpc.NewServer()
	agentpb.RegisterAgentServer(server, fake)
	go func() { _ = server.Serve(listener) }()
	t.Cleanup(server.Stop)
	agent, err := client.New(listener.Addr().String(), append(options, client.Options{})[0])
	g.Expect(err).NotTo(HaveOccurred())
	t.Cleanup(func() { _ = agent.Close() })
	return agent
}

func TestErrorsCanBeDecidedOn(t *testing.T) {
	fake := &fakeAgent{}
	agent := serve(t, fake)
	tests := []struct {
		answer error
		want   error
	}{
		{agentpb.Refuse(agentpb.ReasonSourceMissing, "push it"), client.ErrSourceMissing},
		{agentpb.Refuse(agentpb.ReasonBusy, "later"), client.ErrBusy},
		{agentpb.Refuse("NEW_REASON", "from a newer agent"), nil},
		{status.Error(codes.FailedPrecondition, "without a reason"), nil},
		{status.Error(codes.NotFound, "what?"), client.ErrNotFound},
		{status.Error(codes.Unavailable, "stopping"), client.ErrUnavailable},
		{status.Error(codes.Aborted, "moved on"), client.ErrUnavailable},
		{status.Error(codes.Canceled, "by the agent"), client.ErrUnavailable},
		{status.Error(codes.DeadlineExceeded, "by the agent"), client.ErrUnavailable},
		{status.Error(codes.InvalidArgument, "no"), client.ErrInvalid},
		{status.Error(codes.DataLoss, "digest"), client.ErrDigestMismatch},
		{status.Error(codes.ResourceExhausted, "size"), client.ErrTooLarge},
		{status.Error(codes.Unauthenticated, "who?"), client.ErrDenied},
		{status.Error(codes.PermissionDenied, "you?"), client.ErrDenied},
		{status.Error(codes.Internal, "bug"), nil},
		{errors.New("not a status"), nil},
	}
	kinds := []error{client.ErrSourceMissing, client.ErrBusy, client.ErrNotFound, client.ErrUnavailable, client.ErrInvalid,
		client.ErrDigestMismatch, client.ErrTooLarge, client.ErrDenied}
	for _, tt := range tests {
		t.Run(tt.answer.Error(), func(t *testing.T) {
			g := NewWithT(t)
			fake.answer = func() error { return tt.answer }
			_, err := agent.GetInfo(t.Context())
			var typed *client.Error
			g.Expect(errors.As(err, &typed)).To(BeTrue())
			g.Expect(typed.Answered).To(BeTrue())
			g.Expect(client.Silent(err)).To(BeFalse())
			g.Expect(err).To(MatchError(HavePrefix("get agent info: ")))
			g.Expect(err).To(MatchError(ContainSubstring(status.Convert(tt.answer).Message())))
			for _, kind := range kinds {
				g.Expect(errors.Is(err, kind)).To(Equal(errors.Is(tt.want, kind)), kind.Error())
			}
		})
	}
}

func TestCredentialsThatAreRejectedAreReported(t *testing.T) {
	g := NewWithT(t)
	var answer error
	rejected := 0
	agent := serve(t, &fakeAgent{
		answer: func() error { return answer },
		push: func(grpc.ClientStreamingServer[agentpb.PushSourceRequest, agentpb.PushSourceResponse]) error {
			return answer
		},
		watch: func(grpc.ServerStreamingServer[agentpb.Operation]) error { return answer },
	}, client.Options{Rejected: func() { rejected++ }})
	calls := []func() error{
		func() error { _, err := agent.GetInfo(t.Context()); return err },
		func() error { return agent.PushSource(t.Context(), "sha256:0", 0, strings.NewReader("")) },
		func() error {
			_, err := agent.WatchOperation(t.Context(), "a", func(*agentpb.Operation) {})
			return err
		},
	}
	for _, answer = range []error{nil, status.Error(codes.PermissionDenied, "you?"), status.Error(codes.Unavailable, "stopping")} {
		for _, call := range calls {
			_ = call()
		}
	}
	g.Expect(rejected).To(BeZero())
	answer = status.Error(codes.Unauthenticated, "not signed with a key of this cluster")
	for made, call := range calls {
		g.Expect(call()).To(MatchError(client.ErrDenied))
		g.Expect(rejected).To(Equal(made + 1))
	}
}

func TestACallEndsWithItsContext(t *testing.T) {
	g := NewWithT(t)
	release := make(chan struct{})
	defer close(release)
	agent := serve(t, &fakeAgent{
		answer: func() error { <-release; return nil },
		watch:  func(grpc.ServerStreamingServer[agentpb.Operation]) error { <-release; return nil },
		push: func(grpc.ClientStreamingServer[agentpb.PushSourceRequest, agentpb.PushSourceResponse]) error {
			<-release
			return nil
		},
	})
	calls := map[string]func(ctx context.Context) error{
		"info":  func(ctx context.Context) error { _, err := agent.GetInfo(ctx); return err },
		"watch": func(ctx context.Context) error { _, err := agent.WatchOperation(ctx, "a", ignore); return err },
		"push":  func(ctx context.Context) error { return agent.PushSource(ctx, "d", 1<<40, endless{}) },
	}
	for name, call := range calls {
		ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
		g.Expect(call(ctx)).To(MatchError(context.DeadlineExceeded), name)
		cancel()
		ctx, cancel = context.WithCancel(t.Context())
		cancel()
		g.Expect(call(ctx)).To(MatchError(context.Canceled), name)
	}
}

func ignore(*agentpb.Operation) {}

// endless is a source of bytes without an end.
type endless struct{}

func (endless) Read(p []byte) (int, error) { return len(p), nil }

func TestAnAgentThatIsNotThereIsUnavailable(t *testing.T) {
	g := NewWithT(t)
	for _, address := range []string{"unix:" + filepath.Join(t.TempDir(), "s"), "127.0.0.1:1"} {
		agent, err := client.New(address, client.Options{})
		g.Expect(err).NotTo(HaveOccurred())
		_, err = agent.GetInfo(t.Context())
		g.Expect(err).To(MatchError(client.ErrUnavailable))
		g.Expect(client.Silent(err)).To(BeTrue())
		g.Expect(agent.WatchOperation(t.Context(), "a", ignore)).Error().To(MatchError(client.ErrUnavailable))
		g.Expect(agent.PushSource(t.Context(), "d", 1, strings.NewReader("x"))).To(MatchError(client.ErrUnavailable))
		g.Expect(agent.Close()).To(Succeed())
	}
}

func TestAnAddressThatCanNeverWorkIsRefused(t *testing.T) {
	_, err := client.New("unix:relative\x00", client.Options{})
	NewWithT(t).Expect(err).To(HaveOccurred())
}

func TestAClientFindsAnAgentThatStartsLater(t *testing.T) {
	g := NewWithT(t)
	socket := filepath.Join(t.TempDir(), "s")
	agent, err := client.New("unix:"+socket, client.Options{})
	g.Expect(err).NotTo(HaveOccurred())
	defer agent.Close()
	g.Expect(agent.GetInfo(t.Context())).Error().To(MatchError(client.ErrUnavailable))

	listener, err := net.Listen("unix", socket)
	g.Expect(err).NotTo(HaveOccurred())
	server := grpc.NewServer()
	agentpb.RegisterAgentServer(server, &fakeAgent{answer: func() error { return nil }})
	go func() { _ = server.Serve(listener) }()
	defer server.Stop()
	g.Eventually(func() error { _, err := agent.GetInfo(t.Context()); return err }).WithTimeout(patience).Should(Succeed())
}

func TestAWatchThatEndsEarlySaysNothingAboutTheOperation(t *testing.T) {
	g := NewWithT(t)
	fake := &fakeAgent{}
	agent := serve(t, fake)
	running := &agentpb.Operation{State: agentpb.OperationState_OPERATION_STATE_RUNNING}
	for name, end := range map[string]error{"in order": nil, "broken": status.Error(codes.Unavailable, "gone")} {
		fake.watch = func(stream grpc.ServerStreamingServer[agentpb.Operation]) error {
			return errors.Join(stream.Send(running), end)
		}
		seen := 0
		final, err := agent.WatchOperation(t.Context(), "a", func(*agentpb.Operation) { seen++ })
		g.Expect(err).To(HaveOccurred(), name)
		g.Expect(final).To(BeNil())
		g.Expect(seen).To(Equal(1))
	}
}

func TestAPushSendsAllBytesInBoundedChunks(t *testing.T) {
	g := NewWithT(t)
	content := bytes.Repeat([]byte("0123456789"), 100_000)
	var received []byte
	var header *agentpb.SourceHeader
	var largest int
	agent := serve(t, &fakeAgent{push: func(stream grpc.ClientStreamingServer[agentpb.PushSourceRequest, agentpb.PushSourceResponse]) error {
		for {
			message, err := stream.Recv()
			if errors.Is(err, io.EOF) {
				return stream.SendAndClose(&agentpb.PushSourceResponse{})
			}
			if err != nil {
				return err
			}
			if message.GetHeader() != nil {
				header = message.GetHeader()
				continue
			}
			received = append(received, message.GetChunk()...)
			largest = max(largest, len(message.GetChunk()))
		}
	}})
	g.Expect(agent.PushSource(t.Context(), "sha256:x", int64(len(content)), bytes.NewReader(content))).To(Succeed())
	g.Expect(header).To(And(HaveField("Digest", "sha256:x"), HaveField("Size", int64(len(content)))))
	g.Expect(bytes.Equal(received, content)).To(BeTrue())
	g.Expect(largest).To(BeNumerically("<=", agentpb.MaxChunkSize))
}

func TestAPushStopsReadingOnceTheAgentHasAnswered(t *testing.T) {
	g := NewWithT(t)
	fake := &fakeAgent{}
	agent := serve(t, fake)
	fake.push = func(stream grpc.ClientStreamingServer[agentpb.PushSourceRequest, agentpb.PushSourceResponse]) error {
		_, err := stream.Recv()
		return errors.Join(err, stream.SendAndClose(&agentpb.PushSourceResponse{}))
	}
	g.Expect(agent.PushSource(t.Context(), "d", 1<<40, endless{})).To(Succeed())
	fake.push = func(grpc.ClientStreamingServer[agentpb.PushSourceRequest, agentpb.PushSourceResponse]) error {
		return agentpb.Refuse(agentpb.ReasonBusy, "an operation runs")
	}
	g.Expect(agent.PushSource(t.Context(), "d", 1<<40, endless{})).To(MatchError(client.ErrBusy))
}
