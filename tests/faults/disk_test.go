package faults_test

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"time"

	"golang.org/x/sys/unix"

	"github.com/stack-controller/stack-controller/tests/faults/campaign"
)

// diskSize is enough for what a few Stacks need, and filled in no time, in bytes.
const diskSize = 256 << 20

func (s *scene) dataDir() string { return filepath.Join(s.system.Dir, "data") }

// mountDisk gives the artifacts and the workspaces a small file system of their own, where that is possible.
func (s *scene) mountDisk() error {
	if !isIsolated() {
		return nil
	}
	return unix.Mount("tmpfs", s.dataDir(), "tmpfs", 0, fmt.Sprintf("size=%d,mode=0700", diskSize))
}

// unmountDisk lets agents that still run keep what they have open.
func (s *scene) unmountDisk() {
	if isIsolated() {
		_ = unix.Unmount(s.dataDir(), unix.MNT_DETACH)
	}
}

// diskFaults need mounts of the test's own.
var diskFaults = []campaign.Fault{{
	Kind: "disk full", Short: true, Holds: []string{"disk"}, Shortest: time.Second, Longest: 8 * time.Second, Inject: hitting(fillDisk),
}}

// fillDisk leaves no space where artifacts and workspaces are.
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
