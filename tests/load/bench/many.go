package main

import (
	"context"
	"fmt"
	"maps"
	"os"
	"runtime"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"

	autov1alpha1 "github.com/stack-controller/stack-controller/api/auto/v1alpha1"
	pulumiv1 "github.com/stack-controller/stack-controller/api/pulumi/v1"
	"github.com/stack-controller/stack-controller/tests/framework/cluster"
	"github.com/stack-controller/stack-controller/tests/framework/gitserver"
	"github.com/stack-controller/stack-controller/tests/framework/localsystem"
	"github.com/stack-controller/stack-controller/tests/framework/podsystem"
	"github.com/stack-controller/stack-controller/tests/load/measure"
)

// manyRuns is how often many Stacks follow a commit. Each run covers many Stacks, but only one bare update: with three runs, the ratio to it
// differed by 0.17 between two measurements on the same machine.
const manyRuns = 5

// manyMeasured holds the measurements of many Stacks, one entry per run.
type manyMeasured struct {
	rollout measure.Samples
	// one is the processor time of a bare update. together is the duration of as many bare updates at once, and togetherCPU their processor
	// time.
	one, together, togetherCPU measure.Samples
	// spent is the processor time that each program used during the rollout.
	spent []map[string]time.Duration
}

// many measures Stacks that follow one commit, beside bare updates. It needs the bare pod.
func (b *podBench) many(ctx context.Context) error {
	app, names, err := b.deployMany(ctx)
	if err != nil {
		return err
	}
	if err := b.warmMany(ctx, app, names); err != nil {
		return err
	}
	var m manyMeasured
	for run := range min(b.runs, manyRuns) {
		if err := b.runMany(ctx, &m, app, names, program(fmt.Sprintf("many-%d", run))); err != nil {
			return err
		}
	}
	b.printMany(&m)
	return nil
}

// warmMany does a first run and counts its requests to the API server. Reading the counters takes time that must not be in the measured
// runs.
func (b *podBench) warmMany(ctx context.Context, app *localsystem.App, names []string) error {
	before, err := b.apiRequests(ctx)
	if err != nil {
		return err
	}
	if err := b.runMany(ctx, &manyMeasured{}, app, names, program("warm")); err != nil {
		return err
	}
	after, err := b.apiRequests(ctx)
	if err != nil {
		return err
	}
	b.printRequests(before, after, b.stacks)
	return nil
}

// runMany does one run and adds its measurements to m.
func (b *podBench) runMany(ctx context.Context, m *manyMeasured, app *localsystem.App, names []string, files gitserver.Files) error {
	one, err := b.bare.up(ctx, files)
	if err != nil {
		return err
	}
	together, err := b.bare.upMany(ctx, files)
	if err != nil {
		return err
	}
	before, err := b.spent(ctx, app.Namespace)
	if err != nil {
		return err
	}
	took, err := b.rollOutMany(ctx, app, files, names)
	if err != nil {
		return err
	}
	after, err := b.spent(ctx, app.Namespace)
	if err != nil {
		return err
	}
	m.one, m.together, m.togetherCPU = append(m.one, one.cpu), append(m.together, together.wall), append(m.togetherCPU, together.cpu)
	m.rollout, m.spent = append(m.rollout, took), append(m.spent, difference(before, after))
	return nil
}

// deployMany creates the Stacks and waits until they are ready.
func (b *podBench) deployMany(ctx context.Context) (app *localsystem.App, names []string, err error) {
	app, stack, err := b.system.Provide(ctx, "many", program("first"))
	if err != nil {
		return nil, nil, err
	}
	var stacks []*pulumiv1.Stack
	for i := range b.stacks {
		names = append(names, fmt.Sprintf("many-%d", i))
		stacks = append(stacks, named(stack, names[i]))
	}
	begin := time.Now()
	if err := b.deploy(ctx, app, stacks...); err != nil {
		return nil, nil, err
	}
	fmt.Fprintf(b.out, "\n%d Stacks were created, and are ready after %s\n", len(stacks), measure.Seconds(time.Since(begin)))
	return app, names, b.notePods(ctx, app.Namespace)
}

// rollOutMany returns the time from the new artifact to the success of the last Stack.
func (b *podBench) rollOutMany(ctx context.Context, app *localsystem.App, files gitserver.Files, names []string) (time.Duration, error) {
	ctx, cancel := context.WithTimeout(ctx, podPatience)
	defer cancel()
	rollouts, err := b.system.Rollouts(ctx, app, files, names...)
	if err != nil {
		return 0, err
	}
	var last time.Duration
	for _, rollout := range rollouts {
		last = max(last, rollout.Duration())
	}
	return last, nil
}

