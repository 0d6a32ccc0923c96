package archive_test

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"sync/atomic"
	"testing"
	"testing/iotest"

	. "github.com/onsi/gomega"

	"github.com/stack-controller/stack-controller/internal/source/artifact/archive"
)

var small = archive.Limits{MaxDownloadSize: 1 << 20, MaxUnpackedSize: 1 << 20, MaxEntries: 100}

// program writes a small Pulumi program as source-controller would pack it.
func program(w *tar.Writer) {
	add(w, tar.Header{Name: ".", Typeflag: tar.TypeDir, Mode: 0o750}, "")
	add(w, tar.Header{Name: "Pulumi.yaml", Mode: 0o600}, "name: demo\nruntime: yaml\n")
	add(w, tar.Header{Name: "scripts", Typeflag: tar.TypeDir, Mode: 0o750}, "")
	add(w, tar.Header{Name: "scripts/build.sh", Mode: 0o700}, "#!/bin/sh\n")
}

func TestUnpackWritesRegularFilesAndDirectories(t *testing.T) {
	tests := []struct {
		name  string
		write func(*tar.Writer)
		want  map[string]string
	}{
		{"as source-controller packs", program, map[string]string{
			"Pulumi.yaml":      "-rw------- name: demo\nruntime: yaml\n",
			"scripts":          "drwx------",
			"scripts/build.sh": "-rwx------ #!/bin/sh\n",
		}},
		{"modes and times of the packer do not matter", func(w *tar.Writer) {
			add(w, tar.Header{Name: "closed", Mode: 0}, "a")
			add(w, tar.Header{Name: "open", Mode: 0o6777}, "b")
			add(w, tar.Header{Name: "dir/", Typeflag: tar.TypeDir, Mode: 0}, "")
			add(w, tar.Header{Name: "dir/in", Mode: 0o444}, "c")
		}, map[string]string{"closed": "-rw------- a", "open": "-rwx------ b", "dir": "drwx------", "dir/in": "-rw------- c"}},
		{"directories without an entry", func(w *tar.Writer) {
			add(w, tar.Header{Name: "./a//b/c.txt"}, "x")
			add(w, tar.Header{Name: "a/b/d.txt"}, "y")
		}, map[string]string{"a": "drwx------", "a/b": "drwx------", "a/b/c.txt": "-rw------- x", "a/b/d.txt": "-rw------- y"}},
		{"symbolic links are left out", func(w *tar.Writer) {
			add(w, tar.Header{Name: "passwd", Typeflag: tar.TypeSymlink, Linkname: "/etc/passwd"}, "")
			add(w, tar.Header{Name: "up", Typeflag: tar.TypeSymlink, Linkname: ".."}, "")
			add(w, tar.Header{Name: "up/file"}, "inside")
		}, map[string]string{"up": "drwx------", "up/file": "-rw------- inside"}},
		{"the last of two files with one name", func(w *tar.Writer) {
			add(w, tar.Header{Name: "f", Mode: 0o700}, "the first, which is longer")
			add(w, tar.Header{Name: "f"}, "the last")
		}, map[string]string{"f": "-rw------- the last"}},
		{"the commit id of git archive", func(w *tar.Writer) {
			add(w, tar.Header{Name: "pax_global_header", Typeflag: tar.TypeXGlobalHeader, PAXRecords: map[string]string{"comment": "5a1f"}}, "")
			add(w, tar.Header{Name: "f"}, "x")
		}, map[string]string{"f": "-rw------- x"}},
		{"a backslash is a part of a name", func(w *tar.Writer) {
			add(w, tar.Header{Name: `units/mnt-\x2dmail.mount`}, "x")
		}, map[string]string{"units": "drwx------", `units/mnt-\x2dmail.mount`: "-rw------- x"}},
		{"an empty archive", func(*tar.Writer) {}, map[string]string{}},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			g := NewWithT(t)
			packed := pack(tt.write)
			g.Expect(archive.Check(t.Context(), bytes.NewReader(packed), small)).To(Succeed())
			dir := t.TempDir()
			_, err := archive.Unpack(t.Context(), bytes.NewReader(packed), dir, small)
			g.Expect(err).NotTo(HaveOccurred())
			g.Expect(list(t, dir)).To(Equal(tt.want))
		})
	}
}

