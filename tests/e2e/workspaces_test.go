package e2e_test

import (
	"context"
	"os"
	"path/filepath"
	"testing"

	. "github.com/onsi/gomega"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	autov1alpha1 "github.com/stack-controller/stack-controller/api/auto/v1alpha1"
	pulumiv1 "github.com/stack-controller/stack-controller/api/pulumi/v1"
)

// eventsOf returns the messages of the events of the reason in the namespace.
func eventsOf(ctx context.Context, g *WithT, namespace, reason string) []string {
	var list corev1.EventList
	g.Expect(system.Client.List(ctx, &list, client.InNamespace(namespace))).To(Succeed())
	var messages []string
	for _, event := range list.Items {
		if event.Reason == reason {
			for range max(event.Count, 1) {
				messages = append(messages, event.Message)
			}
		}
	}
	return messages
}

// awaitNoWorkspace waits until the namespace has no Workspace.
func awaitNoWorkspace(t *testing.T, g *WithT, namespace string) {
	g.Eventually(func(g Gomega) {
		var list autov1alpha1.WorkspaceList
		g.Expect(system.Client.List(t.Context(), &list, client.InNamespace(namespace))).To(Succeed())
		g.Expect(list.Items).To(BeEmpty())
	}).WithTimeout(patience).WithPolling(pollInterval).Should(Succeed())
}

func TestStackTellsTheTroubleOfItsWorkspaceAndHealsWithIt(t *testing.T) {
	t.Parallel()
	g := NewWithT(t)
	const name = "troubled"
	// A file where the workspace's directory has to be: nothing can start there.
	g.Expect(os.MkdirAll(filepath.Dir(directoryOf(name)), 0o700)).To(Succeed())
	g.Expect(os.WriteFile(directoryOf(name), nil, 0o600)).To(Succeed())
	artifact := artifacts.put("v1", packed(yamlProgram(name, "outputs:", "  x: 1")))
	g.Expect(start(t.Context(), name, artifact)).To(Succeed())
	stack := await(t.Context(), g, name, notReady(pulumiv1.WorkspaceNotReadyReason))
	g.Expect(readyMessage(stack)).To(HavePrefix(`workspace "troubled" is not ready (`))
	g.Eventually(func() []string { return eventsOf(t.Context(), g, name, pulumiv1.WorkspaceNotReadyReason) }).
		WithTimeout(patience).WithPolling(pollInterval).Should(HaveLen(1))

	g.Expect(os.Remove(directoryOf(name))).To(Succeed())
	stack = await(t.Context(), g, name, ready(artifact.Digest))
	g.Expect(stack.Status.LastUpdate.Failures).To(BeZero())
	g.Expect(updates(t.Context(), g, name)).To(HaveLen(1))
	g.Expect(eventsOf(t.Context(), g, name, pulumiv1.WorkspaceNotReadyReason)).To(HaveLen(1))
}

func TestReclaimedWorkspaceIsMadeAgainWhenItIsNeeded(t *testing.T) {
	t.Parallel()
	g := NewWithT(t)
	const name = "reclaimed"
	stack, _ := deployed(t, g, name, func(s *pulumiv1.Stack) {
		s.Spec.WorkspaceReclaimPolicy = pulumiv1.WorkspaceReclaimDelete
		s.Spec.DestroyOnFinalize = true
	})
	awaitNoWorkspace(t, g, name)
	next := artifacts.put("v2", packed(yamlProgram(name, "outputs:", "  x: 2")))
	g.Expect(publish(t.Context(), name, next)).To(Succeed())
	await(t.Context(), g, name, ready(next.Digest))
	awaitNoWorkspace(t, g, name)
	await(t.Context(), g, name, ready(next.Digest))
	g.Eventually(func() []string { return eventsOf(t.Context(), g, name, "WorkspaceDeleted") }).
		WithTimeout(patience).WithPolling(pollInterval).Should(HaveLen(2))

	// A failure keeps it: the next attempt is due soon.
	broken := artifacts.put("v3", packed(yamlProgram(name, "outputs:", "  x: ${none}")))
	g.Expect(publish(t.Context(), name, broken)).To(Succeed())
	await(t.Context(), g, name, notReady(pulumiv1.RetryingAfterFailureReason))
	g.Expect(system.Client.Get(t.Context(), keyOf(name), &autov1alpha1.Workspace{})).To(Succeed())
	g.Expect(publish(t.Context(), name, next)).To(Succeed())
	await(t.Context(), g, name, ready(next.Digest))
	awaitNoWorkspace(t, g, name)

	g.Expect(system.Client.Delete(t.Context(), stack)).To(Succeed())
	awaitGone(t.Context(), g, name)
	g.Expect(resources(g, name)).To(BeZero())
	awaitNoWorkspace(t, g, name)
	g.Eventually(func() int { return len(updates(t.Context(), g, name)) }).WithTimeout(patience).WithPolling(pollInterval).Should(BeZero())
}

