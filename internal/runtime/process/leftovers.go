package process

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// leftoverGrace is how long processes that outlived their agent may take to end after SIGINT. A pulumi among them
// finishes what it has begun, so that its state is whole.
const leftoverGrace = 30 * time.Second

// endLeftovers ends the processes that the agent started and that outlived it: an agent that is killed cannot do so. A new
// agent must not work beside them.
func (d directory) endLeftovers(ctx context.Context, agent identity) error {
	handles, err := d.leftovers(agent)
	if err != nil || len(handles) == 0 {
		return err
	}
	return stop(ctx, handles, syscall.SIGINT, leftoverGrace)
}

// stop sends the signal to the processes, waits for them, and kills those that are there after the grace period. It returns
// early, with the error of ctx, when that ends.
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

// leftovers finds the processes in the session of the agent. The id of a session is the process id of its leader, and may be
// in use by a stranger once the session is empty; so a process counts only when its environment or its working directory
// lead into this directory as well, and the leader, if there is one, is the agent.
func (d directory) leftovers(agent identity) ([]*handle, error) {
	boot, err := bootID()
	if err != nil || agent.PID == 0 || agent.Boot != boot {
		return nil, err
	}
	if leader, err := readStat(agent.PID); err == nil && leader.startTime != agent.StartTime {
		return nil, nil
	}
	pids, err := processIDs()
	if err != nil {
		return nil, err
	}
	var found []*handle
	for _, pid := range pids {
		stat, err := readStat(pid)
		if err != nil || stat.dead() || pid == agent.PID || stat.session != agent.PID || stat.startTime < agent.StartTime || !d.inUseBy(pid) {
			continue
		}
		h, err := openHandle(identity{PID: pid, StartTime: stat.startTime, Boot: boot})
		if errors.Is(err, errNotRunning) {
			continue
		}
		if err != nil {
			return nil, err
		}
		found = append(found, h)
	}
	return found, nil
}

// inUseBy tells whether the environment or the working directory of the process leads into the directory.
func (d directory) inUseBy(pid int) bool {
	inside := d.path + "/"
	if cwd, err := os.Readlink(fmt.Sprintf("/proc/%d/cwd", pid)); err == nil && strings.HasPrefix(cwd+"/", inside) {
		return true
	}
	environ, err := os.ReadFile(fmt.Sprintf("/proc/%d/environ", pid))
	return err == nil && bytes.Contains(environ, []byte("="+inside))
}

// findAgent searches for an agent that listens on the socket of the directory, by its arguments. It is for the case that
// a controller ended between the start of the agent and the record of it.
func (d directory) findAgent() (identity, error) {
	pids, err := processIDs()
	if err != nil {
		return identity{}, err
	}
	for _, pid := range pids {
		arguments, err := os.ReadFile(fmt.Sprintf("/proc/%d/cmdline", pid))
		if err != nil || !bytes.Contains(arguments, []byte("="+d.address()+"\x00")) {
			continue
		}
		id, err := identify(pid)
		if errors.Is(err, errNotRunning) {
			continue
		}
		return id, err
	}
	return identity{}, errNotRunning
}

// emptyTemporary removes what earlier agents left in the directory for temporary files.
func (d directory) emptyTemporary() error {
	entries, err := os.ReadDir(d.temporary())
	if errors.Is(err, os.ErrNotExist) {
		return nil
	}
	for _, entry := range entries {
		err = errors.Join(err, removeTree(filepath.Join(d.temporary(), entry.Name())))
	}
	return err
}

// socketGone tells whether the agent has removed its socket, as it does when it ends in order.
func (d directory) socketGone() bool {
	return errors.Is(unix.Access(d.socket(), unix.F_OK), unix.ENOENT)
}
