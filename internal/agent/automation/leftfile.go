package automation

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"

	"github.com/go-logr/logr"
)

// leftFile is a file of a program's tree that an operation replaced for people, and what it was before. It is written before
// the file, so that nothing is lost however the agent ends.
type leftFile struct {
	// Dir is the directory of the program, Name the path of the file in it.
	Dir, Name string
	// Artifact is the digest of what the tree was unpacked from; empty when the program came with the workspace.
	Artifact string
	// Original is what was there; nil when there was nothing.
	Original []byte
	// Mode is that of the original.
	Mode fs.FileMode
	// Left is the digest of what was put there.
	Left string
}

// leftFiles keeps the records of left files in a directory.
type leftFiles struct {
	dir string
	log logr.Logger
}

func (r *Runner) leftFiles() *leftFiles {
	return &leftFiles{dir: r.stateDir("left"), log: r.log}
}

// recordPath is where the record of the file is, or will be.
func (l *leftFiles) recordPath(left *leftFile) string {
	digest := sha256.Sum256([]byte(left.Dir + "\x00" + left.Name))
	return filepath.Join(l.dir, hex.EncodeToString(digest[:8])+".json")
}

// put replaces the file by the content.
func (l *leftFiles) put(left *leftFile, content []byte) error {
	root, err := os.OpenRoot(left.Dir)
	if err != nil {
		return withoutPath(err)
	}
	defer root.Close()
	if left.Original, left.Mode, err = readInRoot(root, left.Name); err != nil {
		return err
	}
	if left.Original != nil && bytes.Equal(left.Original, content) {
		return nil
	}
	left.Left = contentDigest(content)
	record, err := json.Marshal(left)
	if err != nil {
		return err
	}
	if err := errors.Join(os.MkdirAll(l.dir, 0o700), writeFile(l.recordPath(left), record)); err != nil {
		return err
	}
	return writeInRoot(root, left.Name, content, 0o600)
}

// each calls visit with each record; one that cannot be read is removed.
func (l *leftFiles) each(visit func(left *leftFile) error) error {
	entries, err := os.ReadDir(l.dir)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return withoutPath(err)
	}
	for _, entry := range entries {
		path := filepath.Join(l.dir, entry.Name())
		left := &leftFile{}
		content, err := readBounded(path, 2*maxProjectSize)
		if err != nil || json.Unmarshal(content, left) != nil || l.recordPath(left) != path {
			_ = os.RemoveAll(path)
			continue
		}
		if err := visit(left); err != nil {
			return fmt.Errorf("%s: %w", left.Name, err)
		}
	}
	return nil
}

// takeBack makes the tree of the artifact, or with none the programs of the workspace, as they were before anything was left.
// When there is another artifact by now, the tree of the earlier one is gone.
func (l *leftFiles) takeBack(artifact string) error {
	return l.each(func(left *leftFile) error {
		if left.Artifact != artifact {
			if left.Artifact == "" || artifact == "" {
				return nil
			}
			return os.Remove(l.recordPath(left))
		}
		if err := l.restore(left); err != nil {
			return err
		}
		return os.Remove(l.recordPath(left))
	})
}

// restore undoes put, and tells about what somebody else made of the file.
func (l *leftFiles) restore(left *leftFile) error {
	root, err := os.OpenRoot(left.Dir)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return withoutPath(err)
	}
	defer root.Close()
	content, _, err := readInRoot(root, left.Name)
	if err != nil {
		return err
	}
	if left.wasChanged(content) {
		kept := filepath.Join(filepath.Dir(l.dir), "edited", filepath.Base(left.Name))
		if err := errors.Join(os.MkdirAll(filepath.Dir(kept), 0o700), writeFile(kept, content)); err != nil {
			return err
		}
		l.log.Info("a file beside the program was changed by hand; operations do not use that, and the change is undone",
			"file", filepath.Join(left.Dir, left.Name), "kept", kept)
	}
	if left.Original != nil {
		return writeInRoot(root, left.Name, left.Original, left.Mode)
	}
	return ignoreMissing(root.Remove(left.Name))
}

// wasChanged tells whether the content is neither what was put there nor what was there before.
func (f *leftFile) wasChanged(content []byte) bool {
	return contentDigest(content) != f.Left && (!bytes.Equal(content, f.Original) || (content == nil) != (f.Original == nil))
}

// adopt forgets what was left in programs of the workspace and was changed since: while no agent ran, an init container may have
// brought a new program.
func (l *leftFiles) adopt() error {
	return l.each(func(left *leftFile) error {
		root, err := os.OpenRoot(left.Dir)
		if left.Artifact != "" || err != nil {
			return nil
		}
		defer root.Close()
		if content, _, err := readInRoot(root, left.Name); err != nil || !left.wasChanged(content) {
			return nil
		}
		l.log.Info("a file beside the program was changed while no agent ran: it is taken for a part of the program", "file", filepath.Join(left.Dir, left.Name))
		return os.Remove(l.recordPath(left))
	})
}

func contentDigest(content []byte) string {
	digest := sha256.Sum256(content)
	return hex.EncodeToString(digest[:])
}

// readInRoot reads a plain file; nil when there is none. Something else than a plain file is an error.
func readInRoot(root *os.Root, name string) ([]byte, fs.FileMode, error) {
	info, err := root.Lstat(name)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, 0, nil
	}
	if err != nil {
		return nil, 0, withoutPath(err)
	}
	if !info.Mode().IsRegular() {
		return nil, 0, errors.New("there is something that is not a file")
	}
	file, err := root.Open(name)
	if err != nil {
		return nil, 0, withoutPath(err)
	}
	defer file.Close()
	content, err := io.ReadAll(io.LimitReader(file, maxProjectSize+1))
	if err == nil && len(content) > maxProjectSize {
		err = errors.New("the file is too large")
	}
	if content == nil {
		content = []byte{}
	}
	return content, info.Mode().Perm(), err
}

// writeInRoot replaces the file in one step.
func writeInRoot(root *os.Root, name string, content []byte, mode fs.FileMode) error {
	temporary := name + ".new"
	if err := ignoreMissing(root.Remove(temporary)); err != nil {
		return err
	}
	if err := errors.Join(root.WriteFile(temporary, content, mode), root.Chmod(temporary, mode)); err != nil {
		return errors.Join(withoutPath(err), ignoreMissing(root.Remove(temporary)))
	}
	return root.Rename(temporary, name)
}

func ignoreMissing(err error) error {
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	return withoutPath(err)
}
