package images

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"context"
	"debug/elf"
	"debug/macho"
	"debug/pe"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"testing"
	"time"

	. "github.com/onsi/gomega"

	"github.com/stack-controller/stack-controller/tests/framework/suite"
	"github.com/stack-controller/stack-controller/tests/tools"
)

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

func TestImageIsBuiltOncePerKey(t *testing.T) {
	g := NewWithT(t)
	t.Setenv("STACK_CONTROLLER_CACHE", t.TempDir())
	builds := 0
	build := func(path string) error {
		builds++
		return os.WriteFile(path, nil, 0o600)
	}
	first, err := cached(t.Context(), "name", hashOf([]byte("1")), nil, build)
	g.Expect(err).NotTo(HaveOccurred())
	g.Expect(cached(t.Context(), "name", hashOf([]byte("1")), nil, build)).To(Equal(first))
	g.Expect(builds).To(Equal(1))
	g.Expect(cached(t.Context(), "name", hashOf([]byte("2")), nil, build)).NotTo(Equal(first))
	g.Expect(builds).To(Equal(2))
}

func TestFailedBuildLeavesNothing(t *testing.T) {
	g := NewWithT(t)
	cache := t.TempDir()
	t.Setenv("STACK_CONTROLLER_CACHE", cache)
	_, err := cached(t.Context(), "name", hashOf(), nil, func(path string) error {
		return errors.Join(os.WriteFile(path, nil, 0o600), errors.New("no space"))
	})
	g.Expect(err).To(MatchError("no space"))
	g.Expect(filepath.Glob(filepath.Join(cache, "images", "name", "[^.]*"))).To(BeEmpty())
}

func TestOldTarballsAreRemovedButNotThoseInUse(t *testing.T) {
	g := NewWithT(t)
	cache := t.TempDir()
	t.Setenv("STACK_CONTROLLER_CACHE", cache)
	write := func(path string) error { return os.WriteFile(path, nil, 0o600) }
	var paths []string
	for n := range 6 {
		path, err := cached(t.Context(), "name", hashOf([]byte(fmt.Sprint(n))), nil, write)
		g.Expect(err).NotTo(HaveOccurred())
		paths = append(paths, path)
	}
	g.Expect(filepath.Glob(filepath.Join(cache, "images", "name", "*.tar"))).To(HaveLen(6), "all of them were used just now")

	// Make the others look unused for long enough.
	for n, path := range paths[1:] {
		used := time.Now().Add(-unusedAfter - time.Duration(10-n)*time.Minute)
		g.Expect(os.Chtimes(path, used, used)).To(Succeed())
	}
	last, err := cached(t.Context(), "name", hashOf([]byte("last")), nil, write)
	g.Expect(err).NotTo(HaveOccurred())
	g.Expect(filepath.Glob(filepath.Join(cache, "images", "name", "*.tar"))).To(ConsistOf(last, paths[0], paths[5]))
}

// releaseCLI builds the archives of the command line tool, for all platforms or the given ones, and returns their directory.
func releaseCLI(t *testing.T, platforms string) string {
	t.Helper()
	output := t.TempDir()
	cmd := exec.CommandContext(t.Context(), filepath.Join(tools.RepositoryRoot(), ".ci", "release"), "cli", "checksums")
	cmd.Env = append(os.Environ(), "VERSION="+releaseVersion, "IMAGE_REGISTRY=registry.example.com/flux", "OUTPUT="+output, "CLI_PLATFORMS="+platforms)
	log, err := cmd.CombinedOutput()
	NewWithT(t).Expect(err).NotTo(HaveOccurred(), "%s", log)
	return output
}

