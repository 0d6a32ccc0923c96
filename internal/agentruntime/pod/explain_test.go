package pod

import (
	"strings"
	"testing"
	"time"

	. "github.com/onsi/gomega"
	"github.com/onsi/gomega/types"
	corev1 "k8s.io/api/core/v1"

	autov1alpha1 "github.com/stack-controller/stack-controller/api/auto/v1alpha1"
)

func TestStatusSaysInPlainWordsWhatIsWrong(t *testing.T) {
	const createFailed = "create Pod app-workspace-0 in StatefulSet app-workspace failed error: "
	running := corev1.ContainerState{Running: &corev1.ContainerStateRunning{}}
	exited := func(code int32, reason, message string) corev1.ContainerState {
		return corev1.ContainerState{Terminated: &corev1.ContainerStateTerminated{ExitCode: code, Reason: reason, Message: message}}
	}
	startsAgain := func(restarts int32, ran time.Duration) func(*observation) {
		return of(ended(restarts, corev1.ContainerStateTerminated{ExitCode: 3, StartedAt: ago(ran), FinishedAt: ago(0)}), container(func(s *corev1.ContainerStatus) { s.State = running }))
	}
	young := func(o *observation) { o.pod.CreationTimestamp = ago(time.Second) }
	for _, tt := range []struct {
		name     string
		observed func(*observation)
		// The status has the reason, and a message that contains message. failing and stalled are its fields. wake is true when only time, and no
		// event, brings the Workspace back.
		reason, message        string
		failing, stalled, wake bool
	}{
		// There is no pod.
		{"nothing was seen yet", of(withoutPod, func(o *observation) { o.statefulSet = nil }),
			autov1alpha1.InitializingReason, "the StatefulSet is being created", false, false, false},
		{"no pod yet", withoutPod, autov1alpha1.WaitingForReplicasReason, "the pod of StatefulSet app-workspace has not been created yet", false, false, true},
		{"quota", of(withoutPod, happenedAgo(time.Minute, "Warning", "FailedCreate", createFailed+`pods "p" is forbidden: exceeded quota: q, used: pods=1`)),
			autov1alpha1.QuotaExceededReason, `the pod cannot be created, trying again: pods "p" is forbidden: exceeded quota: q, used: pods=1`, true, false, true},
		{"pod security", of(withoutPod, happenedAgo(time.Minute, "Warning", "FailedCreate", createFailed+`pods "p" is forbidden: violates PodSecurity "restricted:latest": x`)),
			autov1alpha1.PodSecurityViolationReason, `violates PodSecurity "restricted:latest": x`, true, false, true},
		{"service account", of(withoutPod, happenedAgo(time.Minute, "Warning", "FailedCreate", createFailed+`pods "p" is forbidden: error looking up service account team/x: serviceaccount "x" not found`)),
			autov1alpha1.ServiceAccountNotFoundReason, `serviceaccount "x" not found`, true, false, true},
		{"another refusal", of(withoutPod, happenedAgo(time.Minute, "Warning", "FailedCreate", createFailed+`admission webhook "w" denied the request: no`)),
			autov1alpha1.PodCreationFailedReason, `admission webhook "w" denied the request: no`, true, false, true},
		{"a refusal that is over", of(withoutPod, happenedAgo(time.Minute, "Warning", "FailedCreate", createFailed+"exceeded quota"), happenedAgo(time.Second, "Normal", "SuccessfulCreate", "")),
			autov1alpha1.WaitingForReplicasReason, "has not been created yet", false, false, true},
		{"a pod that was deleted after it failed", of(withoutPod, happenedAgo(time.Second, "Warning", "RecreatingFailedPod", "is recreating failed Pod")),
			autov1alpha1.WaitingForReplicasReason, "has not been created yet", false, false, true},

		// The pod waits for a node or the kubelet.
		{"not scheduled yet", of(unready, func(o *observation) { o.pod.Spec.NodeName = "" }), autov1alpha1.InitializingReason, "pod app-workspace-0 is being scheduled", false, false, false},
		{"unschedulable", of(unready, condition(corev1.PodScheduled, corev1.ConditionFalse, "Unschedulable", "0/3 nodes are available: 3 Insufficient memory.")),
			autov1alpha1.UnschedulableReason, "pod app-workspace-0 cannot be scheduled: 0/3 nodes are available: 3 Insufficient memory.", true, false, false},
		{"just created", of(waits("ContainerCreating", ""), young), autov1alpha1.InitializingReason, "pod app-workspace-0 is starting", false, false, true},
		{"pulling", of(waits("ContainerCreating", ""), happenedAgo(time.Second, "Normal", "Pulling", "")), autov1alpha1.InitializingReason, "an image is being pulled", false, false, true},
		{"mount", of(waits("ContainerCreating", ""), happenedAgo(time.Second, "Warning", "FailedMount", `MountVolume.SetUp failed for volume "v" : secret "s" not found`)),
			autov1alpha1.VolumeMountFailedReason, `pod app-workspace-0 cannot start on node node-1: MountVolume.SetUp failed for volume "v" : secret "s" not found`, true, false, true},
		{"mount that worked in the end", of(waits("ContainerCreating", ""), happenedAgo(time.Minute, "Warning", "FailedMount", "x"), happenedAgo(time.Second, "Normal", "Pulled", "")),
			autov1alpha1.InitializingReason, "is starting", false, false, true},
		{"network", of(waits("ContainerCreating", ""), happenedAgo(time.Second, "Warning", "FailedCreatePodSandBox", "no CNI")), autov1alpha1.PodStartFailedReason, "no CNI", true, false, true},

		// Containers.
		{"pull error", waits("ErrImagePull", "unexpected status 401 Unauthorized"), autov1alpha1.ImagePullFailedReason,
			"image pulumi/pulumi of container pulumi of pod app-workspace-0 cannot be pulled, trying again: unexpected status 401 Unauthorized", true, false, false},
		{"pull error between attempts", waits("ImagePullBackOff", `Back-off pulling image "pulumi/pulumi": ErrImagePull: unexpected status 401 Unauthorized`), autov1alpha1.ImagePullFailedReason,
			"image pulumi/pulumi of container pulumi of pod app-workspace-0 cannot be pulled, trying again: unexpected status 401 Unauthorized", true, false, false},
		{"pull error of an older kubelet", waits("ImagePullBackOff", `Back-off pulling image "pulumi/pulumi"`), autov1alpha1.ImagePullFailedReason, "cannot be pulled, trying again", true, false, false},
		{"no image name", waits("InvalidImageName", "x"), autov1alpha1.ImagePullFailedReason, `has an invalid image name: "pulumi/pulumi"`, true, true, false},
		{"never pull", waits("ErrImageNeverPull", "x"), autov1alpha1.ImagePullFailedReason, "is not on node node-1, and its pull policy is Never", true, false, false},
		{"container config", waits("CreateContainerConfigError", `secret "s" not found`), autov1alpha1.ContainerCreationFailedReason, `secret "s" not found (CreateContainerConfigError)`, true, false, false},
		{"crash", ended(2, corev1.ContainerStateTerminated{ExitCode: 3, Message: "cannot listen\n"}), autov1alpha1.CrashLoopBackOffReason,
			"container pulumi of pod app-workspace-0 ended with exit code 3 and is started again (restarts: 2); last output:\ncannot listen", true, false, false},
		{"crash again and again", ended(5, corev1.ContainerStateTerminated{ExitCode: 3}), autov1alpha1.CrashLoopBackOffReason, "exit code 3", true, true, false},
		{"the sixth crash in a month", startsAgain(6, 30*24*time.Hour), autov1alpha1.CrashLoopBackOffReason, "exit code 3", true, false, false},
		{"the sixth crash in a row", startsAgain(6, 5*time.Second), autov1alpha1.CrashLoopBackOffReason, "exit code 3", true, true, false},
		{"the sixth end of what never ran", startsAgain(6, noon.Sub(time.Unix(0, 0))), autov1alpha1.CrashLoopBackOffReason, "exit code 3", true, true, false},
		{"out of memory", ended(1, corev1.ContainerStateTerminated{ExitCode: 137, Reason: "OOMKilled"}), autov1alpha1.CrashLoopBackOffReason, "ran out of memory and was killed", true, false, false},
		{"runs again, not ready yet", of(ended(1, corev1.ContainerStateTerminated{ExitCode: 3}), container(func(s *corev1.ContainerStatus) { s.State = running })),
			autov1alpha1.CrashLoopBackOffReason, "exit code 3", true, false, false},
		{"runs, not ready yet", container(func(s *corev1.ContainerStatus) { s.State = running }), autov1alpha1.InitializingReason, "pod app-workspace-0 is starting", false, false, false},
		{"other architecture", ended(1, corev1.ContainerStateTerminated{ExitCode: 255, Message: "exec /share/agent/agent: exec format error"}), autov1alpha1.ImageArchitectureMismatchReason,
			"image pulumi/pulumi of container pulumi of pod app-workspace-0 is built for another processor architecture than that of node node-1", true, false, false},
		{"no such command", ended(1, corev1.ContainerStateTerminated{ExitCode: 128, Reason: "StartError", Message: "no such file"}), autov1alpha1.ContainerCreationFailedReason, "cannot be started, trying again: no such file", true, false, false},
		{"init container fails", initContainer(exited(1, "Error", "no source"), corev1.ContainerState{}), autov1alpha1.CrashLoopBackOffReason,
			"init container bootstrap of pod app-workspace-0 ended with exit code 1 and is started again (restarts: 1); last output:\nno source", true, false, false},
		{"init container of the user's fails", of(initContainer(exited(1, "Error", "no such file"), corev1.ContainerState{}), func(o *observation) {
			o.pod.Status.InitContainerStatuses[0].Name = "generate"
			o.pod.Spec.InitContainers = []corev1.Container{{Name: "generate", VolumeMounts: []corev1.VolumeMount{{Name: "share", MountPath: "/share"}}}}
		}), autov1alpha1.CrashLoopBackOffReason, "init containers run before the source of the program is in the pod", true, false, false},
		{"init container runs again", initContainer(running, exited(1, "Error", "no source")), autov1alpha1.CrashLoopBackOffReason, "no source", true, false, false},
		{"init container done", initContainer(exited(0, "Completed", ""), corev1.ContainerState{}), autov1alpha1.InitializingReason, "is starting", false, false, true},
		{"init container of another architecture", initContainer(exited(255, "Error", "exec /agent: exec format error"), corev1.ContainerState{}), autov1alpha1.ImageArchitectureMismatchReason, "image agent:v1 of init container bootstrap", true, false, false},

		// The pod ends.
		{"evicted", func(o *observation) {
			o.pod.Status.Phase, o.pod.Status.Reason, o.pod.Status.Message = corev1.PodFailed, "Evicted", "The node was low on memory."
		}, autov1alpha1.PodFailedReason, "pod app-workspace-0 ended (Evicted): The node was low on memory.", true, false, false},
		{"node does not answer", lostNode,
			autov1alpha1.NodeLostReason, "node node-1 of pod app-workspace-0 does not answer", true, false, false},
		{"deleted", deleted(time.Minute), autov1alpha1.PodTerminatingReason, "pod app-workspace-0 is ending, another one follows", false, false, true},
		{"drained", of(deleted(time.Minute), condition(corev1.DisruptionTarget, corev1.ConditionTrue, "EvictionByEvictionAPI", "Eviction API: evicting")),
			autov1alpha1.PodTerminatingReason, "(EvictionByEvictionAPI: Eviction API: evicting)", false, false, true},
		{"deleted and gone with its node", deleted(-time.Minute), autov1alpha1.NodeLostReason, "its node node-1 may be gone", true, false, false},
		{"deleted because its node does not answer", of(deleted(10*time.Minute), lostNode), autov1alpha1.NodeLostReason,
			"pod app-workspace-0 cannot end, because its node node-1 does not answer", true, false, true},
		{"deleted and kept by a finalizer", of(container(func(s *corev1.ContainerStatus) { s.State = exited(0, "Completed", "") }), deleted(-time.Minute)),
			autov1alpha1.PodTerminatingReason, "a finalizer keeps it", true, false, false},
		{"somebody else's", func(o *observation) { o.pod.OwnerReferences = nil }, autov1alpha1.PodTerminatingReason, "belongs to something else", false, false, true},
	} {
		t.Run(tt.name, func(t *testing.T) {
			g := NewWithT(t)
			status := decide(observed(tt.observed)).status
			g.Expect(status.Ready).To(BeFalse())
			g.Expect(status.Reason).To(Equal(tt.reason))
			g.Expect(status.Message).To(ContainSubstring(tt.message))
			g.Expect(status.Failing).To(Equal(tt.failing))
			g.Expect(status.Stalled).To(Equal(tt.stalled))
			g.Expect(status.Address).To(BeEmpty())
			g.Expect(status.RetryAfter > 0 || decide(observed(tt.observed)).action == actionRetryCreation).To(Equal(tt.wake), "RetryAfter %s", status.RetryAfter)
		})
	}
}

