package client_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"net"
	"runtime"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	. "github.com/onsi/gomega"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/encoding/protowire"
	gproto "google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/stack-controller/stack-controller/internal/agent/agentpb"
	"github.com/stack-controller/stack-controller/internal/agent/client"
)

// rawCodec sends and receives bytes unchanged.
type rawCodec struct{}

func (rawCodec) Name() string                        { return "proto" }
func (rawCodec) Marshal(message any) ([]byte, error) { return *message.(*[]byte), nil }
func (rawCodec) Unmarshal(data []byte, message any) error {
	*message.(*[]byte) = bytes.Clone(data)
	return nil
}

// serveRaw returns a client of an agent that answers every call with the bytes, after it has called the functions.
func serveRaw(t *testing.T, answer []byte, options client.Options, before ...func(grpc.ServerStream)) *client.Client {
	t.Helper()
	g := NewWithT(t)
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	g.Expect(err).NotTo(HaveOccurred())
	server := grpc.NewServer(grpc.ForceServerCodec(rawCodec{}), grpc.UnknownServiceHandler(func(_ any, stream grpc.ServerStream) error {
		for _, do := range before {
			do(stream)
		}
		return stream.SendMsg(&answer)
	}))
	go func() { _ = server.Serve(listener) }()
	t.Cleanup(server.Stop)
	agent, err := client.New(listener.Addr().String(), options)
	g.Expect(err).NotTo(HaveOccurred())
	t.Cleanup(func() { _ = agent.Close() })
	return agent
}

// methods are all methods of the client. Each calls an agent and returns its answer.
var methods = map[string]func(ctx context.Context, agent *client.Client) (gproto.Message, error){
	"GetInfo": func(ctx context.Context, agent *client.Client) (gproto.Message, error) { return agent.GetInfo(ctx) },
	"GetOperation": func(ctx context.Context, agent *client.Client) (gproto.Message, error) {
		return agent.GetOperation(ctx, "a")
	},
	"StartOperation": func(ctx context.Context, agent *client.Client) (gproto.Message, error) {
		return agent.StartOperation(ctx, &agentpb.StartOperationRequest{Id: "a"})
	},
	"CancelOperation": func(ctx context.Context, agent *client.Client) (gproto.Message, error) {
		return agent.CancelOperation(ctx, "a")
	},
	"WatchOperation": func(ctx context.Context, agent *client.Client) (gproto.Message, error) {
		return agent.WatchOperation(ctx, "a", ignore)
	},
	"ForgetOperation": func(ctx context.Context, agent *client.Client) (gproto.Message, error) {
		return nil, agent.ForgetOperation(ctx, "a")
	},
	"PushSource": func(ctx context.Context, agent *client.Client) (gproto.Message, error) {
		return nil, agent.PushSource(ctx, "d", 1, strings.NewReader("x"))
	},
	"FetchSource": func(ctx context.Context, agent *client.Client) (gproto.Message, error) {
		return nil, agent.FetchSource(ctx, "d", "http://x.invalid/")
	},
	"PushPlan": func(ctx context.Context, agent *client.Client) (gproto.Message, error) {
		return nil, agent.PushPlan(ctx, "d", 1, strings.NewReader("x"))
	},
	"GetPlan": func(ctx context.Context, agent *client.Client) (gproto.Message, error) {
		return nil, agent.GetPlan(ctx, "a", io.Discard, io.Discard)
	},
}

// A new method of the protocol needs an entry in methods and in limits, or no test attacks it.
func TestEveryMethodOfAnAgentIsAttacked(t *testing.T) {
	g := NewWithT(t)
	var served []string
	for _, method := range agentpb.Agent_ServiceDesc.Methods {
		served = append(served, method.MethodName)
	}
	for _, stream := range agentpb.Agent_ServiceDesc.Streams {
		served = append(served, stream.StreamName)
	}
	g.Expect(slices.Collect(maps.Keys(methods))).To(ConsistOf(served))
	g.Expect(slices.Collect(maps.Keys(limits))).To(ConsistOf(served))
}

// allocated returns how many bytes are allocated while do runs, including those that are freed again.
func allocated(do func()) uint64 {
	var before, after runtime.MemStats
	runtime.GC()
	runtime.ReadMemStats(&before)
	do()
	runtime.ReadMemStats(&after)
	return after.TotalAlloc - before.TotalAlloc
}

