package pod

import (
	"fmt"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"

	autov1alpha1 "github.com/stack-controller/stack-controller/api/auto/v1alpha1"
	"github.com/stack-controller/stack-controller/internal/agentruntime"
	"github.com/stack-controller/stack-controller/internal/agentruntime/pod/podspec"
	"github.com/stack-controller/stack-controller/internal/backoff"
	"github.com/stack-controller/stack-controller/internal/plaintext"
)

const (
	// slowStart is how long the kubelet may take to start containers before its events are read.
	slowStart = 5 * time.Second
	// endSlack is how long after its grace period a pod may still exist before its node is suspected to be lost.
	endSlack = 30 * time.Second
	// stalledRestarts is the number of restarts of a container at which the status becomes Stalled, so that a person looks into it. The kubelet
	// counts them over the life of the pod. After a run of steadyRun, the kubelet takes a crash for the first one, and so does the status.
	stalledRestarts = 5
	steadyRun       = 10 * time.Minute
	// formatError is the kernel's error for a program that is built for another processor architecture.
	formatError = "exec format error"
	// maxQuote bounds, in bytes, the text from elsewhere that a message quotes.
	maxQuote = 1 << 10
)

// failing returns the status of a pod with a problem that may pass. An event follows when it passes, because the pod changes.
func failing(reason, format string, args ...any) agentruntime.Status {
	return agentruntime.Status{Failing: true, Reason: reason, Message: fmt.Sprintf(format, args...)}
}

// explainMissing explains why there is no pod. The status is Failing if the creation of the pod failed.
func explainMissing(o *observation) agentruntime.Status {
	if o.statefulSet == nil {
		return agentruntime.Status{Reason: autov1alpha1.InitializingReason, Message: "the StatefulSet is being created"}
	}
	newest := newestEvent(o.events, "FailedCreate", "SuccessfulCreate")
	if newest.Type != corev1.EventTypeWarning {
		return agentruntime.Status{
			Reason:     autov1alpha1.WaitingForReplicasReason,
			Message:    fmt.Sprintf("the pod of StatefulSet %s has not been created yet", o.statefulSet.Name),
			RetryAfter: backoff.Proportional(o.now.Sub(o.missingSince), minInterval, maxInterval),
		}
	}
	reason, cause := creationProblem(newest.Message)
	status := failing(reason, "the pod cannot be created, trying again: %s", quote(cause))
	status.RetryAfter = maxInterval
	return status
}

// creationProblem finds the cause of a failed creation in the message of the StatefulSet controller or of the API server.
func creationProblem(message string) (reason, cause string) {
	// "create Pod NAME in StatefulSet NAME failed error: CAUSE"
	_, cause, found := strings.Cut(message, " failed error: ")
	if !found {
		cause = message
	}
	for _, known := range []struct{ words, reason string }{
		{"exceeded quota", autov1alpha1.QuotaExceededReason},
		{"failed quota", autov1alpha1.QuotaExceededReason},
		{"violates PodSecurity", autov1alpha1.PodSecurityViolationReason},
		{"error looking up service account", autov1alpha1.ServiceAccountNotFoundReason},
		{"because it is being terminated", autov1alpha1.NamespaceTerminatingReason},
	} {
		if strings.Contains(cause, known.words) {
			return known.reason, cause
		}
	}
	return autov1alpha1.PodCreationFailedReason, cause
}

// explainUnownedPod returns the status while a pod of that name belongs to another object.
func explainUnownedPod(o *observation) agentruntime.Status {
	if o.statefulSet == nil {
		return agentruntime.Status{Reason: autov1alpha1.InitializingReason, Message: "the StatefulSet is being created", RetryAfter: minInterval}
	}
	return agentruntime.Status{
		Reason: autov1alpha1.PodTerminatingReason, RetryAfter: maxInterval,
		Message: fmt.Sprintf("pod %s belongs to something else, which has to remove it first", o.pod.Name),
	}
}

