// Package procfs finds out about processes: which one it is that was recorded by its id, and what /proc says of it.
//
// An id is given to another process, or to a thread of one, once its process has ended and was waited for. The kernel takes the id of a
// thread for that of its process in many places: kill(2) ends the whole process, and /proc/ID can be read. What is recorded is
// therefore an Identity, and whoever wants to know about a process or to signal it goes through this package.
package procfs

import (
	"errors"
	"fmt"
	"os"
	"strings"
	"sync"
	"syscall"

	"golang.org/x/sys/unix"
)

// ErrNotRunning says that a process ended, or never was.
var ErrNotRunning = errors.New("the process does not run")

// Identity names a process for ever.
type Identity struct {
	// PID is the process id.
	PID int `json:"pid"`
	// StartTime is when the process started, in clock ticks since the machine started.
	StartTime uint64 `json:"startTime"`
	// Boot is the id of the machine's start that StartTime counts from.
	Boot string `json:"boot"`
}

// BootID returns the id of the current start of the machine.
var BootID = sync.OnceValues(func() (string, error) {
	id, err := os.ReadFile("/proc/sys/kernel/random/boot_id")
	if err != nil {
		return "", fmt.Errorf("read the boot id: %w", err)
	}
	return strings.TrimSpace(string(id)), nil
})

// Identify returns the identity of the process that has the id now, which may have ended when nobody has waited for it. The error is
// ErrNotRunning when there is none.
func Identify(pid int) (Identity, error) {
	boot, err := BootID()
	if err != nil {
		return Identity{}, err
	}
	stat, err := ReadStat(pid)
	if err != nil {
		return Identity{}, err
	}
	return Identity{PID: pid, StartTime: stat.StartTime, Boot: boot}, nil
}

// Running reports whether the process still runs. One that ended and waits for its parent does not.
func (i Identity) Running() (bool, error) {
	if current, err := i.OfThisBoot(); err != nil || !current {
		return false, err
	}
	stat, err := ReadStat(i.PID)
	if errors.Is(err, ErrNotRunning) {
		return false, nil
	}
	return err == nil && !stat.Ended() && stat.StartTime == i.StartTime, err
}

// OfThisBoot reports whether the process was started since the machine was.
func (i Identity) OfThisBoot() (bool, error) {
	boot, err := BootID()
	return err == nil && i.PID > 0 && i.Boot == boot, err
}

// Open returns a pidfd of the process, which refers to it also after its id was given away. The error is ErrNotRunning when it has ended.
func (i Identity) Open() (*os.File, error) {
	pidfd, err := OpenPID(i.PID)
	if err != nil {
		return nil, err
	}
	// The descriptor was opened by process id. That it is the right process shows only now: had the id changed hands
	// before, the start time would differ.
	running, err := i.Running()
	if err == nil && !running {
		err = ErrNotRunning
	}
	if err != nil {
		_ = pidfd.Close()
		return nil, err
	}
	return pidfd, nil
}

// OpenPID returns a pidfd of the process that has the id now; it may have ended already when it is a child that nobody has waited for. The
// error is ErrNotRunning when no process has it.
func OpenPID(pid int) (*os.File, error) {
	fd, err := unix.PidfdOpen(pid, 0)
	switch {
	case errors.Is(err, unix.ESRCH), errors.Is(err, unix.ENOENT), errors.Is(err, unix.EINVAL):
		// When a thread has the id, it is ENOENT, and EINVAL on older kernels.
		return nil, ErrNotRunning
	case err != nil:
		return nil, fmt.Errorf("open process %d: %w", pid, err)
	}
	// Non-blocking, so that waiting parks a goroutine and does not occupy a thread.
	if err := unix.SetNonblock(fd, true); err != nil {
		return nil, errors.Join(fmt.Errorf("open process %d: %w", pid, err), unix.Close(fd))
	}
	return os.NewFile(uintptr(fd), "pidfd"), nil
}

// Signal sends the signal to this process and to no other. The error is ErrNotRunning when it has ended.
func (i Identity) Signal(signal syscall.Signal) error {
	pidfd, err := i.Open()
	if err != nil {
		return err
	}
	defer pidfd.Close()
	err = unix.PidfdSendSignal(int(pidfd.Fd()), signal, nil, 0)
	if errors.Is(err, unix.ESRCH) {
		err = ErrNotRunning
	}
	if err != nil {
		return fmt.Errorf("send %s to process %d: %w", signal, i.PID, err)
	}
	return nil
}
