package tenancy_test

import (
	"archive/tar"
	"io"
	"strings"

	. "github.com/onsi/gomega"

	sourcev1 "github.com/fluxcd/source-controller/api/v1"

	pulumiv1 "github.com/stack-controller/stack-controller/api/pulumi/v1"
	"github.com/stack-controller/stack-controller/tests/tenancy/pressure"
)

// Refusals of an archive.
var (
	unusable = refusal{reasons: []string{pulumiv1.ArtifactUnusableReason}, stalled: true}
	tooLarge = refusal{reasons: []string{pulumiv1.ArtifactTooLargeReason}, stalled: true}
)

// archiveAttacks publish tarballs that no honest source packs.
var archiveAttacks = []attack{
	{
		name: "archive-bomb", promise: "archives",
		does: "publishes an artifact of 1 MB that unpacks to 1.1 GiB",
		sees: "`ArtifactTooLarge`, Stalled",
		run: func(a *attacker) {
			a.publish(pressure.Bomb, tooLarge)
		},
	},
	{
		name: "archive-entries", promise: "archives",
		does: "publishes an artifact with 120,000 empty files",
		sees: "`ArtifactTooLarge`, Stalled",
		run: func(a *attacker) {
			a.publish(pressure.TooManyFiles, tooLarge)
		},
	},
	{
		name: "archive-paths", promise: "archives",
		does: "publishes an artifact with a file at `../../etc/passwd`",
		sees: "`ArtifactUnusable`, Stalled",
		run: func(a *attacker) {
			a.publish(func(w *tar.Writer) error {
				a.file(w, tar.Header{Name: "../../etc/passwd", Size: 4}, strings.NewReader("root"))
				return nil
			}, unusable)
		},
	},
	{
		name: "archive-links", promise: "archives",
		does: "publishes an artifact with links to files outside of it",
		sees: "`ArtifactUnusable`, Stalled: hard links are refused, and symbolic links left out. No file outside of the artifact is read.",
		run: func(a *attacker) {
			a.publish(func(w *tar.Writer) error {
				a.file(w, tar.Header{Name: "Pulumi.yaml", Typeflag: tar.TypeSymlink, Linkname: "/var/run/secrets/kubernetes.io/serviceaccount/token"}, nil)
				a.file(w, tar.Header{Name: "hard", Typeflag: tar.TypeLink, Linkname: "../../../etc/passwd"}, nil)
				return nil
			}, unusable)
		},
	},
	{
		name: "archive-devices", promise: "archives",
		does: "publishes an artifact with a device and a pipe",
		sees: "`ArtifactUnusable`, Stalled",
		run: func(a *attacker) {
			a.publish(func(w *tar.Writer) error {
				a.file(w, tar.Header{Name: "zero", Typeflag: tar.TypeChar, Devmajor: 1, Devminor: 5}, nil)
				a.file(w, tar.Header{Name: "pipe", Typeflag: tar.TypeFifo}, nil)
				return nil
			}, unusable)
		},
	},
	{
		name: "archive-names", promise: "archives",
		does: "publishes an artifact with a file in hundreds of thousands of nested directories, with a path of 900 KiB",
		sees: "`ArtifactUnusable` or `ArtifactTooLarge`, Stalled, with a short message",
		run: func(a *attacker) {
			a.publish(func(w *tar.Writer) error {
				a.file(w, tar.Header{Name: strings.Repeat("x/", 450<<10) + "x", Format: tar.FormatPAX}, nil)
				return nil
			}, refusal{reasons: []string{pulumiv1.ArtifactUnusableReason, pulumiv1.ArtifactTooLargeReason}, stalled: true})
		},
	},
	{
		name: "archive-that-is-none", promise: "archives",
		does: "publishes an artifact that is not an archive",
		sees: "`ArtifactUnusable`, Stalled",
		run: func(a *attacker) {
			a.publishBytes([]byte(strings.Repeat("<html>", 100)), unusable)
		},
	},
}

// file writes an entry of a tarball.
func (a *attacker) file(w *tar.Writer, header tar.Header, content io.Reader) {
	header.Mode = 0o644
	a.Expect(w.WriteHeader(&header)).To(Succeed())
	if content != nil {
		_, err := io.Copy(w, content)
		a.Expect(err).NotTo(HaveOccurred())
	}
}

// publish publishes a tarball and expects that a Stack of it is refused.
func (a *attacker) publish(write func(*tar.Writer) error, want refusal, changes ...func(*pulumiv1.StackSpec)) {
	a.t.Helper()
	content, err := pressure.Tarball(write)
	a.Expect(err).NotTo(HaveOccurred())
	a.publishBytes(content, want, changes...)
}

func (a *attacker) publishBytes(content []byte, want refusal, changes ...func(*pulumiv1.StackSpec)) {
	a.t.Helper()
	a.Expect(a.means.PublishArchive(a.ctx, a.name, content)).To(Succeed())
	a.expectRefused(a.createStack(append(changes, fromFlux(sourcev1.OCIRepositoryKind, "", a.name))...), want)
}
