package automation

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"golang.org/x/sys/unix"
)

const (
	// killPatience is how long processes that got SIGKILL are waited for.
	killPatience = 5 * time.Second
	// reapInterval and reapPatience say how often and for how long orphans that are left alone are looked after. The next
	// operation looks after them again.
	reapInterval = time.Second
	reapPatience = 5 * time.Minute
)

// becomeSubreaper makes this process the parent of its orphaned descendants, instead of the init process: so it can wait
// for them and none of them stays as a zombie.
func becomeSubreaper() error {
	if err := unix.Prctl(unix.PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0); err != nil {
		return fmt.Errorf("become the subreaper of pulumi's descendants: %w", err)
	}
	return nil
}

// endDescendants finds the live processes that carry the marker of a CLI process in their environment, whoever their parent
// is, and returns how many there were. With force it kills them and waits until they are gone; otherwise it kills only plugins, which
// serve nobody any more and would look for their engine for minutes, and leaves the rest alone: a program may have started something
// that is meant to stay.
//
// The CLI itself is spared: os/exec waits for it.
func endDescendants(marker string, cli int, force bool) int {
	found := map[int]bool{}
	deadline := time.Now().Add(killPatience)
	for {
		alive := slices.DeleteFunc(marked(marker), func(pid int) bool { return pid == cli })
		for _, pid := range alive {
			found[pid] = true
			orphans.add(pid)
			if force || isPlugin(pid) {
				_ = unix.Kill(pid, unix.SIGKILL)
			}
		}
		orphans.adopt(cli)
		orphans.reap()
		// New ones can appear while others are being killed.
		if !force || len(alive) == 0 || time.Now().After(deadline) {
			orphans.reapLater()
			return len(found)
		}
		time.Sleep(10 * time.Millisecond)
	}
}

// pluginPrefix begins the names of language hosts, providers and analyzers.
const pluginPrefix = "pulumi-"

func isPlugin(pid int) bool {
	stat, err := readStat(pid)
	return err == nil && strings.HasPrefix(stat.name, pluginPrefix)
}

// processIDs returns the IDs of all processes.
func processIDs() []int {
	entries, err := os.ReadDir("/proc")
	if err != nil {
		return nil
	}
	var pids []int
	for _, entry := range entries {
		if pid, err := strconv.Atoi(entry.Name()); err == nil {
			pids = append(pids, pid)
		}
	}
	return pids
}

// marked returns the live processes with the marker. The environment of a zombie is empty, of another user's process
// unreadable: neither is found.
func marked(marker string) []int {
	want := []byte("\x00" + invocationVariable + "=" + marker + "\x00")
	return slices.DeleteFunc(processIDs(), func(pid int) bool {
		environ, err := os.ReadFile(filepath.Join("/proc", strconv.Itoa(pid), "environ"))
		return err != nil || !bytes.Contains(append([]byte{0}, environ...), want)
	})
}

// orphans are the descendants of CLI processes that outlived them. They became children of this process, so somebody has to
// wait for them; only for them, because os/exec waits for the others.
var orphans = &orphanSet{started: map[int]string{}}

type orphanSet struct {
	mu sync.Mutex
	// started has when each of them was started, by its ID: somebody else may have waited for it meanwhile, and a child that
	// os/exec waits for may have got its ID.
	started map[int]string
	// reaping says that reapLater is at work.
	reaping bool
}

func (o *orphanSet) add(pid int) {
	stat, err := readStat(pid)
	if err != nil {
		return
	}
	o.mu.Lock()
	defer o.mu.Unlock()
	o.started[pid] = stat.started
}

// adopt adds the children of this process that could not be found by their marker, because they end or have ended: those of the CLI's
// process group, and plugins, which have a group each.
func (o *orphanSet) adopt(cli int) {
	for _, pid := range processIDs() {
		stat, err := readStat(pid)
		if err != nil || stat.parent != os.Getpid() || pid == cli {
			continue
		}
		if stat.group == cli || (stat.dead() && stat.group == pid && strings.HasPrefix(stat.name, pluginPrefix)) {
			o.add(pid)
		}
	}
}

// reap collects those that have ended. One that is no child of ours (yet) is kept as long as it exists.
func (o *orphanSet) reap() {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.reapLocked()
}

func (o *orphanSet) reapLocked() {
	for pid, started := range o.started {
		stat, err := readStat(pid)
		if err != nil || stat.started != started {
			delete(o.started, pid)
			continue
		}
		if waited, _ := unix.Wait4(pid, nil, unix.WNOHANG, nil); waited == pid {
			delete(o.started, pid)
		}
	}
}

// reapLater goes on to collect those that have not ended yet, in the background.
func (o *orphanSet) reapLater() {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.reaping || len(o.started) == 0 {
		return
	}
	o.reaping = true
	deadline := time.Now().Add(reapPatience)
	var next func()
	next = func() {
		o.mu.Lock()
		defer o.mu.Unlock()
		o.reapLocked()
		if o.reaping = len(o.started) > 0 && time.Now().Before(deadline); o.reaping {
			time.AfterFunc(reapInterval, next)
		}
	}
	time.AfterFunc(reapInterval, next)
}
