package e2e_test

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/fluxcd/pkg/apis/meta"
	sourcev1 "github.com/fluxcd/source-controller/api/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	pulumiv1 "github.com/stack-controller/stack-controller/api/pulumi/v1"
	"github.com/stack-controller/stack-controller/tests/gitserver"
	"github.com/stack-controller/stack-controller/tests/stage"
)

// producer serves artifacts over HTTP as source-controller does, and can serve wrong ones, which that never does.
type producer struct {
	*httptest.Server
	mu    sync.Mutex
	files map[string][]byte
	hits  map[string]int
}

func newProducer() *producer {
	p := &producer{files: map[string][]byte{}, hits: map[string]int{}}
	p.Server = httptest.NewServer(p)
	return p
}

func (p *producer) ServeHTTP(response http.ResponseWriter, request *http.Request) {
	p.mu.Lock()
	content, ok := p.files[request.URL.Path]
	p.hits[request.URL.Path]++
	p.mu.Unlock()
	if !ok {
		http.NotFound(response, request)
		return
	}
	_, _ = response.Write(content)
}

// put serves the content at a place that only this content has, and returns what a source would say about it.
func (p *producer) put(revision string, content []byte) *meta.Artifact {
	sum := sha256.Sum256(content)
	digest := hex.EncodeToString(sum[:])
	path := "/" + digest + ".tar.gz"
	p.mu.Lock()
	defer p.mu.Unlock()
	p.files[path] = content
	size := int64(len(content))
	return &meta.Artifact{
		Path: path, URL: p.URL + path, Revision: revision, Digest: "sha256:" + digest, Size: &size, LastUpdateTime: metav1.Now(),
	}
}

// remove makes the artifact answer "not found".
func (p *producer) remove(artifact *meta.Artifact) {
	p.mu.Lock()
	defer p.mu.Unlock()
	delete(p.files, artifact.Path)
}

func (p *producer) requests(artifact *meta.Artifact) int {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.hits[artifact.Path]
}

// entry is one entry of a tarball.
type entry struct {
	header  tar.Header
	content string
}

func file(name, content string) entry {
	return entry{tar.Header{Name: name, Typeflag: tar.TypeReg, Mode: 0o600, Size: int64(len(content))}, content}
}

// tarball packs the entries, wrong ones too.
func tarball(entries ...entry) []byte {
	var buffer bytes.Buffer
	compressed := gzip.NewWriter(&buffer)
	archive := tar.NewWriter(compressed)
	for _, e := range entries {
		must(archive.WriteHeader(&e.header))
		if e.content != "" {
			_, err := archive.Write([]byte(e.content))
			must(err)
		}
	}
	must(archive.Close())
	must(compressed.Close())
	return buffer.Bytes()
}

func must(err error) {
	if err != nil {
		panic(err)
	}
}

// packed packs files in a stable order.
func packed(files gitserver.Files) []byte {
	names := make([]string, 0, len(files))
	for name := range files {
		names = append(names, name)
	}
	slices.Sort(names)
	entries := make([]entry, 0, len(names))
	for _, name := range names {
		entries = append(entries, file(name, files[name]))
	}
	return tarball(entries...)
}

// artifactStack is a Stack that follows an ExternalArtifact of its name, in a namespace of its name.
func artifactStack(name string) *pulumiv1.Stack {
	return &pulumiv1.Stack{
		ObjectMeta: metav1.ObjectMeta{Namespace: name, Name: name},
		Spec: pulumiv1.StackSpec{
			Stack:   "dev",
			Backend: system.BackendURL,
			FluxSource: &pulumiv1.FluxSource{SourceRef: pulumiv1.FluxSourceReference{
				APIVersion: sourcev1.GroupVersion.String(), Kind: sourcev1.ExternalArtifactKind, Name: name,
			}},
			EnvRefs: map[string]pulumiv1.ResourceRef{"PULUMI_CONFIG_PASSPHRASE": {
				Type: pulumiv1.ResourceRefSecret, SecretRef: &pulumiv1.SecretSelector{Name: stage.PassphraseSecret, Key: stage.PassphraseKey},
			}},
		},
	}
}

// start creates the Stack's namespace, its Secret, the Stack after the changes, and an ExternalArtifact that publishes
// the artifact unless that is nil.
func start(ctx context.Context, name string, artifact *meta.Artifact, changes ...func(*pulumiv1.Stack)) error {
	stack := artifactStack(name)
	for _, change := range changes {
		change(stack)
	}
	for _, object := range []client.Object{
		&corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: name}},
		passphrase(name),
		&sourcev1.ExternalArtifact{ObjectMeta: metav1.ObjectMeta{Namespace: name, Name: name}},
		stack,
	} {
		if err := system.Client.Create(ctx, object); err != nil {
			return fmt.Errorf("create %T %s: %w", object, name, err)
		}
	}
	if artifact == nil {
		return nil
	}
	return publish(ctx, name, artifact)
}

// passphrase is the Secret that every Stack here uses.
func passphrase(namespace string) *corev1.Secret {
	return &corev1.Secret{
		ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: stage.PassphraseSecret},
		StringData: map[string]string{stage.PassphraseKey: passphraseCanary, "canary": secretCanary},
	}
}

// publish makes the ExternalArtifact offer the artifact.
func publish(ctx context.Context, name string, artifact *meta.Artifact) error {
	source := &sourcev1.ExternalArtifact{}
	if err := system.Client.Get(ctx, client.ObjectKey{Namespace: name, Name: name}, source); err != nil {
		return err
	}
	before := source.DeepCopy()
	source.Status.Artifact = artifact
	source.Status.Conditions = []metav1.Condition{{
		Type: meta.ReadyCondition, Status: metav1.ConditionTrue, Reason: meta.SucceededReason, LastTransitionTime: metav1.NewTime(time.Now()), Message: "stored",
	}}
	return system.Client.Status().Patch(ctx, source, client.MergeFrom(before))
}

// yamlProgram is a Pulumi program with the body, in a project of the name.
func yamlProgram(name string, lines ...string) gitserver.Files {
	return gitserver.Files{"Pulumi.yaml": "name: " + name + "\nruntime: yaml\n" + strings.Join(lines, "\n") + "\n"}
}
