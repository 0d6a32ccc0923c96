// Package client talks to the agent of one workspace. It adds to the generated code what every caller needs: bounded
// waiting, detection of dead connections, streaming of a source, and errors that a caller can decide on.
//
// The agent is not trusted: whoever owns its pod can replace it. What it can cost is bounded, for each connection and for all agents of one
// owner: the size of each answer and the number of fields in it before it is decoded, the speed at which it is read, the number of
// messages of a watch, and how long callers wait. Text is cut and made readable when it arrives.
package client

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"sync/atomic"
	"time"

	"golang.org/x/time/rate"
	"google.golang.org/grpc"
	"google.golang.org/grpc/backoff"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/keepalive"

	"github.com/stack-controller/stack-controller/internal/agent/proto"
)

const (
	// callTimeout bounds a unary call whose context has no earlier deadline. The agent answers from memory.
	callTimeout = 10 * time.Second
	// suspectTimeout is that of an agent that let the last call wait in vain.
	suspectTimeout = 3 * time.Second
	// idleTimeout closes a connection without calls; the next call opens it again. A controller has thousands of workspaces.
	idleTimeout = time.Minute
	// window is how much may be on its way to the controller on one connection, in bytes, beyond the message that it reads.
	window = 64 << 10
	// readBuffer is a part of the memory that each connection holds, in bytes.
	readBuffer = 8 << 10
	// maxHeaderSize bounds headers and trailers of an answer, in bytes. The message of an error is in there, twice.
	maxHeaderSize = 32 << 10
	// watchRate is how many messages per second are taken of a watch, after a burst of watchBurst. An agent sends 5 at most, and one more.
	watchRate  = 10
	watchBurst = 20
)

// Options say how to reach an agent.
type Options struct {
	// TransportCredentials encrypt the connection and prove who the agent is. Without them the connection is in clear,
	// which suits a unix socket only.
	TransportCredentials credentials.TransportCredentials
	// PerRPCCredentials prove to the agent who is calling.
	PerRPCCredentials credentials.PerRPCCredentials
	// Group is of the agents with the same owner. An agent without one is for itself.
	Group *Group
}

// Client calls one agent. It is safe for concurrent use; it connects when it is needed, and again after a loss.
type Client struct {
	connection *grpc.ClientConn
	agent      proto.AgentClient
	group      *Group
	// suspect says that the agent let the last call wait in vain.
	suspect atomic.Bool
}

// New returns a client for the agent at the address, "unix:/path/agent.sock" or "host:port". It does not connect yet:
// the only error is an address that can never work.
func New(address string, options Options) (*Client, error) {
	transport := options.TransportCredentials
	if transport == nil {
		transport = insecure.NewCredentials()
	}
	dial := []grpc.DialOption{
		grpc.WithTransportCredentials(transport),
		// The agent is inside the cluster or on this machine: a proxy from the environment is never on the way.
		grpc.WithNoProxy(),
		// There is no service configuration to look up.
		grpc.WithDisableServiceConfig(),
		grpc.WithIdleTimeout(idleTimeout),
		grpc.WithConnectParams(grpc.ConnectParams{
			Backoff:           backoff.Config{BaseDelay: 100 * time.Millisecond, Multiplier: 1.6, Jitter: 0.2, MaxDelay: 5 * time.Second},
			MinConnectTimeout: 5 * time.Second,
		}),
		// A dead peer is noticed within 30 s while a call is under way.
		grpc.WithKeepaliveParams(keepalive.ClientParameters{Time: 20 * time.Second, Timeout: 10 * time.Second}),
		grpc.WithDefaultCallOptions(grpc.MaxCallSendMsgSize(proto.MaxMessageSize)),
		grpc.WithContextDialer(dial),
		grpc.WithStaticStreamWindowSize(window),
		grpc.WithStaticConnWindowSize(window),
		grpc.WithReadBufferSize(readBuffer),
		grpc.WithMaxHeaderListSize(maxHeaderSize),
	}
	if options.PerRPCCredentials != nil {
		dial = append(dial, grpc.WithPerRPCCredentials(options.PerRPCCredentials))
	}
	connection, err := grpc.NewClient(address, dial...)
	if err != nil {
		return nil, fmt.Errorf("create client for agent %s: %w", address, err)
	}
	return &Client{connection: connection, agent: proto.NewAgentClient(connection), group: cmp.Or(options.Group, newGroup())}, nil
}

