package supervise

import (
	"encoding/json"
	"fmt"
	"io"
	"os"
	"os/signal"
	"runtime"
	"slices"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/stack-controller/stack-controller/tests/framework/leftovers"
)

// roleVariable is an environment variable that makes an executable with this package run as the supervisor.
const roleVariable = "STACK_CONTROLLER_TEST_SUPERVISOR"

// The supervisor's ends of the pipes, as exec.Cmd.ExtraFiles numbers them.
const (
	requestsFD = 3
	eventsFD   = 4
)

// request is one line from the program to the supervisor.
type request struct {
	ID     int
	Start  *Command       `json:",omitempty"`
	Signal *signalRequest `json:",omitempty"`
	Remove string         `json:",omitempty"`
	Cgroup string         `json:",omitempty"`
}

type signalRequest struct {
	PID    int
	Number int
}

// event is one line from the supervisor to the program: the response to the request ID, or the end of the process Exited.
type event struct {
	ID    int    `json:",omitempty"`
	PID   int    `json:",omitempty"`
	Error string `json:",omitempty"`

	Exited int    `json:",omitempty"`
	Status string `json:",omitempty"`
}

// The supervisor is the program's own executable, so that nothing has to be built or installed before a test. It takes over before main,
// because a test binary's main belongs to the testing package.
func init() {
	if os.Getenv(roleVariable) == "" {
		return
	}
	syscall.CloseOnExec(requestsFD)
	syscall.CloseOnExec(eventsFD)
	// If this process is killed, the next run of the tests finds what is left by this record.
	record, err := leftovers.New("supervisor")
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	s := server{
		events:  json.NewEncoder(os.NewFile(eventsFD, "events")),
		running: map[int]bool{},
		record:  record,
	}
	s.serve(os.NewFile(requestsFD, "requests"))
	os.Exit(0)
}

// server is the state of the supervisor process. Only the goroutine of serve uses it, so a process id is never signalled after it was
// reaped.
type server struct {
	events  *json.Encoder
	running map[int]bool // started here and not reaped yet
	record  *leftovers.Record
}

// serve works until the requests end, which happens when the program ends, or until it receives a signal to terminate.
func (s *server) serve(in io.Reader) {
	// A parent death signal is sent when the thread that forked ends. The main thread, to which an init function can
	// lock itself, ends with the process.
	runtime.LockOSThread()
	// Without the subreaper, only direct children would be found at the end.
	if err := unix.Prctl(unix.PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0); err != nil {
		fmt.Fprintln(os.Stderr, "become a child subreaper:", err)
		return
	}
	children := make(chan os.Signal, 1)
	signal.Notify(children, syscall.SIGCHLD)
	terminate := make(chan os.Signal, 1)
	// Notify, not Ignore: children would inherit ignored signals.
	signal.Notify(terminate, syscall.SIGTERM, syscall.SIGINT, syscall.SIGHUP)
	requests := make(chan request)
	go receive(in, requests)
	for {
		select {
		case r, open := <-requests:
			if !open {
				s.end()
				return
			}
			s.handle(r)
		case <-children:
			s.reap()
		case <-terminate:
			s.end()
			return
		}
	}
}

func receive(in io.Reader, requests chan<- request) {
	defer close(requests)
	decoder := json.NewDecoder(in)
	for {
		var r request
		if err := decoder.Decode(&r); err != nil {
			return
		}
		requests <- r
	}
}

func (s *server) handle(r request) {
	e := event{ID: r.ID}
	var err error
	switch {
	case r.Start != nil:
		e.PID, err = s.start(r.Start)
	case r.Signal != nil:
		err = s.signal(r.Signal)
	case r.Remove != "":
		err = s.record.AddDirectory(r.Remove)
	case r.Cgroup != "":
		err = s.record.AddCgroup(r.Cgroup)
	}
	if err != nil {
		e.Error = err.Error()
	}
	s.tell(e)
}

// tell sends the event. An error means that the program has ended; the requests then end, too.
func (s *server) tell(e event) { _ = s.events.Encode(e) }

func (s *server) start(command *Command) (int, error) {
	log, err := os.OpenFile(command.Log, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		return 0, err
	}
	defer func() { _ = log.Close() }()
	null, err := os.Open(os.DevNull)
	if err != nil {
		return 0, err
	}
	defer func() { _ = null.Close() }()
	dir := command.Dir
	if dir == "" {
		dir = "/"
	}
	// os/exec is not used: its Wait and the reaping of adopted processes would compete for the exit status.
	pid, err := syscall.ForkExec(command.Path, append([]string{command.Path}, command.Args...), &syscall.ProcAttr{
		Dir:   dir,
		Env:   append(slices.Clip(command.Env), s.record.Environment()),
		Files: []uintptr{null.Fd(), log.Fd(), log.Fd()},
		Sys:   &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGKILL},
	})
	if err != nil {
		return 0, &os.PathError{Op: "exec", Path: command.Path, Err: err}
	}
	s.running[pid] = true
	return pid, nil
}

func (s *server) signal(r *signalRequest) error {
	if !s.running[r.PID] {
		return nil
	}
	return syscall.Kill(r.PID, syscall.Signal(r.Number))
}

// reap waits for every child that has ended, including adopted ones. It reports whether any children are left.
func (s *server) reap() (left bool) {
	for {
		var status syscall.WaitStatus
		pid, err := syscall.Wait4(-1, &status, syscall.WNOHANG, nil)
		switch {
		case err == syscall.EINTR:
			continue
		case err != nil:
			return false // ECHILD: no children at all
		case pid == 0:
			return true
		}
		if s.running[pid] {
			delete(s.running, pid)
			s.tell(event{Exited: pid, Status: describe(status)})
		}
	}
}

func describe(status syscall.WaitStatus) string {
	if status.Signaled() {
		return "killed by " + status.Signal().String()
	}
	return fmt.Sprintf("exit status %d", status.ExitStatus())
}

// end kills all descendants and all processes in the cgroups, and removes the cgroups and the directories. The children of a killed process
// become orphans, which this process adopts, so that the next round finds them.
func (s *server) end() {
	deadline := time.Now().Add(closeTimeout / 2)
	for s.reap() && time.Now().Before(deadline) {
		for _, pid := range children(os.Getpid()) {
			_ = syscall.Kill(pid, syscall.SIGKILL)
		}
		for _, cgroup := range s.record.Cgroups {
			if err := leftovers.KillCgroup(cgroup); err != nil {
				fmt.Fprintln(os.Stderr, err)
			}
		}
		time.Sleep(5 * time.Millisecond)
	}
	if err := s.record.Remove(); err != nil {
		fmt.Fprintln(os.Stderr, err)
	}
}
