package e2e_test

import (
	"archive/tar"
	"slices"
	"testing"

	. "github.com/onsi/gomega"

	sourcev1 "github.com/fluxcd/source-controller/api/v1"

	pulumiv1 "github.com/stack-controller/stack-controller/api/pulumi/v1"
	"github.com/stack-controller/stack-controller/tests/stage/scene"
	"github.com/stack-controller/stack-controller/tests/statuscheck"
	"github.com/stack-controller/stack-controller/tests/suite"
)

func TestStackSaysWhatIsWrongWithItsSource(t *testing.T) {
	suite.Long(t, "further states of a source")
	t.Parallel()
	for _, test := range []struct {
		name   string
		change func(*pulumiv1.Stack)
		reason string
		says   string
	}{
		{"missing", func(s *pulumiv1.Stack) { s.Spec.FluxSource.SourceRef.Name = "nobody" }, pulumiv1.SourceNotFoundReason, "nobody does not exist"},
		{"without-artifact", func(*pulumiv1.Stack) {}, pulumiv1.ArtifactNotFoundReason, "has no artifact yet"},
		{"unknown-kind", func(s *pulumiv1.Stack) { s.Spec.FluxSource.SourceRef.Kind = "Mystery" }, pulumiv1.SourceKindNotInstalledReason, "does not serve Mystery"},
		{"forbidden-kind", func(s *pulumiv1.Stack) { s.Spec.FluxSource.SourceRef.Kind = sourcev1.HelmChartKind }, pulumiv1.AccessDeniedReason, "not allowed to read HelmChart"},
		{"other-namespace", func(s *pulumiv1.Stack) { s.Spec.FluxSource.SourceRef.Namespace = "kube-system" }, pulumiv1.AccessDeniedReason, "references to another namespace are not allowed"},
	} {
		t.Run(test.name, func(t *testing.T) {
			p := begin(t, "source-"+test.name)
			p.start(nil, test.change)
			stack := p.Await(notReady(test.reason))
			p.Expect(statuscheck.Message(stack)).To(ContainSubstring(test.says))
			p.Expect(p.Updates()).To(BeEmpty())
		})
	}
}

func TestStackRunsAsSoonAsItsSourceAppears(t *testing.T) {
	suite.Long(t, "further states of a source")
	p := begin(t, "source-appears")
	p.start(nil)
	p.Await(notReady(pulumiv1.ArtifactNotFoundReason))
	artifact := p.publish(p.returning(1))
	p.Await(ready(artifact.Digest))
}

func TestHostileArtifactNeverRunsAndIsExplained(t *testing.T) {
	t.Parallel()
	good := scene.File("Pulumi.yaml", "name: hostile\nruntime: yaml\n")
	for _, test := range []struct {
		name    string
		content []byte
		reason  string
	}{
		{"parent-path", scene.Tarball(good, scene.File("../escape", "x")), pulumiv1.ArtifactUnusableReason},
		{"absolute-path", scene.Tarball(good, scene.File("/tmp/escape", "x")), pulumiv1.ArtifactUnusableReason},
		{"device", scene.Tarball(good, scene.Entry{Header: tar.Header{Name: "null", Typeflag: tar.TypeChar, Devmajor: 1, Devminor: 3}}), pulumiv1.ArtifactUnusableReason},
		{"garbage", []byte("this is no archive"), pulumiv1.ArtifactUnusableReason},
		{"too-large", append(scene.Tarball(good), make([]byte, maxArtifactSize)...), pulumiv1.ArtifactTooLargeReason},
		{"bomb", scene.Tarball(good, scene.File("zeros", string(make([]byte, maxUnpackedSize+1)))), pulumiv1.ArtifactTooLargeReason},
		{"many-entries", scene.Tarball(append(slices.Repeat([]scene.Entry{scene.File("f", "")}, maxEntries+1), good)...), pulumiv1.ArtifactTooLargeReason},
	} {
		t.Run(test.name, func(t *testing.T) {
			p := begin(t, "hostile-"+test.name)
			p.start(artifacts.Put("v1", test.content))
			stack := p.Await(notReady(test.reason))
			p.Expect(stack.Status.ObservedGeneration).To(Equal(stack.Generation), "whoever waits for the Stack shall fail fast")
			p.Expect(p.Updates()).To(BeEmpty())
		})
	}
}

func TestWrongDigestIsReportedAndHeals(t *testing.T) {
	p := begin(t, "wrong-digest")
	artifact := p.put(p.returning(1))
	wrong := artifact.DeepCopy()
	wrong.Digest = scene.DigestOf([]byte("something else"))
	p.start(wrong)
	stack := p.Await(notReady(pulumiv1.ArtifactDigestMismatchReason))
	p.Expect(statuscheck.Message(stack)).To(And(ContainSubstring(wrong.Digest), Not(ContainSubstring(artifact.Digest))), "what is there is in the log only")
	p.Expect(p.Updates()).To(BeEmpty())

	p.Offer(artifact)
	p.Await(ready(artifact.Digest))
}

func TestArtifactThatVanishedIsWaitedFor(t *testing.T) {
	suite.Long(t, "further states of a source")
	p := begin(t, "vanished")
	artifact := p.put(p.returning(1))
	artifacts.Replace(artifact.Path, nil)
	p.start(artifact)
	p.Await(notReady(pulumiv1.ArtifactFetchFailedReason))
	next := p.publish(p.returning(2))
	p.Await(ready(next.Digest))
}

func TestOneDownloadServesEveryStack(t *testing.T) {
	p := begin(t, "one-download")
	artifact := p.put(p.returning(1))
	p.start(artifact)
	for _, other := range []string{"one-download-b", "one-download-c"} {
		p.layer(other)
	}
	for _, each := range []string{p.Name, "one-download-b", "one-download-c"} {
		p.AwaitStack(each, ready(artifact.Digest))
	}
	p.Expect(artifacts.Requests(artifact)).To(Equal(1))
}
