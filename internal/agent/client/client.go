// Package client talks to the agent of one workspace. It adds to the generated code what every caller needs: bounded
// waiting, detection of dead connections, streaming of a source, and errors that a caller can decide on.
package client

import (
	"context"
	"errors"
	"fmt"
	"io"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/backoff"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/keepalive"

	"github.com/stack-controller/stack-controller/internal/agent/proto"
)

// callTimeout bounds a unary call whose context has no earlier deadline. The agent answers from memory.
const callTimeout = 10 * time.Second

// idleTimeout closes a connection without calls; the next call opens it again. A controller has thousands of workspaces.
const idleTimeout = time.Minute

// Options say how to reach an agent.
type Options struct {
	// TransportCredentials encrypt the connection and prove who the agent is. Without them the connection is in clear,
	// which suits a unix socket only.
	TransportCredentials credentials.TransportCredentials
	// PerRPCCredentials prove to the agent who is calling.
	PerRPCCredentials credentials.PerRPCCredentials
}

// Client calls one agent. It is safe for concurrent use; it connects when it is needed, and again after a loss.
type Client struct {
	connection *grpc.ClientConn
	agent      proto.AgentClient
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
		grpc.WithDefaultCallOptions(grpc.MaxCallRecvMsgSize(proto.MaxMessageSize), grpc.MaxCallSendMsgSize(proto.MaxMessageSize)),
	}
	if options.PerRPCCredentials != nil {
		dial = append(dial, grpc.WithPerRPCCredentials(options.PerRPCCredentials))
	}
	connection, err := grpc.NewClient(address, dial...)
	if err != nil {
		return nil, fmt.Errorf("create client for agent %s: %w", address, err)
	}
	return &Client{connection: connection, agent: proto.NewAgentClient(connection)}, nil
}

// Close ends the connection and every call that uses it.
func (c *Client) Close() error {
	return c.connection.Close()
}

// GetInfo tells what the agent is, which source it has, and which operations it knows.
func (c *Client) GetInfo(ctx context.Context) (*proto.Info, error) {
	return call(ctx, "get agent info", &proto.GetInfoRequest{}, c.agent.GetInfo)
}

// StartOperation starts the operation and returns at once. An operation with this id that the agent knows already is
// returned as it is. Decide on ErrSourceMissing, ErrBusy, ErrInvalid and ErrUnavailable.
func (c *Client) StartOperation(ctx context.Context, request *proto.StartOperationRequest) (*proto.Operation, error) {
	return call(ctx, "start operation "+request.GetId(), request, c.agent.StartOperation)
}

// GetOperation returns the operation, with its outputs when it succeeded. Decide on ErrNotFound and ErrUnavailable.
func (c *Client) GetOperation(ctx context.Context, id string) (*proto.Operation, error) {
	return call(ctx, "get operation "+id, &proto.GetOperationRequest{Id: id}, c.agent.GetOperation)
}

// CancelOperation asks the operation to end gracefully and does not wait for that. Repeating it changes nothing.
func (c *Client) CancelOperation(ctx context.Context, id string) (*proto.Operation, error) {
	return call(ctx, "cancel operation "+id, &proto.CancelOperationRequest{Id: id}, c.agent.CancelOperation)
}

// ForgetOperation removes what the agent stores of a final operation; an id that it does not know is fine. The error of an
// operation that is not final is ErrBusy.
func (c *Client) ForgetOperation(ctx context.Context, id string) error {
	_, err := call(ctx, "forget operation "+id, &proto.ForgetOperationRequest{Id: id}, c.agent.ForgetOperation)
	return err
}

// WatchOperation calls observe with the operation as it is now and after every change (some may be left out), and
// returns the operation, without outputs, once it is final. It ends earlier with ctx or when the connection is lost
// (ErrUnavailable), which says nothing about the operation: watch again. A slow observe does not hold up the agent.
func (c *Client) WatchOperation(ctx context.Context, id string, observe func(*proto.Operation)) (*proto.Operation, error) {
	const what = "watch operation "
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	stream, err := c.agent.WatchOperation(ctx, &proto.WatchOperationRequest{Id: id})
	if err != nil {
		return nil, wrap(ctx, what+id, err)
	}
	for {
		operation, err := stream.Recv()
		if errors.Is(err, io.EOF) {
			return nil, &Error{What: what + id, Message: "the stream ended before the operation", Kind: ErrUnavailable}
		}
		if err != nil {
			return nil, wrap(ctx, what+id, err)
		}
		observe(operation)
		if operation.GetState().Final() {
			return operation, nil
		}
	}
}

// call makes one unary call with a deadline.
func call[Request, Response any](
	ctx context.Context, what string, request Request,
	method func(context.Context, Request, ...grpc.CallOption) (Response, error),
) (Response, error) {
	bounded, cancel := context.WithTimeout(ctx, callTimeout)
	defer cancel()
	response, err := method(bounded, request)
	if err != nil {
		var none Response
		return none, wrap(ctx, what, err)
	}
	return response, nil
}
