package cli

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"time"

	"golang.org/x/sys/unix"

	"github.com/stack-controller/stack-controller/internal/file"
)

const (
	// maxEventSize is the largest event that is accepted, in bytes. An event contains the whole old and new state of a resource. The value is
	// the limit that pulumi sets for its own messages.
	maxEventSize = 400 << 20
	// eventLogTimeout bounds how long the rest of the event log may take once pulumi has ended. A container with little processor time needs
	// minutes for the events of a large stack, and what is not read is not known.
	eventLogTimeout = 3 * time.Minute
	// eventPoll is how often the file is read for new events.
	eventPoll = 100 * time.Millisecond
	// eventBuffer is how much of the file is read at once, in bytes. A larger event needs a larger buffer.
	eventBuffer = 64 << 10
)

// RunEngine is Run for a command of the engine. It calls during with the JSON of each event, one at a time, before it returns.
//
// after is for a command that makes a preview and then does what it previewed; it is nil for other commands. Between the two, the CLI
// truncates its log and starts it again, so during may miss some events. Once the CLI has ended, RunEngine calls after with the events of
// the second part, or of the preview if the CLI ended after the preview.
func (c *CLI) RunEngine(ctx context.Context, inv *Invocation, during, after func(event []byte)) (Result, error) {
	log, err := newEventFile(c.eventDir, during, after != nil)
	if err != nil {
		return Result{}, err
	}
	defer log.remove()
	run := *inv
	run.Args = append(slices.Clip(inv.Args), "--event-log", log.file.Name())
	res, err := c.Run(ctx, &run)
	log.end()
	if after != nil {
		eachEvent(io.NewSectionReader(log.file, 0, log.limit), after)
	}
	return res, err
}

// eventFile follows the file to which the CLI writes its events, each as a line of JSON. From 3.206 on, the CLI could stream events over
// gRPC, but that would be a second way to do the same, and the agent would have to authenticate the process that connects.
//
// Events contain the properties of resources and the output of programs. Therefore nobody else can read the file, the part of it that has
// been read does not stay on the disk, and the file is removed after the operation, or by the next agent. It is not a pipe, because the CLI
// must be able to end well after its agent crashed: with a pipe, it would wait for a reader.
type eventFile struct {
	file *os.File
	// kept is true if the file is read again at the end, and may be truncated and started again before.
	kept bool
	// consumed is how much was read, in bytes.
	consumed int64
	// limit is the size of the file when the CLI ended; it is set when ended is closed.
	limit int64
	// ended is closed when the CLI writes no more, finished when everything was read.
	ended, finished chan struct{}
}

// newEventFile creates a file in a new directory below parent, and follows it. It calls receive with one event at a time.
func newEventFile(parent string, receive func([]byte), kept bool) (*eventFile, error) {
	dir, err := os.MkdirTemp(parent, "")
	if err != nil {
		return nil, fmt.Errorf("make a directory for the engine's events: %w", file.WithoutPath(err))
	}
	log, err := os.OpenFile(filepath.Join(dir, "log.json"), os.O_RDWR|os.O_CREATE|os.O_EXCL, 0o600)
	if err != nil {
		return nil, errors.Join(fmt.Errorf("make a file for the engine's events: %w", file.WithoutPath(err)), os.Remove(dir))
	}
	l := &eventFile{file: log, kept: kept, ended: make(chan struct{}), finished: make(chan struct{})}
	go func() {
		defer close(l.finished)
		eachEvent(l, receive)
	}()
	return l, nil
}

// eachEvent calls receive with each event until there are no more. It stops at an event that is too large, and when the file is closed:
// whoever needs to know whether that was all looks for the last event.
func eachEvent(from io.Reader, receive func([]byte)) {
	lines := bufio.NewScanner(from)
	lines.Buffer(make([]byte, 0, eventBuffer), maxEventSize)
	for lines.Scan() {
		receive(lines.Bytes())
	}
}

// Read implements io.Reader: it waits until the CLI writes, and frees the disk space of what it returns.
func (l *eventFile) Read(p []byte) (int, error) {
	for {
		over := l.over()
		if l.kept && !over && l.wasTruncated() {
			// The newline ends a line of which only a part was read.
			return copy(p, "\n"), nil
		}
		if over && (l.kept || l.consumed >= l.limit) {
			// Another process that still writes is not the CLI.
			return 0, io.EOF
		}
		n, err := l.file.Read(p)
		if n > 0 {
			// The file system frees only whole blocks. Starting at a multiple of eventBuffer also frees the last block of the previous read.
			start := l.consumed - l.consumed%eventBuffer
			l.consumed += int64(n)
			if !l.kept {
				// A file system without this feature keeps the data until the file is removed. The file keeps its size, so that the offsets of its
				// readers stay valid.
				_ = unix.Fallocate(int(l.file.Fd()), unix.FALLOC_FL_PUNCH_HOLE|unix.FALLOC_FL_KEEP_SIZE, start, l.consumed-start)
			}
			return n, nil
		}
		if over || !errors.Is(err, io.EOF) {
			return 0, err
		}
		select {
		case <-l.ended:
		case <-time.After(eventPoll):
		}
	}
}

// wasTruncated reports whether the CLI started the file again, as its smaller size shows, and seeks to the start.
func (l *eventFile) wasTruncated() bool {
	info, err := l.file.Stat()
	if err != nil || info.Size() >= l.consumed {
		return false
	}
	l.consumed = 0
	_, err = l.file.Seek(0, io.SeekStart)
	return err == nil
}

// over reports whether the CLI writes no more.
func (l *eventFile) over() bool {
	select {
	case <-l.ended:
		return true
	default:
		return false
	}
}

// end waits until everything that the CLI wrote was received. The CLI must have ended.
func (l *eventFile) end() {
	if info, err := l.file.Stat(); err == nil {
		l.limit = info.Size()
	}
	close(l.ended)
	select {
	case <-l.finished:
	case <-time.After(eventLogTimeout):
	}
}

// remove removes the file.
func (l *eventFile) remove() {
	// Another process may still write, but there is nothing to read any longer.
	_ = l.file.Close()
	<-l.finished
	_ = os.RemoveAll(filepath.Dir(l.file.Name()))
}
