package process

import (
	"errors"
	"fmt"
	"os"
	"syscall"

	"golang.org/x/sys/unix"
)

// handle is a running process that this runtime looks after, its own child or one that an earlier controller started.
// It refers to that process only, also after the process id was given to another one.
type handle struct {
	identity
	pidfd *os.File
	// exited is closed when the process has ended.
	exited chan struct{}
	// status is how the process ended; nil when only its parent could tell. Read it after exited is closed.
	status *unix.WaitStatus
}

// openHandle opens a process that runs; the error is errNotRunning when it has ended.
func openHandle(id identity) (*handle, error) {
	h, err := openProcess(id.PID)
	if err != nil {
		return nil, err
	}
	h.identity = id
	// The descriptor was opened by process id. That it is the right process shows only now: had the id changed hands
	// before, the start time would differ.
	if running, err := id.running(); err != nil || !running {
		_ = h.pidfd.Close()
		if err == nil {
			err = errNotRunning
		}
		return nil, err
	}
	go h.wait()
	return h, nil
}

// openChild opens a child that nobody has waited for; it may have ended already.
func openChild(pid int) (*handle, error) {
	h, err := openProcess(pid)
	if err != nil {
		return nil, err
	}
	boot, err := bootID()
	if err != nil {
		return nil, errors.Join(err, h.pidfd.Close())
	}
	stat, err := readStat(pid)
	if err != nil {
		return nil, errors.Join(err, h.pidfd.Close())
	}
	h.identity = identity{PID: pid, StartTime: stat.startTime, Boot: boot}
	go h.wait()
	return h, nil
}

// openProcess opens a descriptor for the process that has the id now.
func openProcess(pid int) (*handle, error) {
	fd, err := unix.PidfdOpen(pid, 0)
	if errors.Is(err, unix.ESRCH) {
		return nil, errNotRunning
	}
	if err != nil {
		return nil, fmt.Errorf("open process %d: %w", pid, err)
	}
	// Non-blocking, so that waiting parks a goroutine and does not occupy a thread.
	if err := unix.SetNonblock(fd, true); err != nil {
		return nil, errors.Join(fmt.Errorf("open process %d: %w", pid, err), unix.Close(fd))
	}
	return &handle{pidfd: os.NewFile(uintptr(fd), "pidfd"), exited: make(chan struct{})}, nil
}

// wait parks until the process has ended, and collects it when it is a child of this process.
func (h *handle) wait() {
	defer close(h.exited)
	defer func() { _ = h.pidfd.Close() }()
	connection, err := h.pidfd.SyscallConn()
	if err == nil {
		err = connection.Read(func(fd uintptr) bool {
			poll := []unix.PollFd{{Fd: int32(fd), Events: unix.POLLIN}}
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

// signal sends the signal to this process; it is not an error when the process has ended.
func (h *handle) signal(signal syscall.Signal) error {
	connection, err := h.pidfd.SyscallConn()
	if err != nil {
		return nil // closed, so the process has ended
	}
	var sent error
	if err := connection.Control(func(fd uintptr) {
		sent = unix.PidfdSendSignal(int(fd), signal, nil, 0)
	}); err != nil {
		return nil
	}
	if sent != nil && !errors.Is(sent, unix.ESRCH) {
		return fmt.Errorf("send %s to process %d: %w", signal, h.PID, sent)
	}
	return nil
}

// ending tells how the process ended: whether in order, and in words.
func (h *handle) ending(socketGone bool) (clean bool, words string) {
	switch {
	case h.status == nil:
		// Only the parent learns the exit status, and that was another controller. An agent that ends in order removes
		// its socket.
		return socketGone, "ended unexpectedly"
	case h.status.Signaled():
		return false, fmt.Sprintf("was ended by a signal (%s)", h.status.Signal())
	case h.status.ExitStatus() != 0:
		return false, fmt.Sprintf("ended with exit status %d", h.status.ExitStatus())
	}
	return true, "ended"
}
