// Command bench measures, in one run on one machine, the overhead of stack-controller. Each measurement has a counterpart without
// stack-controller: the time from a commit to the success of its Stack beside a bare "pulumi up" of the same program, in processes and in
// pods, also of a program in TypeScript, and its first deployment with npm; a push that a webhook announces; ten Stacks that follow one commit; the cost of an idle agent; the creation of a new Stack; and the
// artifact store beside a bare download. It also measures the work in goroutines that all tenants share. Run it with "make bench".
//
// It fails if a limit is exceeded, unless other programs kept the machine busy.
package main

import (
	"context"
	"flag"
	"fmt"
	"io"
	"os"
	"slices"
	"strings"

	"github.com/stack-controller/stack-controller/tests/framework/cluster"
	"github.com/stack-controller/stack-controller/tests/framework/command"
	"github.com/stack-controller/stack-controller/tests/load/measure"
)

// settings holds the settings of a run.
type settings struct {
	runs        int    // runs per measurement
	artifactMiB int64  // size of the fetched artifact
	stacks      int    // Stacks that follow one commit, in pods
	fleet       int    // Stacks that follow one commit, as processes
	enforce     bool   // fail when a limit is exceeded
	processes   bool   // measure the process runtime and the artifact store
	pods        bool   // measure the pod runtime
	sharedWork  bool   // measure the work in goroutines that all tenants share
	typescript  bool   // measure a program in TypeScript, in pods
	agentVolume string // how the agent gets into pods, as --agent-image-volume of the controller
	podParts    string // which parts of the pod runtime are measured, separated by commas; all when empty
}

func main() {
	command.Main("bench", func(ctx context.Context, args []string) error { return run(ctx, args, os.Stdout) })
}

func parse(args []string) (settings, error) {
	var s settings
	flags := flag.NewFlagSet("bench", flag.ContinueOnError)
	flags.IntVar(&s.runs, "runs", 7, "how often each thing is measured; the median counts")
	flags.Int64Var(&s.artifactMiB, "artifact-mib", 50, "size of the artifact that is fetched, in MiB")
	flags.IntVar(&s.stacks, "stacks", 10, "how many Stacks follow one commit, in pods")
	flags.IntVar(&s.fleet, "fleet", 60, "how many Stacks follow one commit, as processes")
	flags.BoolVar(&s.enforce, "enforce", true, "fail when a limit is exceeded and the machine was quiet")
	flags.BoolVar(&s.processes, "processes", true, "measure the process runtime and the artifact store")
	flags.StringVar(&s.agentVolume, "agent-image-volume", "auto", "how the agent gets into pods: the controller's --agent-image-volume")
	flags.BoolVar(&s.sharedWork, "shared-work", true, "measure the work in goroutines that all tenants share")
	flags.BoolVar(&s.typescript, "typescript", true, "measure a program in TypeScript, in pods; its tools take long to build the first time")
	flags.BoolVar(&s.pods, "pods", true, "measure the pod runtime, which needs root")
	flags.StringVar(&s.podParts, "pod-parts", "", "which parts of the pod runtime are measured, of "+strings.Join(podParts, ",")+"; all when empty")
	if err := flags.Parse(args); err != nil {
		return s, err
	}
	for _, part := range s.parts() {
		if !slices.Contains(podParts, part) {
			return s, fmt.Errorf("-pod-parts: there is no %q, but %s", part, strings.Join(podParts, ", "))
		}
		if slices.Index(podParts, part) > slices.Index(podParts, "commits") && !slices.Contains(s.parts(), "commits") {
			return s, fmt.Errorf("-pod-parts: %s needs commits", part)
		}
	}
	if s.runs < 1 || s.artifactMiB < 1 || s.stacks < 1 || s.fleet < 1 {
		return s, fmt.Errorf("-runs, -artifact-mib, -stacks and -fleet must be at least 1")
	}
	return s, nil
}

// podParts are the parts of the measurement of the pod runtime, in their order. Those after "commits" need it.
var podParts = []string{"typescript", "coldstarts", "commits", "many", "idleness", "tenants"}

// parts returns which parts of the pod runtime are measured.
func (s settings) parts() []string {
	if s.podParts != "" {
		return strings.Split(s.podParts, ",")
	}
	return slices.DeleteFunc(slices.Clone(podParts), func(part string) bool { return part == "typescript" && !s.typescript })
}

func run(ctx context.Context, args []string, out io.Writer) error {
	s, err := parse(args)
	if err != nil {
		return err
	}
	machine := &measure.Machine{}
	if err := machine.MeasureLoad(ctx); err != nil {
		return err
	}
	fmt.Fprintln(out, machine.Description())
	limits := &measure.Limits{}
	if s.sharedWork {
		if err := benchSharedWork(ctx, s, limits, out); err != nil {
			return err
		}
	}
	if s.processes {
		if err := benchRollouts(ctx, s, limits, out); err != nil {
			return err
		}
		if err := benchFleet(ctx, s, limits, out); err != nil {
			return err
		}
		if err := benchFetches(ctx, s, limits, out); err != nil {
			return err
		}
		if err := benchWebhook(ctx, s, limits, out); err != nil {
			return err
		}
	}
	switch missing := cluster.Missing(); {
	case !s.pods:
	case missing != nil:
		fmt.Fprintf(out, "\nPODS ARE NOT MEASURED: %v\n", missing)
	default:
		if err := benchPods(ctx, s, limits, out); err != nil {
			return err
		}
	}
	if err := machine.MeasureLoad(ctx); err != nil {
		return err
	}
	return limits.Report(out, machine, s.enforce)
}
