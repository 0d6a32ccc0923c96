package migrate

import (
	"context"
	"maps"
	"strings"
	"testing"
	"time"

	. "github.com/onsi/gomega"
	appsv1 "k8s.io/api/apps/v1"
	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	apimeta "k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/fluxcd/pkg/apis/meta"
	"github.com/fluxcd/pkg/runtime/conditions"

	autov1alpha1 "github.com/stack-controller/stack-controller/api/auto/v1alpha1"
	pulumiv1 "github.com/stack-controller/stack-controller/api/pulumi/v1"
	"github.com/stack-controller/stack-controller/internal/patch"
	"github.com/stack-controller/stack-controller/internal/shard"
	"github.com/stack-controller/stack-controller/tests/framework/operator"
)

// update creates an Update as the Stack's controller does.
func (s *fixture) update(stack *pulumiv1.Stack, name string) *autov1alpha1.Update {
	s.t.Helper()
	yes := true
	update := &autov1alpha1.Update{
		Namespace: s.namespace, Name: name, Finalizers: []string{pulumiv1.Finalizer},
		OwnerReferences: []metav1.OwnerReference{
			{APIVersion: pulumiv1.GroupVersion.String(), Kind: pulumiv1.StackKind, Name: stack.Name, UID: stack.UID, BlockOwnerDeletion: &yes},
		},
		Spec: autov1alpha1.UpdateSpec{WorkspaceName: stack.Name, StackName: "dev", Type: autov1alpha1.UpdateTypeUp},
	}
	s.Expect(admin.Create(s.ctx, update, patch.FieldOwner)).To(Succeed())
	return update
}

// complete ends the Update with success.
func (s *fixture) complete(update *autov1alpha1.Update) {
	s.t.Helper()
	s.write(update, func() {
		now := metav1.Now()
		update.Status.ObservedGeneration = update.Generation
		update.Status.StartTime, update.Status.EndTime = &now, &now
		conditions.MarkFalse(update, autov1alpha1.UpdateProgressing, autov1alpha1.UpdateCompleteReason, "done")
		conditions.MarkFalse(update, autov1alpha1.UpdateFailed, autov1alpha1.UpdateSucceededReason, "done")
		conditions.MarkTrue(update, autov1alpha1.UpdateComplete, autov1alpha1.UpdateUpdatedReason, "done")
	})
}

// start starts the Update.
func (s *fixture) start(update *autov1alpha1.Update) {
	s.t.Helper()
	s.write(update, func() {
		now := metav1.Now()
		update.Status.StartTime = &now
		conditions.MarkTrue(update, autov1alpha1.UpdateProgressing, autov1alpha1.UpdateProgressingReason, "in progress")
	})
}

