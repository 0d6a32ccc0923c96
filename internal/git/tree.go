package git

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"strconv"
	"strings"

	"github.com/go-git/go-git/v5/plumbing"

	"github.com/stack-controller/stack-controller/internal/artifact/archive"
)

const (
	// maxTreeSize bounds one directory of git in bytes, about 400,000 files.
	maxTreeSize = 16 << 20

	// maxPathLength and maxNameLength bound names in bytes, as the archive package does.
	maxPathLength = 1024
	maxNameLength = 255

	// tarBlock is the unit of a tarball in bytes.
	tarBlock = 512
)

var (
	errNotCommit  = errors.New("not a commit")
	errTree       = errors.New("the commit has a file that is not acceptable")
	errCommitSize = errors.New("the commit is too large")
)

// entryKind is what a name in a commit stands for.
type entryKind int

const (
	regular entryKind = iota
	executable
	directory
)

// entry is a file or directory of a checkout. Only names and places are in memory, no content.
type entry struct {
	path string
	kind entryKind
	size int64
	pack *pack
	// object is the index in the pack, for files.
	object int32
}

// listing collects the entries of a commit and its submodules, and checks them against the limits.
type listing struct {
	limits  archive.Limits
	entries []entry
	size    int64

	// symbolicLinks counts what is left out.
	symbolicLinks int
	// usesLFS: a .gitattributes gives files to LFS; pointers are candidates.
	usesLFS     bool
	pointers    []string
	hasPointers int
}

// module is a place where a submodule belongs.
type module struct {
	path string
	sha  string
}

// treeEntry is one line of a tree object.
type treeEntry struct {
	mode string
	name string
	hash plumbing.Hash
}

// walk adds the tree, which belongs at the path, and gives the places of submodules in it.
func (l *listing) walk(ctx context.Context, p *pack, tree plumbing.Hash, at string) ([]module, error) {
	var modules []module
	var visit func(plumbing.Hash, string) error
	visit = func(hash plumbing.Hash, at string) error {
		if err := ctx.Err(); err != nil {
			return err
		}
		content, err := p.get(hash, plumbing.TreeObject, maxTreeSize)
		if err != nil {
			return err
		}
		lines, err := parseTree(content)
		if err != nil {
			return fmt.Errorf("%w (in directory %s)", err, shownPath(at))
		}
		for _, line := range lines {
			path := join(at, line.name)
			if len(path) > maxPathLength {
				return fmt.Errorf("%w: %s: a path of more than %d bytes", errTree, shownPath(path), maxPathLength)
			}
			switch line.mode {
			case "40000":
				if err := l.add(entry{path: path, kind: directory}); err != nil {
					return err
				}
				if err := visit(line.hash, path); err != nil {
					return err
				}
			case "160000":
				if err := l.add(entry{path: path, kind: directory}); err != nil {
					return err
				}
				modules = append(modules, module{path: path, sha: line.hash.String()})
			case "120000":
				l.symbolicLinks++
			case "100755":
				err = l.file(p, line, path, executable)
			default: // 100644, and 100664 of old repositories
				err = l.file(p, line, path, regular)
			}
			if err != nil {
				return err
			}
		}
		return nil
	}
	return modules, visit(tree, at)
}

// file adds a file.
func (l *listing) file(p *pack, line treeEntry, path string, kind entryKind) error {
	n, found := p.find(line.hash)
	if !found || p.objects[n].kind != plumbing.BlobObject {
		return fmt.Errorf("%w: file %s", errNoObject, shownPath(path))
	}
	added := entry{path: path, kind: kind, size: p.objects[n].size, pack: p, object: n}
	if err := l.add(added); err != nil {
		return err
	}
	return l.lookForLFS(added, line.name)
}

func (l *listing) add(added entry) error {
	if len(l.entries)+l.symbolicLinks >= l.limits.MaxEntries {
		return fmt.Errorf("%w: more than %d files and directories", errCommitSize, l.limits.MaxEntries)
	}
	// As it will be in the tarball: with a header and padding.
	l.size += tarBlock + (added.size+tarBlock-1)/tarBlock*tarBlock
	if len(added.path) >= 100 {
		l.size += 3 * tarBlock // a longer header
	}
	if l.size+2*tarBlock > l.limits.MaxUnpackedSize {
		return fmt.Errorf("%w: more than %d bytes", errCommitSize, l.limits.MaxUnpackedSize)
	}
	l.entries = append(l.entries, added)
	return nil
}

