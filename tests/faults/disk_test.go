package faults_test

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

const (
	// mountsVariable in the environment tells that the process has mounts of its own.
	mountsVariable = "STACK_CONTROLLER_TEST_MOUNTS"
	// diskSize is enough for what a few Stacks need, and filled in no time, in bytes.
	diskSize = 256 << 20
)

// ownMounts starts this executable anew with mounts of its own, where it may: they end with the last process in there, whatever
// ends it. Otherwise it goes on as it is.
func ownMounts() {
	if os.Getenv(mountsVariable) != "" || os.Geteuid() != 0 {
		return
	}
	runtime.LockOSThread() // what is unshared belongs to the thread, which the new executable takes over
	if unix.Unshare(unix.CLONE_NEWNS) != nil || unix.Mount("none", "/", "", unix.MS_REC|unix.MS_PRIVATE, "") != nil {
		runtime.UnlockOSThread()
		return
	}
	err := syscall.Exec("/proc/self/exe", os.Args, append(os.Environ(), mountsVariable+"=1"))
	fmt.Fprintln(os.Stderr, "start with mounts of its own:", err)
	os.Exit(1)
}

func hasOwnMounts() bool { return os.Getenv(mountsVariable) != "" }

func (s *scene) dataDir() string { return filepath.Join(s.system.Dir, "data") }

// mountDisk gives the artifacts and the workspaces a small file system of their own, where that is possible.
func (s *scene) mountDisk() error {
	if !hasOwnMounts() {
		return nil
	}
	return unix.Mount("tmpfs", s.dataDir(), "tmpfs", 0, fmt.Sprintf("size=%d,mode=0700", diskSize))
}

// unmountDisk lets agents that still run keep what they have open.
func (s *scene) unmountDisk() {
	if hasOwnMounts() {
		_ = unix.Unmount(s.dataDir(), unix.MNT_DETACH)
	}
}

var diskFaults = []fault{
	{
		kind: "disk full", short: true, holds: []string{"disk"}, shortest: time.Second, longest: 8 * time.Second,
		needsMounts: true, inject: fillDisk,
	},
}

// fillDisk leaves no space where artifacts and workspaces are.
func fillDisk(_ context.Context, on *target) (func(context.Context) error, error) {
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
	// What is less than a block is for those who come first.
	err = errors.Join(ignoreFull(err), filler.Close())
	return heal, err
}

func ignoreFull(err error) error {
	if errors.Is(err, unix.ENOSPC) {
		return nil
	}
	return err
}
