package server

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"time"
)

const (
	// maxSocketPath is the maximum length in bytes of the path of a unix socket on Linux.
	maxSocketPath = 107
	// lockName is the name of the lock file.
	lockName = "agent.lock"
	// homeName is pulumi's directory, see Home.
	homeName = "home"
	// lockInterval is how often a lock that is held is tried again.
	lockInterval = 50 * time.Millisecond
)

// Listen opens the address, "unix:/path/agent.sock" or "host:port". Only this user can connect to the socket. Listen replaces a socket that
// an earlier agent left. Call it while nothing else creates files, because it changes the umask for a moment.
func Listen(address string) (net.Listener, error) {
	socket, isUnix := strings.CutPrefix(address, "unix:")
	if !isUnix {
		listener, err := net.Listen("tcp", address)
		if err != nil {
			return nil, fmt.Errorf("listen on %s: %w", address, err)
		}
		return listener, nil
	}
	if err := CheckAddress(address); err != nil {
		return nil, err
	}
	socket = filepath.Clean(socket)
	if err := removeAbandoned(socket); err != nil {
		return nil, fmt.Errorf("listen on %s: %w", address, err)
	}
	before := syscall.Umask(0o177)
	listener, err := net.Listen("unix", socket)
	syscall.Umask(before)
	if err != nil {
		return nil, fmt.Errorf("listen on %s: %w", address, err)
	}
	return listener, nil
}

// CheckAddress returns an error for the path of a unix socket on which Listen can never succeed.
func CheckAddress(address string) error {
	socket, isUnix := strings.CutPrefix(address, "unix:")
	if !isUnix {
		return nil
	}
	socket = filepath.Clean(socket)
	if !filepath.IsAbs(socket) {
		return fmt.Errorf("listen on %s: the path of the socket is not absolute", address)
	}
	if len(socket) > maxSocketPath {
		return fmt.Errorf("listen on %s: the path of the socket has %d bytes, more than the %d that the system allows", address, len(socket), maxSocketPath)
	}
	return nil
}

// removeAbandoned removes a socket on which no process listens.
func removeAbandoned(socket string) error {
	info, err := os.Lstat(socket)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	if info.Mode().Type() != fs.ModeSocket {
		return errors.New("there is something that is not a socket")
	}
	connection, err := net.DialTimeout("unix", socket, time.Second)
	if err == nil {
		_ = connection.Close()
		return errors.New("another process listens there")
	}
	if !errors.Is(err, syscall.ECONNREFUSED) {
		return err
	}
	return os.Remove(socket)
}

// Lock makes the process the only agent of the directory, and returns the function that ends this. It creates the directory if there is
// none. Without the lock, two agents of one directory would declare each other's operations interrupted. Lock waits for an agent that is
// stopping until ctx is done. The kernel releases the lock when the process ends, however it ends.
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
