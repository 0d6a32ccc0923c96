package main

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"
)

// wrapperScript notes when each call of the CLI started and ended, in hundredths of a second since the machine started. It
// costs a few milliseconds per call, which count as stack-controller's.
const wrapperScript = `#!/bin/sh
read start _ </proc/uptime
%q "$@"
code=$?
read end _ </proc/uptime
echo "$start $end $*" >>%q
exit $code
`

// wrapper is a script to run in the place of the CLI. The log is the path that it writes to.
func wrapper(cli, log string) string { return fmt.Sprintf(wrapperScript, cli, log) }

// callLog knows the calls of a wrapped CLI.
type callLog struct{ path string }

// call is one run of the CLI.
type call struct {
	start, end time.Time
	command    string // its arguments up to the first flag, without those flags that come before
}

// wrap writes a wrapper of the CLI into a directory, and returns it and the log.
func wrap(dir, cli string) (path string, log *callLog, err error) {
	path, log = filepath.Join(dir, "pulumi"), &callLog{path: filepath.Join(dir, "calls")}
	if err := os.WriteFile(path, []byte(wrapper(cli, log.path)), 0o700); err != nil {
		return "", nil, fmt.Errorf("write the wrapper of the CLI: %w", err)
	}
	return path, log, nil
}

// reset forgets the calls.
func (c *callLog) reset() error {
	if err := os.Remove(c.path); err != nil && !errors.Is(err, os.ErrNotExist) {
		return fmt.Errorf("reset the log of calls: %w", err)
	}
	return nil
}

// read returns the calls since the last reset in the order in which they ended.
func (c *callLog) read() ([]call, error) {
	content, err := os.ReadFile(c.path)
	if errors.Is(err, os.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("read the log of calls: %w", err)
	}
	started, err := machineStart()
	if err != nil {
		return nil, err
	}
	var calls []call
	for line := range strings.Lines(string(content)) {
		fields := strings.Fields(line)
		if len(fields) < 2 {
			return nil, fmt.Errorf("read the log of calls: %q is not a call", line)
		}
		start, startErr := uptime(fields[0])
		end, endErr := uptime(fields[1])
		if err := errors.Join(startErr, endErr); err != nil {
			return nil, fmt.Errorf("read the log of calls: %w", err)
		}
		calls = append(calls, call{start: started.Add(start), end: started.Add(end), command: commandOf(fields[2:])})
	}
	return calls, nil
}

// commandOf returns what of the arguments says what the call is for.
func commandOf(args []string) string {
	isFlag := func(arg string) bool { return strings.HasPrefix(arg, "-") }
	words := args[len(args):]
	if first := slices.IndexFunc(args, func(arg string) bool { return !isFlag(arg) }); first >= 0 {
		words = args[first:]
	}
	if flag := slices.IndexFunc(words, isFlag); flag >= 0 {
		words = words[:flag]
	}
	return strings.Join(words, " ")
}

// machineStart is when the machine started, exact to a hundredth of a second.
func machineStart() (time.Time, error) {
	content, err := os.ReadFile("/proc/uptime")
	if err != nil {
		return time.Time{}, fmt.Errorf("read when the machine started: %w", err)
	}
	now := time.Now()
	up, err := uptime(strings.Fields(string(content))[0])
	return now.Add(-up), err
}

// uptime reads a number of seconds as the kernel writes it.
func uptime(text string) (time.Duration, error) {
	value, err := strconv.ParseFloat(text, 64)
	if err != nil {
		return 0, fmt.Errorf("read a time since the machine started: %w", err)
	}
	return time.Duration(value * float64(time.Second)), nil
}
