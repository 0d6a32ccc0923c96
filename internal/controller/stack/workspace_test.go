package stack

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"sync/atomic"
	"testing"

	. "github.com/onsi/gomega"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	k8sruntime "k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/fluxcd/pkg/apis/meta"
	"github.com/fluxcd/pkg/runtime/conditions"

	autov1alpha1 "github.com/stack-controller/stack-controller/api/auto/v1alpha1"
	pulumiv1 "github.com/stack-controller/stack-controller/api/pulumi/v1"
)

// newStack creates the Stack "app", whose program is in its image, and waits until it has a Workspace and an Update.
func (s *fixture) newStack(change func(*pulumiv1.Stack)) *pulumiv1.Stack {
	s.t.Helper()
	stack := &pulumiv1.Stack{
		Namespace: s.namespace, Name: "app",
		Spec: pulumiv1.StackSpec{Stack: "dev"},
	}
	withImage("one")(stack)
	change(stack)
	s.Expect(s.client.Create(s.t.Context(), stack)).To(Succeed())
	return s.await(stack, func(stack *pulumiv1.Stack) bool { return stack.Status.CurrentUpdate != nil })
}

// withImage changes the image of the Stack's Workspace.
func withImage(image string) func(*pulumiv1.Stack) {
	return func(stack *pulumiv1.Stack) {
		stack.Spec.WorkspaceTemplate = &pulumiv1.WorkspaceTemplate{Spec: &autov1alpha1.WorkspaceSpec{Image: image}}
	}
}

// await waits until is returns true for the Stack, checks the rules for its conditions, and returns the Stack.
func (s *fixture) await(stack *pulumiv1.Stack, is func(*pulumiv1.Stack) bool) *pulumiv1.Stack {
	s.t.Helper()
	s.Eventually(func(g Gomega) {
		g.Expect(s.client.Get(s.t.Context(), client.ObjectKeyFromObject(stack), stack)).To(Succeed())
		g.Expect(is(stack)).To(BeTrue(), "%+v", stack.Status)
	}).Should(Succeed())
	lint(s.t, s.WithT, stack)
	return stack
}

// warnings are the reasons and messages of the events of the type Warning.
func (s *fixture) warnings() (found []string, err error) {
	list := &corev1.EventList{}
	err = s.client.List(s.t.Context(), list, client.InNamespace(s.namespace))
	for i := range list.Items {
		if list.Items[i].Type == corev1.EventTypeWarning {
			found = append(found, list.Items[i].Reason+": "+list.Items[i].Message)
		}
	}
	return found, err
}

func reasonIs(condition, reason string) func(*pulumiv1.Stack) bool {
	return func(stack *pulumiv1.Stack) bool { return conditions.GetReason(stack, condition) == reason }
}

func (s *fixture) workspace() *autov1alpha1.Workspace {
	s.t.Helper()
	workspace := &autov1alpha1.Workspace{}
	s.Expect(s.client.Get(s.t.Context(), client.ObjectKey{Namespace: s.namespace, Name: "app"}, workspace)).To(Succeed())
	return workspace
}

// setWorkspace writes the status of the Workspace, as the Workspace controller would.
func (s *fixture) setWorkspace(mark func(*autov1alpha1.Workspace)) {
	s.t.Helper()
	workspace := s.workspace()
	before := workspace.DeepCopy()
	mark(workspace)
	workspace.Status.ObservedGeneration = workspace.Generation
	s.Expect(s.client.Status().Patch(s.t.Context(), workspace, client.MergeFrom(before))).To(Succeed())
}

// setUpdate writes the status of the current Update, as the Update controller would.
func (s *fixture) setUpdate(stack *pulumiv1.Stack, mark func(*autov1alpha1.Update)) {
	s.t.Helper()
	update := &autov1alpha1.Update{}
	key := client.ObjectKey{Namespace: s.namespace, Name: stack.Status.CurrentUpdate.Name}
	s.Expect(s.client.Get(s.t.Context(), key, update)).To(Succeed())
	s.mark(update, mark)
}

