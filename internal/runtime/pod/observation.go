package pod

import (
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	autov1alpha1 "github.com/stack-controller/stack-controller/api/auto/v1alpha1"
	"github.com/stack-controller/stack-controller/internal/runtime"
	"github.com/stack-controller/stack-controller/internal/runtime/pod/shape"
)

// marks are what tells one pod template from another.
type marks struct {
	// revision is what the user determines, agent what the controller determines.
	revision, agent string
}

// marksOf reads the marks of a pod, or of a template.
func marksOf(annotations map[string]string) marks {
	return marks{revision: annotations[autov1alpha1.RevisionHashAnnotation], agent: annotations[shape.AgentRevisionAnnotation]}
}

// observation is all that a decision is made from.
type observation struct {
	now time.Time
	// wanted are the marks of a pod that is up to date.
	wanted marks
	// address is where a pod that is ready is reached from inside the cluster.
	address string
	// rejected says that the API server did not accept the objects as they are wanted; nil when it did.
	rejected *runtime.Status
	// statefulSet is nil as long as it was not seen.
	statefulSet *appsv1.StatefulSet
	// pod is nil when there is none.
	pod *corev1.Pod
	// missingSince is since when there is no pod.
	missingSince time.Time
	// nudgeAt is when the StatefulSet controller may be asked to try again.
	nudgeAt time.Time
	// events are those about the StatefulSet while there is no pod, or about a pod that takes its time. See wantsEvents.
	events []corev1.Event
	// agent is the answer of the agent to whether the pod may go. See wantsAnswer.
	agent agentView
	// mayRoll says that the pod is among the few that may be replaced now because the controller is another one.
	mayRoll bool
	// renewing says that the agent does not have the key pair yet that is in the Secret now.
	renewing bool
	// drainingSince is since when the status says that the pod is about to be replaced; zero when it does not.
	drainingSince time.Time
}

// agentView is what the agent answered.
type agentView struct {
	// err is why there is no answer, and silentSince since when there has been none.
	err         error
	silentSince time.Time
	// busy says that an operation is not done, or that its result may not be recorded yet.
	busy bool
}

// action is what has to be done beside writing the status.
type action string

const (
	// actionNone leaves everything as it is.
	actionNone action = ""
	// actionNudge has the StatefulSet controller try at once to create the pod.
	actionNudge action = "nudge"
	// actionDrain keeps new operations away, for the pod is about to be replaced.
	actionDrain action = "drain"
	// actionReplace deletes the pod, so that one of the current template takes its place.
	actionReplace action = "replace"
	// actionHurry shortens the time that a pod has to end.
	actionHurry action = "hurry"
)

// decision is what was decided.
type decision struct {
	status runtime.Status
	action action
}

// applied tells whether the StatefulSet makes pods that are up to date, as far as its controller has told.
func (o *observation) applied() bool {
	return o.statefulSet != nil && marksOf(o.statefulSet.Spec.Template.Annotations) == o.wanted &&
		o.statefulSet.Status.ObservedGeneration >= o.statefulSet.Generation
}

// owned tells whether the pod is one of the StatefulSet.
func (o *observation) owned() bool {
	return o.statefulSet != nil && metav1.IsControlledBy(o.pod, o.statefulSet)
}

// containerOf returns the state of a container of the pod; nil when the kubelet has not told.
func containerOf(pod *corev1.Pod, name string) *corev1.ContainerStatus {
	for i := range pod.Status.ContainerStatuses {
		if pod.Status.ContainerStatuses[i].Name == name {
			return &pod.Status.ContainerStatuses[i]
		}
	}
	return nil
}

// conditionOf returns a condition of the pod, or nil.
func conditionOf(pod *corev1.Pod, name corev1.PodConditionType) *corev1.PodCondition {
	for i := range pod.Status.Conditions {
		if pod.Status.Conditions[i].Type == name {
			return &pod.Status.Conditions[i]
		}
	}
	return nil
}

// agentRuns tells whether there is a process to talk to.
func agentRuns(pod *corev1.Pod) bool {
	container := containerOf(pod, autov1alpha1.PulumiContainerName)
	ended := pod.Status.Phase == corev1.PodFailed || pod.Status.Phase == corev1.PodSucceeded
	return container != nil && container.State.Running != nil && pod.Status.PodIP != "" && !ended
}
