package images

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"debug/elf"
	"debug/macho"
	"errors"
	"io"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"testing"

	. "github.com/onsi/gomega"

	"github.com/stack-controller/stack-controller/tests/suite"
	"github.com/stack-controller/stack-controller/tests/tools"
)

// releaseCLI makes the archives of the command line, for all platforms or the given ones, and returns where they are.
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
	archiveOf := func(platform string) string { return "flux-pulumi_1.2.3_" + platform + ".tar.gz" }
	for platform, isFor := range map[string]func(program []byte) any{
		"linux_amd64":  func(program []byte) any { return machine(t, program, elf.NewFile).Machine == elf.EM_X86_64 },
		"linux_arm64":  func(program []byte) any { return machine(t, program, elf.NewFile).Machine == elf.EM_AARCH64 },
		"darwin_amd64": func(program []byte) any { return machine(t, program, macho.NewFile).Cpu == macho.CpuAmd64 },
		"darwin_arm64": func(program []byte) any { return machine(t, program, macho.NewFile).Cpu == macho.CpuArm64 },
	} {
		g.Expect(string(read(output, "checksums.txt"))).To(ContainSubstring("  " + archiveOf(platform) + "\n"))
		files := unpackArchive(t, read(output, archiveOf(platform)))
		g.Expect(files).To(HaveLen(3))
		g.Expect(string(files["kubectl-pulumi"].content)).To(Equal("flux-pulumi"), "a link")
		g.Expect(files["LICENSE"].content).NotTo(BeEmpty())
		g.Expect(files["flux-pulumi"].mode.Perm()).To(Equal(fs.FileMode(0o755)))
		g.Expect(isFor(files["flux-pulumi"].content)).To(BeTrue(), platform)
	}
	native := "linux_" + runtime.GOARCH
	files := unpackArchive(t, read(output, archiveOf(native)))
	g.Expect(runProgram(t, files["flux-pulumi"].content, "version")).To(Equal("flux-pulumi " + releaseVersion + "\n"))
	again := releaseCLI(t, "linux/"+runtime.GOARCH)
	g.Expect(bytes.Equal(read(again, archiveOf(native)), read(output, archiveOf(native)))).To(BeTrue(), "another build of the same source")
}

// machine parses a program.
func machine[F any](t *testing.T, program []byte, parse func(io.ReaderAt) (F, error)) F {
	t.Helper()
	parsed, err := parse(bytes.NewReader(program))
	NewWithT(t).Expect(err).NotTo(HaveOccurred())
	return parsed
}

// archived is a file of an archive, or a link and where it leads.
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
