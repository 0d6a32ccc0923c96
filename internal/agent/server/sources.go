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

	"github.com/stack-controller/stack-controller/internal/file"
	"github.com/stack-controller/stack-controller/internal/procfs"
	"github.com/stack-controller/stack-controller/internal/source/artifact/archive"
)

// Names in the directory of the agent. The path of the source never changes, so that virtual environments and caches for that path stay
// valid.
const (
	sourceName   = "source"
	markerName   = "source.digest"
	oldName      = "source.old"
	incomingName = "incoming"
	mountsName   = "mounts"
	archiveFile  = incomingName + "/archive"
	incomingTree = incomingName + "/tree"

	// linksName has the symbolic links of the archive that are not in the source; there is no such file if there are none.
	linksName     = "source.links"
	incomingLinks = incomingName + "/links"
)

// ownNames are all names that the agent uses in its directory. In a pod, the directory is a volume that contains other files as well.
var ownNames = []string{
	sourceName, markerName, linksName, oldName, incomingName, mountsName, recordsName, lockName, homeName, programLink, newLink,
	markerName + file.TemporarySuffix, pushedPlan, incomingPlan,
}

// maxUnremovable is how many earlier sources that cannot be removed are kept. They are in the volume, which bounds their size.
const maxUnremovable = 1000

// maxMarkerSize bounds what is read of the marker, in bytes.
const maxMarkerSize = 1 << 10

// sources manages the unpacked source, of which there is one, and has the roots of local sources.
type sources struct {
	log       *slog.Logger
	root      *os.Root
	dir       string // absolute path of root
	workspace string // absolute path
	localRoot string // absolute path, empty for none
	// shared is true if people use the workspace as well, see Shared.
	shared bool
	limits archive.Limits
	mounts []string // see Options.SourceMounts

	// inUse is held while an operation runs, and while the source is replaced.
	inUse sync.Mutex
	// receiving is held while a source is received.
	receiving sync.Mutex

	// present is the digest of the source, a string; empty while there is none to rely on.
	present atomic.Value
}

// openSources returns the sources with the source that an earlier agent left in the directory of the agent.
func openSources(root *os.Root, options *Options) (*sources, error) {
	dir, err := filepath.Abs(root.Name())
	if err != nil {
		return nil, fmt.Errorf("find the directory of the source: %w", err)
	}
	s := &sources{log: options.Log, root: root, dir: dir, limits: options.Limits.WithDefaults(), mounts: options.SourceMounts}
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

// use prevents the source from being replaced until release is called. It returns false if the source is being replaced or is in use
// already.
func (s *sources) use() bool {
	return s.inUse.TryLock()
}

// release ends the effect of use.
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

// swap returns the steps that make the incoming tree the source. If the agent ends between two of them, there is no marker, so the source
// has to be delivered again; tidy keeps the dependencies.
func (s *sources) swap(digest string) []func() error {
	return []func() error{
		func() error {
			return errors.Join(ignoreMissing(s.root.Remove(markerName)), ignoreMissing(s.root.Remove(linksName)))
		},
		s.discardOld,
		func() error { return ignoreMissing(s.root.Rename(sourceName, oldName)) },
		func() error {
			return errors.Join(s.root.Rename(incomingTree, sourceName), ignoreMissing(s.root.Rename(incomingLinks, linksName)))
		},
		func() error { s.carryDependencies(); return nil },
		func() error { return file.WriteIn(s.root, markerName, []byte(digest+"\n"+bootID()+"\n"), false) },
	}
}

// tidy removes what deliveries, complete or not, left behind. If a source was being replaced, tidy moves its dependencies to the current
// source, because installing them again may take minutes.
func (s *sources) tidy() error {
	if _, err := s.root.Lstat(oldName); err == nil {
		if _, err := s.root.Lstat(sourceName); errors.Is(err, fs.ErrNotExist) {
			return errors.Join(s.root.Rename(oldName, sourceName), removeTree(s.root, incomingName))
		}
		s.carryDependencies()
	}
	if err := errors.Join(s.discardOld(), removeTree(s.root, incomingName)); err != nil {
		return fmt.Errorf("remove the earlier source: %w", err)
	}
	return nil
}

// discardOld removes the earlier source. What cannot be removed, such as files that an init container wrote as root, is moved out of the
// way, so that it prevents neither the next source nor the start of the agent.
func (s *sources) discardOld() error {
	err := removeTree(s.root, oldName)
	for n := 1; n <= maxUnremovable; n++ {
		name := fmt.Sprint(oldName, ".", n)
		if _, missing := s.root.Lstat(name); !errors.Is(missing, fs.ErrNotExist) {
			_ = removeTree(s.root, name) // perhaps by now
			continue
		}
		if err == nil {
			return nil
		}
		if moved := s.root.Rename(oldName, name); moved != nil {
			return errors.Join(err, moved)
		}
		s.log.Warn("cannot remove the earlier source", "kept", name, "error", err.Error())
		return nil
	}
	return err
}

// linkMounts makes the incoming tree lead to what is mounted for the source. A mount hides what the source has at its path.
func (s *sources) linkMounts() error {
	if len(s.mounts) == 0 {
		return nil
	}
	tree, err := s.root.OpenRoot(incomingTree)
	if err != nil {
		return err
	}
	defer tree.Close()
	for _, name := range s.mounts {
		err := errors.Join(tree.MkdirAll(path.Dir(name), 0o700), tree.RemoveAll(name), tree.Symlink(filepath.Join(s.dir, mountsName, name), name))
		if err != nil {
			return fmt.Errorf("what the pod mounts at %s: %w", name, file.WithoutPath(err))
		}
	}
	return nil
}

// carryDependencies moves the dependencies of the earlier source to the new one. If that fails, they are installed again.
func (s *sources) carryDependencies() {
	if err := carryDependencies(s.root, oldName, sourceName); err != nil {
		s.log.Warn("dependencies of the earlier source are lost", "error", err.Error())
	}
}

// The marker contains the digest of the artifact that the source was unpacked from, and the boot id of the machine. It is invalid after the
// next boot: the tree is not flushed to the disk, so after a crash of the machine files may be empty although the marker is intact, and a
// program that lost files would delete resources. A crash of the agent does not matter.

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

// bootID returns the id of this boot of the machine; empty if the system has none.
func bootID() string {
	boot, _ := procfs.BootID()
	return boot
}

// dependencies are the names of directories that installing the dependencies of a program creates inside its tree.
var dependencies = map[string]bool{
	"node_modules": true, // Node.js
	"venv":         true, // Python
	".venv":        true, // Python with uv or poetry
	"sdks":         true, // packages that Pulumi.yaml names, generated by pulumi install
}

// carryDependencies moves the directories of dependencies from one tree to the same place in another tree that does not have them, so that
// dependencies are installed again only if their inputs change. Both are paths in root.
func carryDependencies(root *os.Root, from, to string) error {
	entries, err := fs.ReadDir(root.FS(), from)
	if err != nil {
		return ignoreMissing(err)
	}
	for _, entry := range entries {
		// A link may point anywhere, so its target is not part of this tree.
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
		// The recursion is bounded by the limits of an artifact, because it only enters directories that both trees have.
		case err == nil && present.IsDir() && !dependencies[entry.Name()]:
			err = carryDependencies(root, old, new)
		}
		if err != nil {
			return fmt.Errorf("keep %s: %w", old, err)
		}
	}
	return nil
}

// removeTree removes the file or directory and everything in it, including directories without write permission, such as those of Go's
// module cache.
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

// ignoreMissing returns nil if err says that a file does not exist, and err otherwise.
func ignoreMissing(err error) error {
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	return err
}
