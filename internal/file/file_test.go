package file

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"testing"

	"golang.org/x/sys/unix"
)

func TestWrittenIsReadWithinTheLimit(t *testing.T) {
	path := filepath.Join(t.TempDir(), "file")
	for _, content := range []string{"first", "second and longer", ""} {
		if err := Write(path, []byte(content)); err != nil {
			t.Fatal(err)
		}
		got, err := Read(path, int64(len(content)))
		if err != nil || string(got) != content {
			t.Errorf("Read: %q, %v; want %q", got, err, content)
		}
	}
	if err := Write(path, []byte("12345")); err != nil {
		t.Fatal(err)
	}
	if _, err := Read(path, 4); !errors.Is(err, ErrTooLarge) {
		t.Errorf("five bytes with a limit of four: %v", err)
	}
	info, err := os.Stat(path)
	if err != nil || info.Mode().Perm() != 0o600 {
		t.Errorf("the mode of the file: %v, %v", info.Mode(), err)
	}
}

func TestOnlyRegularFilesAreReadAndWithoutWaiting(t *testing.T) {
	dir := t.TempDir()
	pipe := filepath.Join(dir, "pipe")
	if err := unix.Mkfifo(pipe, 0o600); err != nil {
		t.Fatal(err)
	}
	for _, path := range []string{pipe, dir} {
		if _, err := Read(path, 10); !errors.Is(err, ErrNotRegular) {
			t.Errorf("%s: %v", path, err)
		}
	}
}

func TestNothingIsReadOrWrittenOutsideOfTheRoot(t *testing.T) {
	outside, dir := filepath.Join(t.TempDir(), "outside"), t.TempDir()
	if err := os.WriteFile(outside, []byte("old"), 0o600); err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{"link", "written" + TemporarySuffix} {
		if err := os.Symlink(outside, filepath.Join(dir, name)); err != nil {
			t.Fatal(err)
		}
	}
	root, err := os.OpenRoot(dir)
	if err != nil {
		t.Fatal(err)
	}
	defer root.Close()
	if content, err := ReadIn(root, "link", 10); err == nil {
		t.Errorf("read through a link: %q", content)
	}
	for _, name := range []string{"link", "written"} {
		if err := WriteIn(root, name, []byte("new"), true); err != nil {
			t.Errorf("write %s: %v", name, err)
		}
	}
	if content, err := os.ReadFile(outside); err != nil || string(content) != "old" {
		t.Errorf("the file outside is now %q, %v", content, err)
	}
}

func TestFailedWriteLeavesNothingBehind(t *testing.T) {
	dir := t.TempDir()
	if err := os.Mkdir(filepath.Join(dir, "taken"), 0o700); err != nil {
		t.Fatal(err)
	}
	if err := Write(filepath.Join(dir, "taken"), nil); err == nil {
		t.Error("a directory was replaced by a file")
	}
	entries, err := fs.ReadDir(os.DirFS(dir), ".")
	if err != nil || len(entries) != 1 {
		t.Errorf("left in the directory: %v, %v", entries, err)
	}
}
