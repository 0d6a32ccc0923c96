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
	// maxLifetimes is of how many processes it is known when they lived.
	maxLifetimes = 16
	// clockResolution is by how much a process may seem to have started after it took a lock: the lock has whole seconds.
	clockResolution = 2 * time.Second
	// ticksPerSecond is the unit of times in /proc, the same on every Linux.
	ticksPerSecond = 100
	// maxProcessName is how much of the name of a program the kernel keeps, in bytes.
	maxProcessName = 15
)

// Each process of the CLI that changes the stack has a small file: its name is the process ID, its content the time the process started.
// One that is left over says that a process of ours was killed, or that the agent was: the lock of that process may still be there, and
// pending operations in the state. When a process ends in an orderly way its file gets the name START-END-PID, if it held the lock.

func (s *Stack) processDir() string { return filepath.Join(s.Dir, "processes") }

func (s *Stack) recordPath(pid int) string { return filepath.Join(s.processDir(), strconv.Itoa(pid)) }

// Started records a process. A record that cannot be written costs no more than the automatic release of its lock.
func (s *Stack) Started(pid int) {
	_ = file.Write(s.recordPath(pid), []byte(startTime(pid)))
}

// Gone records a process that held the lock and was killed. It may have been one of a pod before this one, whose records went with it.
func (s *Stack) Gone(pid int) {
	if !s.alive(pid) {
		_ = os.WriteFile(s.recordPath(pid), []byte("gone"), 0o600)
	}
}

// Ended records that a process came to its end, which may not have been able to remove its lock: the backend was away. One that found the
// lock taken did not hold it; the holder lived at the same time, and may have the same host name and process ID in another cluster.
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

// alive reports whether the process is one that was recorded, and that runs. An empty record, of a process that had ended before it was
// recorded or of an agent that was killed meanwhile, is of none: whatever has the process ID now is another one.
func (s *Stack) alive(pid int) bool {
	recorded, err := os.ReadFile(s.recordPath(pid))
	return err == nil && len(recorded) > 0 && startTime(pid) == string(recorded)
}

// tookAndEnded reports whether a process of ours, which has ended, took a lock at the time. Neither the host's name nor the process ID
// alone would say that it was ours. A lock has whole seconds, so its time is never after the end of who took it.
func (s *Stack) tookAndEnded(pid int64, since time.Time) bool {
	return slices.ContainsFunc(s.records(), func(name string) bool {
		var start, end, ended int64
		_, err := fmt.Sscanf(name, "%d-%d-%d", &start, &end, &ended)
		return err == nil && ended == pid && !since.Before(time.Unix(start, 0).Add(-clockResolution)) && !since.After(time.Unix(end, 0))
	})
}

// startTime returns when the process was started, in the kernel's own terms; empty if there is no such process, or if it has ended.
func startTime(pid int) string {
	stat, err := procfs.ReadStat(pid)
	if err != nil || stat.Ended() {
		return ""
	}
	return strconv.FormatUint(stat.StartTime, 10)
}

// runsSince reports whether the process is there, runs the program of that name, and was started before the time.
func runsSince(pid int, program string, before time.Time) bool {
	stat, err := procfs.ReadStat(pid)
	if err != nil || stat.Ended() || stat.Name != program[:min(len(program), maxProcessName)] {
		return false
	}
	var sinceBoot unix.Timespec
	if unix.ClockGettime(unix.CLOCK_BOOTTIME, &sinceBoot) != nil {
		// It cannot be told, so it may be so.
		return true
	}
	age := time.Duration(sinceBoot.Nano()) - time.Duration(stat.StartTime)*(time.Second/ticksPerSecond) //nolint:gosec // no machine runs that long
	return time.Now().Add(-age).Before(before)
}
