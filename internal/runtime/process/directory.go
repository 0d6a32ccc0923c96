package process

import (
	"context"
	"crypto/rand"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"regexp"
	"time"

	"golang.org/x/sys/unix"
	"k8s.io/apimachinery/pkg/types"
)

// maxSocketPath is the length of sun_path in sockaddr_un, without the final zero byte.
const maxSocketPath = 107

// maxRecordSize bounds in bytes what is read of a record, which the programs of the workspace could write over.
const maxRecordSize = 64 << 10

// lockInterval is how often a lock that another controller holds is tried. It is held while a process is started or a directory
// renamed, for milliseconds.
const lockInterval = 20 * time.Millisecond

// removedSuffix marks a directory that is being removed; it belongs to no workspace any more.
const removedSuffix = ".removed-"

// directory is where everything of one workspace is. Its mode is 0700.
type directory struct {
	path string
}

// directoryName is the same for all workspaces of that name, whatever their UID: 12 hexadecimal digits.
func directoryName(key types.NamespacedName) string {
	sum := sha256.Sum256([]byte(key.String()))
	return hex.EncodeToString(sum[:])[:12]
}

// isDirectoryName matches what directoryName returns.
var isDirectoryName = regexp.MustCompile(`^[0-9a-f]{12}$`).MatchString

func (d directory) recordFile() string { return filepath.Join(d.path, "workspace.json") }
func (d directory) socket() string     { return filepath.Join(d.path, "agent.sock") }
func (d directory) log() string        { return filepath.Join(d.path, "agent.log") }
func (d directory) state() string      { return filepath.Join(d.path, "state") }
func (d directory) home() string       { return filepath.Join(d.state(), "home") }
func (d directory) temporary() string  { return filepath.Join(d.path, "tmp") }
func (d directory) workspace() string  { return filepath.Join(d.path, "workspace") }

// address is what the agent listens on and clients connect to.
func (d directory) address() string { return "unix:" + d.socket() }

// record says whose directory this is and which agent runs in it. It is the first file in a directory.
type record struct {
	Namespace string    `json:"namespace"`
	Name      string    `json:"name"`
	UID       types.UID `json:"uid"`
	// Starting is true from before the start of an agent until Agent is known: a controller that ended in between
	// left an agent that has to be searched for.
	Starting bool `json:"starting,omitempty"`
	// Agent is the process that was started last.
	Agent identity `json:"agent,omitzero"`
	// Worked is true once an agent listened in this directory: it can be expected to do so again.
	Worked bool `json:"worked,omitempty"`
}

// errCorrupt says that a record cannot be read. It was written as a whole, so the disk is to blame.
var errCorrupt = errors.New("the record of the workspace is damaged")

// readRecord returns the record; the error is os.ErrNotExist when there is none, and errCorrupt when it makes no sense.
func (d directory) readRecord() (record, error) {
	file, err := os.Open(d.recordFile())
	if err != nil {
		return record{}, err
	}
	defer func() { _ = file.Close() }()
	content, err := io.ReadAll(io.LimitReader(file, maxRecordSize))
	if err != nil {
		return record{}, err
	}
	var r record
	if err := json.Unmarshal(content, &r); err != nil {
		return record{}, fmt.Errorf("%w: parse %s: %w", errCorrupt, d.recordFile(), err)
	}
	return r, nil
}

// writeRecord replaces the record as a whole. The caller holds the lock.
func (d directory) writeRecord(r record) error {
	content, err := json.Marshal(r)
	if err != nil {
		return fmt.Errorf("encode the record of workspace %s/%s: %w", r.Namespace, r.Name, err)
	}
	temporary := d.recordFile() + ".new"
	if err := os.WriteFile(temporary, append(content, '\n'), 0o600); err != nil {
		return fmt.Errorf("write the record of workspace %s/%s: %w", r.Namespace, r.Name, err)
	}
	if err := os.Rename(temporary, d.recordFile()); err != nil {
		return fmt.Errorf("write the record of workspace %s/%s: %w", r.Namespace, r.Name, err)
	}
	return nil
}

// lock takes the lock on the directory, which it creates when it is missing. It waits as long as another controller
// holds the lock or until ctx is done. The lock ends with unlock, or with this process.
func (d directory) lock(ctx context.Context) (unlock func(), err error) {
	ticker := time.NewTicker(lockInterval)
	defer ticker.Stop()
	for {
		unlock, err := d.tryLock()
		if !errors.Is(err, unix.EWOULDBLOCK) {
			return unlock, err
		}
		select {
		case <-ctx.Done():
			return nil, fmt.Errorf("wait for the lock on %s: %w", d.path, ctx.Err())
		case <-ticker.C:
		}
	}
}

// tryLock takes the lock if it is free; the error is EWOULDBLOCK when it is not.
func (d directory) tryLock() (unlock func(), err error) {
	if err := os.Mkdir(d.path, 0o700); err != nil && !errors.Is(err, os.ErrExist) {
		return nil, fmt.Errorf("create the directory of a workspace: %w", err)
	}
	file, err := os.Open(d.path)
	if errors.Is(err, os.ErrNotExist) {
		return nil, unix.EWOULDBLOCK // removed just now
	}
	if err != nil {
		return nil, fmt.Errorf("open the directory of a workspace: %w", err)
	}
	if err := flock(file, unix.LOCK_EX|unix.LOCK_NB); err != nil {
		return nil, errors.Join(err, file.Close())
	}
	// The directory may have been removed, and made again, between opening and locking.
	locked, err := file.Stat()
	if err == nil {
		var current os.FileInfo
		if current, err = os.Stat(d.path); err == nil && !os.SameFile(locked, current) {
			err = unix.EWOULDBLOCK
		}
	}
	if errors.Is(err, os.ErrNotExist) {
		err = unix.EWOULDBLOCK
	}
	if err != nil {
		return nil, errors.Join(err, file.Close())
	}
	return func() {
		// Said explicitly: a process that is being forked now may hold a copy of the descriptor for a moment.
		_ = flock(file, unix.LOCK_UN)
		_ = file.Close()
	}, nil
}

// flock is flock(2), repeated when a signal interrupts it.
func flock(file *os.File, how int) error {
	for {
		if err := unix.Flock(int(file.Fd()), how); !errors.Is(err, unix.EINTR) {
			return err
		}
	}
}

// exists tells whether the directory is there.
func (d directory) exists() (bool, error) {
	_, err := os.Lstat(d.path)
	if errors.Is(err, os.ErrNotExist) {
		return false, nil
	}
	return err == nil, err
}

// remove removes the directory with all that is in it. It disappears from its place at once, so that a controller that
// ends meanwhile leaves no half of it. The caller holds the lock.
func (d directory) remove() error {
	removed := d.path + removedSuffix + rand.Text()
	if err := os.Rename(d.path, removed); err != nil && !errors.Is(err, os.ErrNotExist) {
		return fmt.Errorf("remove the directory of a workspace: %w", err)
	}
	return removeTree(removed)
}

// removeTree removes a tree even where a program took away its own rights, as the Go module cache does.
func removeTree(path string) error {
	if err := os.RemoveAll(path); err == nil {
		return nil
	}
	_ = filepath.WalkDir(path, func(name string, entry os.DirEntry, err error) error {
		if entry != nil && entry.IsDir() {
			_ = os.Chmod(name, 0o700) //nolint:gosec // a directory that cannot be entered cannot be emptied
		}
		return nil
	})
	if err := os.RemoveAll(path); err != nil {
		return fmt.Errorf("remove the directory of a workspace: %w", err)
	}
	return nil
}
