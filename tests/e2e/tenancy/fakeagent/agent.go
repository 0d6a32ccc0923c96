package main

import (
	"bytes"
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"math"
	"math/rand/v2"
	"net/http"
	"os"
	"path"
	"strings"
	"sync"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/encoding/protowire"
	googleproto "google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/stack-controller/stack-controller/internal/agent/agentpb"
)

// The modes in which the agent misbehaves. In any other mode it behaves like the real agent, but does not run anything.
const (
	modeInfo    = "info"    // GetInfo answers with millions of empty operations
	modeHang    = "hang"    // no call is answered
	modeFlap    = "flap"    // half of the calls fail, and states change a thousand times per second
	modeMessage = "message" // the message of an operation has 15 MiB
	modeChanges = "changes" // the changes of an operation are counted under two million names
	modeOutputs = "outputs" // an operation has two million outputs
	modeStream  = "stream"  // a watch gets the largest message again and again
	modeLie     = "lie"     // nothing in an answer makes sense
	modeRunning = "running" // an operation never ends
	modeTarpit  = "tarpit"  // the source is never read
	modeThief   = "thief"   // the controller's token is tried elsewhere
	modeTrailer = "trailer" // every call fails with an error of 8 MiB
	modeLargest = "largest" // each answer has the largest size that the controller accepts
)

// agent serves the protocol.
type agent struct {
	agentpb.UnimplementedAgentServer
	mode    string
	options map[string]string
	theft   sync.Once

	mu sync.Mutex
	// calls is how often each method was called.
	calls      map[string]int
	digest     string
	operations map[string]*agentpb.Operation
}

func newAgent(mode string, options map[string]string) *agent {
	return &agent{mode: mode, options: options, calls: map[string]int{}, operations: map[string]*agentpb.Operation{}}
}

// called counts the call, and returns the name of the method. On the first call of a method it prints the name, so that the attack can show
// that the agent was called.
func (a *agent) called(fullMethod string) string {
	method := path.Base(fullMethod)
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.calls[method]++; a.calls[method] == 1 {
		fmt.Println("CALLED", method)
	}
	return method
}

// intercept makes calls fail or hang, or replaces their answers.
func (a *agent) intercept(ctx context.Context, request any, info *grpc.UnaryServerInfo, handler grpc.UnaryHandler) (any, error) {
	method := a.called(info.FullMethod)
	switch a.mode {
	case modeThief:
		a.theft.Do(func() { go a.steal(tokenOf(ctx)) })
	case modeHang:
		<-ctx.Done()
		return nil, ctx.Err()
	case modeTrailer:
		return nil, status.Error(codes.Internal, strings.Repeat("x", 8<<20))
	case modeFlap:
		if rand.IntN(2) == 0 {
			return nil, status.Error(codes.Unavailable, "flapping")
		}
	}
	answer, err := handler(ctx, request)
	if err != nil {
		return nil, err
	}
	_, isOperation := answer.(*agentpb.Operation)
	switch {
	case a.mode == modeInfo && !isOperation:
		return flood(4, nil), nil
	case a.mode == modeMessage && isOperation:
		return encodedMessage(15 << 20), nil
	case a.mode == modeChanges && isOperation:
		return flood(6, distinctKey), nil
	case a.mode == modeOutputs && method == "GetOperation": // the only call whose answer has outputs
		return append(succeeded(), flood(10, distinctKey)...), nil
	case a.mode == modeLargest:
		return padded(answer, method)
	}
	return answer, nil
}

// interceptStream does the same for streams.
func (a *agent) interceptStream(server any, stream grpc.ServerStream, info *grpc.StreamServerInfo, handler grpc.StreamHandler) error {
	method := a.called(info.FullMethod)
	if a.mode == modeLargest {
		stream = &largestStream{stream, method}
	}
	return handler(server, stream)
}

// largestStream gives each message that is sent the largest allowed size.
type largestStream struct {
	grpc.ServerStream
	method string
}

// SendMsg implements grpc.ServerStream.
func (s *largestStream) SendMsg(message any) error {
	large, err := padded(message, s.method)
	if err != nil {
		return err
	}
	return s.ServerStream.SendMsg(large)
}

// tokenOf returns the token of the controller.
func tokenOf(ctx context.Context) string {
	incoming, _ := metadata.FromIncomingContext(ctx)
	return strings.TrimPrefix(strings.Join(incoming.Get("authorization"), ""), "Bearer ")
}

