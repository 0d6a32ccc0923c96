package tenancy_test

import (
	. "github.com/onsi/gomega"
	corev1 "k8s.io/api/core/v1"
	apimeta "k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/fluxcd/pkg/apis/meta"

	autov1alpha1 "github.com/stack-controller/stack-controller/api/auto/v1alpha1"
	"github.com/stack-controller/stack-controller/tests/podstage"
)

// podAttacks ask for pods with more power than the namespace allows.
var podAttacks = []attack{
	{
		name: "pod-of-the-host", promise: "pods",
		does: "asks for a directory, the network and the processes of the node in the pod template",
		sees: "`PodSecurityViolation`: the Pod Security level of the namespace decides, and the message comes from the API server.",
		run: func(a *attacker) {
			a.expectNoPod(autov1alpha1.PodSecurityViolationReason, func(spec *corev1.PodSpec) {
				spec.HostNetwork, spec.HostPID = true, true
				spec.Volumes = []corev1.Volume{{Name: "host", VolumeSource: corev1.VolumeSource{HostPath: &corev1.HostPathVolumeSource{Path: "/"}}}}
			})
		},
	},
	{
		name: "pod-with-privileges", promise: "pods",
		does: "asks for a privileged container that runs as root in the pod template",
		sees: "`PodSecurityViolation` or `PodTemplateInvalid`",
		run: func(a *attacker) {
			a.expectNoPod("", func(spec *corev1.PodSpec) {
				spec.InitContainers = []corev1.Container{{
					Name: "root", Image: a.means.Image, ImagePullPolicy: corev1.PullIfNotPresent,
					SecurityContext: &corev1.SecurityContext{Privileged: ptr.To(true), RunAsUser: ptr.To[int64](0), RunAsNonRoot: ptr.To(false)},
				}}
			})
		},
	},
	{
		name: "pod-with-other-command", promise: "pods",
		does: "replaces the command of the agent's container, and mounts a volume over the identity of the agent",
		sees: "`PodTemplateInvalid`, with each field",
		run: func(a *attacker) {
			a.expectNoPod(autov1alpha1.PodTemplateInvalidReason, func(spec *corev1.PodSpec) {
				spec.Volumes = []corev1.Volume{{Name: "own", VolumeSource: corev1.VolumeSource{EmptyDir: &corev1.EmptyDirVolumeSource{}}}}
				spec.Containers = []corev1.Container{{
					Name: autov1alpha1.PulumiContainerName, Command: []string{"/bin/fakeagent"},
					VolumeMounts: []corev1.VolumeMount{{Name: "own", MountPath: "/var/run/secrets/stack-controller"}},
				}}
			})
		},
	},
	{
		name: "pod-with-account-of-others", promise: "pods",
		does: "uses the name of the controller's service account for their workspace",
		sees: "`ServiceAccountNotFound`: the name is looked up in the attacker's namespace.",
		run: func(a *attacker) {
			workspace := a.newWorkspace(func(spec *autov1alpha1.WorkspaceSpec) { spec.ServiceAccountName = podstage.ControllerName })
			await(a, workspace, func(g Gomega, workspace *autov1alpha1.Workspace) {
				a.expectReason(g, workspace, autov1alpha1.ServiceAccountNotFoundReason)
			})
		},
	},
	{
		name: "pod-with-secret-of-others", promise: "pods",
		does: "mounts the Secret of the victim into the pod of their workspace",
		sees: "`VolumeMountFailed` or `ContainerCreationFailed`: a pod can only mount Secrets of its own namespace.",
		run: func(a *attacker) {
			workspace := a.newWorkspace(withPod(func(spec *corev1.PodSpec) {
				spec.Volumes = []corev1.Volume{{Name: "stolen", VolumeSource: corev1.VolumeSource{Secret: &corev1.SecretVolumeSource{SecretName: "api"}}}}
				spec.Containers = []corev1.Container{{
					Name: autov1alpha1.PulumiContainerName, VolumeMounts: []corev1.VolumeMount{{Name: "stolen", MountPath: "/stolen"}},
				}}
			}))
			await(a, workspace, func(g Gomega, workspace *autov1alpha1.Workspace) {
				a.expectReason(g, workspace, autov1alpha1.VolumeMountFailedReason, autov1alpha1.ContainerCreationFailedReason)
			})
		},
	},
}

// withPod customises the pod of a Workspace.
func withPod(change func(*corev1.PodSpec)) func(*autov1alpha1.WorkspaceSpec) {
	return func(spec *autov1alpha1.WorkspaceSpec) {
		custom := &autov1alpha1.EmbeddedPodSpec{}
		change(&custom.PodSpec)
		spec.PodTemplate = &autov1alpha1.EmbeddedPodTemplateSpec{Spec: custom}
	}
}

// expectNoPod creates a Workspace with such a pod, waits until it says why there is none, and checks that there is none. An empty
// reason stands for those of a pod that is refused.
func (a *attacker) expectNoPod(reason string, change func(*corev1.PodSpec)) {
	a.t.Helper()
	reasons := []string{reason}
	if reason == "" {
		reasons = []string{autov1alpha1.PodSecurityViolationReason, autov1alpha1.PodTemplateInvalidReason}
	}
	await(a, a.newWorkspace(withPod(change)), func(g Gomega, workspace *autov1alpha1.Workspace) { a.expectReason(g, workspace, reasons...) })
	err := a.client.Get(a.ctx, client.ObjectKey{Namespace: attackerName, Name: a.agentPod()}, &corev1.Pod{})
	a.Expect(client.IgnoreNotFound(err)).To(Succeed())
	a.Expect(err).To(HaveOccurred())
}

// expectReason checks the reason of the condition Ready, which is False, and records it.
func (a *attacker) expectReason(g Gomega, workspace *autov1alpha1.Workspace, reasons ...string) {
	ready := apimeta.FindStatusCondition(workspace.Status.Conditions, meta.ReadyCondition)
	g.Expect(ready).NotTo(BeNil())
	g.Expect(ready.Status).To(Equal(metav1.ConditionFalse))
	g.Expect(reasons).To(ContainElement(ready.Reason), ready.Message)
	a.saw(ready.Reason)
}