// mark writes the status of an Update.
func (s *fixture) mark(update *autov1alpha1.Update, marks ...func(*autov1alpha1.Update)) {
	s.t.Helper()
	before := update.DeepCopy()
	for _, mark := range marks {
		mark(update)
	}
	s.Expect(s.client.Status().Patch(s.t.Context(), update, client.MergeFrom(before))).To(Succeed())
}

func started(update *autov1alpha1.Update) {
	update.Status.StartTime = new(metav1.Now())
	conditions.MarkTrue(update, autov1alpha1.UpdateProgressing, autov1alpha1.UpdateProgressingReason, "runs")
}

func wasInterrupted(update *autov1alpha1.Update) {
	update.Status.EndTime, update.Status.Message = new(metav1.Now()), "the pod was lost"
	conditions.MarkFalse(update, autov1alpha1.UpdateProgressing, autov1alpha1.UpdateEndedFailedReason, "")
	conditions.MarkTrue(update, autov1alpha1.UpdateFailed, autov1alpha1.InterruptedReason, "the pod was lost")
	conditions.MarkTrue(update, autov1alpha1.UpdateComplete, autov1alpha1.UpdateEndedFailedReason, "")
}

func TestStackShowsTheFailureOfItsWorkspace(t *testing.T) {
	s := newFixture(t)
	stack := s.newStack(func(*pulumiv1.Stack) {})
	s.setWorkspace(starting)
	s.setWorkspace(failing(autov1alpha1.UnschedulableReason, "no node takes the pod"))
	s.await(stack, reasonIs(meta.ReadyCondition, pulumiv1.WorkspaceNotReadyReason))
	s.Expect(conditions.GetMessage(stack, meta.ReadyCondition)).To(Equal(`workspace "app" is not ready (Unschedulable): no node takes the pod`))
	s.setWorkspace(stalled(autov1alpha1.CrashLoopBackOffReason))
	s.await(stack, reasonIs(meta.StalledCondition, pulumiv1.WorkspaceFailedReason))
	s.setWorkspace(starting)
	s.await(stack, reasonIs(meta.ReconcilingCondition, pulumiv1.StackProcessingReason))
	s.Expect(conditions.GetMessage(stack, meta.ReadyCondition)).To(HavePrefix("waiting for workspace readiness"))
	s.Expect(stack.Status.LastUpdate).To(BeNil())

	s.Eventually(s.warnings).Should(ConsistOf(
		HavePrefix(pulumiv1.WorkspaceFailedReason+": "), HavePrefix(pulumiv1.WorkspaceNotReadyReason+": ")))
}

func TestEditThatMendsTheWorkspaceReachesItThoughItsUpdateHasStarted(t *testing.T) {
	s := newFixture(t)
	stack := s.newStack(func(*pulumiv1.Stack) {})
	s.setUpdate(stack, started)
	// The node is lost, and the image cannot be pulled on the next one.
	s.setWorkspace(failing(autov1alpha1.ImagePullFailedReason, "no such image"))
	s.await(stack, reasonIs(meta.ReadyCondition, pulumiv1.WorkspaceNotReadyReason))
	first := stack.Status.CurrentUpdate.Name

	before := stack.DeepCopy()
	withImage("two")(stack)
	s.Expect(s.client.Patch(t.Context(), stack, client.MergeFrom(before))).To(Succeed())
	s.Eventually(s.workspace).Should(HaveField("Spec.Image", "two"))
	s.setWorkspace(starting)
	s.setUpdate(stack, wasInterrupted)
	s.await(stack, func(stack *pulumiv1.Stack) bool {
		return stack.Status.CurrentUpdate != nil && stack.Status.CurrentUpdate.Name != first
	})
	s.Expect(stack.Status.CurrentUpdate.Generation).To(Equal(stack.Generation))
}

