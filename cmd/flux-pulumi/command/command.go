// Package command has the commands of flux-pulumi. They use the credentials of the user, and can do only what the user may do: they read
// everything from objects, and change objects as kubectl does.
package command

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"golang.org/x/term"
	"k8s.io/cli-runtime/pkg/genericclioptions"

	pulumiv1 "github.com/stack-controller/stack-controller/api/pulumi/v1"
	"github.com/stack-controller/stack-controller/cmd/flux-pulumi/print"
)

// Exit codes, for scripts. Documented in docs/cli.md.
const (
	exitDone = 0
	// exitError is any failure without a code of its own, such as an object that does not exist, a missing right or no connection.
	exitError = 1
	// exitUsage is an invalid command line.
	exitUsage = 2
	// exitNotReady means that the command did its part, but what it waited for failed.
	exitNotReady = 3
	// exitTimeout means that what the command waited for did not happen in time.
	exitTimeout = 4
	// exitInterrupted is the exit code that shells use for SIGINT.
	exitInterrupted = 130
)

// Environment is what a run of the command line gets from outside.
type Environment struct {
	// Version is the version of the program, and Program the name by which it was called.
	Version, Program string
	// ControllerImage and AgentImage are the images of this version. They are empty in a build that belongs to no release.
	ControllerImage, AgentImage string
	In                          io.Reader
	Out, Err                    io.Writer
	Getenv                      func(string) string
	Now                         func() time.Time
}

// failure is an error with an exit code.
type failure struct {
	error
	code int
}

func (f failure) Unwrap() error { return f.error }

// failed returns a failure with the code.
func failed(code int, format string, args ...any) error {
	return failure{error: fmt.Errorf(format, args...), code: code}
}

// session is one run of the command line.
type session struct {
	Environment
	flags *genericclioptions.ConfigFlags
	// out and log print results to the standard output, and steps to the standard error.
	out, log *print.Printer
}

// Main runs the command line and returns its exit code.
func Main(ctx context.Context, env Environment, args []string) int {
	flags := genericclioptions.NewConfigFlags(true)
	flags.CacheDir = nil // nothing is cached
	s := &session{
		Environment: env, flags: flags,
		out: print.New(env.Out, env.Getenv), log: print.New(env.Err, env.Getenv),
	}
	root := s.root()
	root.SetArgs(args)
	err := root.ExecuteContext(ctx)
	if err == nil {
		return exitDone
	}
	code := exitError
	switch known := (failure{}); {
	case ctx.Err() != nil:
		code, err = exitInterrupted, errors.New("interrupted")
	case errors.As(err, &known):
		code = known.code
	}
	s.log.Failure("%s", err)
	return code
}

// invocation is the name of the program as the user typed it.
func invocation(program string) string {
	base := filepath.Base(program)
	for _, host := range []string{"flux", "kubectl"} {
		if strings.HasPrefix(base, host+"-") {
			return host + " pulumi"
		}
	}
	return base
}

func (s *session) root() *cobra.Command {
	name := invocation(s.Program)
	root := &cobra.Command{
		// A shell completes the program, and not the name that is shown.
		Use:   strings.TrimSuffix(filepath.Base(s.Program), ".exe"),
		Short: "See and steer Pulumi Stacks that stack-controller keeps up to date",
		Long: "See and steer Pulumi Stacks that stack-controller keeps up to date.\n\n" +
			"It exits with 0 when it has done what it was asked for, 1 for any other failure, 2 for an invalid command line,\n" +
			"3 when what it waited for failed, 4 when that did not happen in time, and 130 when it was interrupted.",
		Annotations:   map[string]string{cobra.CommandDisplayNameAnnotation: name},
		SilenceErrors: true, SilenceUsage: true,
	}
	root.SetIn(s.In)
	root.SetOut(s.Out)
	root.SetErr(s.Err)
	root.Args, root.RunE = cobra.ArbitraryArgs, onlyBelow
	s.flags.AddFlags(root.PersistentFlags())
	root.SetFlagErrorFunc(func(cmd *cobra.Command, err error) error { return usage(cmd, err) })
	root.AddCommand(s.get(), s.reconcile(), s.suspend(), s.resume(), s.cancel(),
		s.logs(), s.events(), s.tree(), s.explain(), s.diff(), s.plan(), s.rollout(), s.outputs(), s.unlock(), s.state(), s.migrate(), s.check(), s.version(), s.install(), s.uninstall(), s.quickstart())
	_ = root.RegisterFlagCompletionFunc("namespace", s.completeNamespaces) // fails for a flag that does not exist
	return root
}