func TestHostileArchiveIsRefused(t *testing.T) {
	for _, tt := range hostileArchives() {
		t.Run(tt.name, func(t *testing.T) {
			g := NewWithT(t)
			err := archive.Check(t.Context(), bytes.NewReader(tt.packed), small)
			g.Expect(err).To(MatchError(tt.want))
			g.Expect(err).To(MatchError(ContainSubstring(tt.message)))
			g.Expect(len(err.Error())).To(BeNumerically("<", 300), "message is bounded")

			parent := t.TempDir()
			dir := filepath.Join(parent, "tree")
			g.Expect(os.Mkdir(dir, 0o700)).To(Succeed())
			g.Expect(archive.Unpack(t.Context(), bytes.NewReader(tt.packed), dir, small)).Error().To(MatchError(err.Error()))
			g.Expect(os.ReadDir(parent)).To(HaveLen(1), "nothing is written beside the directory")
		})
	}
}

func TestLimitsAreReachedExactly(t *testing.T) {
	g := NewWithT(t)
	packed := pack(program)
	unpacked := int64(len(gunzip(packed)))
	exact := archive.Limits{MaxDownloadSize: int64(len(packed)), MaxUnpackedSize: unpacked, MaxEntries: 4}
	g.Expect(archive.Check(t.Context(), bytes.NewReader(packed), exact)).To(Succeed())

	for _, tight := range []archive.Limits{
		{MaxDownloadSize: exact.MaxDownloadSize - 1, MaxUnpackedSize: unpacked, MaxEntries: 4},
		{MaxDownloadSize: exact.MaxDownloadSize, MaxUnpackedSize: unpacked - 1, MaxEntries: 4},
		{MaxDownloadSize: exact.MaxDownloadSize, MaxUnpackedSize: unpacked, MaxEntries: 3},
	} {
		g.Expect(archive.Check(t.Context(), bytes.NewReader(packed), tight)).To(MatchError(archive.ErrTooLarge))
	}
}

func TestTenMillionEntriesAreRefusedBeforeTheyAreRead(t *testing.T) {
	g := NewWithT(t)
	var written atomic.Int64
	stream := generate(t, func(out io.Writer) error {
		zip := gzip.NewWriter(out)
		w := tar.NewWriter(zip)
		for range 10_000_000 {
			if err := w.WriteHeader(&tar.Header{Name: fmt.Sprintf("f%d", written.Add(1)), Mode: 0o600}); err != nil {
				return err
			}
		}
		return errors.Join(w.Close(), zip.Close())
	})
	limits := archive.Limits{MaxEntries: 5000}
	g.Expect(archive.Check(t.Context(), stream, limits)).To(MatchError("archive is too large: more than 5000 entries"))
	stream.Close()
	// The compressor buffers entries, so more than the limit were written.
	g.Expect(written.Load()).To(BeNumerically("<", 500_000))
}

func TestEndlessStreamIsRefused(t *testing.T) {
	endless := func(first func(*tar.Writer), chunk []byte) func(io.Writer) error {
		return func(out io.Writer) error {
			zip := gzip.NewWriter(out)
			first(tar.NewWriter(zip))
			for {
				if _, err := zip.Write(chunk); err != nil {
					return err
				}
			}
		}
	}
	extended := tarOf(func(w *tar.Writer) {
		add(w, tar.Header{Name: "f", PAXRecords: map[string]string{"STACK.note": strings.Repeat("n", 2000)}}, "")
	})
	extended = extended[:bytes.LastIndex(extended, []byte("ustar"))-257] // only the extended header, again and again
	tests := []struct {
		name  string
		write func(io.Writer) error
	}{
		{"zeros as content", endless(func(w *tar.Writer) {
			_ = w.WriteHeader(&tar.Header{Name: "f", Size: 1 << 19})
		}, make([]byte, 4096))},
		{"zeros after the end", endless(func(w *tar.Writer) { _ = w.Close() }, make([]byte, 4096))},
		{"extended headers", endless(func(*tar.Writer) {}, extended)},
		{"gzip members without content", func(out io.Writer) error {
			var member bytes.Buffer
			zip := gzip.NewWriter(&member)
			_ = zip.Close()
			for {
				if _, err := out.Write(member.Bytes()); err != nil {
					return err
				}
			}
		}},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			g := NewWithT(t)
			err := archive.Check(t.Context(), generate(t, tt.write), small)
			g.Expect(err).To(Or(MatchError(archive.ErrTooLarge), MatchError(archive.ErrInvalid)))
		})
	}
}

