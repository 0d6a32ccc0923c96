package e2e_test

import (
	"archive/tar"
	"crypto/sha256"
	"fmt"
	"testing"

	. "github.com/onsi/gomega"

	"github.com/fluxcd/pkg/apis/meta"
	sourcev1 "github.com/fluxcd/source-controller/api/v1"

	pulumiv1 "github.com/stack-controller/stack-controller/api/pulumi/v1"
)

func TestStackSaysWhatIsWrongWithItsSource(t *testing.T) {
	for _, test := range []struct {
		name   string
		change func(*pulumiv1.Stack)
		reason string
		says   string
	}{
		{"missing", func(s *pulumiv1.Stack) { s.Spec.FluxSource.SourceRef.Name = "nobody" }, pulumiv1.SourceNotFoundReason, "nobody does not exist"},
		{"without-artifact", nil, pulumiv1.ArtifactNotFoundReason, "has no artifact yet"},
		{"unknown-kind", func(s *pulumiv1.Stack) { s.Spec.FluxSource.SourceRef.Kind = "Mystery" }, pulumiv1.SourceKindNotInstalledReason, "does not serve Mystery"},
		{"forbidden-kind", func(s *pulumiv1.Stack) { s.Spec.FluxSource.SourceRef.Kind = sourcev1.HelmChartKind }, pulumiv1.AccessDeniedReason, "not allowed to read HelmChart"},
		{"other-namespace", func(s *pulumiv1.Stack) { s.Spec.FluxSource.SourceRef.Namespace = "kube-system" }, pulumiv1.AccessDeniedReason, "references to another namespace are not allowed"},
	} {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			g := NewWithT(t)
			name := "source-" + test.name
			changes := []func(*pulumiv1.Stack){}
			if test.change != nil {
				changes = append(changes, test.change)
			}
			g.Expect(start(t.Context(), name, nil, changes...)).To(Succeed())
			stack := await(t.Context(), g, name, notReady(test.reason))
			g.Expect(readyMessage(stack)).To(ContainSubstring(test.says))
			g.Expect(updates(t.Context(), g, name)).To(BeEmpty())
		})
	}
}

func TestStackRunsAsSoonAsItsSourceAppears(t *testing.T) {
	t.Parallel()
	g := NewWithT(t)
	const name = "source-appears"
	g.Expect(start(t.Context(), name, nil)).To(Succeed())
	await(t.Context(), g, name, notReady(pulumiv1.ArtifactNotFoundReason))
	artifact := artifacts.put("v1", packed(yamlProgram(name, "outputs:", "  x: 1")))
	g.Expect(publish(t.Context(), name, artifact)).To(Succeed())
	await(t.Context(), g, name, ready(artifact.Digest))
}

func TestHostileArtifactNeverRunsAndIsExplained(t *testing.T) {
	good := file("Pulumi.yaml", "name: hostile\nruntime: yaml\n")
	for _, test := range []struct {
		name    string
		content []byte
		reason  string
	}{
		{"parent-path", tarball(good, file("../escape", "x")), pulumiv1.ArtifactUnusableReason},
		{"absolute-path", tarball(good, file("/tmp/escape", "x")), pulumiv1.ArtifactUnusableReason},
		{"device", tarball(good, entry{header: tar.Header{Name: "null", Typeflag: tar.TypeChar, Devmajor: 1, Devminor: 3}}), pulumiv1.ArtifactUnusableReason},
		{"garbage", []byte("this is no archive"), pulumiv1.ArtifactUnusableReason},
		{"too-large", append(tarball(good), make([]byte, maxArtifactSize)...), pulumiv1.ArtifactTooLargeReason},
		{"bomb", tarball(good, file("zeros", string(make([]byte, maxUnpackedSize+1)))), pulumiv1.ArtifactTooLargeReason},
		{"many-entries", tarball(append(many(maxEntries+1), good)...), pulumiv1.ArtifactTooLargeReason},
	} {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			g := NewWithT(t)
			name := "hostile-" + test.name
			g.Expect(start(t.Context(), name, artifacts.put("v1", test.content))).To(Succeed())
			stack := await(t.Context(), g, name, notReady(test.reason))
			g.Expect(stack.Status.ObservedGeneration).To(Equal(stack.Generation), "whoever waits for the Stack shall fail fast")
			g.Expect(updates(t.Context(), g, name)).To(BeEmpty())
		})
	}
}

func many(count int) []entry {
	entries := make([]entry, count)
	for i := range entries {
		entries[i] = file(fmt.Sprintf("f%d", i), "")
	}
	return entries
}

func TestWrongDigestIsReportedWithBothAndHeals(t *testing.T) {
	t.Parallel()
	g := NewWithT(t)
	const name = "wrong-digest"
	content := packed(yamlProgram(name, "outputs:", "  x: 1"))
	artifact := artifacts.put("v1", content)
	wrong := artifact.DeepCopy()
	wrong.Digest = fmt.Sprintf("sha256:%x", sha256.Sum256([]byte("something else")))
	g.Expect(start(t.Context(), name, wrong)).To(Succeed())
	stack := await(t.Context(), g, name, notReady(pulumiv1.ArtifactDigestMismatchReason))
	g.Expect(readyMessage(stack)).To(And(ContainSubstring(wrong.Digest), ContainSubstring(artifact.Digest)))
	g.Expect(updates(t.Context(), g, name)).To(BeEmpty())

	g.Expect(publish(t.Context(), name, artifact)).To(Succeed())
	await(t.Context(), g, name, ready(artifact.Digest))
}

func TestArtifactThatVanishedIsWaitedFor(t *testing.T) {
	t.Parallel()
	g := NewWithT(t)
	const name = "vanished"
	artifact := artifacts.put("v1", packed(yamlProgram(name, "outputs:", "  x: 1")))
	artifacts.remove(artifact)
	g.Expect(start(t.Context(), name, artifact)).To(Succeed())
	await(t.Context(), g, name, notReady(pulumiv1.ArtifactFetchFailedReason))
	next := artifacts.put("v2", packed(yamlProgram(name, "outputs:", "  x: 2")))
	g.Expect(publish(t.Context(), name, next)).To(Succeed())
	await(t.Context(), g, name, ready(next.Digest))
}

func TestOneDownloadServesEveryStack(t *testing.T) {
	t.Parallel()
	g := NewWithT(t)
	artifact := artifacts.put("v1", packed(yamlProgram("shared", "outputs:", "  x: 1")))
	for _, name := range []string{"shared-a", "shared-b", "shared-c"} {
		g.Expect(start(t.Context(), name, artifact, func(s *pulumiv1.Stack) { s.Spec.Stack = name })).To(Succeed())
	}
	for _, name := range []string{"shared-a", "shared-b", "shared-c"} {
		await(t.Context(), g, name, ready(artifact.Digest))
	}
	g.Expect(artifacts.requests(artifact)).To(Equal(1))
}

func readyMessage(stack *pulumiv1.Stack) string {
	for _, condition := range stack.Status.Conditions {
		if condition.Type == meta.ReadyCondition {
			return condition.Message
		}
	}
	return ""
}
