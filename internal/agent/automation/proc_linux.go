package automation

import (
	"bytes"
	"errors"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

const (
	// ticksPerSecond is the unit of times in /proc, the same on every Linux.
	ticksPerSecond = 100
	// maxProcessName is how much of the name of a program the kernel keeps, in bytes.
	maxProcessName = 15
)

// procStat is what /proc/<pid>/stat says about a process; proc_pid_stat(5) has the numbers of its fields.
type procStat struct {
	name, state   string
	parent, group int
	// started is the time in clock ticks since the machine was started.
	started string
}

func readStat(pid int) (procStat, error) {
	content, err := os.ReadFile(filepath.Join("/proc", strconv.Itoa(pid), "stat"))
	if err != nil {
		return procStat{}, err
	}
	// The name of the program is in parentheses and may contain anything.
	open, end := bytes.IndexByte(content, '('), bytes.LastIndexByte(content, ')')
	if open < 0 || end < open {
		return procStat{}, errors.New("unexpected content of /proc/<pid>/stat")
	}
	fields := strings.Fields(string(content[end+1:]))
	if len(fields) < 20 {
		return procStat{}, errors.New("unexpected content of /proc/<pid>/stat")
	}
	stat := procStat{name: string(content[open+1 : end]), state: fields[0], started: fields[19]}
	stat.parent, _ = strconv.Atoi(fields[1])
	stat.group, _ = strconv.Atoi(fields[2])
	return stat, nil
}

// dead tells whether the process has ended and is only waited for.
func (s procStat) dead() bool {
	return s.state == "Z" || s.state == "X"
}

// processStartTime returns when the process was started, in the kernel's own terms; empty when there is no such process, or
// when it is a zombie.
func processStartTime(pid int) string {
	stat, err := readStat(pid)
	if err != nil || stat.dead() {
		return ""
	}
	return stat.started
}

// runsSince tells whether the process is there, runs the program of that name, and was started before the time.
func runsSince(pid int, program string, before time.Time) bool {
	stat, err := readStat(pid)
	if err != nil || stat.dead() || stat.name != program[:min(len(program), maxProcessName)] {
		return false
	}
	ticks, err := strconv.ParseInt(stat.started, 10, 64)
	var sinceBoot unix.Timespec
	if err != nil || unix.ClockGettime(unix.CLOCK_BOOTTIME, &sinceBoot) != nil {
		// It cannot be told, so it may be so.
		return true
	}
	age := time.Duration(sinceBoot.Nano()) - time.Duration(ticks)*(time.Second/ticksPerSecond)
	return time.Now().Add(-age).Before(before)
}
