package main

import (
	"context"
	"fmt"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"

	autov1alpha1 "github.com/stack-controller/stack-controller/api/auto/v1alpha1"
	"github.com/stack-controller/stack-controller/tests/framework/cluster"
	"github.com/stack-controller/stack-controller/tests/load/measure"
)

const (
	// idleAfter is how long the system is idle before its memory is measured.
	idleAfter = 30 * time.Second
	// idlePeriod is the time after that over which the idle processor time is measured.
	idlePeriod = 30 * time.Second
)

// idle holds the resources that a container uses while it has nothing to do.
type idle struct {
	who       string
	container cluster.Container
	measure.Memory
	workingSet, inProcesses int64
	cpu                     time.Duration // over idlePeriod
}

// idleness measures what agents and controllers use while there is nothing to do.
func (b *podBench) idleness(ctx context.Context) error {
	if err := measure.Sleep(ctx, idleAfter); err != nil {
		return err
	}
	pods := &corev1.PodList{}
	if err := b.system.Client.List(ctx, pods); err != nil {
		return fmt.Errorf("list the pods: %w", err)
	}
	var agents, controllers []idle
	for i := range pods.Items {
		pod := &pods.Items[i]
		var err error
		switch {
		case isWorkspace(pod):
			agents, err = appendIdle(agents, pod, autov1alpha1.PulumiContainerName, "agent of "+pod.Namespace+"/"+pod.Name)
		case pod.Namespace == cluster.FluxNamespace:
			controllers, err = appendIdle(controllers, pod, pod.Spec.Containers[0].Name, controllerOf(pod))
		}
		if err != nil {
			return err
		}
	}
	all := slices.Concat(agents, controllers)
	before, err := b.serverTimes()
	if err != nil {
		return err
	}
	if err := measureIdle(ctx, all); err != nil {
		return err
	}
	after, err := b.serverTimes()
	if err != nil {
		return err
	}
	b.printIdle(all[:len(agents)], all[len(agents):])
	t := measure.NewTable(b.out, "servers of the cluster meanwhile", fmt.Sprintf("processor time in %s", idlePeriod))
	for _, server := range servers() {
		t.Cells(server, measure.Seconds(after[server]-before[server]))
	}
	t.Flush()
	return nil
}

// appendIdle appends an entry with the memory of a container.
func appendIdle(list []idle, pod *corev1.Pod, name, who string) ([]idle, error) {
	c, err := cluster.FindContainer(pod, name)
	if err != nil {
		return nil, err
	}
	entry := idle{who: who}
	if entry.Memory, err = measure.ProcessMemory(c.PID); err != nil {
		return nil, err
	}
	if entry.workingSet, entry.inProcesses, err = c.Memory(); err != nil {
		return nil, err
	}
	entry.container = c
	return append(list, entry), nil
}

// measureIdle adds the processor time to the entries.
func measureIdle(ctx context.Context, list []idle) error {
	for i := range list {
		spent, err := list[i].container.CPU()
		if err != nil {
			return err
		}
		list[i].cpu = -spent
	}
	if err := measure.Sleep(ctx, idlePeriod); err != nil {
		return err
	}
	for i := range list {
		spent, err := list[i].container.CPU()
		if err != nil {
			return err
		}
		list[i].cpu += spent
	}
	return nil
}

func (b *podBench) printIdle(agents, controllers []idle) {
	byMemory := func(a, b idle) int { return int(a.Resident - b.Resident) }
	slices.SortFunc(agents, byMemory)
	most := agents[len(agents)-1]
	t := measure.NewTable(b.out, fmt.Sprintf("idle for %s", idleAfter), "VmRSS", "RssAnon", "RssFile", "working set", "of it in processes",
		fmt.Sprintf("processor time in %s", idlePeriod))
	row := func(name string, i idle) {
		t.Cells(name, measure.Megabytes(i.Resident), measure.Megabytes(i.Anonymous), measure.Megabytes(i.File), measure.Megabytes(i.workingSet), measure.Megabytes(i.inProcesses),
			measure.Milliseconds(i.cpu))
	}
	row(fmt.Sprintf("%d agents, median", len(agents)), agents[(len(agents)-1)/2])
	row("  smallest", agents[0])
	row("  largest, "+most.who, most)
	for _, controller := range controllers {
		row(controller.who, controller)
	}
	t.Flush()
	b.limits.Check("memory of an idle agent (VmRSS), in MB", float64(most.Resident)/1e6, maxAgentMemory)
}