// GetInfo implements agentpb.AgentServer.
func (a *agent) GetInfo(context.Context, *agentpb.GetInfoRequest) (*agentpb.Info, error) {
	a.mu.Lock()
	defer a.mu.Unlock()
	info := &agentpb.Info{AgentVersion: "test", PulumiVersion: "v3.250.0", SourceDigest: a.digest}
	for _, operation := range a.operations {
		info.Operations = append(info.Operations, a.answer(operation))
	}
	if a.mode == modeLie {
		info.AgentVersion = strings.Repeat("v", 1<<16)
		if a.calls["GetInfo"]%2 == 1 {
			// The controller does not ask an agent without the source to start an operation.
			info.SourceDigest = "sha256:" + strings.Repeat("\u202e", 1<<12)
		}
		info.Operations = append(info.Operations, a.lie(""), a.lie("../../x"))
	}
	return info, nil
}

// PushSource implements agentpb.AgentServer.
func (a *agent) PushSource(stream grpc.ClientStreamingServer[agentpb.PushSourceRequest, agentpb.PushSourceResponse]) error {
	if a.mode == modeTarpit || a.mode == modeHang {
		<-stream.Context().Done()
		return stream.Context().Err()
	}
	for {
		request, err := stream.Recv()
		if errors.Is(err, io.EOF) {
			return stream.SendAndClose(&agentpb.PushSourceResponse{})
		}
		if err != nil {
			return err
		}
		if header := request.GetHeader(); header != nil {
			a.mu.Lock()
			a.digest = header.GetDigest()
			a.mu.Unlock()
		}
	}
}

// FetchSource implements agentpb.AgentServer.
func (a *agent) FetchSource(_ context.Context, request *agentpb.FetchSourceRequest) (*agentpb.FetchSourceResponse, error) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.digest = request.GetDigest()
	return &agentpb.FetchSourceResponse{}, nil
}

// PushPlan implements agentpb.AgentServer.
func (a *agent) PushPlan(stream grpc.ClientStreamingServer[agentpb.PushPlanRequest, agentpb.PushPlanResponse]) error {
	for {
		if _, err := stream.Recv(); errors.Is(err, io.EOF) {
			return stream.SendAndClose(&agentpb.PushPlanResponse{})
		} else if err != nil {
			return err
		}
	}
}

// GetPlan implements agentpb.AgentServer.
func (a *agent) GetPlan(_ *agentpb.GetPlanRequest, stream grpc.ServerStreamingServer[agentpb.PlanPart]) error {
	return stream.Send(&agentpb.PlanPart{})
}

// StartOperation implements agentpb.AgentServer.
func (a *agent) StartOperation(_ context.Context, request *agentpb.StartOperationRequest) (*agentpb.Operation, error) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if wanted := request.GetArtifact().GetDigest(); wanted != "" && wanted != a.digest {
		return nil, agentpb.Refuse(agentpb.ReasonSourceMissing, "push it first")
	}
	if known := a.operations[request.GetId()]; known != nil {
		return a.answer(known), nil
	}
	operation := &agentpb.Operation{
		Id: request.GetId(), Kind: request.GetKind(), State: agentpb.OperationState_OPERATION_STATE_RUNNING, StartTime: timestamppb.Now(),
	}
	a.operations[request.GetId()] = operation
	return a.answer(operation), nil
}

// GetOperation implements agentpb.AgentServer.
func (a *agent) GetOperation(_ context.Context, request *agentpb.GetOperationRequest) (*agentpb.Operation, error) {
	a.mu.Lock()
	defer a.mu.Unlock()
	operation := a.operations[request.GetId()]
	if operation == nil {
		return nil, status.Error(codes.NotFound, "not known")
	}
	if a.mode != modeRunning && a.mode != modeFlap && a.mode != modeStream {
		operation.State, operation.EndTime = agentpb.OperationState_OPERATION_STATE_SUCCEEDED, timestamppb.Now()
	}
	return a.answer(operation), nil
}

// WatchOperation implements agentpb.AgentServer.
func (a *agent) WatchOperation(request *agentpb.WatchOperationRequest, stream grpc.ServerStreamingServer[agentpb.Operation]) error {
	for {
		operation, err := a.GetOperation(stream.Context(), &agentpb.GetOperationRequest{Id: request.GetId()})
		if err != nil {
			return err
		}
		switch a.mode {
		case modeHang:
			<-stream.Context().Done()
			return stream.Context().Err()
		case modeStream:
			err = stream.SendMsg(encodedMessage(15 << 20))
		case modeMessage:
			err = stream.SendMsg(encodedMessage(15 << 20))
		case modeChanges:
			err = stream.SendMsg(flood(6, distinctKey))
		case modeFlap:
			err = stream.Send(&agentpb.Operation{Id: request.GetId(), Kind: operation.GetKind(), Message: fmt.Sprint(time.Now().UnixNano()),
				State: agentpb.OperationState(1 + time.Now().UnixMilli()%3), ResourceChanges: map[string]int64{"create": time.Now().UnixNano()}})
			time.Sleep(time.Millisecond)
		default:
			err = stream.Send(operation)
		}
		if err != nil || operation.GetState().Final() && a.mode != modeStream {
			return err
		}
		if a.mode == modeRunning {
			<-stream.Context().Done()
			return stream.Context().Err()
		}
	}
}

