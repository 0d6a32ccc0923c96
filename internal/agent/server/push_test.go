package server

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"testing/iotest"

	. "github.com/onsi/gomega"
	"github.com/opencontainers/go-digest"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"

	"github.com/stack-controller/stack-controller/internal/agent/agentpb"
	"github.com/stack-controller/stack-controller/internal/agent/client"
)

func TestADeliveredSourceIsWhatAnOperationRuns(t *testing.T) {
	a := startAgent(t, t.TempDir())
	source := pack(t, map[string]string{"Pulumi.yaml": projectYAML, "infra/Pulumi.yaml": projectYAML})
	a.Expect(a.StartOperation(t.Context(), update("a", source.digest, ""))).Error().To(MatchError(client.ErrSourceMissing))

	a.Expect(a.push(source)).To(Succeed())
	a.Expect(a.GetInfo(t.Context())).To(HaveField("SourceDigest", source.digest))
	started := a.startRequest(update("a", source.digest, "infra"))
	a.Expect(started.project).To(Equal(filepath.Join(a.dir, "source", "infra")))
	a.Expect(os.ReadFile(filepath.Join(started.project, "Pulumi.yaml"))).To(BeEquivalentTo(projectYAML))
	a.finish("a", &agentpb.Operation{State: succeeded})

	// An operation of another artifact does not run this one.
	_, err := a.StartOperation(t.Context(), update("b", digest.FromString("other").String(), ""))
	a.Expect(err).To(MatchError(client.ErrSourceMissing))
}

func TestASourceThatIsThereIsNotDeliveredAgain(t *testing.T) {
	a := startAgent(t, t.TempDir())
	source := pack(t, map[string]string{"Pulumi.yaml": projectYAML})
	a.Expect(a.push(source)).To(Succeed())
	a.start("a") // Not even while an operation runs.
	err := a.PushSource(t.Context(), source.digest, int64(len(source.content)), neverEnding{})
	a.Expect(err).NotTo(HaveOccurred())
	a.finish("a", &agentpb.Operation{State: succeeded})
}

// neverEnding is a source of bytes without an end.
type neverEnding struct{}

func (neverEnding) Read(p []byte) (int, error) { return len(p), nil }

func TestTheSourceIsNotReplacedUnderAnOperation(t *testing.T) {
	a := startAgent(t, t.TempDir())
	source := pack(t, map[string]string{"Pulumi.yaml": projectYAML})
	a.start("a")
	// The archive need not be transferred for this error.
	a.Expect(a.PushSource(t.Context(), source.digest, 1<<20, neverEnding{})).To(MatchError(client.ErrBusy))
	a.finish("a", &agentpb.Operation{State: succeeded})

	// An operation that starts during the transfer has precedence, too.
	a.Expect(a.push(pack(t, map[string]string{"Pulumi.yaml": projectYAML, "first": ""}))).To(Succeed())
	content := &hook{Reader: bytes.NewReader(source.content), before: func() {
		a.Eventually(filepath.Join(a.dir, archiveFile)).WithTimeout(patience).Should(BeAnExistingFile())
		a.start("b")
	}}
	err := a.PushSource(t.Context(), source.digest, int64(len(source.content)), content)
	a.Expect(err).To(MatchError(client.ErrBusy))
	a.Expect(filepath.Join(a.dir, "source", "first")).To(BeARegularFile())
	a.finish("b", &agentpb.Operation{State: succeeded})
	a.Expect(a.push(source)).To(Succeed())
	a.Expect(filepath.Join(a.dir, "source", "first")).NotTo(BeAnExistingFile())
}

// hook calls before once, in the middle of a delivery.
type hook struct {
	io.Reader
	before func()
}

func (h *hook) Read(p []byte) (int, error) {
	if h.before != nil {
		before := h.before
		h.before = nil
		before()
	}
	return h.Reader.Read(p)
}

