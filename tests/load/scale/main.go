// Command scale measures the resource usage of many Stacks. It runs stack-controller with real etcd, kube-apiserver and source-controller.
// Most Stacks use a stub instead of the pulumi CLI; one more Stack uses the real CLI, which shows what another tenant notices meanwhile. First
// come a thousand Stacks in waves, and a thousand with inputs. At each of several sizes it creates Stacks, makes a commit for all of them, and
// kills the controller. At the last size it also measures an idle system, a commit for one namespace, one without changes and one for which all wait; and, with some of
// the Stacks, a neighbour, a change of the leader, three controllers, and deletion. Run it with "make scale". It fails if a limit is exceeded and the machine
// was quiet.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"time"

	"github.com/stack-controller/stack-controller/tests/framework/command"
	"github.com/stack-controller/stack-controller/tests/framework/localsystem"
	"github.com/stack-controller/stack-controller/tests/load/measure"
	"github.com/stack-controller/stack-controller/tests/tools"
)

const (
	// idlePeriod is how long the idle system is measured.
	idlePeriod = time.Minute
	// idleTimeout is the time after which an agent that has nothing to do ends.
	idleTimeout = 3 * time.Second
	// memoryLimit is the memory limit of the controller's container in the installation.
	memoryLimit = 512 << 20
	// some is how many of the Stacks take part, at most, in what does not depend on how many there are.
	some = 2000
	// profileTime is how long kube-apiserver's processor time is sampled.
	profileTime = 30 * time.Second
)

// sizes are the numbers of Stacks at which the benchmark measures, up to the requested number.
var sizes = []int{500, 2000, 10_000, 20_000}

// scale is one run.
type scale struct {
	out         io.Writer
	system      *localsystem.System
	fleet       *fleet
	neighbour   *neighbour
	stub        string // directory of the CLI stub
	metricsAddr string
	pprofAddr   string
	apiProfile  string // file for a profile of kube-apiserver's processor time; none when empty
	limits      measure.Limits
}

func main() {
	command.Main("scale", func(ctx context.Context, args []string) error { return run(ctx, args, os.Stdout) })
}

func run(ctx context.Context, args []string, out io.Writer) (err error) {
	flags := flag.NewFlagSet("scale", flag.ContinueOnError)
	stacks := flags.Int("stacks", 2000, fmt.Sprintf("how many Stacks there are in the end, a multiple of %d", perTeam))
	report := flags.String("report", "", "the page to write the results to, with its plots beside it; none when empty")
	only := flags.String("only", "", "measure nothing but this, and write no page: fleet (creation, a commit, a restart); held (a commit for which all wait), or "+
		"held-in-one, with one StackRollout for all; or waves, with all in one StackRollout; everything when empty")
	apiProfile := flags.String("profile", "", "file for a profile of kube-apiserver's processor time during the first commit for all; none when empty")
	if err := flags.Parse(args); err != nil {
		return err
	}
	if *stacks < perTeam || *stacks%perTeam != 0 {
		return fmt.Errorf("-stacks must be a multiple of %d, not %d", perTeam, *stacks)
	}
	if !slices.Contains([]string{"", "fleet", "held", "held-in-one", "waves"}, *only) {
		return fmt.Errorf("-only must be fleet, held, held-in-one or waves, not %q", *only)
	}
	machine := &measure.Machine{}
	if err := machine.MeasureLoad(ctx); err != nil {
		return err
	}
	s := &scale{out: out, apiProfile: *apiProfile}
	defer func() { err = errors.Join(err, s.stop()) }()
	if err := s.start(ctx); err != nil {
		return err
	}
	r := &results{machine: machine, stacks: *stacks}
	enforce := *stacks >= waveStacks
	if *only != "" && *only != "fleet" {
		text, err := s.part(ctx, *only, *stacks)
		if err != nil {
			return err
		}
		return errors.Join(write(out, text), s.limits.Report(out, machine, enforce))
	}
	if *only == "" {
		if err := s.others(ctx, r); err != nil {
			return err
		}
		// The garbage collector would go on for minutes with what belonged to these Stacks.
		if err := errors.Join(s.stop(), s.start(ctx)); err != nil {
			return err
		}
	}
	for _, size := range until(*stacks) {
		g, err := s.size(ctx, size)
		if err != nil {
			return fmt.Errorf("with %d Stacks: %w", size, err)
		}
		r.growth = append(r.growth, g)
	}
	if *only == "fleet" {
		return write(out, "\n"+r.growthTables())
	}
	if err := s.last(ctx, r); err != nil {
		return err
	}
	if err := s.stop(); err != nil { // it would count as others
		return err
	}
	if err := machine.MeasureLoad(ctx); err != nil {
		return err
	}
	if err := write(out, "\n"+r.text()); err != nil {
		return err
	}
	if *report != "" {
		if err := r.write(ctx, *report); err != nil {
			return err
		}
	}
	return s.limits.Report(out, machine, enforce)
}

