package archive_test

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"fmt"
	"io"
	"strings"

	"github.com/stack-controller/stack-controller/internal/source/artifact/archive"
)

type hostileArchive struct {
	name    string
	packed  []byte
	want    error
	message string
}

// hostileArchives are refused with the limits in small. They are also seeds of the fuzzer.
func hostileArchives() []hostileArchive {
	one := func(header tar.Header) []byte {
		return pack(func(w *tar.Writer) { add(w, header, "") })
	}
	good := pack(program)
	return append(sizeLies(),
		hostileArchive{"parent directory", one(tar.Header{Name: "../evil"}), archive.ErrInvalid, `entry "../evil" has ".." in its name`},
		hostileArchive{"parent directory inside", one(tar.Header{Name: "a/../../evil"}), archive.ErrInvalid, `has ".." in its name`},
		hostileArchive{"parent directory at the end", one(tar.Header{Name: "a/..", Typeflag: tar.TypeDir}), archive.ErrInvalid, `has ".." in its name`},
		hostileArchive{"parent directory in a link's name", one(tar.Header{Name: "../l", Typeflag: tar.TypeSymlink, Linkname: "x"}), archive.ErrInvalid, `has ".." in its name`},
		hostileArchive{"absolute name", one(tar.Header{Name: "/etc/cron.d/evil"}), archive.ErrInvalid, `entry "/etc/cron.d/evil" has an absolute name`},
		hostileArchive{"backslash", one(tar.Header{Name: `..\evil`}), archive.ErrInvalid, `has ".." in its name`},
		hostileArchive{"parent directory between backslashes", one(tar.Header{Name: `a/b\..\..\evil`}), archive.ErrInvalid, `has ".." in its name`},
		hostileArchive{"no name", unnamed(), archive.ErrInvalid, "has no name"},
		hostileArchive{"root as a file", one(tar.Header{Name: "."}), archive.ErrInvalid, "the root of the archive is a file"},
		hostileArchive{"long name", one(tar.Header{Name: strings.Repeat("d/", 600) + "f"}), archive.ErrInvalid, "has a name of more than 1024 bytes"},
		hostileArchive{"long element", one(tar.Header{Name: strings.Repeat("n", 256)}), archive.ErrInvalid, "has an element of more than 255 bytes"},
		hostileArchive{"hard link", one(tar.Header{Name: "l", Typeflag: tar.TypeLink, Linkname: "/etc/shadow"}), archive.ErrInvalid, `entry "l" is a hard link`},
		hostileArchive{"character device", one(tar.Header{Name: "mem", Typeflag: tar.TypeChar, Devmajor: 1, Devminor: 1}), archive.ErrInvalid, "is a device"},
		hostileArchive{"block device", one(tar.Header{Name: "sda", Typeflag: tar.TypeBlock, Devmajor: 8}), archive.ErrInvalid, "is a device"},
		hostileArchive{"named pipe", one(tar.Header{Name: "p", Typeflag: tar.TypeFifo}), archive.ErrInvalid, "is a named pipe"},
		hostileArchive{"unknown type", one(tar.Header{Name: "c", Typeflag: tar.TypeCont}), archive.ErrInvalid, "is of type '7'"},
		hostileArchive{"file in place of a directory", pack(func(w *tar.Writer) {
			add(w, tar.Header{Name: "a/b"}, "")
			add(w, tar.Header{Name: "a"}, "")
		}), archive.ErrInvalid, `"a" is a file and a directory`},
		hostileArchive{"directory in place of a file", pack(func(w *tar.Writer) {
			add(w, tar.Header{Name: "a"}, "")
			add(w, tar.Header{Name: "a/b/c"}, "")
		}), archive.ErrInvalid, `"a" is a file and a directory`},
		hostileArchive{"more entries than allowed", pack(func(w *tar.Writer) {
			for i := range 101 {
				add(w, tar.Header{Name: fmt.Sprint(i)}, "")
			}
		}), archive.ErrTooLarge, "more than 100 entries"},
		hostileArchive{"one name more often than allowed", pack(func(w *tar.Writer) {
			for range 101 {
				add(w, tar.Header{Name: "same"}, "")
			}
		}), archive.ErrTooLarge, "more than 100 entries"},
		hostileArchive{"more links than allowed", pack(func(w *tar.Writer) {
			for range 101 {
				add(w, tar.Header{Name: "l", Typeflag: tar.TypeSymlink, Linkname: "x"}, "")
			}
		}), archive.ErrTooLarge, "more than 100 entries"},
		hostileArchive{"more directories than allowed in one name", one(tar.Header{Name: strings.Repeat("d/", 200) + "f"}), archive.ErrTooLarge, "more than 100 entries"},
		hostileArchive{"nothing", nil, archive.ErrInvalid, "gzip header: truncated"},
		hostileArchive{"not gzip", []byte("<html>not an archive</html>"), archive.ErrInvalid, "gzip: invalid header"},
		hostileArchive{"not tar", zip([]byte(strings.Repeat("not a tar header ", 100))), archive.ErrInvalid, "invalid tar header"},
		hostileArchive{"truncated", good[:len(good)-20], archive.ErrInvalid, "truncated"},
		hostileArchive{"truncated checksum", good[:len(good)-4], archive.ErrInvalid, "truncated"},
		hostileArchive{"wrong checksum", append(bytes.Clone(good[:len(good)-8]), make([]byte, 8)...), archive.ErrInvalid, "gzip: invalid checksum"},
		hostileArchive{"garbage after the gzip stream", append(bytes.Clone(good), "garbage and more garbage"...), archive.ErrInvalid, "gzip: invalid header"},
		hostileArchive{"garbage after the tar stream", zip(append(gunzip(good), "garbage"...)), archive.ErrInvalid, "data after the end"},
	)
}

