package tenancy_test

import (
	"encoding/json"
	"strings"

	. "github.com/onsi/gomega"
	"google.golang.org/grpc/codes"
	authenticationv1 "k8s.io/api/authentication/v1"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	apimeta "k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/fluxcd/pkg/apis/meta"

	autov1alpha1 "github.com/stack-controller/stack-controller/api/auto/v1alpha1"
	pulumiv1 "github.com/stack-controller/stack-controller/api/pulumi/v1"
	"github.com/stack-controller/stack-controller/internal/agentruntime/pod/credentials"
	"github.com/stack-controller/stack-controller/tests/e2e/tenancy/pressure"
	"github.com/stack-controller/stack-controller/tests/framework/podsystem"
)

// maxStatus is the maximum size of an object's status, in bytes, whatever an agent answers.
const maxStatus = 256 << 10

// agentAttacks replace the agent by another program.
var agentAttacks = []attack{
	{
		name: "agent-floods-info", promise: "agents", in: agentsName,
		does: "answers `GetInfo` with 16 MiB of empty operations",
		sees: "`WorkspaceNotReady` or `NotReadyInProgress`: the controller rejects the answer before it decodes it.",
		run:  fakeAgent("info", notStarted, "GetInfo"),
	},
	{
		name: "agent-hangs", promise: "agents", in: hangingName,
		does: "accepts every call and never answers",
		sees: "`WorkspaceNotReady` or `NotReadyInProgress`. No worker of the controller waits with the Stack.",
		run:  fakeAgent("hang", notStarted, "GetInfo"),
	},
	{
		name: "agent-flaps", promise: "agents", in: agentsName,
		does: "fails half of the calls, and changes the state of its operation a thousand times per second",
		sees: "`WorkspaceNotReady`, `NotReadyInProgress` or `TransientFailure`: the Stack of the attacker does not become ready.",
		run:  fakeAgent("flap", waiting, "GetInfo", "StartOperation"),
	},
	{
		name: "agent-long-message", promise: "agents", in: agentsName,
		does: "answers with an operation whose message has 15 MiB",
		sees: "`WorkspaceNotReady`, `NotReadyInProgress`, `TransientFailure`, `UpdateInterrupted`, `RetryingAfterFailure` or `UpdateFailed`. The answer is rejected, and the status stays small.",
		run:  fakeAgent("message", failing, "StartOperation"),
	},
	{
		name: "agent-many-changes", promise: "agents", in: agentsName,
		does: "counts the changes of an operation under two million names",
		sees: "`WorkspaceNotReady`, `NotReadyInProgress`, `TransientFailure`, `UpdateInterrupted`, `RetryingAfterFailure` or `UpdateFailed`. The answer is rejected, and the status stays small.",
		run:  fakeAgent("changes", failing, "StartOperation"),
	},
	{
		name: "agent-many-outputs", promise: "agents", in: agentsName,
		does: "answers with two million outputs",
		sees: "`WorkspaceNotReady`, `NotReadyInProgress`, `TransientFailure`, `UpdateInterrupted`, `RetryingAfterFailure` or `UpdateFailed`. The answer is rejected, and the status stays small.",
		run:  fakeAgent("outputs", failing, "GetOperation"),
	},
	{
		name: "agent-endless-stream", promise: "agents", in: agentsName,
		does: "sends the largest possible message to a watch again and again",
		sees: "`WorkspaceNotReady`, `NotReadyInProgress` or `TransientFailure`. The watch ends at the first message.",
		run:  fakeAgent("stream", waiting, "WatchOperation"),
	},
	{
		name: "agent-long-error", promise: "agents", in: agentsName,
		does: "fails every call with an error of 8 MiB",
		sees: "`WorkspaceNotReady` or `NotReadyInProgress`, with a short message",
		run:  fakeAgent("trailer", notStarted, "GetInfo"),
	},
	{
		name: "agent-lies", promise: "agents", in: agentsName,
		does: "answers with invalid times, states, names, counts and outputs, and never forgets an operation",
		sees: "`WorkspaceNotReady`, `NotReadyInProgress`, `TransientFailure`, `UpdateInterrupted`, `RetryingAfterFailure`, `UpdateFailed` or `ProcessingCompleted`, with shortened values",
		run:  fakeAgent("lie", append([]string{pulumiv1.ProcessingCompletedReason}, failing...), "StartOperation", "GetOperation"),
	},
	{
		name: "agent-never-ends", promise: "agents", in: agentsName,
		does: "lets its operation run forever",
		sees: "`WorkspaceNotReady`, `NotReadyInProgress` or `TransientFailure`. The Stack of the attacker stays in progress.",
		run:  fakeAgent("running", waiting, "WatchOperation"),
	},
	{
		name: "agent-reads-nothing", promise: "fairness", in: hangingName,
		does: "never reads the source that is sent to it",
		sees: "`WorkspaceNotReady`, `NotReadyInProgress` or `TransientFailure`. The delivery is stopped. Deliveries to other tenants are not delayed.",
		run:  fakeAgent("tarpit", waiting, "PushSource"),
	},
	{
		name: "agent-largest-answers", promise: "agents", in: agentsName,
		does: "answers each call of an operation with the largest message that the controller takes; those to other methods are tried without a cluster",
		sees: "`ProcessingCompleted`, `NotReadyInProgress` or `TransientFailure`. The status stays small.",
		run: fakeAgent("largest", []string{pulumiv1.ProcessingCompletedReason, pulumiv1.NotReadyInProgressReason, autov1alpha1.UpdateTransientFailureReason},
			"GetInfo", "PushSource", "StartOperation", "WatchOperation", "GetOperation", "ForgetOperation"),
	},
	{
		name: "agent-steals-token", promise: "agents",
		does: "uses the token of the controller to call the API server and the victim's agent",
		sees: "`401` from the API server, and `Unauthenticated` from the agent. The token is only valid for this workspace.",
		run: func(a *attacker) {
			_, err := a.means.Agent(a.ctx, a.name, "thief", corev1.EnvVar{Name: "FAKE_TARGET", Value: a.victim.agent})
			a.Expect(err).NotTo(HaveOccurred())
			results := a.results(attackerName, a.agentPod(), autov1alpha1.PulumiContainerName)
			a.Expect(results).To(HaveKeyWithValue("token", "true"))
			a.sawCode(results, "secrets", "401")
			a.sawCode(results, "reviews", "401")
			a.sawCode(results, "agent", codes.Unauthenticated.String())
		},
	},
}