func TestCommandLineIsReleasedForEveryPlatformAndTheSameEachTime(t *testing.T) {
	suite.Long(t, "builds images")
	g := NewWithT(t)
	output := releaseCLI(t, "")
	read := func(dir, name string) []byte {
		content, err := os.ReadFile(filepath.Join(dir, name))
		g.Expect(err).NotTo(HaveOccurred())
		return content
	}
	windows := func(program []byte) any { return machine(t, program, pe.NewFile).Machine }
	archiveOf := func(platform string) string { return "flux-pulumi_1.2.3_" + platform + ".tar.gz" }
	for platform, isFor := range map[string]func(program []byte) any{
		"linux_amd64":  func(program []byte) any { return machine(t, program, elf.NewFile).Machine == elf.EM_X86_64 },
		"linux_arm64":  func(program []byte) any { return machine(t, program, elf.NewFile).Machine == elf.EM_AARCH64 },
		"darwin_amd64": func(program []byte) any { return machine(t, program, macho.NewFile).Cpu == macho.CpuAmd64 },
		"darwin_arm64": func(program []byte) any { return machine(t, program, macho.NewFile).Cpu == macho.CpuArm64 },
	} {
		g.Expect(string(read(output, "checksums.txt"))).To(ContainSubstring("  " + archiveOf(platform) + "\n"))
		files := unpackArchive(t, read(output, archiveOf(platform)))
		g.Expect(files).To(HaveLen(2), "krew unpacks no links")
		g.Expect(files["LICENSE"].content).NotTo(BeEmpty())
		g.Expect(files["flux-pulumi"].mode.Perm()).To(Equal(fs.FileMode(0o755)))
		g.Expect(isFor(files["flux-pulumi"].content)).To(BeTrue(), platform)
	}
	for platform, isFor := range map[string]uint16{"windows_amd64": pe.IMAGE_FILE_MACHINE_AMD64, "windows_arm64": pe.IMAGE_FILE_MACHINE_ARM64} {
		files := unpackArchive(t, read(output, archiveOf(platform)))
		g.Expect(files).To(HaveLen(2))
		g.Expect(windows(files["flux-pulumi.exe"].content)).To(Equal(isFor), platform)
	}
	native := "linux_" + runtime.GOARCH
	files := unpackArchive(t, read(output, archiveOf(native)))
	g.Expect(runProgram(t, files["flux-pulumi"].content, "version")).To(Equal("flux-pulumi " + releaseVersion + "\n"))
	manifests := runProgram(t, files["flux-pulumi"].content, "install", "--export")
	for _, image := range []string{"stack-controller", "stack-controller-agent"} {
		g.Expect(manifests).To(ContainSubstring("registry.example.com/flux/" + image + ":" + releaseVersion + "\n"))
	}
	again := releaseCLI(t, "linux/"+runtime.GOARCH)
	g.Expect(bytes.Equal(read(again, archiveOf(native)), read(output, archiveOf(native)))).To(BeTrue(), "another build of the same source")
}

// machine parses an executable with the parser of its format.
func machine[F any](t *testing.T, program []byte, parse func(io.ReaderAt) (F, error)) F {
	t.Helper()
	parsed, err := parse(bytes.NewReader(program))
	NewWithT(t).Expect(err).NotTo(HaveOccurred())
	return parsed
}

// archived is a file of an archive, or a link with its target as the content.
type archived struct {
	content []byte
	mode    fs.FileMode
}

func unpackArchive(t *testing.T, content []byte) map[string]archived {
	t.Helper()
	g := NewWithT(t)
	compressed, err := gzip.NewReader(bytes.NewReader(content))
	g.Expect(err).NotTo(HaveOccurred())
	files := map[string]archived{}
	for reader := tar.NewReader(compressed); ; {
		header, err := reader.Next()
		if errors.Is(err, io.EOF) {
			return files
		}
		g.Expect(err).NotTo(HaveOccurred())
		content, err := io.ReadAll(reader)
		g.Expect(err).NotTo(HaveOccurred())
		if header.Typeflag == tar.TypeSymlink {
			content = []byte(header.Linkname)
		}
		files[header.Name] = archived{content: content, mode: header.FileInfo().Mode()}
	}
}
