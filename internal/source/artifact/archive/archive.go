// Package archive checks and unpacks the gzip-compressed tarballs that artifacts are made of.
//
// An archive is untrusted: it comes from a repository that a tenant controls. Check and Unpack walk it with the same
// code, so that what one accepts the other accepts, and stop at the first thing that is wrong, with memory that does
// not depend on the archive. The package imports nothing of Kubernetes, because the agent uses it too.
//
// fluxcd/pkg/tar has the same purpose and its rules are kept where users see them (symbolic links are left out, names
// that leave the directory are refused). It is not used itself because it has no bound on the number of entries and no
// context, cannot check without writing, unpacks hard links as empty files and never sees a damaged end of the archive.
package archive

import (
	"archive/tar"
	"cmp"
	"compress/gzip"
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"path"

	"github.com/stack-controller/stack-controller/internal/file"
)

var (
	// ErrTooLarge is wrapped by errors about an archive that exceeds one of the Limits.
	ErrTooLarge = errors.New("archive is too large")

	// ErrInvalid is wrapped by errors about an archive that is damaged, or has an entry that is not acceptable.
	ErrInvalid = errors.New("archive is not acceptable")
)

// Limits bounds an archive: in the store (internal/source/artifact), in checkouts (internal/source/git), and in the agent. The flags are
// --artifact-max-* of the controller, which gives them to its agents. A field that is zero or negative stands for its default, which is
// smaller than those of the flags: nothing is unlimited.
type Limits struct {
	// MaxDownloadSize is the size in bytes of the compressed archive; default 100 MiB.
	MaxDownloadSize int64
	// MaxUnpackedSize is the size in bytes of the archive without compression, including its headers and padding;
	// default 512 MiB.
	MaxUnpackedSize int64
	// MaxEntries is the number of entries, plus directories that no entry names but a file needs; default 100,000.
	MaxEntries int
}

// WithDefaults returns the limits with the defaults filled in.
func (l Limits) WithDefaults() Limits {
	return Limits{
		MaxDownloadSize: cmp.Or(max(l.MaxDownloadSize, 0), 100<<20),
		MaxUnpackedSize: cmp.Or(max(l.MaxUnpackedSize, 0), 512<<20),
		MaxEntries:      cmp.Or(max(l.MaxEntries, 0), 100_000),
	}
}

// Check reads the archive to its end and reports whether Unpack would accept it. Errors wrap ErrTooLarge or ErrInvalid
// when the archive is at fault; other errors come from r or ctx.
func Check(ctx context.Context, r io.Reader, limits Limits) error {
	_, err := walk(ctx, r, limits, func(e entry) error { return e.copyTo(io.Discard) })
	return err
}

// copyBufferSize is the size in bytes of the one buffer that moves content.
const copyBufferSize = 64 << 10

// maxLeftOut is how many of the symbolic links that an archive leaves out Unpack returns.
const maxLeftOut = 1000

// entry is a directory or a file. A directory may have been visited before, and its parents may not have been. The directory of a file was
// visited before the file. A file replaces an earlier file of the same name.
type entry struct {
	// name is clean, relative and slash-separated.
	name                    string
	isDirectory, executable bool
	content                 io.Reader
	buffer                  []byte
}

// walk calls visit with every file and directory of the archive, and returns the names of the first symbolic links.
func walk(ctx context.Context, r io.Reader, limits Limits, visit func(entry) error) (leftOut []string, err error) {
	limits = limits.WithDefaults()
	source := &sourceReader{ctx: ctx, source: r}
	w := walker{limits: limits, visit: visit, tree: newTree(limits.MaxEntries), buffer: make([]byte, copyBufferSize)}
	err = w.run(source)
	if err != nil && source.failure != nil {
		return nil, fmt.Errorf("read archive: %w", source.failure)
	}
	if err != nil {
		return nil, err
	}
	return w.leftOut, nil
}

type walker struct {
	limits Limits
	visit  func(entry) error
	tree   *tree
	buffer []byte

	// leftOut are the names of the symbolic links, at most maxLeftOut.
	leftOut []string

	// declared is the sum in bytes of the sizes in the headers so far.
	declared int64
}

func (w *walker) run(source io.Reader) error {
	// Both sides of the decompression are bounded: a stream of empty gzip members or of extended headers goes on for
	// ever without an entry.
	compressed := file.NewReader(source, w.limits.MaxDownloadSize,
		fmt.Errorf("%w: more than %d bytes compressed", ErrTooLarge, w.limits.MaxDownloadSize))
	unzipped, err := gzip.NewReader(compressed)
	if err != nil {
		return damaged("gzip header", err)
	}
	defer unzipped.Close()
	content := file.NewReader(unzipped, w.limits.MaxUnpackedSize, w.tooManyBytes())

	archive := tar.NewReader(content)
	for {
		header, err := archive.Next()
		if errors.Is(err, io.EOF) {
			return w.finish(content)
		}
		if err != nil {
			return damaged("tar header", err)
		}
		if err := w.entry(header, archive); err != nil {
			return err
		}
	}
}

