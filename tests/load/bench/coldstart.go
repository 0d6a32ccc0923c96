package main

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	apimeta "k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/watch"
	"sigs.k8s.io/controller-runtime/pkg/client"

	autov1alpha1 "github.com/stack-controller/stack-controller/api/auto/v1alpha1"
	pulumiv1 "github.com/stack-controller/stack-controller/api/pulumi/v1"
	"github.com/stack-controller/stack-controller/tests/framework/localsystem"
	"github.com/stack-controller/stack-controller/tests/load/measure"
)

// coldRuns is how often a Stack is created after the first time.
const coldRuns = 3

// coldStart describes the creation of one Stack.
type coldStart struct {
	reached []time.Duration // one per milestone of stackMilestones
	calls   []call
}

// coldStarts measures the time from the creation of a Stack whose source is ready to its first success, beside the creation of a pod with
// the same image. In the first run, the machine has no files in its page cache yet.
func (b *podBench) coldStarts(ctx context.Context) error {
	app, stack, err := b.provide(ctx, "cold")
	if err != nil {
		return err
	}
	var starts []coldStart
	var bare [][]time.Duration
	for run := range coldRuns + 1 {
		start, err := b.coldStart(ctx, app, named(stack, fmt.Sprintf("cold-%d", run)))
		if err != nil {
			return err
		}
		starts = append(starts, start)
		pod := bareSpec(b.system, app.Namespace, fmt.Sprintf("bare-%d", run))
		times, err := follow(ctx, b.system.Client, pod, podMilestones(pod.Name), &corev1.PodList{})
		if err != nil {
			return err
		}
		if err := b.remove(ctx, pod, pod.Name); err != nil {
			return err
		}
		bare = append(bare, times)
	}
	b.printColdStarts(starts, bare)
	return nil
}

// coldStart creates the Stack, follows it to its first success and removes it.
func (b *podBench) coldStart(ctx context.Context, app *localsystem.App, stack *pulumiv1.Stack) (coldStart, error) {
	if err := b.calls().reset(); err != nil {
		return coldStart{}, err
	}
	reached, err := follow(ctx, b.system.Client, stack, stackMilestones(stack.Name), &autov1alpha1.WorkspaceList{}, &appsv1.StatefulSetList{},
		&corev1.PodList{}, &autov1alpha1.UpdateList{}, &pulumiv1.StackList{})
	if err != nil {
		return coldStart{}, fmt.Errorf("%w\n%s", err, b.system.Explain(ctx, app))
	}
	calls, err := b.calls().read()
	if err != nil {
		return coldStart{}, err
	}
	return coldStart{reached: reached, calls: calls}, b.remove(ctx, stack, stack.Name+"-workspace-0")
}

// remove deletes the object and waits until its pod is gone, so that the pod does not affect the next measurement.
func (b *podBench) remove(ctx context.Context, object client.Object, pod string) error {
	ctx, cancel := context.WithTimeout(ctx, podPatience)
	defer cancel()
	if err := b.system.Client.Delete(ctx, object); err != nil {
		return fmt.Errorf("delete %T %s: %w", object, object.GetName(), err)
	}
	for {
		err := b.system.Client.Get(ctx, client.ObjectKey{Namespace: object.GetNamespace(), Name: pod}, &corev1.Pod{})
		if apierrors.IsNotFound(err) {
			return nil
		}
		if err != nil {
			return fmt.Errorf("look for the pod %s: %w", pod, err)
		}
		if err := measure.Sleep(ctx, pollInterval); err != nil {
			return fmt.Errorf("wait until the pod %s is gone: %w", pod, err)
		}
	}
}

// column returns the times of a milestone, without that of the first run.
func column(rows [][]time.Duration, index int) measure.Samples {
	var s measure.Samples
	for _, row := range rows[1:] {
		s = append(s, row[index])
	}
	return s
}

