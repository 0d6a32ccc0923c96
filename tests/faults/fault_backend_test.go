package faults_test

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"syscall"
	"time"
)

var backendFaults = []fault{
	{kind: "backend locked by somebody else", shortest: time.Second, longest: 6 * time.Second, inject: lockBackend},
	{kind: "backend empty", short: true, shortest: 3 * time.Second, longest: 6 * time.Second, mayMiss: true,
		holds: []string{theController, theBackend}, inject: emptyBackend},
	{kind: "backend away", short: true, shortest: time.Second, longest: 4 * time.Second, inject: moveBackend},
}

// lockBackend leaves the lock of a process on a machine that nobody knows.
func lockBackend(_ context.Context, on *target) (func(context.Context) error, error) {
	locks := filepath.Join(on.backend(), ".pulumi", "locks", "organization", on.victim().Name, "dev")
	lock := filepath.Join(locks, "5f0cbd17-2b8a-4d4e-9a54-6f4a4c4f6a10.json")
	if err := os.MkdirAll(locks, 0o700); err != nil {
		return nil, err
	}
	content := `{"pid":4242,"username":"somebody","hostname":"elsewhere","timestamp":"` + time.Now().Format(time.RFC3339) + `"}`
	if err := os.WriteFile(lock, []byte(content), 0o600); err != nil {
		return nil, err
	}
	return func(context.Context) error { return os.Remove(lock) }, nil
}

// moveBackend takes the state away, as a network file system that does not answer. A file in its place keeps pulumi from making an
// empty one: it would deploy everything once more.
func moveBackend(_ context.Context, on *target) (func(context.Context) error, error) {
	away := on.backend() + ".away"
	if err := os.Rename(on.backend(), away); err != nil {
		return nil, err
	}
	return func(context.Context) error {
		return errors.Join(os.Remove(on.backend()), os.Rename(away, on.backend()))
	}, os.WriteFile(on.backend(), nil, 0o600)
}

// emptyBackend leaves an empty directory where the state was, as a volume that is not mounted. For pulumi that is a backend without
// stacks. It happens between two operations: what one that runs writes into the empty directory is lost, and nobody could know.
func emptyBackend(ctx context.Context, on *target) (func(context.Context) error, error) {
	process, _ := on.main.current()
	if err := process.Signal(syscall.SIGSTOP); err != nil {
		return nil, err
	}
	for deadline := time.Now().Add(5 * hunt); time.Now().Before(deadline); wait(ctx, pollInterval) {
		if len(on.processes()) == 0 {
			on.hit = true
			break
		}
	}
	if !on.hit {
		return nil, process.Signal(syscall.SIGCONT)
	}
	away := on.backend() + ".away"
	if err := os.Rename(on.backend(), away); err != nil {
		return nil, errors.Join(err, process.Signal(syscall.SIGCONT))
	}
	return func(context.Context) error {
		empty := on.backend() + ".empty"
		return errors.Join(os.Rename(on.backend(), empty), os.Rename(away, on.backend()), os.RemoveAll(empty))
	}, errors.Join(os.Mkdir(on.backend(), 0o700), process.Signal(syscall.SIGCONT))
}
