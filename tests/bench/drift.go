package main

import (
	"context"
	"fmt"
	"io"
	"runtime"
	"strconv"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/wait"
	"sigs.k8s.io/controller-runtime/pkg/client"

	pulumiv1 "github.com/stack-controller/stack-controller/api/pulumi/v1"
	"github.com/stack-controller/stack-controller/tests/measure"
	"github.com/stack-controller/stack-controller/tests/stage"
)

const (
	// maxDriftRatio is that of the time that many Stacks take to be checked for drift, all at once, to the processor time of as many bare
	// previews of a refresh, divided by the number of processors. Such a preview is short, so the share of all else is larger.
	maxDriftRatio = 2
	// hourlyStacks is for how many Stacks the table says what hourly checks cost.
	hourlyStacks = 1000
)

// benchDrift measures how long it takes to check many Stacks for drift, and what one check costs.
func benchDrift(ctx context.Context, s settings, limits *measure.Limits, system *stage.Stage, bare *stage.Bare, namespace string, names []string, out io.Writer) error {
	var one, all measure.Samples
	for run := range min(s.runs, manyRuns) + 1 {
		cpu, err := bare.LookForDrift(ctx)
		if err != nil {
			return err
		}
		took, err := checkAll(ctx, system, namespace, names, "run-"+strconv.Itoa(run))
		if err != nil {
			return err
		}
		if run > 0 { // the first one warms up
			one, all = append(one, cpu), append(all, took)
		}
	}
	ideal := time.Duration(len(names)) * one.Median() / time.Duration(runtime.NumCPU())
	ratio := all.Median().Seconds() / ideal.Seconds()
	each := all.Median() * time.Duration(runtime.NumCPU()) / time.Duration(len(names))
	t := measure.NewTable(out, fmt.Sprintf("%d Stacks, checked for drift at once, workspaces as processes", len(names)), "median", "min", "max")
	t.Row("processor time of a bare pulumi refresh --preview-only", one)
	t.Row("request → last Stack checked", all)
	t.Flush()
	fmt.Fprintf(out, "at most %s of processor time for each check; %d Stacks, once per hour: %.0f %% of one processor; ratio: %.2f\n",
		measure.Seconds(each), hourlyStacks, 100*hourlyStacks*each.Hours(), ratio)
	limits.Check(fmt.Sprintf("checking %d Stacks for drift, beside the processor time of bare previews", len(names)), ratio, maxDriftRatio)
	return nil
}

// checkAll asks for a check of all the Stacks, and returns how long it took until all were checked.
func checkAll(ctx context.Context, system *stage.Stage, namespace string, names []string, token string) (time.Duration, error) {
	ctx, cancel := context.WithTimeout(ctx, fleetPatience)
	defer cancel()
	change := fmt.Appendf(nil, `{"metadata":{"annotations":{%q:%q}},"spec":{"drift":{"interval":"24h"}}}`, pulumiv1.DriftCheckAnnotation, token)
	start := time.Now()
	for _, name := range names {
		stack := &pulumiv1.Stack{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name}}
		if err := system.Client.Patch(ctx, stack, client.RawPatch(types.MergePatchType, change)); err != nil {
			return 0, fmt.Errorf("ask for a check of Stack %s: %w", name, err)
		}
	}
	err := wait.PollUntilContextCancel(ctx, 100*time.Millisecond, true, func(ctx context.Context) (bool, error) {
		var stacks pulumiv1.StackList
		if err := system.Client.List(ctx, &stacks, client.InNamespace(namespace)); err != nil {
			return false, err
		}
		checked := 0
		for i := range stacks.Items {
			if drift := stacks.Items[i].Status.Drift; drift != nil && drift.LastHandledCheckAt == token {
				checked++
			}
		}
		return checked == len(names), nil
	})
	if err != nil {
		return 0, fmt.Errorf("wait until all Stacks are checked for drift: %w", err)
	}
	return time.Since(start), nil
}
