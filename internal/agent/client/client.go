// Package client calls the agent of a workspace. It adds to the generated code what every caller needs: bounded waiting, detection of dead
// connections, streaming of a source, and errors that a caller can decide on.
//
// The agent is not trusted, because the owner of its pod can replace it. What it can cost is bounded, for each connection and for all
// agents of one owner: the size of each answer and the number of its fields, before the answer is decoded; the speed at which answers are
// read; the number of messages of a watch; and how long callers wait. Text is shortened and made readable when it is received.
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

	"github.com/stack-controller/stack-controller/internal/agent/agentpb"
)

const (
	// callTimeout bounds a unary call whose context has no earlier deadline. The agent answers from memory.
	callTimeout = 10 * time.Second
	// suspectTimeout is the timeout of a call to an agent whose last call waited and failed.
	suspectTimeout = 3 * time.Second
	// idleTimeout closes a connection without calls; the next call opens it again. A controller has thousands of workspaces.
	idleTimeout = time.Minute
	// window is how many bytes may be in flight to the controller on one connection, in addition to the message that the controller reads.
	window = 64 << 10
	// readBuffer is the size of the read buffer of each connection, in bytes.
	readBuffer = 8 << 10
	// maxHeaderSize bounds headers and trailers of an answer, in bytes. The message of an error is in there, twice.
	maxHeaderSize = 32 << 10
	// watchRate is how many messages per second are read from a watch, after a burst of watchBurst. An agent sends at most 5 per second, and
	// the final one.
	watchRate  = 10
	watchBurst = 20
)

// Options configure how to connect to an agent.
type Options struct {
	// TransportCredentials encrypt the connection and authenticate the agent. Without them, the connection is not encrypted, which is only
	// suitable for a unix socket.
	TransportCredentials credentials.TransportCredentials
	// PerRPCCredentials authenticate the caller to the agent.
	PerRPCCredentials credentials.PerRPCCredentials
	// Rejected, if set, is called after a call that ended because nobody knows the caller: its credentials may have been revoked before their time.
	Rejected func()
	// Group is the group of the agents with the same owner. If it is nil, the agent has a group of its own.
	Group *Group
}

// Client calls one agent. It is safe for concurrent use. It connects when a call needs it, and reconnects after a connection is lost.
type Client struct {
	connection *grpc.ClientConn
	agent      agentpb.AgentClient
	group      *Group
	rejected   func()
	// suspect is true if the last call to the agent waited and failed.
	suspect atomic.Bool
}

// New returns a client for the agent at the address, "unix:/path/agent.sock" or "host:port". It does not connect yet, and fails only for an
// address that can never work.
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
		grpc.WithDefaultCallOptions(grpc.MaxCallSendMsgSize(agentpb.MaxMessageSize)),
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
	rejected := options.Rejected
	if rejected == nil {
		rejected = func() {}
	}
	return &Client{
		connection: connection, agent: agentpb.NewAgentClient(connection), group: cmp.Or(options.Group, newGroup()), rejected: rejected,
	}, nil
}

// Close ends the connection and every call that uses it.
func (c *Client) Close() error {
	return c.connection.Close()
}

// GetInfo returns the versions of the agent and of pulumi, the source that the agent has, and its operations.
func (c *Client) GetInfo(ctx context.Context) (*agentpb.Info, error) {
	info, err := call(ctx, c, "get agent info", infoAnswer, &agentpb.GetInfoRequest{}, c.agent.GetInfo)
	if err == nil {
		cleanInfo(info)
	}
	return info, err
}

// StartOperation starts the operation and returns at once. If the agent already knows an operation with this id, it returns that operation
// unchanged. Decide on ErrSourceMissing, ErrPlanMissing, ErrBusy, ErrInvalid and ErrUnavailable.
func (c *Client) StartOperation(ctx context.Context, request *agentpb.StartOperationRequest) (*agentpb.Operation, error) {
	return cleaned(call(ctx, c, "start operation "+request.GetId(), operationAnswer, request, c.agent.StartOperation))
}

// GetOperation returns the operation, with its outputs when it succeeded. Decide on ErrNotFound and ErrUnavailable.
func (c *Client) GetOperation(ctx context.Context, id string) (*agentpb.Operation, error) {
	return cleaned(call(ctx, c, "get operation "+id, resultAnswer, &agentpb.GetOperationRequest{Id: id}, c.agent.GetOperation))
}

// CancelOperation asks the operation to end gracefully, and does not wait for its end. It may be repeated.
func (c *Client) CancelOperation(ctx context.Context, id string) (*agentpb.Operation, error) {
	return cleaned(call(ctx, c, "cancel operation "+id, operationAnswer, &agentpb.CancelOperationRequest{Id: id}, c.agent.CancelOperation))
}

// ForgetOperation removes what the agent stores for a final operation. An unknown id is not an error. For an operation that is not final,
// the error is ErrBusy.
func (c *Client) ForgetOperation(ctx context.Context, id string) error {
	_, err := call(ctx, c, "forget operation "+id, emptyAnswer, &agentpb.ForgetOperationRequest{Id: id}, c.agent.ForgetOperation)
	return err
}

// cleaned returns the operation after cleanOperation.
func cleaned(operation *agentpb.Operation, err error) (*agentpb.Operation, error) {
	if err == nil {
		cleanOperation(operation)
	}
	return operation, err
}

// WatchOperation calls observe with the current operation and after every change (some may be left out), and returns the operation, without
// outputs, once it is final. It returns earlier when ctx is done or the connection is lost (ErrUnavailable). That means nothing for the
// operation: watch again. A slow observe does not delay the agent, and an agent that sends too many messages is read no faster than
// watchRate.
func (c *Client) WatchOperation(ctx context.Context, id string, observe func(*agentpb.Operation)) (*agentpb.Operation, error) {
	what := "watch operation " + id
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	options, refused := operationAnswer.options()
	stream, err := c.agent.WatchOperation(ctx, &agentpb.WatchOperationRequest{Id: id}, options...)
	if err != nil {
		return nil, c.failure(ctx, what, nil, err)
	}
	limiter := rate.NewLimiter(watchRate, watchBurst)
	for {
		operation, err := stream.Recv()
		switch {
		case errors.Is(err, io.EOF):
			return nil, &Error{What: what, Message: "the stream ended before the operation", Kind: ErrUnavailable}
		case err != nil:
			return nil, c.failure(ctx, what, *refused, err)
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
