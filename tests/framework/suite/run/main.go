// Command run runs the tests, those of the short suite with "run short" and all with "run long", and reports failures.
//
// The packages run in groups, one group after the other: with the race detector the packages that have goroutines of ours, and without it
// and without cgo those that mostly wait for other programs. In the long suite, packages with a node run one at a time, and some packages
// run once more with the oldest version of Kubernetes. gotestsum runs each group. When a group has ended, its failed tests run again, alone:
// at most twice, and only if at most ten failed. A test that then passes is flaky and does not make the run fail. The end of the report and
// the file flaky.txt in the output directory list the flaky tests. A data race, a panic and a problem that a TestMain reports always make
// the run fail.
//
// If this program is interrupted, or make, which started it, is killed, nothing that the tests started outlives it. If this program itself
// is killed, the next run removes what is left.
package main

import (
	"bufio"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/stack-controller/stack-controller/tests/framework/leftovers"
	"github.com/stack-controller/stack-controller/tests/framework/programs"
	"github.com/stack-controller/stack-controller/tests/framework/suite"
	"github.com/stack-controller/stack-controller/tests/tools"
)

func main() {
	output := flag.String("output", "bin", "the directory for flaky.txt and for what the tests reported, as JSON")
	race := flag.Bool("race", true, "use the race detector, which needs a C compiler")
	only := flag.String("groups", "", "run only these groups of packages (api, internal, unraced, system, nodes, oldest), separated by commas")
	flag.Usage = func() {
		fmt.Fprintf(flag.CommandLine.Output(), "Usage: %s [flags] short|long\n", filepath.Base(os.Args[0]))
		flag.PrintDefaults()
	}
	flag.Parse()
	if flag.NArg() != 1 || flag.Arg(0) != "short" && flag.Arg(0) != "long" {
		flag.Usage()
		os.Exit(2)
	}
	// The kernel sends the parent death signal when the parent's thread ends. make has only one thread.
	err := errors.Join(unix.Prctl(unix.PR_SET_PDEATHSIG, uintptr(syscall.SIGTERM), 0, 0, 0), unix.Prctl(unix.PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0))
	if err != nil {
		fmt.Fprintln(os.Stderr, "become the parent of what tests leave:", err)
		os.Exit(2)
	}
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGINT, syscall.SIGTERM, syscall.SIGHUP)
	defer stop()
	if err := run(ctx, *output, flag.Arg(0) == "short", *race, *only); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

func run(ctx context.Context, output string, short, race bool, only string) error {
	output, err := filepath.Abs(output)
	if err != nil {
		return err
	}
	if err := os.MkdirAll(output, 0o755); err != nil {
		return fmt.Errorf("create the directory for reports: %w", err)
	}
	waiting, cancel := context.WithTimeoutCause(ctx, time.Second, errors.New("another run reports there"))
	defer cancel()
	unlock, err := tools.Lock(waiting, filepath.Join(output, ".run"))
	if err != nil {
		return err
	}
	defer unlock()
	if err := leftovers.Sweep(os.Stdout); err != nil {
		return err
	}
	record, err := leftovers.New("run")
	if err != nil {
		return err
	}
	err = prepare(ctx, record)
	if err == nil {
		err = runGroups(ctx, output, short, race, only)
	}
	return errors.Join(err, record.Remove())
}

// prepare creates a directory for the temporary files of the run, and builds the programs that the tests run.
func prepare(ctx context.Context, record *leftovers.Record) error {
	// The name is short, because the directory contains unix sockets. Every user can write to it, as to /tmp, because some tests run
	// programs as another user.
	dir, err := record.NewDirectory("r")
	if err != nil {
		return err
	}
	if err := os.Chmod(dir, os.ModeSticky|0o777); err != nil {
		return err
	}
	variables := []string{"TMPDIR=" + dir, record.Environment()}
	built, err := programs.BuildAll(ctx, filepath.Join(dir, "programs"))
	if err != nil {
		return err
	}
	for _, variable := range append(variables, built) {
		name, value, _ := strings.Cut(variable, "=")
		if err := os.Setenv(name, value); err != nil {
			return err
		}
	}
	return nil
}

func runGroups(ctx context.Context, output string, short, race bool, only string) error {
	gotestsum, err := tools.Path(ctx, "gotestsum", nil)
	if err != nil {
		return err
	}
	groups, err := allGroups(ctx, short, race)
	if err != nil {
		return err
	}
	if only != "" {
		named := strings.Split(only, ",")
		groups = slices.DeleteFunc(groups, func(g group) bool { return !slices.Contains(named, g.name) })
		if len(groups) != len(named) {
			return fmt.Errorf("run the groups %s: not all of them are in this suite", only)
		}
	}
	whole := newReport(os.Stdout)
	for _, g := range groups {
		if g.name == oldest {
			if err := g.useOldestKubernetes(ctx); err != nil {
				return err
			}
		}
		err := whole.run(ctx, &g, gotestsum, output)
		if err := errors.Join(err, endDescendants()); err != nil {
			return err
		}
	}
	return whole.print(filepath.Join(output, "flaky.txt"))
}

