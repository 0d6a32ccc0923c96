package process

import (
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

	"k8s.io/apimachinery/pkg/types"
)

const (
	// connectTimeout bounds a connection to a unix socket, which takes microseconds.
	connectTimeout = time.Second
	// listenInterval is how often an agent that starts is tried.
	listenInterval = 5 * time.Millisecond
)

// errForeign says that the directory belongs to an earlier Workspace of the same name, or to nobody knows whom.
var errForeign = errors.New("the directory belongs to another workspace")

// start returns the agent of the Workspace with the UID: the one that runs already, or a new one. It holds the lock on the
// directory, so that one of several controllers starts it and the others find it.
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
			found.Agent, found.Starting = agent.identity, false
			err = d.writeRecord(found)
		}
		return agent, err
	}
	// An agent that ended in order has ended what it had to; what is left then was left on purpose.
	if !d.socketGone() {
		if err := d.endLeftovers(ctx, found.Agent); err != nil {
			return nil, fmt.Errorf("end what the last agent left: %w", err)
		}
	}
	found.Starting = true
	if err := d.writeRecord(found); err != nil {
		return nil, err
	}
	if agent, err = d.spawn(options); err != nil {
		return nil, err
	}
	found.Agent, found.Starting = agent.identity, false
	if err := d.writeRecord(found); err != nil {
		// Without a record nobody would find it again.
		return nil, errors.Join(err, agent.signal(syscall.SIGKILL))
	}
	return agent, nil
}

// running returns the agent that the record names, or nil when none runs. The caller holds the lock.
func (d directory) running(found record) (*handle, error) {
	id := found.Agent
	if found.Starting {
		var err error
		if id, err = d.findAgent(); err != nil {
			if errors.Is(err, errNotRunning) {
				return nil, nil
			}
			return nil, err
		}
	}
	if id.PID == 0 {
		return nil, nil
	}
	h, err := openHandle(id)
	if errors.Is(err, errNotRunning) {
		return nil, nil
	}
	return h, err
}

// markWorked records that an agent listened in this directory.
func (d directory) markWorked(ctx context.Context) error {
	found, err := d.readRecord()
	if err != nil || found.Worked {
		return err
	}
	unlock, err := d.lock(ctx)
	if err != nil {
		return err
	}
	defer unlock()
	if found, err = d.readRecord(); err != nil {
		return err
	}
	found.Worked = true
	return d.writeRecord(found)
}

// clear ends the agent and removes the directory, unless it belongs to the Workspace to keep: another controller may have
// cleared it for that one meanwhile.
func (d directory) clear(ctx context.Context, grace time.Duration, keep types.UID) error {
	if exists, err := d.exists(); err != nil || !exists {
		return err
	}
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
		found.Agent = agent.identity
	}
	if err := d.endLeftovers(ctx, found.Agent); err != nil {
		return fmt.Errorf("end what the agent left: %w", err)
	}
	return d.remove()
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
	defer func() { _ = log.Close() }()
	cmd := exec.Command(options.AgentPath, d.arguments(options)...)
	cmd.Dir = d.path
	cmd.Env = d.environment(options)
	cmd.Stdout, cmd.Stderr = log, log
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
	if err := cmd.Start(); err != nil {
		return nil, fmt.Errorf("start the process: %w", err)
	}
	agent, err := openChild(cmd.Process.Pid)
	if err != nil {
		// It cannot be looked after.
		return nil, errors.Join(err, cmd.Process.Kill(), cmd.Wait())
	}
	return agent, cmd.Process.Release()
}

// prepare makes the directory fit for a new agent.
func (d directory) prepare() error {
	for _, dir := range []string{d.state(), d.home(), d.temporary(), d.workspace()} {
		if err := os.MkdirAll(dir, 0o700); err != nil {
			return fmt.Errorf("prepare the directory of a workspace: %w", err)
		}
	}
	if err := os.Remove(d.socket()); err != nil && !errors.Is(err, os.ErrNotExist) {
		return fmt.Errorf("remove the socket of the last agent: %w", err)
	}
	if err := d.emptyTemporary(); err != nil {
		return fmt.Errorf("remove temporary files of the last agent: %w", err)
	}
	return d.rotateLog()
}

// arguments are the command line of the agent.
func (d directory) arguments(options Options) []string {
	return append([]string{
		"serve",
		"--listen=" + d.address(),
		"--dir=" + d.state(),
		"--workspace=" + d.workspace(),
		"--pulumi=" + options.PulumiPath,
		"--idle-timeout=" + options.IdleTimeout.String(),
		// What the agent gets is chosen already, in environment.
		"--inherit-environment",
	}, options.AgentArgs...)
}

// environment is all that the agent, and so every program, gets to see of the controller's environment.
func (d directory) environment(options Options) []string {
	path := slices.Concat(options.ExtraPath, []string{filepath.Dir(options.PulumiPath)})
	if inherited := os.Getenv("PATH"); inherited != "" {
		path = append(path, inherited)
	}
	environment := []string{
		"PATH=" + strings.Join(path, string(os.PathListSeparator)),
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

// listens tells whether somebody listens on the socket.
func (d directory) listens(ctx context.Context) bool {
	dialer := net.Dialer{Timeout: connectTimeout}
	connection, err := dialer.DialContext(ctx, "unix", d.socket())
	if err != nil {
		return false
	}
	_ = connection.Close()
	return true
}

// awaitListen waits until the agent listens. It returns early when the agent ends, which is the caller's to notice.
func (d directory) awaitListen(ctx context.Context, agent *handle, timeout time.Duration) error {
	timer := time.NewTimer(timeout)
	defer timer.Stop()
	ticker := time.NewTicker(listenInterval)
	defer ticker.Stop()
	for !d.listens(ctx) {
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-agent.exited:
			return nil
		case <-timer.C:
			return fmt.Errorf("did not listen within %s", timeout)
		case <-ticker.C:
		}
	}
	return nil
}