// empties returns as many empty messages as fit into the size, as fields with the number.
func empties(field protowire.Number, size int) []byte {
	return bytes.Repeat(protowire.AppendBytes(protowire.AppendTag(nil, field, protowire.BytesType), nil), size/2)
}

func TestAnswersOfEmptyMessagesAreRefusedBeforeTheyAreDecoded(t *testing.T) {
	for _, size := range []int{16 << 20, agentpb.MaxResultSize, agentpb.MaxInfoSize, agentpb.MaxOperationSize, agentpb.MaxEmptySize} {
		// The fields are operations in GetInfo, projects and outputs in the other answers, and a field that the protocol does not have.
		for _, field := range []protowire.Number{4, 11, 10, 1, 999} {
			answer := bytes.Repeat(empties(field, 1024), size/1024)
			if field == 999 {
				answer = bytes.Repeat(protowire.AppendVarint(protowire.AppendTag(nil, field, protowire.VarintType), 0), size/3)
			}
			agent := serveRaw(t, answer, client.Options{})
			for name, do := range methods {
				t.Run(fmt.Sprintf("%s %d bytes of field %d", name, size, field), func(t *testing.T) {
					g := NewWithT(t)
					var err error
					held := allocated(func() { _, err = do(t.Context(), agent) })
					t.Logf("%d bytes allocated by both sides (%v)", held, err)
					if size > agentpb.MaxOperationSize {
						g.Expect(err).To(Or(MatchError(ContainSubstring("the answer of the agent is refused")), MatchError(client.ErrTooLarge)))
					}
					// A result may have 5 MiB, which are read before the fields are counted.
					limit := uint64(8 << 20)
					if name == "GetOperation" {
						limit += 2 * agentpb.MaxResultSize
					}
					g.Expect(held).To(BeNumerically("<", limit), "bytes allocated by both sides")
				})
			}
		}
	}
}

// largest returns answers of the largest size and number of fields for a method, with the content that needs the most memory.
func largest(size, fields int, outputs bool) map[string][]byte {
	padded := func(content []byte, field protowire.Number) []byte {
		return append(protowire.AppendBytes(protowire.AppendTag(nil, field, protowire.BytesType), bytes.Repeat([]byte("m"), size-len(content)-8)), content...)
	}
	all := map[string][]byte{
		"text":  padded(nil, 7),
		"empty": padded(empties(4, 2*(fields-1)), 1),
	}
	var entries []byte
	for i := range (fields - 1) / 2 {
		key := protowire.AppendString(protowire.AppendTag(nil, 1, protowire.BytesType), fmt.Sprintf("%05x", i))
		entries = protowire.AppendBytes(protowire.AppendTag(entries, 6, protowire.BytesType), key)
	}
	all["changes"] = padded(entries, 7)
	if outputs {
		operation := &agentpb.Operation{Outputs: map[string]*agentpb.Output{}}
		for i := range agentpb.MaxOutputs {
			operation.Outputs[fmt.Sprintf("%05d", i)] = &agentpb.Output{Value: bytes.Repeat([]byte("1"), 400), Secret: true}
		}
		encoded, _ := gproto.Marshal(operation)
		all["outputs"] = encoded
	}
	return all
}

// limits are, for each method, the maximum size (in bytes) and number of fields of its answer, and the heap memory that the answer may take
// (in bytes).
var limits = map[string]struct{ size, fields, held int }{
	"GetInfo":         {agentpb.MaxInfoSize, agentpb.MaxInfoFields, 4 << 20},
	"GetOperation":    {agentpb.MaxResultSize, agentpb.MaxResultFields, 20 << 20},
	"StartOperation":  {agentpb.MaxOperationSize, agentpb.MaxOperationFields, 2 << 20},
	"CancelOperation": {agentpb.MaxOperationSize, agentpb.MaxOperationFields, 2 << 20},
	"WatchOperation":  {agentpb.MaxOperationSize, agentpb.MaxOperationFields, 2 << 20},
	"GetPlan":         {agentpb.MaxPlanPartSize, agentpb.MaxPlanPartFields, 4 << 20},
	"ForgetOperation": {agentpb.MaxEmptySize, agentpb.MaxEmptyFields, 2 << 20},
	"PushSource":      {agentpb.MaxEmptySize, agentpb.MaxEmptyFields, 2 << 20},
	"FetchSource":     {agentpb.MaxEmptySize, agentpb.MaxEmptyFields, 2 << 20},
	"PushPlan":        {agentpb.MaxEmptySize, agentpb.MaxEmptyFields, 2 << 20},
}

