// Package supervise runs the servers of the tests and of the demo so that none of them outlives the program that started them, however that
// program ends: return, panic, go test's timeout or SIGKILL.
//
// It runs a separate process, the supervisor, between the program and the servers. The supervisor is the same executable run again (see
// serve.go), in its own session, so that Ctrl-C reaches only the program. It is the parent of every server and, as a child subreaper,
// adopts the processes that a server leaves behind, for example agents, which survive their controller on purpose. When the pipe from the
// program closes, the supervisor kills all of them and removes the registered directories.
//
// It needs Linux (child subreaper, parent death signal, /proc), but no privileges.
package supervise

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"sync"
	"syscall"
	"time"

	"github.com/stack-controller/stack-controller/internal/procfs"
)

// closeTimeout detects a supervisor that hangs. Killing, reaping and removing take milliseconds, or seconds on a busy machine.
const closeTimeout = 2 * time.Minute

// errClosed is returned by calls after the supervisor has ended.
var errClosed = errors.New("the supervisor has ended")

// Supervisor is the program's handle for its supervisor process.
type Supervisor struct {
	cmd      *exec.Cmd
	requests io.WriteCloser
	ended    chan struct{} // closed once the supervisor process has been reaped

	mu      sync.Mutex
	encoder *json.Encoder
	nextID  int
	pending map[int]chan answer
	running map[int]*Process // by pid
}

// answer is the response of the supervisor to one request.
type answer struct {
	process *Process
	err     error
}

// Start starts the supervisor process. Its own output, a panic at most, goes to the file logPath.
func Start(logPath string) (*Supervisor, error) {
	log, err := os.OpenFile(logPath, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		return nil, fmt.Errorf("open the supervisor's log: %w", err)
	}
	defer func() { _ = log.Close() }()
	theirRequests, requests, err := os.Pipe()
	if err != nil {
		return nil, fmt.Errorf("create the supervisor's pipe: %w", err)
	}
	defer func() { _ = theirRequests.Close() }()
	events, theirEvents, err := os.Pipe()
	if err != nil {
		return nil, errors.Join(fmt.Errorf("create the supervisor's pipe: %w", err), requests.Close())
	}
	defer func() { _ = theirEvents.Close() }()

	cmd := exec.Command("/proc/self/exe")
	cmd.Args[0] = "supervisor"
	cmd.Dir = "/"
	// The race detector would delay the end of the supervisor by a second.
	cmd.Env = append(os.Environ(), roleVariable+"=1", "GORACE=atexit_sleep_ms=0")
	cmd.Stderr = log
	cmd.ExtraFiles = []*os.File{theirRequests, theirEvents}
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
	if err := cmd.Start(); err != nil {
		return nil, errors.Join(fmt.Errorf("start the supervisor: %w", err), requests.Close(), events.Close())
	}
	s := &Supervisor{
		cmd:      cmd,
		requests: requests,
		ended:    make(chan struct{}),
		encoder:  json.NewEncoder(requests),
		pending:  map[int]chan answer{},
		running:  map[int]*Process{},
	}
	go s.listen(events)
	return s, nil
}

// PID returns the process id of the supervisor.
func (s *Supervisor) PID() int { return s.cmd.Process.Pid }

// Run starts a process under the supervisor.
func (s *Supervisor) Run(command Command) (*Process, error) {
	process, err := s.ask(request{Start: &command})
	if err != nil {
		return nil, fmt.Errorf("start %s: %w", command.Name, err)
	}
	return process, nil
}

// RemoveAtEnd makes the supervisor remove the directory with its content, after it has ended its processes.
func (s *Supervisor) RemoveAtEnd(dir string) error {
	if _, err := s.ask(request{Remove: dir}); err != nil {
		return fmt.Errorf("register %s for removal: %w", dir, err)
	}
	return nil
}