// in returns what the attacker can do in another namespace of the attacker.
func (a *attacker) in(namespace string) *pressure.Tenant {
	means := *a.means
	means.Namespace = namespace
	return &means
}

// Reasons of a Stack whose agent misbehaves.
var (
	// notStarted are the reasons when the agent does not answer GetInfo.
	notStarted = []string{pulumiv1.NotReadyInProgressReason, pulumiv1.WorkspaceNotReadyReason}
	// waiting are the reasons when the operation does not begin, or does not end.
	waiting = append([]string{autov1alpha1.UpdateTransientFailureReason}, notStarted...)
	// failing are the reasons when the operation fails.
	failing = append([]string{pulumiv1.UpdateInterruptedReason, pulumiv1.RetryingAfterFailureReason, pulumiv1.UpdateFailedReason}, waiting...)
)

// fakeAgent runs a Stack with an agent in the mode. It checks that the controller called the methods, that the Stack has one of the
// reasons, and that its status keeps to the bounds, whatever the agent answers.
func fakeAgent(mode string, reasons []string, methods ...string) func(*attacker) {
	return func(a *attacker) {
		stack, err := a.means.Agent(a.ctx, a.name, mode)
		a.Expect(err).NotTo(HaveOccurred())
		a.awaitAgent(a.means.Namespace)
		a.expectCalled(methods...)
		check := func(g Gomega) {
			g.Expect(a.client.Get(a.ctx, client.ObjectKeyFromObject(stack), stack)).To(Succeed())
			ready := apimeta.FindStatusCondition(stack.Status.Conditions, meta.ReadyCondition)
			g.Expect(ready).NotTo(BeNil())
			g.Expect(reasons).To(ContainElement(ready.Reason), ready.Message)
			expectBounded(g, stack.Status)
			workspace := &autov1alpha1.Workspace{}
			g.Expect(client.IgnoreNotFound(a.client.Get(a.ctx, client.ObjectKeyFromObject(stack), workspace))).To(Succeed())
			expectBounded(g, workspace.Status)
			updates := &autov1alpha1.UpdateList{}
			g.Expect(a.client.List(a.ctx, updates, client.InNamespace(a.means.Namespace), client.MatchingLabels{pulumiv1.StackNameLabel: a.name})).To(Succeed())
			for i := range updates.Items {
				expectBounded(g, updates.Items[i].Status)
			}
			a.saw(ready.Reason)
		}
		a.eventually(check)
		a.Consistently(check).WithContext(a.ctx).WithTimeout(4 * quietTime).WithPolling(quietTime / 3).Should(Succeed())
		// The agent continues until all attacks have ended, so that the next attacks run beside it.
	}
}