func TestOneSourceArrivesAtATime(t *testing.T) {
	dir := t.TempDir()
	a := startAgent(t, dir)
	first, second := pack(t, map[string]string{"Pulumi.yaml": projectYAML}), pack(t, map[string]string{"Pulumi.yaml": "name: x\n"})
	reading, release := make(chan struct{}), make(chan struct{})
	pushed := make(chan error)
	go func() {
		content := &hook{Reader: bytes.NewReader(first.content), before: func() { close(reading); <-release }}
		pushed <- a.PushSource(t.Context(), first.digest, int64(len(first.content)), content)
	}()
	a.Eventually(reading).WithTimeout(patience).Should(BeClosed())
	a.Eventually(filepath.Join(dir, "incoming")).WithTimeout(patience).Should(BeADirectory(), "the agent takes the first one")
	a.Expect(a.push(second)).To(MatchError(client.ErrBusy))
	close(release)
	a.Eventually(pushed).WithTimeout(patience).Should(Receive(BeNil()))
	a.Expect(a.GetInfo(t.Context())).To(HaveField("SourceDigest", first.digest))
}

func TestADeliveryThatIsWrongLeavesThePresentSource(t *testing.T) {
	a := startAgent(t, t.TempDir())
	present := pack(t, map[string]string{"Pulumi.yaml": projectYAML})
	NewWithT(t).Expect(a.push(present)).To(Succeed())
	good := pack(t, map[string]string{"Pulumi.yaml": projectYAML, "new": ""})
	large := artifactOf(make([]byte, 9<<20))
	unpacksLarge := pack(t, map[string]string{"zeros": strings.Repeat("\x00", 17<<20)})
	size := int64(len(good.content))
	garbage := artifactOf([]byte("<html>not an archive</html>"))
	outside := pack(t, map[string]string{"../evil": "x"})
	many := map[string]string{}
	for i := range 1001 {
		many[fmt.Sprint("file-", i)] = ""
	}
	crowded := pack(t, many)
	broken := errors.New("disk broke")
	tests := []struct {
		name    string
		digest  string
		size    int64
		content io.Reader
		kind    error
		message string
	}{
		{"another digest", large.digest, size, bytes.NewReader(good.content), client.ErrDigestMismatch, "expected digest " + large.digest + ", computed " + good.digest},
		{"no digest", "", size, bytes.NewReader(good.content), client.ErrInvalid, "cannot be verified"},
		{"weak digest", "md5:d41d8cd98f00b204e9800998ecf8427e", size, bytes.NewReader(good.content), client.ErrInvalid, "cannot be verified"},
		{"larger than allowed", large.digest, 9 << 20, bytes.NewReader(large.content), client.ErrTooLarge, "9437184 bytes, more than the 8388608 allowed"},
		{"more bytes than announced", good.digest, size - 1, bytes.NewReader(good.content), client.ErrInvalid, "more than"},
		{"endless", good.digest, size, neverEnding{}, client.ErrInvalid, "more than"},
		{"fewer bytes than announced", good.digest, size + 1, bytes.NewReader(good.content), client.ErrInvalid, "fewer than"},
		{"no bytes", good.digest, size, bytes.NewReader(nil), client.ErrInvalid, "fewer than"},
		{"no size", good.digest, 0, bytes.NewReader(good.content), client.ErrInvalid, "0 bytes"},
		{"negative size", good.digest, -1, bytes.NewReader(good.content), client.ErrInvalid, "-1 bytes"},
		{"garbage", garbage.digest, int64(len(garbage.content)), bytes.NewReader(garbage.content), client.ErrInvalid, "gzip"},
		{"file outside of the tree", outside.digest, int64(len(outside.content)), bytes.NewReader(outside.content), client.ErrInvalid, `".."`},
		{"unpacks to more than allowed", unpacksLarge.digest, int64(len(unpacksLarge.content)), bytes.NewReader(unpacksLarge.content), client.ErrTooLarge, "too large"},
		{"more entries than allowed", crowded.digest, int64(len(crowded.content)), bytes.NewReader(crowded.content), client.ErrTooLarge, "1000 entries"},
		{"content that cannot be read", good.digest, size, io.MultiReader(bytes.NewReader(good.content[:10]), iotest.ErrReader(broken)), broken, "read the artifact"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			g := NewWithT(t)
			err := a.PushSource(t.Context(), tt.digest, tt.size, tt.content)
			g.Expect(err).To(MatchError(tt.kind))
			g.Expect(err).To(MatchError(ContainSubstring(tt.message)))
			g.Expect(a.GetInfo(t.Context())).To(HaveField("SourceDigest", present.digest))
			g.Expect(filepath.Join(a.dir, "source", "Pulumi.yaml")).To(BeARegularFile())
			g.Eventually(filepath.Join(a.dir, "incoming")).WithTimeout(patience).ShouldNot(BeAnExistingFile())
		})
	}
	// The agent may not have noticed yet that the last delivery was given up.
	NewWithT(t).Eventually(func() error { return a.push(good) }).WithTimeout(patience).Should(Succeed())
}

