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
	// maxEventSize is the largest event that is accepted, in bytes: one holds the whole old and new state of a resource. It
	// is the limit that pulumi sets for its own messages.
	maxEventSize = 400 << 20
	// eventLogTimeout bounds the end of the event log once pulumi has ended.
	eventLogTimeout = 10 * time.Second
	// eventPoll is how often the file is looked at for new events.
	eventPoll = 100 * time.Millisecond
	// eventBuffer is what is read of the file at once, in bytes. A larger event needs more.
	eventBuffer = 64 << 10
)

// RunEngine is Run for a command of the engine. during is called serially with the JSON of each event, before RunEngine returns.
//
// after is for a command that makes a preview, and then does what it previewed, and nil for others. Such a CLI begins its log anew in
// between, so that what was read of it says little about what is in it: during may miss some events then. after gets those of what was done,
// or of the preview when that was the end, once the CLI has ended.
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

// eventFile follows the file to which the CLI writes its events, each as a line of JSON. It could stream them over gRPC from 3.206 on,
// which would be a second way to do the same, and one that has to find out who connects.
//
// Events hold what resources are made of, and what programs say. So nobody else can read the file, what was read of it does not stay
// on the disk, and it is removed with the operation, or by the next agent. It is no pipe, because the CLI has to be able to end well after
// its agent crashed: it would wait for somebody to read.
type eventFile struct {
	file *os.File
	// kept says that the file is read again, and may begin anew.
	kept bool
	// consumed is how much was read, in bytes.
	consumed int64
	// limit is the size of the file when the CLI ended; it is set when ended is closed.
	limit int64
	// ended is closed when the CLI writes no more, finished when everything was read.
	ended, finished chan struct{}
}

// newEventFile makes a file in a new directory below the given one, and follows it. receive is called serially.
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

// eachEvent receives the events until there are no more. One that is too large ends the log: the outcome does not depend on any.
func eachEvent(from io.Reader, receive func([]byte)) {
	lines := bufio.NewScanner(from)
	lines.Buffer(make([]byte, 0, eventBuffer), maxEventSize)
	for lines.Scan() {
		receive(lines.Bytes())
	}
}

// Read implements io.Reader: it waits for what the CLI writes, and removes what it returns from the disk.
func (l *eventFile) Read(p []byte) (int, error) {
	for {
		over := l.over()
		if l.kept && !over && l.wasTruncated() {
			// What was read of a line is no part of the next one.
			return copy(p, "\n"), nil
		}
		if over && (l.kept || l.consumed >= l.limit) {
			// Whoever goes on to write is not the CLI.
			return 0, io.EOF
		}
		n, err := l.file.Read(p)
		if n > 0 {
			// Only whole blocks of the file system can be freed: the last one of what was read before comes with this.
			start := l.consumed - l.consumed%eventBuffer
			l.consumed += int64(n)
			if !l.kept {
				// A file system that cannot take it back keeps it until the file is removed. The file keeps its size, so that the offset
				// of whoever reads stays right.
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

// wasTruncated reports whether the CLI started the file again, as its size shows, and goes to its start.
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

// end waits until everything that the CLI wrote has been received. The CLI has ended, so no more is to come.
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
	// Somebody may go on to write; there is nothing to read any more.
	_ = l.file.Close()
	<-l.finished
	_ = os.RemoveAll(filepath.Dir(l.file.Name()))
}
