// Package leftovers records what a process of the tests has created on this machine, and removes what is left after a process was killed.
//
// A record is a file in the cache of the tools. Every run of the tests, every supervisor and every demo or cluster that keeps running has a
// record. It names the process, and the directories and cgroups that the process is responsible for. A process that ends regularly removes
// its record.
package leftovers

import (
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"time"

	"github.com/stack-controller/stack-controller/internal/file"
	"github.com/stack-controller/stack-controller/internal/procfs"
	"github.com/stack-controller/stack-controller/tests/tools"
)

const (
	// variable is an environment variable with the name of the record of the process that is responsible.
	variable = "STACK_CONTROLLER_TEST_RECORD"
	// endPatience is how long a process may take to end after it was asked to.
	endPatience = time.Minute
	poll        = 20 * time.Millisecond
)

// Record names a process and what the process is responsible for.
type Record struct {
	// Process has more than the process id, which another process may have by now.
	Process procfs.Identity
	// Directories are removed with their content.
	Directories []string
	// Cgroups are names without slashes. Each of them is a directory in every hierarchy.
	Cgroups []string

	path string
}

// New creates a record for this process. The kind says what the process is, and all records of a kind can be found.
func New(kind string) (*Record, error) {
	dir, err := directory()
	if err != nil {
		return nil, err
	}
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return nil, fmt.Errorf("create the directory of the records: %w", err)
	}
	r := &Record{}
	if r.Process, err = procfs.Identify(os.Getpid()); err != nil {
		return nil, fmt.Errorf("find this process: %w", err)
	}
	r.path = filepath.Join(dir, fmt.Sprintf("%s-%d-%d.json", kind, r.Process.PID, r.Process.StartTime))
	return r, r.write()
}

// directory returns the directory of the records.
func directory() (string, error) {
	cache, err := tools.CacheDir()
	if err != nil {
		return "", err
	}
	return filepath.Join(cache, "records"), nil
}

func (r *Record) write() error {
	content, err := json.Marshal(r)
	if err == nil {
		err = file.Write(r.path, content)
	}
	if err != nil {
		return fmt.Errorf("write the record: %w", err)
	}
	return nil
}

// Environment returns the environment variable that this process has to set for the processes that it starts.
func (r *Record) Environment() string { return variable + "=" + filepath.Base(r.path) }

// NewDirectory creates a temporary directory whose name begins with the prefix, and adds it to the record.
func (r *Record) NewDirectory(prefix string) (string, error) {
	dir, err := os.MkdirTemp("", prefix)
	if err != nil {
		return "", fmt.Errorf("create a directory: %w", err)
	}
	return dir, r.AddDirectory(dir)
}

// AddDirectory adds a directory. It rejects paths whose removal would be a disaster, such as relative ones and those directly below the
// root.
func (r *Record) AddDirectory(dir string) error {
	if !filepath.IsAbs(dir) || strings.Count(filepath.Clean(dir), "/") < 2 {
		return fmt.Errorf("%q is not a directory to remove", dir)
	}
	r.Directories = append(r.Directories, filepath.Clean(dir))
	return r.write()
}

// AddCgroup adds a cgroup. It rejects names of cgroups that other processes may be in.
func (r *Record) AddCgroup(name string) error {
	if name != filepath.Base(name) || strings.Trim(name, "./") == "" {
		return fmt.Errorf("%q is not the name of a cgroup", name)
	}
	r.Cgroups = append(r.Cgroups, name)
	return r.write()
}

// Remove kills the processes in the cgroups, removes the cgroups and the directories, and then the record.
func (r *Record) Remove() error {
	var errs []error
	for _, name := range r.Cgroups {
		errs = append(errs, endCgroup(name))
	}
	for _, dir := range r.Directories {
		errs = append(errs, os.RemoveAll(dir))
	}
	if err := errors.Join(errs...); err != nil {
		return fmt.Errorf("remove what is left: %w", err)
	}
	if err := os.Remove(r.path); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("remove the record: %w", err)
	}
	return nil
}

// End asks the process, if it is still running, to end everything itself, and waits until it has ended.
func (r *Record) End() error {
	err := r.Process.Signal(syscall.SIGTERM)
	for deadline := time.Now().Add(endPatience); err == nil; time.Sleep(poll) {
		running, lookErr := r.Process.Running()
		if lookErr != nil || !running {
			return lookErr
		}
		if time.Now().After(deadline) {
			return fmt.Errorf("process %d did not end within %s", r.Process.PID, endPatience)
		}
	}
	if errors.Is(err, procfs.ErrNotRunning) {
		return nil
	}
	return err
}

// Records returns the records of the kind, or of all kinds if it is empty. They are those of running processes, or those of processes that
// have ended.
func Records(kind string, running bool) (found []*Record, err error) {
	dir, err := directory()
	if err != nil {
		return nil, err
	}
	paths, err := filepath.Glob(filepath.Join(dir, cmp.Or(kind, "*")+"-*.json"))
	if err != nil {
		return nil, err
	}
	for _, path := range paths {
		r, err := read(path)
		if errors.Is(err, fs.ErrNotExist) {
			continue // another process removed the record in the meantime
		}
		if err != nil {
			return nil, err
		}
		runs, err := r.Process.Running()
		if err != nil {
			return nil, err
		}
		if runs == running {
			found = append(found, r)
		}
	}
	return found, nil
}

func read(path string) (*Record, error) {
	content, err := os.ReadFile(path)
	if err != nil {
		return nil, fmt.Errorf("read a record: %w", err)
	}
	r := &Record{path: path}
	if err := json.Unmarshal(content, r); err != nil {
		return nil, fmt.Errorf("read the record %s: %w", path, err)
	}
	return r, nil
}

// has reports whether the path is one of the record's directories, or is inside one.
func (r *Record) has(path string) bool {
	return slices.ContainsFunc(r.Directories, func(dir string) bool { return path == dir || strings.HasPrefix(path, dir+"/") })
}
