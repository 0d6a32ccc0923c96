package server

import (
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"os"
	"path"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"

	"github.com/opencontainers/go-digest"
	_ "github.com/opencontainers/go-digest/blake3" // source-controller may use it for artifact digests

	"github.com/stack-controller/stack-controller/internal/artifact/archive"
	"github.com/stack-controller/stack-controller/internal/file"
	"github.com/stack-controller/stack-controller/internal/procfs"
)

// Names in the directory of the agent. The path of the source never changes, so that virtual environments and caches
// that are keyed by it stay valid.
const (
	sourceName   = "source"
	markerName   = "source.digest"
	oldName      = "source.old"
	incomingName = "incoming"
	archiveFile  = incomingName + "/archive"
	incomingTree = incomingName + "/tree"
)

// ownNames are all names that the agent uses in its directory. In a pod it is a volume that others use as well.
var ownNames = []string{
	sourceName, markerName, oldName, incomingName, recordsName, lockName, homeName, programLink, newLink,
	markerName + file.TemporarySuffix, pushedPlan, incomingPlan,
}

// maxMarkerSize bounds what is read of the marker, in bytes.
const maxMarkerSize = 1 << 10

// sources holds the unpacked source, of which there is one, and the directories of the workspace and of stub projects.
type sources struct {
	log       *slog.Logger
	root      *os.Root
	dir       string // absolute path of root
	workspace string // absolute path
	localRoot string // absolute path, empty for none
	// shared says that people work in the workspace, see Shared.
	shared bool
	limits archive.Limits

	// inUse is held by the operation that is not done, and while the source is replaced.
	inUse sync.Mutex
	// receiving is held while a source arrives.
	receiving sync.Mutex

	// present is the digest of the source, a string; empty while there is none to rely on.
	present atomic.Value
}

// openSources keeps the source that an earlier agent left in the directory of the agent.
func openSources(root *os.Root, options *Options) (*sources, error) {
	dir, err := filepath.Abs(root.Name())
	if err != nil {
		return nil, fmt.Errorf("find the directory of the source: %w", err)
	}
	s := &sources{log: options.Log, root: root, dir: dir, limits: options.Limits.WithDefaults()}
	if s.workspace, err = filepath.Abs(options.Workspace); err != nil {
		return nil, fmt.Errorf("find the workspace: %w", err)
	}
	if options.LocalRoot != "" {
		if s.localRoot, err = filepath.Abs(options.LocalRoot); err != nil {
			return nil, fmt.Errorf("find the root of local programs: %w", err)
		}
	}
	s.shared = Shared(dir, s.workspace)
	s.present.Store(readMarker(root))
	if err := s.tidy(); err != nil {
		return nil, err
	}
	return s, nil
}

// digest returns the digest of the source; empty when there is none.
func (s *sources) digest() string {
	return s.present.Load().(string)
}

// use keeps the source as it is until release; false when it is being replaced or is in use.
func (s *sources) use() bool {
	return s.inUse.TryLock()
}

// release ends use.
func (s *sources) release() {
	s.inUse.Unlock()
}

// replace makes the unpacked incoming tree the source. The caller has called use.
func (s *sources) replace(digest string) error {
	s.present.Store("")
	for _, step := range s.swap(digest) {
		if err := step(); err != nil {
			return fmt.Errorf("replace the source: %w", err)
		}
	}
	s.present.Store(digest)
	return nil
}

// swap lists the steps that make the incoming tree the source. An agent that ends between two of them leaves no marker,
// so the source has to be delivered again; tidy saves the dependencies.
func (s *sources) swap(digest string) []func() error {
	return []func() error{
		func() error { return ignoreMissing(s.root.Remove(markerName)) },
		func() error { return removeTree(s.root, oldName) },
		func() error { return ignoreMissing(s.root.Rename(sourceName, oldName)) },
		func() error { return s.root.Rename(incomingTree, sourceName) },
		func() error { s.carryDependencies(); return nil },
		func() error { return file.WriteIn(s.root, markerName, []byte(digest+"\n"+bootID()+"\n"), false) },
	}
}

