package e2e_test

import (
	"testing"
	"time"

	. "github.com/onsi/gomega"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/fluxcd/pkg/apis/meta"

	autov1alpha1 "github.com/stack-controller/stack-controller/api/auto/v1alpha1"
	pulumiv1 "github.com/stack-controller/stack-controller/api/pulumi/v1"
)

// The tests of this file run alone, before the parallel ones: they end the controller.

// formerOwner is the field manager of the Pulumi Kubernetes Operator.
const formerOwner = "pulumi-kubernetes-operator"

// leftByTheFormerController makes the objects of a Stack that is deployed what the Pulumi Kubernetes Operator would have left:
// a Workspace that it applied, with things in it that this controller would not ask for, an Update that it completed, and a
// status without all that is new here, in which the commit is the one given. Nothing may look at them meanwhile.
func leftByTheFormerController(t *testing.T, g *WithT, name, commit string) (recorded *autov1alpha1.Update) {
	ctx := t.Context()
	stack := &pulumiv1.Stack{}
	g.Expect(system.Client.Get(ctx, keyOf(name), stack)).To(Succeed())
	workspace := &autov1alpha1.Workspace{}
	g.Expect(system.Client.Get(ctx, keyOf(name), workspace)).To(Succeed())
	g.Expect(system.Client.Delete(ctx, workspace)).To(Succeed())
	g.Eventually(func() bool {
		return apierrors.IsNotFound(system.Client.Get(ctx, keyOf(name), &autov1alpha1.Workspace{}))
	}).WithTimeout(patience).WithPolling(pollInterval).Should(BeTrue())
	workspace.ObjectMeta = metav1.ObjectMeta{Namespace: name, Name: name, Labels: workspace.Labels, OwnerReferences: workspace.OwnerReferences}
	workspace.Spec.Stacks[0].Config = []autov1alpha1.ConfigItem{{Key: "left", Value: &apiextensionsv1.JSON{Raw: []byte(`"over"`)}}}
	workspace.Spec.PulumiLogLevel = 1
	content, err := runtime.DefaultUnstructuredConverter.ToUnstructured(workspace)
	g.Expect(err).NotTo(HaveOccurred())
	delete(content, "status")
	object := &unstructured.Unstructured{Object: content}
	object.SetGroupVersionKind(autov1alpha1.GroupVersion.WithKind(autov1alpha1.WorkspaceKind))
	g.Expect(system.Client.Apply(ctx, client.ApplyConfigurationFromUnstructured(object), client.FieldOwner(formerOwner))).To(Succeed())
	g.Expect(system.Client.Get(ctx, keyOf(name), workspace)).To(Succeed())

	recorded = formerUpdate(g, t, stack, workspace, name+"-193a0f")
	before := recorded.DeepCopy()
	now := metav1.Now()
	recorded.Status.StartTime, recorded.Status.EndTime = &now, &now
	recorded.Status.Conditions = []metav1.Condition{
		{Type: autov1alpha1.UpdateProgressing, Status: metav1.ConditionFalse, Reason: autov1alpha1.UpdateCompleteReason, LastTransitionTime: now},
		{Type: autov1alpha1.UpdateFailed, Status: metav1.ConditionFalse, Reason: autov1alpha1.UpdateSucceededReason, LastTransitionTime: now},
		{Type: autov1alpha1.UpdateComplete, Status: metav1.ConditionTrue, Reason: autov1alpha1.UpdateUpdatedReason, LastTransitionTime: now},
	}
	g.Expect(system.Client.Status().Patch(ctx, recorded, client.MergeFrom(before))).To(Succeed())

	was := stack.DeepCopy()
	stack.Status = pulumiv1.StackStatus{
		ObservedGeneration: stack.Generation,
		Outputs:            was.Status.Outputs,
		ProjectInfo:        was.Status.ProjectInfo,
		Conditions: []metav1.Condition{{Type: meta.ReadyCondition, Status: metav1.ConditionTrue, Reason: pulumiv1.ProcessingCompletedReason,
			Message: "the stack has been processed and is up to date", LastTransitionTime: now}},
		LastUpdate: &pulumiv1.StackUpdateStatus{
			Generation: stack.Generation, Name: recorded.Name, Type: autov1alpha1.UpdateTypeUp, State: pulumiv1.StackUpdateSucceeded,
			LastAttemptedCommit: commit, LastSuccessfulCommit: commit, LastResyncTime: now,
		},
	}
	g.Expect(system.Client.Status().Patch(ctx, stack, client.MergeFrom(was))).To(Succeed())
	return recorded
}

// formerUpdate creates an Update as the Pulumi Kubernetes Operator does. It puts its finalizer on each of them.
func formerUpdate(g *WithT, t *testing.T, stack *pulumiv1.Stack, workspace *autov1alpha1.Workspace, name string) *autov1alpha1.Update {
	yes := true
	update := &autov1alpha1.Update{
		ObjectMeta: metav1.ObjectMeta{
			Namespace: stack.Namespace, Name: name, Finalizers: []string{pulumiv1.Finalizer},
			Labels: map[string]string{pulumiv1.ComponentLabel: pulumiv1.ComponentStack, pulumiv1.StackNameLabel: stack.Name},
			OwnerReferences: []metav1.OwnerReference{
				*metav1.NewControllerRef(workspace, autov1alpha1.GroupVersion.WithKind(autov1alpha1.WorkspaceKind)),
				{APIVersion: pulumiv1.GroupVersion.String(), Kind: pulumiv1.StackKind, Name: stack.Name, UID: stack.UID, BlockOwnerDeletion: &yes},
			},
		},
		Spec: autov1alpha1.UpdateSpec{
			WorkspaceName: workspace.Name, StackName: stack.Spec.Stack, Type: autov1alpha1.UpdateTypeUp,
			TTLAfterCompleted: &metav1.Duration{Duration: 24 * time.Hour},
		},
	}
	g.Expect(system.Client.Create(t.Context(), update)).To(Succeed())
	return update
}

