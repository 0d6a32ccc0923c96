package sources_test

import (
	"fmt"
	"strings"
	"testing"

	. "github.com/onsi/gomega"
	corev1 "k8s.io/api/core/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	sourcev1 "github.com/fluxcd/source-controller/api/v1"

	pulumiv1 "github.com/stack-controller/stack-controller/api/pulumi/v1"
	"github.com/stack-controller/stack-controller/tests/framework/gitserver"
	"github.com/stack-controller/stack-controller/tests/framework/ociregistry"
	"github.com/stack-controller/stack-controller/tests/framework/statuscheck"
	"github.com/stack-controller/stack-controller/tests/framework/systemtest"
)

// otherType is the media type of a layer that is not a program.
const otherType = "application/vnd.example.documentation.tar+gzip"

// pushed returns an artifact, as the flux command creates it, of a program whose output "x" has the value.
func pushed(name string, value int) ociregistry.Artifact {
	return ociregistry.Artifact{
		Layers: []ociregistry.Layer{{MediaType: ociregistry.ContentType, Content: systemtest.Packed(systemtest.Returning(name, value))}},
		Annotations: map[string]string{
			ociregistry.CreatedAnnotation:  "2026-01-02T03:04:05Z",
			ociregistry.SourceAnnotation:   "https://git.example.com/acme/" + name + ".git",
			ociregistry.RevisionAnnotation: originOf(value),
		},
	}
}

// originOf returns the git revision from which the program with that value was pushed.
func originOf(value int) string { return fmt.Sprintf("main@sha1:%040d", value) }

// push pushes the artifact under the tag and returns its revision: the digest of its manifest.
func push(p *fixture, tag string, artifact ociregistry.Artifact) string {
	p.Helper()
	digest, err := registry.Push(p.Context(), p.Name, tag, artifact)
	p.Succeed(err)
	return digest.String()
}

// ociRepository returns an OCIRepository that follows the tag "latest" of a repository.
func ociRepository(repository string) *sourcev1.OCIRepository {
	return &sourcev1.OCIRepository{Spec: sourcev1.OCIRepositorySpec{
		URL: registry.URL(repository), Insecure: true, Interval: new(hourly), Reference: &sourcev1.OCIRepositoryRef{Tag: "latest"},
	}}
}

// followOCI creates the namespace with an OCIRepository and a Stack that follows it, and returns the OCIRepository.
func followOCI(p *fixture, changes ...func(*sourcev1.OCIRepositorySpec)) *sourcev1.OCIRepository {
	p.Helper()
	source := ociRepository(p.Name)
	for _, change := range changes {
		change(&source.Spec)
	}
	p.follow(sourcev1.OCIRepositoryKind, source)
	return source
}

func TestStackFollowsTagInRegistryThatMoves(t *testing.T) {
	p := begin(t, "oci-tag")
	first := push(p, "latest", pushed(p.Name, 1))
	source := followOCI(p)
	p.Expect(systemtest.Output(p.Await(deployed("latest@"+first)), "x")).To(Equal("1"))

	second := push(p, "latest", pushed(p.Name, 2))
	p.Expect(second).NotTo(Equal(first))
	p.fetch(source)
	stack := p.Await(deployed("latest@" + second))
	p.Expect(systemtest.Output(stack, "x")).To(Equal("2"))
	p.Get(p.Name, source)
	p.Expect(source.Status.Artifact.Metadata).To(HaveKeyWithValue(ociregistry.RevisionAnnotation, originOf(2)))
	p.Expect(stack.Status.LastUpdate.LastSuccessfulCommit).To(Equal(source.Status.Artifact.Digest))
}

// notification-controller receives the events with the same annotations as the events in Kubernetes.
func TestGitCommitThatAnArtifactWasMadeFromIsShown(t *testing.T) {
	p := begin(t, "oci-origin")
	made := func(n int) string { return "sha1:" + strings.TrimPrefix(originOf(n), "main@sha1:") }
	first := push(p, "latest", pushed(p.Name, 1))
	source := followOCI(p)
	p.Expect(p.Await(deployed("latest@" + first)).Status.LastAppliedOriginRevision).To(Equal(made(1)))

	second := push(p, "latest", pushed(p.Name, 2))
	p.fetch(source)
	p.Expect(p.Await(deployed("latest@" + second)).Status.LastAppliedOriginRevision).To(Equal(made(2)))
	p.Eventually(func(g Gomega) {
		events := &corev1.EventList{}
		g.Expect(system.Client.List(p.Context(), events, client.InNamespace(p.Name))).To(Succeed())
		for _, reason := range []string{"StackUpdateDetected", "StackCreated"} {
			g.Expect(events.Items).To(ContainElement(And(HaveField("Reason", reason), HaveField("Annotations", And(
				HaveKeyWithValue("pulumi.com/revision", "latest@"+second), HaveKeyWithValue("pulumi.com/originRevision", made(2)))))))
		}
	}).Should(Succeed())

	// The same content from a later commit is not deployed again, but counts as applied.
	again := pushed(p.Name, 2)
	again.Annotations[ociregistry.RevisionAnnotation] = originOf(3)
	third := push(p, "latest", again)
	p.fetch(source)
	p.Expect(p.Await(deployed("latest@" + third)).Status.LastAppliedOriginRevision).To(Equal(made(3)))
	p.Expect(p.Updates()).To(HaveLen(2))

	// This artifact does not say which commit it comes from.
	unknown := pushed(p.Name, 4)
	delete(unknown.Annotations, ociregistry.RevisionAnnotation)
	fourth := push(p, "latest", unknown)
	p.fetch(source)
	p.Expect(p.Await(deployed("latest@" + fourth)).Status.LastAppliedOriginRevision).To(BeEmpty())
}