func TestOrphanedStackDoesNotWaitForAFailedWorkspace(t *testing.T) {
	s := newFixture(t)
	stack := s.newStack(func(stack *pulumiv1.Stack) { stack.Spec.DestroyOnFinalize = true })
	s.setUpdate(stack, started)
	s.setWorkspace(failing(autov1alpha1.NodeLostReason, "the node does not answer"))
	s.await(stack, reasonIs(meta.ReadyCondition, pulumiv1.WorkspaceNotReadyReason))
	s.Expect(s.client.Delete(t.Context(), stack)).To(Succeed())
	s.await(stack, func(stack *pulumiv1.Stack) bool { return !stack.DeletionTimestamp.IsZero() })

	before := stack.DeepCopy()
	metav1.SetMetaDataAnnotation(&stack.ObjectMeta, pulumiv1.OrphanAnnotation, "true")
	s.Expect(s.client.Patch(t.Context(), stack, client.MergeFrom(before))).To(Succeed())
	s.Eventually(func() error { return s.client.Get(t.Context(), client.ObjectKeyFromObject(stack), stack) }).Should(MatchError(ContainSubstring("not found")))
}

func TestInterruptedUpdateIsFollowedByAnotherOneAtOnce(t *testing.T) {
	s := newFixture(t)
	stack := s.newStack(func(*pulumiv1.Stack) {})
	var names []string
	for range freeInterruptions + 1 {
		s.await(stack, func(stack *pulumiv1.Stack) bool {
			return stack.Status.CurrentUpdate != nil && !slices.Contains(names, stack.Status.CurrentUpdate.Name)
		})
		names = append(names, stack.Status.CurrentUpdate.Name)
		s.setUpdate(stack, func(update *autov1alpha1.Update) { started(update); wasInterrupted(update) })
	}
	s.await(stack, reasonIs(meta.ReconcilingCondition, pulumiv1.UpdateInterruptedReason))
	s.Expect(stack.Status.CurrentUpdate).To(BeNil())
	s.Expect(stack.Status.LastUpdate.Failures).To(BeZero())
	s.Expect(stack.Status.LastUpdate.Interruptions).To(BeEquivalentTo(freeInterruptions + 1))
}

// withoutUpdates is a client that cannot create Updates while on is set.
type withoutUpdates struct {
	client.Client
	on atomic.Bool
}

func (c *withoutUpdates) Create(ctx context.Context, object client.Object, opts ...client.CreateOption) error {
	if _, isUpdate := object.(*autov1alpha1.Update); isUpdate && c.on.Load() {
		return errors.New("the API server does not answer")
	}
	return c.Client.Create(ctx, object, opts...)
}

// The status has the result when the next Update cannot be created, so no later reconcile would announce it.
func TestResultIsAnnouncedThoughWhatFollowsItFails(t *testing.T) {
	broken := &withoutUpdates{}
	s := newFixture(t, func(r *Reconciler) { broken.Client, r.Client = r.Client, broken })
	stack := s.newStack(func(*pulumiv1.Stack) {})
	broken.on.Store(true)
	s.setUpdate(stack, func(update *autov1alpha1.Update) { started(update); wasInterrupted(update) })
	s.Eventually(s.warnings).Should(ContainElement(HavePrefix(eventUpdateInterrupted)))
	broken.on.Store(false)
	s.await(stack, func(stack *pulumiv1.Stack) bool {
		return stack.Status.CurrentUpdate != nil && stack.Status.LastUpdate != nil
	})
	s.Expect(stack.Status.LastUpdate.Interruptions).To(BeEquivalentTo(1))
}

// denied is how the API server answers when an admission webhook denies a request and gives no code, as those of Kyverno do.
func denied() error {
	return &apierrors.StatusError{ErrStatus: metav1.Status{
		Status: metav1.StatusFailure, Code: http.StatusBadRequest, Message: `admission webhook "validate.example.com" denied the request: no team`,
	}}
}

