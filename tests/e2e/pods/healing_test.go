package pods_test

import (
	"context"
	"testing"
	"time"

	. "github.com/onsi/gomega"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/fluxcd/pkg/apis/meta"
	"github.com/fluxcd/pkg/runtime/conditions"

	autov1alpha1 "github.com/stack-controller/stack-controller/api/auto/v1alpha1"
	pulumiv1 "github.com/stack-controller/stack-controller/api/pulumi/v1"
	"github.com/stack-controller/stack-controller/tests/framework/localsystem"
	"github.com/stack-controller/stack-controller/tests/framework/suite"
)

// atOnce bounds the time until a Workspace whose pod went away shows it. On a quiet machine it takes a moment.
const atOnce = 5 * time.Second

func TestWorkspaceIsNotReadyAtOnceWhenItsPodGoesAndReadyWithTheNext(t *testing.T) {
	suite.Long(t, "a further state of a pod")
	t.Parallel()
	for name, test := range map[string]struct {
		end     func(ctx context.Context, g *WithT, pod *corev1.Pod)
		reason  string
		samePod bool
	}{
		"idle-pod-deleted": {
			end: func(ctx context.Context, g *WithT, pod *corev1.Pod) {
				g.Expect(system.Client.Delete(ctx, pod)).To(Succeed())
			},
			reason: autov1alpha1.PodTerminatingReason,
		},
		"idle-container-killed": {
			end: func(ctx context.Context, g *WithT, pod *corev1.Pod) {
				g.Expect(system.Cluster.KillContainer(ctx, pod.Status.ContainerStatuses[0].ContainerID)).To(Succeed())
			},
			reason:  autov1alpha1.CrashLoopBackOffReason,
			samePod: true,
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			g := NewWithT(t)
			ctx, cancel := context.WithTimeout(t.Context(), healingPatience)
			defer cancel()
			app, recorder := deployRecorded(ctx, t, name)
			before := podOf(ctx, g, name, name)

			begin := time.Now()
			test.end(ctx, g, before)
			eventually(ctx, g, func(g Gomega) {
				g.Expect(recorder.when(autov1alpha1.WorkspaceKind, "True", begin)).NotTo(BeZero(), "%v", recorder.reasons(autov1alpha1.WorkspaceKind, begin))
			})
			lowered, raised := recorder.when(autov1alpha1.WorkspaceKind, "False", begin), recorder.when(autov1alpha1.WorkspaceKind, "True", begin)
			t.Logf("%s: not ready after %s, ready after %s: %v", name, lowered.Sub(begin), raised.Sub(begin), recorder.reasons(autov1alpha1.WorkspaceKind, begin))
			g.Expect(lowered.Sub(begin)).To(BeNumerically("<", atOnce))
			g.Expect(recorder.reasons(autov1alpha1.WorkspaceKind, begin)).To(ContainElement("False " + test.reason))
			g.Expect(recorder.reasons(pulumiv1.StackKind, begin)).To(BeEmpty(), "the Stack needs no pod")
			g.Expect(podOf(ctx, g, name, name).UID == before.UID).To(Equal(test.samePod))

			_, err := system.Rollout(ctx, app, programWith(name, "two"))
			g.Expect(err).NotTo(HaveOccurred())
		})
	}
}

// deployRecorded deploys an app with a recorder, and returns when the Stack is ready.
func deployRecorded(ctx context.Context, t *testing.T, name string, changes ...func(*pulumiv1.Stack)) (*localsystem.App, *recorder) {
	t.Helper()
	g := NewWithT(t)
	checkStatuses(t, name)
	recorder := record(t, g, name)
	app := deploy(ctx, t, g, name, programWith(name, "one"), changes...)
	eventually(ctx, g, func(g Gomega) { g.Expect(recorder.readySince(time.Time{})).NotTo(BeZero()) })
	return app, recorder
}