func write(out io.Writer, text string) error {
	_, err := io.WriteString(out, text)
	return err
}

// part measures nothing but waves, or Stacks that are held, and returns their section of the page.
func (s *scale) part(ctx context.Context, only string, stacks int) (string, error) {
	if only == "waves" {
		w, err := s.waves(ctx, stacks)
		if err != nil {
			return "", err
		}
		return w.text(), nil
	}
	each := perTeam
	if only == "held-in-one" {
		each = stacks
	}
	if err := s.fleet.growTeams(ctx, stacks, each); err != nil {
		return "", err
	}
	if _, err := s.fleet.await(ctx, s.fleet.teams); err != nil {
		return "", err
	}
	h, err := s.hold(ctx, s.fleet.teams)
	if err != nil {
		return "", err
	}
	return h.text(), nil
}

// until returns the sizes below the last one, and the last one.
func until(last int) []int {
	var until []int
	for _, size := range sizes {
		if size < last {
			until = append(until, size)
		}
	}
	return append(until, last)
}

// start starts the system with the CLI stub.
func (s *scale) start(ctx context.Context) (err error) {
	if s.stub, err = os.MkdirTemp("", "stack-scale-"); err != nil {
		return fmt.Errorf("create the directory of the stub: %w", err)
	}
	if err := os.Mkdir(filepath.Join(s.stub, "stacks"), 0o700); err != nil {
		return fmt.Errorf("create the directory of the stub: %w", err)
	}
	cli, err := tools.Path(ctx, "pulumi", nil)
	if err != nil {
		return err
	}
	if err := os.Symlink(cli, filepath.Join(s.stub, "real")); err != nil {
		return fmt.Errorf("link the CLI: %w", err)
	}
	stub := filepath.Join(s.stub, "pulumi")
	if err := tools.Compile(ctx, "stubpulumi", tools.RepositoryRoot(), "./tests/load/scale/stubpulumi", stub, []string{"-trimpath"}, nil); err != nil {
		return err
	}
	if s.metricsAddr, s.pprofAddr, err = freeAddresses(); err != nil {
		return err
	}
	s.system, err = localsystem.Start(ctx, localsystem.Options{
		Log: s.out, Pulumi: stub, ProfilingAPIServer: s.apiProfile != "",
		ControllerArgs: []string{
			"--log-level=info", "--max-operations=0", "--workspace-idle-timeout=" + idleTimeout.String(),
			"--metrics-addr=" + s.metricsAddr, "--pprof-addr=" + s.pprofAddr,
		},
		ControllerEnv: []string{fmt.Sprintf("GOMEMLIMIT=%d", memoryLimit)},
	})
	if err != nil {
		return err
	}
	s.fleet = &fleet{system: s.system}
	if err := s.fleet.watch(ctx); err != nil {
		return err
	}
	s.neighbour, err = s.newNeighbour(ctx)
	return err
}

// runAtOnce replaces stack-controller by one that runs so many operations at once, with the memory limit that it needs for them. With 0 it has the
// memory limit of the installation, and runs what fits.
func (s *scale) runAtOnce(ctx context.Context, operations int) error {
	if err := s.system.StopController(); err != nil {
		return err
	}
	memory := memoryLimit
	if operations > 0 {
		memory = memoryFor(operations)
	}
	s.system.ControlIn(fmt.Sprintf("GOMEMLIMIT=%d", memory))
	return s.system.StartController(ctx, fmt.Sprintf("--max-operations=%d", operations))
}

// memoryFor returns the memory limit with which stack-controller runs so many operations at once by itself, if there are enough processors, in bytes.
func memoryFor(operations int) int { return 256<<20 + operations*150<<20 }

// stop stops the system and removes its files.
func (s *scale) stop() error {
	var err error
	if s.system != nil {
		err = s.system.Stop()
		s.system = nil
	}
	return errors.Join(err, os.RemoveAll(s.stub))
}

