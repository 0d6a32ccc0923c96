package background

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"syscall"
	"time"

	"github.com/stack-controller/stack-controller/internal/procfs"
)

const (
	// endPatience is how long a process in the background may take to end by itself.
	endPatience = 60 * time.Second
	endPoll     = 50 * time.Millisecond
)

// Record is what a process leaves on disk while it runs, so that others find it, and can clean up after a crash.
type Record struct {
	// Process is identified by more than its id, which may belong to another one by now.
	Process procfs.Identity
	// Dir is where everything that the process starts writes to.
	Dir string

	path string
}

// NewRecord makes a directory, whose name begins with the prefix, and records it for this process in the file at the path.
func NewRecord(path, prefix string) (r *Record, err error) {
	if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
		return nil, fmt.Errorf("create the directory of the records: %w", err)
	}
	r = &Record{path: path}
	if r.Process, err = procfs.Identify(os.Getpid()); err != nil {
		return nil, fmt.Errorf("find this process: %w", err)
	}
	// Not in the cache: the path of a unix socket must be short.
	if r.Dir, err = os.MkdirTemp("", prefix); err != nil {
		return nil, fmt.Errorf("create the directory of a record: %w", err)
	}
	content, err := json.Marshal(r)
	if err != nil {
		return nil, fmt.Errorf("encode the record: %w", err)
	}
	if err := os.WriteFile(path, content, 0o600); err != nil {
		return nil, errors.Join(fmt.Errorf("write the record: %w", err), os.Remove(r.Dir))
	}
	return r, nil
}

// ReadRecord reads the record at the path. The error is os.ErrNotExist when there is none.
func ReadRecord(path string) (*Record, error) {
	content, err := os.ReadFile(path)
	if err != nil {
		return nil, fmt.Errorf("read the record: %w", err)
	}
	r := &Record{path: path}
	if err := json.Unmarshal(content, r); err != nil {
		return nil, fmt.Errorf("read the record %s: %w", path, err)
	}
	return r, nil
}

// Remove removes the directory and then the record.
func (r *Record) Remove() error {
	if err := os.RemoveAll(r.Dir); err != nil {
		return fmt.Errorf("remove the directory of a record: %w", err)
	}
	if err := os.Remove(r.path); err != nil && !errors.Is(err, os.ErrNotExist) {
		return fmt.Errorf("remove the record: %w", err)
	}
	return nil
}

// End has the process, when it still runs, end everything itself, and waits for that.
func (r *Record) End() error {
	err := r.Process.Signal(syscall.SIGTERM)
	if errors.Is(err, procfs.ErrNotRunning) {
		return nil
	}
	deadline := time.Now().Add(endPatience)
	for running := true; running && err == nil; running, err = r.Process.Running() {
		if time.Now().After(deadline) {
			return fmt.Errorf("the process %d in the background did not end within %s", r.Process.PID, endPatience)
		}
		time.Sleep(endPoll)
	}
	return err
}