// workspace creates a Workspace with a StatefulSet, a Service and a pod, for the Stack or, when that is nil, for a user.
func (s *fixture) workspace(stack *pulumiv1.Stack, name string) *autov1alpha1.Workspace {
	s.t.Helper()
	workspace := &autov1alpha1.Workspace{Namespace: s.namespace, Name: name}
	owner := "kubectl"
	if stack != nil {
		owner = string(patch.FieldOwner)
		workspace.Labels = map[string]string{pulumiv1.ComponentLabel: pulumiv1.ComponentStack, pulumiv1.StackNameLabel: stack.Name}
		workspace.OwnerReferences = []metav1.OwnerReference{*metav1.NewControllerRef(stack, pulumiv1.GroupVersion.WithKind(pulumiv1.StackKind))}
	}
	s.Expect(admin.Create(s.ctx, workspace, client.FieldOwner(owner))).To(Succeed())
	s.write(workspace, func() {
		conditions.MarkTrue(workspace, autov1alpha1.WorkspaceReady, "Succeeded", "ready")
		conditions.MarkReconciling(workspace, meta.ProgressingReason, "another pod")
	})
	labels := map[string]string{"auto.pulumi.com/component": "workspace", "auto.pulumi.com/workspace-name": name}
	controlledBy := func(object client.Object) {
		object.SetNamespace(s.namespace)
		object.SetLabels(maps.Clone(labels))
		object.SetOwnerReferences([]metav1.OwnerReference{*metav1.NewControllerRef(workspace, autov1alpha1.GroupVersion.WithKind(autov1alpha1.WorkspaceKind))})
	}
	set := &appsv1.StatefulSet{Name: name + "-workspace", Spec: appsv1.StatefulSetSpec{
		ServiceName: name + "-workspace", Selector: &metav1.LabelSelector{MatchLabels: labels},
		UpdateStrategy: appsv1.StatefulSetUpdateStrategy{Type: appsv1.OnDeleteStatefulSetStrategyType},
		Template: corev1.PodTemplateSpec{ObjectMeta: metav1.ObjectMeta{Labels: labels}, Spec: corev1.PodSpec{
			InitContainers: []corev1.Container{{Name: "bootstrap", Image: "agent:v1"}}, Containers: []corev1.Container{{Name: "pulumi", Image: "pulumi:v1"}},
		}},
	}}
	service := &corev1.Service{Name: name + "-workspace", Spec: corev1.ServiceSpec{
		ClusterIP: corev1.ClusterIPNone, Selector: labels, Ports: []corev1.ServicePort{{Name: "grpc", Port: 50051}},
	}}
	for i, object := range []client.Object{set, service} {
		controlledBy(object)
		s.Expect(s.apply(objectKinds[i], object, string(patch.FieldOwner), client.ForceOwnership)).To(Succeed())
	}
	s.read(set)
	pod := &corev1.Pod{
		Namespace: s.namespace, Name: name + "-workspace-0", Labels: labels, Finalizers: []string{"test/kubelet"},
		OwnerReferences: []metav1.OwnerReference{*metav1.NewControllerRef(set, objectKinds[0])}, Spec: corev1.PodSpec{Containers: []corev1.Container{{Name: "pulumi", Image: "pulumi:v1"}}}}
	s.Eventually(func() error { return admin.Create(s.ctx, pod) }).Should(Succeed())
	return workspace
}

// apply applies the object without the fields that only the API server writes.
func (s *fixture) apply(kind schema.GroupVersionKind, object client.Object, owner string, options ...client.ApplyOption) error {
	content, err := runtime.DefaultUnstructuredConverter.ToUnstructured(object)
	if err != nil {
		return err
	}
	delete(content, "status")
	configuration := &unstructured.Unstructured{Object: content}
	configuration.SetGroupVersionKind(kind)
	unstructured.RemoveNestedField(content, "metadata", "creationTimestamp")
	return admin.Apply(s.ctx, client.ApplyConfigurationFromUnstructured(configuration), append(options, client.FieldOwner(owner))...)
}

// endPods plays the kubelet: pods end when they are asked to.
func (s *fixture) endPods(ctx context.Context) {
	for ctx.Err() == nil {
		pods := &corev1.PodList{}
		if err := admin.List(ctx, pods, client.InNamespace(s.namespace)); err == nil {
			for _, pod := range pods.Items {
				if pod.DeletionTimestamp != nil {
					_ = admin.Patch(ctx, &pod, client.RawPatch("application/merge-patch+json", []byte(`{"metadata":{"finalizers":null}}`)))
				}
			}
		}
		select {
		case <-ctx.Done():
		case <-time.After(pollInterval):
		}
	}
}