// EndCgroupAtEnd makes the supervisor, when it ends, kill the processes in the named cgroup (a name without slashes) in every hierarchy,
// and remove the cgroup with all cgroups below it.
func (s *Supervisor) EndCgroupAtEnd(name string) error {
	if _, err := s.ask(request{Cgroup: name}); err != nil {
		return fmt.Errorf("register the cgroup %s for removal: %w", name, err)
	}
	return nil
}

// Close kills every process that is still running, and waits until the processes and the supervisor have ended, and so until the
// directories are removed. It may be called more than once.
func (s *Supervisor) Close() error {
	s.mu.Lock()
	_ = s.requests.Close() // an error means that it is closed already
	s.mu.Unlock()
	select {
	case <-s.ended:
		return nil
	case <-time.After(closeTimeout):
		return fmt.Errorf("the supervisor (pid %d) did not end within %s", s.PID(), closeTimeout)
	}
}

// ask sends a request and waits for the answer.
func (s *Supervisor) ask(r request) (*Process, error) {
	reply := make(chan answer, 1)
	s.mu.Lock()
	s.nextID++
	r.ID = s.nextID
	s.pending[r.ID] = reply
	err := s.encoder.Encode(r)
	s.mu.Unlock()
	if err != nil {
		return nil, errors.Join(errClosed, err)
	}
	select {
	case a := <-reply:
		return a.process, a.err
	case <-s.ended:
		return nil, errClosed
	}
}

// listen dispatches the events of the supervisor until it ends.
func (s *Supervisor) listen(events io.ReadCloser) {
	decoder := json.NewDecoder(events)
	for {
		var e event
		if err := decoder.Decode(&e); err != nil {
			break
		}
		s.dispatch(e)
	}
	_ = events.Close()
	_ = s.cmd.Wait() // the log says everything that the exit status would
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, process := range s.running {
		process.end("killed with its supervisor")
	}
	clear(s.running)
	close(s.ended)
}

func (s *Supervisor) dispatch(e event) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if e.Exited != 0 {
		if process, ok := s.running[e.Exited]; ok {
			delete(s.running, e.Exited)
			process.end(e.Status)
		}
		return
	}
	var a answer
	if e.Error != "" {
		a.err = errors.New(e.Error)
	}
	if e.PID != 0 {
		a.process = &Process{supervisor: s, pid: e.PID, done: make(chan struct{})}
		s.running[e.PID] = a.process
	}
	if reply, ok := s.pending[e.ID]; ok {
		delete(s.pending, e.ID)
		reply <- a
	}
}

// Command is a process to start.
type Command struct {
	// Name is the name of the process in errors.
	Name string
	// Path is the executable.
	Path string
	// Args are its arguments, without the name of the program.
	Args []string
	// Env is its whole environment.
	Env []string
	// Dir is its working directory; empty means the root directory.
	Dir string
	// Log is the file that its standard output and error are appended to.
	Log string
}

// Process is a process that a Supervisor started. It is the leader of its own process group.
type Process struct {
	supervisor *Supervisor
	pid        int
	done       chan struct{}
	status     string // valid once done is closed
}

// PID returns the process id.
func (p *Process) PID() int { return p.pid }

// Done is closed when the process has ended and has been reaped.
func (p *Process) Done() <-chan struct{} { return p.done }

// Status returns how the process ended, for example "exit status 1". It is empty while the process runs.
func (p *Process) Status() string {
	select {
	case <-p.done:
		return p.status
	default:
		return ""
	}
}

// Signal sends a signal to the process, and never to another one: after the process has been reaped, Signal does nothing, even if another
// process has the same id.
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

// children returns the ids of the processes whose parent is the given one.
func children(parent int) []int {
	pids, err := procfs.IDs()
	if err != nil {
		return nil // as if there were none: the caller asks again
	}
	var found []int
	for _, pid := range pids {
		if stat, err := procfs.ReadStat(pid); err == nil && stat.Parent == parent {
			found = append(found, pid)
		}
	}
	return found
}
