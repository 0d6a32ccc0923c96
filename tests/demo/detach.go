package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"syscall"

	"golang.org/x/sys/unix"
)

// readyFD is the file descriptor on which the process in the background says that the show is over and went well.
const readyFD = 3

// detach runs the demo in a process of its own that goes on after the show, and returns when the show is over.
func detach(ctx context.Context) error {
	ready, theirReady, err := os.Pipe()
	if err != nil {
		return fmt.Errorf("create a pipe: %w", err)
	}
	defer func() { _ = ready.Close() }()
	cmd := exec.Command("/proc/self/exe", "-detached")
	cmd.Args[0] = "demo"
	cmd.Stdout, cmd.Stderr = os.Stdout, os.Stderr
	cmd.ExtraFiles = []*os.File{theirReady}
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true} // neither Ctrl-C nor the end of the terminal reach it
	if err := cmd.Start(); err != nil {
		return errors.Join(fmt.Errorf("start the demo in the background: %w", err), theirReady.Close())
	}
	_ = theirReady.Close() // only the other process writes
	stop := context.AfterFunc(ctx, func() { _ = cmd.Process.Signal(syscall.SIGTERM) })
	defer stop()
	if message, err := io.ReadAll(ready); err == nil && len(message) > 0 {
		return nil
	}
	if err := cmd.Wait(); err != nil {
		return fmt.Errorf("the demo did not get to its end: %w", err)
	}
	return nil
}

// runDetached shows everything and then waits, without a terminal, until it is told to end.
func runDetached(ctx context.Context) error {
	syscall.CloseOnExec(readyFD)
	d, err := newDemo(os.Stdout)
	if err != nil {
		return err
	}
	if err := d.show(ctx); err != nil {
		return d.stop(err)
	}
	d.plain(d.invitation())
	if err := d.letGo(); err != nil {
		return d.stop(err)
	}
	<-ctx.Done()
	return d.stop(nil)
}

// letGo tells the process in the foreground that the show is over, and gives up its output, which may be a pipe whose
// reader waits for the end.
func (d *demo) letGo() error {
	log, err := os.OpenFile(filepath.Join(d.record.Dir, "demo.log"), os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		return fmt.Errorf("open the demo's log: %w", err)
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
