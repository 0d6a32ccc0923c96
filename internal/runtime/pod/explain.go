package pod

import (
	"fmt"
	"strings"
	"time"
	"unicode"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	autov1alpha1 "github.com/stack-controller/stack-controller/api/auto/v1alpha1"
	"github.com/stack-controller/stack-controller/internal/runtime"
)

const (
	// slowStart is how long the kubelet may take to start containers before its events are looked at.
	slowStart = 5 * time.Second
	// endSlack is how much later than its grace period allows a pod may be gone before its node is suspected.
	endSlack = 30 * time.Second
	// maxQuote bounds, in bytes, what a message quotes.
	maxQuote = 1 << 10
)

// explainPod says how a pod stands that is what the user wants.
func explainPod(o *observation) runtime.Status {
	container := containerOf(o.pod, autov1alpha1.PulumiContainerName)
	ready := container != nil && container.Ready && container.State.Running != nil
	switch {
	case o.pod.Status.Phase == corev1.PodUnknown || o.pod.Status.Reason == "NodeLost" || ready && nodeLost(o.pod):
		return failing(autov1alpha1.NodeLostReason, fmt.Sprintf("node %s of pod %s does not answer", o.pod.Spec.NodeName, o.pod.Name))
	case o.pod.Status.Phase == corev1.PodFailed || o.pod.Status.Phase == corev1.PodSucceeded:
		return explainEnded(o.pod)
	case ready:
		return runtime.Status{Ready: true, Reason: autov1alpha1.SucceededReason, Message: "the agent is running", Address: o.address}
	}
	if scheduled := conditionOf(o.pod, corev1.PodScheduled); scheduled != nil && scheduled.Status == corev1.ConditionFalse {
		return failing(autov1alpha1.UnschedulableReason, fmt.Sprintf("no node takes pod %s: %s", o.pod.Name, quote(scheduled.Message)))
	}
	if status, found := explainContainers(o.pod); found {
		return status
	}
	return explainStart(o)
}

// nodeLost tells whether the pod is not ready although its containers are, which is how the pods of a node that does not
// answer are marked.
func nodeLost(pod *corev1.Pod) bool {
	ready, containers := conditionOf(pod, corev1.PodReady), conditionOf(pod, corev1.ContainersReady)
	return ready != nil && ready.Status == corev1.ConditionFalse && ready.Reason != "ReadinessGatesNotReady" &&
		containers != nil && containers.Status == corev1.ConditionTrue
}

// explainEnded says why the pod as a whole ended. The StatefulSet controller replaces it.
func explainEnded(pod *corev1.Pod) runtime.Status {
	message := fmt.Sprintf("pod %s ended", pod.Name)
	if pod.Status.Reason != "" {
		message += " (" + pod.Status.Reason + ")"
	}
	if pod.Status.Message != "" {
		message += ": " + quote(pod.Status.Message)
	}
	return failing(autov1alpha1.PodFailedReason, message)
}

// explainStart says how far a pod is that has no problem, or one that only events tell about.
func explainStart(o *observation) runtime.Status {
	status := runtime.Status{Reason: autov1alpha1.InitializingReason, Message: fmt.Sprintf("pod %s is starting", o.pod.Name)}
	if o.pod.Spec.NodeName == "" {
		status.Message = fmt.Sprintf("pod %s is being scheduled", o.pod.Name)
		return status
	}
	if !containersWait(o.pod) {
		// A probe, or the end of an init container, changes the pod.
		return status
	}
	age := o.now.Sub(o.pod.CreationTimestamp.Time)
	status.RetryAfter = max(slowStart-age, growing(age))
	newest := newestEvent(o.events)
	if newest == nil || newest.Type != corev1.EventTypeWarning {
		if newest != nil && newest.Reason == "Pulling" {
			status.Message += ", an image is being pulled"
		}
		return status
	}
	switch newest.Reason {
	case "FailedMount", "FailedAttachVolume", "FailedMapVolume":
		status.Reason = autov1alpha1.VolumeMountFailedReason
	case "FailedCreatePodSandBox", "NetworkNotReady", "FailedPodSandBoxStatus":
		status.Reason = autov1alpha1.PodStartFailedReason
	default:
		return status
	}
	status.Failing, status.Message = true, fmt.Sprintf("pod %s cannot start on node %s: %s", o.pod.Name, o.pod.Spec.NodeName, quote(newest.Message))
	return status
}

// explainTerminating says that the pod is ending, and why if somebody told.
func explainTerminating(o *observation) runtime.Status {
	status := runtime.Status{Reason: autov1alpha1.PodTerminatingReason, Message: fmt.Sprintf("pod %s is ending, another one follows", o.pod.Name)}
	if marksOf(o.pod.Annotations) != o.wanted {
		status.Reason = autov1alpha1.RollingUpdateReason
	}
	if why := conditionOf(o.pod, corev1.DisruptionTarget); why != nil && why.Status == corev1.ConditionTrue {
		status.Message += fmt.Sprintf(" (%s: %s)", why.Reason, quote(why.Message))
	}
	// The time includes the grace period.
	late := o.pod.DeletionTimestamp.Add(endSlack)
	if o.now.Before(late) {
		status.RetryAfter = late.Sub(o.now)
		return status
	}
	status.Failing, status.Reason = true, autov1alpha1.NodeLostReason
	status.Message = fmt.Sprintf("pod %s has not ended in time, its node %s may be gone; if it is, delete the node or force the deletion of the pod",
		o.pod.Name, o.pod.Spec.NodeName)
	return status
}

// explainForeign says that a pod of that name is in the way.
func explainForeign(o *observation) runtime.Status {
	status := runtime.Status{Reason: autov1alpha1.InitializingReason, Message: "the StatefulSet is being created", RetryAfter: minInterval}
	if o.statefulSet != nil {
		status.Reason, status.RetryAfter = autov1alpha1.PodTerminatingReason, maxInterval
		status.Message = fmt.Sprintf("pod %s belongs to something else, which has to remove it first", o.pod.Name)
	}
	return status
}

// wantsEvents returns what events are needed about, empty when none are.
func wantsEvents(o *observation) types.UID {
	switch {
	case o.statefulSet == nil:
		return ""
	case o.pod == nil:
		return o.statefulSet.UID
	case o.pod.DeletionTimestamp == nil && o.pod.Spec.NodeName != "" && o.now.Sub(o.pod.CreationTimestamp.Time) >= slowStart &&
		o.pod.Status.Phase == corev1.PodPending && containersWait(o.pod):
		return o.pod.UID
	}
	return ""
}

// failing is the status of a pod with a problem that may pass. The pod changes when it does, which is an event.
func failing(reason, message string) runtime.Status {
	return runtime.Status{Failing: true, Reason: reason, Message: message}
}

// quote makes the words of others fit for a message.
func quote(text string) string {
	text = strings.Map(func(r rune) rune {
		if unicode.IsControl(r) && r != '\n' && r != '\t' {
			return -1
		}
		return r
	}, strings.ToValidUTF8(text, "?"))
	text = strings.TrimSpace(text)
	if len(text) > maxQuote {
		return strings.ToValidUTF8(text[:maxQuote], "") + " …"
	}
	return text
}
