// Package procfs identifies processes that were recorded, and reads what /proc contains about processes.
//
// The id of a process is used again, for another process or for a thread, once the process has ended and its parent has waited for it. In
// many places the kernel accepts the id of a thread instead of the id of its process: kill(2) ends the whole process, and /proc/ID can be
// read. What is recorded is therefore an Identity, and code that reads or signals a process uses this package.
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

// ErrNotRunning means that a process has ended, or never existed.
var ErrNotRunning = errors.New("the process does not run")

// Identity identifies a process uniquely, also after its id was used again.
type Identity struct {
	// PID is the process id.
	PID int `json:"pid"`
	// StartTime is when the process started, in clock ticks since the machine was booted.
	StartTime uint64 `json:"startTime"`
	// Boot is the id of the boot of the machine from which StartTime counts.
	Boot string `json:"boot"`
}

// BootID returns the id of the current boot of the machine.
var BootID = sync.OnceValues(func() (string, error) {
	id, err := os.ReadFile("/proc/sys/kernel/random/boot_id")
	if err != nil {
		return "", fmt.Errorf("read the boot id: %w", err)
	}
	return strings.TrimSpace(string(id)), nil
})

// Identify returns the identity of the process that has the id now. The process may have ended, if its parent has not waited for it. The
// error is ErrNotRunning if there is no such process.
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

// Running reports whether the process still runs. A process that has ended does not run, even if its parent has not waited for it.
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

// OfThisBoot reports whether the process was started since the machine was booted.
func (i Identity) OfThisBoot() (bool, error) {
	boot, err := BootID()
	return err == nil && i.PID > 0 && i.Boot == boot, err
}

// Open returns a pidfd, which refers to the process even after its id was used again. The error is ErrNotRunning if the process has ended.
func (i Identity) Open() (*os.File, error) {
	pidfd, err := OpenPID(i.PID)
	if err != nil {
		return nil, err
	}
	// The descriptor was opened by process id. Only now it is certain that it refers to the right process: if another process had the id by
	// then, the start time would differ.
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

// OpenPID returns a pidfd of the process that has the id now. The process may have ended already, if it is a child that its parent has not
// waited for. The error is ErrNotRunning if no process has the id.
func OpenPID(pid int) (*os.File, error) {
	fd, err := unix.PidfdOpen(pid, 0)
	switch {
	case errors.Is(err, unix.ESRCH), errors.Is(err, unix.ENOENT), errors.Is(err, unix.EINVAL):
		// If a thread has the id, the error is ENOENT, and EINVAL on older kernels.
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

// Signal sends the signal to this process and to no other. The error is ErrNotRunning if the process has ended.
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
