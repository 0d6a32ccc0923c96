// Package process runs the agents of workspaces as child processes of the controller, each reached over a unix socket in
// a directory of its own.
//
// Agents outlive the controller. A process is the leader of a session of its own and writes to files only, so that the end of
// the controller does not touch it; the next controller finds it through the record in the directory, by process id and
// start time. A lock on the directory orders controllers that are there at the same time: it is held while an agent is
// started or a directory removed, and a record says who runs, so that there is never a second agent in a directory.
//
// An agent without work ends by itself and is started again by Connect; a workspace whose agent rests costs a directory
// and nothing else. An agent that crashes is started again with a growing delay.
//
// The package needs Linux 5.3 or later (process file descriptors).
package process

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"time"

	"github.com/go-logr/logr"
	"golang.org/x/sys/unix"
	"k8s.io/apimachinery/pkg/types"
)

// IdentityWarning is what a controller that uses this runtime has to say when it starts.
const IdentityWarning = "the process runtime runs Pulumi programs as child processes of the controller, with its operating system user, its files and its network: " +
	"use it only where everybody who can create a Stack may have the rights of the controller"

const (
	// DefaultIdleTimeout is how long an agent waits for work before it ends.
	DefaultIdleTimeout = 5 * time.Minute
	// DefaultStopGrace is how long an agent may take to end: it lets pulumi finish what it has begun.
	DefaultStopGrace = 5 * time.Minute
	// DefaultStartTimeout is how long an agent may take to listen.
	DefaultStartTimeout = 30 * time.Second
)

// Options configure a Runtime.
type Options struct {
	// Dir holds the directories of the workspaces. It is created with mode 0700 when it is missing, has to be on a local file system, and
	// its absolute path may have at most 84 bytes, for a unix socket in it has to fit into 107.
	Dir string
	// AgentPath is the agent's executable.
	AgentPath string
	// PulumiPath is the pulumi CLI: a path, or a name to find in PATH.
	PulumiPath string
	// AgentArgs are more arguments for the agent, for example its limits.
	AgentArgs []string
	// ExtraPath are directories that come first in the PATH of the agents.
	ExtraPath []string
	// Environ are names of environment variables of the controller that the agents, and so the programs, get too. They get
	// nothing else of its environment but PATH, LANG, TZ and USER.
	Environ []string
	// IdleTimeout is how long an agent waits for work before it ends by itself; DefaultIdleTimeout when zero.
	IdleTimeout time.Duration
	// StopGrace is how long an agent that was told to end may take before it is killed; DefaultStopGrace when zero.
	StopGrace time.Duration
	// StartTimeout is how long an agent may take until it listens; DefaultStartTimeout when zero.
	StartTimeout time.Duration
	// Exists tells whether there is a Workspace with this name and UID. Directories of others are removed at the start. Nil keeps all.
	Exists func(ctx context.Context, key types.NamespacedName, uid types.UID) (bool, error)
	// Log receives what happens to the agents.
	Log logr.Logger
}

// complete fills in defaults, makes the paths absolute and tells what cannot work.
func (o Options) complete() (Options, error) {
	if o.IdleTimeout == 0 {
		o.IdleTimeout = DefaultIdleTimeout
	}
	if o.StopGrace == 0 {
		o.StopGrace = DefaultStopGrace
	}
	if o.StartTimeout == 0 {
		o.StartTimeout = DefaultStartTimeout
	}
	if o.Dir == "" {
		return o, errors.New("no directory for the workspaces is set")
	}
	var err error
	if o.Dir, err = filepath.Abs(o.Dir); err != nil {
		return o, fmt.Errorf("find the absolute path of %s: %w", o.Dir, err)
	}
	if o.AgentPath, err = executable(o.AgentPath); err != nil {
		return o, fmt.Errorf("find the agent: %w", err)
	}
	if o.PulumiPath, err = executable(o.PulumiPath); err != nil {
		return o, fmt.Errorf("find the pulumi CLI: %w", err)
	}
	socket := directory{path: filepath.Join(o.Dir, directoryName(types.NamespacedName{}))}.socket()
	if excess := len(socket) - maxSocketPath; excess > 0 {
		return o, fmt.Errorf("the directory for the workspaces, %s, is %d bytes too long: a unix socket in it must have a path of at most %d bytes",
			o.Dir, excess, maxSocketPath)
	}
	return o, checkKernel()
}

// passedOn are the values of the variables in Environ.
func (o Options) passedOn() []string {
	var values []string
	for _, name := range o.Environ {
		if value := os.Getenv(name); value != "" {
			values = append(values, value)
		}
	}
	return values
}

// executable returns the absolute path of a program that is named by path or found in PATH.
func executable(name string) (string, error) {
	if name == "" {
		return "", errors.New("no path is set")
	}
	path, err := exec.LookPath(name)
	if err != nil {
		return "", err
	}
	return filepath.Abs(path)
}

// checkKernel makes sure that process file descriptors are there.
func checkKernel() error {
	fd, err := unix.PidfdOpen(os.Getpid(), 0)
	if err != nil {
		return fmt.Errorf("the process runtime needs process file descriptors (Linux 5.3 or later): %w", err)
	}
	return unix.Close(fd)
}