// denying is a client whose Workspaces, or whose Updates, a webhook denies.
type denying struct {
	client.Client
	workspaces, updates atomic.Bool
}

func (c *denying) Apply(ctx context.Context, object k8sruntime.ApplyConfiguration, options ...client.ApplyOption) error {
	if c.workspaces.Load() { // the Reconciler applies nothing else with this client
		return denied()
	}
	return c.Client.Apply(ctx, object, options...)
}

func (c *denying) Create(ctx context.Context, object client.Object, options ...client.CreateOption) error {
	if _, isUpdate := object.(*autov1alpha1.Update); isUpdate && c.updates.Load() {
		return denied()
	}
	return c.Client.Create(ctx, object, options...)
}

func TestStackShowsThatAWebhookDeniesItsWorkspaceOrItsUpdate(t *testing.T) {
	webhook := &denying{}
	webhook.workspaces.Store(true)
	s := newFixture(t, func(r *Reconciler) { webhook.Client, r.Client = r.Client, webhook })
	stack := &pulumiv1.Stack{Namespace: s.namespace, Name: "app", Spec: pulumiv1.StackSpec{Stack: "dev"}}
	withImage("one")(stack)
	s.Expect(s.client.Create(t.Context(), stack)).To(Succeed())
	isStalled := func(what string) func(*pulumiv1.Stack) bool {
		return func(stack *pulumiv1.Stack) bool {
			return conditions.GetReason(stack, meta.StalledCondition) == pulumiv1.WorkspaceFailedReason &&
				strings.HasPrefix(conditions.GetMessage(stack, meta.ReadyCondition), what) &&
				strings.Contains(conditions.GetMessage(stack, meta.ReadyCondition), denied().Error())
		}
	}
	s.await(stack, isStalled("apply the workspace: "))

	webhook.updates.Store(true)
	webhook.workspaces.Store(false)
	s.edit(stack, withImage("two"))
	s.await(stack, isStalled("create the update "))

	webhook.updates.Store(false)
	s.edit(stack, withImage("three"))
	s.await(stack, func(stack *pulumiv1.Stack) bool {
		return stack.Status.CurrentUpdate != nil && !conditions.IsStalled(stack)
	})
}

func TestFieldsThatAreNotAskedForAnyMoreGoFromWhatStays(t *testing.T) {
	s := newFixture(t)
	template := func(limits corev1.ResourceList, medium corev1.StorageMedium, user *int64) func(*pulumiv1.Stack) {
		container := corev1.Container{
			Name: "extra", Image: "extra", Resources: corev1.ResourceRequirements{Limits: limits}, SecurityContext: &corev1.SecurityContext{RunAsUser: user},
		}
		volume := corev1.Volume{Name: "extra", EmptyDir: &corev1.EmptyDirVolumeSource{Medium: medium}}
		return func(stack *pulumiv1.Stack) {
			stack.Spec.WorkspaceTemplate.Spec.PodTemplate = &autov1alpha1.EmbeddedPodTemplateSpec{Spec: &autov1alpha1.EmbeddedPodSpec{
				InitContainers: []corev1.Container{container}, Containers: []corev1.Container{container}, Volumes: []corev1.Volume{volume}}}
		}
	}
	full := template(corev1.ResourceList{corev1.ResourceMemory: resource.MustParse("16Mi")}, corev1.StorageMediumMemory, new(int64(5)))
	stack := s.newStack(full)
	s.setWorkspace(failing(autov1alpha1.CrashLoopBackOffReason, "out of memory"))
	s.await(stack, reasonIs(meta.ReadyCondition, pulumiv1.WorkspaceNotReadyReason))

	for _, change := range []func(*pulumiv1.Stack){template(nil, "", nil), full, template(nil, "", nil)} {
		before := stack.DeepCopy()
		change(stack)
		s.Expect(s.client.Patch(t.Context(), stack, client.MergeFrom(before))).To(Succeed())
		s.Eventually(func(g Gomega) {
			g.Expect(s.workspace().Spec.PodTemplate).To(BeComparableTo(stack.Spec.WorkspaceTemplate.Spec.PodTemplate))
		}).Should(Succeed())
		s.setWorkspace(failing(autov1alpha1.CrashLoopBackOffReason, "out of memory"))
	}

	before := stack.DeepCopy()
	stack.Spec.WorkspaceTemplate.Spec.PodTemplate.Spec.Volumes[0].VolumeSource = corev1.VolumeSource{HostPath: &corev1.HostPathVolumeSource{Path: "/x"}}
	s.Expect(s.client.Patch(t.Context(), stack, client.MergeFrom(before))).To(Succeed())
	s.Eventually(func(g Gomega) {
		g.Expect(s.workspace().Spec.PodTemplate).To(BeComparableTo(stack.Spec.WorkspaceTemplate.Spec.PodTemplate))
	}).Should(Succeed(), "nobody holds on to what was emptied")
}

