package cli

import (
	"bytes"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/stack-controller/stack-controller/internal/procfs"
)

// killTimeout is how long to wait for processes after SIGKILL.
const killTimeout = 5 * time.Second

// endDescendants finds the live processes with the marker of a CLI process in their environment, whatever their parent is, and returns how
// many there were. With force, it kills them and waits until they are gone. Otherwise it kills only plugins, which have no engine any longer
// and would look for it for minutes. It leaves other processes alone: a program may have started something that is meant to stay.
//
// It does not kill the CLI itself; os/exec waits for the CLI. The other processes have become children of the agent, which waits for them,
// see reapOrphans in cmd/agent.
func endDescendants(marker string, cli int, force bool) int {
	found := map[int]bool{}
	deadline := time.Now().Add(killTimeout)
	for {
		alive := slices.DeleteFunc(marked(marker), func(pid int) bool { return pid == cli })
		for _, pid := range alive {
			found[pid] = true
			if force || isPlugin(pid) {
				_ = unix.Kill(pid, unix.SIGKILL)
			}
		}
		// New processes can appear while others are being killed.
		if !force || len(alive) == 0 || time.Now().After(deadline) {
			return len(found)
		}
		time.Sleep(10 * time.Millisecond)
	}
}

// pluginPrefix is the prefix of the names of language hosts, providers and analyzers.
const pluginPrefix = "pulumi-"

func isPlugin(pid int) bool {
	stat, err := procfs.ReadStat(pid)
	return err == nil && strings.HasPrefix(stat.Name, pluginPrefix)
}

// marked returns the live processes with the marker. It does not find zombies, whose environment is empty, and processes of other users,
// whose environment cannot be read.
func marked(marker string) []int {
	want := []byte("\x00" + InvocationVariable + "=" + marker + "\x00")
	pids, _ := procfs.IDs()
	return slices.DeleteFunc(pids, func(pid int) bool {
		environ, err := os.ReadFile(filepath.Join("/proc", strconv.Itoa(pid), "environ"))
		return err != nil || !bytes.Contains(append([]byte{0}, environ...), want)
	})
}
