package automation

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"sync"
	"time"

	"golang.org/x/sys/unix"
)

// killPatience is how long processes that got SIGKILL are waited for.
const killPatience = 5 * time.Second

// becomeSubreaper makes this process the parent of its orphaned descendants, instead of the init process: so it can wait
// for them and none of them stays as a zombie.
func becomeSubreaper() error {
	if err := unix.Prctl(unix.PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0); err != nil {
		return fmt.Errorf("become the subreaper of pulumi's descendants: %w", err)
	}
	return nil
}

// endDescendants finds the processes that carry the marker in their environment, whoever their parent is. With force it
// kills them and waits until they are gone; otherwise it leaves them alone, because a program may have started something
// that is meant to stay. It returns how many there were.
//
// The process except is spared: the CLI itself carries the marker as well, and os/exec waits for it.
func endDescendants(marker string, except int, force bool) int {
	found := map[int]bool{}
	deadline := time.Now().Add(killPatience)
	for {
		alive := slices.DeleteFunc(marked(marker), func(pid int) bool { return pid == except })
		for _, pid := range alive {
			found[pid] = true
			orphans.add(pid)
			if force {
				_ = unix.Kill(pid, unix.SIGKILL)
			}
		}
		orphans.reap()
		// New ones can appear while others are being killed.
		if !force || len(alive) == 0 || time.Now().After(deadline) {
			return len(found)
		}
		time.Sleep(10 * time.Millisecond)
	}
}

// marked returns the live processes with the marker. The environment of a zombie is empty, of another user's process
// unreadable: neither is found.
func marked(marker string) []int {
	want := []byte("\x00" + invocationVariable + "=" + marker + "\x00")
	entries, err := os.ReadDir("/proc")
	if err != nil {
		return nil
	}
	var pids []int
	for _, entry := range entries {
		pid, err := strconv.Atoi(entry.Name())
		if err != nil {
			continue
		}
		environ, err := os.ReadFile(filepath.Join("/proc", entry.Name(), "environ"))
		if err != nil || len(environ) == 0 {
			continue
		}
		if bytes.Contains(append([]byte{0}, environ...), want) {
			pids = append(pids, pid)
		}
	}
	return pids
}

// orphans are the descendants of CLI processes that outlived them. They became children of this process, so somebody has to
// wait for them; only for them, because os/exec waits for the others.
var orphans = &orphanSet{pids: map[int]bool{}}

type orphanSet struct {
	mu   sync.Mutex
	pids map[int]bool
}

func (o *orphanSet) add(pid int) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.pids[pid] = true
}

// reap collects those that have ended. One that is no child of ours (yet) is kept as long as it exists.
func (o *orphanSet) reap() {
	o.mu.Lock()
	defer o.mu.Unlock()
	for pid := range o.pids {
		waited, err := unix.Wait4(pid, nil, unix.WNOHANG, nil)
		if waited == pid || (err == unix.ECHILD && unix.Kill(pid, 0) == unix.ESRCH) {
			delete(o.pids, pid)
		}
	}
}
