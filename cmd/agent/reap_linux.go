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

// reapOrphans waits for the children that were not started by this process but came to it when their parent ended, until
// done is closed. In a container the agent is process 1, which every orphan goes to: those of pulumi, also when no
// operation runs any more, and those of a kubectl exec.
//
// A child that os/exec started must be left to it, because the exit status can be had only once. The kernel tells them
// apart: a child belongs to the thread that started it, and an orphan is given to the first thread of its new parent,
// which is the main thread. There only the main goroutine runs, it starts nothing, and __WNOTHREAD waits for the
// children of this very thread. So it has to be called from the main goroutine.
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

// reapOne reports whether there was one that had ended.
func reapOne() bool {
	for {
		pid, err := unix.Wait4(-1, nil, unix.WNOHANG|unix.WALL|unix.WNOTHREAD, nil)
		if err != unix.EINTR {
			return err == nil && pid > 0
		}
	}
}
