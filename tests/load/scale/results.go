package main

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/stack-controller/stack-controller/tests/load/measure"
	"github.com/stack-controller/stack-controller/tests/tools"
)

// results holds the measurements of a run.
type results struct {
	machine *measure.Machine
	stacks  int // number of Stacks at the last size
	some    int // number of Stacks for beside, tookOver and deleted
	growth  []*growth
	// idle is the cost of one minute without anything to do.
	idle *cost
	// oneTeam is the cost of a commit for one namespace, empty of a commit for all that changes no file, deleted of a deletion.
	oneTeam, empty, deleted *cost
	// quiet and beside are the durations of the neighbour's commits, on an otherwise idle system and during a commit for some Stacks.
	quiet, beside measure.Samples
	profile       []share
	// leaderless is how long there was no leader after the leader was killed in the middle of a commit. tookOver is how long it took
	// until all its Stacks were updated, once each.
	leaderless, tookOver time.Duration
	sharded              *sharded
	inputs               *taken
	waves                *waved
	waiting              *waiting
	servers              map[string]int64 // resident memory in bytes
}

// growth holds the measurements at one size.
type growth struct {
	stacks        int
	created       *cost // of createdStacks Stacks
	createdStacks int
	commit        *cost
	latencies     measure.Samples // from the commit to the success of each Stack
	memory        measure.Memory  // memory of the controller after the commit
	heap          int64           // memory of the controller after a garbage collection, in bytes
	restart       *cost
}

// quantile returns the sample that is greater than or equal to that share of the others.
func quantile(s measure.Samples, share float64) time.Duration {
	sorted := slices.Sorted(slices.Values(s))
	return sorted[int(share*float64(len(sorted)-1))]
}

// text returns the page.
func (r *results) text() string {
	var page strings.Builder
	first, last := r.growth[0], r.growth[len(r.growth)-1]
	fmt.Fprintf(&page, head, r.stacks, perTeam, idleTimeout, memoryLimit>>20, r.machine.Description(), idlePeriod)
	page.WriteString(r.growthTables())
	fmt.Fprintf(&page, "\nProcessor time of a commit per Stack with %d Stacks compared to %d: %.2f ×. Time of a commit for all: %.2f × for %.0f × the Stacks.\n",
		last.stacks, first.stacks, each(last.commit, last.stacks)/each(first.commit, first.stacks),
		last.commit.took.Seconds()/first.commit.took.Seconds(), float64(last.stacks)/float64(first.stacks))
	page.WriteString(r.costTable())
	page.WriteString(r.requestTable())
	page.WriteString(r.otherTable())
	page.WriteString(r.sharded.text())
	page.WriteString(r.inputs.text())
	page.WriteString(r.waves.text())
	page.WriteString(r.waiting.text())
	page.WriteString(r.memoryTable())
	return page.String()
}

// each returns the processor time per Stack, in seconds.
func each(c *cost, stacks int) float64 { return c.total().Seconds() / float64(stacks) }

// row formats cells.
func row(cells ...string) string { return "| " + strings.Join(cells, " | ") + " |\n" }

func number(format string, values ...any) string { return fmt.Sprintf(format, values...) }

func (r *results) growthTables() string {
	var out strings.Builder
	out.WriteString("\n## From few to many\n\n")
	out.WriteString(row("Stacks", "a commit for all", "median Stack", "p99", "processor time per Stack", "requests per Stack"))
	out.WriteString("|---|---|---|---|---|---|\n")
	for _, g := range r.growth {
		out.WriteString(row(number("%d", g.stacks), measure.Seconds(g.commit.took), measure.Seconds(quantile(g.latencies, 0.5)),
			measure.Seconds(quantile(g.latencies, 0.99)), perStack(g.commit.total(), g.stacks), number("%.1f", float64(g.commit.sum())/float64(g.stacks))))
	}
	out.WriteString("\n![Time over the number of Stacks](scale-time.svg)\n\n")
	out.WriteString(row("Stacks", "memory of stack-controller", "its peak", "its heap", "heap per Stack", "restart", "reads", "writes", "processor time"))
	out.WriteString("|---|---|---|---|---|---|---|---|---|\n")
	for _, g := range r.growth {
		out.WriteString(row(number("%d", g.stacks), measure.Megabytes(g.memory.Resident), measure.Megabytes(g.memory.Peak), measure.Megabytes(g.heap),
			number("%.1f kB", float64(g.heap)/1000/float64(g.stacks)), measure.Seconds(g.restart.took), number("%d", g.restart.reads()),
			number("%d", g.restart.sum()-g.restart.reads()), measure.Seconds(g.restart.cpu[controller])))
	}
	out.WriteString("\n![Memory over the number of Stacks](scale-memory.svg)\n")
	return out.String()
}