// CancelOperation implements agentpb.AgentServer.
func (a *agent) CancelOperation(ctx context.Context, request *agentpb.CancelOperationRequest) (*agentpb.Operation, error) {
	return a.GetOperation(ctx, &agentpb.GetOperationRequest{Id: request.GetId()})
}

// ForgetOperation implements agentpb.AgentServer.
func (a *agent) ForgetOperation(_ context.Context, request *agentpb.ForgetOperationRequest) (*agentpb.ForgetOperationResponse, error) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.mode != modeLie { // modeLie still has the operation in the next answer
		delete(a.operations, request.GetId())
	}
	return &agentpb.ForgetOperationResponse{}, nil
}

// answer returns the operation, or a lie about it.
func (a *agent) answer(operation *agentpb.Operation) *agentpb.Operation {
	if a.mode == modeLie {
		return a.lie(operation.GetId())
	}
	// The copy is encoded while the next call changes the stored operation.
	return googleproto.Clone(operation).(*agentpb.Operation)
}

// lie returns an operation without any valid value. It fits into the largest allowed answer, because the controller would not read a larger
// one.
func (a *agent) lie(id string) *agentpb.Operation {
	const long = 3 << 10
	return &agentpb.Operation{
		Id: id, Kind: 99, State: agentpb.OperationState_OPERATION_STATE_SUCCEEDED, Failure: 99,
		StartTime: &timestamppb.Timestamp{Seconds: math.MaxInt64, Nanos: -1}, EndTime: &timestamppb.Timestamp{Seconds: math.MinInt64},
		ResourceChanges: map[string]int64{"create\x00\n": math.MinInt64, strings.Repeat("k", long): math.MaxInt64},
		Message:         strings.Repeat("\x1b[31mReady\n", 2*long/11),
		Permalink:       "javascript:" + strings.Repeat("x", long),
		Outputs:         map[string]*agentpb.Output{"broken": {Value: []byte("{")}, "empty": {}, strings.Repeat("o", long): {Value: []byte("1")}},
		Project:         &agentpb.ProjectSource{Name: strings.Repeat("p", long) + "\n", Runtime: "../../bin/sh"},
		LockHolder:      &agentpb.LockHolder{User: strings.Repeat("u", long), Pid: -1},
	}
}

// callTime bounds a call to the agent of another tenant.
const callTime = 20 * time.Second

// targetVariable is the address of the other tenant's agent.
const targetVariable = "FAKE_TARGET"

// callAgent calls the agent at the address, with the token in the file if there is one, and prints the result.
func callAgent(ctx context.Context, args []string) error {
	if len(args) < 1 {
		return errors.New("usage: fakeagent call ADDRESS [TOKEN-FILE]")
	}
	token := ""
	if len(args) > 1 {
		content, err := os.ReadFile(args[1])
		if err != nil {
			return err
		}
		token = string(content)
	}
	fmt.Println("RESULT agent", ask(ctx, args[0], token))
	fmt.Println("RESULT end")
	return nil
}

// ask returns the code with which the agent answers GetInfo.
func ask(ctx context.Context, address, token string) string {
	ctx, cancel := context.WithTimeout(ctx, callTime)
	defer cancel()
	connection, err := grpc.NewClient("passthrough:///"+address, grpc.WithTransportCredentials(credentials.NewTLS(&tls.Config{
		// An attacker does not verify the identity of the server.
		InsecureSkipVerify: true,
		NextProtos:         []string{"h2"},
	})))
	if err != nil {
		return err.Error()
	}
	defer func() { _ = connection.Close() }()
	if token != "" {
		ctx = metadata.AppendToOutgoingContext(ctx, "authorization", "Bearer "+token)
	}
	_, err = agentpb.NewAgentClient(connection).GetInfo(ctx, &agentpb.GetInfoRequest{}, grpc.WaitForReady(true))
	return status.Code(err).String()
}

// steal tries the token of the controller at the API server and at the agent of another tenant.
func (a *agent) steal(token string) {
	ctx := context.Background()
	fmt.Println("RESULT token", len(token) > 0)
	fmt.Println("RESULT secrets", a.get(ctx, token, "/api/v1/secrets?limit=1"))
	fmt.Println("RESULT reviews", a.get(ctx, token, "/apis/auto.pulumi.com/v1alpha1/workspaces?limit=1"))
	fmt.Println("RESULT agent", ask(ctx, os.Getenv(targetVariable), token))
	fmt.Println("RESULT end")
}

