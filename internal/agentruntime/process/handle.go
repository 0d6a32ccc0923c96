package process

import (
	"context"
	"errors"
	"fmt"
	"os"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/stack-controller/stack-controller/internal/procfs"
)

// handle refers to a running process that this runtime supervises, either its own child or one that an earlier controller started. It never
// refers to another process, even when the process id is used again. (os.Process guarantees that only for a child.)
type handle struct {
	procfs.Identity
	pidfd *os.File
	// exited is closed when the process has ended.
	exited chan struct{}
	// status is how the process ended; nil when only its parent could know. It may be read after exited is closed.
	status *unix.WaitStatus
}

// openHandle returns a handle of a running process. The error is procfs.ErrNotRunning if the process has ended.
func openHandle(id procfs.Identity) (*handle, error) {
	pidfd, err := id.Open()
	if err != nil {
		return nil, err
	}
	return newHandle(id, pidfd), nil
}

func newHandle(id procfs.Identity, pidfd *os.File) *handle {
	h := &handle{Identity: id, pidfd: pidfd, exited: make(chan struct{})}
	go h.wait()
	return h
}

// wait waits until the process has ended, without using a thread, and reaps it if it is a child of this process.
func (h *handle) wait() {
	defer close(h.exited)
	defer h.pidfd.Close()
	connection, err := h.pidfd.SyscallConn()
	if err == nil {
		err = connection.Read(func(fd uintptr) bool {
			poll := []unix.PollFd{{Fd: int32(fd), Events: unix.POLLIN}} //nolint:gosec // the kernel numbers descriptors as int
			n, err := unix.Poll(poll, 0)
			return n > 0 || (err != nil && !errors.Is(err, unix.EINTR))
		})
	}
	if err != nil {
		return
	}
	var status unix.WaitStatus
	if pid, err := unix.Wait4(h.PID, &status, unix.WNOHANG, nil); err == nil && pid == h.PID {
		h.status = &status
	}
}

// hasExited reports whether the process has ended.
func (h *handle) hasExited() bool {
	select {
	case <-h.exited:
		return true
	default:
		return false
	}
}

// signal sends the signal to this process; it is not an error when the process has ended.
func (h *handle) signal(signal syscall.Signal) error {
	if err := h.Signal(signal); !errors.Is(err, procfs.ErrNotRunning) {
		return err
	}
	return nil
}

// ending reports whether the process ended in order, and describes its end in words.
func (h *handle) ending(socketGone bool) (clean bool, words string) {
	switch {
	case h.status == nil:
		// Only the parent learns the exit status, and the parent was another controller. An agent that ends in order removes its socket.
		return socketGone, "ended unexpectedly"
	case h.status.Signaled():
		return false, fmt.Sprintf("was ended by a signal (%s)", h.status.Signal())
	case h.status.ExitStatus() != 0:
		return false, fmt.Sprintf("ended with exit status %d", h.status.ExitStatus())
	}
	return true, "ended"
}

// stop sends the signal to the processes, waits for their end, and kills those that still run after the grace period. It returns early,
// with the error of ctx, when ctx is done.
func stop(ctx context.Context, handles []*handle, signal syscall.Signal, grace time.Duration) error {
	graceful, cancel := context.WithTimeout(ctx, grace)
	defer cancel()
	var failed error
	for _, h := range handles {
		failed = errors.Join(failed, h.signal(signal))
	}
	for _, h := range handles {
		select {
		case <-h.exited:
			continue
		case <-graceful.Done():
		}
		if ctx.Err() != nil {
			return ctx.Err()
		}
		if err := h.signal(syscall.SIGKILL); err != nil {
			return errors.Join(failed, err)
		}
		select {
		case <-h.exited:
		case <-ctx.Done():
			return ctx.Err()
		}
	}
	return failed
}