// explainTerminating returns the status of a pod that is being deleted, with the reason if the pod has one in its condition
// DisruptionTarget.
func explainTerminating(o *observation) agentruntime.Status {
	// The deletion timestamp includes the grace period.
	late := o.pod.DeletionTimestamp.Add(endSlack)
	switch isLate := !o.now.Before(late); {
	case isLate && containersEnded(o.pod):
		return failing(autov1alpha1.PodTerminatingReason,
			"the containers of pod %s have ended, but the pod stays: a finalizer keeps it, or a volume that cannot be unmounted; see its metadata.finalizers and events",
			o.pod.Name)
	case isLate:
		return failing(autov1alpha1.NodeLostReason,
			"pod %s has not ended in time, its node %s may be gone; if it is, delete the node or force the deletion of the pod",
			o.pod.Name, o.pod.Spec.NodeName)
	case nodeLost(o.pod):
		// No other pod follows before the node is back, or this pod is deleted by force.
		status := failing(autov1alpha1.NodeLostReason,
			"pod %s cannot end, because its node %s does not answer; if the node is gone, delete it or force the deletion of the pod",
			o.pod.Name, o.pod.Spec.NodeName)
		status.RetryAfter = late.Sub(o.now)
		return status
	}
	status := agentruntime.Status{
		Reason:     autov1alpha1.PodTerminatingReason,
		Message:    fmt.Sprintf("pod %s is ending, another one follows", o.pod.Name),
		RetryAfter: late.Sub(o.now),
	}
	if revisionsOf(o.pod.Annotations) != o.wanted {
		status.Reason = autov1alpha1.RollingUpdateReason
	}
	if why := conditionOf(o.pod, corev1.DisruptionTarget); why.Status == corev1.ConditionTrue {
		status.Message += fmt.Sprintf(" (%s: %s)", why.Reason, quote(why.Message))
	}
	return status
}

// explainPod returns the status of a pod that has the inputs that the user wants.
func explainPod(o *observation) agentruntime.Status {
	container := containerOf(o.pod, autov1alpha1.PulumiContainerName)
	ready := o.answered || container != nil && container.Ready && container.State.Running != nil
	scheduled := conditionOf(o.pod, corev1.PodScheduled)
	switch status := o.pod.Status; {
	case status.Phase == corev1.PodUnknown || status.Reason == "NodeLost" || ready && nodeLost(o.pod):
		return failing(autov1alpha1.NodeLostReason, "node %s of pod %s does not answer", o.pod.Spec.NodeName, o.pod.Name)
	case status.Phase == corev1.PodFailed || status.Phase == corev1.PodSucceeded:
		return explainEnded(o.pod)
	case ready:
		return agentruntime.Status{Ready: true, Reason: autov1alpha1.SucceededReason, Message: "the agent is running", Address: o.address}
	case scheduled.Status == corev1.ConditionFalse:
		return failing(autov1alpha1.UnschedulableReason, "pod %s cannot be scheduled: %s", o.pod.Name, quote(scheduled.Message))
	}
	if problem := explainContainers(o.pod); problem.Failing {
		return problem
	}
	return explainStart(o)
}

// nodeLost reports whether the pod is not ready although its containers are: the node controller marks the pods of a node that does not
// answer in this way.
func nodeLost(pod *corev1.Pod) bool {
	ready := conditionOf(pod, corev1.PodReady)
	return ready.Status == corev1.ConditionFalse && ready.Reason != "ReadinessGatesNotReady" &&
		conditionOf(pod, corev1.ContainersReady).Status == corev1.ConditionTrue
}

// containersEnded reports whether the kubelet has ended all containers of the pod.
func containersEnded(pod *corev1.Pod) bool {
	runs := func(container corev1.ContainerStatus) bool { return container.State.Terminated == nil }
	return len(pod.Status.ContainerStatuses) > 0 && !slices.ContainsFunc(pod.Status.ContainerStatuses, runs)
}

// explainEnded explains why the pod as a whole ended. The StatefulSet controller replaces the pod.
func explainEnded(pod *corev1.Pod) agentruntime.Status {
	message := fmt.Sprintf("pod %s ended", pod.Name)
	if pod.Status.Reason != "" {
		message += " (" + pod.Status.Reason + ")"
	}
	return failing(autov1alpha1.PodFailedReason, "%s%s", message, detail(pod.Status.Message))
}

