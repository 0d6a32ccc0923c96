package server

import (
	"io/fs"
	"os"
	"path/filepath"
	"runtime"
	"syscall"
	"testing"

	. "github.com/onsi/gomega"
)

func TestDirectoriesThatNobodyMayWriteToAreRemoved(t *testing.T) {
	g := NewWithT(t)
	dir := shortDir(t)
	write(t, dir, map[string]string{"tree/module/pkg/x.go": ""})
	for _, readOnly := range []string{"tree/module/pkg", "tree/module"} {
		g.Expect(os.Chmod(filepath.Join(dir, readOnly), 0o500)).To(Succeed())
	}
	ordinaryUser(t, dir)
	root, err := os.OpenRoot(dir)
	g.Expect(err).NotTo(HaveOccurred())
	defer root.Close()
	g.Expect(root.RemoveAll("tree")).To(MatchError(fs.ErrPermission))
	g.Expect(removeTree(root, "tree")).To(Succeed())
	g.Expect(filepath.Join(dir, "tree")).NotTo(BeAnExistingFile())
}

// ordinaryUser makes an unprivileged user the owner of dir, and the test access files as that user, so that permissions apply to it.
func ordinaryUser(t *testing.T, dir string) {
	t.Helper()
	if os.Getuid() != 0 {
		return
	}
	const nobody = 65534
	err := filepath.WalkDir(dir, func(path string, _ fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		return os.Lchown(path, nobody, nobody)
	})
	NewWithT(t).Expect(err).NotTo(HaveOccurred())
	// The thread is not unlocked, so that it ends with the test and no other goroutine uses it. The cleanup removes the directory as the
	// original user.
	runtime.LockOSThread()
	_, _, _ = syscall.RawSyscall(syscall.SYS_SETFSUID, nobody, 0, 0)
	t.Cleanup(func() { _, _, _ = syscall.RawSyscall(syscall.SYS_SETFSUID, 0, 0, 0) })
}