func TestLargestAnswersTakeLittleMemory(t *testing.T) {
	for name, limit := range limits {
		for what, answer := range largest(limit.size, limit.fields, name == "GetOperation") {
			t.Run(name+" "+what, func(t *testing.T) {
				g := NewWithT(t)
				g.Expect(len(answer)).To(BeNumerically("<=", limit.size))
				agent := serveRaw(t, answer, client.Options{})
				var before, after runtime.MemStats
				runtime.GC()
				runtime.ReadMemStats(&before)
				message, err := methods[name](t.Context(), agent)
				// The second collection empties the pools of buffers.
				runtime.GC()
				runtime.GC()
				runtime.ReadMemStats(&after)
				held := int(after.HeapAlloc) - int(before.HeapAlloc)
				t.Logf("%d bytes, %d bytes of heap held with the connection (%v)", len(answer), held, err)
				g.Expect(fmt.Sprint(err)).NotTo(ContainSubstring("the answer of the agent is refused"))
				g.Expect(held).To(BeNumerically("<", limit.held))
				runtime.KeepAlive(message)
			})
		}
	}
}

func TestWhatAnAgentSaysIsFitToBeShown(t *testing.T) {
	g := NewWithT(t)
	ugly := "\x1b[31mred\u202e\x00\ttext\nnext " + strings.Repeat("é", 1<<13)
	path := "\x1b[31m" + strings.Repeat("é", 1<<8)
	future, forged := timestamppb.New(time.Now().AddDate(3000, 0, 0)), &timestamppb.Timestamp{Seconds: 1 << 60}
	changes := map[string]int64{"\x1b": 1, "negative": -1, strings.Repeat("k", 65): 1}
	for i := range 100 {
		changes[fmt.Sprintf("kind-%03d", i)] = int64(i)
	}
	operation := &agentpb.Operation{
		Id: "../etc", Kind: 99, State: 99, Failure: 99, StartTime: forged, EndTime: future, Message: ugly, Permalink: "javascript:alert(1)",
		Project: &agentpb.ProjectSource{Name: "a\nb", Runtime: "yaml"}, LockHolder: &agentpb.LockHolder{User: ugly, Host: ugly, Since: forged},
		RunTime:         &durationpb.Duration{Seconds: -1 << 60},
		Changes:         []*agentpb.ResourceChange{{Operation: ugly, Urn: ugly, Paths: slices.Repeat([]string{path}, 30), ReplacePaths: []string{path}}},
		OmittedChanges:  -1,
		ResourceChanges: changes, Outputs: map[string]*agentpb.Output{"good": {Value: []byte("1")}, "bad": {Value: []byte("{")}},
	}
	encoded, err := gproto.Marshal(operation)
	g.Expect(err).NotTo(HaveOccurred())
	shown, err := serveRaw(t, encoded, client.Options{}).GetOperation(t.Context(), "a")
	g.Expect(err).NotTo(HaveOccurred())
	g.Expect(shown.GetId()).To(BeEmpty())
	g.Expect([]int32{int32(shown.GetKind()), int32(shown.GetState()), int32(shown.GetFailure())}).To(HaveEach(BeZero()))
	g.Expect(shown.GetStartTime()).To(BeNil())
	g.Expect(shown.GetRunTime()).To(BeNil())
	g.Expect(shown.GetEndTime().AsTime()).To(BeTemporally("~", time.Now(), time.Minute))
	g.Expect(shown.GetMessage()).To(And(HavePrefix("[31mred text next éé"), HaveSuffix("é…")))
	g.Expect(len(shown.GetMessage())).To(And(BeNumerically("<=", agentpb.MaxText), BeNumerically(">", agentpb.MaxText-4)))
	g.Expect(shown.GetPermalink()).To(BeEmpty())
	g.Expect(shown.GetProject()).To(BeNil())
	g.Expect(len(shown.GetLockHolder().GetUser())).To(BeNumerically("<=", agentpb.MaxName))
	g.Expect(shown.GetResourceChanges()).To(And(HaveLen(agentpb.MaxChangeKinds), HaveKeyWithValue("kind-031", int64(31))))
	g.Expect(shown.GetChanges()).To(HaveLen(1))
	change := shown.GetChanges()[0]
	g.Expect(change.GetUrn()).To(HavePrefix("[31mred text next é"))
	g.Expect(len(change.GetUrn())).To(BeNumerically("<=", agentpb.MaxURN))
	g.Expect(len(change.GetOperation())).To(BeNumerically("<=", agentpb.MaxChangeKind))
	g.Expect(change.GetPaths()).To(HaveLen(agentpb.MaxChangePaths))
	g.Expect(len(change.GetPaths()[0])).To(BeNumerically("<=", agentpb.MaxChangePath))
	g.Expect(shown.GetOmittedChanges()).To(BeZero())
	g.Expect(shown.GetOutputs()["good"]).To(HaveField("Omitted", false))
	g.Expect(shown.GetOutputs()["bad"]).To(And(HaveField("Omitted", true), HaveField("Value", BeEmpty())))

	encoded, err = gproto.Marshal(&agentpb.Info{AgentVersion: ugly, PulumiVersion: ugly, SourceDigest: ugly, Operations: []*agentpb.Operation{operation}})
	g.Expect(err).NotTo(HaveOccurred())
	info, err := serveRaw(t, encoded, client.Options{}).GetInfo(t.Context())
	g.Expect(err).NotTo(HaveOccurred())
	g.Expect([]string{info.GetAgentVersion(), info.GetPulumiVersion(), info.GetSourceDigest()}).To(HaveEach(HavePrefix("[31mred text")))
	g.Expect(len(info.GetPulumiVersion())).To(BeNumerically("<=", agentpb.MaxName))
	g.Expect(info.GetOperations()[0].GetOutputs()).To(BeEmpty())
}

