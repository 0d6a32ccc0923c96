package client

import (
	"context"
	"errors"
	"fmt"
	"io"

	"github.com/stack-controller/stack-controller/internal/agent/agentpb"
)

// PushPlan delivers the compressed plan with this digest and size in bytes. Decide on ErrBusy, ErrDigestMismatch, ErrTooLarge, ErrInvalid
// and ErrUnavailable. An error of content itself is wrapped unchanged.
func (c *Client) PushPlan(ctx context.Context, digest string, size int64, content io.Reader) error {
	header := &agentpb.PushPlanRequest{Message: &agentpb.PushPlanRequest_Header{Header: &agentpb.PlanHeader{Digest: digest, Size: size}}}
	return push(ctx, c, "push plan", c.agent.PushPlan, header, "read the plan", content, func(chunk []byte) *agentpb.PushPlanRequest {
		return &agentpb.PushPlanRequest{Message: &agentpb.PushPlanRequest_Chunk{Chunk: chunk}}
	})
}

// GetPlan writes the plan that the operation saved to the writers: Pulumi's file, which may be empty, and then the changes as text, both
// compressed. It writes no more than the limits of a plan. Decide on ErrNotFound, ErrTooLarge and ErrUnavailable. An error of a writer is
// wrapped unchanged.
func (c *Client) GetPlan(ctx context.Context, id string, file, text io.Writer) error {
	what := "get plan of operation " + id
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	options, refused := planAnswer.options()
	stream, err := c.agent.GetPlan(ctx, &agentpb.GetPlanRequest{Id: id}, options...)
	if err != nil {
		return c.failure(ctx, what, nil, err)
	}
	first, err := stream.Recv()
	if err != nil {
		return c.failure(ctx, what, *refused, err)
	}
	if first.GetFileSize() < 0 || first.GetTextSize() < 0 || first.GetFileSize() > agentpb.MaxPlanSize || first.GetTextSize() > agentpb.MaxPlanText {
		return &Error{What: what, Message: "the plan has more bytes than a plan may have", Kind: ErrTooLarge}
	}
	left := first.GetFileSize() + first.GetTextSize()
	ofFile := first.GetFileSize()
	for {
		part, err := stream.Recv()
		if errors.Is(err, io.EOF) && left == 0 {
			return nil
		}
		if errors.Is(err, io.EOF) {
			return &Error{What: what, Message: fmt.Sprintf("%d bytes of the plan are missing", left), Kind: errBadAnswer}
		}
		if err != nil {
			return c.failure(ctx, what, *refused, err)
		}
		chunk := part.GetChunk()
		if left -= int64(len(chunk)); left < 0 || len(chunk) == 0 {
			return &Error{What: what, Message: "the plan has another size than announced", Kind: errBadAnswer}
		}
		begin := chunk[:min(ofFile, int64(len(chunk)))]
		ofFile -= int64(len(begin))
		for _, one := range []struct {
			to      io.Writer
			content []byte
		}{{file, begin}, {text, chunk[len(begin):]}} {
			if len(one.content) == 0 {
				continue
			}
			if _, err := one.to.Write(one.content); err != nil {
				return fmt.Errorf("%s: %w", what, err)
			}
		}
	}
}
