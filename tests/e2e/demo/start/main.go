// Command start prepares the programs that the demo runs, and runs the demo. It compiles stack-controller, and in the meantime it looks for
// the servers and tools: on PATH, in the cache, or at their makers. Its arguments are those of the demo.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"maps"
	"os"
	"os/signal"
	"path/filepath"
	"slices"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/stack-controller/stack-controller/tests/framework/programs"
	"github.com/stack-controller/stack-controller/tests/tools"
	"github.com/stack-controller/stack-controller/tests/tools/prebuilt"
)

// needed lists the tools in the order in which they are compiled. The one that takes longest comes first.
var needed = []string{
	"kube-apiserver", "kube-controller-manager", "kubectl", "etcd", "pulumi", "pulumi-language-yaml", "source-controller",
}

func main() {
	if err := run(os.Args[1:]); err != nil {
		fmt.Fprintln(os.Stderr, "demo:", err)
		os.Exit(1)
	}
}

func run(args []string) error {
	flags := flag.NewFlagSet("demo", flag.ContinueOnError)
	keep := flags.Bool("keep", false, "leave everything running in the background")
	prepare := flags.Bool("prepare", false, "prepare everything, and do not run it")
	pins := flags.String("pins", "", "a file with pins of programs, instead of those in tests/tools/prebuilt")
	if err := flags.Parse(args); err != nil {
		return err
	}
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	demo, paths, err := programsOfTheDemo(ctx, *pins)
	if ctx.Err() != nil {
		return errors.New("interrupted; what is ready is kept for the next time")
	}
	if err != nil || *prepare {
		return err
	}
	for tool, path := range paths {
		if err := os.Setenv(tools.AssetVariable(tool), path); err != nil {
			return err
		}
	}
	arguments := []string{demo}
	if *keep {
		arguments = append(arguments, "-keep")
	}
	return syscall.Exec(demo, arguments, os.Environ())
}

// programsOfTheDemo returns the paths of the demo's own program and of the tools.
func programsOfTheDemo(ctx context.Context, pins string) (demo string, paths map[string]string, err error) {
	p := &printer{start: time.Now()}
	p.line("The servers and tools that the demo runs, and stack-controller: once for this machine")
	// What has to be compiled waits until stack-controller is: two builds at the same time only need more memory.
	compiled := make(chan struct{})
	finder, err := prebuilt.New(pins, p.line, func(ctx context.Context, tool string) (string, error) {
		select {
		case <-compiled:
		case <-ctx.Done():
			return "", context.Cause(ctx)
		}
		return tools.Path(ctx, tool, p.line)
	})
	if err != nil {
		return "", nil, err
	}
	group, ctx := errgroup.WithContext(ctx)
	group.Go(func() (err error) {
		defer close(compiled)
		demo, err = compileOurs(ctx, p.line)
		return err
	})
	group.Go(func() (err error) {
		paths, err = finder.Find(ctx, needed)
		return err
	})
	if err := group.Wait(); err != nil {
		return "", nil, err
	}
	for _, tool := range slices.Sorted(maps.Keys(paths)) {
		p.line(fmt.Sprintf("%-26s %s", tool, paths[tool]))
	}
	return demo, paths, nil
}

// compileOurs compiles the demo, and the programs of stack-controller that it runs, and returns the path of the demo.
func compileOurs(ctx context.Context, progress func(string)) (demo string, err error) {
	demo = filepath.Join(tools.RepositoryRoot(), "bin", "demo")
	if err := os.MkdirAll(filepath.Dir(demo), 0o755); err != nil {
		return "", err
	}
	if err := tools.Compile(ctx, "stack-controller", tools.RepositoryRoot(), "./tests/e2e/demo", demo, nil, progress); err != nil {
		return "", err
	}
	for _, name := range []string{programs.Controller, programs.Agent} {
		if _, err := programs.Path(ctx, name, progress); err != nil {
			return "", err
		}
	}
	return demo, nil
}

// printer prints lines from several goroutines, with the time since the start.
type printer struct {
	start time.Time
	mu    sync.Mutex
}

func (p *printer) line(text string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	fmt.Printf("%5.0f s  %s\n", time.Since(p.start).Seconds(), text)
}
