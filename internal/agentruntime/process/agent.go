package process

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/wait"

	"github.com/stack-controller/stack-controller/internal/procfs"
)

const (
	// connectTimeout bounds a connection to a unix socket, which takes microseconds.
	connectTimeout = time.Second
	// listenInterval is how often a connection to an agent that starts is tried.
	listenInterval = 5 * time.Millisecond
	// leftoverGrace is how long processes that outlived their agent may take to end after SIGINT. A pulumi process among them finishes what it
	// has begun, so that its state is complete.
	leftoverGrace = 30 * time.Second
)

// errForeign is the error when the directory belongs to an earlier Workspace of the same name, or when its record cannot be read.
var errForeign = errors.New("the directory belongs to another workspace")

// start returns the agent of the Workspace with the UID: the one that runs already, or a new one. It holds the lock on the directory, so
// that of several controllers one starts the agent and the others find it.
func (d directory) start(ctx context.Context, options Options, key types.NamespacedName, uid types.UID) (*handle, error) {
	unlock, err := d.lock(ctx)
	if err != nil {
		return nil, err
	}
	defer unlock()
	found, err := d.readRecord()
	switch {
	case errors.Is(err, os.ErrNotExist):
		found = record{Namespace: key.Namespace, Name: key.Name, UID: uid}
	case errors.Is(err, errCorrupt) || err == nil && found.UID != uid:
		return nil, errForeign
	case err != nil:
		return nil, err
	}
	agent, err := d.running(found)
	if err != nil {
		return nil, err
	}
	if agent != nil {
		if found.Starting {
			found.Agent, found.Starting = agent.Identity, false
			err = d.writeRecord(found)
		}
		return agent, err
	}
	// An agent that ended in order has ended its processes; if some are left, it left them on purpose.
	if !d.socketGone() {
		if err := d.endLeftovers(ctx, found.Agent); err != nil {
			return nil, err
		}
	}
	found.Starting = true
	if err := d.writeRecord(found); err != nil {
		return nil, err
	}
	if agent, err = d.spawn(options); err != nil {
		return nil, err
	}
	found.Agent, found.Starting = agent.Identity, false
	if err := d.writeRecord(found); err != nil {
		// Without a record, no controller would find the agent again.
		return nil, errors.Join(err, agent.signal(syscall.SIGKILL))
	}
	return agent, nil
}

// spawn starts the agent as the leader of a session of its own.
func (d directory) spawn(options Options) (*handle, error) {
	if err := d.prepare(); err != nil {
		return nil, err
	}
	log, err := d.openLog()
	if err != nil {
		return nil, err
	}
	defer log.Close()
	cmd := exec.Command(options.AgentPath, d.arguments(options)...)
	cmd.Dir = d.path
	cmd.Env = d.environment(options)
	cmd.Stdout, cmd.Stderr = log, log
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
	if err := cmd.Start(); err != nil {
		return nil, fmt.Errorf("start the process: %w", err)
	}
	// The process may have ended already. Nothing has waited for it yet, so the process id is still its own.
	id, err := procfs.Identify(cmd.Process.Pid)
	var pidfd *os.File
	if err == nil {
		pidfd, err = procfs.OpenPID(cmd.Process.Pid)
	}
	if err != nil {
		// Without a handle, the process cannot be supervised.
		return nil, errors.Join(err, cmd.Process.Kill(), cmd.Wait())
	}
	return newHandle(id, pidfd), cmd.Process.Release()
}

// arguments returns the command line of the agent.
func (d directory) arguments(options Options) []string {
	return append([]string{
		"serve",
		"--listen=" + d.address(),
		"--dir=" + d.state(),
		"--workspace=" + d.workspace(),
		"--pulumi=" + options.PulumiPath,
		"--idle-timeout=" + options.IdleTimeout.String(),
	}, options.AgentArgs...)
}

// environment returns all that the agent, and so every program, can see of the controller's environment.
func (d directory) environment(options Options) []string {
	path := filepath.Dir(options.PulumiPath)
	if inherited := os.Getenv("PATH"); inherited != "" {
		path += string(os.PathListSeparator) + inherited
	}
	environment := []string{
		"PATH=" + path,
		"HOME=" + d.home(),
		"TMPDIR=" + d.temporary(),
	}
	for _, name := range slices.Concat([]string{"LANG", "TZ", "USER"}, options.Environ) {
		if value, ok := os.LookupEnv(name); ok {
			environment = append(environment, name+"="+value)
		}
	}
	return environment
}

// listens reports whether a process listens on the socket.
func (d directory) listens(ctx context.Context) bool {
	dialer := net.Dialer{Timeout: connectTimeout}
	connection, err := dialer.DialContext(ctx, "unix", d.socket())
	if err != nil {
		return false
	}
	_ = connection.Close()
	return true
}

