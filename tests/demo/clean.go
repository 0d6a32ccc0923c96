package main

import (
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/stack-controller/stack-controller/internal/procfs"
	"github.com/stack-controller/stack-controller/tests/background"
	"github.com/stack-controller/stack-controller/tests/tools"
)

const (
	// sweepPatience bounds the end of what a crashed demo left.
	sweepPatience = 10 * time.Second
	cleanPoll     = 50 * time.Millisecond
)

// records is the directory of the records of demos.
func records() (string, error) {
	cache, err := tools.CacheDir()
	if err != nil {
		return "", err
	}
	return filepath.Join(cache, "demo"), nil
}

// newRecord makes the directory of a run and records it for this process.
func newRecord() (*background.Record, error) {
	dir, err := records()
	if err != nil {
		return nil, err
	}
	return background.NewRecord(filepath.Join(dir, strconv.Itoa(os.Getpid())+".json"), "stack-demo-")
}

// cleanAll ends every demo of this user, running or crashed, and removes what they left.
func cleanAll(out io.Writer) error {
	dir, err := records()
	if err != nil {
		return err
	}
	paths, err := filepath.Glob(filepath.Join(dir, "*.json"))
	if err != nil {
		return fmt.Errorf("find the records: %w", err)
	}
	for _, path := range paths {
		r, err := background.ReadRecord(path)
		if err != nil {
			return err
		}
		if err := clean(r); err != nil {
			return err
		}
		_, _ = fmt.Fprintln(out, "removed the demo in", r.Dir)
	}
	if len(paths) == 0 {
		_, _ = fmt.Fprintln(out, "nothing to clean up")
	}
	return nil
}

func clean(r *background.Record) error {
	if err := r.End(); err != nil {
		return err
	}
	deadline := time.Now().Add(sweepPatience)
	for killWriters(r.Dir) {
		if time.Now().After(deadline) {
			return fmt.Errorf("processes that write to %s do not end", r.Dir)
		}
		time.Sleep(cleanPoll)
	}
	return r.Remove()
}

// killWriters kills the processes whose output goes to a file in the demo's directory, which is how everything that a
// demo starts can be told from all else. It reports whether it found any.
func killWriters(dir string) (found bool) {
	pids, _ := procfs.IDs()
	for _, pid := range pids {
		// The identity is taken before the check, so that the signal cannot reach a process that got the id later.
		process, err := procfs.Identify(pid)
		if err != nil || pid == os.Getpid() || !written(pid, dir) {
			continue
		}
		if process.Signal(syscall.SIGKILL) == nil {
			found = true
		}
	}
	return found
}

// written reports whether standard output or standard error of the process is a file in the demo's directory.
func written(pid int, dir string) bool {
	for _, fd := range []string{"1", "2"} {
		target, err := os.Readlink(filepath.Join("/proc", strconv.Itoa(pid), "fd", fd))
		if err == nil && strings.HasPrefix(target, dir+"/") {
			return true
		}
	}
	return false
}