func (b *podBench) printColdStarts(starts []coldStart, bare [][]time.Duration) {
	var rows [][]time.Duration
	for _, start := range starts {
		rows = append(rows, start.reached)
	}
	t := measure.NewTable(b.out, "a new Stack, time since its creation", "first", fmt.Sprintf("median of %d more", coldRuns), "in this step")
	var previous time.Duration
	for i, m := range stackMilestones("") {
		median := column(rows, i).Median()
		t.Cells(m.name, measure.Milliseconds(rows[0][i]), measure.Milliseconds(median), measure.Milliseconds(median-previous))
		previous = median
	}
	t.Flush()
	t = measure.NewTable(b.out, "a pod of the same image, time since its creation", "first", fmt.Sprintf("median of %d more", coldRuns))
	for i, m := range podMilestones("") {
		if m.name == initialized {
			continue // the bare pod has no init containers
		}
		t.Cells(m.name, measure.Milliseconds(bare[0][i]), measure.Milliseconds(column(bare, i).Median()))
	}
	t.Flush()
	b.printCalls(starts)
	b.printSplit(rows, bare)
}

// printCalls prints the calls of the CLI and their durations.
func (b *podBench) printCalls(starts []coldStart) {
	t := measure.NewTable(b.out, "calls of pulumi for a new Stack", "first one", "last one")
	last := starts[len(starts)-1].calls
	for i, first := range starts[0].calls {
		other := "-"
		if i < len(last) && last[i].command == first.command {
			other = measure.Milliseconds(last[i].end.Sub(last[i].start))
		}
		t.Cells("pulumi "+first.command, measure.Milliseconds(first.end.Sub(first.start)), other)
	}
	t.Flush()
}

// printSplit prints how long each component took for a new Stack, without the first run.
func (b *podBench) printSplit(rows, bare [][]time.Duration) {
	index := map[string]int{}
	for i, m := range stackMilestones("") {
		index[m.name] = i
	}
	between := func(from, to string) measure.Samples {
		var s measure.Samples
		for _, row := range rows[1:] {
			var begin time.Duration
			if from != "" {
				begin = row[index[from]]
			}
			s = append(s, row[index[to]]-begin)
		}
		return s
	}
	t := measure.NewTable(b.out, "who took how long for a new Stack", "median", "min", "max")
	t.Row("stack-controller: Stack → StatefulSet", between("", "StatefulSet created"))
	t.Row("Kubernetes: StatefulSet → pod scheduled", between("StatefulSet created", "pod scheduled"))
	t.Row("kubelet and containerd: pod scheduled → container runs", between("pod scheduled", containerRuns))
	var pods measure.Samples
	scheduled, runs := index["pod scheduled"]-index["pod created"], index[containerRuns]-index["pod created"]
	for _, row := range bare[1:] {
		pods = append(pods, row[runs]-row[scheduled])
	}
	t.Row("  the same of a pod with nothing but the image", pods)
	t.Row("agent and stack-controller: container runs → Workspace Ready", between(containerRuns, "Workspace Ready"))
	t.Row("agent and pulumi: Workspace Ready → result", between("Workspace Ready", "Update has the result"))
	t.Row("stack-controller: result → Stack succeeded", between("Update has the result", "Stack succeeded"))
	t.Row("all", between("", "Stack succeeded"))
	t.Flush()
}

// milestone is a state that an object reaches while a Stack or a pod is created.
type milestone struct {
	name string
	// reached reports whether the object, as it was seen, has reached the milestone.
	reached func(object any) bool
}

// change is an object as it was at some time.
type change struct {
	at     time.Time
	object any
}

// watchAll sends every version of the objects in the namespace to the channel until the context ends.
func watchAll(ctx context.Context, c client.WithWatch, namespace string, lists ...client.ObjectList) (<-chan change, error) {
	changes := make(chan change)
	for _, list := range lists {
		watcher, err := c.Watch(ctx, list, client.InNamespace(namespace))
		if err != nil {
			return nil, fmt.Errorf("watch %T: %w", list, err)
		}
		go forward(ctx, watcher, changes)
	}
	return changes, nil
}

func forward(ctx context.Context, watcher watch.Interface, changes chan<- change) {
	defer watcher.Stop()
	for event := range watcher.ResultChan() {
		select {
		case changes <- change{at: time.Now(), object: event.Object}:
		case <-ctx.Done():
			return
		}
	}
}

