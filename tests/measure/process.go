package measure

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/stack-controller/stack-controller/tests/cluster"
)

// tick is the unit in which Linux tells the processor time of a process to programs, on every architecture.
const tick = time.Second / 100

// ProcessCPU returns the processor time of a process, and that of those of its descendants that have ended.
func ProcessCPU(pid int) (own, ended time.Duration, err error) {
	content, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		return 0, 0, fmt.Errorf("read the processor time of process %d: %w", pid, err)
	}
	// The name of the program, in parentheses, may have anything in it.
	fields := strings.Fields(string(content[bytes.LastIndexByte(content, ')')+1:]))
	const userTime = 11 // then those of the system, of children for the user, and of children in the system
	if len(fields) < userTime+4 {
		return 0, 0, fmt.Errorf("read the processor time of process %d: it has %d fields", pid, len(fields))
	}
	var times [4]time.Duration
	for i := range times {
		ticks, err := strconv.ParseInt(fields[userTime+i], 10, 64)
		if err != nil {
			return 0, 0, fmt.Errorf("read the processor time of process %d: %w", pid, err)
		}
		times[i] = time.Duration(ticks) * tick
	}
	return times[0] + times[1], times[2] + times[3], nil
}

// Memory is what a process has of it, in bytes.
type Memory struct {
	// Resident is what it has now, Peak the most that it had.
	Resident, Peak int64
	// Anonymous is the part of Resident that is the process's own; File is that of its program's file, which the kernel can
	// drop and which the agents of a node share.
	Anonymous, File int64
}

// ProcessMemory reads the memory of a process that runs.
func ProcessMemory(pid int) (Memory, error) {
	content, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
	if err != nil {
		return Memory{}, fmt.Errorf("read the memory of process %d: %w", pid, err)
	}
	kibibytes := func(name string) int64 { return 1024 * cluster.NumberOf(content, name) }
	return Memory{Resident: kibibytes("VmRSS:"), Peak: kibibytes("VmHWM:"), Anonymous: kibibytes("RssAnon:"), File: kibibytes("RssFile:")}, nil
}

// ServerCPU returns the processor time of a server in the directory, as ServerProcesses finds it, with its helpers.
func ServerCPU(dir, name string) (time.Duration, error) {
	pids, err := ServerProcesses(dir, name)
	if err != nil {
		return 0, err
	}
	var sum time.Duration
	for _, pid := range pids {
		own, ended, err := ProcessCPU(pid)
		if err != nil && !errors.Is(err, os.ErrNotExist) {
			return 0, err
		}
		sum += own + ended
	}
	return sum, nil
}

// ServerProcesses returns the ids of the processes of a server of the control plane, or of the cluster, in the directory. Servers are known
// by their home directories, which nobody else has.
func ServerProcesses(dir, name string) ([]int, error) {
	pids, err := cluster.Processes()
	if err != nil {
		return nil, err
	}
	home := []byte("HOME=" + filepath.Join(dir, name))
	return slices.DeleteFunc(pids, func(pid int) bool {
		environment, err := os.ReadFile(fmt.Sprintf("/proc/%d/environ", pid))
		return err != nil || !hasVariable(environment, home) // or it ended meanwhile
	}), nil
}

func hasVariable(environment, variable []byte) bool {
	for other := range bytes.SplitSeq(environment, []byte{0}) {
		if bytes.Equal(other, variable) {
			return true
		}
	}
	return false
}