// awaitReadyWorkspace waits until the Workspace is ready and so is its current pod.
func awaitReadyWorkspace(ctx context.Context, g *WithT, key client.ObjectKey) {
	eventually(ctx, g, func(g Gomega) {
		workspace := &autov1alpha1.Workspace{}
		g.Expect(system.Client.Get(ctx, key, workspace)).To(Succeed())
		g.Expect(conditions.IsReady(workspace)).To(BeTrue(), "%+v", workspace.Status.Conditions)
		pod := podOf(ctx, g, key.Namespace, key.Name)
		g.Expect(pod.DeletionTimestamp).To(BeNil())
		g.Expect(pulumiOf(pod).Ready).To(BeTrue())
	})
}

func TestPodRunsOnWhileItsChangedTemplateIsRefused(t *testing.T) {
	suite.Long(t, "a further state of a pod")
	t.Parallel()
	a := deploySleeping(t, "template-refused", "")
	running := a.begin(a.untilReleased(), "create start")
	pod := a.pod()
	change(a.ctx, a.WithT, a.Key(), func(stack *pulumiv1.Stack) {
		podSpecOf(stack).NodeSelector = map[string]string{"no label": "x"}
	})
	// The running update ends as if nothing had changed, and the next update waits.
	a.release()
	awaitEnd(a.ctx, a.WithT, running)
	a.Expect(running.Status.State).To(Equal(autov1alpha1.UpdateStateSucceeded), running.Status.Message)
	awaitStack(a.ctx, a.WithT, a.Key(), func(g Gomega, stack *pulumiv1.Stack) {
		g.Expect(conditions.GetReason(stack, meta.StalledCondition)).To(Equal(pulumiv1.WorkspaceFailedReason))
		g.Expect(conditions.GetMessage(stack, meta.ReadyCondition)).To(And(
			HavePrefix(`workspace "template-refused" is not ready (ObjectRejected): the API server refuses`), ContainSubstring("no label")))
	})
	a.Expect(a.pod().UID).To(Equal(pod.UID))
	a.Expect(a.pod().DeletionTimestamp).To(BeNil())

	begin := time.Now()
	change(a.ctx, a.WithT, a.Key(), func(stack *pulumiv1.Stack) { podSpecOf(stack).NodeSelector = nil })
	_, err := system.WaitReady(a.ctx, a.App)
	a.Expect(err).NotTo(HaveOccurred())
	t.Logf("healed in %s", time.Since(begin))
	a.Expect(a.pod().UID).To(Equal(pod.UID), "it is what the Stack asks for")
	a.Expect(a.journal("slow")).To(Equal([]string{"create start", "create end"}))
}

func TestUpdateWaitsForASecretInAPodThatRuns(t *testing.T) {
	suite.Long(t, "a further state of a pod")
	t.Parallel()
	g := NewWithT(t)
	const name = "secret-missing"
	ctx, cancel := context.WithTimeout(t.Context(), healingPatience)
	defer cancel()
	removeNamespaceAtEnd(t, g, name)
	checkStatuses(t, name)
	recorder := record(t, g, name)
	app, err := system.Deploy(ctx, name, programWith(name, "one"), func(stack *pulumiv1.Stack) {
		stack.Spec.EnvRefs["KEY"] = pulumiv1.ResourceRef{Type: pulumiv1.ResourceRefSecret, SecretRef: &pulumiv1.SecretSelector{Name: late, Key: "the-key"}}
	})
	g.Expect(err).NotTo(HaveOccurred())
	awaitReadyWorkspace(ctx, g, app.Key())
	stack := awaitStack(ctx, g, app.Key(), func(g Gomega, stack *pulumiv1.Stack) {
		g.Expect(conditions.GetReason(stack, meta.ReadyCondition)).To(Equal(pulumiv1.SecretNotFoundReason))
	})
	message := conditions.GetMessage(stack, meta.ReadyCondition)
	t.Log(message)
	g.Expect(message).To(And(ContainSubstring(`secret "late"`), ContainSubstring(`variable "KEY"`), ContainSubstring("does not exist")))
	pod := podOf(ctx, g, name, name)

	// A Secret without the key is not enough.
	wrong := secret(name, late, "other-key", "value")
	g.Expect(system.Client.Create(ctx, wrong)).To(Succeed())
	stack = awaitStack(ctx, g, app.Key(), func(g Gomega, stack *pulumiv1.Stack) {
		g.Expect(conditions.GetMessage(stack, meta.ReadyCondition)).To(HavePrefix(`waiting for key "the-key" in secret "late"`))
	})
	t.Log(conditions.GetMessage(stack, meta.ReadyCondition))
	begin := time.Now()
	wrong.StringData = map[string]string{"the-key": "value"}
	g.Expect(system.Client.Update(ctx, wrong)).To(Succeed())
	_, err = system.WaitReady(ctx, app)
	g.Expect(err).NotTo(HaveOccurred())
	t.Logf("healed in %s: %v", time.Since(begin), recorder.reasons(pulumiv1.StackKind, time.Time{}))
	g.Expect(warnings(ctx, g, name, pulumiv1.SecretNotFoundReason)).To(ConsistOf(HavePrefix("Stack " + pulumiv1.SecretNotFoundReason + " x1: ")))
	after := podOf(ctx, g, name, name)
	g.Expect(after.UID).To(Equal(pod.UID))
	g.Expect(pulumiOf(after).RestartCount).To(BeZero())
}

