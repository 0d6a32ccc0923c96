package state

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/stack-controller/stack-controller/internal/file"
	"github.com/stack-controller/stack-controller/internal/procfs"
)

const (
	// maxLifetimes is how many ended processes have a record of when they lived.
	maxLifetimes = 16
	// clockResolution is by how much a process may seem to have started after it took a lock: the time of a lock has whole seconds.
	clockResolution = 2 * time.Second
	// ticksPerSecond is the unit of times in /proc, the same on every Linux.
	ticksPerSecond = 100
	// maxProcessName is how much of the name of a program the kernel keeps, in bytes.
	maxProcessName = 15
)

// Each process of the CLI that changes the stack has a small file: its name is the process ID, its content the time at which the process
// started. A file that is left over means that the process, or the agent, was killed: the lock of the process may still be there, and
// pending operations in the state. When a process ends in an orderly way, its file is renamed to START-END-PID if the process held the
// lock, and removed otherwise.

func (s *Stack) processDir() string { return filepath.Join(s.Dir, "processes") }

func (s *Stack) recordPath(pid int) string { return filepath.Join(s.processDir(), strconv.Itoa(pid)) }

// Started records a process. If the record cannot be written, only the automatic release of the lock is lost.
func (s *Stack) Started(pid int) {
	_ = file.Write(s.recordPath(pid), []byte(startTime(pid)))
}

// Gone records a process that held the lock and was killed. It may be a process of an earlier pod, whose records were lost with the pod.
func (s *Stack) Gone(pid int) {
	if !s.alive(pid) {
		_ = os.WriteFile(s.recordPath(pid), []byte("gone"), 0o600)
	}
}

// Ended records that a process ran to its end. Even so it may not have been able to remove its lock, because the backend was away. A
// process that found the lock taken did not hold it; the holder lived at the same time, and may have the same host name and process ID in
// another cluster.
func (s *Stack) Ended(pid int, heldLock bool) {
	record, err := os.Stat(s.recordPath(pid))
	if err != nil || !heldLock {
		_ = os.Remove(s.recordPath(pid))
		return
	}
	_ = os.Rename(s.recordPath(pid), filepath.Join(s.processDir(), fmt.Sprintf("%d-%d-%d", record.ModTime().Unix(), time.Now().Unix(), pid)))
	ended := slices.DeleteFunc(s.records(), func(name string) bool { return !strings.Contains(name, "-") })
	for _, oldest := range ended[:max(0, len(ended)-maxLifetimes)] {
		_ = os.Remove(filepath.Join(s.processDir(), oldest))
	}
}

// records returns the names of all records, in their order.
func (s *Stack) records() []string {
	entries, _ := os.ReadDir(s.processDir())
	names := make([]string, 0, len(entries))
	for _, entry := range entries {
		names = append(names, entry.Name())
	}
	return names
}

// LeftOver returns the IDs of the recorded processes that are gone without an orderly end.
func (s *Stack) LeftOver() []int {
	var pids []int
	for _, name := range s.records() {
		if pid, err := strconv.Atoi(name); err == nil && !s.alive(pid) {
			pids = append(pids, pid)
		}
	}
	return pids
}

// alive reports whether the process was recorded and still runs. An empty record belongs to no running process: the process had ended
// before it was recorded, or the agent was killed while it recorded the process. Whatever has the process ID now is another process.
func (s *Stack) alive(pid int) bool {
	recorded, err := os.ReadFile(s.recordPath(pid))
	return err == nil && len(recorded) > 0 && startTime(pid) == string(recorded)
}

// tookAndEnded reports whether a process of this agent, which has ended, took a lock at the time. The name of the host and the process ID
// alone do not prove that. A lock has whole seconds, so its time is never after the end of the process that took it.
func (s *Stack) tookAndEnded(pid int64, since time.Time) bool {
	return slices.ContainsFunc(s.records(), func(name string) bool {
		var start, end, ended int64
		_, err := fmt.Sscanf(name, "%d-%d-%d", &start, &end, &ended)
		return err == nil && ended == pid && !since.Before(time.Unix(start, 0).Add(-clockResolution)) && !since.After(time.Unix(end, 0))
	})
}

// startTime returns when the process started, in clock ticks since the boot; empty if there is no such process, or if it has ended.
func startTime(pid int) string {
	stat, err := procfs.ReadStat(pid)
	if err != nil || stat.Ended() {
		return ""
	}
	return strconv.FormatUint(stat.StartTime, 10)
}

// runsSince reports whether the process is alive, runs the program of that name, and was started before the time.
func runsSince(pid int, program string, before time.Time) bool {
	stat, err := procfs.ReadStat(pid)
	if err != nil || stat.Ended() || stat.Name != program[:min(len(program), maxProcessName)] {
		return false
	}
	var sinceBoot unix.Timespec
	if unix.ClockGettime(unix.CLOCK_BOOTTIME, &sinceBoot) != nil {
		// The age of the process is not known, so it may be that process.
		return true
	}
	age := time.Duration(sinceBoot.Nano()) - time.Duration(stat.StartTime)*(time.Second/ticksPerSecond) //nolint:gosec // no machine runs that long
	return time.Now().Add(-age).Before(before)
}
