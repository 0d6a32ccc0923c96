package main

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"
)

// wrapperScript notes when each call of the CLI started and ended. It costs about 4 ms per call, which count as
// stack-controller's.
const wrapperScript = `#!/bin/sh
start=$(/bin/date +%%s%%N)
%q "$@"
code=$?
echo "$start $(/bin/date +%%s%%N)" >>%q
exit $code
`

// callLog knows the calls of a wrapped CLI.
type callLog struct {
	wrapper string // path of the executable to run instead of the CLI
	log     string
}

// call is one run of the CLI.
type call struct{ start, end time.Time }

func newCallLog(dir, cli string) (*callLog, error) {
	c := &callLog{wrapper: filepath.Join(dir, "pulumi"), log: filepath.Join(dir, "calls")}
	script := fmt.Sprintf(wrapperScript, cli, c.log)
	if err := os.WriteFile(c.wrapper, []byte(script), 0o700); err != nil {
		return nil, fmt.Errorf("write the wrapper of the CLI: %w", err)
	}
	return c, nil
}

// reset forgets the calls.
func (c *callLog) reset() error {
	if err := os.Remove(c.log); err != nil && !errors.Is(err, os.ErrNotExist) {
		return fmt.Errorf("reset the log of calls: %w", err)
	}
	return nil
}

// read returns the calls since the last reset in the order in which they ended.
func (c *callLog) read() ([]call, error) {
	content, err := os.ReadFile(c.log)
	if errors.Is(err, os.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("read the log of calls: %w", err)
	}
	var calls []call
	for line := range strings.Lines(string(content)) {
		start, end, _ := strings.Cut(strings.TrimSpace(line), " ")
		startedAt, startErr := strconv.ParseInt(start, 10, 64)
		endedAt, endErr := strconv.ParseInt(end, 10, 64)
		if err := errors.Join(startErr, endErr); err != nil {
			return nil, fmt.Errorf("read the log of calls: %w", err)
		}
		calls = append(calls, call{start: time.Unix(0, startedAt), end: time.Unix(0, endedAt)})
	}
	return calls, nil
}
