package faults_test

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"

	"github.com/stack-controller/stack-controller/internal/procfs"
	"github.com/stack-controller/stack-controller/tests/controlplane"
	"github.com/stack-controller/stack-controller/tests/faults/campaign"
)

// commandLine is how a process was started.
type commandLine struct {
	args []string // with the executable first
	env  []string
}

const agentPathFlag = "--agent-path="

// flag returns the value of a flag that is written as --name=value.
func (c *commandLine) flag(prefix string) (string, bool) {
	for _, arg := range c.args {
		if value, is := strings.CutPrefix(arg, prefix); is {
			return value, true
		}
	}
	return "", false
}

func (c *commandLine) setFlag(prefix, value string) {
	for i, arg := range c.args {
		if strings.HasPrefix(arg, prefix) {
			c.args[i] = prefix + value
		}
	}
}

// pids returns the ids of all processes that the test holds for.
func pids(holds func(dir string) bool) []int {
	dirs, _ := filepath.Glob("/proc/[0-9]*") // only a malformed pattern gives an error
	var found []int
	for _, dir := range dirs {
		if pid, err := strconv.Atoi(filepath.Base(dir)); err == nil && holds(dir) {
			found = append(found, pid)
		}
	}
	return found
}

// serverPID finds a server of the control plane by its working directory.
func serverPID(cp *controlplane.ControlPlane, name string) (int, error) {
	want := filepath.Join(cp.Dir, name)
	found := pids(func(dir string) bool {
		target, err := os.Readlink(filepath.Join(dir, "cwd"))
		return err == nil && target == want
	})
	if len(found) != 1 {
		return 0, fmt.Errorf("find the process of %s: there are %d", name, len(found))
	}
	return found[0], nil
}

// commandLineOf reads how a process was started.
func commandLineOf(pid int) (commandLine, error) {
	var lists [2][]string
	for i, file := range []string{"cmdline", "environ"} {
		content, err := os.ReadFile(fmt.Sprintf("/proc/%d/%s", pid, file))
		if err != nil {
			return commandLine{}, fmt.Errorf("read how process %d was started: %w", pid, err)
		}
		for _, word := range bytes.Split(bytes.TrimRight(content, "\x00"), []byte{0}) {
			lists[i] = append(lists[i], string(word))
		}
	}
	return commandLine{args: lists[0], env: lists[1]}, nil
}

// restartServer kills a server of the control plane, waits for as long as told and starts it as it was, after changes of its
// arguments.
func restartServer(
	ctx context.Context, cp *controlplane.ControlPlane, name string,
	ready func(context.Context) error, meanwhile func(), change func(arg string) string,
) error {
	pid, err := serverPID(cp, name)
	if err != nil {
		return err
	}
	command, err := commandLineOf(pid)
	if err != nil {
		return err
	}
	process, err := procfs.Identify(pid)
	if err == nil {
		err = process.Signal(syscall.SIGKILL)
	}
	if err != nil {
		return fmt.Errorf("kill %s: %w", name, err)
	}
	for running(process).PID != 0 {
		if !campaign.Wait(ctx, campaign.PollInterval) {
			return context.Cause(ctx)
		}
	}
	if meanwhile != nil {
		meanwhile()
	}
	args := command.args[1:]
	for i := range args {
		if change != nil {
			args[i] = change(args[i])
		}
	}
	_, err = cp.StartServer(ctx, controlplane.Server{Name: name, Path: command.args[0], Args: args, Env: command.env, Ready: ready})
	return err
}

// signalServer sends a signal to a server of the control plane.
func signalServer(cp *controlplane.ControlPlane, name string, signal syscall.Signal) error {
	pid, err := serverPID(cp, name)
	if err != nil {
		return err
	}
	if err := syscall.Kill(pid, signal); err != nil {
		return fmt.Errorf("send %s to %s: %w", signal, name, err)
	}
	return nil
}

// parentOf returns the id of a process's parent, and its name.
func parentOf(dir string) (parent int, name string) {
	pid, _ := strconv.Atoi(filepath.Base(dir))
	stat, err := procfs.ReadStat(pid)
	if err != nil || stat.Ended() {
		return 0, ""
	}
	return stat.Parent, stat.Name
}

// childrenNamed returns the children of a process that have the name.
func childrenNamed(parent int, want string) []int {
	return pids(func(dir string) bool {
		of, name := parentOf(dir)
		return of == parent && name == want
	})
}

// pulumiProcesses returns the processes of pulumi, its plugins included, in whose environment that directory is, and none of
// the others.
func pulumiProcesses(dir string, others []string) []string {
	var found []string
	pids(func(process string) bool {
		_, name := parentOf(process)
		if !strings.HasPrefix(name, "pulumi") {
			return false
		}
		environ, err := os.ReadFile(filepath.Join(process, "environ"))
		mentions := func(dir string) bool { return bytes.Contains(environ, []byte(dir+"/")) }
		if err != nil || !mentions(dir) || slices.ContainsFunc(others, mentions) {
			return false
		}
		line, _ := os.ReadFile(filepath.Join(process, "cmdline"))
		found = append(found, filepath.Base(process)+" "+strings.ReplaceAll(string(line), "\x00", " "))
		return true
	})
	return found
}