// A user who may only create Stacks must not get hold of a Workspace of somebody else by its name: neither change nor delete it.
func TestWorkspaceThatIsNotTheStacksIsLeftAlone(t *testing.T) {
	s := newFixture(t)
	foreign := &autov1alpha1.Workspace{
		Namespace: s.namespace, Name: "app",
		Spec: autov1alpha1.WorkspaceSpec{Image: "theirs", ServiceAccountName: "powerful"},
	}
	s.Expect(s.client.Create(t.Context(), foreign)).To(Succeed())
	stack := &pulumiv1.Stack{
		Namespace: s.namespace, Name: "app",
		Spec: pulumiv1.StackSpec{Stack: "dev", WorkspaceReclaimPolicy: pulumiv1.WorkspaceReclaimDelete},
	}
	withImage("one")(stack)
	s.Expect(s.client.Create(t.Context(), stack)).To(Succeed())
	s.await(stack, reasonIs(meta.StalledCondition, pulumiv1.WorkspaceFailedReason))
	s.Expect(conditions.GetMessage(stack, meta.ReadyCondition)).To(Equal(
		"Workspace app exists already and was not made for this Stack, so it is left alone; delete it, or choose another name for the Stack"))
	s.Expect(stack.Status.CurrentUpdate).To(BeNil())
	s.Expect(s.workspace().ResourceVersion).To(Equal(foreign.ResourceVersion))

	s.Expect(s.client.Delete(t.Context(), foreign)).To(Succeed())
	request := client.RawPatch(types.MergePatchType, []byte(`{"metadata":{"annotations":{"reconcile.fluxcd.io/requestedAt":"now"}}}`))
	s.Expect(s.client.Patch(t.Context(), stack, request)).To(Succeed())
	s.await(stack, func(stack *pulumiv1.Stack) bool { return stack.Status.CurrentUpdate != nil })
	s.Expect(metav1.IsControlledBy(s.workspace(), stack)).To(BeTrue())
}