func TestNothingIsLeftOfTheWorkspacesOfStacks(t *testing.T) {
	t.Parallel()
	s := newFixture(t)
	stack := s.stack("app", nil, func(stack *pulumiv1.Stack) { succeeded(stack, kinds[0]) })
	workspace := s.workspace(stack, "app")
	update := s.update(stack, "app-1")
	s.complete(update)

	out, err := s.runFor(time.Second)
	s.Expect(err).To(MatchError(And(ContainSubstring("1 Workspaces are not gone yet"), ContainSubstring("try again later"))), out)
	s.read(stack)
	s.Expect(isOurs(stack)).To(BeTrue(), "the status is handed back when no pod can run any longer")

	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	go s.endPods(ctx)
	out, err = s.run()
	s.Expect(err).NotTo(HaveOccurred())
	s.Expect(out).To(ContainSubstring("Stack %s/app: handed back", s.namespace))
	for _, object := range []client.Object{
		workspace,
		&appsv1.StatefulSet{Namespace: s.namespace, Name: "app-workspace"},
		&corev1.Service{Namespace: s.namespace, Name: "app-workspace"},
		&corev1.Pod{Namespace: s.namespace, Name: "app-workspace-0"},
	} {
		s.Expect(apierrors.IsNotFound(admin.Get(s.ctx, client.ObjectKeyFromObject(object), object))).To(BeTrue(), "%T", object)
	}
	s.read(update)
	s.Expect(update.Finalizers).To(BeEmpty(), "the operator could not remove it")
	_, err = s.operator.ApplyWorkspace(s.ctx, stack)
	s.Expect(err).NotTo(HaveOccurred())
}

func TestWorkspaceThatNobodyHasReconciledYetGoesToo(t *testing.T) {
	t.Parallel()
	s := newFixture(t)
	stack := s.stack("app", nil, func(stack *pulumiv1.Stack) { succeeded(stack, kinds[0]) })
	workspace := &autov1alpha1.Workspace{
		Namespace: s.namespace, Name: "app", Labels: map[string]string{pulumiv1.ComponentLabel: pulumiv1.ComponentStack}}
	s.Expect(admin.Create(s.ctx, workspace, patch.FieldOwner)).To(Succeed())
	out, err := s.run()
	s.Expect(err).NotTo(HaveOccurred(), out)
	s.Expect(apierrors.IsNotFound(admin.Get(s.ctx, client.ObjectKeyFromObject(workspace), workspace))).To(BeTrue())
	_, err = s.operator.ApplyWorkspace(s.ctx, stack)
	s.Expect(err).NotTo(HaveOccurred())
}

func TestWorkspaceOfAUserBecomesTheOperators(t *testing.T) {
	t.Parallel()
	s := newFixture(t)
	workspace := s.workspace(nil, "mine")
	waiting := &autov1alpha1.Update{
		Namespace: s.namespace, Name: "mine", Finalizers: []string{pulumiv1.Finalizer},
		Spec: autov1alpha1.UpdateSpec{WorkspaceName: "mine", StackName: "dev", Type: autov1alpha1.UpdateTypeUp},
	}
	s.Expect(admin.Create(s.ctx, waiting, client.FieldOwner("kubectl"))).To(Succeed())
	s.write(waiting, func() { conditions.MarkFalse(waiting, autov1alpha1.UpdateProgressing, "WorkspaceNotReady", "not yet") })
	set := &appsv1.StatefulSet{Namespace: s.namespace, Name: "mine-workspace"}
	s.read(set)
	wanted := &appsv1.StatefulSet{Namespace: s.namespace, Name: set.Name, OwnerReferences: set.OwnerReferences, Spec: appsv1.StatefulSetSpec{
		ServiceName: set.Name, Selector: set.Spec.Selector,
		Template: corev1.PodTemplateSpec{ObjectMeta: metav1.ObjectMeta{Labels: set.Spec.Selector.MatchLabels}, Spec: corev1.PodSpec{
			Containers: []corev1.Container{{Name: "pulumi", Image: "pulumi:latest"}},
		}},
	}}
	s.Expect(s.apply(objectKinds[0], wanted, operator.Owner)).To(MatchError(ContainSubstring("conflict")))

	out, err := s.run()
	s.Expect(err).NotTo(HaveOccurred())
	s.Expect(out).To(ContainSubstring("Workspace %s/mine: handed back", s.namespace))
	s.Expect(s.apply(objectKinds[0], wanted, operator.Owner)).To(Succeed())
	s.read(set)
	s.Expect(set.Spec.Template.Spec.InitContainers).To(BeEmpty(), "what only this controller wanted goes")
	s.Expect(set.Spec.UpdateStrategy.Type).To(Equal(appsv1.RollingUpdateStatefulSetStrategyType), "otherwise its pod would stay")
	s.read(workspace)
	s.Expect(workspace.DeletionTimestamp).To(BeNil())
	s.Expect(workspace.Status.Conditions).To(BeEmpty())
	s.onlyTheOperatorOwnsStatus(workspace)
	s.read(waiting)
	s.Expect(waiting.Status.Conditions).To(BeEmpty())
	s.Expect(waiting.Finalizers).To(BeEmpty())
}

