package leftovers

import (
	"bytes"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"time"
)

// CgroupPaths returns the directories of the named cgroup, one in each mounted hierarchy, whether they exist or not.
func CgroupPaths(name string) ([]string, error) {
	mounts, err := os.ReadFile("/proc/self/mounts")
	if err != nil {
		return nil, fmt.Errorf("find the cgroup hierarchies: %w", err)
	}
	var paths []string
	for line := range bytes.Lines(mounts) {
		fields := strings.Fields(string(line))
		if len(fields) > 3 && (fields[2] == "cgroup" || fields[2] == "cgroup2") {
			paths = append(paths, filepath.Join(fields[1], name))
		}
	}
	return paths, nil
}

// KillCgroup kills every process in the named cgroup and in those below it, in all hierarchies.
func KillCgroup(name string) error {
	paths, err := CgroupPaths(name)
	for _, path := range paths {
		killCgroup(path)
	}
	return err
}

// endCgroup kills the processes in the named cgroup and removes it with those below it. What was killed leaves its cgroup a moment after
// its end.
func endCgroup(name string) error {
	paths, err := CgroupPaths(name)
	if err != nil {
		return err
	}
	for _, path := range paths {
		err := removeCgroup(path)
		for deadline := time.Now().Add(endPatience); err != nil && time.Now().Before(deadline); err = removeCgroup(path) {
			killCgroup(path)
			time.Sleep(poll)
		}
		if err != nil {
			return fmt.Errorf("remove a cgroup: %w", err)
		}
	}
	return nil
}

// killCgroup kills every process in the directory of a cgroup and in those below it.
func killCgroup(path string) {
	_ = filepath.WalkDir(path, func(path string, entry fs.DirEntry, err error) error {
		if err != nil || !entry.IsDir() {
			return nil //nolint:nilerr // what is not there has no processes
		}
		processes, err := os.ReadFile(filepath.Join(path, "cgroup.procs"))
		if err != nil {
			return nil //nolint:nilerr // as above
		}
		for _, process := range bytes.Fields(processes) {
			if pid, err := strconv.Atoi(string(process)); err == nil && pid > 1 {
				_ = syscall.Kill(pid, syscall.SIGKILL)
			}
		}
		return nil
	})
}

// removeCgroup removes the directory of a cgroup and those below it. It fails as long as there are processes in them.
func removeCgroup(path string) error {
	entries, err := os.ReadDir(path)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	for _, entry := range entries {
		if !entry.IsDir() {
			continue // the kernel's own files, which go with the directory
		}
		if err := removeCgroup(filepath.Join(path, entry.Name())); err != nil {
			return err
		}
	}
	if err := syscall.Rmdir(path); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return &os.PathError{Op: "rmdir", Path: path, Err: err}
	}
	return nil
}
