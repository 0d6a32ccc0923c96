package faults_test

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/stack-controller/stack-controller/tests/load/faults/campaign"
)

const (
	// isolationVariable is the role of the process: the first process in the new namespaces, or the test in them.
	isolationVariable = "STACK_CONTROLLER_TEST_ISOLATION"
	firstProcess      = "first process"
	isolated          = "isolated"

	// firstID and lastID bound the process ids that are used again and again. The range is small, so that the ids of ended processes soon
	// belong to other processes and threads. Higher ids are used only while too many ids in the range are taken.
	firstID, lastID = 300, 2300
	// lastIDFile has the id after which the kernel looks for a free one. It exists in every namespace and on every kernel, while a limit of
	// ids per namespace exists on new kernels only.
	lastIDFile = "/proc/sys/kernel/ns_last_pid"
	// idInterval is the time between two checks whether ids have exceeded lastID. A machine can use some thousands of ids in a second.
	idInterval = 20 * time.Millisecond
	// endPatience bounds how long supervisors may take to end the remaining processes after the test.
	endPatience = 90 * time.Second
)

// isolate runs this executable again in new mount and PID namespaces, if it has the permission. The namespaces end with their last process,
// whatever ends it, and nothing outside is changed. Without the permission, and in the isolated process, isolate returns.
func isolate() {
	switch os.Getenv(isolationVariable) {
	case isolated:
		return
	case firstProcess:
		os.Exit(leadNamespaces())
	}
	if os.Geteuid() != 0 {
		return
	}
	runtime.LockOSThread() // Pdeathsig refers to the thread that forks
	first := exec.Command("/proc/self/exe", os.Args[1:]...)
	first.Stdin, first.Stdout, first.Stderr = os.Stdin, os.Stdout, os.Stderr
	first.Env = append(os.Environ(), isolationVariable+"="+firstProcess)
	first.SysProcAttr = &syscall.SysProcAttr{Cloneflags: syscall.CLONE_NEWNS | syscall.CLONE_NEWPID, Pdeathsig: syscall.SIGTERM}
	signals := make(chan os.Signal, 1)
	signal.Notify(signals, syscall.SIGINT, syscall.SIGTERM, syscall.SIGQUIT)
	if err := first.Start(); err != nil {
		signal.Stop(signals)
		runtime.UnlockOSThread()
		return
	}
	go func() {
		for received := range signals {
			_ = first.Process.Signal(received)
		}
	}()
	err := first.Wait()
	if ended := (*exec.ExitError)(nil); err != nil && !errors.As(err, &ended) {
		fmt.Fprintln(os.Stderr, "run in namespaces of its own:", err)
		os.Exit(1)
	}
	os.Exit(exitCode(first.ProcessState.Sys().(syscall.WaitStatus)))
}

func exitCode(status syscall.WaitStatus) int {
	if status.Signaled() {
		return 128 + int(status.Signal())
	}
	return status.ExitStatus()
}

// leadNamespaces runs in the first process of the PID namespace: it starts the test, forwards signals, and waits for orphaned processes.
func leadNamespaces() int {
	runtime.LockOSThread()
	signals := make(chan os.Signal, 8)
	signal.Notify(signals, syscall.SIGCHLD, syscall.SIGINT, syscall.SIGTERM, syscall.SIGQUIT)
	if os.Getpid() != 1 {
		fmt.Fprintln(os.Stderr, isolationVariable, "is for the tests' own use")
		return 2
	}
	err := errors.Join(os.Setenv(isolationVariable, isolated),
		unix.Mount("none", "/", "", unix.MS_REC|unix.MS_PRIVATE, ""), unix.Mount("proc", "/proc", "proc", 0, ""))
	if err != nil {
		fmt.Fprintln(os.Stderr, "prepare namespaces of its own:", err)
		return 1
	}
	test, err := syscall.ForkExec("/proc/self/exe", os.Args, &syscall.ProcAttr{
		Env: os.Environ(), Files: []uintptr{0, 1, 2},
	})
	if err != nil {
		fmt.Fprintln(os.Stderr, "start the test in namespaces of its own:", err)
		return 1
	}
	go repeatIDs()
	code := 0
	var patience <-chan time.Time // after the end of the test
	for {
		select {
		case received := <-signals:
			if received != syscall.SIGCHLD && patience == nil {
				_ = syscall.Kill(test, received.(syscall.Signal))
			}
		case <-patience:
			return code // all other processes end with this one
		}
		ended, status, left := reap(test)
		if ended {
			code, patience = exitCode(status), time.After(endPatience)
		}
		if !left {
			return code
		}
	}
}

// reap waits for all children that have ended. It reports whether and how the test ended, and whether any children are left.
func reap(test int) (ended bool, how syscall.WaitStatus, left bool) {
	for {
		var status syscall.WaitStatus
		pid, err := syscall.Wait4(-1, &status, syscall.WNOHANG, nil)
		switch {
		case errors.Is(err, syscall.EINTR):
		case err != nil || pid == 0:
			return ended, how, err == nil
		case pid == test:
			ended, how = true, status
		}
	}
}

// repeatIDs resets the next process id again and again.
func repeatIDs() {
	for range time.Tick(idInterval) {
		content, err := os.ReadFile(lastIDFile)
		if err != nil {
			return // not on this machine
		}
		if last, err := strconv.Atoi(strings.TrimSpace(string(content))); err == nil && last > lastID {
			_ = setLastID(firstID)
		}
	}
}

// setLastID makes the kernel look for a free process id after last.
func setLastID(last int) error {
	return os.WriteFile(lastIDFile, []byte(strconv.Itoa(last)), 0o600)
}

func isIsolated() bool { return os.Getenv(isolationVariable) == isolated }

// diskSize is enough for a few Stacks, and small enough to be filled quickly, in bytes.
const diskSize = 256 << 20

func (s *fixture) dataDir() string { return filepath.Join(s.system.Dir, "data") }

// mountDisk mounts a small file system for the artifacts and the workspaces, where that is possible.
func (s *fixture) mountDisk() error {
	if !isIsolated() {
		return nil
	}
	return unix.Mount("tmpfs", s.dataDir(), "tmpfs", 0, fmt.Sprintf("size=%d,mode=0700", diskSize))
}

// unmountDisk unmounts lazily: agents that are running keep their open files.
func (s *fixture) unmountDisk() {
	if isIsolated() {
		_ = unix.Unmount(s.dataDir(), unix.MNT_DETACH)
	}
}

// diskFaults need mounts of the test.
var diskFaults = []campaign.Fault{{
	Kind: "disk full", Short: true, Holds: []string{"disk"}, Shortest: time.Second, Longest: 8 * time.Second, Inject: hitting(fillDisk),
}}

// fillDisk fills the file system of artifacts and workspaces.
func fillDisk(_ context.Context, on *target) (campaign.Heal, error) {
	path := filepath.Join(on.dataDir(), "filler")
	filler, err := os.OpenFile(path, os.O_CREATE|os.O_WRONLY, 0o600)
	if err != nil {
		return nil, err
	}
	heal := func(context.Context) error { return os.Remove(path) }
	block := make([]byte, 1<<20)
	for err == nil {
		_, err = filler.Write(block)
	}
	// Less than a block may remain free.
	err = errors.Join(ignoreFull(err), filler.Close())
	return heal, err
}

func ignoreFull(err error) error {
	if errors.Is(err, unix.ENOSPC) {
		return nil
	}
	return err
}