func expectBounded(g Gomega, status any) {
	content, err := json.Marshal(status)
	g.Expect(err).NotTo(HaveOccurred())
	g.Expect(len(content)).To(BeNumerically("<", maxStatus))
	g.Expect(string(content)).NotTo(ContainSubstring(strings.Repeat("x", 8<<10)))
	// These are values of the agent that lies. The names of outputs may be long, within the limit for all outputs.
	for _, name := range []string{"k", "p", "u", "v"} {
		g.Expect(string(content)).NotTo(ContainSubstring(strings.Repeat(name, 1<<10)))
	}
	g.Expect(string(content)).NotTo(Or(ContainSubstring("javascript:"), ContainSubstring(`\u001b`)))
}

// identityAttacks call the victim's agent.
var identityAttacks = []attack{
	{
		name: "call-without-a-token", promise: "agent-access",
		does: "calls the victim's agent from their own pod, without a token",
		sees: "`Unauthenticated`",
		run: func(a *attacker) {
			a.create(a.means.Pod(a.name, "call", a.victim.agent))
			a.sawCode(a.results(attackerName, a.name, "tool"), "agent", codes.Unauthenticated.String())
		},
	},
	{
		name: "call-with-own-token", promise: "agent-access",
		does: "calls the victim's agent with a token of their own service account for the API server",
		sees: "`Unauthenticated`",
		run: func(a *attacker) {
			a.sawCode(a.callVictim(&corev1.ServiceAccountTokenProjection{Path: "token"}), "agent", codes.Unauthenticated.String())
		},
	},
	{
		name: "call-with-the-audience", promise: "agent-access",
		does: "calls the victim's agent with a token of their own service account that has the audience of this agent",
		sees: "`PermissionDenied`: the audience is correct, but only the controller is allowed.",
		run: func(a *attacker) {
			audience := credentials.Audience(victimName, victimName)
			a.sawCode(a.callVictim(&corev1.ServiceAccountTokenProjection{Path: "token", Audience: audience}), "agent", codes.PermissionDenied.String())
		},
	},
	{
		name: "right-to-use-workspaces", promise: "agent-access",
		does: "creates a Role with `use` of `workspaces/rpc`, in their own namespace and in that of the victim",
		sees: "`Forbidden`: the API server rejects both. No one can grant permissions that they do not have.",
		run: func(a *attacker) {
			for _, namespace := range []string{attackerName, victimName} {
				a.expectForbidden(a.client.Create(a.ctx, &rbacv1.Role{ObjectMeta: inNamespace(namespace, a.name), Rules: []rbacv1.PolicyRule{{
					APIGroups: []string{autov1alpha1.GroupVersion.Group}, Resources: []string{"workspaces/rpc"}, Verbs: []string{"use"},
				}}}))
			}
		},
	},
}