func TestErrorsOfAnAgentAreShort(t *testing.T) {
	g := NewWithT(t)
	fake := &fakeAgent{}
	agent := serve(t, fake)
	fake.answer = func() error { return status.Error(codes.Internal, "bad \x1b[2J\n"+strings.Repeat("x", 8<<10)) }
	_, err := agent.GetInfo(t.Context())
	g.Expect(err).To(MatchError(HavePrefix("get agent info: Internal: bad [2J xxx")))
	g.Expect(len(err.Error())).To(BeNumerically("<", 3<<10))
	// gRPC ends the call if the headers are larger than maxHeaderSize.
	fake.answer = func() error { return status.Error(codes.Internal, strings.Repeat("x", 1<<20)) }
	g.Expect(agent.GetInfo(t.Context())).Error().To(HaveOccurred())
	g.Expect(len(err.Error())).To(BeNumerically("<", 3<<10))
}

func TestTextThatIsNotUTF8IsRefused(t *testing.T) {
	g := NewWithT(t)
	answer := protowire.AppendString(protowire.AppendTag(nil, 7, protowire.BytesType), "\xff")
	g.Expect(serveRaw(t, answer, client.Options{}).GetOperation(t.Context(), "a")).Error().To(MatchError(ContainSubstring("the answer of the agent is refused")))
}

// An agent sends thousands of messages per second, and alternates between states.
func TestFastWatchIsHeardSlowly(t *testing.T) {
	g := NewWithT(t)
	var sent atomic.Int64
	agent := serve(t, &fakeAgent{watch: func(stream grpc.ServerStreamingServer[agentpb.Operation]) error {
		for i := 0; ; i++ {
			if err := stream.Send(&agentpb.Operation{State: agentpb.OperationState(1 + i%3), Message: strings.Repeat("m", 1<<10)}); err != nil {
				return err
			}
			sent.Add(1)
		}
	}})
	ctx, cancel := context.WithCancel(t.Context())
	start, seen := time.Now(), 0
	_, err := agent.WatchOperation(ctx, "a", func(*agentpb.Operation) {
		if seen++; seen == 40 {
			cancel()
		}
	})
	g.Expect(err).To(MatchError(context.Canceled))
	g.Expect(time.Since(start)).To(BeNumerically(">", 1500*time.Millisecond), "20 at once, 10 per second after that")
	g.Expect(sent.Load()).To(BeNumerically("<", 500), "the rest is not even on its way")
}