func TestMemoryDoesNotGrowWithTheArchive(t *testing.T) {
	g := NewWithT(t)
	const size = 16 << 20
	packed := pack(func(w *tar.Writer) { add(w, tar.Header{Name: "zeros"}, strings.Repeat("\x00", size)) })

	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	g.Expect(archive.Check(t.Context(), bytes.NewReader(packed), archive.Limits{})).To(Succeed())
	runtime.ReadMemStats(&after)
	g.Expect(after.TotalAlloc-before.TotalAlloc).To(BeNumerically("<", 1<<20), "bytes allocated for %d bytes unpacked", size)
}

func TestErrorThatIsNotTheArchivesFaultIsGivenBack(t *testing.T) {
	packed := pack(program)
	broken := errors.New("connection reset")

	t.Run("of the reader", func(t *testing.T) {
		g := NewWithT(t)
		err := archive.Check(t.Context(), io.MultiReader(bytes.NewReader(packed[:40]), iotest.ErrReader(broken)), small)
		g.Expect(err).To(MatchError(broken))
		g.Expect(err).NotTo(MatchError(archive.ErrInvalid))
	})
	t.Run("of the context", func(t *testing.T) {
		g := NewWithT(t)
		ctx, cancel := context.WithCancel(t.Context())
		cancel()
		g.Expect(archive.Check(ctx, bytes.NewReader(packed), small)).To(MatchError(context.Canceled))
	})
	t.Run("a directory that is not empty", func(t *testing.T) {
		g := NewWithT(t)
		dir := t.TempDir()
		g.Expect(os.WriteFile(filepath.Join(dir, "Pulumi.yaml"), []byte("mine"), 0o600)).To(Succeed())
		_, err := archive.Unpack(t.Context(), bytes.NewReader(packed), dir, small)
		g.Expect(err).To(MatchError(ContainSubstring("is not empty")))
		g.Expect(os.ReadFile(filepath.Join(dir, "Pulumi.yaml"))).To(BeEquivalentTo("mine"))
	})
	t.Run("a directory that is missing", func(t *testing.T) {
		g := NewWithT(t)
		_, err := archive.Unpack(t.Context(), bytes.NewReader(packed), filepath.Join(t.TempDir(), "none"), small)
		g.Expect(err).To(MatchError(fs.ErrNotExist))
	})
}

// generate returns a reader of the output of write, and stops write at the end of the test.
func generate(t *testing.T, write func(io.Writer) error) *io.PipeReader {
	t.Helper()
	r, w := io.Pipe()
	done := make(chan struct{})
	go func() {
		defer close(done)
		w.CloseWithError(write(w))
	}()
	t.Cleanup(func() {
		r.Close()
		<-done
	})
	return r
}

// list returns "mode content" of everything below dir.
func list(t *testing.T, dir string) map[string]string {
	t.Helper()
	g := NewWithT(t)
	found := map[string]string{}
	g.Expect(filepath.WalkDir(dir, func(path string, entry fs.DirEntry, err error) error {
		if err != nil || path == dir {
			return err
		}
		info, err := entry.Info()
		if err != nil {
			return err
		}
		name, err := filepath.Rel(dir, path)
		if err != nil {
			return err
		}
		found[name] = info.Mode().String()
		if info.Mode().IsRegular() {
			content, err := os.ReadFile(path)
			found[name] += " " + string(content)
			return err
		}
		return nil
	})).To(Succeed())
	return found
}

func TestSymbolicLinksThatAreLeftOutAreNamed(t *testing.T) {
	g := NewWithT(t)
	links := func(count int) []byte {
		return pack(func(w *tar.Writer) {
			add(w, tar.Header{Name: "./app//Pulumi.yaml", Typeflag: tar.TypeSymlink, Linkname: "../Pulumi.yaml"}, "")
			add(w, tar.Header{Name: "Pulumi.yaml"}, "x")
			for n := range count {
				add(w, tar.Header{Name: fmt.Sprint(n), Typeflag: tar.TypeSymlink, Linkname: "/etc"}, "")
			}
		})
	}
	leftOut, err := archive.Unpack(t.Context(), bytes.NewReader(links(1)), t.TempDir(), archive.Limits{})
	g.Expect(err).NotTo(HaveOccurred())
	g.Expect(leftOut).To(Equal([]string{"app/Pulumi.yaml", "0"}))
	leftOut, err = archive.Unpack(t.Context(), bytes.NewReader(links(5000)), t.TempDir(), archive.Limits{})
	g.Expect(err).NotTo(HaveOccurred())
	g.Expect(leftOut).To(HaveLen(1000))
}