// explainStart describes the progress of a pod that has no problem, or whose problem only events show.
func explainStart(o *observation) agentruntime.Status {
	status := agentruntime.Status{Reason: autov1alpha1.InitializingReason, Message: fmt.Sprintf("pod %s is starting", o.pod.Name)}
	if o.pod.Spec.NodeName == "" {
		status.Message = fmt.Sprintf("pod %s is being scheduled", o.pod.Name)
		return status
	}
	if !containersWait(o.pod) {
		// An event follows: a probe, or the end of an init container, changes the pod.
		return status
	}
	age := o.now.Sub(o.pod.CreationTimestamp.Time)
	status.RetryAfter = max(slowStart-age, backoff.Proportional(age, minInterval, maxInterval))
	newest := newestEvent(o.events)
	switch newest.Type + " " + newest.Reason {
	case "Normal Pulling":
		status.Message += ", an image is being pulled"
		return status
	case "Warning FailedMount", "Warning FailedAttachVolume", "Warning FailedMapVolume":
		status.Reason = autov1alpha1.VolumeMountFailedReason
	case "Warning FailedCreatePodSandBox", "Warning NetworkNotReady", "Warning FailedPodSandBoxStatus":
		status.Reason = autov1alpha1.PodStartFailedReason
	default:
		return status
	}
	status.Failing, status.Message = true, fmt.Sprintf("pod %s cannot start on node %s: %s", o.pod.Name, o.pod.Spec.NodeName, quote(newest.Message))
	return status
}

// containersWait reports whether no container of the pod runs yet, because they are being created.
func containersWait(pod *corev1.Pod) bool {
	all := slices.Concat(pod.Status.InitContainerStatuses, pod.Status.ContainerStatuses)
	return !slices.ContainsFunc(all, func(container corev1.ContainerStatus) bool { return container.State.Running != nil })
}

// explainContainers describes the first container that has a problem; the status is not Failing if none has one. It looks at the init
// containers first, because the others wait for them, and then at the container with the agent.
func explainContainers(pod *corev1.Pod) agentruntime.Status {
	for i := range pod.Status.InitContainerStatuses {
		if status := explainContainer(pod, &pod.Status.InitContainerStatuses[i], "init container"); status.Failing {
			return status
		}
	}
	for _, agentFirst := range []bool{true, false} {
		for i := range pod.Status.ContainerStatuses {
			container := &pod.Status.ContainerStatuses[i]
			if agentFirst != (container.Name == autov1alpha1.PulumiContainerName) {
				continue
			}
			if status := explainContainer(pod, container, "container"); status.Failing {
				return status
			}
		}
	}
	return agentruntime.Status{}
}

// explainContainer describes the problem of the container; the status is not Failing if the container has none.
func explainContainer(pod *corev1.Pod, container *corev1.ContainerStatus, kind string) agentruntime.Status {
	subject := fmt.Sprintf("%s %s of pod %s", kind, container.Name, pod.Name)
	if waiting := container.State.Waiting; waiting != nil && waiting.Reason != "CrashLoopBackOff" {
		return explainWaiting(pod, container, subject)
	}
	ended := container.State.Terminated
	if ended == nil && !container.Ready {
		// The container runs again, or waits for a restart. Until it is ready, its last end still counts as the problem.
		ended = container.LastTerminationState.Terminated
	}
	if ended == nil || ended.ExitCode == 0 && kind == "init container" {
		return agentruntime.Status{}
	}
	status := explainCrash(pod, container, subject, ended)
	status.Stalled = container.RestartCount >= stalledRestarts && (container.State.Waiting != nil || !ranSteadily(ended))
	return status
}

// ranSteadily reports whether the container ran for so long before it ended that the end is not one of a row of crashes. The time of the start
// is zero, or that of the Unix epoch, if the container never ran.
func ranSteadily(ended *corev1.ContainerStateTerminated) bool {
	return ended.StartedAt.Unix() > 0 && ended.FinishedAt.Sub(ended.StartedAt.Time) >= steadyRun
}

