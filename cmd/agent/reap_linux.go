package main

import (
	"os"
	"os/signal"
	"runtime"

	"golang.org/x/sys/unix"
)

// The main goroutine stays on the main thread, and nothing else runs there, see reapOrphans.
func init() {
	runtime.LockOSThread()
}

// reapOrphans waits for children that this process did not start but adopted when their parent ended, until done is closed. In a container
// the agent is process 1, which adopts every orphan: those of pulumi, even when no operation runs any longer, and those of a kubectl exec.
//
// A child that os/exec started must be left to os/exec, because its exit status can be read only once. The kernel distinguishes them: a
// child belongs to the thread that started it, and an orphan belongs to the first thread of its new parent, which is the main thread. Only
// the main goroutine runs there, it starts no process, and __WNOTHREAD waits only for the children of the calling thread. Therefore
// reapOrphans has to be called from the main goroutine.
func reapOrphans(done <-chan struct{}) {
	ended := make(chan os.Signal, 1)
	signal.Notify(ended, unix.SIGCHLD)
	defer signal.Stop(ended)
	for {
		for reapOne() {
		}
		select {
		case <-ended:
		case <-done:
			return
		}
	}
}

// reapOne waits for one orphan that has ended, and reports whether there was one.
func reapOne() bool {
	for {
		pid, err := unix.Wait4(-1, nil, unix.WNOHANG|unix.WALL|unix.WNOTHREAD, nil)
		if err != unix.EINTR {
			return err == nil && pid > 0
		}
	}
}
