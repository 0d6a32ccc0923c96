package images

import (
	"archive/tar"
	"context"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"testing"

	. "github.com/onsi/gomega"

	"github.com/stack-controller/stack-controller/tests/suite"
	"github.com/stack-controller/stack-controller/tests/tools"
)

func TestTagsTellThePinnedVersions(t *testing.T) {
	for _, test := range []struct{ directory, module, version string }{
		{"pulumi", "github.com/pulumi/pulumi/pkg/v3", pulumiVersion},
		{"source-controller", "github.com/fluxcd/source-controller", sourceControllerVersion},
		{"kustomize-controller", "github.com/fluxcd/kustomize-controller", kustomizeControllerVersion},
		{"notification-controller", "github.com/fluxcd/notification-controller", notificationControllerVersion},
	} {
		t.Run(test.directory, func(t *testing.T) {
			g := NewWithT(t)
			content, err := os.ReadFile(filepath.Join(tools.RepositoryRoot(), "tests", "tools", test.directory, "go.mod"))
			g.Expect(err).NotTo(HaveOccurred())
			g.Expect(string(content)).To(ContainSubstring("\t" + test.module + " " + test.version + " "))
		})
	}
}

func TestWorkspaceImageHasWhatAWorkspaceNeeds(t *testing.T) {
	suite.Long(t, "builds images")
	g := NewWithT(t)
	found, err := Pulumi(t.Context(), nil)
	g.Expect(err).NotTo(HaveOccurred())
	image := readImage(t, found.Tar)

	g.Expect(image.references).To(Equal([]string{found.Reference, OtherPulumiReference}))
	g.Expect(image.config.Architecture).To(Equal(runtime.GOARCH))
	g.Expect(image.config.Config.User).To(Equal("pulumi"))
	g.Expect(image.config.Config.Env).To(ContainElement("HOME=/home/pulumi"))
	g.Expect(image.config.Config.Env).To(ContainElement(HavePrefix("PATH=/pulumi/bin:")))

	files := image.files(t)
	for _, program := range []string{
		"/bin/busybox", "/pulumi/bin/pulumi", "/pulumi/bin/pulumi-language-yaml",
		"/home/pulumi/.pulumi/plugins/resource-test-v0.1.0/pulumi-resource-test",
	} {
		g.Expect(files[program].Mode&0o111).To(Equal(int64(0o111)), program)
	}
	g.Expect(files["/bin/sh"].Linkname).To(Equal("/bin/busybox"))
	g.Expect(files["/usr/bin/env"].Linkname).To(Equal("/bin/busybox"))
	g.Expect(files["/tmp"].Mode).To(Equal(int64(0o1777)))
	g.Expect(string(files["/etc/passwd"].content)).To(ContainSubstring("\npulumi:x:1000:1000:pulumi:/home/pulumi:/bin/sh\n"))
	for name, file := range files {
		if strings.HasPrefix(name, "/home/pulumi") {
			g.Expect(file.Uid).To(Equal(1000), name)
		}
	}
}

func TestImagesWithAShellShareItsLayer(t *testing.T) {
	suite.Long(t, "builds images")
	g := NewWithT(t)
	var lowest []string
	for _, build := range []func(context.Context, func(string)) (Image, error){Busybox, Pause, Pulumi} {
		found, err := build(t.Context(), nil)
		g.Expect(err).NotTo(HaveOccurred())
		lowest = append(lowest, readImage(t, found.Tar).config.RootFS.DiffIDs[0])
	}
	g.Expect(lowest).To(HaveEach(lowest[0]))
}

func TestFluxControllersDoNotRunAsRoot(t *testing.T) {
	suite.Long(t, "builds images")
	g := NewWithT(t)
	found, err := SourceController(t.Context(), nil)
	g.Expect(err).NotTo(HaveOccurred())
	image := readImage(t, found.Tar)
	g.Expect(image.config.Config.User).To(Equal("65534:65534"))
	g.Expect(image.files(t)[image.config.Config.Entrypoint[0]].Mode).To(Equal(int64(0o755)))
}

func TestSameFilesGiveTheSameTarball(t *testing.T) {
	g := NewWithT(t)
	source := filepath.Join(t.TempDir(), "program")
	g.Expect(os.WriteFile(source, []byte("content"), 0o600)).To(Succeed())
	c := contents{
		references: []string{"a:b"},
		layers:     []layer{{directory("d", 0o755, 1), program("d/p", source, 2), textFile("d/t", "text"), link("d/l", "t")}},
	}
	first, err := newArchive(c)
	g.Expect(err).NotTo(HaveOccurred())
	second, err := newArchive(c)
	g.Expect(err).NotTo(HaveOccurred())
	g.Expect(second.key()).To(Equal(first.key()))

	path := filepath.Join(t.TempDir(), "image.tar")
	g.Expect(first.write(path)).To(Succeed())
	files := readImage(t, path).files(t)
	g.Expect(files["/d"].Typeflag).To(BeEquivalentTo(tar.TypeDir))
	g.Expect(string(files["/d/p"].content)).To(Equal("content"))
	g.Expect(files["/d/p"].Gid).To(Equal(2))
	g.Expect(string(files["/d/t"].content)).To(Equal("text"))
	g.Expect(files["/d/l"].Linkname).To(Equal("t"))

	g.Expect(os.WriteFile(source, []byte("changed"), 0o600)).To(Succeed())
	third, err := newArchive(c)
	g.Expect(err).NotTo(HaveOccurred())
	g.Expect(third.key()).NotTo(Equal(first.key()))
}
