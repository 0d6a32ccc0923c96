package archive

import (
	"archive/tar"
	"fmt"
	"hash/maphash"
	"path"
	"slices"
	"strconv"
	"strings"
)

const (
	// maxNameLength and maxElementLength bound names in bytes. The second is the limit of file systems; the first leaves room in PATH_MAX
	// for the directory that the archive is unpacked to.
	maxNameLength    = 1024
	maxElementLength = 255
)

// cleanName returns the name of an entry in its shortest form, "." for the root of the archive.
func cleanName(name string) (string, error) {
	refuse := func(reason string) (string, error) {
		return "", fmt.Errorf("%w: entry %s %s", ErrInvalid, quote(name), reason)
	}
	switch {
	case name == "":
		return refuse("has no name")
	case len(name) > maxNameLength:
		return refuse(fmt.Sprintf("has a name of more than %d bytes", maxNameLength))
	case strings.HasPrefix(name, "/"):
		return refuse("has an absolute name")
	case strings.ContainsRune(name, 0):
		return refuse("has a zero byte in its name")
	}
	for element := range strings.SplitSeq(name, "/") {
		// A backslash is a part of a name, as in those of units of systemd, but is taken for a slash by some systems.
		if slices.Contains(strings.Split(element, `\`), "..") {
			return refuse(`has ".." in its name`)
		}
		if len(element) > maxElementLength {
			return refuse(fmt.Sprintf("has an element of more than %d bytes in its name", maxElementLength))
		}
	}
	return path.Clean(name), nil
}

// tree keeps the names of an archive. It counts directories that no entry names too, because each costs an inode, and finds names that
// cannot exist beside each other.
type tree struct {
	seed maphash.Seed
	// kinds is keyed by a hash of the name, to hold 100,000 long names in little memory. Two names with one hash are
	// improbable, and the worst that follows is an archive refused or a directory not counted.
	kinds   map[uint64]kind
	entries int
	limit   int
}

type kind bool

const (
	isFile      kind = false
	isDirectory kind = true
)

func newTree(maxEntries int) *tree {
	return &tree{seed: maphash.MakeSeed(), kinds: map[uint64]kind{}, limit: maxEntries}
}

// count adds to the number of entries.
func (t *tree) count(n int) error {
	if t.entries += n; t.entries > t.limit {
		return fmt.Errorf("%w: more than %d entries", ErrTooLarge, t.limit)
	}
	return nil
}

// add takes a name and the directories it is in, and reports whether one of those was not known before. The entry
// itself is counted by the caller.
func (t *tree) add(name string, k kind) (newDirectory bool, err error) {
	// From the deepest up to the first that is known: its parents are known too, so the work is bounded by the limit.
	for parent := path.Dir(name); parent != "."; parent = path.Dir(parent) {
		isNew, err := t.set(parent, isDirectory)
		if err != nil {
			return false, err
		}
		if !isNew {
			break
		}
		newDirectory = true
		if err := t.count(1); err != nil {
			return false, err
		}
	}
	_, err = t.set(name, k)
	return newDirectory, err
}

func (t *tree) set(name string, k kind) (isNew bool, err error) {
	hash := maphash.String(t.seed, name)
	known, ok := t.kinds[hash]
	if ok && known != k {
		return false, fmt.Errorf("%w: %s is a file and a directory", ErrInvalid, quote(name))
	}
	t.kinds[hash] = k
	return !ok, nil
}

// quote quotes and cuts the name of an entry for a message.
func quote(name string) string {
	const most = 100
	if len(name) > most {
		return strconv.QuoteToASCII(name[:most]) + "…"
	}
	return strconv.QuoteToASCII(name)
}

func typeName(flag byte) string {
	switch flag {
	case tar.TypeLink:
		return "a hard link"
	case tar.TypeChar, tar.TypeBlock:
		return "a device"
	case tar.TypeFifo:
		return "a named pipe"
	default:
		return fmt.Sprintf("of type %q", flag)
	}
}
