package server

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/url"
	"os"
	"path/filepath"
	"time"

	"github.com/opencontainers/go-digest"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/stack-controller/stack-controller/internal/agent/agentpb"
	"github.com/stack-controller/stack-controller/internal/plaintext"
	"github.com/stack-controller/stack-controller/internal/source/artifact/archive"
	"github.com/stack-controller/stack-controller/internal/source/artifact/download"
)

const (
	// fetchTimeout bounds a download with all its tries, when the caller does not end it earlier.
	fetchTimeout = 5 * time.Minute
	// fetchRetries is how often a download is tried again at once. After that, the controller repeats the call later.
	fetchRetries = 2
	// maxURLLength bounds the URL of an archive, in bytes.
	maxURLLength = 4 << 10
)

type pushStream = grpc.ClientStreamingServer[agentpb.PushSourceRequest, agentpb.PushSourceResponse]

// PushSource implements the call of the protocol.
func (s *Server) PushSource(stream pushStream) error {
	header, err := s.sources.receiveHeader(stream)
	if err != nil {
		return err
	}
	err = s.replaceSource(stream.Context(), header.GetDigest(), func() (*os.File, error) { return s.sources.receiveArchive(stream, header) })
	if err != nil {
		return err
	}
	return stream.SendAndClose(&agentpb.PushSourceResponse{})
}

// replaceSource makes the archive with the digest the source, unless it already is. bring puts the verified archive into the directory for
// incoming files.
func (s *Server) replaceSource(ctx context.Context, digest string, bring func() (*os.File, error)) error {
	start := time.Now()
	if digest == s.sources.digest() {
		return nil
	}
	// This check is early, before the archive is transferred. The check that counts is sources.use, once the archive is here.
	s.executor.mu.Lock()
	err := s.executor.occupied()
	s.executor.mu.Unlock()
	if err != nil {
		return err
	}
	if err := s.sources.receive(ctx, digest, bring); err != nil {
		return err
	}
	s.log.Info("source replaced", "digest", digest, "duration", time.Since(start).Round(time.Millisecond).String())
	return nil
}

// receiveHeader reads the first message of a push.
func (s *sources) receiveHeader(stream pushStream) (*agentpb.SourceHeader, error) {
	first, err := stream.Recv()
	if err != nil {
		return nil, status.Error(codes.InvalidArgument, "the header of the source is missing")
	}
	header := first.GetHeader()
	if header == nil {
		return nil, status.Error(codes.InvalidArgument, "the first message is not the header of a source")
	}
	return header, checkHeader(header, "archive", s.limits.MaxDownloadSize)
}

// checkHeader refuses a header without a valid digest, and a size of more bytes than the limit. what names the content in error messages.
func checkHeader(header announcement, what string, limit int64) error {
	switch {
	case digest.Digest(header.GetDigest()).Validate() != nil:
		return status.Errorf(codes.InvalidArgument, "digest %q of the %s cannot be verified", plaintext.Cut(header.GetDigest(), 256), what)
	case header.GetSize() <= 0:
		return status.Errorf(codes.InvalidArgument, "%d bytes are not the size of the %s", header.GetSize(), what)
	case header.GetSize() > limit:
		return status.Errorf(codes.ResourceExhausted, "the %s has %d bytes, more than the %d allowed", what, header.GetSize(), limit)
	}
	return nil
}

// receive makes the archive that bring returns the source.
func (s *sources) receive(ctx context.Context, digest string, bring func() (*os.File, error)) error {
	if !s.receiving.TryLock() {
		return agentpb.Refuse(agentpb.ReasonBusy, "another source is arriving")
	}
	defer s.receiving.Unlock()
	if err := errors.Join(removeTree(s.root, incomingName), s.root.MkdirAll(incomingTree, 0o700)); err != nil {
		return status.Errorf(codes.Internal, "prepare for the source: %v", err)
	}
	defer func() {
		if removed := errors.Join(removeTree(s.root, incomingName), s.discardOld()); removed != nil {
			s.log.Warn("cannot remove what a push left behind", "error", removed.Error())
		}
	}()
	file, err := bring()
	if err != nil {
		return err
	}
	defer file.Close()
	if err := s.unpack(ctx, file); err != nil {
		return err
	}
	if err := s.linkMounts(); err != nil {
		return status.Errorf(codes.InvalidArgument, "the source has no place for %v", err)
	}
	if !s.use() {
		return agentpb.Refuse(agentpb.ReasonBusy, "an operation was started while the source arrived")
	}
	defer s.release()
	if err := s.replace(digest); err != nil {
		return status.Error(codes.Internal, err.Error())
	}
	return nil
}

