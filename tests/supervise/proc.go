package supervise

import "github.com/stack-controller/stack-controller/internal/procfs"

// children returns the ids of the processes whose parent is the given one.
func children(parent int) []int {
	pids, err := procfs.IDs()
	if err != nil {
		return nil // as if there were none: whoever asks, asks again
	}
	var found []int
	for _, pid := range pids {
		if stat, err := procfs.ReadStat(pid); err == nil && stat.Parent == parent {
			found = append(found, pid)
		}
	}
	return found
}