func (l *listing) lookForLFS(file entry, name string) error {
	switch {
	case name == attributesName && !l.usesLFS:
		content, err := file.start(maxAttributes)
		l.usesLFS = err == nil && usesLFS(content)
		return err
	case file.size < maxPointer && file.size > 0:
		content, err := file.start(maxPointer)
		if err != nil {
			return err
		}
		if isPointer(content) {
			if l.hasPointers++; l.hasPointers <= maxNamedPointers {
				l.pointers = append(l.pointers, shownPath(file.path))
			}
		}
	}
	return nil
}

// start gives the first bytes of a file.
func (e entry) start(most int64) ([]byte, error) {
	content, err := e.pack.open(e.object)
	if err != nil {
		return nil, err
	}
	return io.ReadAll(io.LimitReader(content, most))
}

// parseTree reads a tree object. It refuses names that could do harm on any system, whether or not they would on this one.
func parseTree(content []byte) ([]treeEntry, error) {
	var lines []treeEntry
	known := map[string]bool{}
	for len(content) > 0 {
		mode, rest, found := bytes.Cut(content, []byte{' '})
		if _, err := strconv.ParseUint(string(mode), 8, 32); !found || err != nil {
			return nil, fmt.Errorf("%w: damaged directory", errTree)
		}
		name, rest, found := bytes.Cut(rest, []byte{0})
		if !found || len(rest) < len(plumbing.ZeroHash) {
			return nil, fmt.Errorf("%w: damaged directory", errTree)
		}
		line := treeEntry{mode: strings.TrimLeft(string(mode), "0"), name: string(name)}
		copy(line.hash[:], rest)
		content = rest[len(line.hash):]
		if err := checkName(line.name); err != nil {
			return nil, err
		}
		if known[line.name] {
			return nil, fmt.Errorf("%w: two entries %s", errTree, shownPath(line.name))
		}
		known[line.name] = true
		switch line.mode {
		case "40000", "160000", "120000", "100755", "100644", "100664":
			lines = append(lines, line)
		default:
			return nil, fmt.Errorf("%w: %s has the unknown mode %s", errTree, shownPath(line.name), shorten(plain(line.mode), 20))
		}
	}
	return lines, nil
}

// checkName refuses what is not the name of a file, and everything that some system takes for .git.
func checkName(name string) error {
	refuse := func(reason string) error { return fmt.Errorf("%w: %s %s", errTree, shownPath(name), reason) }
	switch {
	case name == "" || name == "." || name == "..":
		return refuse("is not a name")
	case len(name) > maxNameLength:
		return refuse(fmt.Sprintf("has more than %d bytes", maxNameLength))
	case strings.ContainsAny(name, "/\\\x00"):
		return refuse("has a slash, a backslash or a zero byte in it")
	case looksLikeDotGit(name):
		return refuse("stands for git's own directory")
	}
	return nil
}

// looksLikeDotGit follows git's own checks for file systems that ignore case, characters that cannot be seen (HFS+), and dots, spaces
// and stream names at the end (NTFS).
func looksLikeDotGit(name string) bool {
	name = strings.Map(func(r rune) rune {
		if (r >= 0x200b && r <= 0x200f) || (r >= 0x202a && r <= 0x202e) || (r >= 0x206a && r <= 0x206f) || r == 0xfeff {
			return -1
		}
		return r
	}, name)
	name, _, _ = strings.Cut(name, ":")
	name = strings.ToLower(strings.TrimRight(name, ". "))
	return name == ".git" || name == "git~1"
}

func join(directory, name string) string {
	if directory == "" {
		return name
	}
	return directory + "/" + name
}

// shownPath is a path for a message.
func shownPath(path string) string { return shorten(strconv.QuoteToASCII(path), maxAuthor) }
