package controlplane

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/stack-controller/stack-controller/tests/framework/supervise"
)

const (
	// portAttempts is how often a server is started if another process takes its port between the choice of the port and the bind.
	portAttempts = 3
	pollInterval = 25 * time.Millisecond
	// tailLines is how many lines of a failed server's log an error shows.
	tailLines = 25
	// tailWidth is how many bytes of a line an error shows; a stack trace in JSON has thousands.
	tailWidth = 600
)

// launch is one attempt to start a server, on ports that have just been chosen.
type launch struct {
	args []string
	env  []string
	// ready returns nil once the server serves.
	ready func(context.Context) error
}

// Server is a program that runs beside the control plane, in the same network, and ends with it.
type Server struct {
	// Name is the name in errors, and the name of the log and of the working directory.
	Name string
	// Path is the executable.
	Path string
	// Args are its arguments.
	Args []string
	// Env is added to HOME, TMPDIR and PATH. The program gets no other variables.
	Env []string
	// Ready returns nil once the program is ready.
	Ready func(context.Context) error
}

// StartServer starts a program and returns when it is ready.
func (cp *ControlPlane) StartServer(ctx context.Context, server Server) (*supervise.Process, error) {
	return cp.run(ctx, server.Name, server.Path, func() (launch, error) {
		return launch{args: server.Args, env: server.Env, ready: server.Ready}, nil
	})
}

// startServer starts the named tool and waits until it is ready.
func (cp *ControlPlane) startServer(ctx context.Context, name string, prepare func() (launch, error)) error {
	path, err := cp.tool(ctx, name)
	if err != nil {
		return err
	}
	_, err = cp.run(ctx, name, path, prepare)
	return err
}

// run starts a program and waits until it is ready. Its working directory has the name of the program, and also holds its temporary files.
func (cp *ControlPlane) run(ctx context.Context, name, path string, prepare func() (launch, error)) (*supervise.Process, error) {
	dir := filepath.Join(cp.Dir, name)
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return nil, fmt.Errorf("create the directory of %s: %w", name, err)
	}
	start := time.Now()
	for attempt := 1; ; attempt++ {
		l, err := prepare()
		if err != nil {
			return nil, err
		}
		program, args := cp.network.Enter(path, l.args)
		process, err := cp.supervisor.Run(supervise.Command{
			Name: name,
			Path: program,
			Args: args,
			Env:  environment(dir, l.env),
			Dir:  dir,
			Log:  cp.LogPath(name),
		})
		if err != nil {
			return nil, err
		}
		err = awaitReady(ctx, process, l.ready)
		if err == nil {
			cp.logln(fmt.Sprintf("%s serves after %s", name, time.Since(start).Round(100*time.Millisecond)))
			return process, nil
		}
		err = errors.Join(err, process.Stop(0))
		tail := Tail(cp.LogPath(name), tailLines)
		if attempt < portAttempts && strings.Contains(tail, "address already in use") {
			continue
		}
		return nil, fmt.Errorf("start %s: %w\nthe last lines of its log:\n%s", name, err, tail)
	}
}

// environment returns the whole environment of a server: its own directory, PATH, and the additional variables, which take precedence. No
// variable of the developer's environment (proxies, cloud credentials, PULUMI_…) is passed on.
func environment(dir string, more []string) []string {
	variables := []string{"HOME=" + dir, "TMPDIR=" + dir, "PATH=" + os.Getenv("PATH")}
	overridden := func(variable string) bool {
		name, _, _ := strings.Cut(variable, "=")
		return slices.ContainsFunc(more, func(other string) bool { return strings.HasPrefix(other, name+"=") })
	}
	return append(slices.DeleteFunc(variables, overridden), more...)
}

// awaitReady polls until the server is ready, has ended, or startTimeout is over.
func awaitReady(ctx context.Context, process *supervise.Process, ready func(context.Context) error) error {
	ctx, cancel := context.WithTimeout(ctx, startTimeout)
	defer cancel()
	ticker := time.NewTicker(pollInterval)
	defer ticker.Stop()
	err := errors.New("not asked yet")
	for {
		select {
		case <-process.Done():
			return fmt.Errorf("it ended: %s", process.Status())
		case <-ctx.Done():
			return fmt.Errorf("it is not ready: %w", errors.Join(context.Cause(ctx), err))
		case <-ticker.C:
			if err = ready(ctx); err == nil {
				return nil
			}
		}
	}
}

// Tail returns the last lines of a file, with long lines cut off, or the reason why it cannot read the file.
func Tail(path string, lines int) string {
	content, err := os.ReadFile(path)
	if err != nil {
		return err.Error()
	}
	all := strings.Split(strings.TrimRight(string(content), "\n"), "\n")
	last := all[max(0, len(all)-lines):]
	for i, line := range last {
		if len(line) > tailWidth {
			last[i] = strings.ToValidUTF8(line[:tailWidth], "") + " …"
		}
	}
	return strings.Join(last, "\n")
}

// Program is a controller that runs beside the control plane and ends with it.
type Program struct {
	// Name is the name in errors, and the name of the log.
	Name string
	// Path is the executable.
	Path string
	// Args returns the arguments for two free addresses, host:port, the first for metrics and the second for health.
	Args func(metrics, health string) []string
	// Env is added to HOME, TMPDIR and PATH. The program gets no other variables.
	Env []string
}

// StartProgram starts a controller and returns when http://HEALTH/readyz answers.
func (cp *ControlPlane) StartProgram(ctx context.Context, program Program) (*supervise.Process, error) {
	return cp.run(ctx, program.Name, program.Path, func() (launch, error) {
		addresses, err := cp.freeAddresses(2)
		if err != nil {
			return launch{}, err
		}
		metrics, health := addresses[0], addresses[1]
		return launch{
			args:  program.Args(metrics, health),
			env:   program.Env,
			ready: cp.AnswersOK("http://" + health + "/readyz"),
		}, nil
	})
}