// Close ends the connection and every call that uses it.
func (c *Client) Close() error {
	return c.connection.Close()
}

// GetInfo returns what the agent is, which source it has, and which operations it knows.
func (c *Client) GetInfo(ctx context.Context) (*proto.Info, error) {
	info, err := call(ctx, c, "get agent info", infoAnswer, &proto.GetInfoRequest{}, c.agent.GetInfo)
	if err == nil {
		cleanInfo(info)
	}
	return info, err
}

// StartOperation starts the operation and returns at once. An operation with this id that the agent knows already is
// returned as it is. Decide on ErrSourceMissing, ErrPlanMissing, ErrBusy, ErrInvalid and ErrUnavailable.
func (c *Client) StartOperation(ctx context.Context, request *proto.StartOperationRequest) (*proto.Operation, error) {
	return cleaned(call(ctx, c, "start operation "+request.GetId(), operationAnswer, request, c.agent.StartOperation))
}

// GetOperation returns the operation, with its outputs when it succeeded. Decide on ErrNotFound and ErrUnavailable.
func (c *Client) GetOperation(ctx context.Context, id string) (*proto.Operation, error) {
	return cleaned(call(ctx, c, "get operation "+id, resultAnswer, &proto.GetOperationRequest{Id: id}, c.agent.GetOperation))
}

// CancelOperation asks the operation to end gracefully and does not wait for that. Repeating it changes nothing.
func (c *Client) CancelOperation(ctx context.Context, id string) (*proto.Operation, error) {
	return cleaned(call(ctx, c, "cancel operation "+id, operationAnswer, &proto.CancelOperationRequest{Id: id}, c.agent.CancelOperation))
}

// ForgetOperation removes what the agent stores of a final operation; an id that it does not know is fine. The error of an
// operation that is not final is ErrBusy.
func (c *Client) ForgetOperation(ctx context.Context, id string) error {
	_, err := call(ctx, c, "forget operation "+id, emptyAnswer, &proto.ForgetOperationRequest{Id: id}, c.agent.ForgetOperation)
	return err
}

// cleaned returns the operation fit to be shown.
func cleaned(operation *proto.Operation, err error) (*proto.Operation, error) {
	if err == nil {
		cleanOperation(operation)
	}
	return operation, err
}

// WatchOperation calls observe with the operation as it is now and after every change (some may be left out), and
// returns the operation, without outputs, once it is final. It ends earlier with ctx or when the connection is lost
// (ErrUnavailable), which says nothing about the operation: watch again. A slow observe does not hold up the agent, and an agent that sends too
// much is not read faster.
func (c *Client) WatchOperation(ctx context.Context, id string, observe func(*proto.Operation)) (*proto.Operation, error) {
	what := "watch operation " + id
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	options, refused := operationAnswer.options()
	stream, err := c.agent.WatchOperation(ctx, &proto.WatchOperationRequest{Id: id}, options...)
	if err != nil {
		return nil, wrap(ctx, what, err)
	}
	limiter := rate.NewLimiter(watchRate, watchBurst)
	for {
		operation, err := stream.Recv()
		switch {
		case errors.Is(err, io.EOF):
			return nil, &Error{What: what, Message: "the stream ended before the operation", Kind: ErrUnavailable}
		case err != nil:
			return nil, failure(ctx, what, *refused, err)
		}
		cleanOperation(operation)
		operation.Outputs = nil
		observe(operation)
		if operation.GetState().Final() {
			return operation, nil
		}
		if limiter.Wait(ctx) != nil {
			<-ctx.Done()
			return nil, fmt.Errorf("%s: %w", what, ctx.Err())
		}
	}
}