// tidy removes what a push that did not end, and one that did, left behind. The dependencies in a source that was being replaced
// go to the one that is there now: installing them again may take minutes.
func (s *sources) tidy() error {
	if _, err := s.root.Lstat(oldName); err == nil {
		if _, err := s.root.Lstat(sourceName); errors.Is(err, fs.ErrNotExist) {
			return errors.Join(s.root.Rename(oldName, sourceName), removeTree(s.root, incomingName))
		}
		s.carryDependencies()
	}
	if err := errors.Join(removeTree(s.root, oldName), removeTree(s.root, incomingName)); err != nil {
		return fmt.Errorf("remove the earlier source: %w", err)
	}
	return nil
}

// carryDependencies saves the dependencies of the earlier source. When it fails they are installed again.
func (s *sources) carryDependencies() {
	if err := carryDependencies(s.root, oldName, sourceName); err != nil {
		s.log.Warn("dependencies of the earlier source are lost", "error", err.Error())
	}
}

// The marker says which artifact the source was unpacked from. It names the boot of the machine too, and is worth nothing
// after the next one: the tree is not flushed to the disk, so a crash of the machine may leave files empty under a good
// marker, and a program that lost files would delete resources. A crash of the agent does not matter.

// readMarker returns the digest of the source; empty when there is none that can be relied on.
func readMarker(root *os.Root) string {
	content, err := file.ReadIn(root, markerName, maxMarkerSize)
	if err != nil {
		return ""
	}
	text, boot, found := strings.Cut(strings.TrimSuffix(string(content), "\n"), "\n")
	if !found || boot == "" || boot != bootID() || digest.Digest(text).Validate() != nil {
		return ""
	}
	return text
}

// bootID identifies this boot of the machine; it is empty where the system does not tell.
func bootID() string {
	boot, _ := procfs.BootID()
	return boot
}

// dependencies are the directories that installing the dependencies of a program makes inside of its tree.
var dependencies = map[string]bool{
	"node_modules": true, // Node.js
	"venv":         true, // Python
	".venv":        true, // Python with uv or poetry
	"sdks":         true, // packages that Pulumi.yaml names, generated by pulumi install
}

// carryDependencies moves the directories of dependencies from one tree to the same place in another that does not have
// them, so that nothing is installed again while what they are made from stays the same. Both are paths in root.
func carryDependencies(root *os.Root, from, to string) error {
	entries, err := fs.ReadDir(root.FS(), from)
	if err != nil {
		return ignoreMissing(err)
	}
	for _, entry := range entries {
		// A link may point anywhere, and what it points to is not in this tree.
		if !entry.IsDir() {
			continue
		}
		old, new := path.Join(from, entry.Name()), path.Join(to, entry.Name())
		present, err := root.Lstat(new)
		switch {
		case errors.Is(err, fs.ErrNotExist) && dependencies[entry.Name()]:
			err = root.Rename(old, new)
		case errors.Is(err, fs.ErrNotExist):
			err = nil
		// What both trees have is bounded by the limits of an artifact.
		case err == nil && present.IsDir() && !dependencies[entry.Name()]:
			err = carryDependencies(root, old, new)
		}
		if err != nil {
			return fmt.Errorf("keep %s: %w", old, err)
		}
	}
	return nil
}

// removeTree removes the file or directory with all that is in it, also directories that nobody may write to: Go's module
// cache is made of them.
func removeTree(root *os.Root, name string) error {
	err := root.RemoveAll(name)
	if !errors.Is(err, fs.ErrPermission) {
		return err
	}
	opened := fs.WalkDir(root.FS(), name, func(path string, entry fs.DirEntry, err error) error {
		if err == nil && entry.IsDir() {
			return root.Chmod(path, 0o700)
		}
		return err
	})
	return errors.Join(opened, root.RemoveAll(name))
}

// ignoreMissing is for what is to be gone, or need not be there.
func ignoreMissing(err error) error {
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	return err
}
