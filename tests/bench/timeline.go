package main

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	apimeta "k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/watch"
	"sigs.k8s.io/controller-runtime/pkg/client"

	autov1alpha1 "github.com/stack-controller/stack-controller/api/auto/v1alpha1"
	pulumiv1 "github.com/stack-controller/stack-controller/api/pulumi/v1"
)

// milestone is a state of an object that comes up on the way to something.
type milestone struct {
	name string
	// reached tells it by an object that was seen.
	reached func(object any) bool
}

// sighting is an object as it was at a moment.
type sighting struct {
	at     time.Time
	object any
}

// watchAll reports every version of the objects in the namespace until the context ends.
func watchAll(ctx context.Context, c client.WithWatch, namespace string, lists ...client.ObjectList) (<-chan sighting, error) {
	sightings := make(chan sighting)
	for _, list := range lists {
		watcher, err := c.Watch(ctx, list, client.InNamespace(namespace))
		if err != nil {
			return nil, fmt.Errorf("watch %T: %w", list, err)
		}
		go forward(ctx, watcher, sightings)
	}
	return sightings, nil
}

func forward(ctx context.Context, watcher watch.Interface, sightings chan<- sighting) {
	defer watcher.Stop()
	for event := range watcher.ResultChan() {
		select {
		case sightings <- sighting{at: time.Now(), object: event.Object}:
		case <-ctx.Done():
			return
		}
	}
}

// follow creates the object and returns when each milestone was seen, after the creation.
func follow(ctx context.Context, c client.WithWatch, object client.Object, milestones []milestone, lists ...client.ObjectList) ([]time.Duration, error) {
	ctx, cancel := context.WithTimeout(ctx, podPatience)
	defer cancel()
	sightings, err := watchAll(ctx, c, object.GetNamespace(), lists...)
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
		case seen := <-sightings:
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

// initialized is the milestone that only pods with init containers have.
const initialized = "init containers have run"

// podMilestones are those of a pod with a container.
func podMilestones(name string) []milestone {
	pod := func(reached func(pod *corev1.Pod) bool) func(any) bool {
		return func(object any) bool {
			pod, ok := object.(*corev1.Pod)
			return ok && pod.Name == name && reached(pod)
		}
	}
	condition := func(kind corev1.PodConditionType) func(any) bool {
		return pod(func(pod *corev1.Pod) bool {
			return slices.ContainsFunc(pod.Status.Conditions, func(c corev1.PodCondition) bool {
				return c.Type == kind && c.Status == corev1.ConditionTrue
			})
		})
	}
	return []milestone{
		{"pod created", pod(func(*corev1.Pod) bool { return true })},
		{"pod scheduled", condition(corev1.PodScheduled)},
		{"sandbox ready", condition(corev1.PodReadyToStartContainers)},
		{initialized, condition(corev1.PodInitialized)},
		{"container runs", pod(func(pod *corev1.Pod) bool {
			statuses := pod.Status.ContainerStatuses
			return len(statuses) > 0 && statuses[0].State.Running != nil
		})},
		{"pod ready", condition(corev1.PodReady)},
	}
}

// stackMilestones are those of a Stack that comes into being.
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
	milestones = append(milestones, podMilestones(name+"-workspace-0")...)
	return append(milestones,
		milestone{"Workspace Ready", func(object any) bool {
			workspace, ok := object.(*autov1alpha1.Workspace)
			return ok && workspace.Name == name && apimeta.IsStatusConditionTrue(workspace.Status.Conditions, autov1alpha1.WorkspaceReady)
		}},
		milestone{"operation runs", func(object any) bool {
			update, ok := object.(*autov1alpha1.Update)
			return ok && update.Spec.WorkspaceName == name && update.Status.State != "" && update.Status.State != autov1alpha1.UpdateStateQueued
		}},
		milestone{"Update has the result", func(object any) bool {
			update, ok := object.(*autov1alpha1.Update)
			return ok && update.Spec.WorkspaceName == name && update.IsComplete()
		}},
		milestone{"Stack succeeded", func(object any) bool {
			stack, ok := object.(*pulumiv1.Stack)
			return ok && stack.Name == name && stack.Status.LastUpdate != nil && stack.Status.LastUpdate.State == pulumiv1.StackUpdateSucceeded
		}},
	)
}