// The garbage collector of the test removes nothing, so the Workspace of the earlier Stack is there as long as its pod takes to end.
func TestStackThatIsCreatedAgainWaitsForTheEndOfItsEarlierWorkspace(t *testing.T) {
	s := newFixture(t)
	earlier := &autov1alpha1.Workspace{Namespace: s.namespace, Name: "app", OwnerReferences: []metav1.OwnerReference{
		{APIVersion: pulumiv1.GroupVersion.String(), Kind: pulumiv1.StackKind, Name: "app", UID: "earlier", Controller: new(true)},
	}}
	s.Expect(s.client.Create(t.Context(), earlier)).To(Succeed())
	stack := &pulumiv1.Stack{Namespace: s.namespace, Name: "app", Spec: pulumiv1.StackSpec{Stack: "dev"}}
	withImage("one")(stack)
	s.Expect(s.client.Create(t.Context(), stack)).To(Succeed())
	s.await(stack, func(stack *pulumiv1.Stack) bool {
		return conditions.GetReason(stack, meta.ReadyCondition) == pulumiv1.NotReadyInProgressReason &&
			strings.Contains(conditions.GetMessage(stack, meta.ReadyCondition), "Workspace app")
	})
	s.Expect(conditions.GetMessage(stack, meta.ReadyCondition)).To(Equal("waiting for the end of Workspace app, which belongs to an earlier Stack of this name"))
	s.Expect(s.workspace().ResourceVersion).To(Equal(earlier.ResourceVersion))

	s.Expect(s.client.Delete(t.Context(), earlier)).To(Succeed())
	s.await(stack, func(stack *pulumiv1.Stack) bool { return stack.Status.CurrentUpdate != nil })
	s.Expect(metav1.IsControlledBy(s.workspace(), stack)).To(BeTrue())
}

func TestOnlyWhatGoesByItselfIsWaitedFor(t *testing.T) {
	g := NewWithT(t)
	stack := &pulumiv1.Stack{Namespace: "ns", Name: "app", UID: "now"}
	of := func(apiVersion, name string, uid types.UID) *autov1alpha1.Update {
		return &autov1alpha1.Update{Name: "app-drift", OwnerReferences: []metav1.OwnerReference{
			{APIVersion: apiVersion, Kind: pulumiv1.StackKind, Name: name, UID: uid},
		}}
	}
	version, ending := pulumiv1.GroupVersion.String(), &autov1alpha1.Update{Name: "app-drift", DeletionTimestamp: new(metav1.Now())}
	for _, update := range []*autov1alpha1.Update{of(version, "app", "earlier"), ending} {
		g.Expect(goesByItself(fmt.Errorf("create: %w", notOwned(stack, autov1alpha1.UpdateKind, update)))).To(BeTrue())
	}
	// The garbage collector keeps an object whose owner exists, or is of a kind that it does not know.
	for _, update := range []*autov1alpha1.Update{of(version, "app", "now"), of(version, "other", "other"), of("example.com/v1", "app", "earlier"), {}} {
		g.Expect(goesByItself(notOwned(stack, autov1alpha1.UpdateKind, update))).To(BeFalse())
	}
}

func TestWorkspaceWithTheStacksLabelsIsAdopted(t *testing.T) {
	s := newFixture(t)
	s.Expect(s.client.Create(t.Context(), &autov1alpha1.Workspace{Namespace: s.namespace, Name: "app", Labels: map[string]string{
		pulumiv1.ComponentLabel: pulumiv1.ComponentStack, pulumiv1.StackNameLabel: "app",
	}})).To(Succeed())
	stack := s.newStack(func(*pulumiv1.Stack) {})
	s.Expect(metav1.IsControlledBy(s.workspace(), stack)).To(BeTrue())
}

// The name of the next Update can be predicted. An Update that somebody else created with this name is neither followed nor recorded.
func TestUpdateThatIsNotTheStacksIsNotFollowed(t *testing.T) {
	s := newFixture(t)
	stack := &pulumiv1.Stack{
		Namespace: s.namespace, Name: "app",
		Spec: pulumiv1.StackSpec{Stack: "dev", Suspend: true},
	}
	withImage("one")(stack)
	s.Expect(s.client.Create(t.Context(), stack)).To(Succeed())
	foreign := &autov1alpha1.Update{
		Namespace: s.namespace, Name: updateName(stack),
		Spec: autov1alpha1.UpdateSpec{WorkspaceName: "app", StackName: "theirs", Type: autov1alpha1.UpdateTypeUp},
	}
	s.Expect(s.client.Create(t.Context(), foreign)).To(Succeed())
	resumed := stack.DeepCopy()
	resumed.Spec.Suspend = false
	s.Expect(s.client.Patch(t.Context(), resumed, client.MergeFrom(stack))).To(Succeed())
	s.await(stack, reasonIs(meta.StalledCondition, pulumiv1.WorkspaceFailedReason))
	s.Expect(conditions.GetMessage(stack, meta.ReadyCondition)).To(HavePrefix("Update " + foreign.Name + " exists already and was not made for this Stack"))
	s.Expect(stack.Status.CurrentUpdate).To(BeNil())
}

