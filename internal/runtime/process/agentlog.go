package process

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"
	"time"
)

const (
	// maxLogSize is the size, in bytes, at which the log of an agent is rotated. There is one old log.
	maxLogSize = 5 << 20
	// logInterval is how often the sizes of the logs of running agents are looked at.
	logInterval = 10 * time.Second
	// tailLines and tailSize (bytes) bound what a message quotes of a log.
	tailLines = 5
	tailSize  = 1 << 10
)

// openLog opens the agent's log for appending.
func (d directory) openLog() (*os.File, error) {
	file, err := os.OpenFile(d.log(), os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		return nil, fmt.Errorf("open the log of an agent: %w", err)
	}
	return file, nil
}

// rotateLog moves the content of a log that has become too large to the old log. The agent keeps writing to the same file
// (it outlives whoever could hand it another one), so the file is copied and emptied; lines written in between are lost.
func (d directory) rotateLog() error {
	info, err := os.Stat(d.log())
	if errors.Is(err, os.ErrNotExist) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("rotate the log of an agent: %w", err)
	}
	if info.Size() < maxLogSize {
		return nil
	}
	if err := copyEnd(d.log()+".1", d.log(), maxLogSize); err != nil {
		return fmt.Errorf("rotate the log of an agent: %w", err)
	}
	if err := os.Truncate(d.log(), 0); err != nil {
		return fmt.Errorf("rotate the log of an agent: %w", err)
	}
	return nil
}

// copyEnd writes the last bytes of a file, at most limit, to another file.
func copyEnd(to, from string, limit int64) (err error) {
	source, err := os.Open(from)
	if err != nil {
		return err
	}
	defer func() { _ = source.Close() }()
	info, err := source.Stat()
	if err != nil {
		return err
	}
	target, err := os.OpenFile(to, os.O_CREATE|os.O_TRUNC|os.O_WRONLY, 0o600)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, target.Close()) }()
	_, err = io.Copy(target, io.NewSectionReader(source, max(0, info.Size()-limit), limit))
	return err
}

// logTail returns the last lines of what the agent wrote since the offset, for a message; empty when it wrote nothing. The
// agent keeps secrets out of its log.
func (d directory) logTail(offset int64) string {
	file, err := os.Open(d.log())
	if err != nil {
		return ""
	}
	defer func() { _ = file.Close() }()
	info, err := file.Stat()
	if err != nil {
		return ""
	}
	if info.Size() < offset {
		offset = 0 // rotated meanwhile
	}
	content, err := io.ReadAll(io.NewSectionReader(file, max(offset, info.Size()-tailSize), tailSize))
	if err != nil {
		return ""
	}
	if info.Size()-offset > tailSize {
		// The first line is not whole.
		if _, rest, found := bytes.Cut(content, []byte("\n")); found {
			content = rest
		}
	}
	lines := strings.Split(strings.TrimSpace(strings.ToValidUTF8(string(content), "?")), "\n")
	return strings.Join(lines[max(0, len(lines)-tailLines):], "\n")
}

// logSize is the size of the log, in bytes; 0 when there is none.
func (d directory) logSize() int64 {
	info, err := os.Stat(d.log())
	if err != nil {
		return 0
	}
	return info.Size()
}
