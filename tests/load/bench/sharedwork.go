package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"regexp"
	"time"

	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/stack-controller/stack-controller/tests/framework/worstobjects"
	"github.com/stack-controller/stack-controller/tests/load/measure"
	"github.com/stack-controller/stack-controller/tests/load/sharedwork"
)

// maxSharedWork limits the time that an object of a tenant may take in a goroutine that all tenants share. It is a multiple of the time that
// encoding/json takes to check the syntax of the object for which that takes longest: with Go 1.27, 4 to 6 ms for 1.5 MiB on the machine of
// the figures, which is a third of what it took before.
const maxSharedWork = 2

// maxDeciding limits the time that a StackRollout of 10,000 Stacks takes for a decision, as the same multiple: 20 ms on the machine of the figures.
const maxDeciding = 4

// benchSharedWork measures the work in shared goroutines with the objects that cost most.
func benchSharedWork(ctx context.Context, s settings, limits *measure.Limits, out io.Writer) (err error) {
	dir, err := os.MkdirTemp("", "stack-bench-")
	if err != nil {
		return fmt.Errorf("create a directory: %w", err)
	}
	defer func() { err = errors.Join(err, os.RemoveAll(dir)) }()
	ctx, cancel := context.WithTimeout(ctx, 10*time.Minute)
	defer cancel()
	works, err := sharedwork.New(ctx, dir)
	if err != nil {
		return err
	}
	t := measure.NewTable(out, "work in shared goroutines, worst object", "read, decode, transform", "the object", "indexes, handlers", "the object")
	var checked worst
	received, handled := map[string]*worst{}, map[string]*worst{}
	for _, kind := range worstobjects.Kinds {
		received[kind.Kind], handled[kind.Kind] = &worst{}, &worst{}
		for name, object := range worstobjects.Of(kind) {
			if err := measureSharedWork(works[kind], s.runs, name, object, received[kind.Kind], handled[kind.Kind]); err != nil {
				return fmt.Errorf("%s with %s: %w", kind.Kind, name, err)
			}
			checked.add(kind.Kind+" with "+name, checkSyntax(s.runs, []byte(object)))
		}
	}
	t.Cells("syntax only", milliseconds(checked.took), checked.name, "", "")
	var longest, longestHandling time.Duration
	for _, kind := range worstobjects.Kinds {
		reading, handling := received[kind.Kind], handled[kind.Kind]
		t.Cells(kind.Kind, milliseconds(reading.took), reading.name, milliseconds(handling.took), handling.name)
		longest, longestHandling = max(longest, reading.took), max(longestHandling, handling.took)
	}
	limits.Check("reading the worst object ÷ checking its syntax", longest.Seconds()/checked.took.Seconds(), maxSharedWork)
	limits.Check("indexes and handlers of the worst object ÷ checking its syntax", longestHandling.Seconds()/checked.took.Seconds(), maxSharedWork)
	deciding, err := decideTime(ctx)
	if err != nil {
		return err
	}
	t.Cells("a StackRollout of 10,000 Stacks decides", milliseconds(deciding), "", "", "")
	limits.Check("a StackRollout of 10,000 Stacks decides ÷ checking the syntax of the worst object", deciding.Seconds()/checked.took.Seconds(), maxDeciding)
	t.Flush()
	return nil
}

// decideTime returns how long the decision of a StackRollout takes, which the benchmark of its package measures.
func decideTime(ctx context.Context) (time.Duration, error) {
	run := exec.CommandContext(ctx, "go", "test", "./internal/controller/rollout", "-run=^$", "-bench=^BenchmarkDecide$", "-benchtime=100x")
	output, err := run.CombinedOutput()
	if err != nil {
		return 0, fmt.Errorf("run the benchmark of a decision: %w: %s", err, output)
	}
	found := benchmarkTime.FindSubmatch(output)
	if found == nil {
		return 0, fmt.Errorf("find the time of a decision in %q", output)
	}
	return time.ParseDuration(string(found[1]) + "ns")
}

var benchmarkTime = regexp.MustCompile(`BenchmarkDecide\S*\s+\d+\s+(\d+(?:\.\d+)?) ns/op`)

// worst is what took longest.
type worst struct {
	took time.Duration
	name string
}

func (w *worst) add(name string, samples measure.Samples) {
	if took := samples.Median(); took > w.took {
		w.took, w.name = took, name
	}
}

func checkSyntax(runs int, object []byte) (checking measure.Samples) {
	for range runs {
		start := time.Now()
		_ = json.Valid(object) // of very deep nesting it reports an error soon
		checking = append(checking, time.Since(start))
	}
	return checking
}

func measureSharedWork(work *sharedwork.Work, runs int, name, object string, received, handled *worst) error {
	var reading, handling measure.Samples
	for range runs {
		start := time.Now()
		kept, err := work.Receive(object)
		if err != nil {
			return err
		}
		reading = append(reading, time.Since(start))
		after := kept.DeepCopyObject().(client.Object)
		after.SetGeneration(2)
		after.SetResourceVersion("2")
		start = time.Now()
		work.Index(kept)
		work.Handle(kept, after)
		handling = append(handling, time.Since(start))
	}
	received.add(name, reading)
	handled.add(name, handling)
	return nil
}

// milliseconds formats a time that may be shorter than a millisecond.
func milliseconds(d time.Duration) string { return fmt.Sprintf("%.2f ms", float64(d)/1e6) }
