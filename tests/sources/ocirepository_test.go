package sources_test

import (
	"maps"
	"testing"

	. "github.com/onsi/gomega"

	sourcev1 "github.com/fluxcd/source-controller/api/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	pulumiv1 "github.com/stack-controller/stack-controller/api/pulumi/v1"
	"github.com/stack-controller/stack-controller/tests/ociregistry"
	"github.com/stack-controller/stack-controller/tests/statuscheck"
)

// otherType is the media type of a layer that is no program.
const otherType = "application/vnd.example.documentation.tar+gzip"

// pushed is an artifact as the flux program makes them, of a program whose output "x" has the value.
func pushed(name, value string) ociregistry.Artifact {
	return ociregistry.Artifact{
		Layers: []ociregistry.Layer{{MediaType: ociregistry.ContentType, Content: packed(program(name, value))}},
		Annotations: map[string]string{
			ociregistry.CreatedAnnotation:  "2026-01-02T03:04:05Z",
			ociregistry.SourceAnnotation:   "https://git.example.com/acme/" + name + ".git",
			ociregistry.RevisionAnnotation: originOf(value),
		},
	}
}

// originOf is the revision in git that a program with the value was pushed from.
func originOf(value string) string {
	return "main@sha1:000000000000000000000000000000000000000" + value
}

// push pushes the artifact under the tag and returns its revision: the digest of its manifest.
func push(t *testing.T, repository, tag string, artifact ociregistry.Artifact) string {
	t.Helper()
	digest, err := registry.Push(t.Context(), repository, tag, artifact)
	succeed(t, err)
	return digest.String()
}

// follow creates a namespace with an OCIRepository and a Stack that follows it, and returns the former.
func follow(t *testing.T, name string, changes ...func(*sourcev1.OCIRepository)) *sourcev1.OCIRepository {
	t.Helper()
	source := &sourcev1.OCIRepository{
		ObjectMeta: named(name, name),
		Spec: sourcev1.OCIRepositorySpec{
			URL: registry.URL(name), Insecure: true, Interval: hourly, Reference: &sourcev1.OCIRepositoryRef{Tag: "latest"},
		},
	}
	for _, change := range changes {
		change(source)
	}
	namespace(t, name)
	create(t, source, stackOf(name, sourcev1.OCIRepositoryKind))
	return source
}

func TestStackFollowsTagInRegistryThatMoves(t *testing.T) {
	t.Parallel()
	g := NewWithT(t)
	const name = "oci-tag"
	first := push(t, name, "latest", pushed(name, "1"))
	source := follow(t, name)
	stack := await(t, name, deployed("latest@"+first))
	g.Expect(string(stack.Status.Outputs["x"].Raw)).To(Equal("1"))

	second := push(t, name, "latest", pushed(name, "2"))
	g.Expect(second).NotTo(Equal(first))
	fetch(t, source)
	stack = await(t, name, deployed("latest@"+second))
	g.Expect(string(stack.Status.Outputs["x"].Raw)).To(Equal("2"))

	g.Expect(system.Client.Get(t.Context(), client.ObjectKeyFromObject(source), source)).To(Succeed())
	g.Expect(source.Status.Artifact.Metadata).To(HaveKeyWithValue(ociregistry.RevisionAnnotation, originOf("2")))
	g.Expect(stack.Status.LastUpdate.LastSuccessfulCommit).To(Equal(source.Status.Artifact.Digest))
}

func TestStackFollowsHighestVersionOfRange(t *testing.T) {
	t.Parallel()
	const name = "oci-semver"
	push(t, name, "1.0.0", pushed(name, "1"))
	source := follow(t, name, func(s *sourcev1.OCIRepository) { s.Spec.Reference = &sourcev1.OCIRepositoryRef{SemVer: "~1.0"} })
	await(t, name, showing("1"))
	push(t, name, "1.1.0", pushed(name, "3"))
	next := push(t, name, "1.0.1", pushed(name, "2"))
	fetch(t, source)
	await(t, name, deployed("1.0.1@"+next))
}

func TestStackStaysAtPinnedDigestThoughTheTagMoves(t *testing.T) {
	t.Parallel()
	g := NewWithT(t)
	const name = "oci-digest"
	pinned := push(t, name, "latest", pushed(name, "1"))
	push(t, name, "latest", pushed(name, "2"))
	follow(t, name, func(s *sourcev1.OCIRepository) { s.Spec.Reference = &sourcev1.OCIRepositoryRef{Digest: pinned} })
	stack := await(t, name, deployed(pinned))
	g.Expect(string(stack.Status.Outputs["x"].Raw)).To(Equal("1"))
}

// With "copy" the artifact is the layer as it was pushed, with "extract" source-controller packs it again.
func TestStackRunsSelectedLayerExtractedOrCopied(t *testing.T) {
	for name, operation := range map[string]string{"oci-copy": sourcev1.OCILayerCopy, "oci-extract": sourcev1.OCILayerExtract} {
		t.Run(operation, func(t *testing.T) {
			t.Parallel()
			artifact := pushed(name, "1")
			artifact.Layers = append([]ociregistry.Layer{
				{MediaType: otherType, Content: packed(map[string]string{"README": "nothing to run"})},
			}, artifact.Layers...)
			push(t, name, "latest", artifact)
			follow(t, name, func(s *sourcev1.OCIRepository) {
				s.Spec.LayerSelector = &sourcev1.OCILayerSelector{MediaType: ociregistry.ContentType, Operation: operation}
			})
			await(t, name, showing("1"))
		})
	}
}

func TestCopiedLayerThatIsNoTarballIsExplainedAndHeals(t *testing.T) {
	t.Parallel()
	const name = "oci-plain"
	artifact := pushed(name, "1")
	artifact.Layers[0].Content = []byte("this is no tarball")
	push(t, name, "latest", artifact)
	source := follow(t, name, func(s *sourcev1.OCIRepository) {
		s.Spec.LayerSelector = &sourcev1.OCILayerSelector{MediaType: ociregistry.ContentType, Operation: sourcev1.OCILayerCopy}
	})
	await(t, name, statuscheck.NotReady(pulumiv1.ArtifactUnusableReason))
	push(t, name, "latest", pushed(name, "2"))
	fetch(t, source)
	await(t, name, showing("2"))
}

func TestTagThatDoesNotExistIsWaitedFor(t *testing.T) {
	t.Parallel()
	g := NewWithT(t)
	const name = "oci-missing"
	source := follow(t, name)
	stack := await(t, name, statuscheck.NotReady(pulumiv1.SourceNotReadyReason))
	g.Expect(statuscheck.Message(stack)).To(ContainSubstring("OCIRepository oci-missing/oci-missing is not ready"))
	revision := push(t, name, "latest", pushed(name, "1"))
	fetch(t, source)
	await(t, name, deployed("latest@"+revision))
}

func TestSameProgramPushedAgainMovesTheRevision(t *testing.T) {
	t.Parallel()
	g := NewWithT(t)
	const name = "oci-again"
	push(t, name, "latest", pushed(name, "1"))
	source := follow(t, name)
	first := await(t, name, showing("1"))
	again := pushed(name, "1")
	again.Annotations = maps.Clone(again.Annotations)
	again.Annotations[ociregistry.RevisionAnnotation] = originOf("2")
	revision := push(t, name, "latest", again)
	fetch(t, source)
	stack := await(t, name, deployed("latest@"+revision))
	g.Expect(stack.Status.LastUpdate.LastSuccessfulCommit).To(Equal(first.Status.LastUpdate.LastSuccessfulCommit), "the content is the same")
}