// awaitListen waits until the agent listens. It also returns, without an error, when the agent has ended, which the caller has to check.
func (d directory) awaitListen(ctx context.Context, agent *handle, timeout time.Duration) error {
	waiting, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	err := wait.PollUntilContextCancel(waiting, listenInterval, true, func(context.Context) (bool, error) {
		return agent.hasExited() || d.listens(waiting), nil
	})
	if err != nil && ctx.Err() == nil {
		err = fmt.Errorf("did not listen within %s", timeout)
	}
	return err
}

// socketGone reports whether the agent has removed its socket, as it does when it ends in order.
func (d directory) socketGone() bool {
	return errors.Is(unix.Access(d.socket(), unix.F_OK), unix.ENOENT)
}

// running returns the agent in the record, or nil if it does not run. The caller holds the lock.
func (d directory) running(found record) (*handle, error) {
	id := found.Agent
	var err error
	if found.Starting {
		id, err = d.findAgent()
	}
	var agent *handle
	if err == nil && id.PID != 0 {
		agent, err = openHandle(id)
	}
	if errors.Is(err, procfs.ErrNotRunning) {
		err = nil
	}
	return agent, err
}

// findAgent searches for an agent that listens on the socket of the directory, by its arguments. It is needed when a controller ended after
// it started the agent and before it recorded the process.
func (d directory) findAgent() (procfs.Identity, error) {
	pids, err := procfs.IDs()
	if err != nil {
		return procfs.Identity{}, err
	}
	for _, pid := range pids {
		arguments, err := os.ReadFile(fmt.Sprintf("/proc/%d/cmdline", pid))
		if err != nil || !bytes.Contains(arguments, []byte("="+d.address()+"\x00")) {
			continue
		}
		if id, err := procfs.Identify(pid); !errors.Is(err, procfs.ErrNotRunning) {
			return id, err
		}
	}
	return procfs.Identity{}, procfs.ErrNotRunning
}

// clear ends the agent and removes the directory, unless the directory belongs to the Workspace with the UID keep: another controller may
// have cleared it for that Workspace meanwhile.
func (d directory) clear(ctx context.Context, grace time.Duration, keep types.UID) error {
	unlock, err := d.lock(ctx)
	if err != nil {
		return err
	}
	defer unlock()
	found, err := d.readRecord()
	switch {
	case errors.Is(err, errCorrupt):
		found = record{Starting: true} // search for the agent
	case err != nil && !errors.Is(err, os.ErrNotExist):
		return err
	case err == nil && keep != "" && found.UID == keep:
		return nil
	}
	agent, err := d.running(found)
	if err != nil {
		return err
	}
	if agent != nil {
		if err := stop(ctx, []*handle{agent}, syscall.SIGTERM, grace); err != nil {
			return fmt.Errorf("end the agent: %w", err)
		}
		found.Agent = agent.Identity
	}
	if err := d.endLeftovers(ctx, found.Agent); err != nil {
		return err
	}
	return d.remove()
}

// endLeftovers ends the processes that the agent started and that outlived it; an agent that is killed cannot end them. A new agent must
// not work beside them.
func (d directory) endLeftovers(ctx context.Context, agent procfs.Identity) error {
	handles, err := d.leftovers(agent)
	if err == nil {
		err = stop(ctx, handles, syscall.SIGINT, leftoverGrace)
	}
	if err != nil {
		return fmt.Errorf("end what the last agent left: %w", err)
	}
	return nil
}

// leftovers returns the processes in the session of the agent. The id of a session is the process id of its leader, which an unrelated
// process may use once the session is empty. Therefore a process counts only when its environment or its working directory refers to this
// directory as well, and only when the leader, if there is one, is the agent.
func (d directory) leftovers(agent procfs.Identity) ([]*handle, error) {
	if current, err := agent.OfThisBoot(); err != nil || !current {
		return nil, err
	}
	if leader, err := procfs.ReadStat(agent.PID); err == nil && leader.StartTime != agent.StartTime {
		return nil, nil
	}
	pids, err := procfs.IDs()
	if err != nil {
		return nil, err
	}
	var found []*handle
	for _, pid := range pids {
		stat, err := procfs.ReadStat(pid)
		if err != nil || stat.Ended() || pid == agent.PID || stat.Session != agent.PID || stat.StartTime < agent.StartTime || !d.inUseBy(pid) {
			continue
		}
		h, err := openHandle(procfs.Identity{PID: pid, StartTime: stat.StartTime, Boot: agent.Boot})
		switch {
		case err == nil:
			found = append(found, h)
		case !errors.Is(err, procfs.ErrNotRunning):
			return nil, err
		}
	}
	return found, nil
}

// inUseBy reports whether the environment or the working directory of the process refers to the directory.
func (d directory) inUseBy(pid int) bool {
	inside := d.path + "/"
	if cwd, err := os.Readlink(fmt.Sprintf("/proc/%d/cwd", pid)); err == nil && strings.HasPrefix(cwd+"/", inside) {
		return true
	}
	environ, err := os.ReadFile(fmt.Sprintf("/proc/%d/environ", pid))
	return err == nil && bytes.Contains(environ, []byte("="+inside))
}
