// Command run runs the tests: those of the short suite with "run short", all with "run long", and says what is wrong with them.
//
// The packages run in groups, one after the other: with the race detector those that have goroutines of ours, without it and without cgo
// those that mostly wait for programs. In the long suite, packages with a node run one at a time. gotestsum runs each group. A test that
// failed is run again, alone, once its group has ended: at most twice, and only when at most ten failed. What then passes is not wrong, but
// flaky, and named at the end and in the file flaky.txt of the output directory. A data race, a panic and what a TestMain reports are wrong
// whatever comes after them.
//
// Nothing that the tests started outlives this program when it is interrupted, or when make, which started it, is killed.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"regexp"
	"runtime"
	"slices"
	"strings"
	"syscall"

	"golang.org/x/sys/unix"

	"github.com/stack-controller/stack-controller/tests/tools"
)

// group is packages that run with the same flags.
type group struct {
	name     string
	dir      string // of the module
	packages []string
	cgo      bool
	flags    []string
}

func main() {
	output := flag.String("output", "bin", "the directory for flaky.txt and for what the tests reported, as JSON")
	race := flag.Bool("race", true, "use the race detector, which needs a C compiler")
	flag.Usage = func() {
		fmt.Fprintf(flag.CommandLine.Output(), "Usage: %s [flags] short|long\n", filepath.Base(os.Args[0]))
		flag.PrintDefaults()
	}
	flag.Parse()
	if flag.NArg() != 1 || flag.Arg(0) != "short" && flag.Arg(0) != "long" {
		flag.Usage()
		os.Exit(2)
	}
	// A parent death signal is sent when the parent's thread ends, which make has only one of.
	err := errors.Join(unix.Prctl(unix.PR_SET_PDEATHSIG, uintptr(syscall.SIGTERM), 0, 0, 0), unix.Prctl(unix.PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0))
	if err != nil {
		fmt.Fprintln(os.Stderr, "become the parent of what tests leave:", err)
		os.Exit(2)
	}
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGINT, syscall.SIGTERM, syscall.SIGHUP)
	defer stop()
	if err := run(ctx, *output, flag.Arg(0) == "short", *race); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

func run(ctx context.Context, output string, short, race bool) error {
	output, err := filepath.Abs(output)
	if err != nil {
		return err
	}
	if err := os.MkdirAll(output, 0o755); err != nil {
		return fmt.Errorf("create the directory for reports: %w", err)
	}
	gotestsum, err := tools.Path(ctx, "gotestsum", nil)
	if err != nil {
		return err
	}
	groups, err := allGroups(ctx, short, race)
	if err != nil {
		return err
	}
	whole := newReport()
	for _, g := range groups {
		err := whole.run(ctx, &g, gotestsum, output)
		if err := errors.Join(err, endDescendants()); err != nil {
			return err
		}
	}
	return whole.print(os.Stdout, filepath.Join(output, "flaky.txt"))
}

// allGroups finds the packages of the suite. What takes long begins first within a group.
func allGroups(ctx context.Context, short, race bool) ([]group, error) {
	flags := []string{"-count=1", "-vet=off", "-ldflags=-w"}
	if short {
		flags = append(flags, "-short", "-timeout=10m")
	} else {
		flags = append(flags, "-timeout=60m")
	}
	raced := append([]string{"-p=2"}, flags...)
	if race {
		raced = append(raced, "-race")
	}
	plain := append([]string{"-p=2"}, flags...)
	root := tools.RepositoryRoot()
	groups := []group{
		{name: "api", dir: filepath.Join(root, "api"), packages: []string{"./..."}, cgo: race, flags: raced},
		{name: "internal", dir: root, packages: []string{".", "./cmd/...", "./config/...", "./internal/..."}, cgo: race, flags: raced},
	}
	if race {
		alone, err := withoutRaceDetector(root)
		if err != nil {
			return nil, err
		}
		alone.flags = append(alone.flags, plain...)
		groups = append(groups, alone)
	}
	nodes, others, err := split(ctx, "./tests/...", withNodes)
	if err != nil {
		return nil, err
	}
	if short {
		return append(groups, group{name: "system", dir: root, packages: append(nodes, others...), flags: plain}), nil
	}
	return append(groups,
		group{name: "system", dir: root, packages: others, flags: plain},
		group{name: "nodes", dir: root, packages: nodes, flags: append([]string{"-p=1"}, flags...)}), nil
}

