package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"log/slog"
	"os"
	"runtime/debug"
	"time"

	"github.com/go-logr/logr"
	"google.golang.org/grpc"

	"github.com/stack-controller/stack-controller/internal/agent/operation"
	"github.com/stack-controller/stack-controller/internal/agent/server"
	"github.com/stack-controller/stack-controller/internal/source/artifact/archive"
)

// lockTimeout is how long the agent waits until an earlier agent of the same directory has ended.
const lockTimeout = 15 * time.Second

// config is the command line of agent serve.
type config struct {
	listen    string
	dir       string
	workspace string
	localRoot string
	// sourceMounts are paths in the source to which something is mounted.
	sourceMounts []string
	logLevel     slog.Level
	idleTimeout  time.Duration
	// terminationGrace is the grace period of the pod; 0 when there is none.
	terminationGrace time.Duration
	limits           archive.Limits
	operation        operation.Options
	access           access
	// environmentFile is the path of a file with environment variables to set; empty for none.
	environmentFile string
}

func parseFlags(args []string, out io.Writer) (config, error) {
	var c config
	flags := flag.NewFlagSet("agent serve", flag.ContinueOnError)
	flags.SetOutput(out)
	flags.StringVar(&c.listen, "listen", "", "Address to serve on: unix:/path/agent.sock or host:port; one that other machines can reach needs TLS and authorisation.")
	flags.StringVar(&c.dir, "dir", "", "Directory for all that outlives the agent; it belongs to one agent.")
	flags.StringVar(&c.workspace, "workspace", ".", "Directory of programs that are not delivered.")
	flags.StringVar(&c.localRoot, "local-root", "", "Root of programs that are not delivered and have an absolute directory; empty refuses those.")
	flags.Func("source-mount", "A path in each source that leads to the same path in the directory mounts of --dir; may be repeated.", func(path string) error {
		c.sourceMounts = append(c.sourceMounts, path)
		return nil
	})
	flags.StringVar(&c.operation.Pulumi, "pulumi", "pulumi", "The pulumi CLI.")
	flags.BoolVar(&c.operation.ExclusiveHost, "exclusive-host", false, "Nobody else runs pulumi under this host name.")
	flags.DurationVar(&c.idleTimeout, "idle-timeout", 0, "Exit after this long without a call and without an operation; 0 means never.")
	flags.DurationVar(&c.terminationGrace, "termination-grace", 0, "How long after SIGTERM the agent is killed, as the grace period of its pod; 0 means never.")
	flags.TextVar(&c.logLevel, "log-level", slog.LevelInfo, "The least level that is logged: debug, info, warn, error.")
	defaults := archive.Limits{}.WithDefaults()
	flags.Int64Var(&c.limits.MaxDownloadSize, "max-source-size", defaults.MaxDownloadSize, "Largest archive that is accepted, in bytes.")
	flags.Int64Var(&c.limits.MaxUnpackedSize, "max-unpacked-size", defaults.MaxUnpackedSize, "Largest content of an archive, in bytes.")
	flags.IntVar(&c.limits.MaxEntries, "max-entries", defaults.MaxEntries, "Most files and directories in an archive.")
	flags.StringVar(&c.environmentFile, "env-file", "", "File of environment variables, KEY=VALUE per line; those that are set already win.")
	c.access.bind(flags)
	if err := flags.Parse(args); err != nil {
		return config{}, err
	}
	return c, c.validate(flags)
}

func (c *config) validate(flags *flag.FlagSet) error {
	switch {
	case flags.NArg() > 0:
		return fmt.Errorf("unexpected argument %q", flags.Arg(0))
	case c.listen == "" || c.dir == "":
		return errors.New("--listen and --dir are required")
	case c.idleTimeout < 0:
		return errors.New("--idle-timeout is negative")
	case c.terminationGrace < 0:
		return errors.New("--termination-grace is negative")
	case c.limits.MaxDownloadSize <= 0 || c.limits.MaxUnpackedSize <= 0 || c.limits.MaxEntries <= 0:
		return errors.New("--max-source-size, --max-unpacked-size and --max-entries have to be positive")
	}
	if err := server.CheckAddress(c.listen); err != nil {
		return err
	}
	return c.access.validate(c.listen)
}

// prepare sets up the process and returns the options that protect the agent's address. It reads the address of the API server before it
// sets the variables of the file, which programs of the user may have written.
func prepare(c *config, log *slog.Logger) ([]grpc.ServerOption, error) {
	access, err := c.access.options(log)
	if err != nil {
		return nil, err
	}
	if err := limitMemory(); err != nil {
		return nil, err
	}
	if c.environmentFile == "" {
		return access, nil
	}
	c.operation.Secrets, err = loadEnvironment(c.environmentFile)
	return access, err
}

// serve runs the agent until ctx is done or the agent is idle.
func serve(ctx context.Context, c config, out io.Writer) error {
	ctx, release := untilSignal(ctx)
	defer release()
	log := slog.New(slog.NewJSONHandler(out, &slog.HandlerOptions{Level: c.logLevel}))
	access, err := prepare(&c, log)
	if err != nil {
		return err
	}
	waiting, cancel := context.WithTimeout(ctx, lockTimeout)
	defer cancel()
	unlock, err := server.Lock(waiting, c.dir)
	if err != nil {
		return err
	}
	// Unlocking comes last: the socket must not be removed while the next agent already uses it.
	defer unlock()
	c.operation.Home = server.Home(c.dir)
	c.operation.Environ = os.Environ()
	if server.Shared(c.dir, c.workspace) {
		c.operation.Workspace = c.workspace
		if err := takeWorkspace(c.workspace); err != nil {
			return fmt.Errorf("create the workspace %s: %w", c.workspace, err)
		}
	}
	c.operation.Log = logr.FromSlogHandler(log.Handler())
	runner, err := operation.New(ctx, c.operation)
	if err != nil {
		return err
	}
	// Listening comes last, so that a client that connects gets an answer: a pod is ready when its port is open, and the steps before take
	// seconds, or fail.
	listener, err := server.Listen(c.listen)
	if err != nil {
		return err
	}
	defer listener.Close()
	agent, err := server.New(server.Options{
		Dir: c.dir, Workspace: c.workspace, LocalRoot: c.localRoot, SourceMounts: c.sourceMounts, Runner: runner, Limits: c.limits, Version: version, Log: log,
		GRPC: access, IdleTimeout: c.idleTimeout, TerminationGrace: c.terminationGrace,
	})
	if err != nil {
		return err
	}
	defer agent.Close()
	// The start leaves garbage that an idle agent would keep for minutes.
	debug.FreeOSMemory()
	log.Info("agent serves", "address", c.listen, "version", version, "pulumi", runner.Version())
	if err := agent.Serve(ctx, listener); err != nil && !errors.Is(err, server.ErrIdle) {
		return err
	}
	log.Info("agent ends")
	return nil
}
