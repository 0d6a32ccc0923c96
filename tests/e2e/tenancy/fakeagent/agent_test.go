package main

import (
	"errors"
	"io"
	"net"
	"strings"
	"testing"

	. "github.com/onsi/gomega"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"

	"github.com/stack-controller/stack-controller/internal/agent/agentpb"
	"github.com/stack-controller/stack-controller/internal/agent/client"
)

// startAgent returns the address of an agent in the mode.
func startAgent(t *testing.T, mode string) (*agent, string) {
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	NewWithT(t).Expect(err).NotTo(HaveOccurred())
	served := newAgent(mode, nil)
	server := served.server()
	go func() { _ = server.Serve(listener) }()
	t.Cleanup(server.Stop)
	return served, listener.Addr().String()
}

func connect(t *testing.T, address string) *client.Client {
	connected, err := client.New(address, client.Options{})
	NewWithT(t).Expect(err).NotTo(HaveOccurred())
	t.Cleanup(func() { _ = connected.Close() })
	return connected
}

// methods calls an agent as the controller does, in an order in which all calls succeed.
var methods = []struct {
	name string
	call func(t *testing.T, agent *client.Client) error
}{
	{"GetInfo", func(t *testing.T, agent *client.Client) error { _, err := agent.GetInfo(t.Context()); return err }},
	{"PushSource", func(t *testing.T, agent *client.Client) error {
		return agent.PushSource(t.Context(), "d", 1, strings.NewReader("x"))
	}},
	{"FetchSource", func(t *testing.T, agent *client.Client) error {
		return agent.FetchSource(t.Context(), "d", "http://x.invalid")
	}},
	{"PushPlan", func(t *testing.T, agent *client.Client) error {
		return agent.PushPlan(t.Context(), "d", 1, strings.NewReader("x"))
	}},
	{"StartOperation", func(t *testing.T, agent *client.Client) error {
		_, err := agent.StartOperation(t.Context(), &agentpb.StartOperationRequest{Id: "a"})
		return err
	}},
	{"CancelOperation", func(t *testing.T, agent *client.Client) error {
		_, err := agent.CancelOperation(t.Context(), "a")
		return err
	}},
	{"WatchOperation", func(t *testing.T, agent *client.Client) error {
		_, err := agent.WatchOperation(t.Context(), "a", func(*agentpb.Operation) {})
		return err
	}},
	{"GetOperation", func(t *testing.T, agent *client.Client) error {
		_, err := agent.GetOperation(t.Context(), "a")
		return err
	}},
	{"GetPlan", func(t *testing.T, agent *client.Client) error {
		return agent.GetPlan(t.Context(), "a", io.Discard, io.Discard)
	}},
	{"ForgetOperation", func(t *testing.T, agent *client.Client) error { return agent.ForgetOperation(t.Context(), "a") }},
}

// served returns the names of all methods of the protocol.
func served() (names []string) {
	for _, method := range agentpb.Agent_ServiceDesc.Methods {
		names = append(names, method.MethodName)
	}
	for _, stream := range agentpb.Agent_ServiceDesc.Streams {
		names = append(names, stream.StreamName)
	}
	return names
}

// When a method is added to the protocol, this test fails until the agent answers the method.
func TestLargestAnswerOfEveryMethodIsTakenAndIsAtItsLimit(t *testing.T) {
	g := NewWithT(t)
	agent, address := startAgent(t, modeLargest)
	connected := connect(t, address)
	var called []string
	for _, method := range methods {
		called = append(called, method.name)
		g.Expect(method.call(t, connected)).To(Succeed(), method.name)
		agent.mu.Lock()
		g.Expect(agent.calls).To(HaveKeyWithValue(method.name, 1))
		agent.mu.Unlock()
		g.Expect(sizeOfAnswer(t, address, method.name)).To(BeNumerically("~", allowed[method.name], fieldHeader), method.name)
	}
	g.Expect(called).To(ConsistOf(served()))
	g.Expect(allowed).To(HaveLen(len(called)))
}

// bytesCodec sends a fixed message, and decodes a message to its size.
type bytesCodec struct{}

func (bytesCodec) Name() string                        { return "proto" }
func (bytesCodec) Marshal(any) ([]byte, error)         { return []byte{0x0a, 1, 'a'}, nil } // the id of an operation
func (bytesCodec) Unmarshal(data []byte, to any) error { *to.(*int) = len(data); return nil }

// sizeOfAnswer returns the size of the method's first answer, in bytes.
func sizeOfAnswer(t *testing.T, address, method string) (size int) {
	g := NewWithT(t)
	connection, err := grpc.NewClient(address, grpc.WithTransportCredentials(insecure.NewCredentials()))
	g.Expect(err).NotTo(HaveOccurred())
	defer func() { _ = connection.Close() }()
	stream, err := connection.NewStream(t.Context(), &grpc.StreamDesc{ClientStreams: true, ServerStreams: true},
		"/"+agentpb.Agent_ServiceDesc.ServiceName+"/"+method, grpc.ForceCodec(bytesCodec{}), grpc.MaxCallRecvMsgSize(agentpb.MaxMessageSize))
	g.Expect(err).NotTo(HaveOccurred())
	g.Expect(stream.SendMsg(nil)).To(Succeed())
	g.Expect(stream.CloseSend()).To(Succeed())
	g.Expect(stream.RecvMsg(&size)).To(Succeed(), method)
	return size
}

// The controller would not read a lie that is larger than an answer may be.
func TestLiesFitIntoAnAnswer(t *testing.T) {
	g := NewWithT(t)
	_, address := startAgent(t, modeLie)
	agent := connect(t, address)
	g.Expect(agent.GetInfo(t.Context())).To(HaveField("Operations", Not(BeEmpty())))
	g.Expect(agent.StartOperation(t.Context(), &agentpb.StartOperationRequest{Id: "a"})).To(HaveField("Message", Not(BeEmpty())))
	g.Expect(agent.GetOperation(t.Context(), "a")).To(HaveField("Outputs", Not(BeEmpty())))
}

// TestModesMisbehaveWhereTheySayTheyDo lists for each mode the calls in the order in which the controller makes them: true for those that
// the agent answers properly, false for the one that it is meant to spoil.
func TestModesMisbehaveWhereTheySayTheyDo(t *testing.T) {
	for mode, wanted := range map[string]map[string]bool{
		modeInfo:    {"GetInfo": false},
		modeTrailer: {"GetInfo": false},
		modeMessage: {"GetInfo": true, "StartOperation": false},
		modeChanges: {"GetInfo": true, "StartOperation": false},
		modeOutputs: {"GetInfo": true, "StartOperation": true, "WatchOperation": true, "GetOperation": false},
		modeStream:  {"GetInfo": true, "StartOperation": true, "WatchOperation": false, "GetOperation": true},
	} {
		t.Run(mode, func(t *testing.T) {
			g := NewWithT(t)
			_, address := startAgent(t, mode)
			agent := connect(t, address)
			for _, method := range methods {
				succeeds, tried := wanted[method.name]
				if !tried {
					continue
				}
				err := method.call(t, agent)
				g.Expect(err == nil).To(Equal(succeeds), "%s: %v", method.name, err)
				g.Expect(errors.Is(err, client.ErrNotFound)).To(BeFalse())
			}
		})
	}
}
