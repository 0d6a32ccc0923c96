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

	"github.com/stack-controller/stack-controller/tests/supervise"
)

const (
	// stopPatience is how long a demo that runs may take to end by itself.
	stopPatience = 60 * time.Second
	// sweepPatience bounds the end of what a crashed demo left.
	sweepPatience = 10 * time.Second
	cleanPoll     = 50 * time.Millisecond
)

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
		r, err := readRecord(path)
		if err != nil {
			return err
		}
		if err := r.clean(); err != nil {
			return err
		}
		_, _ = fmt.Fprintln(out, "removed the demo in", r.Dir)
	}
	if len(paths) == 0 {
		_, _ = fmt.Fprintln(out, "nothing to clean up")
	}
	return nil
}

func (r *record) clean() error {
	if err := r.endDemo(); err != nil {
		return err
	}
	deadline := time.Now().Add(sweepPatience)
	for r.killWriters() {
		if time.Now().After(deadline) {
			return fmt.Errorf("processes that write to %s do not end", r.Dir)
		}
		time.Sleep(cleanPoll)
	}
	return r.remove()
}

// endDemo has the demo's process, when it still runs, end everything itself.
func (r *record) endDemo() error {
	// The handle is taken before the check, so that the signal cannot reach a process that got the id later.
	process, err := os.FindProcess(r.PID)
	if err != nil || !r.running() {
		return nil
	}
	if err := process.Signal(syscall.SIGTERM); err != nil {
		return nil //nolint:nilerr // it has ended meanwhile
	}
	deadline := time.Now().Add(stopPatience)
	for r.running() {
		if time.Now().After(deadline) {
			return fmt.Errorf("the demo (pid %d) did not end within %s", r.PID, stopPatience)
		}
		time.Sleep(cleanPoll)
	}
	return nil
}

func (r *record) running() bool {
	started, err := supervise.StartTime(r.PID)
	return err == nil && started == r.StartTime
}

// killWriters kills the processes whose output goes to a file in the demo's directory, which is how everything that a
// demo starts can be told from all else. It reports whether it found any.
func (r *record) killWriters() (found bool) {
	entries, err := filepath.Glob("/proc/[0-9]*")
	if err != nil {
		return false
	}
	for _, entry := range entries {
		pid, err := strconv.Atoi(filepath.Base(entry))
		if err != nil || pid == os.Getpid() {
			continue
		}
		process, err := os.FindProcess(pid)
		if err != nil || !r.written(pid) {
			continue
		}
		if process.Signal(syscall.SIGKILL) == nil {
			found = true
		}
	}
	return found
}

// written tells whether standard output or standard error of the process is a file in the demo's directory.
func (r *record) written(pid int) bool {
	for _, fd := range []string{"1", "2"} {
		target, err := os.Readlink(filepath.Join("/proc", strconv.Itoa(pid), "fd", fd))
		if err == nil && strings.HasPrefix(target, r.Dir+"/") {
			return true
		}
	}
	return false
}
