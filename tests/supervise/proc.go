package supervise

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
)

// children returns the ids of the processes whose parent is the given one.
func children(parent int) []int {
	var found []int
	entries, err := filepath.Glob("/proc/[0-9]*")
	if err != nil {
		return nil // only a malformed pattern gives an error
	}
	for _, entry := range entries {
		pid, err := strconv.Atoi(filepath.Base(entry))
		if err != nil {
			continue
		}
		if fields, err := stat(pid); err == nil && string(fields[1]) == strconv.Itoa(parent) {
			found = append(found, pid)
		}
	}
	return found
}

// StartTime identifies a process for as long as the machine is up, which its id alone does not: it returns the time at
// which the process started, in clock ticks since the machine started.
func StartTime(pid int) (string, error) {
	fields, err := stat(pid)
	if err != nil {
		return "", err
	}
	const afterState = 22 - 3 // starttime is field 22 of proc(5), state is field 3
	return string(fields[afterState]), nil
}

// stat returns the fields of /proc/PID/stat from the third one, the state, on.
func stat(pid int) ([][]byte, error) {
	content, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		return nil, err
	}
	// The second field is the program's name in parentheses and may itself have spaces and parentheses.
	fields := bytes.Fields(content[bytes.LastIndexByte(content, ')')+1:])
	if len(fields) < 20 {
		return nil, fmt.Errorf("unexpected content of /proc/%d/stat", pid)
	}
	return fields, nil
}