// waitingCalls calls all agents at the same time. Once all calls have ended, it returns how many of them still waited after the given time.
func waitingCalls(t *testing.T, agents []*client.Client, after time.Duration) (waiting int) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), after)
	defer cancel()
	ended := make(chan error, len(agents))
	for _, agent := range agents {
		go func() {
			_, err := agent.GetInfo(ctx)
			ended <- err
		}()
	}
	g := NewWithT(t)
	for range agents {
		err := <-ended
		if errors.Is(err, context.DeadlineExceeded) {
			g.Expect(client.Silent(err)).To(BeTrue())
			waiting++
			continue
		}
		g.Expect(err).To(MatchError(client.ErrUnasked))
		g.Expect(client.Silent(err)).To(BeFalse(), "it got no time to answer")
	}
	return waiting
}

func TestAgentsThatDoNotAnswerKeepFewCallersWaiting(t *testing.T) {
	g := NewWithT(t)
	groups := &client.Groups{}
	over := make(chan struct{})
	defer close(over)
	silent := func(grpc.ServerStream) { <-over }
	var agents []*client.Client
	for range 12 {
		agents = append(agents, serveRaw(t, nil, client.Options{Group: groups.Of("evil")}, silent))
	}
	g.Expect(waitingCalls(t, agents, 3*time.Second)).To(Equal(2), "only two go on waiting after a second")

	good := serveRaw(t, nil, client.Options{Group: groups.Of("good")}, func(grpc.ServerStream) { time.Sleep(1200 * time.Millisecond) })
	g.Expect(good.GetInfo(t.Context())).Error().NotTo(HaveOccurred(), "the agent of another owner may take its time")

	start := time.Now()
	for _, agent := range agents {
		g.Expect(agent.GetInfo(t.Context())).Error().To(MatchError(client.ErrUnavailable))
	}
	g.Expect(time.Since(start)).To(BeNumerically("<", 3*time.Second), "agents that did not answer get little time")
}

func TestAgentThatAnswersAgainIsTrustedAgain(t *testing.T) {
	g := NewWithT(t)
	var silent atomic.Bool
	silent.Store(true)
	over := make(chan struct{})
	defer close(over)
	agent := serveRaw(t, nil, client.Options{}, func(grpc.ServerStream) {
		if silent.Load() {
			<-over
		}
	})
	ctx, cancel := context.WithTimeout(t.Context(), 1500*time.Millisecond)
	defer cancel()
	_, err := agent.GetInfo(ctx)
	g.Expect(err).To(MatchError(context.DeadlineExceeded))
	silent.Store(false)
	for range 3 {
		g.Expect(agent.GetInfo(t.Context())).Error().NotTo(HaveOccurred())
	}
}

// An agent accepts connections and closes them, before or after the beginning of the protocol.
func TestFlappingAgentLeavesNothingBehind(t *testing.T) {
	g := NewWithT(t)
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	g.Expect(err).NotTo(HaveOccurred())
	defer listener.Close()
	var accepted atomic.Int64
	var serving sync.WaitGroup
	serving.Go(func() {
		for {
			connection, err := listener.Accept()
			if err != nil {
				return
			}
			if accepted.Add(1)%2 == 0 {
				// This is an empty SETTINGS frame.
				_, _ = connection.Write([]byte{0, 0, 0, 4, 0, 0, 0, 0, 0})
			}
			_ = connection.Close()
		}
	})
	agent, err := client.New(listener.Addr().String(), client.Options{})
	g.Expect(err).NotTo(HaveOccurred())
	before := runtime.NumGoroutine()
	for range 200 {
		g.Expect(agent.GetInfo(t.Context())).Error().To(MatchError(client.ErrUnavailable))
		g.Expect(agent.WatchOperation(t.Context(), "a", ignore)).Error().To(MatchError(client.ErrUnavailable))
	}
	g.Eventually(runtime.NumGoroutine).WithTimeout(patience).Should(BeNumerically("<=", before+5))
	g.Expect(agent.Close()).To(Succeed())
	_ = listener.Close()
	serving.Wait()
}