// The admission policy for the owners of Updates knows a Stack by its kind. The garbage collector keeps an owner of a kind that it does not know.
func TestUpdateWithTheUIDOfTheStackAndAnotherKindIsNotFollowed(t *testing.T) {
	s := newFixture(t)
	stack := &pulumiv1.Stack{Namespace: s.namespace, Name: "app", Spec: pulumiv1.StackSpec{Stack: "dev", Suspend: true}}
	s.Expect(s.client.Create(t.Context(), stack)).To(Succeed())
	foreign := &autov1alpha1.Update{
		Namespace: s.namespace, Name: updateName(stack), OwnerReferences: []metav1.OwnerReference{
			{APIVersion: "example.com/v1", Kind: pulumiv1.StackKind, Name: stack.Name, UID: stack.UID},
		},
		Spec: autov1alpha1.UpdateSpec{WorkspaceName: "theirs", StackName: "theirs", Type: autov1alpha1.UpdateTypeUp},
	}
	s.Expect(s.client.Create(t.Context(), foreign)).To(Succeed())
	s.mark(foreign, started, succeeded)
	s.edit(stack, func(stack *pulumiv1.Stack) { stack.Spec.Suspend = false })
	s.await(stack, func(stack *pulumiv1.Stack) bool { return conditions.IsStalled(stack) || stack.Status.LastUpdate != nil })
	s.Expect(stack.Status.LastUpdate).To(BeNil())
	s.Expect(conditions.GetMessage(stack, meta.ReadyCondition)).To(HavePrefix("Update " + foreign.Name + " exists already and was not made for this Stack"))
}

// Whoever may delete and create Updates can give the name of the one that is in progress to their own before the Stack sees that it is gone.
// The Stack does not record what that one did.
func TestUpdateThatTookTheNameOfTheCurrentOneIsNotRecorded(t *testing.T) {
	s := newFixture(t)
	stack := &pulumiv1.Stack{Namespace: s.namespace, Name: "app", Spec: pulumiv1.StackSpec{Stack: "dev", Suspend: true}}
	s.Expect(s.client.Create(t.Context(), stack)).To(Succeed())
	foreign := &autov1alpha1.Update{
		Namespace: s.namespace, Name: updateName(stack),
		Spec: autov1alpha1.UpdateSpec{WorkspaceName: "theirs", StackName: "theirs", Type: autov1alpha1.UpdateTypeUp},
	}
	s.Expect(s.client.Create(t.Context(), foreign)).To(Succeed())
	s.mark(foreign, started, succeeded)
	before := stack.DeepCopy()
	stack.Status.CurrentUpdate = &pulumiv1.CurrentStackUpdate{Name: foreign.Name, UID: "deleted", Generation: 2}
	s.Expect(s.client.Status().Patch(t.Context(), stack, client.MergeFrom(before))).To(Succeed())
	s.edit(stack, func(stack *pulumiv1.Stack) { stack.Spec.Suspend = false })
	s.await(stack, func(stack *pulumiv1.Stack) bool { return conditions.IsStalled(stack) || stack.Status.LastUpdate != nil })
	s.Expect(stack.Status.LastUpdate).To(BeNil())
	s.Expect(conditions.GetMessage(stack, meta.ReadyCondition)).To(HavePrefix("Update " + foreign.Name + " exists already and was not made for this Stack"))
}
