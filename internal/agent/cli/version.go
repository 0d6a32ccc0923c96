package cli

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/blang/semver"
	"golang.org/x/sys/unix"

	"github.com/stack-controller/stack-controller/internal/file"
)

const (
	// versionTimeout bounds `pulumi version`, which takes 0.2 s, and seconds on a busy node.
	versionTimeout = time.Minute
	// maxVersionNote bounds, in bytes, what is read of the note with the version. Programs could overwrite the note.
	maxVersionNote = 16 << 10
)

// versionNote is the version of the CLI that an agent records for later agents in the same directory.
type versionNote struct {
	// Program is the identity of the CLI's file.
	Program string `json:"program"`
	Version string `json:"version"`
}

// ReadVersion determines the version of the CLI: with `pulumi version`, or from the note in the file if an earlier agent wrote it for the
// same program. With many Stacks, the process runtime starts an agent again for a commit, and 0.14 s of processor time would then be a
// fifth of the cost of a commit. The caller has to check with Problem whether operations can run with the version.
func (c *CLI) ReadVersion(ctx context.Context, note, dir string, env Environment) error {
	program := identity(c.Path)
	if c.Version = readNote(note, program); c.Version.NE(semver.Version{}) {
		return nil
	}
	ctx, cancel := context.WithTimeout(ctx, versionTimeout)
	defer cancel()
	result, err := c.Run(ctx, &Invocation{Args: []string{"version"}, Dir: dir, Env: env})
	if err != nil {
		return fmt.Errorf("run `%s version`: %w", c.Path, err)
	}
	if result.Code != 0 {
		return fmt.Errorf("run `%s version`: exit code %d: %s", c.Path, result.Code, strings.ReplaceAll(LastLines(result.Stderr, 3), "\n", "; "))
	}
	if c.Version, err = semver.ParseTolerant(strings.TrimSpace(result.Stdout)); err != nil {
		return fmt.Errorf("the pulumi CLI %s has no usable version: %w", c.Path, err)
	}
	if err := writeNote(note, versionNote{Program: program, Version: c.Version.String()}); err != nil {
		c.log.Error(err, "the next agent has to run pulumi for its version")
	}
	return nil
}

// identity identifies the file of a program: another file, or other content, has another identity. It is empty for a file that may choose
// to start another program: a script, or the shim of a version manager, which is a program with another name.
func identity(path string) string {
	path, err := filepath.EvalSymlinks(path)
	if err != nil || !strings.HasPrefix(filepath.Base(path), "pulumi") {
		return ""
	}
	program, err := os.Open(path)
	if err != nil {
		return ""
	}
	defer program.Close()
	var stat unix.Stat_t
	start := make([]byte, 2)
	if _, err := program.ReadAt(start, 0); err != nil || string(start) == "#!" || unix.Fstat(int(program.Fd()), &stat) != nil {
		return ""
	}
	return fmt.Sprintf("%s device=%d inode=%d size=%d modified=%d changed=%d", path, stat.Dev, stat.Ino, stat.Size, stat.Mtim.Nano(), stat.Ctim.Nano())
}

// readNote returns the version in the note if the note is about the program, and the zero version otherwise.
func readNote(path, program string) semver.Version {
	content, err := file.Read(path, maxVersionNote)
	if err != nil || program == "" {
		return semver.Version{}
	}
	var note versionNote
	if json.Unmarshal(content, &note) != nil || note.Program != program {
		return semver.Version{}
	}
	version, err := semver.Parse(note.Version)
	if err != nil {
		return semver.Version{}
	}
	return version
}

// writeNote writes the note. It does not write a note about a program without an identity, which would never be read.
func writeNote(path string, note versionNote) error {
	if note.Program == "" {
		return nil
	}
	content, err := json.Marshal(note)
	if err == nil {
		err = file.Write(path, content)
	}
	if err != nil {
		return fmt.Errorf("note pulumi's version: %w", err)
	}
	return nil
}
