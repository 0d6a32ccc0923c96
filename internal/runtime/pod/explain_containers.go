package pod

import (
	"fmt"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"

	autov1alpha1 "github.com/stack-controller/stack-controller/api/auto/v1alpha1"
	"github.com/stack-controller/stack-controller/internal/runtime"
)

// stalledRestarts is the number of restarts of a container from which on somebody should have a look.
const stalledRestarts = 5

// formatError is what the kernel says about a program for another processor.
const formatError = "exec format error"

// explainContainers says what is wrong with the first container that has a problem; false when none has. Those that others
// wait for come first.
func explainContainers(pod *corev1.Pod) (runtime.Status, bool) {
	for i := range pod.Status.InitContainerStatuses {
		if status, found := explainContainer(pod, &pod.Status.InitContainerStatuses[i], "init container"); found {
			return status, true
		}
	}
	others := slices.Clone(pod.Status.ContainerStatuses)
	slices.SortStableFunc(others, func(a, b corev1.ContainerStatus) int {
		return rank(a) - rank(b)
	})
	for i := range others {
		if status, found := explainContainer(pod, &others[i], "container"); found {
			return status, true
		}
	}
	return runtime.Status{}, false
}

// rank puts the container with the agent first.
func rank(container corev1.ContainerStatus) int {
	if container.Name == autov1alpha1.PulumiContainerName {
		return 0
	}
	return 1
}

// explainContainer says what is wrong with the container; false when nothing is.
func explainContainer(pod *corev1.Pod, container *corev1.ContainerStatus, kind string) (runtime.Status, bool) {
	subject := fmt.Sprintf("%s %s of pod %s", kind, container.Name, pod.Name)
	if waiting := container.State.Waiting; waiting != nil && waiting.Reason != "CrashLoopBackOff" {
		return explainWaiting(pod, container, subject)
	}
	ended := container.State.Terminated
	if ended == nil && !container.Ready {
		// It runs again, or waits for that. Until it is ready nothing says that it is better than before.
		ended = container.LastTerminationState.Terminated
	}
	if ended == nil || ended.ExitCode == 0 && kind == "init container" {
		return runtime.Status{}, false
	}
	return explainCrash(pod, container, subject, ended), true
}

// explainWaiting says why a container is not even started.
func explainWaiting(pod *corev1.Pod, container *corev1.ContainerStatus, subject string) (runtime.Status, bool) {
	waiting := container.State.Waiting
	switch waiting.Reason {
	case "ErrImagePull", "ImagePullBackOff", "RegistryUnavailable", "ImageInspectError", "SignatureValidationFailed":
		return failing(autov1alpha1.ImagePullFailedReason, fmt.Sprintf("image %s of %s cannot be pulled, trying again%s",
			container.Image, subject, pullError(waiting.Message))), true
	case "InvalidImageName":
		status := failing(autov1alpha1.ImagePullFailedReason, fmt.Sprintf("%s has an image name that is none: %q", subject, container.Image))
		status.Stalled = true
		return status, true
	case "ErrImageNeverPull":
		return failing(autov1alpha1.ImagePullFailedReason, fmt.Sprintf("image %s of %s is not on node %s, and its pull policy is Never",
			container.Image, subject, pod.Spec.NodeName)), true
	case "CreateContainerConfigError", "CreateContainerError", "RunContainerError", "PreStartHookError", "PostStartHookError",
		"PreCreateHookError":
		if strings.Contains(waiting.Message, formatError) {
			return otherArchitecture(pod, container, subject), true
		}
		return failing(autov1alpha1.ContainerCreationFailedReason, fmt.Sprintf("%s cannot be created, trying again: %s (%s)",
			subject, quote(waiting.Message), waiting.Reason)), true
	}
	return runtime.Status{}, false
}

// pullError is the cause in a message about an image. The kubelet says the same in two ways, in turns.
func pullError(message string) string {
	if strings.HasPrefix(message, "Back-off pulling image") {
		_, cause, found := strings.Cut(message, ": ")
		if !found {
			return ""
		}
		message = strings.TrimPrefix(cause, "ErrImagePull: ")
	}
	if message == "" {
		return ""
	}
	return ": " + quote(message)
}

// explainCrash says how a container ended, and that it is started again.
func explainCrash(pod *corev1.Pod, container *corev1.ContainerStatus, subject string, ended *corev1.ContainerStateTerminated) runtime.Status {
	if strings.Contains(ended.Message, formatError) {
		return otherArchitecture(pod, container, subject)
	}
	how := fmt.Sprintf("ended with exit code %d", ended.ExitCode)
	switch {
	case ended.Reason == "OOMKilled":
		how = "ran out of memory and was killed"
	case ended.Reason == "StartError" || ended.Reason == "ContainerCannotRun":
		status := failing(autov1alpha1.ContainerCreationFailedReason, fmt.Sprintf("%s cannot be started, trying again: %s", subject, quote(ended.Message)))
		status.Stalled = container.RestartCount >= stalledRestarts
		return status
	case ended.Signal != 0:
		how = fmt.Sprintf("was ended by signal %d", ended.Signal)
	}
	message := fmt.Sprintf("%s %s and is started again (restarts: %d)", subject, how, container.RestartCount)
	if text := quote(ended.Message); text != "" {
		message += "; its last words:\n" + text
	}
	status := failing(autov1alpha1.CrashLoopBackOffReason, message)
	status.Stalled = container.RestartCount >= stalledRestarts
	return status
}

// otherArchitecture is the status of a program that the processor does not understand.
func otherArchitecture(pod *corev1.Pod, container *corev1.ContainerStatus, subject string) runtime.Status {
	status := failing(autov1alpha1.ImageArchitectureMismatchReason, fmt.Sprintf(
		"image %s of %s is built for another processor architecture than that of node %s", container.Image, subject, pod.Spec.NodeName))
	status.Stalled = container.RestartCount >= stalledRestarts
	return status
}

// containersWait tells whether nothing of the pod runs because containers are being created.
func containersWait(pod *corev1.Pod) bool {
	all := slices.Concat(pod.Status.InitContainerStatuses, pod.Status.ContainerStatuses)
	return !slices.ContainsFunc(all, func(container corev1.ContainerStatus) bool { return container.State.Running != nil })
}
