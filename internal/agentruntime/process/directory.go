package process

import (
	"bytes"
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
	"strings"
	"time"

	"golang.org/x/sys/unix"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/wait"

	"github.com/stack-controller/stack-controller/internal/file"
	"github.com/stack-controller/stack-controller/internal/procfs"
)

const (
	// maxSocketPath is the length of sun_path in sockaddr_un, without the final zero byte.
	maxSocketPath = 107
	// maxRecordSize bounds, in bytes, what is read of a record. The programs of the workspace could overwrite the record.
	maxRecordSize = 64 << 10
	// lockInterval is how often a lock that another controller holds is tried again. The lock is held for milliseconds while a process is
	// started or a directory renamed, and for longer while an agent, or what it left, is ended.
	lockInterval = 20 * time.Millisecond
	// removedSuffix marks a directory that is being removed and no longer belongs to a workspace.
	removedSuffix = ".removed-"
	// maxLogSize is the size, in bytes, at which the log of an agent is rotated. One old log is kept.
	maxLogSize = 5 << 20
	// tailLines and tailSize (bytes) bound what a message quotes of a log.
	tailLines = 5
	tailSize  = 1 << 10
)

// directory is the directory with everything of one workspace. Its mode is 0700.
type directory struct {
	path string
}

// directoryName returns the name of the directory of a workspace: 12 hexadecimal digits. It is the same for all Workspaces of that name,
// whatever their UID.
func directoryName(key types.NamespacedName) string {
	sum := sha256.Sum256([]byte(key.String()))
	return hex.EncodeToString(sum[:])[:12]
}

// isDirectoryName reports whether directoryName could return the name.
var isDirectoryName = regexp.MustCompile(`^[0-9a-f]{12}$`).MatchString

func (d directory) recordFile() string { return filepath.Join(d.path, "workspace.json") }
func (d directory) socket() string     { return filepath.Join(d.path, "agent.sock") }
func (d directory) log() string        { return filepath.Join(d.path, "agent.log") }
func (d directory) state() string      { return filepath.Join(d.path, "state") }
func (d directory) home() string       { return filepath.Join(d.state(), "home") }
func (d directory) temporary() string  { return filepath.Join(d.path, "tmp") }
func (d directory) workspace() string  { return filepath.Join(d.path, "workspace") }

// worked returns the path of a file that exists once an agent has listened in this directory: an agent is then expected to start again.
func (d directory) worked() string { return filepath.Join(d.path, "worked") }

// address is what the agent listens on and clients connect to.
func (d directory) address() string { return "unix:" + d.socket() }

// record names the Workspace of a directory and the agent that runs in it. It is the first file in a directory.
type record struct {
	Namespace string    `json:"namespace"`
	Name      string    `json:"name"`
	UID       types.UID `json:"uid"`
	// Starting is true from before the start of an agent until Agent is known. If a controller ended in between, the agent that it left has to
	// be searched for.
	Starting bool `json:"starting,omitempty"`
	// Agent is the process that was started last.
	Agent procfs.Identity `json:"agent,omitzero"`
}

// errCorrupt is the error for a record that cannot be parsed. A record is always written as a whole, so the damage comes from elsewhere.
var errCorrupt = errors.New("the record of the workspace is damaged")

// readRecord returns the record. The error is os.ErrNotExist if there is none, and errCorrupt if it cannot be parsed.
func (d directory) readRecord() (record, error) {
	var r record
	content, err := file.Read(d.recordFile(), maxRecordSize)
	switch {
	case errors.Is(err, file.ErrTooLarge), errors.Is(err, file.ErrNotRegular):
	case err != nil:
		return record{}, err
	default:
		err = json.Unmarshal(content, &r)
	}
	if err != nil {
		return record{}, fmt.Errorf("%w: parse %s: %w", errCorrupt, d.recordFile(), err)
	}
	return r, nil
}

// writeRecord replaces the record as a whole. The caller holds the lock.
func (d directory) writeRecord(r record) error {
	content, err := json.Marshal(r)
	if err == nil {
		err = file.Write(d.recordFile(), append(content, '\n'))
	}
	if err != nil {
		return fmt.Errorf("write the record of workspace %s/%s: %w", r.Namespace, r.Name, err)
	}
	return nil
}

// lock takes the lock on the directory, which it creates when it is missing. It waits as long as another controller
// holds the lock or until ctx is done. The lock ends with unlock, or with this process.
func (d directory) lock(ctx context.Context) (unlock func(), err error) {
	err = wait.PollUntilContextCancel(ctx, lockInterval, true, func(context.Context) (bool, error) {
		var err error
		if unlock, err = d.tryLock(); errors.Is(err, unix.EWOULDBLOCK) {
			return false, nil
		}
		return err == nil, err
	})
	if err != nil {
		return nil, fmt.Errorf("take the lock on %s: %w", d.path, err)
	}
	return unlock, nil
}