// withNodes starts nodes, for the packages whose tests depend on it.
const withNodes = module + "tests/cluster"

// unraced finds the tests that are not for the race detector.
var unraced = regexp.MustCompile(`(?m)^func (Test\w+)\(t \*testing\.T\) \{\n\tsuite\.WithoutRaceDetector\(t\)$`)

// withoutRaceDetector is the group of the tests below internal that are not for the race detector.
func withoutRaceDetector(root string) (group, error) {
	g := group{name: "unraced", dir: root}
	var tests []string
	err := filepath.WalkDir(filepath.Join(root, "internal"), func(path string, entry fs.DirEntry, err error) error {
		if err != nil || !strings.HasSuffix(path, "_test.go") {
			return err
		}
		content, err := os.ReadFile(path)
		found := unraced.FindAllSubmatch(content, -1)
		for _, match := range found {
			tests = append(tests, string(match[1]))
		}
		if pkg := strings.Replace(filepath.Dir(path), root, ".", 1); len(found) > 0 && !slices.Contains(g.packages, pkg) {
			g.packages = append(g.packages, pkg)
		}
		return err
	})
	g.flags = []string{"-run=^(" + strings.Join(tests, "|") + ")$"}
	return g, err
}

// split returns the packages with tests that match the pattern: those whose tests depend on the other package, and the rest.
func split(ctx context.Context, pattern, dependency string) (with, without []string, err error) {
	cmd := exec.CommandContext(ctx, "go", "list", "-test", "-f", `{{.ImportPath}} {{join .Deps " "}}`, pattern)
	cmd.Dir = tools.RepositoryRoot()
	cmd.Stderr = os.Stderr
	list, err := cmd.Output()
	if err != nil {
		return nil, nil, fmt.Errorf("list the packages with tests: %w", err)
	}
	for line := range strings.Lines(string(list)) {
		fields := strings.Fields(line)
		name, isTest := strings.CutSuffix(fields[0], ".test")
		switch {
		case !isTest:
		case slices.Contains(fields[1:], dependency):
			with = append(with, name)
		default:
			without = append(without, name)
		}
	}
	return with, without, nil
}

// run runs the group, writes what it reported into the output directory, and adds it to the report. The error is about the run, not about tests.
func (r *report) run(ctx context.Context, g *group, gotestsum, output string) error {
	fmt.Printf("--- %s\n", g.name)
	file := filepath.Join(output, "test-"+g.name+".json")
	args := []string{
		"--format=pkgname", "--hide-summary=skipped", "--jsonfile=" + file,
		"--rerun-fails=2", "--rerun-fails-max-failures=10", "--rerun-fails-abort-on-data-race",
		"--packages=" + strings.Join(g.packages, " "), "--",
	}
	cmd := exec.CommandContext(ctx, gotestsum, append(args, g.flags...)...)
	cmd.Dir = g.dir
	cmd.Env = append(os.Environ(), "CGO_ENABLED=0", "GOMEGA_DEFAULT_EVENTUALLY_TIMEOUT=60s")
	if g.cgo {
		cmd.Env = append(cmd.Env, "CGO_ENABLED=1")
	}
	cmd.Stdout, cmd.Stderr = os.Stdout, os.Stderr
	// A group of its own, so that Ctrl-C reaches only this program, which ends everything in its order.
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGTERM}
	cmd.Cancel = func() error { return cmd.Process.Signal(syscall.SIGTERM) }
	// The parent death signal is that of the thread that starts it.
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	err := cmd.Run()
	if ctx.Err() != nil {
		return errors.New("interrupted")
	}
	if err != nil {
		r.failures = append(r.failures, fmt.Sprintf("the group %s failed: %s", g.name, err))
	}
	return r.read(file)
}
