package sources_test

import (
	"crypto/sha256"
	"fmt"
	"net/http"
	"net/http/httptest"
	"sync"
	"testing"

	. "github.com/onsi/gomega"

	"github.com/fluxcd/pkg/apis/meta"
	sourcev1 "github.com/fluxcd/source-controller/api/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	pulumiv1 "github.com/stack-controller/stack-controller/api/pulumi/v1"
	"github.com/stack-controller/stack-controller/tests/statuscheck"
)

// producer is a controller that publishes ExternalArtifacts: it serves tarballs and writes the status.
type producer struct {
	url string

	mu    sync.Mutex
	files map[string][]byte
}

func newProducer(t *testing.T) *producer {
	p := &producer{files: map[string][]byte{}}
	server := httptest.NewServer(http.HandlerFunc(func(response http.ResponseWriter, request *http.Request) {
		p.mu.Lock()
		content, found := p.files[request.URL.Path]
		p.mu.Unlock()
		if !found {
			http.NotFound(response, request)
			return
		}
		_, _ = response.Write(content) // a client that goes away has no use for the rest
	}))
	t.Cleanup(server.Close)
	p.url = server.URL
	return p
}

// publish serves the content and lets the ExternalArtifact offer it under the digest.
func (p *producer) publish(t *testing.T, name, revision, digest string, content []byte) {
	t.Helper()
	path := "/" + name + "/" + revision + ".tar.gz"
	p.mu.Lock()
	p.files[path] = content
	p.mu.Unlock()
	source := &sourcev1.ExternalArtifact{}
	succeed(t, system.Client.Get(t.Context(), keyOf(name), source))
	before := source.DeepCopy()
	size := int64(len(content))
	source.Status.Artifact = &meta.Artifact{
		Path: path, URL: p.url + path, Revision: revision, Digest: digest, Size: &size, LastUpdateTime: metav1.Now(),
	}
	source.Status.Conditions = []metav1.Condition{{
		Type: meta.ReadyCondition, Status: metav1.ConditionTrue, Reason: meta.SucceededReason, Message: "published", LastTransitionTime: metav1.Now(),
	}}
	succeed(t, system.Client.Status().Patch(t.Context(), source, client.MergeFrom(before)))
}

func digestOf(content []byte) string { return fmt.Sprintf("sha256:%x", sha256.Sum256(content)) }

func TestStackFollowsWhatAnotherControllerPublishes(t *testing.T) {
	t.Parallel()
	g := NewWithT(t)
	const name = "external"
	artifacts := newProducer(t)
	namespace(t, name)
	create(t, &sourcev1.ExternalArtifact{ObjectMeta: named(name, name)}, stackOf(name, sourcev1.ExternalArtifactKind))
	await(t, name, statuscheck.NotReady(pulumiv1.ArtifactNotFoundReason))

	first := packed(program(name, "1"))
	artifacts.publish(t, name, "v1", digestOf(first), first)
	await(t, name, deployed("v1"))

	second, wrong := packed(program(name, "2")), digestOf([]byte("something else"))
	artifacts.publish(t, name, "v2", wrong, second)
	stack := await(t, name, statuscheck.NotReady(pulumiv1.ArtifactDigestMismatchReason))
	g.Expect(statuscheck.Message(stack)).To(And(ContainSubstring(wrong), ContainSubstring(digestOf(second))))
	g.Expect(string(stack.Status.Outputs["x"].Raw)).To(Equal("1"), "what does not match its digest is never run")

	artifacts.publish(t, name, "v3", digestOf(second), second)
	stack = await(t, name, deployed("v3"))
	g.Expect(string(stack.Status.Outputs["x"].Raw)).To(Equal("2"))
}