// callVictim calls the victim's agent from a pod with the token, and returns the results.
func (a *attacker) callVictim(token *corev1.ServiceAccountTokenProjection) map[string]string {
	a.t.Helper()
	pod := a.means.Pod(a.name, "call", a.victim.agent, "/token/token")
	pod.Spec.ServiceAccountName = tenantAccount
	pod.Spec.Volumes = []corev1.Volume{{Name: "token", Projected: &corev1.ProjectedVolumeSource{
		Sources: []corev1.VolumeProjection{{ServiceAccountToken: token}},
	}}}
	pod.Spec.Containers[0].VolumeMounts = []corev1.VolumeMount{{Name: "token", MountPath: "/token"}}
	a.create(pod)
	return a.results(attackerName, a.name, "tool")
}

func inNamespace(namespace, name string) metav1.ObjectMeta {
	return metav1.ObjectMeta{Namespace: namespace, Name: name}
}

func tokenRequest(audience string) *authenticationv1.TokenRequest {
	return &authenticationv1.TokenRequest{Spec: authenticationv1.TokenRequestSpec{Audiences: []string{audience}}}
}

// podAttacks ask for pods with more power than the namespace allows.
var podAttacks = []attack{
	{
		name: "pod-of-the-host", promise: "pods",
		does: "asks for a directory, the network and the processes of the node in the pod template",
		sees: "`PodSecurityViolation`: the Pod Security level of the namespace decides, and the message comes from the API server.",
		run: func(a *attacker) {
			a.expectNoPod(autov1alpha1.PodSecurityViolationReason, func(spec *corev1.PodSpec) {
				spec.HostNetwork, spec.HostPID = true, true
				spec.Volumes = []corev1.Volume{{Name: "host", HostPath: &corev1.HostPathVolumeSource{Path: "/"}}}
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
					SecurityContext: &corev1.SecurityContext{Privileged: new(true), RunAsUser: ptr.To[int64](0), RunAsNonRoot: new(false)},
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
				spec.Volumes = []corev1.Volume{{Name: "own", EmptyDir: &corev1.EmptyDirVolumeSource{}}}
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
			workspace := a.newWorkspace(func(spec *autov1alpha1.WorkspaceSpec) { spec.ServiceAccountName = podsystem.ControllerName })
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
				spec.Volumes = []corev1.Volume{{Name: "stolen", Secret: &corev1.SecretVolumeSource{SecretName: "api"}}}
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

// withPod changes the pod template of a Workspace.
func withPod(change func(*corev1.PodSpec)) func(*autov1alpha1.WorkspaceSpec) {
	return func(spec *autov1alpha1.WorkspaceSpec) {
		custom := &autov1alpha1.EmbeddedPodSpec{}
		change(&custom.PodSpec)
		spec.PodTemplate = &autov1alpha1.EmbeddedPodTemplateSpec{Spec: custom}
	}
}

// expectNoPod creates a Workspace with the pod template, waits until the Workspace reports why it has no pod, and checks that there is
// none. An empty reason stands for all reasons of a rejected pod.
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

// expectReason checks that the condition Ready is False with one of the reasons, and records the reason.
func (a *attacker) expectReason(g Gomega, workspace *autov1alpha1.Workspace, reasons ...string) {
	ready := apimeta.FindStatusCondition(workspace.Status.Conditions, meta.ReadyCondition)
	g.Expect(ready).NotTo(BeNil())
	g.Expect(ready.Status).To(Equal(metav1.ConditionFalse))
	g.Expect(reasons).To(ContainElement(ready.Reason), ready.Message)
	a.saw(ready.Reason)
}
