package process

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"strconv"
	"strings"
	"sync"
	"syscall"
)

// identity names a process for ever: a process id alone is given to other processes later.
type identity struct {
	// PID is the process id.
	PID int `json:"pid"`
	// StartTime is when the process started, in clock ticks since the machine started.
	StartTime uint64 `json:"startTime"`
	// Boot is the id of the machine's start that StartTime counts from.
	Boot string `json:"boot"`
}

// errNotRunning says that a process ended, or never was.
var errNotRunning = errors.New("the process does not run")

// bootID is the id of the current start of the machine.
var bootID = sync.OnceValues(func() (string, error) {
	id, err := os.ReadFile("/proc/sys/kernel/random/boot_id")
	if err != nil {
		return "", fmt.Errorf("read the boot id: %w", err)
	}
	return strings.TrimSpace(string(id)), nil
})

// identify returns the identity of the process that has the id now, or errNotRunning.
func identify(pid int) (identity, error) {
	boot, err := bootID()
	if err != nil {
		return identity{}, err
	}
	stat, err := readStat(pid)
	if err != nil {
		return identity{}, err
	}
	if stat.dead() {
		return identity{}, errNotRunning
	}
	return identity{PID: pid, StartTime: stat.startTime, Boot: boot}, nil
}

// running tells whether the process still runs. One that ended and waits for its parent does not.
func (i identity) running() (bool, error) {
	if i.PID == 0 {
		return false, nil
	}
	now, err := identify(i.PID)
	if errors.Is(err, errNotRunning) {
		return false, nil
	}
	return err == nil && now == i, err
}

// processStat is what this package needs of /proc/PID/stat.
type processStat struct {
	state     byte
	session   int
	startTime uint64
}

// dead tells whether the process has ended, though its entry is still there.
func (s processStat) dead() bool {
	return s.state == 'Z' || s.state == 'X'
}

// readStat reads /proc/PID/stat; the error is errNotRunning when there is no such process.
func readStat(pid int) (processStat, error) {
	content, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	// A process that ends while its file is read gives ESRCH.
	if errors.Is(err, os.ErrNotExist) || errors.Is(err, syscall.ESRCH) {
		return processStat{}, errNotRunning
	}
	if err != nil {
		return processStat{}, fmt.Errorf("read the state of process %d: %w", pid, err)
	}
	return parseStat(content)
}

// parseStat parses the content of /proc/PID/stat, see proc(5). The name of the program, in parentheses, may itself
// hold spaces and parentheses.
func parseStat(content []byte) (processStat, error) {
	fields := bytes.Fields(content[bytes.LastIndexByte(content, ')')+1:])
	const state, session, startTime = 0, 3, 19 // fields 3, 6 and 22, counted from the one after the name
	if len(fields) <= startTime {
		return processStat{}, fmt.Errorf("process stat has %d fields after the name, want more than %d", len(fields), startTime)
	}
	sid, err := strconv.Atoi(string(fields[session]))
	if err != nil {
		return processStat{}, fmt.Errorf("parse the session of a process: %w", err)
	}
	start, err := strconv.ParseUint(string(fields[startTime]), 10, 64)
	if err != nil {
		return processStat{}, fmt.Errorf("parse the start time of a process: %w", err)
	}
	return processStat{state: fields[state][0], session: sid, startTime: start}, nil
}

// processIDs lists the ids of all processes that are visible.
func processIDs() ([]int, error) {
	proc, err := os.Open("/proc")
	if err != nil {
		return nil, fmt.Errorf("list processes: %w", err)
	}
	defer func() { _ = proc.Close() }()
	names, err := proc.Readdirnames(-1)
	if err != nil {
		return nil, fmt.Errorf("list processes: %w", err)
	}
	var pids []int
	for _, name := range names {
		if pid, err := strconv.Atoi(name); err == nil {
			pids = append(pids, pid)
		}
	}
	return pids, nil
}
