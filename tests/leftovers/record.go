// Package leftovers records what a process of the tests has on this machine beside itself, and removes what is left of one that was killed.
//
// A record is a file in the cache of the tools, one for each run of the tests, supervisor, demo and cluster that is left running. It names the
// process, and the directories and cgroups that it answers for. Who ends as it should removes its own record.
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
	// variable in the environment of a process is the name of the record of whoever answers for it.
	variable = "STACK_CONTROLLER_TEST_RECORD"
	// endPatience is how long a process that is asked to end may take.
	endPatience = time.Minute
	poll        = 20 * time.Millisecond
)

// Record is what a process answers for.
type Record struct {
	// Process is identified by more than its id, which may belong to another one by now.
	Process procfs.Identity
	// Directories are removed with all that is in them.
	Directories []string
	// Cgroups are names, without slashes: each is a directory in every hierarchy.
	Cgroups []string

	path string
}

// New records this process. The kind says what it is: all records of a kind can be found.
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

// directory is where the records are.
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

// Environment returns the variable that the processes have to have that this one starts.
func (r *Record) Environment() string { return variable + "=" + filepath.Base(r.path) }

// NewDirectory makes a temporary directory whose name begins with the prefix.
func (r *Record) NewDirectory(prefix string) (string, error) {
	dir, err := os.MkdirTemp("", prefix)
	if err != nil {
		return "", fmt.Errorf("create a directory: %w", err)
	}
	return dir, r.AddDirectory(dir)
}

// AddDirectory takes only what cannot be a mistake with consequences.
func (r *Record) AddDirectory(dir string) error {
	if !filepath.IsAbs(dir) || strings.Count(filepath.Clean(dir), "/") < 2 {
		return fmt.Errorf("%q is not a directory to remove", dir)
	}
	r.Directories = append(r.Directories, filepath.Clean(dir))
	return r.write()
}

// AddCgroup takes no cgroup that others may be in.
func (r *Record) AddCgroup(name string) error {
	if name != filepath.Base(name) || strings.Trim(name, "./") == "" {
		return fmt.Errorf("%q is not the name of a cgroup", name)
	}
	r.Cgroups = append(r.Cgroups, name)
	return r.write()
}

// Remove removes the cgroups, for which their processes have to have ended or to be about to, the directories and then the record.
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

// End has the process, when it still runs, end everything itself, and waits for that.
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

// Records returns the records of the kind, of all when it is empty, of processes that run or that no longer do.
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
			continue // it was removed meanwhile
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

// has reports whether the file or directory is one of the record's, or in one.
func (r *Record) has(path string) bool {
	return slices.ContainsFunc(r.Directories, func(dir string) bool { return path == dir || strings.HasPrefix(path, dir+"/") })
}