func TestStackOfTheFormerControllerIsTakenOver(t *testing.T) {
	for commit, of := range map[string]func(*meta.Artifact) string{
		"revision": func(a *meta.Artifact) string { return a.Revision },
		"digest":   func(a *meta.Artifact) string { return a.Digest },
	} {
		t.Run(commit, func(t *testing.T) {
			g := NewWithT(t)
			name := "former-" + commit
			_, artifact := deployed(t, g, name, func(s *pulumiv1.Stack) {
				s.Spec.DestroyOnFinalize = true
				s.Annotations = map[string]string{meta.ReconcileRequestAnnotation: "long ago"}
			})
			stopController(t, g)
			earlier := updates(t.Context(), g, name)
			g.Expect(earlier).To(HaveLen(1))
			recorded := leftByTheFormerController(t, g, name, of(artifact))
			g.Expect(system.StartController(t.Context())).To(Succeed())

			stack := await(t.Context(), g, name, func(s *pulumiv1.Stack) bool {
				return ready(artifact.Digest)(s) && len(s.Status.History) == 1 && s.Status.Deployed
			})
			g.Expect(stack.Status.LastUpdate.Name).To(Equal(recorded.Name))
			// What comes later is deployed later.
			deployed(t, g, name+"-later")
			g.Expect(updates(t.Context(), g, name)).To(HaveLen(2), "nothing runs because the controller changed")
			awaitRetired(t, g, recorded)

			next := artifacts.put("v2", packed(yamlProgram(name, "outputs:", "  x: 2")))
			g.Expect(publish(t.Context(), name, next)).To(Succeed())
			await(t.Context(), g, name, ready(next.Digest))
			workspace := &autov1alpha1.Workspace{}
			g.Expect(system.Client.Get(t.Context(), keyOf(name), workspace)).To(Succeed())
			g.Expect(workspace.Spec.Stacks[0].Config).To(BeEmpty(), "what nobody asks for goes")
			g.Expect(workspace.Spec.PulumiLogLevel).To(BeZero())
			g.Expect(workspace.Spec.Flux).To(BeNil(), "the source is in the Update")
			for _, entry := range workspace.ManagedFields {
				g.Expect(entry.Manager).NotTo(Equal(formerOwner))
			}

			g.Expect(system.Client.Delete(t.Context(), stack)).To(Succeed())
			awaitGone(t.Context(), g, name)
			g.Expect(resources(g, name)).To(BeZero())
			g.Eventually(func() int { return len(updates(t.Context(), g, name)) }).WithTimeout(patience).WithPolling(pollInterval).Should(BeZero())
		})
	}
}

func TestUpdateThatTheFormerControllerLeftRunningIsRepeated(t *testing.T) {
	g := NewWithT(t)
	const name = "former-running"
	_, artifact := deployed(t, g, name)
	stopController(t, g)
	leftByTheFormerController(t, g, name, "main@sha1:earlier")
	stack, workspace := &pulumiv1.Stack{}, &autov1alpha1.Workspace{}
	g.Expect(system.Client.Get(t.Context(), keyOf(name), stack)).To(Succeed())
	g.Expect(system.Client.Get(t.Context(), keyOf(name), workspace)).To(Succeed())
	running := formerUpdate(g, t, stack, workspace, name+"-193a10")
	before := running.DeepCopy()
	running.Status.Conditions = []metav1.Condition{
		{Type: autov1alpha1.UpdateProgressing, Status: metav1.ConditionTrue, Reason: autov1alpha1.UpdateProgressingReason, LastTransitionTime: metav1.Now()},
		{Type: autov1alpha1.UpdateFailed, Status: metav1.ConditionFalse, Reason: autov1alpha1.UpdateProgressingReason, LastTransitionTime: metav1.Now()},
		{Type: autov1alpha1.UpdateComplete, Status: metav1.ConditionFalse, Reason: autov1alpha1.UpdateProgressingReason, LastTransitionTime: metav1.Now()},
	}
	g.Expect(system.Client.Status().Patch(t.Context(), running, client.MergeFrom(before))).To(Succeed())
	was := stack.DeepCopy()
	stack.Status.CurrentUpdate = &pulumiv1.CurrentStackUpdate{Generation: stack.Generation, Name: running.Name, Commit: artifact.Revision}
	g.Expect(system.Client.Status().Patch(t.Context(), stack, client.MergeFrom(was))).To(Succeed())
	g.Expect(system.StartController(t.Context())).To(Succeed())

	stack = await(t.Context(), g, name, ready(artifact.Digest))
	g.Expect(stack.Status.LastUpdate.Name).NotTo(Equal(running.Name))
	g.Expect(stack.Status.LastUpdate.Failures).To(BeZero())
	awaitRetired(t, g, running)
	g.Expect(running.WasInterrupted()).To(BeTrue())
	g.Expect(running.Status.Message).To(ContainSubstring("a controller that is gone"))
}

// awaitRetired waits until nothing keeps the Update from being deleted.
func awaitRetired(t *testing.T, g *WithT, update *autov1alpha1.Update) {
	g.Eventually(func(g Gomega) {
		g.Expect(system.Client.Get(t.Context(), client.ObjectKeyFromObject(update), update)).To(Succeed())
		g.Expect(update.Finalizers).To(BeEmpty())
	}).WithTimeout(patience).WithPolling(pollInterval).Should(Succeed())
}
