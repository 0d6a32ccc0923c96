package server

import (
	"bytes"
	"context"
	"io"
	"strings"
	"testing"
	"time"
	"unicode/utf8"

	"github.com/opencontainers/go-digest"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	gproto "google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/stack-controller/stack-controller/internal/agent/agentpb"
	"github.com/stack-controller/stack-controller/internal/source/artifact/archive"
)

// FuzzStartRequest checks that a request which validate accepts keeps to the contract, and that a refusal quotes no value.
func FuzzStartRequest(f *testing.F) {
	const canary = "canary-s3cr3t-value"
	kinds := []agentpb.OperationKind{agentpb.OperationKind_OPERATION_KIND_UP, agentpb.OperationKind_OPERATION_KIND_DESTROY, 77, -1}
	for n, kind := range kinds {
		request := &agentpb.StartOperationRequest{
			Id: "0b5a1c2e-7a61-4f0e-9d65-9d1f3ad3c0de", Kind: kind, Stack: "org/app/dev",
			Source:  &agentpb.StartOperationRequest_Artifact{Artifact: &agentpb.ArtifactSource{Digest: "sha256:" + strings.Repeat("a", 64), Dir: "../../etc"}},
			Env:     []*agentpb.EnvironmentVariable{{Name: "TOKEN", Secret: true}},
			Config:  []*agentpb.ConfigItem{{Key: "app:token", Secret: true, Value: &agentpb.ConfigItem_Text{Text: canary}}},
			Timeout: durationpb.New(time.Hour), CancelGrace: &durationpb.Duration{Seconds: int64(n) * 1e15, Nanos: -1},
		}
		if n%2 == 1 {
			request.Id, request.Stack = canary+"\n", strings.Repeat("é", 300)
			request.Source = &agentpb.StartOperationRequest_Project{Project: &agentpb.ProjectSource{Name: "p"}}
			request.Options = &agentpb.OperationOptions{Parallel: -1}
		}
		seed, err := gproto.Marshal(request)
		if err != nil {
			f.Fatal(err)
		}
		f.Add(seed)
	}
	f.Add([]byte("\x0a\x01a\x10\x02\x1a\x01s"))
	f.Fuzz(func(t *testing.T, message []byte) {
		request := &agentpb.StartOperationRequest{}
		if gproto.Unmarshal(message, request) != nil {
			return
		}
		if err := validate(request); err != nil {
			answer := status.Convert(err)
			if answer.Code() != codes.InvalidArgument || len(answer.Message()) > 512 || !utf8.ValidString(answer.Message()) || strings.ContainsAny(answer.Message(), "\n\x00\x1b") {
				t.Fatalf("%s: %q", answer.Code(), answer.Message())
			}
			for _, item := range request.GetConfig() {
				if value := item.GetText(); len(value) > 12 && strings.Contains(answer.Message(), value) && !strings.Contains(request.GetId(), value) {
					t.Fatalf("%q shows %q", answer.Message(), value)
				}
			}
			return
		}
		if id := request.GetId(); len(id) > 64 || strings.ContainsAny(id, "./\\\x00") || request.GetSource() == nil || request.GetOptions().GetParallel() < 0 {
			t.Fatalf("accepted %v", request)
		}
		if request.GetTimeout().AsDuration() < 0 || request.GetCancelGrace().AsDuration() < 0 || len(request.GetStack()) > maxStackName {
			t.Fatalf("accepted %v", request)
		}
	})
}

// pieces is a stream of messages that a client sent.
type pieces struct {
	grpc.ServerStream
	messages []*agentpb.PushSourceRequest
}

func (p *pieces) Context() context.Context { return context.Background() }

func (p *pieces) SendAndClose(*agentpb.PushSourceResponse) error { return nil }

func (p *pieces) Recv() (*agentpb.PushSourceRequest, error) {
	if len(p.messages) == 0 {
		return nil, io.EOF
	}
	next := p.messages[0]
	p.messages = p.messages[1:]
	return next, nil
}

// FuzzPush checks that an archive is accepted exactly when its bytes are those that the header announces, whatever the sizes of the chunks.
func FuzzPush(f *testing.F) {
	f.Add([]byte("an archive"), "", int64(10), 3, 0)
	f.Add([]byte("an archive"), "", int64(10), 1, 4)
	f.Add([]byte("an archive"), "sha256:"+strings.Repeat("0", 64), int64(10), 100, 0)
	f.Add([]byte("an archive"), "md5:d41d8cd98f00b204e9800998ecf8427e", int64(10), 100, 0)
	f.Add([]byte("an archive"), "sha512:../../../../etc/passwd\n", int64(-1), 100, 0)
	f.Add([]byte{}, "", int64(0), 1, 0)
	f.Add([]byte("an archive"), "", int64(1)<<62, 1, 0)
	f.Add([]byte("an archive"), "", int64(9), 2, 0)
	s := &sources{limits: archive.Limits{MaxDownloadSize: 1 << 16}}
	f.Fuzz(func(t *testing.T, content []byte, announced string, size int64, piece, headerAt int) {
		right := digest.FromBytes(content)
		if announced == "" {
			announced = string(right)
		}
		stream := &pieces{}
		for rest := content; len(rest) > 0; {
			n := min(max(piece, 1), len(rest))
			stream.messages = append(stream.messages, &agentpb.PushSourceRequest{Message: &agentpb.PushSourceRequest_Chunk{Chunk: rest[:n]}})
			rest = rest[n:]
		}
		header := &agentpb.PushSourceRequest{Message: &agentpb.PushSourceRequest_Header{Header: &agentpb.SourceHeader{Digest: announced, Size: size}}}
		at := min(max(headerAt, 0), len(stream.messages))
		stream.messages = append(stream.messages[:at:at], append([]*agentpb.PushSourceRequest{header}, stream.messages[at:]...)...)

		var stored bytes.Buffer
		accepted, err := s.receiveHeader(stream)
		if err == nil {
			err = writeChunks(stream, accepted, &stored, "archive")
		}
		if err == nil && (at != 0 || int64(len(content)) != size || !bytes.Equal(stored.Bytes(), content) || digest.Digest(announced).Algorithm().FromBytes(content) != digest.Digest(announced)) {
			t.Fatalf("took %q for %d bytes of %s", stored.Bytes(), size, announced)
		}
		if err != nil && at == 0 && announced == string(right) && int64(len(content)) == size && size > 0 {
			t.Fatalf("refused %q: %v", content, err)
		}
		if int64(stored.Len()) > max(size, 0) {
			t.Fatalf("stored %d bytes of %d", stored.Len(), size)
		}
		if answer := status.Convert(err); err != nil && (len(answer.Message()) > 2048 || !utf8.ValidString(answer.Message()) || strings.ContainsAny(answer.Message(), "\n\x00\x1b")) {
			t.Fatalf("%q", answer.Message())
		}
	})
}