// run runs the group, writes its events into the output directory, and adds its results to the report. The error is about the run, not
// about failed tests.
func (r *report) run(ctx context.Context, g *group, gotestsum, output string) error {
	fmt.Fprintf(r.to, "--- %s\n", g.name)
	file := filepath.Join(output, "test-"+g.name+".json")
	args := []string{
		"--format=pkgname", "--hide-summary=skipped", "--jsonfile=" + file,
		"--rerun-fails=2", "--rerun-fails-max-failures=10", "--rerun-fails-abort-on-data-race",
		"--packages=" + strings.Join(g.packages, " "), "--",
	}
	cmd := exec.CommandContext(ctx, gotestsum, append(args, g.flags...)...)
	cmd.Dir = g.dir
	cmd.Env = append(os.Environ(), "CGO_ENABLED=0", "GOMEGA_DEFAULT_EVENTUALLY_TIMEOUT=60s")
	cmd.Env = append(cmd.Env, g.env...)
	if g.cgo {
		cmd.Env = append(cmd.Env, "CGO_ENABLED=1")
	}
	cmd.Stdout, cmd.Stderr = r.to, r.to
	// gotestsum gets its own process group, so that Ctrl-C reaches only this program, which ends everything in order.
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGTERM}
	cmd.Cancel = func() error { return cmd.Process.Signal(syscall.SIGTERM) }
	// The parent death signal depends on the thread that starts gotestsum.
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

// slowest is how many tests the report lists.
const slowest = 20

// event is one line of "go test -json".
type event struct {
	Action, Package, Test, Output string
	Elapsed                       float64 // seconds
}

// test is a test of a package. Without a name, it is the code outside of the tests, such as TestMain.
type test struct{ pkg, name string }

func (t test) String() string { return strings.TrimPrefix(t.pkg, module) + " " + t.name }

// module is the prefix of the names of packages.
const module = "github.com/stack-controller/stack-controller/"

// report collects the results of the tests of all groups.
type report struct {
	to       io.Writer
	packages map[string]time.Duration
	tests    map[test]time.Duration // duration of the last run
	runs     map[test][]bool        // for tests that failed at least once: whether each run passed
	failures []string
}

func newReport(to io.Writer) *report {
	return &report{to: to, packages: map[string]time.Duration{}, tests: map[test]time.Duration{}, runs: map[test][]bool{}}
}

// read adds the events that gotestsum wrote for a group: all events of the first run, then those of the tests that ran again.
func (r *report) read(file string) error {
	content, err := os.Open(file)
	if err != nil {
		return fmt.Errorf("read what the tests reported: %w", err)
	}
	defer content.Close()
	failed := map[string]int{} // failed tests by package, in the run that is read
	decoder := json.NewDecoder(bufio.NewReader(content))
	for {
		var e event
		if err := decoder.Decode(&e); errors.Is(err, io.EOF) {
			return nil
		} else if err != nil {
			return fmt.Errorf("read what the tests reported in %s: %w", file, err)
		}
		of := test{e.Package, e.Test}
		elapsed := time.Duration(e.Elapsed * float64(time.Second))
		switch {
		case e.Test == "" && e.Action == "output":
			if problem, found := strings.CutPrefix(e.Output, suite.Problem); found {
				r.failures = append(r.failures, fmt.Sprintf("%s: %s", of, strings.TrimSpace(problem)))
			}
		case e.Test == "" && (e.Action == "pass" || e.Action == "fail"):
			r.packages[e.Package] += elapsed
			if e.Action == "fail" && failed[e.Package] == 0 {
				r.failures = append(r.failures, fmt.Sprintf("%s failed outside of its tests", of))
			}
			failed[e.Package] = 0
		case e.Action == "pass" || e.Action == "fail":
			r.tests[of] = elapsed
			if e.Action == "fail" {
				failed[e.Package]++
			}
			if _, again := r.runs[of]; again || e.Action == "fail" {
				r.runs[of] = append(r.runs[of], e.Action == "pass")
			}
		}
	}
}

// print writes the report to r.to, and the names of flaky tests to the file. The error lists the failures.
func (r *report) print(flakyFile string) error {
	fmt.Fprintf(r.to, "\nThe slowest tests:\n")
	for _, t := range longest(r.tests)[:min(slowest, len(r.tests))] {
		fmt.Fprintf(r.to, "%8.1f s  %s\n", r.tests[t].Seconds(), t)
	}
	fmt.Fprintf(r.to, "\nThe packages:\n")
	for _, pkg := range longest(r.packages) {
		if r.packages[pkg] >= time.Second {
			fmt.Fprintf(r.to, "%8.1f s  %s\n", r.packages[pkg].Seconds(), strings.TrimPrefix(pkg, module))
		}
	}
	var flaky []string
	for t, runs := range r.runs {
		if runs[len(runs)-1] {
			flaky = append(flaky, fmt.Sprintf("flaky: %s failed %d of %d times", t, len(runs)-1, len(runs)))
		}
	}
	slices.Sort(flaky)
	text := strings.Join(append(flaky, ""), "\n")
	if err := os.WriteFile(flakyFile, []byte(text), 0o644); err != nil {
		return err
	}
	fmt.Fprintf(r.to, "\n%s", text)
	if len(r.failures) > 0 {
		return errors.New(strings.Join(r.failures, "\n"))
	}
	return nil
}

// longest returns the keys, the longest durations first.
func longest[K comparable](durations map[K]time.Duration) []K {
	var keys []K
	for key := range durations {
		keys = append(keys, key)
	}
	slices.SortFunc(keys, func(a, b K) int {
		return cmp.Or(cmp.Compare(durations[b], durations[a]), strings.Compare(fmt.Sprint(a), fmt.Sprint(b)))
	})
	return keys
}