// explainWaiting explains why a container is not even started.
func explainWaiting(pod *corev1.Pod, container *corev1.ContainerStatus, subject string) agentruntime.Status {
	switch waiting := container.State.Waiting; waiting.Reason {
	case "ErrImagePull", "ImagePullBackOff", "RegistryUnavailable", "ImageInspectError", "SignatureValidationFailed":
		return failing(autov1alpha1.ImagePullFailedReason, "image %s of %s cannot be pulled, trying again%s",
			container.Image, subject, detail(pullProblem(waiting.Message)))
	case "InvalidImageName":
		status := failing(autov1alpha1.ImagePullFailedReason, "%s has an invalid image name: %q", subject, container.Image)
		status.Stalled = true
		return status
	case "ErrImageNeverPull":
		return failing(autov1alpha1.ImagePullFailedReason, "image %s of %s is not on node %s, and its pull policy is Never",
			container.Image, subject, pod.Spec.NodeName)
	case "CreateContainerConfigError", "CreateContainerError", "RunContainerError", "PreStartHookError", "PostStartHookError",
		"PreCreateHookError":
		if strings.Contains(waiting.Message, formatError) {
			status := otherArchitecture(pod, container, subject)
			status.Stalled = container.RestartCount >= stalledRestarts
			return status
		}
		return failing(autov1alpha1.ContainerCreationFailedReason, "%s cannot be created, trying again: %s (%s)",
			subject, quote(waiting.Message), waiting.Reason)
	}
	return agentruntime.Status{}
}

// pullProblem returns the cause in a message about an image. The kubelet alternates between two forms of the same message.
func pullProblem(message string) string {
	if strings.HasPrefix(message, "Back-off pulling image") {
		_, message, _ = strings.Cut(message, ": ")
		message = strings.TrimPrefix(message, "ErrImagePull: ")
	}
	return message
}

// explainCrash describes how a container ended, and that it is started again.
func explainCrash(pod *corev1.Pod, container *corev1.ContainerStatus, subject string, ended *corev1.ContainerStateTerminated) agentruntime.Status {
	how := fmt.Sprintf("ended with exit code %d", ended.ExitCode)
	switch {
	case strings.Contains(ended.Message, formatError):
		return otherArchitecture(pod, container, subject)
	case ended.Reason == "StartError" || ended.Reason == "ContainerCannotRun":
		return failing(autov1alpha1.ContainerCreationFailedReason, "%s cannot be started, trying again: %s", subject, quote(ended.Message))
	case ended.Reason == "OOMKilled":
		how = "ran out of memory and was killed"
	case ended.Signal != 0:
		how = fmt.Sprintf("was ended by signal %d", ended.Signal)
	}
	message := fmt.Sprintf("%s %s and is started again (restarts: %d)", subject, how, container.RestartCount)
	if podspec.ExpectsFiles(pod, container.Name) {
		message += "; init containers run before the source of the program is in the pod"
	}
	if text := quote(ended.Message); text != "" {
		message += "; last output:\n" + text
	}
	return failing(autov1alpha1.CrashLoopBackOffReason, "%s", message)
}

// otherArchitecture is the status of a program that the processor does not understand.
func otherArchitecture(pod *corev1.Pod, container *corev1.ContainerStatus, subject string) agentruntime.Status {
	return failing(autov1alpha1.ImageArchitectureMismatchReason, "image %s of %s is built for another processor architecture than that of node %s",
		container.Image, subject, pod.Spec.NodeName)
}

// newestEvent returns the latest event that has one of the reasons, or the latest of all events if no reasons are given. Of several events
// in the same second, it prefers one that is not a warning. It returns an empty event if there is none.
func newestEvent(events []corev1.Event, reasons ...string) corev1.Event {
	var newest corev1.Event
	for _, event := range events {
		if len(reasons) > 0 && !slices.Contains(reasons, event.Reason) {
			continue
		}
		order := eventTime(event).Compare(eventTime(newest))
		if newest.Type == "" || order > 0 || order == 0 && event.Type == corev1.EventTypeNormal {
			newest = event
		}
	}
	return newest
}

// eventTime returns when the event happened last, truncated to the second: the older kind of events is not more precise.
func eventTime(event corev1.Event) time.Time {
	times := []time.Time{event.CreationTimestamp.Time, event.FirstTimestamp.Time, event.LastTimestamp.Time, event.EventTime.Time}
	if event.Series != nil {
		times = append(times, event.Series.LastObservedTime.Time)
	}
	return slices.MaxFunc(times, time.Time.Compare).Truncate(time.Second)
}

// detail returns text from elsewhere as the end of a message; empty if the text is empty.
func detail(text string) string {
	if text == "" {
		return ""
	}
	return ": " + quote(text)
}

// quote makes text from elsewhere safe and short enough for a message.
func quote(text string) string {
	return plaintext.Cut(strings.TrimSpace(plaintext.Strip(text)), maxQuote)
}
