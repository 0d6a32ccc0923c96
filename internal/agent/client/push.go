package client

import (
	"context"
	"errors"
	"fmt"
	"io"
	"time"

	"google.golang.org/grpc"

	"github.com/stack-controller/stack-controller/internal/agent/agentpb"
)

// chunkSize, in bytes, balances the number of messages against memory: gRPC may hold on to a few of them.
const chunkSize = 128 << 10

// pushTimeout bounds a push whose context has no earlier deadline: delivery, verification and unpacking.
const pushTimeout = 10 * time.Minute

// PushSource delivers the tarball with this digest and size in bytes, and returns once the agent has unpacked it. If the agent already has
// it, nothing is read from content. Decide on ErrBusy, ErrDigestMismatch, ErrTooLarge, ErrInvalid (an unusable archive) and ErrUnavailable.
// An error of content itself is wrapped unchanged.
func (c *Client) PushSource(ctx context.Context, digest string, size int64, content io.Reader) error {
	header := &agentpb.PushSourceRequest{Message: &agentpb.PushSourceRequest_Header{Header: &agentpb.SourceHeader{Digest: digest, Size: size}}}
	return push(ctx, c, "push source "+digest, c.agent.PushSource, header, "read the artifact", content, func(chunk []byte) *agentpb.PushSourceRequest {
		return &agentpb.PushSourceRequest{Message: &agentpb.PushSourceRequest_Chunk{Chunk: chunk}}
	})
}

// push streams the header, and the content in chunks until its end or until the agent has answered. reading describes the content in
// errors.
func push[Request, Response any](
	ctx context.Context, c *Client, what string, method func(context.Context, ...grpc.CallOption) (grpc.ClientStreamingClient[Request, Response], error),
	header *Request, reading string, content io.Reader, message func(chunk []byte) *Request,
) error {
	bounded, cancel := context.WithTimeout(ctx, pushTimeout)
	defer cancel()
	options, refused := emptyAnswer.options()
	stream, err := method(bounded, options...)
	if err != nil {
		return c.failure(ctx, what, nil, err)
	}
	// After a failed Send, CloseAndRecv returns the agent's answer, whether it is an error or not.
	if stream.Send(header) == nil {
		if err := eachChunk(content, func(chunk []byte) error { return stream.Send(message(chunk)) }); err != nil {
			return fmt.Errorf("%s: %s: %w", what, reading, err)
		}
	}
	_, err = stream.CloseAndRecv()
	return c.failure(ctx, what, *refused, err)
}

// FetchSource makes the agent download the tarball with this digest from the URL, and returns once the agent has unpacked it. Decide on the
// errors of PushSource, and on ErrFetchFailed.
func (c *Client) FetchSource(ctx context.Context, digest, url string) error {
	bounded, cancel := context.WithTimeout(ctx, pushTimeout)
	defer cancel()
	what := "fetch source " + digest
	options, refused := emptyAnswer.options()
	_, err := c.agent.FetchSource(bounded, &agentpb.FetchSourceRequest{Digest: digest, Url: url}, options...)
	return c.failure(ctx, what, *refused, err)
}

// eachChunk sends the content in chunks, until its end or until a chunk cannot be sent. It returns only errors of content.
func eachChunk(content io.Reader, send func(chunk []byte) error) error {
	for {
		// A message must not be changed after it was sent, so every chunk has a buffer of its own.
		buffer := make([]byte, chunkSize)
		n, err := io.ReadFull(content, buffer)
		if n > 0 && send(buffer[:n]) != nil {
			return nil
		}
		if errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) {
			return nil
		}
		if err != nil {
			return err
		}
	}
}
