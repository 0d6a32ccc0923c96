package main

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"
)

// tick is the unit in which Linux tells the processor time of a process to programs, on every architecture.
const tick = time.Second / 100

// processCPU returns the processor time of a process, and that of those of its descendants that have ended.
func processCPU(pid int) (own, ended time.Duration, err error) {
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

// memory is what a process has of it, in bytes.
type memory struct {
	resident int64
	// anonymous is the part of resident that is the process's own; file is that of its program's file, which the kernel can
	// drop and which the agents of a node share.
	anonymous, file int64
}

func processMemory(pid int) (memory, error) {
	content, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
	if err != nil {
		return memory{}, fmt.Errorf("read the memory of process %d: %w", pid, err)
	}
	kibibytes := func(name string) int64 { return 1024 * fieldOf(content, name) }
	return memory{resident: kibibytes("VmRSS:"), anonymous: kibibytes("RssAnon:"), file: kibibytes("RssFile:")}, nil
}

// processes returns the numbers of all processes of the machine.
func processes() ([]int, error) {
	entries, err := os.ReadDir("/proc")
	if err != nil {
		return nil, fmt.Errorf("list the processes: %w", err)
	}
	var pids []int
	for _, entry := range entries {
		if pid, err := strconv.Atoi(entry.Name()); err == nil {
			pids = append(pids, pid)
		}
	}
	return pids, nil
}

// serverCPU returns the processor time of a server of the cluster in the directory, with its helpers. Servers are known by
// their home directories, which nobody else has.
func serverCPU(dir, name string) (time.Duration, error) {
	pids, err := processes()
	if err != nil {
		return 0, err
	}
	home := []byte("HOME=" + filepath.Join(dir, name))
	var sum time.Duration
	for _, pid := range pids {
		environment, err := os.ReadFile(fmt.Sprintf("/proc/%d/environ", pid))
		if err != nil || !hasVariable(environment, home) {
			continue // it ended meanwhile
		}
		own, ended, err := processCPU(pid)
		if err != nil && !errors.Is(err, os.ErrNotExist) {
			return 0, err
		}
		sum += own + ended
	}
	return sum, nil
}

func hasVariable(environment, variable []byte) bool {
	for other := range bytes.SplitSeq(environment, []byte{0}) {
		if bytes.Equal(other, variable) {
			return true
		}
	}
	return false
}
