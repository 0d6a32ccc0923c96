package archive_test

import (
	"archive/tar"
	"bytes"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"testing"

	"github.com/stack-controller/stack-controller/internal/source/artifact/archive"
)

// FuzzUnpack unpacks the bytes as they are, and as the content of a gzip stream, where mutations do not fail at its checksum.
func FuzzUnpack(f *testing.F) {
	limits := archive.Limits{MaxDownloadSize: 64 << 10, MaxUnpackedSize: 64 << 10, MaxEntries: 20}
	f.Add(pack(program), false)
	f.Add(tarOf(program), true)
	for _, hostile := range hostileArchives() {
		if len(hostile.packed) > 16<<10 {
			continue
		}
		f.Add(hostile.packed, false)
		if errors.Is(archive.Check(f.Context(), bytes.NewReader(hostile.packed), limits), archive.ErrInvalid) {
			continue
		}
		f.Add(gunzip(hostile.packed), true)
	}
	for _, name := range []string{"../evil", "/evil", `a\b`, "a/../b", "a//b/./c"} {
		f.Add(tarOf(func(w *tar.Writer) {
			add(w, tar.Header{Name: "l", Typeflag: tar.TypeSymlink, Linkname: ".."}, "")
			add(w, tar.Header{Name: "l/" + name}, "content")
		}), true)
	}
	f.Fuzz(func(t *testing.T, content []byte, compress bool) {
		if compress {
			content = zip(content)
		}
		parent := t.TempDir()
		dir := filepath.Join(parent, "tree")
		if err := os.Mkdir(dir, 0o700); err != nil {
			t.Fatal(err)
		}
		checked := archive.Check(t.Context(), bytes.NewReader(content), limits)
		_, unpacked := archive.Unpack(t.Context(), bytes.NewReader(content), dir, limits)
		if (checked == nil) != (unpacked == nil) || checked != nil && checked.Error() != unpacked.Error() {
			t.Errorf("Check says %v, Unpack says %v", checked, unpacked)
		}
		if unpacked != nil && !errors.Is(unpacked, archive.ErrInvalid) && !errors.Is(unpacked, archive.ErrTooLarge) {
			t.Errorf("error is not typed: %v", unpacked)
		}
		requireWithin(t, parent, dir, limits)
	})
}

// requireWithin fails when anything but dir is in its parent, or when its content exceeds the limits.
func requireWithin(t *testing.T, parent, dir string, limits archive.Limits) {
	t.Helper()
	if beside, err := os.ReadDir(parent); err != nil || len(beside) != 1 {
		t.Fatalf("beside the directory: %v, %v", beside, err)
	}
	var entries int
	var size int64
	err := filepath.WalkDir(dir, func(path string, entry fs.DirEntry, err error) error {
		if err != nil || path == dir {
			return err
		}
		info, err := entry.Info()
		if err != nil {
			return err
		}
		if !info.IsDir() && !info.Mode().IsRegular() || info.Mode().Perm()&0o077 != 0 {
			t.Errorf("%s has mode %s", path, info.Mode())
		}
		entries++
		if info.Mode().IsRegular() {
			size += info.Size()
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	if entries > limits.MaxEntries || size > limits.MaxUnpackedSize {
		t.Errorf("%d entries with %d bytes were written", entries, size)
	}
}
