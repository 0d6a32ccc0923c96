package procfs

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"strconv"
	"syscall"
)

// Stat has fields of /proc/PID/stat, see proc_pid_stat(5).
type Stat struct {
	// Name is the name of the program, cut to 15 bytes by the kernel.
	Name string
	// State is a letter: R, S, D, T, Z …
	State                  byte
	Parent, Group, Session int
	// StartTime is in clock ticks since the machine started.
	StartTime uint64
}

// Ended reports whether the process has ended, though its entry is still there.
func (s Stat) Ended() bool {
	return s.State == 'Z' || s.State == 'X'
}

// ReadStat reads /proc/PID/stat; the error is ErrNotRunning when no process has the id.
func ReadStat(pid int) (Stat, error) {
	content, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	// If a process ends while its file is read, the error is ESRCH.
	if errors.Is(err, os.ErrNotExist) || errors.Is(err, syscall.ESRCH) {
		return Stat{}, ErrNotRunning
	}
	if err != nil {
		return Stat{}, fmt.Errorf("read the state of process %d: %w", pid, err)
	}
	return parseStat(content)
}

// parseStat parses the content of /proc/PID/stat. (prometheus/procfs leaves out field 38: distinguishing threads from processes would need
// a second file, and the id may be used again between the two reads.) The name of the program, in parentheses, may itself contain spaces
// and parentheses.
func parseStat(content []byte) (Stat, error) {
	open, closed := bytes.IndexByte(content, '('), bytes.LastIndexByte(content, ')')
	fields := bytes.Fields(content[closed+1:])
	// Fields 3 to 6, 22 and 38, counted from the one after the name.
	const state, parent, group, session, startTime, exitSignal = 0, 1, 2, 3, 19, 35
	if open < 0 || closed < open || len(fields) <= exitSignal {
		return Stat{}, fmt.Errorf("process stat has %d fields after the name, want more than %d", len(fields), exitSignal)
	}
	// The exit signal distinguishes a thread from a process, as in the kernel: it is -1 for a thread. Only the end of a process is announced
	// by a signal, which may be 0.
	if fields[exitSignal][0] == '-' {
		return Stat{}, ErrNotRunning
	}
	stat := Stat{Name: string(content[open+1 : closed]), State: fields[state][0]}
	numbers := bytes.Join([][]byte{fields[parent], fields[group], fields[session], fields[startTime]}, []byte(" "))
	if _, err := fmt.Sscan(string(numbers), &stat.Parent, &stat.Group, &stat.Session, &stat.StartTime); err != nil {
		return Stat{}, fmt.Errorf("parse the stat of a process: %w", err)
	}
	return stat, nil
}

// IDs returns the ids of all visible processes.
func IDs() ([]int, error) {
	entries, err := os.ReadDir("/proc")
	if err != nil {
		return nil, fmt.Errorf("list processes: %w", err)
	}
	var pids []int
	for _, entry := range entries {
		if pid, err := strconv.Atoi(entry.Name()); err == nil {
			pids = append(pids, pid)
		}
	}
	return pids, nil
}
