package git

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"strconv"
	"strings"

	"github.com/go-git/go-git/v5/plumbing"
	"github.com/go-git/go-git/v5/plumbing/filemode"
	"github.com/go-git/go-git/v5/plumbing/object"

	"github.com/stack-controller/stack-controller/internal/plaintext"
	"github.com/stack-controller/stack-controller/internal/source/artifact/archive"
)

const (
	// maxTreeSize bounds one tree object in bytes, about 400,000 files.
	maxTreeSize = 16 << 20

	// maxPathLength and maxNameLength bound names in bytes, as the archive package does.
	maxPathLength = 1024
	maxNameLength = 255

	// tarBlock is the unit of a tarball in bytes.
	tarBlock = 512

	// maxPointer is the size in bytes below which a file can be a pointer of Git LFS, by the specification of LFS. maxNamedPointers is how
	// many pointers an error names. maxAttributes bounds in bytes what is read of a .gitattributes file.
	maxPointer       = 1024
	maxNamedPointers = 3
	maxAttributes    = 1 << 20

	attributesName = ".gitattributes"
)

var (
	errTree           = &knownError{Other, "the commit has a file that is not acceptable"}
	errCommitTooLarge = &knownError{TooLarge, "the commit is too large"}
)

// entry is a file, directory or symbolic link of a checkout. Its name and its place in the pack are in memory, its content is not.
type entry struct {
	path string
	size int64
	pack *pack
	// object is the index in the pack, for files and for links that are not resolved yet.
	object int32
	mode   filemode.FileMode
}

// listing collects the entries of a commit and its submodules, and checks them against the limits.
type listing struct {
	limits  archive.Limits
	entries []entry
	// size is the size of the tarball, names the total length of the paths, in bytes.
	size, names int64

	// links are the symbolic links until resolveLinks. Then leftOutCount counts those that are left out; leftOut are the names of the first of
	// them, for people.
	links        []entry
	leftOut      []string
	leftOutCount int

	// usesLFS says that a .gitattributes file uses the filter lfs. pointerCount counts the files that may be pointers of LFS; pointers are
	// the names of the first of them.
	usesLFS      bool
	pointers     []string
	pointerCount int
}

// module is a submodule: its place, its commit and its URL.
type module struct{ path, sha, url string }

// walk adds the tree at the path, and returns the submodules in it. Besides the entries, walk keeps in memory only the directories that it
// still has to read, which are entries too.
func (l *listing) walk(ctx context.Context, p *pack, root plumbing.Hash, at string) ([]module, error) {
	var modules []module
	type tree struct {
		hash plumbing.Hash
		path string
	}
	for remaining := []tree{{root, at}}; len(remaining) > 0; {
		current := remaining[len(remaining)-1]
		remaining = remaining[:len(remaining)-1]
		children, err := l.readTree(ctx, p, current.hash, current.path)
		if err != nil {
			return nil, err
		}
		for _, child := range children {
			path := child.Name
			if current.path != "" {
				path = current.path + "/" + child.Name
			}
			if len(path) > maxPathLength {
				return nil, fmt.Errorf("%w: %s: a path of more than %d bytes", errTree, shownPath(path), maxPathLength)
			}
			switch child.Mode {
			case filemode.Dir:
				err = l.add(entry{path: path, mode: filemode.Dir})
				remaining = append(remaining, tree{child.Hash, path})
			case filemode.Submodule:
				err = l.add(entry{path: path, mode: filemode.Dir})
				modules = append(modules, module{path: path, sha: child.Hash.String()})
			case filemode.Symlink:
				err = l.addLink(p, child, path)
			default:
				err = l.addFile(ctx, p, child, path)
			}
			if err != nil {
				return nil, err
			}
		}
	}
	return modules, nil
}

func (l *listing) readTree(ctx context.Context, p *pack, hash plumbing.Hash, path string) ([]object.TreeEntry, error) {
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	content, err := p.get(ctx, hash, plumbing.TreeObject, maxTreeSize)
	if err != nil {
		return nil, err
	}
	entries, err := parseTree(content, l.limits.MaxEntries-len(l.entries)-len(l.links))
	switch {
	case errors.Is(err, errCommitTooLarge):
		return nil, l.tooManyEntries()
	case err != nil:
		return nil, fmt.Errorf("%w (in directory %s)", err, shownPath(path))
	}
	return entries, nil
}

func (l *listing) tooManyEntries() error {
	return fmt.Errorf("%w: more than %d files and directories", errCommitTooLarge, l.limits.MaxEntries)
}

func (l *listing) add(added entry) error {
	if err := l.count(added.path); err != nil {
		return err
	}
	// The size in the tarball: with a header and padding.
	l.size += tarBlock + (added.size+tarBlock-1)/tarBlock*tarBlock
	if len(added.path) >= 100 {
		l.size += 3 * tarBlock // a longer header
	}
	if l.size+2*tarBlock > l.limits.MaxUnpackedSize {
		return fmt.Errorf("%w: more than %d bytes", errCommitTooLarge, l.limits.MaxUnpackedSize)
	}
	l.entries = append(l.entries, added)
	return nil
}

// count checks the limits for one more path.
func (l *listing) count(path string) error {
	if len(l.entries)+len(l.links) >= l.limits.MaxEntries {
		return l.tooManyEntries()
	}
	if l.names += int64(len(path)); l.names > int64(l.limits.MaxEntries)*namesPerEntry {
		return fmt.Errorf("%w: paths of more than %d bytes together", errCommitTooLarge, l.limits.MaxEntries*namesPerEntry)
	}
	return nil
}