// entry checks one entry and visits it.
func (w *walker) entry(header *tar.Header, content io.Reader) error {
	if err := w.tree.count(1); err != nil {
		return err
	}
	// The size is compared with what is left, before anything is read: a sum of false sizes could overflow.
	if header.Size > w.limits.MaxUnpackedSize-w.declared {
		return w.tooManyBytes()
	}
	w.declared += header.Size

	if header.Typeflag == tar.TypeXGlobalHeader {
		return nil // The commit id that git archive writes; not a file.
	}
	name, err := cleanName(header.Name)
	if err != nil {
		return err
	}
	switch header.Typeflag {
	case tar.TypeDir:
		return w.directory(name)
	case tar.TypeReg:
		return w.file(name, header.FileInfo().Mode()&0o111 != 0, content)
	case tar.TypeSymlink:
		// Symbolic links are left out, as in every consumer of Flux artifacts. source-controller packs none.
		if len(w.leftOut) < maxLeftOut {
			w.leftOut = append(w.leftOut, name)
		}
		return nil
	default:
		return fmt.Errorf("%w: entry %s is %s; only regular files and directories are accepted",
			ErrInvalid, quote(header.Name), typeName(header.Typeflag))
	}
}

func (w *walker) directory(name string) error {
	if name == "." {
		return nil
	}
	if _, err := w.tree.add(name, isDirectory); err != nil {
		return err
	}
	return w.visit(entry{name: name, isDirectory: true})
}

func (w *walker) file(name string, executable bool, content io.Reader) error {
	if name == "." {
		return fmt.Errorf("%w: the root of the archive is a file", ErrInvalid)
	}
	newDirectory, err := w.tree.add(name, isFile)
	if err != nil {
		return err
	}
	if newDirectory {
		if err := w.visit(entry{name: path.Dir(name), isDirectory: true}); err != nil {
			return err
		}
	}
	return w.visit(entry{name: name, executable: executable, content: content, buffer: w.buffer})
}

// copyTo copies the content of a file; a directory has none. Unlike io.Copy it distinguishes a damaged archive from a writer that fails.
func (e entry) copyTo(w io.Writer) error {
	for !e.isDirectory {
		n, readErr := e.content.Read(e.buffer)
		if _, err := w.Write(e.buffer[:n]); err != nil {
			return err
		}
		if errors.Is(readErr, io.EOF) {
			break
		}
		if readErr != nil {
			return damaged("entry "+quote(e.name), readErr)
		}
	}
	return nil
}

// finish reads what follows the last entry: padding, and the checksum that proves the archive is complete.
func (w *walker) finish(content io.Reader) error {
	for {
		n, err := content.Read(w.buffer)
		for _, b := range w.buffer[:n] {
			if b != 0 {
				return fmt.Errorf("%w: data after the end of the tar stream", ErrInvalid)
			}
		}
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return damaged("end of the archive", err)
		}
	}
}

func (w *walker) tooManyBytes() error {
	return fmt.Errorf("%w: more than %d bytes unpacked", ErrTooLarge, w.limits.MaxUnpackedSize)
}

// damaged wraps an error of the readers in ErrInvalid, unless the error is ErrTooLarge.
func damaged(what string, err error) error {
	switch {
	case errors.Is(err, ErrTooLarge):
		return err
	case errors.Is(err, io.EOF), errors.Is(err, io.ErrUnexpectedEOF):
		return fmt.Errorf("%w: %s: truncated", ErrInvalid, what)
	default:
		return fmt.Errorf("%w: %s: %w", ErrInvalid, what, err)
	}
}

// sourceReader reads until its context ends, and keeps an error that is not caused by the content of the archive.
type sourceReader struct {
	ctx     context.Context
	source  io.Reader
	failure error
}

func (r *sourceReader) Read(p []byte) (int, error) {
	if err := r.ctx.Err(); err != nil {
		r.failure = err
		return 0, err
	}
	n, err := r.source.Read(p)
	if err != nil && err != io.EOF {
		r.failure = err
	}
	return n, err
}

// File is one file of an archive.
type File struct {
	// Name is clean, relative and slash-separated.
	Name string
	// Sum is the SHA-256 of the content and of whether the file is executable: the two things of it that are unpacked.
	Sum [sha256.Size]byte
}

// Contents reads the archive to its end and calls found for every file that Unpack would write, in the order of the archive. It calls found
// twice for a file that occurs twice; the later one is the file that Unpack keeps. It stops with the error of found; its other errors are
// those of Check.
func Contents(ctx context.Context, r io.Reader, limits Limits, found func(File) error) error {
	_, err := walk(ctx, r, limits, func(e entry) error {
		if e.isDirectory {
			return nil
		}
		sum := sha256.New()
		mode := []byte{0}
		if e.executable {
			mode[0] = 1
		}
		_, _ = sum.Write(mode)
		if err := e.copyTo(sum); err != nil {
			return err
		}
		file := File{Name: e.name}
		sum.Sum(file.Sum[:0])
		return found(file)
	})
	return err
}
