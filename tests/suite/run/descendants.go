package main

import (
	"fmt"
	"os"
	"syscall"
	"time"

	"github.com/stack-controller/stack-controller/internal/procfs"
)

const (
	// endGrace is how long the supervisors of the tests may take to end what they supervise. It takes them about a second.
	endGrace = 15 * time.Second
	endPoll  = 20 * time.Millisecond
)

// endDescendants ends every process that this program or its descendants started and that is still there, and waits for that. They become
// children of this program, a subreaper, when their own parents end. They are asked first, so that a supervisor removes what it has to.
func endDescendants() error {
	asked := map[int]bool{}
	for deadline := time.Now().Add(endGrace); ; time.Sleep(endPoll) {
		left, err := descendants()
		if err != nil || len(left) == 0 {
			return err
		}
		late := time.Now().After(deadline)
		if late && time.Now().After(deadline.Add(endGrace)) {
			return fmt.Errorf("processes that do not end: %v", left)
		}
		for _, pid := range left {
			switch {
			case late:
				_ = syscall.Kill(pid, syscall.SIGKILL)
			case !asked[pid]:
				asked[pid] = true
				_ = syscall.Kill(pid, syscall.SIGTERM)
			}
		}
	}
}

// descendants are the processes below this one that have not ended.
func descendants() ([]int, error) {
	pids, err := procfs.IDs()
	if err != nil {
		return nil, fmt.Errorf("list processes: %w", err)
	}
	children := map[int][]int{}
	for _, pid := range pids {
		if stat, err := procfs.ReadStat(pid); err == nil && !stat.Ended() {
			children[stat.Parent] = append(children[stat.Parent], pid)
		}
	}
	var found []int
	for next := []int{os.Getpid()}; len(next) > 0; {
		below := children[next[0]]
		found, next = append(found, below...), append(next[1:], below...)
	}
	return found, nil
}