// costTable returns the table of the processor time of each program.
func (r *results) costTable() string {
	var out strings.Builder
	last := r.growth[len(r.growth)-1]
	fmt.Fprintf(&out, "\n## Who uses the processors\n\nProcessor time per Stack, with %d Stacks.\n\n", last.stacks)
	out.WriteString(row("", "first deployment", "a commit", "deletion") + "|---|---|---|---|\n")
	for _, name := range consumers() {
		out.WriteString(row(name, perStack(last.created.cpu[name], last.createdStacks), perStack(last.commit.cpu[name], last.stacks),
			perStack(r.deleted.cpu[name], r.some)))
	}
	out.WriteString(row("sum", perStack(last.created.total(), last.createdStacks), perStack(last.commit.total(), last.stacks), perStack(r.deleted.total(), r.some)))
	out.WriteString("\nAn update makes 10 requests, and 2 more when it waits for its turn, as most do here. See [performance](performance.md#ten-stacks-one-commit) for\n" +
		"what kube-apiserver does for one, and why there are no fewer.\n")
	return out.String()
}

// requestTable returns the table of requests to the API server.
func (r *results) requestTable() string {
	var out strings.Builder
	last := r.growth[len(r.growth)-1]
	out.WriteString("\n## Requests to the API server\n\nOf all components, per Stack, those of which there is one for ten Stacks or more.\n\n")
	out.WriteString(row("request", "first deployment", "a commit", "deletion") + "|---|---|---|---|\n")
	kinds := map[string]bool{}
	for _, c := range []*cost{last.created, last.commit, r.deleted} {
		for _, kind := range c.kinds() {
			if kinds[kind] {
				continue
			}
			kinds[kind] = true
			per := func(c *cost, stacks int) float64 { return float64(c.requests[kind]) / float64(stacks) }
			a, b, d := per(last.created, last.createdStacks), per(last.commit, last.stacks), per(r.deleted, r.some)
			if max(a, b, d) >= 0.1 {
				out.WriteString(row(kind, number("%.1f", a), number("%.1f", b), number("%.1f", d)))
			}
		}
	}
	out.WriteString(row("by stack-controller", number("%.1f", float64(last.created.sum())/float64(last.createdStacks)),
		number("%.1f", float64(last.commit.sum())/float64(last.stacks)), number("%.1f", float64(r.deleted.sum())/float64(r.some))))
	return out.String()
}

func (r *results) otherTable() string {
	var out strings.Builder
	fmt.Fprintf(&out, "\n## With %d Stacks\n\n", r.stacks)
	out.WriteString(row("", "time", "processor time of stack-controller", "requests of stack-controller") + "|---|---|---|---|\n")
	line := func(name string, c *cost) {
		out.WriteString(row(name, measure.Seconds(c.took), measure.Seconds(c.cpu[controller]), number("%d", c.sum())))
	}
	line("nothing to do", r.idle)
	line(number("a commit for one namespace of %d Stacks", perTeam), r.oneTeam)
	line("a commit for all that changes no file", r.empty)
	line(number("deletion of %d Stacks, with a destroy of each", r.some), r.deleted)
	out.WriteString("\n" + row("Another tenant's commit, with the real CLI, from the push to succeeded", "median", "worst", "commits") + "|---|---|---|---|\n")
	for _, n := range []struct {
		name string
		took measure.Samples
	}{{"on a quiet system", r.quiet}, {number("during a commit for %d Stacks", r.some), r.beside}} {
		out.WriteString(row(n.name, measure.Seconds(n.took.Median()), measure.Seconds(slices.Max(n.took)), number("%d", len(n.took))))
	}
	fmt.Fprintf(&out, "\nThe leader of two controllers was killed in the middle of a commit for %d Stacks. The other one led after %s, and the last of them was "+
		"updated\n%s after the kill. Each Stack was updated once. A leader that ends, as in an upgrade, gives its lease up, and the other one leads at once. One that is\n"+
		"killed cannot: its lease lasts for 35 seconds (--leader-election-lease-duration), from when the other controller saw it renewed, and that one looks at\nit every 5 to 11 seconds: so it leads after 35 to 57 seconds. Both are the defaults of Flux's controllers; with --leader-election-retry-period=2s\nit is at most 44 seconds.\n", r.some, measure.Seconds(r.leaderless), measure.Seconds(r.tookOver))
	return out.String()
}

