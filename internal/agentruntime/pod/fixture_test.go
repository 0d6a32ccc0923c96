package pod

import (
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	autov1alpha1 "github.com/stack-controller/stack-controller/api/auto/v1alpha1"
	"github.com/stack-controller/stack-controller/internal/agentruntime/pod/podspec"
)

// noon is the time of all observations.
var noon = time.Date(2026, 1, 1, 12, 0, 0, 0, time.UTC)

func ago(d time.Duration) metav1.Time { return metav1.NewTime(noon.Add(-d)) }

// annotated returns annotations with these revisions.
func annotated(m revisions) map[string]string {
	return map[string]string{autov1alpha1.RevisionHashAnnotation: m.inputs, podspec.AgentRevisionAnnotation: m.agent}
}

var upToDate = revisions{inputs: "r1", agent: "a1"}

// observed returns an observation of a pod that is up to date and ready, with the changes.
func observed(changes ...func(*observation)) *observation {
	set := &appsv1.StatefulSet{Name: "app-workspace", UID: "set", Generation: 2}
	set.Spec.Template.Annotations = annotated(upToDate)
	set.Status.ObservedGeneration = 2
	pod := &corev1.Pod{
		Name: "app-workspace-0", UID: "pod", CreationTimestamp: ago(time.Hour), Annotations: annotated(upToDate),
		OwnerReferences: []metav1.OwnerReference{{UID: set.UID, Controller: new(true)}},
		Spec:            corev1.PodSpec{NodeName: "node-1"},
		Status: corev1.PodStatus{
			Phase: corev1.PodRunning, PodIP: "192.0.2.1",
			ContainerStatuses: []corev1.ContainerStatus{{
				Name: autov1alpha1.PulumiContainerName, Image: "pulumi/pulumi", Ready: true,
				State: corev1.ContainerState{Running: &corev1.ContainerStateRunning{}},
			}},
		},
	}
	o := &observation{now: noon, wanted: upToDate, address: "app:50051", statefulSet: set, pod: pod, rollAsked: true, mayRoll: true}
	for _, change := range changes {
		change(o)
	}
	if o.pod != nil {
		// The cache has no more of a pod than this.
		_, _ = strip(o.pod)
	}
	return o
}

// of returns a change that applies all the changes.
func of(changes ...func(*observation)) func(*observation) {
	return func(o *observation) {
		for _, change := range changes {
			change(o)
		}
	}
}

// container changes the state of the container with the agent.
func container(change func(*corev1.ContainerStatus)) func(*observation) {
	return func(o *observation) {
		o.pod.Status.Phase = corev1.PodPending
		status := &o.pod.Status.ContainerStatuses[0]
		status.Ready, status.State = false, corev1.ContainerState{}
		change(status)
	}
}

// waits makes the container with the agent wait.
func waits(reason, message string) func(*observation) {
	return container(func(status *corev1.ContainerStatus) {
		status.State.Waiting = &corev1.ContainerStateWaiting{Reason: reason, Message: message}
	})
}

// ended makes the container with the agent wait for its restart.
func ended(restarts int32, end corev1.ContainerStateTerminated) func(*observation) {
	return container(func(status *corev1.ContainerStatus) {
		status.RestartCount = restarts
		status.LastTerminationState.Terminated = &end
		status.State.Waiting = &corev1.ContainerStateWaiting{Reason: "CrashLoopBackOff", Message: "back-off 10s restarting"}
	})
}

// initContainer adds an init container, which the one with the agent waits for.
func initContainer(state corev1.ContainerState, last corev1.ContainerState) func(*observation) {
	return of(waits("PodInitializing", ""), func(o *observation) {
		o.pod.Status.InitContainerStatuses = []corev1.ContainerStatus{{
			Name: "bootstrap", Image: "agent:v1", RestartCount: 1, State: state, LastTerminationState: last,
		}}
	})
}

// condition sets a condition of the pod.
func condition(kind corev1.PodConditionType, status corev1.ConditionStatus, reason, message string) func(*observation) {
	return func(o *observation) {
		o.pod.Status.Conditions = append(o.pod.Status.Conditions, corev1.PodCondition{Type: kind, Status: status, Reason: reason, Message: message})
	}
}

// lostNode makes the node controller mark the pod of a node that does not answer.
func lostNode(o *observation) {
	of(condition(corev1.PodReady, corev1.ConditionFalse, "", ""), condition(corev1.ContainersReady, corev1.ConditionTrue, "", ""))(o)
}

// unready removes the status of the container: the kubelet has not reported it yet.
func unready(o *observation) {
	o.pod.Status.Phase, o.pod.Status.ContainerStatuses = corev1.PodPending, nil
}

func withoutPod(o *observation) { o.pod, o.missingSince = nil, noon.Add(-10*time.Second) }

// happenedAgo adds an event.
func happenedAgo(before time.Duration, kind, reason, message string) func(*observation) {
	return func(o *observation) {
		o.events = append(o.events, corev1.Event{Type: kind, Reason: reason, Message: message, LastTimestamp: ago(before)})
	}
}

// deleted marks the pod as deleted, with a grace period that ends after the duration.
func deleted(left time.Duration) func(*observation) {
	return func(o *observation) { o.pod.DeletionTimestamp = new(ago(-left)) }
}

// otherPod gives the pod other revisions.
func otherPod(m revisions) func(*observation) {
	return func(o *observation) { o.pod.Annotations = annotated(m) }
}