// get returns the status of a request to the API server with the token.
func (a *agent) get(ctx context.Context, token, path string) string {
	ctx, cancel := context.WithTimeout(ctx, callTime)
	defer cancel()
	authorities := x509.NewCertPool()
	certificate, err := os.ReadFile(a.options["api-ca-file"])
	if err != nil {
		return err.Error()
	}
	authorities.AppendCertsFromPEM(certificate)
	server := "https://" + os.Getenv("KUBERNETES_SERVICE_HOST") + ":" + os.Getenv("KUBERNETES_SERVICE_PORT")
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, server+path, nil)
	if err != nil {
		return err.Error()
	}
	request.Header.Set("Authorization", "Bearer "+token)
	client := &http.Client{Transport: &http.Transport{TLSClientConfig: &tls.Config{RootCAs: authorities, MinVersion: tls.VersionTLS12}}}
	response, err := client.Do(request)
	if err != nil {
		return err.Error()
	}
	_, _ = io.Copy(io.Discard, io.LimitReader(response.Body, 1<<20))
	_ = response.Body.Close()
	return response.Status
}

// floodSize is a little less than the largest message, so that the other fields of an answer fit.
const floodSize = agentpb.MaxMessageSize - 4096

// flood returns a message in which the repeated field with the number has as many entries as fit. Without key, the entries are empty.
func flood(number protowire.Number, key func(i int) []byte) raw {
	var message []byte
	for i := 0; len(message) < floodSize; i++ {
		message = protowire.AppendTag(message, number, protowire.BytesType)
		if key == nil {
			message = protowire.AppendBytes(message, nil)
			continue
		}
		message = protowire.AppendBytes(message, key(i))
	}
	return message
}

// distinctKey returns an entry of a map with a key for the number.
func distinctKey(i int) []byte {
	entry := protowire.AppendTag(nil, 1, protowire.BytesType)
	return protowire.AppendBytes(entry, binary.BigEndian.AppendUint32(nil, spread(i)))
}

// spread returns a number with all bytes below 128, so that a key is valid text.
func spread(i int) uint32 {
	return uint32(i&0x7f | i>>7&0x7f<<8 | i>>14&0x7f<<16 | i>>21&0x7f<<24)
}

// encodedMessage returns a running operation with a message of the size in bytes.
func encodedMessage(size int) raw {
	encoded := protowire.AppendTag(nil, 3, protowire.VarintType)
	encoded = protowire.AppendVarint(encoded, uint64(agentpb.OperationState_OPERATION_STATE_RUNNING))
	encoded = protowire.AppendTag(encoded, 7, protowire.BytesType)
	return protowire.AppendBytes(encoded, bytes.Repeat([]byte("x"), size))
}

// succeeded returns the first field of an operation that succeeded: its state.
func succeeded() raw {
	encoded := protowire.AppendTag(nil, 3, protowire.VarintType)
	return protowire.AppendVarint(encoded, uint64(agentpb.OperationState_OPERATION_STATE_SUCCEEDED))
}

// allowed is the largest answer of each method that the controller accepts, in bytes.
var allowed = map[string]int{
	"GetInfo": agentpb.MaxInfoSize, "GetOperation": agentpb.MaxResultSize, "GetPlan": agentpb.MaxPlanPartSize,
	"StartOperation": agentpb.MaxOperationSize, "WatchOperation": agentpb.MaxOperationSize, "CancelOperation": agentpb.MaxOperationSize,
	"PushSource": agentpb.MaxEmptySize, "FetchSource": agentpb.MaxEmptySize, "PushPlan": agentpb.MaxEmptySize, "ForgetOperation": agentpb.MaxEmptySize,
}

// unknownField is the number of a field that no message has, and fieldHeader is the maximum size of its header, in bytes.
const (
	unknownField = 999
	fieldHeader  = 6
)

// padded returns the answer of the method with an unknown field, which fills it to its maximum size.
func padded(answer any, method string) (raw, error) {
	encoded, err := googleproto.Marshal(answer.(googleproto.Message))
	if err != nil {
		return nil, err
	}
	size := allowed[method] - len(encoded) - fieldHeader
	if size < 0 {
		return nil, fmt.Errorf("the answer of %s is larger than it may be", method)
	}
	encoded = protowire.AppendTag(encoded, unknownField, protowire.BytesType)
	return protowire.AppendBytes(encoded, bytes.Repeat([]byte("x"), size)), nil
}