func TestObjectsOfAWorkspaceThatAreDeletedAreMadeAgain(t *testing.T) {
	suite.Long(t, "a further state of a pod")
	t.Parallel()
	g := NewWithT(t)
	const name = "objects-deleted"
	ctx, cancel := context.WithTimeout(t.Context(), healingPatience)
	defer cancel()
	app, recorder := deployRecorded(ctx, t, name)
	before := podOf(ctx, g, name, name)

	begin := time.Now()
	for _, object := range []client.Object{serviceOf(name), rpcSecretOf(name), statefulSetOf(name)} {
		g.Expect(system.Client.Delete(ctx, object)).To(Succeed())
	}
	for _, object := range []client.Object{serviceOf(name), rpcSecretOf(name), statefulSetOf(name)} {
		eventually(ctx, g, func(g Gomega) {
			g.Expect(system.Client.Get(ctx, client.ObjectKeyFromObject(object), object)).To(Succeed())
			g.Expect(object.GetDeletionTimestamp()).To(BeNil())
			g.Expect(object.GetCreationTimestamp().Time).NotTo(BeTemporally("<", begin.Truncate(time.Second)))
		})
	}
	eventually(ctx, g, func(g Gomega) { g.Expect(podOf(ctx, g, name, name).UID).NotTo(Equal(before.UID)) })
	awaitReadyWorkspace(ctx, g, app.Key())
	t.Logf("ready again after %s: %v", time.Since(begin), recorder.reasons(autov1alpha1.WorkspaceKind, begin))
	_, err := system.Rollout(ctx, app, programWith(name, "two"))
	g.Expect(err).NotTo(HaveOccurred())
}

func TestUpdateGoesOnWithoutServiceAndSecret(t *testing.T) {
	suite.Long(t, "a further state of a pod")
	t.Parallel()
	a := deploySleeping(t, "service-deleted", "")
	running := a.begin(a.untilReleased(), "create start")
	pod := a.pod()
	for _, object := range []client.Object{serviceOf(a.Name), rpcSecretOf(a.Name)} {
		a.Expect(system.Client.Delete(a.ctx, object)).To(Succeed())
	}
	a.expectUndisturbed(running, pod.UID)
	eventually(a.ctx, a.WithT, func(g Gomega) {
		g.Expect(system.Client.Get(a.ctx, client.ObjectKeyFromObject(serviceOf(a.Name)), &corev1.Service{})).To(Succeed())
	})
}

// The functions below return the objects of the Workspace of an app of that name.

func serviceOf(name string) *corev1.Service {
	return &corev1.Service{Namespace: name, Name: name + "-workspace"}
}

func rpcSecretOf(name string) *corev1.Secret {
	return &corev1.Secret{Namespace: name, Name: name + "-workspace-rpc"}
}

func statefulSetOf(name string) *appsv1.StatefulSet {
	return &appsv1.StatefulSet{Namespace: name, Name: name + "-workspace"}
}
