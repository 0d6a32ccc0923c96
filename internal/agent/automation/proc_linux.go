package automation

import (
	"os"
	"path/filepath"
	"strconv"
	"strings"
)

// processStartTime returns when the process was started, in the kernel's own terms; empty when there is no such process, or
// when it is a zombie.
func processStartTime(pid int) string {
	content, err := os.ReadFile(filepath.Join("/proc", strconv.Itoa(pid), "stat"))
	if err != nil {
		return ""
	}
	// The second field is the name of the program in parentheses, which may contain anything.
	fields := strings.Fields(string(content[strings.LastIndexByte(string(content), ')')+1:]))
	const state, startTime = 0, 19 // fields 3 and 22 of the line
	if len(fields) <= startTime || fields[state] == "Z" || fields[state] == "X" {
		return ""
	}
	return fields[startTime]
}