func TestPodThatIsUpToDateAndServesIsReady(t *testing.T) {
	for name, change := range map[string]func(*observation){
		"as it is":          func(*observation) {},
		"restarted earlier": func(o *observation) { o.pod.Status.ContainerStatuses[0].RestartCount = 9 },
		"a sidecar that crashes": func(o *observation) {
			o.pod.Status.ContainerStatuses = append(o.pod.Status.ContainerStatuses, corev1.ContainerStatus{
				Name: "side", State: corev1.ContainerState{Waiting: &corev1.ContainerStateWaiting{Reason: "CrashLoopBackOff"}},
			})
		},
		"a sidecar that is not ready": of(condition(corev1.PodReady, corev1.ConditionFalse, "ContainersNotReady", ""), condition(corev1.ContainersReady, corev1.ConditionFalse, "", "")),
	} {
		t.Run(name, func(t *testing.T) {
			g := NewWithT(t)
			d := decide(observed(change))
			g.Expect(d.action).To(Equal(actionNone))
			g.Expect(d.status).To(And(HaveField("Ready", true), HaveField("Address", "app:50051"), HaveField("RetryAfter", BeZero())))
		})
	}
}

func TestQuotesAreBoundedAndValid(t *testing.T) {
	g := NewWithT(t)
	g.Expect(quote("  a\xffb \n")).To(Equal("a\uFFFDb"))
	long := quote(strings.Repeat("é", maxQuote))
	g.Expect(len(long)).To(BeNumerically("<=", maxQuote))
	g.Expect(strings.ToValidUTF8(long, "?")).To(Equal(long))
}

func TestEventsAreReadOnlyWhenTheyMayExplainSomething(t *testing.T) {
	for _, tt := range []struct {
		name   string
		change func(*observation)
		want   types.GomegaMatcher
	}{
		{"ready", func(*observation) {}, BeEmpty()},
		{"no pod", withoutPod, BeEquivalentTo("set")},
		{"no pod, because there is nothing to do", of(withoutPod, func(o *observation) { o.idle = true }), BeEmpty()},
		{"no StatefulSet", of(withoutPod, func(o *observation) { o.statefulSet = nil }), BeEmpty()},
		{"starting slowly", waits("ContainerCreating", ""), BeEquivalentTo("pod")},
		{"just started", of(waits("ContainerCreating", ""), func(o *observation) { o.pod.CreationTimestamp = ago(time.Second) }), BeEmpty()},
		{"without a node", of(unready, func(o *observation) { o.pod.Spec.NodeName = "" }), BeEmpty()},
		{"ending", of(waits("ContainerCreating", ""), deleted(time.Minute)), BeEmpty()},
	} {
		t.Run(tt.name, func(t *testing.T) {
			NewWithT(t).Expect(needsEvents(observed(tt.change))).To(tt.want)
		})
	}
}
