package server

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"maps"
	"slices"
	"strings"
	"testing"

	. "github.com/onsi/gomega"
	"github.com/opencontainers/go-digest"

	"github.com/stack-controller/stack-controller/internal/agent/agentpb"
)

const projectYAML = "name: demo\nruntime: yaml\n"

// linkTo begins the content of a file that is a symbolic link.
const linkTo = "-> "

// artifact is a tarball as a source publishes it.
type artifact struct {
	content []byte
	digest  string
}

// pack returns an artifact with the files.
func pack(t *testing.T, files map[string]string) artifact {
	t.Helper()
	g := NewWithT(t)
	var packed bytes.Buffer
	zipped := gzip.NewWriter(&packed)
	archive := tar.NewWriter(zipped)
	for _, name := range slices.Sorted(maps.Keys(files)) {
		if target, isLink := strings.CutPrefix(files[name], linkTo); isLink {
			g.Expect(archive.WriteHeader(&tar.Header{Typeflag: tar.TypeSymlink, Name: name, Linkname: target})).To(Succeed())
			continue
		}
		g.Expect(archive.WriteHeader(&tar.Header{Name: name, Mode: 0o644, Size: int64(len(files[name]))})).To(Succeed())
		g.Expect(archive.Write([]byte(files[name]))).Error().NotTo(HaveOccurred())
	}
	g.Expect(archive.Close()).To(Succeed())
	g.Expect(zipped.Close()).To(Succeed())
	return artifactOf(packed.Bytes())
}

func artifactOf(content []byte) artifact {
	return artifact{content: content, digest: digest.FromBytes(content).String()}
}

// push delivers the artifact.
func (a *agent) push(artifact artifact) error {
	return a.PushSource(a.t.Context(), artifact.digest, int64(len(artifact.content)), bytes.NewReader(artifact.content))
}

// update returns the request for an update from the artifact with the digest.
func update(id, digest, dir string) *agentpb.StartOperationRequest {
	return &agentpb.StartOperationRequest{
		Id: id, Kind: agentpb.OperationKind_OPERATION_KIND_UP, Stack: "dev",
		Source: &agentpb.StartOperationRequest_Artifact{Artifact: &agentpb.ArtifactSource{Digest: digest, Dir: dir}},
	}
}