// TestUpdatesWithPreviewOnlyOrAPlanAreDeleted uses Updates that no controller has written to yet. The operator would run them
// without previewOnly, savePlan and plan.
func TestUpdatesWithPreviewOnlyOrAPlanAreDeleted(t *testing.T) {
	t.Parallel()
	s := newFixture(t)
	for name, spec := range map[string]autov1alpha1.UpdateSpec{
		"look": {Type: autov1alpha1.UpdateTypeRefresh, PreviewOnly: new(true)},
		"plan": {Type: autov1alpha1.UpdateTypeDestroy, PreviewOnly: new(true), SavePlan: new(true)},
		"run":  {Type: autov1alpha1.UpdateTypeDestroy, Plan: &autov1alpha1.PlanReference{Name: "plan", Digest: "sha256:" + strings.Repeat("0", 64)}},
	} {
		spec.WorkspaceName, spec.StackName = "mine", "dev"
		update := &autov1alpha1.Update{Namespace: s.namespace, Name: name, Spec: spec}
		s.Expect(admin.Create(s.ctx, update, client.FieldOwner("kubectl"))).To(Succeed())
	}
	out, err := s.run()
	s.Expect(err).NotTo(HaveOccurred())
	for _, name := range []string{"look", "plan", "run"} {
		s.Expect(out).To(ContainSubstring("Update %s/%s: deleted", s.namespace, name))
	}
	left := &autov1alpha1.UpdateList{}
	s.Expect(admin.List(s.ctx, left, client.InNamespace(s.namespace))).To(Succeed())
	s.Expect(left.Items).To(BeEmpty())
}

func TestUpdateThatWasNotStartedGoes(t *testing.T) {
	t.Parallel()
	s := newFixture(t)
	stack := s.stack("app", nil, func(*pulumiv1.Stack) {})
	update := s.update(stack, "app-1")
	s.write(update, func() {
		conditions.MarkFalse(update, autov1alpha1.UpdateProgressing, autov1alpha1.UpdateWorkspaceNotReadyReason, "not yet")
	})
	s.write(stack, func() {
		stack.Status.CurrentUpdate = &pulumiv1.CurrentStackUpdate{Name: update.Name, Generation: 1}
		conditions.MarkReconciling(stack, pulumiv1.StackProcessingReason, "waiting")
	})
	_, err := s.run()
	s.Expect(err).NotTo(HaveOccurred())
	s.Expect(apierrors.IsNotFound(admin.Get(s.ctx, client.ObjectKeyFromObject(update), update))).To(BeTrue())
	s.read(stack)
	s.Expect(stack.Status.CurrentUpdate).To(BeNil(), "the operator would wait for it for ever")
}