// receiveArchive writes the chunks to a file and verifies them against the header.
func (s *sources) receiveArchive(stream pushStream, header *agentpb.SourceHeader) (*os.File, error) {
	file, err := s.root.OpenFile(archiveFile, os.O_RDWR|os.O_CREATE|os.O_EXCL, 0o600)
	if err != nil {
		return nil, status.Errorf(codes.Internal, "prepare for the source: %v", err)
	}
	if err := writeChunks(stream, header, file, "archive"); err != nil {
		file.Close()
		return nil, err
	}
	return file, nil
}

// announcement describes the content that follows: its digest, and its size in bytes.
type announcement interface {
	GetDigest() string
	GetSize() int64
}

// writeChunks writes the chunks to the file and verifies them against the header. what names the content in error messages.
func writeChunks[Message interface{ GetChunk() []byte }](
	stream interface{ Recv() (Message, error) }, header announcement, file io.Writer, what string,
) error {
	expected, size := digest.Digest(header.GetDigest()), header.GetSize()
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
		case len(chunk) == 0 || len(chunk) > agentpb.MaxChunkSize:
			return status.Errorf(codes.InvalidArgument, "a chunk has 1 to %d bytes, not %d", agentpb.MaxChunkSize, len(chunk))
		case received > size:
			return status.Errorf(codes.InvalidArgument, "the %s has more than the %d bytes announced", what, size)
		}
		if _, err := to.Write(chunk); err != nil {
			return status.Errorf(codes.Internal, "store the %s: %v", what, err)
		}
	}
	if received < size {
		return status.Errorf(codes.InvalidArgument, "the %s has %d bytes, fewer than the %d announced", what, received, size)
	}
	if computed := digester.Digest(); computed != expected {
		return status.Errorf(codes.DataLoss, "expected digest %s, computed %s", expected, computed)
	}
	return nil
}

// unpack unpacks the archive into a directory beside the source.
func (s *sources) unpack(ctx context.Context, file io.ReadSeeker) error {
	if _, err := file.Seek(0, io.SeekStart); err != nil {
		return status.Errorf(codes.Internal, "read the archive: %v", err)
	}
	leftOut, err := archive.Unpack(ctx, file, filepath.Join(s.dir, incomingTree), s.limits)
	if err == nil {
		err = s.keepLeftOut(leftOut)
	}
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

// FetchSource implements the call of the protocol.
func (s *Server) FetchSource(ctx context.Context, request *agentpb.FetchSourceRequest) (*agentpb.FetchSourceResponse, error) {
	wanted := digest.Digest(request.GetDigest())
	if wanted.Validate() != nil {
		return nil, status.Errorf(codes.InvalidArgument, "digest %q cannot be verified", plaintext.Cut(request.GetDigest(), 256))
	}
	from, err := url.Parse(request.GetUrl())
	if err != nil || from.Host == "" || from.Scheme != "http" && from.Scheme != "https" || len(request.GetUrl()) > maxURLLength {
		return nil, status.Error(codes.InvalidArgument, "the URL of the artifact is not an absolute one of http or https")
	}
	err = s.replaceSource(ctx, wanted.String(), func() (*os.File, error) { return s.sources.download(ctx, from, wanted) })
	if err != nil {
		return nil, err
	}
	return &agentpb.FetchSourceResponse{}, nil
}

// tlsAdvice is for an artifact server that has mutual TLS. Agents have no identity for it, and do not get that of the controller: they run
// the programs of tenants.
const tlsAdvice = "a server that requires mutual TLS answers plain HTTP so, and workspaces have no identity for it; " +
	"use a Stack, or an Update with spec.stackRef, whose artifacts the controller fetches"

// download downloads the archive. Its error messages contain only scheme, host and path of the URL.
func (s *sources) download(ctx context.Context, from *url.URL, wanted digest.Digest) (*os.File, error) {
	shown := (&url.URL{Scheme: from.Scheme, Host: from.Host, Path: from.Path}).String()
	downloads := download.New(download.Options{
		MaxSize: s.limits.MaxDownloadSize, Retries: fetchRetries, Timeout: fetchTimeout, Redirects: true, TLSAdvice: tlsAdvice,
	})
	path, err := downloads.Fetch(ctx, from.String(), wanted, filepath.Join(s.dir, incomingName))
	switch {
	case errors.Is(err, download.ErrTooLarge):
		return nil, status.Errorf(codes.ResourceExhausted, "fetch artifact %s: %v", shown, err)
	case errors.Is(err, download.ErrDigestMismatch):
		return nil, status.Errorf(codes.DataLoss, "fetch artifact %s: %v", shown, err)
	case ctx.Err() != nil:
		return nil, status.FromContextError(ctx.Err()).Err()
	case err != nil:
		return nil, agentpb.Refuse(agentpb.ReasonFetchFailed, fmt.Sprintf("fetch artifact %s: %v", shown, err))
	}
	file, err := os.Open(path)
	if err != nil {
		return nil, status.Errorf(codes.Internal, "read the archive: %v", err)
	}
	return file, nil
}
