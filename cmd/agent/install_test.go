package main

import (
	"bytes"
	"os"
	"path/filepath"
	"syscall"
	"testing"

	. "github.com/onsi/gomega"
)

func TestTheAgentInstallsItself(t *testing.T) {
	g := NewWithT(t)
	share := t.TempDir()
	to, workspace := filepath.Join(share, "agent"), filepath.Join(share, "workspace")
	args := []string{"install", "--to=" + to, "--workspace=" + workspace}
	previous := syscall.Umask(0o077)
	defer syscall.Umask(previous)
	g.Expect(os.WriteFile(to+".part", []byte("left by an earlier attempt"), 0o400)).To(Succeed())
	// The second run is that of a pod whose sandbox was created again.
	for range 2 {
		var out bytes.Buffer
		g.Expect(run(t.Context(), args, &out)).To(Succeed())
		g.Expect(out.String()).To(Equal("installed agent " + version + " as " + to + "\n"))
		self, err := os.ReadFile("/proc/self/exe")
		g.Expect(err).NotTo(HaveOccurred())
		installed, err := os.ReadFile(to)
		g.Expect(err).NotTo(HaveOccurred())
		g.Expect(bytes.Equal(installed, self)).To(BeTrue())
		g.Expect(os.Stat(to)).To(HaveField("Mode()", BeEquivalentTo(0o755)))
		g.Expect(os.Stat(workspace)).To(HaveField("Mode()", os.ModeDir|os.ModeSetgid|0o777))
	}
	g.Expect(filepath.Glob(filepath.Join(share, "*"))).To(ConsistOf(to, workspace))
}

func TestAProgramThatRunsFromTheTargetIsReplaced(t *testing.T) {
	g := NewWithT(t)
	to := filepath.Join(t.TempDir(), "agent")
	g.Expect(run(t.Context(), []string{"install", "--to=" + to}, &bytes.Buffer{})).To(Succeed())
	old, err := os.Open(to)
	g.Expect(err).NotTo(HaveOccurred())
	defer old.Close()
	before, err := old.Stat()
	g.Expect(err).NotTo(HaveOccurred())
	g.Expect(run(t.Context(), []string{"install", "--to=" + to}, &bytes.Buffer{})).To(Succeed())
	after, err := os.Stat(to)
	g.Expect(err).NotTo(HaveOccurred())
	g.Expect(os.SameFile(before, after)).To(BeFalse(), "it was written over")
}

func TestTheWorkspaceThatIsThereStays(t *testing.T) {
	g := NewWithT(t)
	share := t.TempDir()
	to, link := "--to="+filepath.Join(share, "agent"), filepath.Join(share, "workspace")
	target := filepath.Join(share, "source")
	g.Expect(os.Mkdir(target, 0o700)).To(Succeed())
	g.Expect(os.Symlink(target, link)).To(Succeed())
	g.Expect(run(t.Context(), []string{"install", to, "--workspace=" + link}, &bytes.Buffer{})).To(Succeed())
	g.Expect(os.Readlink(link)).To(Equal(target))
	g.Expect(os.Stat(target)).To(HaveField("Mode()", os.ModeDir|0o700))

	if os.Geteuid() == 0 {
		other := filepath.Join(share, "other")
		g.Expect(os.Mkdir(other, 0o700)).To(Succeed())
		g.Expect(os.Chown(other, 1234, 1234)).To(Succeed())
		g.Expect(run(t.Context(), []string{"install", to, "--workspace=" + other}, &bytes.Buffer{})).To(Succeed())
		g.Expect(os.Stat(other)).To(HaveField("Mode()", os.ModeDir|0o700))
	}
	file := filepath.Join(share, "file")
	g.Expect(os.WriteFile(file, nil, 0o600)).To(Succeed())
	g.Expect(run(t.Context(), []string{"install", to, "--workspace=" + file}, &bytes.Buffer{})).To(MatchError(ContainSubstring("not a directory")))
}

func TestAnInstallationThatCannotWork(t *testing.T) {
	g := NewWithT(t)
	g.Expect(run(t.Context(), []string{"install"}, &bytes.Buffer{})).To(MatchError(ContainSubstring("--to is required")))
	g.Expect(run(t.Context(), []string{"install", "--to=x", "y"}, &bytes.Buffer{})).To(MatchError(ContainSubstring("unexpected argument")))
	dir := filepath.Join(t.TempDir(), "directory")
	g.Expect(os.MkdirAll(filepath.Join(dir, "full"), 0o755)).To(Succeed())
	g.Expect(run(t.Context(), []string{"install", "--to=" + dir}, &bytes.Buffer{})).To(MatchError(ContainSubstring(dir)))
	g.Expect(dir + ".part").NotTo(BeAnExistingFile())
}

func TestAgentWithoutAnInitContainerMakesTheWorkspaceItself(t *testing.T) {
	g := NewWithT(t)
	share := t.TempDir()
	workspace := filepath.Join(share, "workspace")
	isUsable := HaveField("Mode()", os.ModeDir|os.ModeSetgid|0o777)
	g.Expect(takeWorkspace(workspace)).To(Succeed())
	g.Expect(os.Stat(workspace)).To(isUsable)

	file := filepath.Join(workspace, "Pulumi.yaml")
	g.Expect(os.WriteFile(file, []byte("name: app"), 0o600)).To(Succeed())
	g.Expect(os.Chmod(workspace, 0o777)).To(Succeed())
	g.Expect(takeWorkspace(workspace)).To(Succeed())
	g.Expect(os.ReadFile(file)).To(BeEquivalentTo("name: app"))
	g.Expect(os.Stat(workspace)).To(HaveField("Mode()", os.ModeDir|0o777), "it is somebody's")
}
