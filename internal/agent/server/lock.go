package server

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"syscall"
	"time"
)

// lockName is the file that the lock is on.
const lockName = "agent.lock"

// homeName is pulumi's directory, see Home.
const homeName = "home"

// lockInterval is how often a lock that is held is tried again.
const lockInterval = 50 * time.Millisecond

// Lock makes the process the only agent of the directory, which it creates when there is none, and returns what ends that.
// Two agents of one directory would declare each other's operations interrupted. It waits for an agent that is
// stopping until ctx ends. The kernel drops the lock with the process, however that ends.
func Lock(ctx context.Context, dir string) (unlock func(), err error) {
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return nil, fmt.Errorf("create the directory of the agent: %w", err)
	}
	file, err := os.OpenFile(filepath.Join(dir, lockName), os.O_RDWR|os.O_CREATE|syscall.O_NOFOLLOW|syscall.O_NONBLOCK, 0o600)
	if err != nil {
		return nil, fmt.Errorf("lock the directory of the agent: %w", err)
	}
	for {
		err := syscall.Flock(int(file.Fd()), syscall.LOCK_EX|syscall.LOCK_NB)
		if err == nil {
			return func() { _ = file.Close() }, nil
		}
		if !errors.Is(err, syscall.EWOULDBLOCK) && !errors.Is(err, syscall.EINTR) {
			return nil, errors.Join(fmt.Errorf("lock the directory of the agent: %w", err), file.Close())
		}
		select {
		case <-time.After(lockInterval):
		case <-ctx.Done():
			return nil, errors.Join(fmt.Errorf("directory %s has another agent", dir), file.Close())
		}
	}
}

// Home is the directory for pulumi in the directory of an agent.
func Home(dir string) string {
	return filepath.Join(dir, homeName)
}