func TestProgramIsHandedBackWithoutItsArtifact(t *testing.T) {
	t.Parallel()
	s := newFixture(t)
	program := &pulumiv1.Program{Namespace: s.namespace, Name: "app"}
	s.Expect(admin.Create(s.ctx, program, client.FieldOwner("kubectl"))).To(Succeed())
	s.Expect(s.operator.SaveProgram(s.ctx, program)).To(Succeed())
	s.write(program, func() {
		program.Status.Artifact = &meta.Artifact{Path: "app", URL: "program://app", Revision: "1", Digest: digest, LastUpdateTime: metav1.Now()}
		conditions.MarkTrue(program, meta.ReadyCondition, meta.SucceededReason, "can be run")
	})
	_, err := s.run()
	s.Expect(err).NotTo(HaveOccurred())
	s.read(program)
	s.Expect(program.Status.Artifact).To(BeNil(), "a Stack of the operator would fetch program://app")
	s.Expect(s.operator.SaveProgram(s.ctx, program)).To(Succeed())
	s.read(program)
	s.Expect(program.Status.Artifact.Revision).To(Equal("1"))
	s.Expect(program.Status.Conditions).To(BeEmpty())
}

func TestNothingIsChangedWhileAnUpdateRuns(t *testing.T) {
	t.Parallel()
	s := newFixture(t)
	stack := s.stack("app", nil, func(stack *pulumiv1.Stack) { succeeded(stack, kinds[0]) })
	s.stack("other", nil, func(stack *pulumiv1.Stack) { succeeded(stack, kinds[0]) })
	s.workspace(stack, "app")
	s.start(s.update(stack, "app-1"))
	before := s.versions()
	out, err := s.run()
	s.Expect(err).To(MatchError(And(ContainSubstring("1 Updates run"), ContainSubstring("nothing was changed"))))
	s.Expect(out).To(ContainSubstring("Update %s/app-1: runs", s.namespace))
	s.Expect(s.versions()).To(Equal(before))
}

// The clock of the controller is another one than that of the machine on which the command runs.
func TestNothingIsChangedWhileTheControllerRuns(t *testing.T) {
	t.Parallel()
	s := newFixture(t)
	s.stack("app", nil, func(stack *pulumiv1.Stack) { succeeded(stack, kinds[0]) })
	holder, seconds, ahead := "stack-controller-0", int32(1), metav1.NewMicroTime(time.Now().Add(time.Hour))
	lease := &coordinationv1.Lease{
		Namespace: s.namespace, Name: shard.Lease("sharding.fluxcd.io/key=shard1"),
		Spec: coordinationv1.LeaseSpec{HolderIdentity: &holder, LeaseDurationSeconds: &seconds, RenewTime: &ahead},
	}
	s.Expect(admin.Create(s.ctx, lease)).To(Succeed())
	running, kill := context.WithCancel(s.ctx)
	ended := make(chan error)
	go func() {
		defer close(ended)
		for behind := time.Now().Add(-time.Hour); running.Err() == nil; time.Sleep(pollInterval) {
			behind = behind.Add(pollInterval)
			lease.Spec.RenewTime = &metav1.MicroTime{Time: behind}
			if err := admin.Update(running, lease); running.Err() == nil && err != nil {
				ended <- err
				return
			}
		}
	}()
	here := func(o *Options) { o.Client, o.ControllerNamespace = admin, s.namespace }
	before := s.versions()
	_, err := s.run(here)
	s.Expect(err).To(MatchError(And(ContainSubstring("still runs: stack-controller-0"), ContainSubstring("scale its Deployments to 0"))))
	_, err = s.run(here, dryRun, func(o *Options) { o.Namespace, o.ControllerNamespace = "", controllerNamespace })
	s.Expect(err).To(MatchError(ContainSubstring("still runs: stack-controller-0")), "in whatever namespace")
	s.Expect(s.versions()).To(Equal(before))

	kill()
	s.Expect(<-ended).NotTo(HaveOccurred())
	s.Expect(admin.Get(s.ctx, client.ObjectKeyFromObject(lease), lease)).To(Succeed())
	lease.Spec.RenewTime = &ahead
	s.Expect(admin.Update(s.ctx, lease)).To(Succeed())
	_, err = s.run(here, dryRun)
	s.Expect(err).NotTo(HaveOccurred(), "it was killed")

	s.Expect(admin.Delete(s.ctx, lease)).To(Succeed())
	_, err = s.run(here)
	s.Expect(err).To(MatchError(ContainSubstring("neither a lease nor a Deployment in the namespace " + s.namespace)))
	_, err = s.run(here, dryRun, func(o *Options) { o.ControllerNamespace = "" })
	s.Expect(err).NotTo(HaveOccurred())
	labels := map[string]string{"app.kubernetes.io/component": "stack-controller"}
	deployment := &appsv1.Deployment{Namespace: s.namespace, Name: "stack-controller", Labels: labels, Spec: appsv1.DeploymentSpec{
		Replicas: new(int32), Selector: &metav1.LabelSelector{MatchLabels: labels}, Template: corev1.PodTemplateSpec{
			Labels: labels, Spec: corev1.PodSpec{Containers: []corev1.Container{{Name: "manager", Image: "example.com/controller"}}},
		}}}
	s.Expect(admin.Create(s.ctx, deployment)).To(Succeed())
	_, err = s.run(here, dryRun)
	s.Expect(err).NotTo(HaveOccurred(), "one without leader election")
	deployment.Spec.Replicas = new(int32(1))
	s.Expect(admin.Update(s.ctx, deployment)).To(Succeed())
	_, err = s.run(here, dryRun)
	s.Expect(err).To(MatchError(ContainSubstring("Deployment " + s.namespace + "/stack-controller has replicas")))
	s.Expect(admin.Delete(s.ctx, deployment)).To(Succeed())
}