func TestStackFollowsHighestVersionOfRange(t *testing.T) {
	p := begin(t, "oci-semver")
	push(p, "1.0.0", pushed(p.Name, 1))
	source := followOCI(p, func(s *sourcev1.OCIRepositorySpec) { s.Reference = &sourcev1.OCIRepositoryRef{SemVer: "~1.0"} })
	p.Await(systemtest.Showing("1"))
	push(p, "1.1.0", pushed(p.Name, 3))
	next := push(p, "1.0.1", pushed(p.Name, 2))
	p.fetch(source)
	p.Await(deployed("1.0.1@" + next))
}

func TestStackStaysAtPinnedDigestThoughTheTagMoves(t *testing.T) {
	p := begin(t, "oci-digest")
	pinned := push(p, "latest", pushed(p.Name, 1))
	push(p, "latest", pushed(p.Name, 2))
	followOCI(p, func(s *sourcev1.OCIRepositorySpec) { s.Reference = &sourcev1.OCIRepositoryRef{Digest: pinned} })
	p.Expect(systemtest.Output(p.Await(deployed(pinned)), "x")).To(Equal("1"))
}

// With "copy" the artifact is the layer as it was pushed; with "extract" source-controller packs the files again.
func TestStackRunsSelectedLayerExtractedOrCopied(t *testing.T) {
	t.Parallel()
	for name, operation := range map[string]string{"oci-copy": sourcev1.OCILayerCopy, "oci-extract": sourcev1.OCILayerExtract} {
		t.Run(operation, func(t *testing.T) {
			p := begin(t, name)
			artifact := pushed(name, 1)
			artifact.Layers = append([]ociregistry.Layer{
				{MediaType: otherType, Content: systemtest.Packed(gitserver.Files{"README": "nothing to run"})},
			}, artifact.Layers...)
			push(p, "latest", artifact)
			followOCI(p, func(s *sourcev1.OCIRepositorySpec) {
				s.LayerSelector = &sourcev1.OCILayerSelector{MediaType: ociregistry.ContentType, Operation: operation}
			})
			p.Await(systemtest.Showing("1"))
		})
	}
}

func TestCopiedLayerThatIsNoTarballIsExplainedAndRecovers(t *testing.T) {
	p := begin(t, "oci-plain")
	artifact := pushed(p.Name, 1)
	artifact.Layers[0].Content = []byte("this is no tarball")
	push(p, "latest", artifact)
	source := followOCI(p, func(s *sourcev1.OCIRepositorySpec) {
		s.LayerSelector = &sourcev1.OCILayerSelector{MediaType: ociregistry.ContentType, Operation: sourcev1.OCILayerCopy}
	})
	p.Await(statuscheck.NotReady(pulumiv1.ArtifactUnusableReason))
	push(p, "latest", pushed(p.Name, 2))
	p.fetch(source)
	p.Await(systemtest.Showing("2"))
}

func TestTagThatDoesNotExistIsWaitedFor(t *testing.T) {
	p := begin(t, "oci-missing")
	source := followOCI(p)
	stack := p.Await(statuscheck.NotReady(pulumiv1.SourceNotReadyReason))
	p.Expect(statuscheck.Message(stack)).To(ContainSubstring("OCIRepository oci-missing/oci-missing is not ready"))
	revision := push(p, "latest", pushed(p.Name, 1))
	p.fetch(source)
	p.Await(deployed("latest@" + revision))
}

func TestSameProgramPushedAgainMovesTheRevision(t *testing.T) {
	p := begin(t, "oci-again")
	push(p, "latest", pushed(p.Name, 1))
	source := followOCI(p)
	first := p.Await(systemtest.Showing("1"))
	again := pushed(p.Name, 1)
	again.Annotations[ociregistry.RevisionAnnotation] = originOf(2)
	revision := push(p, "latest", again)
	p.fetch(source)
	stack := p.Await(deployed("latest@" + revision))
	p.Expect(stack.Status.LastUpdate.LastSuccessfulCommit).To(Equal(first.Status.LastUpdate.LastSuccessfulCommit), "the content is the same")
}