// follow creates the object and returns how long after the creation each milestone was seen.
func follow(ctx context.Context, c client.WithWatch, object client.Object, milestones []milestone, lists ...client.ObjectList) ([]time.Duration, error) {
	ctx, cancel := context.WithTimeout(ctx, podPatience)
	defer cancel()
	changes, err := watchAll(ctx, c, object.GetNamespace(), lists...)
	if err != nil {
		return nil, err
	}
	begin := time.Now()
	if err := c.Create(ctx, object); err != nil {
		return nil, fmt.Errorf("create %T %s: %w", object, object.GetName(), err)
	}
	times := make([]time.Duration, len(milestones))
	for left := len(milestones); left > 0; {
		select {
		case <-ctx.Done():
			missing := slices.Index(times, 0)
			return nil, fmt.Errorf("wait for %q of %T %s: %w", milestones[missing].name, object, object.GetName(), context.Cause(ctx))
		case seen := <-changes:
			for i, m := range milestones {
				if times[i] == 0 && m.reached(seen.object) {
					times[i] = seen.at.Sub(begin)
					left--
				}
			}
		}
	}
	return times, nil
}

// initialized is the name of the milestone that only pods with init containers have.
const initialized = "init containers have run"

const containerRuns = "container runs"

// podMilestones returns the milestones of a pod with one container.
func podMilestones(name string) []milestone {
	pod := func(reached func(pod *corev1.Pod) bool) func(any) bool {
		return func(object any) bool {
			pod, ok := object.(*corev1.Pod)
			return ok && pod.Name == name && reached(pod)
		}
	}
	condition := func(kinds ...corev1.PodConditionType) func(any) bool {
		return pod(func(pod *corev1.Pod) bool {
			for _, kind := range kinds {
				if !slices.ContainsFunc(pod.Status.Conditions, func(c corev1.PodCondition) bool { return c.Type == kind && c.Status == corev1.ConditionTrue }) {
					return false
				}
			}
			return true
		})
	}
	return []milestone{
		{"pod created", pod(func(*corev1.Pod) bool { return true })},
		{"pod scheduled", condition(corev1.PodScheduled)},
		{"sandbox ready", condition(corev1.PodReadyToStartContainers)},
		// A pod without init containers counts as initialized from the beginning.
		{initialized, condition(corev1.PodReadyToStartContainers, corev1.PodInitialized)},
		{containerRuns, pod(func(pod *corev1.Pod) bool {
			statuses := pod.Status.ContainerStatuses
			return len(statuses) > 0 && statuses[0].State.Running != nil
		})},
		{"pod ready", condition(corev1.PodReady)},
	}
}

// stackMilestones returns the milestones of a new Stack. The pod counts as ready last: the kubelet reports that later than the agent answers,
// and the controller does not wait for the report.
func stackMilestones(name string) []milestone {
	milestones := []milestone{
		{"Workspace created", func(object any) bool {
			workspace, ok := object.(*autov1alpha1.Workspace)
			return ok && workspace.Name == name
		}},
		{"StatefulSet created", func(object any) bool {
			set, ok := object.(*appsv1.StatefulSet)
			return ok && strings.HasPrefix(set.Name, name+"-")
		}},
	}
	pod := podMilestones(name + "-workspace-0")
	ready := len(pod) - 1
	milestones = append(milestones, pod[:ready]...)
	return append(milestones,
		milestone{"Workspace Ready", func(object any) bool {
			workspace, ok := object.(*autov1alpha1.Workspace)
			return ok && workspace.Name == name && apimeta.IsStatusConditionTrue(workspace.Status.Conditions, autov1alpha1.WorkspaceReady)
		}},
		milestone{"Update has the result", func(object any) bool {
			update, ok := object.(*autov1alpha1.Update)
			return ok && update.Spec.WorkspaceName == name && update.IsComplete()
		}},
		milestone{"Stack succeeded", func(object any) bool {
			stack, ok := object.(*pulumiv1.Stack)
			return ok && stack.Name == name && stack.Status.LastUpdate != nil && stack.Status.LastUpdate.State == pulumiv1.StackUpdateSucceeded
		}},
		pod[ready],
	)
}