// sizeLies are archives that declare other sizes than they have.
func sizeLies() []hostileArchive {
	const huge = 1 << 62
	return []hostileArchive{
		{"declared size beyond the limit", zip(headerOnly("f", huge)), archive.ErrTooLarge, "more than 1048576 bytes unpacked"},
		{"declared sizes that overflow together", zip(append(headerOnly("empty", 0), headerOnly("f", 1<<63-1)...)), archive.ErrTooLarge, "more than 1048576 bytes unpacked"},
		{"declared size larger than the content", zip(append(headerOnly("f", 4096), make([]byte, 512)...)), archive.ErrInvalid, `entry "f": truncated`},
		{"declared size smaller than the content", zip(append(headerOnly("f", 1), bytes.Repeat([]byte("x"), 2048)...)), archive.ErrInvalid, "tar header"},
		{"sum of declared sizes beyond the limit", pack(func(w *tar.Writer) {
			add(w, tar.Header{Name: "a"}, strings.Repeat("a", 600<<10))
			add(w, tar.Header{Name: "b"}, strings.Repeat("b", 600<<10))
		}), archive.ErrTooLarge, "more than 1048576 bytes unpacked"},
		{"sum of sizes of sparse files beyond the limit", zip(append(sparseFile("a", 600<<10), sparseFile("b", 600<<10)...)), archive.ErrTooLarge, "more than 1048576 bytes unpacked"},
		{"bomb", zip(append(headerOnly("f", 0), make([]byte, 8<<20)...)), archive.ErrTooLarge, "more than 1048576 bytes unpacked"},
	}
}

// pack returns a gzip-compressed tarball.
func pack(write func(*tar.Writer)) []byte { return zip(tarOf(write)) }

func tarOf(write func(*tar.Writer)) []byte {
	var out bytes.Buffer
	w := tar.NewWriter(&out)
	write(w)
	must(w.Close())
	return out.Bytes()
}

func zip(content []byte) []byte {
	var out bytes.Buffer
	w := gzip.NewWriter(&out)
	_, err := w.Write(content)
	must(err)
	must(w.Close())
	return out.Bytes()
}

func gunzip(packed []byte) []byte {
	r, err := gzip.NewReader(bytes.NewReader(packed))
	must(err)
	content, err := io.ReadAll(r)
	must(err)
	return content
}

func add(w *tar.Writer, header tar.Header, content string) {
	if header.Typeflag == 0 {
		header.Typeflag = tar.TypeReg
	}
	header.Size = int64(len(content))
	must(w.WriteHeader(&header))
	_, err := w.Write([]byte(content))
	must(err)
}

// headerOnly returns a header that declares a size, without content.
func headerOnly(name string, size int64) []byte {
	var out bytes.Buffer
	must(tar.NewWriter(&out).WriteHeader(&tar.Header{Name: name, Size: size, Mode: 0o600, Typeflag: tar.TypeReg}))
	return out.Bytes()
}

// sparseFile returns an entry whose content is one hole, which takes no space in the archive.
func sparseFile(name string, size int64) []byte {
	content := tarOf(func(w *tar.Writer) {
		hole := fmt.Sprintf("1\n%d\n0\n", size)
		add(w, tar.Header{Name: name, PAXRecords: map[string]string{
			"XXX.sparse.major": "1", "XXX.sparse.minor": "0", "XXX.sparse.name": name, "XXX.sparse.realsize": fmt.Sprint(size),
		}}, hole+strings.Repeat("\x00", 512-len(hole)))
	})
	// The writer refuses these keys of GNU tar.
	content = bytes.ReplaceAll(content, []byte("XXX.sparse"), []byte("GNU.sparse"))
	return content[:len(content)-1024] // without the end of the archive
}

// unnamed returns an archive whose entry has an empty name, and a header with a correct checksum.
func unnamed() []byte {
	content := tarOf(func(w *tar.Writer) { add(w, tar.Header{Name: "n"}, "") })
	content[0] = 0
	copy(content[148:156], "        ")
	sum := 0
	for _, b := range content[:512] {
		sum += int(b)
	}
	copy(content[148:156], fmt.Sprintf("%06o\x00 ", sum))
	return zip(content)
}

func must(err error) {
	if err != nil {
		panic(err)
	}
}
