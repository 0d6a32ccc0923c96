package leftovers

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/stack-controller/stack-controller/internal/procfs"
)

// grace is how long processes may take to end regularly: a supervisor ends its servers and removes its files.
const grace = 15 * time.Second

// Sweep removes what is left of every process that has a record and no longer runs, and reports it. It leaves everything alone that belongs
// to running processes.
func Sweep(out io.Writer) error { return sweep(out, grace) }

func sweep(out io.Writer, grace time.Duration) error {
	for {
		left, err := Records("", false)
		if err != nil || len(left) == 0 {
			return err
		}
		// Ending the processes of a run may leave the records of its supervisors behind.
		for _, r := range left {
			if err := r.sweep(grace); err != nil {
				return fmt.Errorf("remove what process %d left: %w", r.Process.PID, err)
			}
			_, _ = fmt.Fprintf(out, "removed what process %d left: %s\n", r.Process.PID, strings.Join(append(r.Directories, r.Cgroups...), ", "))
		}
	}
}

func (r *Record) sweep(grace time.Duration) error {
	asked := map[procfs.Identity]bool{}
	for begin := time.Now(); ; time.Sleep(poll) {
		left, err := r.processes()
		if err != nil {
			return err
		}
		if len(left) == 0 {
			return r.Remove()
		}
		late := time.Since(begin) > grace
		if late && time.Since(begin) > 2*grace {
			return fmt.Errorf("processes that do not end: %v", left)
		}
		for _, process := range left {
			// An error means that the process has ended, or that it belongs to another user, who has to end it.
			switch {
			case late:
				_ = process.Signal(syscall.SIGKILL)
			case !asked[process]:
				asked[process] = true
				_ = process.Signal(syscall.SIGTERM)
			}
		}
	}
}

// processes returns the running processes that the recorded process was responsible for, except for those in pods, which are found by their
// cgroup.
func (r *Record) processes() (found []procfs.Identity, err error) {
	pids, err := procfs.IDs()
	if err != nil {
		return nil, err
	}
	for _, pid := range pids {
		// The identity is taken before the check, so that no signal reaches a process that got the id later.
		process, err := procfs.Identify(pid)
		if err != nil || pid == os.Getpid() || !r.answersFor(pid) {
			continue
		}
		if running, err := process.Running(); err == nil && running {
			found = append(found, process)
		}
	}
	return found, nil
}

// answersFor reports whether the process belongs to the record: its environment names the record, or its output or its HOME, TMPDIR or
// PULUMI_HOME is in one of the directories. The latter is for agents and the programs that they run, which get an environment of their own.
// A process that merely works in one of the directories does not belong to the record.
func (r *Record) answersFor(pid int) bool {
	proc := filepath.Join("/proc", strconv.Itoa(pid))
	for _, output := range []string{"1", "2"} {
		if target, err := os.Readlink(filepath.Join(proc, "fd", output)); err == nil && r.has(target) {
			return true
		}
	}
	environment, _ := os.ReadFile(filepath.Join(proc, "environ")) // empty for a process that has ended, or that belongs to another user
	for entry := range strings.SplitSeq(string(environment), "\x00") {
		if entry == r.Environment() {
			return true
		}
		switch name, value, _ := strings.Cut(entry, "="); name {
		case "HOME", "TMPDIR", "PULUMI_HOME":
			if r.has(value) {
				return true
			}
		}
	}
	return false
}

// CgroupPaths returns the directories of the named cgroup, one in each mounted hierarchy, whether they exist or not.
func CgroupPaths(name string) ([]string, error) {
	mounts, err := os.ReadFile("/proc/self/mounts")
	if err != nil {
		return nil, fmt.Errorf("find the cgroup hierarchies: %w", err)
	}
	var paths []string
	for line := range bytes.Lines(mounts) {
		fields := strings.Fields(string(line))
		if len(fields) > 3 && (fields[2] == "cgroup" || fields[2] == "cgroup2") {
			paths = append(paths, filepath.Join(fields[1], name))
		}
	}
	return paths, nil
}

// KillCgroup kills every process in the named cgroup and in the cgroups below it, in all hierarchies.
func KillCgroup(name string) error {
	paths, err := CgroupPaths(name)
	for _, path := range paths {
		killCgroup(path)
	}
	return err
}

// endCgroup kills the processes in the named cgroup, and removes it with the cgroups below it. A killed process leaves its cgroup a moment
// after its end.
func endCgroup(name string) error {
	paths, err := CgroupPaths(name)
	if err != nil {
		return err
	}
	for _, path := range paths {
		err := removeCgroup(path)
		for deadline := time.Now().Add(endPatience); err != nil && time.Now().Before(deadline); err = removeCgroup(path) {
			killCgroup(path)
			time.Sleep(poll)
		}
		if err != nil {
			return fmt.Errorf("remove a cgroup: %w", err)
		}
	}
	return nil
}

// killCgroup kills every process in the directory of a cgroup, and in those below it.
func killCgroup(path string) {
	_ = filepath.WalkDir(path, func(path string, entry fs.DirEntry, err error) error {
		if err != nil || !entry.IsDir() {
			return nil //nolint:nilerr // what is not there has no processes
		}
		processes, err := os.ReadFile(filepath.Join(path, "cgroup.procs"))
		if err != nil {
			return nil //nolint:nilerr // as above
		}
		for process := range bytes.FieldsSeq(processes) {
			if pid, err := strconv.Atoi(string(process)); err == nil && pid > 1 {
				_ = syscall.Kill(pid, syscall.SIGKILL)
			}
		}
		return nil
	})
}

// removeCgroup removes the directory of a cgroup and those below it. It returns an error while there are processes in them.
func removeCgroup(path string) error {
	entries, err := os.ReadDir(path)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	for _, entry := range entries {
		if !entry.IsDir() {
			continue // files of the kernel, which go with the directory
		}
		if err := removeCgroup(filepath.Join(path, entry.Name())); err != nil {
			return err
		}
	}
	if err := syscall.Rmdir(path); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return &os.PathError{Op: "rmdir", Path: path, Err: err}
	}
	return nil
}
