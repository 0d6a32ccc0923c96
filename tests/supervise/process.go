package supervise

import (
	"fmt"
	"syscall"
	"time"
)

// Command is a process to start.
type Command struct {
	// Name is how errors call it.
	Name string
	// Path is the executable.
	Path string
	// Args are its arguments, without the program's name.
	Args []string
	// Env is its whole environment.
	Env []string
	// Dir is its working directory; empty means the root directory.
	Dir string
	// Log is the file that its standard output and error are appended to.
	Log string
}

// Process is a process that a Supervisor started, the leader of a process group of its own.
type Process struct {
	supervisor *Supervisor
	pid        int
	done       chan struct{}
	status     string // valid once done is closed
}

// PID is the process id.
func (p *Process) PID() int { return p.pid }

// Done is closed when the process has ended and has been reaped.
func (p *Process) Done() <-chan struct{} { return p.done }

// Status says how the process ended, for example "exit status 1". It is empty while the process runs.
func (p *Process) Status() string {
	select {
	case <-p.done:
		return p.status
	default:
		return ""
	}
}

// Signal sends a signal to the process, and to nothing else: once the process has been reaped this does nothing, even
// when its id has been given to another one.
func (p *Process) Signal(signal syscall.Signal) error {
	if _, err := p.supervisor.ask(request{Signal: &signalRequest{PID: p.pid, Number: int(signal)}}); err != nil {
		return fmt.Errorf("send %s to process %d: %w", signal, p.pid, err)
	}
	return nil
}

// Stop asks the process to end with SIGTERM, kills it after the grace period (at once when that is zero) and waits
// until it has been reaped.
func (p *Process) Stop(grace time.Duration) error {
	if grace > 0 {
		if err := p.Signal(syscall.SIGTERM); err != nil {
			return err
		}
		select {
		case <-p.done:
			return nil
		case <-time.After(grace):
		}
	}
	if err := p.Signal(syscall.SIGKILL); err != nil {
		return err
	}
	select {
	case <-p.done:
		return nil
	case <-time.After(closeTimeout):
		return fmt.Errorf("process %d did not end within %s of SIGKILL", p.pid, closeTimeout)
	}
}

// end records how the process ended. The supervisor's lock is held.
func (p *Process) end(status string) {
	p.status = status
	close(p.done)
}