func TestDryRunAndASecondRunChangeNothing(t *testing.T) {
	t.Parallel()
	s := newFixture(t)
	stack := s.stack("app", kinds[1].set, func(stack *pulumiv1.Stack) { failed(stack, kinds[1], 1) })
	s.workspace(stack, "app")
	s.workspace(nil, "mine")
	s.complete(s.update(stack, "app-1"))
	s.update(stack, "app-2")
	before := s.versions()
	planned, err := s.run(dryRun)
	s.Expect(err).NotTo(HaveOccurred())
	s.Expect(s.versions()).To(Equal(before))
	for _, line := range []string{
		"Stack %s/app: would be handed back, Reconciling=True RetryingAfterFailure", "Workspace %s/app: would be deleted", "Workspace %s/mine: would be handed back",
		"Update %s/app-1: would be released", "Update %s/app-2: would be deleted",
	} {
		s.Expect(planned).To(ContainSubstring(line, s.namespace))
	}

	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	go s.endPods(ctx)
	_, err = s.run()
	s.Expect(err).NotTo(HaveOccurred())
	after := s.versions()
	out, err := s.run()
	s.Expect(err).NotTo(HaveOccurred())
	s.Expect(out).To(BeEmpty())
	s.Expect(s.versions()).To(Equal(after))
}

// versions returns the resource versions of all objects that could be changed.
func (s *fixture) versions() map[string]string {
	s.t.Helper()
	versions := map[string]string{}
	for _, list := range []client.ObjectList{
		&pulumiv1.StackList{}, &pulumiv1.ProgramList{}, &autov1alpha1.WorkspaceList{}, &autov1alpha1.UpdateList{}, &appsv1.StatefulSetList{}, &corev1.ServiceList{},
	} {
		s.Expect(admin.List(s.ctx, list, client.InNamespace(s.namespace))).To(Succeed())
		s.Expect(apimeta.EachListItem(list, func(item runtime.Object) error {
			object := item.(client.Object)
			versions[string(object.GetUID())] = object.GetResourceVersion()
			return nil
		})).To(Succeed())
	}
	return versions
}