func TestALargeSourceArrivesWhole(t *testing.T) {
	a := startAgent(t, t.TempDir())
	random := make([]byte, 5<<20)
	_, _ = rand.NewChaCha8([32]byte{}).Read(random)
	source := pack(t, map[string]string{"Pulumi.yaml": projectYAML, "random": string(random)})
	// Readers may return any number of bytes at a time.
	content := iotest.OneByteReader(bytes.NewReader(source.content[:1000]))
	a.Expect(a.PushSource(t.Context(), source.digest, int64(len(source.content)), io.MultiReader(content, bytes.NewReader(source.content[1000:])))).To(Succeed())
	unpacked, err := os.ReadFile(filepath.Join(a.dir, "source", "random"))
	a.Expect(err).NotTo(HaveOccurred())
	a.Expect(bytes.Equal(unpacked, random)).To(BeTrue())
}

func TestMessagesInTheWrongOrderAreRefused(t *testing.T) {
	a := startAgent(t, t.TempDir())
	connection, err := grpc.NewClient(a.address, grpc.WithTransportCredentials(insecure.NewCredentials()))
	NewWithT(t).Expect(err).NotTo(HaveOccurred())
	defer connection.Close()
	header := &agentpb.PushSourceRequest{Message: &agentpb.PushSourceRequest_Header{
		Header: &agentpb.SourceHeader{Digest: digest.FromString("x").String(), Size: 1 << 20}}}
	chunk := func(size int) *agentpb.PushSourceRequest {
		return &agentpb.PushSourceRequest{Message: &agentpb.PushSourceRequest_Chunk{Chunk: make([]byte, size)}}
	}
	tests := []struct {
		name     string
		messages []*agentpb.PushSourceRequest
		message  string
	}{
		{"nothing", nil, "header of the source is missing"},
		{"chunk first", []*agentpb.PushSourceRequest{chunk(1)}, "first message is not the header"},
		{"empty message first", []*agentpb.PushSourceRequest{{}}, "first message is not the header"},
		{"second header", []*agentpb.PushSourceRequest{header, header}, "a chunk has 1 to"},
		{"empty chunk", []*agentpb.PushSourceRequest{header, chunk(0)}, "a chunk has 1 to"},
		{"large chunk", []*agentpb.PushSourceRequest{header, chunk(agentpb.MaxChunkSize + 1)}, "a chunk has 1 to"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			g := NewWithT(t)
			stream, err := agentpb.NewAgentClient(connection).PushSource(t.Context())
			g.Expect(err).NotTo(HaveOccurred())
			for _, message := range tt.messages {
				g.Expect(stream.Send(message)).To(Or(Succeed(), MatchError(io.EOF)))
			}
			g.Expect(stream.CloseAndRecv()).Error().To(MatchError(ContainSubstring(tt.message)))
		})
	}
}
