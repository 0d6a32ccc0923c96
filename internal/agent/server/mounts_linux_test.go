package server

import (
	"errors"
	"os"
	"path/filepath"
	"runtime"
	"syscall"
	"testing"

	. "github.com/onsi/gomega"
)

func TestWhatIsMountedForTheSourceIsInEachSource(t *testing.T) {
	dir := t.TempDir()
	write(t, dir, map[string]string{"mounts/app/key.json": "key", "mounts/.venv/bin/python": "python", "mounts/new/deep/x": "x"})
	a := startAgent(t, dir, func(o *Options) { o.SourceMounts = []string{".venv", "app/key.json", "new/deep"} })
	for _, version := range []string{"1", "2"} {
		a.Expect(a.push(pack(t, map[string]string{"Pulumi.yaml": projectYAML, "app/key.json": "of the source", "version": version}))).To(Succeed())
		for name, content := range map[string]string{"app/key.json": "key", ".venv/bin/python": "python", "new/deep/x": "x", "version": version} {
			found, err := os.ReadFile(filepath.Join(dir, "source", name))
			a.Expect(string(found), err).To(Equal(content), name)
		}
	}
	a.Expect(list(t, filepath.Join(dir, "mounts"))).To(HaveLen(3), "what is mounted is not the agent's")

	// A file is where the mount needs a directory; the source that is there stays.
	refused := a.push(pack(t, map[string]string{"Pulumi.yaml": projectYAML, "app": "a file"}))
	a.Expect(refused).To(MatchError(ContainSubstring("the source has no place for what the pod mounts at app/key.json")))
	a.Expect(filepath.Join(dir, "source", "version")).To(BeARegularFile())
}

func TestProgramMayBeMounted(t *testing.T) {
	for _, mounted := range []string{"app", "app/Pulumi.yaml"} {
		dir := t.TempDir()
		write(t, dir, map[string]string{"mounts/app/Pulumi.yaml": projectYAML})
		a := startAgent(t, dir, func(o *Options) { o.SourceMounts = []string{mounted} })
		source := pack(t, map[string]string{"README": "x"})
		a.Expect(a.push(source)).To(Succeed())
		project, message := a.runToEnd(update("a", source.digest, "app"))
		a.Expect(message).To(BeEmpty())
		a.Expect(project).To(Equal(filepath.Join(dir, "source", "app")))
	}
}

func TestSourceThatCannotBeRemovedStopsNothing(t *testing.T) {
	if os.Getuid() != 0 {
		t.Skip("needs root, to make files that the agent cannot remove")
	}
	const agent = 65534
	dir := t.TempDir()
	old := filepath.Join(dir, oldName)
	NewWithT(t).Expect(errors.Join(os.Chown(dir, agent, agent), os.MkdirAll(filepath.Join(old, "app"), 0o755), os.Mkdir(filepath.Join(dir, sourceName), 0o755))).To(Succeed())
	for parent := dir; parent != "/"; parent = filepath.Dir(parent) {
		if info, err := os.Stat(parent); err == nil && parent != dir && info.Mode()&0o001 == 0 {
			NewWithT(t).Expect(os.Chmod(parent, info.Mode()|0o011)).To(Succeed())
		}
	}
	// Only this thread is another user for the file system.
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	NewWithT(t).Expect(syscall.Setfsuid(agent)).To(Succeed())
	defer func() { _ = syscall.Setfsuid(0) }()

	NewWithT(t).Expect(os.Mkdir(filepath.Join(dir, oldName+".1"), 0o700)).To(Succeed(), "this one can be removed by now")
	openTree(t, dir)
	NewWithT(t).Expect(filepath.Join(dir, oldName+".2", "app")).To(BeADirectory())
	NewWithT(t).Expect(filepath.Join(dir, oldName+".1")).NotTo(BeAnExistingFile())
	NewWithT(t).Expect(old).NotTo(BeAnExistingFile())
}