func (r *results) memoryTable() string {
	var out strings.Builder
	fmt.Fprintf(&out, "\n## What has the memory\n\nThe heap of stack-controller with %d Stacks, after a garbage collection.\n\n", r.stacks)
	out.WriteString(row("subject", "memory", "per Stack") + "|---|---|---|\n")
	for _, s := range r.profile {
		if s.bytes/float64(r.stacks) >= 50 {
			out.WriteString(row(s.subject, number("%.1f MB", s.bytes/1e6), number("%.2f kB", s.bytes/1000/float64(r.stacks))))
		}
	}
	out.WriteString("\nThe resident memory of the servers: ")
	var parts []string
	for _, name := range servers() {
		parts = append(parts, name+" "+measure.Megabytes(r.servers[name]))
	}
	out.WriteString(strings.Join(parts, ", ") + ".\n")
	return out.String()
}

// write writes the page, and the plots beside it.
func (r *results) write(ctx context.Context, path string) error {
	if err := os.WriteFile(path, []byte(r.text()), 0o644); err != nil {
		return fmt.Errorf("write the results: %w", err)
	}
	stem := strings.TrimSuffix(path, filepath.Ext(path))
	times, memory := []line{{Name: "first deployment"}, {Name: "a commit for all"}}, []line{{Name: "resident"}, {Name: "heap"}}
	created := 0.0
	for _, g := range r.growth {
		created += g.created.took.Seconds()
		times[0].add(g.stacks, created)
		times[1].add(g.stacks, g.commit.took.Seconds())
		memory[0].add(g.stacks, float64(g.memory.Resident)/1e6)
		memory[1].add(g.stacks, float64(g.heap)/1e6)
	}
	if err := draw(ctx, stem+"-time.svg", "seconds", times); err != nil {
		return err
	}
	return draw(ctx, stem+"-memory.svg", "MB", memory)
}

const head = `# Scale

<!-- Generated by "make scale"; do not edit. -->

This page shows what %[1]d Stacks cost: in time, memory, requests, and processor time of each component. The program of each Stack does
nothing, and a stub takes the place of the Pulumi CLI, so that what is left is the cost of everything around Pulumi.

` + "```sh\nmake scale STACKS=%[1]d\n```" + `

%[2]d Stacks each follow one GitRepository, in a namespace of their own. kube-apiserver, etcd, kube-controller-manager and
source-controller are real. Workspaces are processes that end after %[3]s without work. stack-controller has its default flags otherwise,
and GOMEMLIMIT is %[4]d MiB. Each commit is checked to be run exactly once by each Stack. “A commit for all” is one commit in each
repository at the same moment. “Restart” is the time from the start of stack-controller, after the last one was killed, until it has
looked at each Stack; its requests and processor time are those of this time and 5 seconds more. “Nothing to do” lasts %[6]s.

%[5]s
`

// line is a series of points by the number of Stacks.
type line struct {
	Name   string
	Points []point
}

type point struct{ X, Y float64 }

func (l *line) add(stacks int, value float64) {
	l.Points = append(l.Points, point{X: float64(stacks), Y: value})
}

// draw writes a plot of the lines to an SVG file, with the program in plot. unit is the unit of the values.
func draw(ctx context.Context, path, unit string, lines []line) error {
	wanted, err := json.Marshal(map[string]any{"Unit": unit, "Lines": lines})
	if err != nil {
		return err
	}
	if path, err = filepath.Abs(path); err != nil {
		return err
	}
	cmd := exec.CommandContext(ctx, "go", "run", ".", path)
	cmd.Dir = filepath.Join(tools.RepositoryRoot(), "tests", "load", "scale", "plot")
	cmd.Stdin = bytes.NewReader(wanted)
	if output, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("draw %s: %w\n%s", path, err, output)
	}
	return nil
}