func (b *podBench) printMany(m *manyMeasured) {
	ideal := time.Duration(b.stacks) * m.one.Median() / time.Duration(runtime.NumCPU())
	ratio := m.rollout.Median().Seconds() / ideal.Seconds()
	t := measure.NewTable(b.out, fmt.Sprintf("%d Stacks, one commit", b.stacks), "median", "min", "max")
	t.Row("processor time of a bare pulumi up", m.one)
	t.Row(fmt.Sprintf("%d bare pulumi up at once in one pod", b.stacks), m.together)
	t.Row("  their processor time", m.togetherCPU)
	t.Row("new artifact → last Stack succeeded", m.rollout)
	t.Flush()
	fmt.Fprintf(b.out, "%d × the processor time of a bare update on %d processors: %s; ratio to it: %.2f; ratio to bare ones at once: %.2f; runs: %d\n",
		b.stacks, runtime.NumCPU(), measure.Seconds(ideal), ratio, m.rollout.Median().Seconds()/m.together.Median().Seconds(), len(m.rollout))
	b.limits.Check(fmt.Sprintf("%d Stacks, one commit, beside the processor time of bare updates", b.stacks), ratio, maxManyRatio)
	b.printSpent(m.spent)
}

// printSpent prints how much processor time each program used during a rollout.
func (b *podBench) printSpent(spent []map[string]time.Duration) {
	t := measure.NewTable(b.out, "processor time meanwhile", "median")
	var sum time.Duration
	for _, who := range slices.Sorted(maps.Keys(spent[0])) {
		var s measure.Samples
		for _, times := range spent {
			s = append(s, times[who])
		}
		sum += s.Median()
		t.Cells(who, measure.Seconds(s.Median()))
	}
	t.Cells("sum", measure.Seconds(sum))
	t.Flush()
}

// servers returns the names of the cluster's servers whose processor time is reported.
func servers() []string {
	return []string{"etcd", "kube-apiserver", "kube-controller-manager", "kube-scheduler", "kubelet", "containerd", "kube-proxy", "coredns"}
}

// serverTimes returns the processor time that each of the servers has used so far.
func (b *podBench) serverTimes() (map[string]time.Duration, error) {
	times := map[string]time.Duration{}
	for _, server := range servers() {
		var err error
		if times[server], err = measure.ServerCPU(b.system.Cluster.Dir, server); err != nil {
			return nil, err
		}
	}
	return times, nil
}

// spent returns the processor time that each program has used so far. It counts the agents of one namespace.
func (b *podBench) spent(ctx context.Context, namespace string) (map[string]time.Duration, error) {
	times, err := b.serverTimes()
	if err != nil {
		return nil, err
	}
	if times["this program, with the git server"], _, err = measure.ProcessCPU(os.Getpid()); err != nil {
		return nil, err
	}
	pods := &corev1.PodList{}
	if err := b.system.Client.List(ctx, pods); err != nil {
		return nil, fmt.Errorf("list the pods: %w", err)
	}
	for i := range pods.Items {
		if err := addSpent(times, &pods.Items[i], namespace); err != nil {
			return nil, err
		}
	}
	return times, nil
}

// addSpent adds the processor time of a pod. It counts an agent and the pulumi processes that it ran separately.
func addSpent(times map[string]time.Duration, pod *corev1.Pod, namespace string) error {
	switch {
	case pod.Namespace == cluster.FluxNamespace:
		c, err := cluster.FindContainer(pod, pod.Spec.Containers[0].Name)
		if err != nil {
			return err
		}
		spent, err := c.CPU()
		times[controllerOf(pod)] += spent
		return err
	case pod.Namespace == namespace && isWorkspace(pod):
		c, err := cluster.FindContainer(pod, autov1alpha1.PulumiContainerName)
		if err != nil {
			return err
		}
		own, ended, err := measure.ProcessCPU(c.PID)
		times["agents"] += own
		times["pulumi, run by agents"] += ended
		return err
	}
	return nil
}

func isWorkspace(pod *corev1.Pod) bool { return strings.HasSuffix(pod.Name, "-workspace-0") }

// controllerOf returns the name of the pod's Deployment.
func controllerOf(pod *corev1.Pod) string {
	if strings.HasPrefix(pod.Name, podsystem.ControllerName+"-") {
		return podsystem.ControllerName
	}
	return "source-controller"
}

// difference returns the processor time that was used between two measurements.
func difference(before, after map[string]time.Duration) map[string]time.Duration {
	used := map[string]time.Duration{}
	for who, time := range after {
		used[who] = time - before[who]
	}
	return used
}
