package server

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"time"

	"github.com/opencontainers/go-digest"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/stack-controller/stack-controller/internal/agent/proto"
	"github.com/stack-controller/stack-controller/internal/artifact/archive"
)

type pushStream = grpc.ClientStreamingServer[proto.PushSourceRequest, proto.PushSourceResponse]

// PushSource implements the call of the protocol.
func (s *Server) PushSource(stream pushStream) error {
	start := time.Now()
	header, err := s.sources.receiveHeader(stream)
	if err != nil {
		return err
	}
	if header.GetDigest() == s.sources.digest() {
		return stream.SendAndClose(&proto.PushSourceResponse{})
	}
	if s.engine.stopping() {
		return status.Error(codes.Unavailable, "the agent is stopping")
	}
	// Asked before the bytes travel; what counts is sources.use, once they are here.
	if id := s.engine.busy(); id != "" {
		return proto.Refuse(proto.ReasonBusy, fmt.Sprintf("operation %s is not done", id))
	}
	if err := s.sources.receive(stream, header); err != nil {
		return err
	}
	s.log.Info("source replaced", "digest", header.GetDigest(), "size", header.GetSize(), "duration", time.Since(start).Round(time.Millisecond).String())
	return stream.SendAndClose(&proto.PushSourceResponse{})
}

// receiveHeader reads the first message of a push.
func (s *sources) receiveHeader(stream pushStream) (*proto.SourceHeader, error) {
	first, err := stream.Recv()
	if err != nil {
		return nil, status.Error(codes.InvalidArgument, "the header of the source is missing")
	}
	header := first.GetHeader()
	switch {
	case header == nil:
		return nil, status.Error(codes.InvalidArgument, "the first message is not the header of a source")
	case digest.Digest(header.GetDigest()).Validate() != nil:
		return nil, status.Errorf(codes.InvalidArgument, "digest %q cannot be verified", clip(header.GetDigest(), 256))
	case header.GetSize() <= 0:
		return nil, status.Errorf(codes.InvalidArgument, "%d bytes are not the size of an archive", header.GetSize())
	case header.GetSize() > s.limits.MaxDownloadSize:
		return nil, status.Errorf(codes.ResourceExhausted, "the archive has %d bytes, more than the %d allowed", header.GetSize(), s.limits.MaxDownloadSize)
	}
	return header, nil
}

// receive makes the archive that follows the header the source.
func (s *sources) receive(stream pushStream, header *proto.SourceHeader) (err error) {
	if !s.receiving.TryLock() {
		return proto.Refuse(proto.ReasonBusy, "another source is arriving")
	}
	defer s.receiving.Unlock()
	if err := errors.Join(removeTree(s.root, incomingName), s.root.MkdirAll(incomingTree, 0o700)); err != nil {
		return status.Errorf(codes.Internal, "prepare for the source: %v", err)
	}
	defer func() {
		if removed := errors.Join(removeTree(s.root, incomingName), removeTree(s.root, oldName)); removed != nil {
			s.log.Warn("cannot remove what a push left behind", "error", removed.Error())
		}
	}()
	file, err := s.root.OpenFile(archiveFile, os.O_RDWR|os.O_CREATE|os.O_EXCL, 0o600)
	if err != nil {
		return status.Errorf(codes.Internal, "prepare for the source: %v", err)
	}
	defer file.Close()
	if err := receiveArchive(stream, header, file); err != nil {
		return err
	}
	if err := s.unpack(stream.Context(), file); err != nil {
		return err
	}
	if !s.use() {
		return proto.Refuse(proto.ReasonBusy, "an operation was started while the source arrived")
	}
	defer s.release()
	if err := s.replace(header.GetDigest()); err != nil {
		return status.Error(codes.Internal, err.Error())
	}
	return nil
}

// receiveArchive writes the chunks to the file and verifies that they are what the header says.
func receiveArchive(stream pushStream, header *proto.SourceHeader, file io.Writer) error {
	expected := digest.Digest(header.GetDigest())
	digester := expected.Algorithm().Digester()
	to := io.MultiWriter(file, digester.Hash())
	var received int64
	for {
		message, err := stream.Recv()
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			return err
		}
		chunk := message.GetChunk()
		received += int64(len(chunk))
		switch {
		case len(chunk) == 0 || len(chunk) > proto.MaxChunkSize:
			return status.Errorf(codes.InvalidArgument, "a chunk has 1 to %d bytes, not %d", proto.MaxChunkSize, len(chunk))
		case received > header.GetSize():
			return status.Errorf(codes.InvalidArgument, "the archive has more than the %d bytes announced", header.GetSize())
		}
		if _, err := to.Write(chunk); err != nil {
			return status.Errorf(codes.Internal, "store the archive: %v", err)
		}
	}
	if received < header.GetSize() {
		return status.Errorf(codes.InvalidArgument, "the archive has %d bytes, fewer than the %d announced", received, header.GetSize())
	}
	if computed := digester.Digest(); computed != expected {
		return status.Errorf(codes.DataLoss, "expected digest %s, computed %s", expected, computed)
	}
	return nil
}

// unpack unpacks the archive beside the source.
func (s *sources) unpack(ctx context.Context, file io.ReadSeeker) error {
	if _, err := file.Seek(0, io.SeekStart); err != nil {
		return status.Errorf(codes.Internal, "read the archive: %v", err)
	}
	err := archive.Unpack(ctx, file, filepath.Join(s.dir, incomingTree), s.limits)
	switch {
	case err == nil:
		return nil
	case errors.Is(err, archive.ErrTooLarge):
		return status.Error(codes.ResourceExhausted, err.Error())
	case errors.Is(err, archive.ErrInvalid):
		return status.Error(codes.InvalidArgument, err.Error())
	case ctx.Err() != nil:
		return status.FromContextError(ctx.Err()).Err()
	}
	return status.Errorf(codes.Internal, "unpack the archive: %v", err)
}
