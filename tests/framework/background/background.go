// Package background lets a program continue in a background process after its output is complete: a demo or a cluster that keeps running.
package background

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"syscall"

	"golang.org/x/sys/unix"
)

// readyFD is the file descriptor on which the background process reports that it is ready.
const readyFD = 3

// Start runs this program again, with the arguments, in a process that neither Ctrl-C nor the end of the terminal stops. It returns when
// that process calls SignalReady. Until then the process shares the output, and gets SIGTERM when ctx ends. name is the name of the process
// in lists of processes.
func Start(ctx context.Context, name string, args ...string) error {
	ready, theirReady, err := os.Pipe()
	if err != nil {
		return fmt.Errorf("create a pipe: %w", err)
	}
	defer func() { _ = ready.Close() }()
	cmd := exec.Command("/proc/self/exe", args...)
	cmd.Args[0] = name
	cmd.Stdout, cmd.Stderr = os.Stdout, os.Stderr
	cmd.ExtraFiles = []*os.File{theirReady}
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
	if err := cmd.Start(); err != nil {
		return errors.Join(fmt.Errorf("start the %s in the background: %w", name, err), theirReady.Close())
	}
	_ = theirReady.Close() // only the background process writes
	stop := context.AfterFunc(ctx, func() { _ = cmd.Process.Signal(syscall.SIGTERM) })
	defer stop()
	if message, err := io.ReadAll(ready); err == nil && len(message) > 0 {
		return nil
	}
	if err := cmd.Wait(); err != nil {
		return fmt.Errorf("the %s did not get ready: %w", name, err)
	}
	return nil
}

// Enter must be called first in the background process: it makes sure that child processes do not keep the pipe open that Start reads.
func Enter() { syscall.CloseOnExec(readyFD) }

// SignalReady notifies Start that the background process is ready. From then on the output goes to the file, because the old output may be
// a pipe whose reader waits for its end.
func SignalReady(logPath string) error {
	log, err := os.OpenFile(logPath, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		return fmt.Errorf("open the log: %w", err)
	}
	for _, output := range []int{1, 2} {
		if err := unix.Dup3(int(log.Fd()), output, 0); err != nil {
			return fmt.Errorf("redirect the output: %w", err)
		}
	}
	ready := os.NewFile(readyFD, "ready")
	_, err = ready.WriteString("ready")
	return errors.Join(err, ready.Close(), log.Close())
}
