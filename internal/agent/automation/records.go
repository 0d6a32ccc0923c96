package automation

import (
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"time"

	"github.com/stack-controller/stack-controller/internal/agent/proto"
)

// exitCancelled is the exit code of a CLI that got a second signal: what ran then is recorded as pending.
const exitCancelled = 8

// A record is a small file for each CLI process that changes the stack: its name is the process ID, its content the time the
// process started. It is removed when the process ended in an orderly way. One that is left over says that a process of ours
// was killed, or that the agent was: the lock of that process may still be there, and pending operations in the state.

func (s *stack) recordDir() string {
	return filepath.Join(s.dir, "processes")
}

func (s *stack) recordPath(pid int) string {
	return filepath.Join(s.recordDir(), strconv.Itoa(pid))
}

// started records a process. A record that cannot be written costs no more than the automatic release of its lock.
func (s *stack) started(pid int) {
	_ = os.WriteFile(s.recordPath(pid), []byte(processStartTime(pid)), 0o600)
}

// gone records a process that held the lock and was killed. It may have been one of a pod before this one, whose records went
// with it.
func (s *stack) gone(pid int) {
	if !s.alive(pid) {
		_ = os.WriteFile(s.recordPath(pid), []byte("gone"), 0o600)
	}
}

// ended removes the record of a process that came to its end, which may not have been able to remove its lock: the backend was away.
func (s *stack) ended(pid int, res result) {
	if res.bySignal() || res.code == exitCancelled || panicked.MatchString(res.stderr) || goPanicked.MatchString(res.stderr) {
		return
	}
	if hadLock(res) {
		s.noteLifetime(pid)
	}
	_ = os.Remove(s.recordPath(pid))
}

// hadLock tells whether the process came so far that it held the lock: one that found the lock taken lived at the same time as the holder,
// who may have the same host name and process ID in another cluster.
func hadLock(res result) bool {
	return res.code == 0 || classify(res, &summary{}).reason == proto.FailureReason_FAILURE_REASON_UPDATE_FAILED
}

// maxLifetimes is of how many processes it is known when they lived.
const maxLifetimes = 16

func (s *stack) lifetimesDir() string { return filepath.Join(s.dir, "lifetimes") }

// noteLifetime records when the process lived that has just ended, and forgets the oldest of the others.
func (s *stack) noteLifetime(pid int) {
	record, err := os.Stat(s.recordPath(pid))
	if err != nil || os.MkdirAll(s.lifetimesDir(), 0o700) != nil {
		return
	}
	name := fmt.Sprintf("%d-%d-%d", record.ModTime().Unix(), time.Now().Unix(), pid)
	_ = os.WriteFile(filepath.Join(s.lifetimesDir(), name), nil, 0o600)
	entries, _ := os.ReadDir(s.lifetimesDir())
	for i := range max(0, len(entries)-maxLifetimes) {
		_ = os.Remove(filepath.Join(s.lifetimesDir(), entries[i].Name()))
	}
}

// couldNotRemove tells whether the lock was taken by a process of ours while it lived, which has ended. Neither the host's name nor the
// process ID alone would say that it was ours. A lock has whole seconds, so its time is never after the end of who took it.
func (s *stack) couldNotRemove(holder *proto.LockHolder) bool {
	if holder.GetSince() == nil {
		return false
	}
	since := holder.GetSince().AsTime()
	entries, _ := os.ReadDir(s.lifetimesDir())
	for _, entry := range entries {
		var start, end, pid int64
		if _, err := fmt.Sscanf(entry.Name(), "%d-%d-%d", &start, &end, &pid); err != nil || pid != holder.GetPid() {
			continue
		}
		if !since.Before(time.Unix(start, 0).Add(-clockResolution)) && !since.After(time.Unix(end, 0)) {
			return true
		}
	}
	return false
}

// leftOver returns the IDs of the recorded processes that are gone.
func (s *stack) leftOver() []int {
	entries, err := os.ReadDir(s.recordDir())
	if err != nil {
		return nil
	}
	var pids []int
	for _, entry := range entries {
		pid, err := strconv.Atoi(entry.Name())
		if err != nil {
			continue
		}
		if !s.alive(pid) {
			pids = append(pids, pid)
		}
	}
	return pids
}

// alive tells whether the process is one that was recorded, and that runs.
func (s *stack) alive(pid int) bool {
	started, err := os.ReadFile(s.recordPath(pid))
	return err == nil && running(pid, string(started))
}

// noteRemoval records that the stack is about to be removed from the backend, after everything in it was destroyed. When that is cut
// off, nobody else can tell a stack that was removed from one that was lost.
func (s *stack) noteRemoval() {
	_ = os.WriteFile(s.removalPath(), nil, 0o600)
}

// removed tells whether the stack is gone because we removed it. It counts as long as the stack does not exist again.
func (s *stack) removed() bool {
	_, err := os.Stat(s.removalPath())
	return err == nil
}

func (s *stack) removalPath() string { return filepath.Join(s.dir, "removed") }

// settle removes the records of processes that are gone, and of a removal: the stack exists, and whatever they left has been dealt with.
func (s *stack) settle() {
	for _, pid := range s.leftOver() {
		_ = os.Remove(s.recordPath(pid))
	}
	_ = os.Remove(s.removalPath())
}

// running tells whether the process that was started then is still there; another one may have its ID by now. The empty
// string stands for any time.
func running(pid int, started string) bool {
	now := processStartTime(pid)
	return now != "" && (started == "" || now == started)
}