// isTerminal reports whether a user can be asked for input.
func isTerminal(in io.Reader) bool {
	file, ok := in.(*os.File)
	return ok && term.IsTerminal(int(file.Fd()))
}

// confirm asks the question, and returns an error with the refusal unless the answer is yes. An interruption ends the wait for the answer.
func (s *session) confirm(ctx context.Context, question, refusal string) error {
	fmt.Fprintf(s.log, "%s [y/N] ", print.Clean(question))
	var answer string
	err := interruptible(ctx, func() (err error) {
		answer, err = bufio.NewReader(io.LimitReader(s.In, 1024)).ReadString('\n')
		return err
	})
	switch {
	case ctx.Err() != nil:
		return ctx.Err()
	case err != nil && !errors.Is(err, io.EOF):
		return fmt.Errorf("read the answer: %w", err)
	}
	if answer = strings.ToLower(strings.TrimSpace(answer)); answer != "y" && answer != "yes" {
		return errors.New(refusal)
	}
	return nil
}

// interruptible returns when do does or when the context ends. do goes on then, so what it writes must not be read.
func interruptible(ctx context.Context, do func() error) error {
	done := make(chan error, 1)
	go func() { done <- do() }()
	select {
	case err := <-done:
		return err
	case <-ctx.Done():
		return ctx.Err()
	}
}

// usage returns the failure for an invalid command line.
func usage(cmd *cobra.Command, err error) error {
	return failed(exitUsage, "%w\nSee '%s --help'.", err, cmd.CommandPath())
}

// arguments returns check, with its errors as failures for an invalid command line.
func arguments(check cobra.PositionalArgs) cobra.PositionalArgs {
	return func(cmd *cobra.Command, args []string) error {
		if err := check(cmd, args); err != nil {
			return usage(cmd, err)
		}
		return nil
	}
}

// group returns a command that only has subcommands.
func group(use, short string, commands ...*cobra.Command) *cobra.Command {
	cmd := &cobra.Command{
		Use: use, Short: short,
		Args: cobra.ArbitraryArgs, RunE: onlyBelow,
	}
	cmd.AddCommand(commands...)
	return cmd
}

// onlyBelow runs a command that only has subcommands.
func onlyBelow(cmd *cobra.Command, args []string) error {
	if len(args) == 0 {
		return cmd.Help()
	}
	err := fmt.Errorf("unknown command %q for %q", args[0], cmd.CommandPath())
	cmd.SuggestionsMinimumDistance = 2
	if known := cmd.SuggestionsFor(args[0]); len(known) > 0 {
		err = fmt.Errorf("%w; did you mean %q?", err, known[0])
	}
	return usage(cmd, err)
}

// onCluster turns a function that calls the API server into the RunE of a command.
func (s *session) onCluster(run func(ctx context.Context, c *cluster, args []string) error) func(*cobra.Command, []string) error {
	return func(cmd *cobra.Command, args []string) error {
		c, err := s.connect()
		if err != nil {
			return err
		}
		if err := c.login(cmd.Context()); err != nil {
			return err
		}
		return run(cmd.Context(), c, args)
	}
}

// onStack makes cmd run the function for the Stack that its argument names.
func (s *session) onStack(cmd *cobra.Command, run func(context.Context, *cluster, *pulumiv1.Stack) error) {
	cmd.Args, cmd.ValidArgsFunction = arguments(cobra.ExactArgs(1)), s.completeNames(stacks())
	cmd.RunE = s.onCluster(func(ctx context.Context, c *cluster, args []string) error {
		stack := &pulumiv1.Stack{}
		if err := c.read(ctx, c.key(args[0]), stack); err != nil {
			return err
		}
		return run(ctx, c, stack)
	})
}