// addFile adds a file, and records what it says about LFS.
func (l *listing) addFile(ctx context.Context, p *pack, file object.TreeEntry, path string) error {
	n, found := p.find(file.Hash)
	if !found || p.objects[n].kind != plumbing.BlobObject {
		return fmt.Errorf("%w: file %s", errNoObject, shownPath(path))
	}
	size := p.objects[n].size
	if err := l.add(entry{path: path, mode: file.Mode, size: size, pack: p, object: n}); err != nil {
		return err
	}
	isAttributes := file.Name == attributesName && !l.usesLFS
	if !isAttributes && (size == 0 || size >= maxPointer) {
		return nil
	}
	stream, err := p.open(ctx, n)
	if err != nil {
		return err
	}
	defer stream.Close()
	content, err := io.ReadAll(io.LimitReader(stream, maxAttributes))
	switch {
	case err != nil:
		return err
	case isAttributes:
		l.usesLFS = usesLFS(content)
	case isPointer(content):
		if l.pointerCount++; l.pointerCount <= maxNamedPointers {
			l.pointers = append(l.pointers, shownPath(path))
		}
	}
	return nil
}

// parseTree reads a tree object. It refuses more entries than most, types that git does not have, and names that could do harm on any
// system, even if they are harmless on this one.
func parseTree(content []byte, most int) ([]object.TreeEntry, error) {
	var entries []object.TreeEntry
	for len(content) > 0 {
		if len(entries) == most {
			return nil, errCommitTooLarge
		}
		modeText, rest, hasMode := bytes.Cut(content, []byte{' '})
		name, rest, hasName := bytes.Cut(rest, []byte{0})
		mode, err := filemode.New(string(modeText))
		if err != nil || !hasMode || !hasName || len(rest) < len(plumbing.ZeroHash) {
			return nil, fmt.Errorf("%w: damaged directory", errTree)
		}
		if err := checkName(string(name)); err != nil {
			return nil, err
		}
		if mode = canonical(mode); mode == filemode.Empty {
			return nil, fmt.Errorf("%w: %s has the unknown mode %s", errTree, shownPath(string(name)), plaintext.Cut(plain(string(modeText)), 20))
		}
		entries = append(entries, object.TreeEntry{Name: string(name), Mode: mode, Hash: plumbing.Hash(rest[:len(plumbing.ZeroHash)])})
		content = rest[len(plumbing.ZeroHash):]
	}
	slices.SortFunc(entries, func(a, b object.TreeEntry) int { return strings.Compare(a.Name, b.Name) })
	for n := range max(0, len(entries)-1) {
		if name := entries[n].Name; name == entries[n+1].Name {
			return nil, fmt.Errorf("%w: two entries %s", errTree, shownPath(name))
		}
	}
	return entries, nil
}

// canonical returns the mode as git itself reads it, Empty for none of git's types: the type, and of a file's permissions only whether the
// owner may execute it. Old versions of git, and programs that write trees themselves, left others there, such as 100664 or 100600.
func canonical(mode filemode.FileMode) filemode.FileMode {
	const typeMask, ownerExecutes = 0o170000, 0o100
	switch kind := mode & typeMask; kind {
	case filemode.Dir, filemode.Submodule, filemode.Symlink:
		return kind
	case filemode.Regular & typeMask:
		if mode&ownerExecutes != 0 {
			return filemode.Executable
		}
		return filemode.Regular
	default:
		return filemode.Empty
	}
}

// checkName refuses text that is not the name of a file, and every name that some system treats as .git, or as a path to .git or out of the
// checkout. Other names may have backslashes, as those of units of systemd do.
func checkName(name string) error {
	refuse := func(reason string) error { return fmt.Errorf("%w: %s %s", errTree, shownPath(name), reason) }
	switch {
	case name == "" || name == ".":
		return refuse("is not a name")
	case len(name) > maxNameLength:
		return refuse(fmt.Sprintf("has more than %d bytes", maxNameLength))
	case strings.ContainsAny(name, "/\x00"):
		return refuse("has a slash or a zero byte in it")
	}
	for element := range strings.SplitSeq(name, `\`) {
		switch {
		case element == "..":
			return refuse("stands for the directory above")
		case isDotGit(element):
			return refuse("stands for git's own directory")
		}
	}
	return nil
}

// isDotGit follows git's own checks for file systems that ignore case, characters that cannot be seen (HFS+), and dots, spaces
// and stream names at the end (NTFS).
func isDotGit(name string) bool {
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

// shownPath returns the path for a message, quoted and cut.
func shownPath(path string) string { return plaintext.Cut(strconv.QuoteToASCII(path), maxAuthor) }

// isPointer reports whether the content is a pointer of Git LFS: its first line is the version, and the hash and the size follow. The
// version contains the address of the specification, which has changed over time.
//
// A pointer is an error only in a repository with a .gitattributes file that uses the filter lfs. Without such a file, git itself checks
// out the pointer as it is, for example as test data of a program about LFS.
func isPointer(content []byte) bool {
	version, rest, _ := strings.Cut(string(content), "\n")
	switch strings.TrimSuffix(version, "\r") {
	case "version https://git-lfs.github.com/spec/v1", "version https://hawser.github.com/spec/v1", "version http://git-media.io/v/2":
		return len(content) < maxPointer && strings.Contains("\n"+rest, "\noid sha256:") && strings.Contains("\n"+rest, "\nsize ")
	}
	return false
}

// usesLFS reports whether a .gitattributes file uses the filter lfs for any files.
func usesLFS(attributes []byte) bool {
	for line := range strings.Lines(string(attributes)) {
		fields := strings.Fields(line)
		if len(fields) > 1 && !strings.HasPrefix(fields[0], "#") && slices.Contains(fields[1:], "filter=lfs") {
			return true
		}
	}
	return false
}
