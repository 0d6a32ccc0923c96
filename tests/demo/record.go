package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"

	"github.com/stack-controller/stack-controller/tests/supervise"
	"github.com/stack-controller/stack-controller/tests/tools"
)

// record is what a run leaves on disk while it runs, so that a later one can clean up after a crash.
type record struct {
	// PID and StartTime identify the demo's process; the id alone may belong to another one by now.
	PID       int
	StartTime string
	// Dir is where everything that the demo starts writes to.
	Dir string

	path string
}

// records is the directory of the records.
func records() (string, error) {
	cache, err := tools.CacheDir()
	if err != nil {
		return "", err
	}
	return filepath.Join(cache, "demo"), nil
}

// newRecord makes the directory of a run and records both for this process.
func newRecord() (*record, error) {
	parent, err := records()
	if err != nil {
		return nil, err
	}
	if err := os.MkdirAll(parent, 0o700); err != nil {
		return nil, fmt.Errorf("create the directory of the records: %w", err)
	}
	r := &record{PID: os.Getpid(), path: filepath.Join(parent, strconv.Itoa(os.Getpid())+".json")}
	if r.StartTime, err = supervise.StartTime(r.PID); err != nil {
		return nil, fmt.Errorf("find this process: %w", err)
	}
	// Not in the cache: the path of a unix socket must be short.
	if r.Dir, err = os.MkdirTemp("", "stack-demo-"); err != nil {
		return nil, fmt.Errorf("create the demo's directory: %w", err)
	}
	content, err := json.Marshal(r)
	if err != nil {
		return nil, fmt.Errorf("encode the record: %w", err)
	}
	if err := os.WriteFile(r.path, content, 0o600); err != nil {
		return nil, fmt.Errorf("write the record: %w", err)
	}
	return r, nil
}

func readRecord(path string) (*record, error) {
	content, err := os.ReadFile(path)
	if err != nil {
		return nil, fmt.Errorf("read the record of a demo: %w", err)
	}
	r := &record{path: path}
	if err := json.Unmarshal(content, r); err != nil {
		return nil, fmt.Errorf("read the record %s: %w", path, err)
	}
	return r, nil
}

// remove removes the demo's directory and then the record.
func (r *record) remove() error {
	if err := os.RemoveAll(r.Dir); err != nil {
		return fmt.Errorf("remove the demo's directory: %w", err)
	}
	if err := os.Remove(r.path); err != nil && !errors.Is(err, os.ErrNotExist) {
		return fmt.Errorf("remove the record: %w", err)
	}
	return nil
}