// tryLock takes the lock if it is free; the error is EWOULDBLOCK when it is not.
func (d directory) tryLock() (unlock func(), err error) {
	if err := os.Mkdir(d.path, 0o700); err != nil && !errors.Is(err, os.ErrExist) {
		return nil, fmt.Errorf("create the directory of a workspace: %w", err)
	}
	opened, err := os.Open(d.path)
	if err == nil {
		if err = d.lockOpened(opened); err != nil {
			err = errors.Join(err, opened.Close())
		}
	}
	if errors.Is(err, os.ErrNotExist) {
		err = unix.EWOULDBLOCK // removed just now
	}
	if err != nil {
		return nil, err
	}
	return func() {
		// Unlocked explicitly: a process that is being forked now may have a copy of the descriptor for a moment.
		_ = flock(opened, unix.LOCK_UN)
		_ = opened.Close()
	}, nil
}

// lockOpened locks the open directory. The directory may have been removed and created again between opening and locking; then the error is
// EWOULDBLOCK.
func (d directory) lockOpened(opened *os.File) error {
	if err := flock(opened, unix.LOCK_EX|unix.LOCK_NB); err != nil {
		return err
	}
	locked, err := opened.Stat()
	if err != nil {
		return err
	}
	current, err := os.Stat(d.path)
	if err == nil && !os.SameFile(locked, current) {
		err = unix.EWOULDBLOCK
	}
	return err
}

// flock is flock(2), repeated when a signal interrupts it.
func flock(file *os.File, how int) error {
	for {
		if err := unix.Flock(int(file.Fd()), how); !errors.Is(err, unix.EINTR) {
			return err
		}
	}
}

// exists reports whether the file or directory is there.
func exists(path string) (bool, error) {
	_, err := os.Lstat(path)
	if errors.Is(err, os.ErrNotExist) {
		return false, nil
	}
	return err == nil, err
}

// prepare prepares the directory for a new agent: it removes the socket and the temporary files of the last one.
func (d directory) prepare() error {
	err := os.Remove(d.socket())
	if errors.Is(err, os.ErrNotExist) {
		err = nil
	}
	if err = errors.Join(err, removeTree(d.temporary())); err != nil {
		return fmt.Errorf("remove what the last agent left: %w", err)
	}
	for _, dir := range []string{d.state(), d.home(), d.temporary(), d.workspace()} {
		if err := os.MkdirAll(dir, 0o700); err != nil {
			return fmt.Errorf("prepare the directory of a workspace: %w", err)
		}
	}
	return d.rotateLog()
}

// remove removes the directory and everything in it. It renames the directory first, so that a controller that ends meanwhile leaves no
// incomplete directory. The caller holds the lock.
func (d directory) remove() error {
	removed := d.path + removedSuffix + rand.Text()
	if err := os.Rename(d.path, removed); err != nil && !errors.Is(err, os.ErrNotExist) {
		return fmt.Errorf("remove the directory of a workspace: %w", err)
	}
	return removeTree(removed)
}

// removeTree removes a directory tree, even where a program removed its own permissions, as the Go module cache does.
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

// openLog opens the agent's log for appending.
func (d directory) openLog() (*os.File, error) {
	log, err := os.OpenFile(d.log(), os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		return nil, fmt.Errorf("open the log of an agent: %w", err)
	}
	return log, nil
}

// rotateLog moves the end of a log that has become too large to the old log. The agent keeps writing to the same file, because it outlives
// any controller that could give it another one. Therefore the file is copied and truncated; lines written in between are lost.
func (d directory) rotateLog() error {
	log, err := os.Open(d.log())
	if errors.Is(err, os.ErrNotExist) {
		return nil
	}
	if err == nil {
		err = errors.Join(d.moveEnd(log), log.Close())
	}
	if err != nil {
		return fmt.Errorf("rotate the log of an agent: %w", err)
	}
	return nil
}

func (d directory) moveEnd(log *os.File) error {
	info, err := log.Stat()
	if err != nil || info.Size() < maxLogSize {
		return err
	}
	old, err := os.OpenFile(d.log()+".1", os.O_CREATE|os.O_TRUNC|os.O_WRONLY, 0o600)
	if err != nil {
		return err
	}
	_, err = io.Copy(old, io.NewSectionReader(log, info.Size()-maxLogSize, maxLogSize))
	if err = errors.Join(err, old.Close()); err != nil {
		return err
	}
	return os.Truncate(d.log(), 0)
}

// logTail returns the last lines that the agent wrote after the offset, for a message. It returns nothing if the agent wrote nothing, or if
// the log cannot be read. The agent keeps secrets out of its log.
func (d directory) logTail(offset int64) string {
	log, err := os.Open(d.log())
	if err != nil {
		return ""
	}
	defer log.Close()
	size := d.logSize()
	if size < offset {
		offset = 0 // the log was rotated meanwhile
	}
	content, err := io.ReadAll(io.NewSectionReader(log, max(offset, size-tailSize), tailSize))
	if err != nil {
		return ""
	}
	if size-offset > tailSize {
		// The first line is not whole.
		if _, rest, found := bytes.Cut(content, []byte("\n")); found {
			content = rest
		}
	}
	lines := strings.Split(strings.TrimSpace(strings.ToValidUTF8(string(content), "?")), "\n")
	return strings.Join(lines[max(0, len(lines)-tailLines):], "\n")
}

// logSize is the size of the log, in bytes; 0 when there is none.
func (d directory) logSize() int64 {
	info, err := os.Stat(d.log())
	if err != nil {
		return 0
	}
	return info.Size()
}
