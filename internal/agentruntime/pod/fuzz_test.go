package pod

import (
	"strings"
	"testing"
	"time"
	"unicode"
	"unicode/utf8"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	autov1alpha1 "github.com/stack-controller/stack-controller/api/auto/v1alpha1"
)

// FuzzExplain checks that any text from kubelets, webhooks and programs results in a message that is short and readable, with a known
// reason.
func FuzzExplain(f *testing.F) {
	f.Add("Error", "\x1b[31mpanic: boom\x1b[0m\x07\u009b", int32(2), int32(7), "CrashLoopBackOff", "back-off 5m0s restarting", "FailedCreate")
	f.Add("OOMKilled", strings.Repeat("é", 3000), int32(137), int32(0), "", "", "FailedMount")
	f.Add("StartError", "exec format error", int32(128), int32(1), "ErrImagePull", "Back-off pulling image \"x\": ErrImagePull: denied", "Pulling")
	f.Add("", "", int32(0), int32(-1), "CreateContainerError", "\xff\xfe", "FailedCreatePodSandBox")
	f.Add("Completed", "create Pod p in StatefulSet s failed error: exceeded quota: q", int32(0), int32(0), "InvalidImageName", "couldn't parse", "FailedCreate")
	now := time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC)
	f.Fuzz(func(t *testing.T, reason, message string, code, restarts int32, waitingReason, waiting, event string) {
		container := corev1.ContainerStatus{Name: autov1alpha1.PulumiContainerName, Image: "image", RestartCount: restarts,
			LastTerminationState: corev1.ContainerState{Terminated: &corev1.ContainerStateTerminated{Reason: reason, Message: message, ExitCode: code, Signal: code % 3}}}
		if waitingReason != "" {
			container.State.Waiting = &corev1.ContainerStateWaiting{Reason: waitingReason, Message: waiting}
		}
		pod := &corev1.Pod{Name: "app-workspace-0", CreationTimestamp: metav1.NewTime(now.Add(-time.Minute)), Spec: corev1.PodSpec{NodeName: "node"}}
		failed, waits, told := pod.DeepCopy(), pod.DeepCopy(), pod.DeepCopy()
		failed.Status.Phase, failed.Status.Message = corev1.PodFailed, message
		waits.Status.ContainerStatuses = []corev1.ContainerStatus{container}
		told.Status.Conditions = []corev1.PodCondition{{Type: corev1.PodScheduled, Status: corev1.ConditionTrue}}
		events := []corev1.Event{{Type: corev1.EventTypeWarning, Reason: event, Message: message, LastTimestamp: metav1.NewTime(now)}}
		for _, seen := range []*corev1.Pod{failed, waits, told} {
			status := explainPod(&observation{now: now, pod: seen, events: events})
			unreadable := func(r rune) bool { return unicode.IsControl(r) && r != '\n' && r != '\t' }
			if len(status.Message) > 2*maxQuote || !utf8.ValidString(status.Message) || strings.ContainsFunc(status.Message, unreadable) {
				t.Fatalf("%d bytes: %q", len(status.Message), status.Message)
			}
			if status.Reason == "" || status.Message == "" || status.RetryAfter < 0 || status.Stalled && !status.Failing {
				t.Fatalf("%+v", status)
			}
		}
		if reason, cause := creationProblem(message); reason == "" || len(cause) > len(message) {
			t.Fatalf("%s: %q of %q", reason, cause, message)
		}
	})
}