func TestStackWithoutSourceRunsTheProgramOfItsWorkspace(t *testing.T) {
	t.Parallel()
	g := NewWithT(t)
	const name = "without-source"
	stack := artifactStack(name)
	stack.Spec.FluxSource = nil
	stack.Spec.WorkspaceTemplate = &pulumiv1.WorkspaceTemplate{Spec: &autov1alpha1.WorkspaceSpec{Local: &autov1alpha1.LocalSource{}}}
	g.Expect(system.Client.Create(t.Context(), &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: name}})).To(Succeed())
	g.Expect(system.Client.Create(t.Context(), stack)).To(Succeed())
	// It waits for its Secret, which gives the time to bring the program.
	await(t.Context(), g, name, notReady(pulumiv1.SecretNotFoundReason))
	bringProgram(g, name, "outputs:", "  x: 1")
	g.Expect(system.Client.Create(t.Context(), passphrase(name))).To(Succeed())
	stack = await(t.Context(), g, name, ready(""))
	g.Expect(stack.Status.LastUpdate.LastSuccessfulCommit).To(BeEmpty())
	first := stack.Status.LastUpdate.Name

	bringProgram(g, name, "outputs:", "  x: 2")
	change(t.Context(), g, name, func(s *pulumiv1.Stack) {
		metav1.SetMetaDataAnnotation(&s.ObjectMeta, pulumiv1.ReconcileRequestAnnotation, "again")
	})
	stack = await(t.Context(), g, name, func(s *pulumiv1.Stack) bool { return ready("")(s) && s.Status.LastUpdate.Name != first })
	g.Expect(string(stack.Status.Outputs["x"].Raw)).To(Equal("2"))
}

// handmade is an Update as a user writes it.
func handmade(workspace string, kind autov1alpha1.UpdateType) *autov1alpha1.Update {
	return &autov1alpha1.Update{
		ObjectMeta: metav1.ObjectMeta{Namespace: workspace, Name: string(kind)},
		Spec:       autov1alpha1.UpdateSpec{WorkspaceName: workspace, StackName: "dev", Type: kind},
	}
}

// awaitEnd waits until the Update has ended.
func awaitEnd(ctx context.Context, g *WithT, update *autov1alpha1.Update) *autov1alpha1.Update {
	g.Eventually(func(g Gomega) {
		g.Expect(system.Client.Get(ctx, client.ObjectKeyFromObject(update), update)).To(Succeed())
		g.Expect(update.IsComplete()).To(BeTrue(), "%+v", update.Status)
	}).WithContext(ctx).WithTimeout(patience).WithPolling(pollInterval).Should(Succeed())
	return update
}

func TestWorkspaceAndUpdatesWorkWithoutAStack(t *testing.T) {
	t.Parallel()
	g := NewWithT(t)
	const name = "direct"
	artifact := artifacts.put("v1", packed(yamlProgram(name, "outputs:", "  x: 1")))
	workspace := &autov1alpha1.Workspace{
		ObjectMeta: metav1.ObjectMeta{Namespace: name, Name: name},
		Spec: autov1alpha1.WorkspaceSpec{
			Flux: &autov1alpha1.FluxSource{URL: artifact.URL, Digest: artifact.Digest},
			Env: []corev1.EnvVar{
				{Name: "PULUMI_BACKEND_URL", Value: system.BackendURL},
				{Name: "PULUMI_CONFIG_PASSPHRASE", Value: "correct horse battery staple"},
			},
		},
	}
	g.Expect(system.Client.Create(t.Context(), &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: name}})).To(Succeed())
	g.Expect(system.Client.Create(t.Context(), workspace)).To(Succeed())
	for _, kind := range []autov1alpha1.UpdateType{
		autov1alpha1.UpdateTypePreview, autov1alpha1.UpdateTypeUp, autov1alpha1.UpdateTypeRefresh, autov1alpha1.UpdateTypeDestroy,
	} {
		update := handmade(name, kind)
		g.Expect(system.Client.Create(t.Context(), update)).To(Succeed())
		g.Expect(awaitEnd(t.Context(), g, update).HasFailed()).To(BeFalse(), "%s: %s", kind, update.Status.Message)
	}
	g.Expect(resources(g, name)).To(BeZero())

	// An Update may belong to its Workspace, and goes with it then; one that does not stays, as history.
	owned := handmade(name, autov1alpha1.UpdateTypePreview)
	owned.Name = "owned"
	owned.OwnerReferences = []metav1.OwnerReference{*metav1.NewControllerRef(workspace, autov1alpha1.GroupVersion.WithKind(autov1alpha1.WorkspaceKind))}
	g.Expect(system.Client.Create(t.Context(), owned)).To(Succeed())
	awaitEnd(t.Context(), g, owned)
	g.Expect(system.Client.Delete(t.Context(), workspace)).To(Succeed())
	g.Eventually(func() bool {
		return apierrors.IsNotFound(system.Client.Get(t.Context(), client.ObjectKeyFromObject(owned), owned))
	}).WithTimeout(patience).WithPolling(pollInterval).Should(BeTrue())
	g.Expect(updates(t.Context(), g, name)).To(HaveLen(4))
}

func TestUpdateMadeByHandRunsWhatItsStackRanLast(t *testing.T) {
	t.Parallel()
	g := NewWithT(t)
	const name = "by-hand"
	_, first := deployed(t, g, name)
	next := artifacts.put("v2", packed(yamlProgram(name, "outputs:", "  x: second")))
	g.Expect(publish(t.Context(), name, next)).To(Succeed())
	await(t.Context(), g, name, ready(next.Digest))
	g.Expect(next.Digest).NotTo(Equal(first.Digest))

	workspace := &autov1alpha1.Workspace{}
	g.Expect(system.Client.Get(t.Context(), keyOf(name), workspace)).To(Succeed())
	g.Expect(workspace.Generation).To(Equal(int64(1)), "a commit does not change the Workspace")
	update := handmade(name, autov1alpha1.UpdateTypeUp)
	g.Expect(system.Client.Create(t.Context(), update)).To(Succeed())
	g.Expect(awaitEnd(t.Context(), g, update).HasFailed()).To(BeFalse(), update.Status.Message)
	g.Expect(update.Spec.Source).To(BeNil())
	outputs := &corev1.Secret{}
	g.Expect(system.Client.Get(t.Context(), client.ObjectKey{Namespace: name, Name: update.Status.Outputs}, outputs)).To(Succeed())
	g.Expect(string(outputs.Data["x"])).To(Equal(`"second"`))
}
