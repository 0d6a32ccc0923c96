package systemtest

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"crypto/sha256"
	"fmt"
	"maps"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"sync"

	. "github.com/onsi/gomega"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/fluxcd/pkg/apis/meta"
	sourcev1 "github.com/fluxcd/source-controller/api/v1"

	"github.com/stack-controller/stack-controller/tests/framework/gitserver"
)

// Artifacts serves artifacts over HTTP as source-controller does. Unlike source-controller, it can also serve wrong ones.
type Artifacts struct {
	*httptest.Server
	mu       sync.Mutex
	files    map[string][]byte
	requests map[string]int
}

// ServeArtifacts starts a server, which the caller closes.
func ServeArtifacts() *Artifacts {
	a := &Artifacts{files: map[string][]byte{}, requests: map[string]int{}}
	a.Server = httptest.NewServer(a)
	return a
}

func (a *Artifacts) ServeHTTP(response http.ResponseWriter, request *http.Request) {
	a.mu.Lock()
	content, found := a.files[request.URL.Path]
	a.requests[request.URL.Path]++
	a.mu.Unlock()
	if !found {
		http.NotFound(response, request)
		return
	}
	_, _ = response.Write(content) // a client that has closed the connection needs no more
}

// DigestOf returns the digest of an artifact.
func DigestOf(content []byte) string { return fmt.Sprintf("sha256:%x", sha256.Sum256(content)) }

// Put serves the content at a path that depends on the content, and returns the artifact for the status of a source.
func (a *Artifacts) Put(revision string, content []byte) *meta.Artifact {
	digest := DigestOf(content)
	path := "/" + strings.TrimPrefix(digest, "sha256:") + ".tar.gz"
	a.Replace(path, content)
	size := int64(len(content))
	return &meta.Artifact{Path: path, URL: a.URL + path, Revision: revision, Digest: digest, Size: &size, LastUpdateTime: metav1.Now()}
}

// Replace changes what is served at the path of an artifact. With nil, the server responds "not found".
func (a *Artifacts) Replace(path string, content []byte) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if content == nil {
		delete(a.files, path)
		return
	}
	a.files[path] = content
}

// Requests returns how often the artifact was requested.
func (a *Artifacts) Requests(artifact *meta.Artifact) int {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.requests[artifact.Path]
}

// Offer makes the ExternalArtifact of the fixture publish the artifact.
func (s *Fixture) Offer(artifact *meta.Artifact) {
	s.Helper()
	source := &sourcev1.ExternalArtifact{}
	s.Get(s.Name, source)
	before := source.DeepCopy()
	source.Status.Artifact = artifact
	source.Status.Conditions = []metav1.Condition{{
		Type: meta.ReadyCondition, Status: metav1.ConditionTrue, Reason: meta.SucceededReason, Message: "stored", LastTransitionTime: metav1.Now(),
	}}
	s.Expect(s.System.Client.Status().Patch(s.Context(), source, client.MergeFrom(before))).To(Succeed())
}

// Program returns a Pulumi program with the lines, in a project with the name.
func Program(project string, lines ...string) gitserver.Files {
	return gitserver.Files{"Pulumi.yaml": "name: " + project + "\nruntime: yaml\n" + strings.Join(lines, "\n") + "\n"}
}

// Returning returns a Pulumi program whose output "x" has the value, in a project with the name.
func Returning(project string, value any) gitserver.Files {
	return Program(project, "outputs:", fmt.Sprintf("  x: %v", value))
}

// Entry is one entry of a tarball.
type Entry struct {
	Header  tar.Header
	Content string
}

// File returns an entry for a regular file.
func File(name, content string) Entry {
	return Entry{tar.Header{Name: name, Typeflag: tar.TypeReg, Mode: 0o600, Size: int64(len(content))}, content}
}

// Tarball packs the entries, including invalid ones.
func Tarball(entries ...Entry) []byte {
	var buffer bytes.Buffer
	compressed := gzip.NewWriter(&buffer)
	archive := tar.NewWriter(compressed)
	for _, entry := range entries {
		must(archive.WriteHeader(&entry.Header))
		_, err := archive.Write([]byte(entry.Content))
		must(err)
	}
	must(archive.Close())
	must(compressed.Close())
	return buffer.Bytes()
}

// must panics on errors that cannot occur in memory.
func must(err error) {
	if err != nil {
		panic(err)
	}
}

// Packed packs files in a stable order.
func Packed(files gitserver.Files) []byte {
	var entries []Entry
	for _, name := range slices.Sorted(maps.Keys(files)) {
		entries = append(entries, File(name, files[name]))
	}
	return Tarball(entries...)
}