// size grows the fleet to that number of Stacks and measures it.
func (s *scale) size(ctx context.Context, stacks int) (*growth, error) {
	g := &growth{stacks: stacks}
	before := len(s.fleet.teams)
	var err error
	g.created, err = s.measureCost(ctx, func(ctx context.Context) error {
		if err := s.fleet.grow(ctx, stacks); err != nil {
			return err
		}
		_, err := s.fleet.await(ctx, s.fleet.teams[before:])
		return err
	})
	if err != nil {
		return nil, fmt.Errorf("create: %w", err)
	}
	g.createdStacks = (len(s.fleet.teams) - before) * perTeam
	if err := ranOnce(s.stub, s.fleet.teams[before:]); err != nil {
		return nil, fmt.Errorf("create: %w", err)
	}
	fmt.Fprintf(s.out, "%d Stacks: created in %s\n", stacks, measure.Seconds(g.created.took))
	profiled := s.profileAPIServer(ctx)
	if g.commit, g.latencies, err = s.commit(ctx, s.fleet.teams); err != nil {
		return nil, fmt.Errorf("commit: %w", err)
	}
	if err := profiled(); err != nil {
		return nil, err
	}
	fmt.Fprintf(s.out, "%d Stacks: a commit for all in %s\n", stacks, measure.Seconds(g.commit.took))
	if g.memory, err = measure.ProcessMemory(s.system.Controller().PID()); err != nil {
		return nil, err
	}
	if g.heap, err = s.heap(ctx); err != nil {
		return nil, err
	}
	if g.restart, err = s.restart(ctx, stacks); err != nil {
		return nil, fmt.Errorf("restart: %w", err)
	}
	fmt.Fprintf(s.out, "%d Stacks: restarted in %s\n", stacks, measure.Seconds(g.restart.took))
	fmt.Fprintf(s.out, "  requests of everybody meanwhile: %v\n", g.restart.requests)
	return g, nil
}

// commit makes a commit for the teams and waits for the last Stack. The latencies are the times from the commit to the success of each
// Stack.
func (s *scale) commit(ctx context.Context, teams []*team) (c *cost, latencies measure.Samples, err error) {
	c, err = s.measureCost(ctx, func(ctx context.Context) error {
		start := time.Now()
		if err := s.fleet.commit(ctx, teams); err != nil {
			return err
		}
		times, err := s.fleet.await(ctx, teams)
		for _, done := range times {
			latencies = append(latencies, done.Sub(start))
		}
		return err
	})
	if err == nil {
		err = ranOnce(s.stub, teams)
	}
	return c, latencies, err
}

// commitBeside makes a commit for the teams, and returns how long the neighbour's commits take meanwhile.
func (s *scale) commitBeside(ctx context.Context, teams []*team) (measure.Samples, error) {
	follow := s.neighbour.follow(ctx)
	err := s.fleet.commit(ctx, teams)
	if err == nil {
		_, err = s.fleet.await(ctx, teams)
	}
	took, neighbourErr := follow()
	if err = errors.Join(err, neighbourErr); err != nil {
		return nil, err
	}
	return took, ranOnce(s.stub, teams)
}

// others measures Stacks that are not part of the fleet, before there is one.
func (s *scale) others(ctx context.Context, r *results) (err error) {
	if r.waves, err = s.waves(ctx, min(r.stacks, waveStacks)); err != nil {
		return fmt.Errorf("waves: %w", err)
	}
	if r.inputs, err = s.inputs(ctx); err != nil {
		return fmt.Errorf("inputs: %w", err)
	}
	return nil
}

// last does the measurements of the last size.
func (s *scale) last(ctx context.Context, r *results) (err error) {
	if r.idle, err = s.measureCost(ctx, func(ctx context.Context) error { return measure.Sleep(ctx, idlePeriod) }); err != nil {
		return fmt.Errorf("idle: %w", err)
	}
	if r.oneTeam, _, err = s.commit(ctx, s.fleet.teams[:1]); err != nil {
		return fmt.Errorf("a commit for one namespace: %w", err)
	}
	if r.quiet, err = s.neighbour.quiet(ctx); err != nil {
		return err
	}
	teams := s.fleet.teams[:min(len(s.fleet.teams), some/perTeam)]
	r.some = len(teams) * perTeam
	if r.beside, err = s.commitBeside(ctx, teams); err != nil {
		return fmt.Errorf("a commit beside a neighbour: %w", err)
	}
	if r.empty, err = s.emptyCommit(ctx); err != nil {
		return fmt.Errorf("a commit without changes: %w", err)
	}
	if r.profile, err = s.profile(ctx); err != nil {
		return err
	}
	if r.servers, err = s.serverMemory(); err != nil {
		return err
	}
	if r.waiting, err = s.hold(ctx, s.fleet.teams); err != nil {
		return fmt.Errorf("a commit for which all wait: %w", err)
	}
	if r.leaderless, r.tookOver, err = s.leaderChange(ctx, teams); err != nil {
		return fmt.Errorf("a leader change: %w", err)
	}
	fmt.Fprintf(s.out, "a leader change: %s without a leader, %s until all were updated\n", measure.Seconds(r.leaderless), measure.Seconds(r.tookOver))
	if r.sharded, err = s.shards(ctx); err != nil {
		return fmt.Errorf("three controllers: %w", err)
	}
	fmt.Fprintf(s.out, "%d Stacks moved to other controllers in %s\n", r.sharded.moved, measure.Seconds(r.sharded.moving))
	if r.deleted, err = s.measureCost(ctx, func(ctx context.Context) error { return s.fleet.delete(ctx, teams) }); err != nil {
		return fmt.Errorf("delete: %w", err)
	}
	return nil
}
