package main

import (
	"errors"
	"flag"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"syscall"

	"golang.org/x/sys/unix"
)

// workspaceMode lets the containers of a pod, each of which may run as another user, put files into the workspace. Files
// get the group of the volume, where it has one.
const workspaceMode = 0o777 | os.ModeSetgid

// install copies this program to a volume, from which the container with the user's image starts it, and creates the directory for programs
// that are not delivered. It may run again over its earlier results. It writes nowhere else.
func install(args []string, out io.Writer) error {
	var to, workspace string
	flags := flag.NewFlagSet("agent install", flag.ContinueOnError)
	flags.SetOutput(out)
	flags.StringVar(&to, "to", "", "File that becomes a copy of this program.")
	flags.StringVar(&workspace, "workspace", "", "Directory to create, for programs that are not delivered.")
	if err := flags.Parse(args); err != nil {
		return err
	}
	switch {
	case flags.NArg() > 0:
		return fmt.Errorf("unexpected argument %q", flags.Arg(0))
	case to == "":
		return errors.New("--to is required")
	}
	if err := copySelf(filepath.Clean(to)); err != nil {
		return fmt.Errorf("install the agent as %s: %w", to, err)
	}
	if workspace != "" {
		if err := makeWorkspace(filepath.Clean(workspace)); err != nil {
			return fmt.Errorf("create the workspace %s: %w", workspace, err)
		}
	}
	_, err := fmt.Fprintf(out, "installed agent %s as %s\n", version, to)
	return err
}

// copySelf replaces the file by a copy of the running program, in one step: a program that runs from the file continues.
func copySelf(to string) (err error) {
	source, err := os.Open("/proc/self/exe")
	if err != nil {
		return err
	}
	defer source.Close()
	partial := to + ".part"
	if err := os.Remove(partial); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	target, err := os.OpenFile(partial, os.O_WRONLY|os.O_CREATE|os.O_EXCL|syscall.O_NOFOLLOW, 0o600)
	if err != nil {
		return err
	}
	defer func() {
		if err != nil {
			err = errors.Join(err, os.Remove(partial))
		}
	}()
	_, err = io.Copy(target, source)
	// Chmod sets the mode independently of the umask.
	if err = errors.Join(err, target.Chmod(0o755), target.Close()); err != nil {
		return err
	}
	return os.Rename(partial, to)
}

// makeWorkspace creates the directory. It leaves another user's directory, or the agent's link, as it is.
func makeWorkspace(path string) error {
	err := os.Mkdir(path, 0o777)
	if err != nil && !errors.Is(err, fs.ErrExist) {
		return err
	}
	info, err := os.Lstat(path)
	if err != nil {
		return err
	}
	switch {
	case info.Mode().Type() == fs.ModeSymlink:
		return nil
	case !info.IsDir():
		return errors.New("there is something that is not a directory")
	}
	if owner, ok := info.Sys().(*syscall.Stat_t); ok && int(owner.Uid) != os.Geteuid() {
		return nil
	}
	return os.Chmod(path, workspaceMode)
}

// takeWorkspace creates the directory if no init container did. A container runtime that finds no working directory creates one that only
// root may write to.
func takeWorkspace(path string) error {
	if unix.Access(path, unix.W_OK) == nil {
		return nil
	}
	if err := os.Remove(path); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil // the directory has files, or cannot be removed: operations report what they cannot do
	}
	return makeWorkspace(path)
}
