package command

import (
	"bytes"
	"context"
	"testing"
	"testing/synctest"

	. "github.com/onsi/gomega"
	"github.com/spf13/cobra"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	apimeta "k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"

	"github.com/fluxcd/pkg/apis/meta"
	sourcev1 "github.com/fluxcd/source-controller/api/v1"

	autov1alpha1 "github.com/stack-controller/stack-controller/api/auto/v1alpha1"
	pulumiv1 "github.com/stack-controller/stack-controller/api/pulumi/v1"
	"github.com/stack-controller/stack-controller/config"
)

func TestNoLockIsReleasedWhileAnUpdateWorksWithTheState(t *testing.T) {
	name := metav1.ObjectMeta{Namespace: "apps", Name: "network"}
	stack := &pulumiv1.Stack{ObjectMeta: name, Spec: pulumiv1.StackSpec{Stack: "dev"}}
	started, progressing := metav1.Now(), []metav1.Condition{{Type: autov1alpha1.UpdateProgressing, Status: metav1.ConditionTrue}}
	for name, test := range map[string]struct {
		workspace string
		kind      autov1alpha1.UpdateType
		status    autov1alpha1.UpdateStatus
		refused   bool
	}{
		"one of a user":               {"network", autov1alpha1.UpdateTypeRefresh, autov1alpha1.UpdateStatus{StartTime: &started}, true},
		"one whose start is not told": {"network", autov1alpha1.UpdateTypeUp, autov1alpha1.UpdateStatus{Conditions: progressing}, true},
		"one that waits":              {"network", autov1alpha1.UpdateTypeUp, autov1alpha1.UpdateStatus{}, false},
		"a preview":                   {"network", autov1alpha1.UpdateTypePreview, autov1alpha1.UpdateStatus{StartTime: &started}, false},
		"one of another workspace":    {"shop", autov1alpha1.UpdateTypeUp, autov1alpha1.UpdateStatus{StartTime: &started}, false},
		"one that has ended": {"network", autov1alpha1.UpdateTypeUp, autov1alpha1.UpdateStatus{StartTime: &started, Conditions: []metav1.Condition{
			{Type: autov1alpha1.UpdateComplete, Status: metav1.ConditionTrue}}}, false},
	} {
		t.Run(name, func(t *testing.T) {
			g := NewWithT(t)
			update := &autov1alpha1.Update{Namespace: "apps", Name: "by-hand", Status: test.status}
			update.Spec.WorkspaceName, update.Spec.Type = test.workspace, test.kind
			c, _ := newCluster(update)
			if err := c.refuseRunning(t.Context(), stack); test.refused {
				g.Expect(err).To(MatchError(ContainSubstring("update by-hand of the Stack \"network\" is running")))
			} else {
				g.Expect(err).NotTo(HaveOccurred())
			}
		})
	}
}

func TestLocksAreReleasedBetweenTheAttemptsToGetOne(t *testing.T) {
	update := autov1alpha1.Update{Namespace: "apps", Name: "network-7", Status: autov1alpha1.UpdateStatus{StartTime: new(metav1.Now())}}
	update.Spec.WorkspaceName, update.Spec.Type = "network", autov1alpha1.UpdateTypeUp
	const released, runs = `the Stack "network" has no Workspace`, "update network-7 of the Stack \"network\" is running"
	for name, test := range map[string]struct {
		reason  string
		running []bool // at each look
		says    string
	}{
		"nothing runs":                        {pulumiv1.UpdateConflictReason, []bool{false}, released},
		"an attempt, which ends":              {pulumiv1.UpdateConflictReason, []bool{true, true, false}, released},
		"another attempt during the question": {pulumiv1.UpdateConflictReason, []bool{false, true, false}, released},
		"an attempt that does not end":        {pulumiv1.UpdateConflictReason, []bool{true}, runs},
		"an update that has the lock":         {pulumiv1.NotReadyInProgressReason, []bool{true, false}, runs},
		"one that has got it meanwhile":       {pulumiv1.NotReadyInProgressReason, []bool{false, true, false}, runs},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				stack := &pulumiv1.Stack{Namespace: "apps", Name: "network"}
				stack.Status.Conditions = []metav1.Condition{{Type: meta.ReadyCondition, Status: metav1.ConditionFalse, Reason: test.reason, Message: "locked"}}
				c, _ := newCluster(stack)
				c.client = interceptor.NewClient(c.client, interceptor.Funcs{
					List: func(_ context.Context, _ client.WithWatch, list client.ObjectList, _ ...client.ListOption) error {
						if test.running[0] {
							list.(*autov1alpha1.UpdateList).Items = []autov1alpha1.Update{update}
						}
						test.running = test.running[min(1, len(test.running)-1):]
						return nil
					},
				})
				s, _ := newSession(nil)
				NewWithT(t).Expect(s.unlockStack(t.Context(), &cobra.Command{}, c, stack, true)).To(MatchError(ContainSubstring(test.says)))
			})
		})
	}
}

func TestCommandsInAPodThatIsNotThereSayHowToGetIt(t *testing.T) {
	g := NewWithT(t)
	name := metav1.ObjectMeta{Namespace: "apps", Name: "network"}
	stack := &pulumiv1.Stack{ObjectMeta: name}
	c, _ := newCluster()
	g.Expect(c.pulumi(t.Context(), stack, nil, nil, "stack", "export")).To(MatchError(ContainSubstring(`the Stack "network" has no Workspace`)))
	c, _ = newCluster(&autov1alpha1.Workspace{ObjectMeta: name, Status: autov1alpha1.WorkspaceStatus{
		Conditions: []metav1.Condition{{Type: meta.ReadyCondition, Status: metav1.ConditionTrue, Reason: autov1alpha1.IdleReason}},
	}})
	g.Expect(c.pulumi(t.Context(), stack, nil, nil, "stack", "export")).To(MatchError(ContainSubstring("'diff stack network --keep' starts the pod")))
}

func TestControllerIsNotStoppedWhereSomethingStartsItAgain(t *testing.T) {
	kustomization := schema.GroupVersionKind{Group: "kustomize.toolkit.fluxcd.io", Version: "v1", Kind: "Kustomization"}
	byFlux := map[string]string{"kustomize.toolkit.fluxcd.io/name": "operators", "kustomize.toolkit.fluxcd.io/namespace": "flux-system"}
	for name, test := range map[string]struct {
		labels, annotations map[string]string
		spec                map[string]any // of the Kustomization; nil if there is none
		refused, warns      string
	}{
		"nothing":                      {},
		"a Kustomization":              {labels: byFlux, spec: map[string]any{}, refused: "flux suspend kustomization operators --namespace flux-system"},
		"a suspended Kustomization":    {labels: byFlux, spec: map[string]any{"suspend": true}},
		"a Kustomization elsewhere":    {labels: byFlux, warns: "Kustomization flux-system/operators is not in this cluster"},
		"an Application":               {annotations: map[string]string{"argocd.argoproj.io/tracking-id": "ops_pulumi:apps/Deployment:x/y"}, warns: "Application ops/pulumi scales it up again"},
		"an Application, by its label": {labels: map[string]string{"argocd.argoproj.io/instance": "pulumi"}, warns: "Application pulumi scales it up again"},
		"a label that many things set": {labels: map[string]string{"app.kubernetes.io/instance": "pulumi"}},
	} {
		t.Run(name, func(t *testing.T) {
			g := NewWithT(t)
			scheme := runtime.NewScheme()
			scheme.AddKnownTypeWithName(kustomization, &unstructured.Unstructured{})
			var objects []client.Object
			if test.spec != nil {
				object := &unstructured.Unstructured{Object: map[string]any{"spec": test.spec}}
				object.SetGroupVersionKind(kustomization)
				object.SetNamespace("flux-system")
				object.SetName("operators")
				objects = append(objects, object)
			}
			c := &cluster{client: fake.NewClientBuilder().WithScheme(scheme).WithObjects(objects...).Build()}
			s, log := newSession(nil)
			err := s.checkRestorer(t.Context(), c, &appsv1.Deployment{Namespace: "x", Name: "y", Labels: test.labels, Annotations: test.annotations})
			if test.refused == "" {
				g.Expect(err).NotTo(HaveOccurred())
			} else {
				g.Expect(err).To(MatchError(And(HavePrefix("nothing was changed: "), ContainSubstring(test.refused))))
			}
			g.Expect(log.String()).To(ContainSubstring(test.warns))
			g.Expect(log.String() == "").To(Equal(test.warns == ""), log.String())
		})
	}
}

func TestImagesOfAMirrorAreNotReplacedUnasked(t *testing.T) {
	container := func(image, agent string) corev1.Container {
		return corev1.Container{Image: image, Env: []corev1.EnvVar{{Name: "AGENT_IMAGE", Value: agent}}}
	}
	before, after := container("mirror/controller:v1", "mirror/agent:v1"), container("public/controller:v2@sha256:0", "public/agent:v2")
	for name, test := range map[string]struct {
		installation  installation
		before, after corev1.Container
		says          string
	}{
		"none named":            {installation{}, before, after, "has the image mirror/controller, and this would take public/controller. Name that of the new version with --image,"},
		"only the controller's": {installation{namesImage: true}, before, after, "has the image mirror/agent, and this would take public/agent. Name that of the new version with --agent-image,"},
		"both":                  {installation{namesImage: true, namesAgent: true}, before, after, ""},
		"another version":       {installation{}, before, container("mirror/controller:v2", "mirror/agent:v2"), ""},
		"nothing before":        {installation{}, corev1.Container{}, after, ""},
	} {
		g := NewWithT(t)
		if err := test.installation.checkImages(test.before, test.after); test.says == "" {
			g.Expect(err).NotTo(HaveOccurred(), name)
		} else {
			g.Expect(err).To(MatchError(And(HavePrefix("nothing was changed: "), ContainSubstring(test.says))), name)
		}
	}
	for image, repository := range map[string]string{
		"registry.example.com:5000/a/b:v1@sha256:0": "registry.example.com:5000/a/b", "registry.example.com:5000/a/b": "registry.example.com:5000/a/b", "b:v1": "b",
	} {
		NewWithT(t).Expect(repositoryOf(image)).To(Equal(repository))
	}
}

func TestCompletionIsForTheProgram(t *testing.T) {
	for program, want := range map[string]string{
		"/usr/local/bin/flux-pulumi":  "complete -o default -F __start_flux-pulumi flux-pulumi",
		"C:/tools/kubectl-pulumi.exe": "complete -o default -F __start_kubectl-pulumi kubectl-pulumi",
	} {
		g := NewWithT(t)
		var out bytes.Buffer
		run := func(args ...string) string {
			out.Reset()
			g.Expect(Main(t.Context(), Environment{Program: program, Out: &out, Err: &out, Getenv: func(string) string { return "" }}, args)).To(BeZero())
			return out.String()
		}
		g.Expect(run("completion", "bash")).To(ContainSubstring(want))
		g.Expect(run("completion", "bash", "--help")).NotTo(ContainSubstring("source <(pulumi "))
		g.Expect(run("--help")).To(ContainSubstring("Usage:\n  " + invocation(program) + " "))
	}
}

func TestDefinitionsOfAnEarlierVersionAreNoticed(t *testing.T) {
	g := NewWithT(t)
	objects, err := config.Objects("", "")
	g.Expect(err).NotTo(HaveOccurred())
	scheme := runtime.NewScheme()
	var definitions []client.Object
	for _, object := range objects {
		if object.GetKind() != "CustomResourceDefinition" {
			continue
		}
		scheme.AddKnownTypeWithName(object.GroupVersionKind(), &unstructured.Unstructured{})
		definitions = append(definitions, object.DeepCopy())
	}
	c := &cluster{client: fake.NewClientBuilder().WithScheme(scheme).WithObjects(definitions...).Build()}
	s, log := newSession(nil)
	g.Expect(s.checkDefinitions(t.Context(), c)).To(BeEmpty())
	g.Expect(log.String()).To(BeEmpty())

	stacks := &unstructured.Unstructured{}
	stacks.SetGroupVersionKind(definitions[0].GetObjectKind().GroupVersionKind())
	g.Expect(c.client.Get(t.Context(), client.ObjectKey{Name: "stacks.pulumi.com"}, stacks)).To(Succeed())
	versions, _, _ := unstructured.NestedSlice(stacks.Object, "spec", "versions")
	for _, version := range versions {
		unstructured.RemoveNestedField(version.(map[string]any), "schema", "openAPIV3Schema", "properties", "status", "properties", "plan")
		unstructured.RemoveNestedField(version.(map[string]any), "schema", "openAPIV3Schema", "properties", "spec", "properties", "dependsOn", "items", "properties", "namespace")
	}
	g.Expect(unstructured.SetNestedSlice(stacks.Object, versions, "spec", "versions")).To(Succeed())
	g.Expect(c.client.Update(t.Context(), stacks)).To(Succeed())
	g.Expect(s.checkDefinitions(t.Context(), c)).To(BeEmpty(), "nothing is known of the controller")

	// A newer program says so, and the installation is whole.
	g.Expect(appsv1.AddToScheme(scheme)).To(Succeed())
	deployment := &appsv1.Deployment{Namespace: "flux-system", Name: controllerName, Labels: map[string]string{componentLabel: controllerName}}
	deployment.Spec.Template.Spec.Containers = []corev1.Container{{Image: "stack-controller/stack-controller:v0.1.0@sha256:0"}}
	c = &cluster{client: fake.NewClientBuilder().WithScheme(scheme).WithObjects(stacks, deployment).Build(), chunkSize: defaultChunkSize}
	s, log = newSession(nil)
	s.Version = "v0.2.0"
	g.Expect(s.checkDefinitions(t.Context(), c)).To(BeEmpty())
	g.Expect(log.String()).To(ContainSubstring("which version v0.2.0 of the controller has"))
	s.Version = "v0.1.0"
	g.Expect(s.checkDefinitions(t.Context(), c)).To(ConsistOf("stacks.pulumi.com lacks fields"))
	g.Expect(log.String()).To(And(ContainSubstring("it lacks .v1.spec.dependsOn[].namespace; .v1.status.plan; .v1alpha1"), Not(ContainSubstring(".v1.status.plan."))))
	deployment.Spec.Template.Spec.Containers[0].Image = "mirror.example.com/stack-controller@sha256:0"
	g.Expect(c.client.Update(t.Context(), deployment)).To(Succeed())
	g.Expect(s.checkDefinitions(t.Context(), c)).To(BeEmpty(), "a digest alone says nothing of the version")
}

func TestPreviewHasTheLabelsOfTheShardOfItsStack(t *testing.T) {
	g := NewWithT(t)
	stack := &pulumiv1.Stack{Namespace: "apps", Name: "network", Labels: map[string]string{
		"sharding.fluxcd.io/key": "shard1", "app.kubernetes.io/instance": "fleet", pulumiv1.StackNameLabel: "network", pulumiv1.ComponentLabel: pulumiv1.ComponentStack}}
	last := &autov1alpha1.Update{Namespace: "apps", Name: "network-1", Labels: stack.Labels}
	last.Spec.Type, last.Spec.Source = autov1alpha1.UpdateTypeUp, &autov1alpha1.UpdateSource{Digest: "sha256:0"}
	c, _ := newCluster(last, &autov1alpha1.Workspace{Namespace: "apps", Name: "network"})
	preview, err := c.previewOf(t.Context(), stack, "")
	g.Expect(err).NotTo(HaveOccurred())
	g.Expect(preview.Labels).To(Equal(map[string]string{"sharding.fluxcd.io/key": "shard1"}), "without those by which an Update belongs to the Stack or to an Application")
	g.Expect(stack.Labels).To(HaveLen(4))
}

// Updates are deleted after a day.
func TestPreviewOfAFluxSourceNeedsNoUpdate(t *testing.T) {
	g := NewWithT(t)
	stack := &pulumiv1.Stack{Namespace: "apps", Name: "network"}
	stack.Spec.FluxSource = &pulumiv1.FluxSource{Dir: "infra"}
	stack.Spec.FluxSource.SourceRef.Kind, stack.Spec.FluxSource.SourceRef.Name = "GitRepository", "network"
	source := &sourcev1.GitRepository{Namespace: "apps", Name: "network", Status: sourcev1.GitRepositoryStatus{
		Artifact: &meta.Artifact{Digest: "sha256:0", Revision: "main@sha1:1"}}}
	c, _ := newCluster(source)
	g.Expect(c.previewOf(t.Context(), stack, "")).Error().To(MatchError(ContainSubstring("has no Update to make a preview from")), "nor has it a Workspace")
	stack.Status.LastUpdate = &pulumiv1.StackUpdateStatus{}
	g.Expect(c.previewOf(t.Context(), stack, "")).Error().To(MatchError(ContainSubstring("has no Workspace: its next update creates it")), "nobody would create one for a preview")
	g.Expect(c.create(t.Context(), &autov1alpha1.Workspace{Namespace: "apps", Name: "network"})).To(Succeed())
	preview, err := c.previewOf(t.Context(), stack, "")
	g.Expect(err).NotTo(HaveOccurred())
	g.Expect(preview.Spec.Source).To(And(HaveField("Digest", "sha256:0"), HaveField("Dir", "infra")))
}

// Before version 2.0, the operator had no Updates.
func TestUpdatesOfTheFirstOperatorAreTheStacksThatItProcesses(t *testing.T) {
	g := NewWithT(t)
	stack := func(name, reason string) *pulumiv1.Stack {
		return &pulumiv1.Stack{Namespace: "apps", Name: name, Status: pulumiv1.StackStatus{
			Conditions: []metav1.Condition{{Type: meta.ReconcilingCondition, Status: metav1.ConditionTrue, Reason: reason}}}}
	}
	c, _ := newCluster(stack("working", pulumiv1.StackProcessingReason), stack("failing", pulumiv1.RetryingAfterFailureReason))
	c.client = interceptor.NewClient(c.client, interceptor.Funcs{
		List: func(ctx context.Context, caller client.WithWatch, list client.ObjectList, options ...client.ListOption) error {
			if _, updates := list.(*autov1alpha1.UpdateList); updates {
				return &apimeta.NoKindMatchError{GroupKind: schema.GroupKind{Group: "auto.pulumi.com", Kind: "Update"}}
			}
			return caller.List(ctx, list, options...)
		},
	})
	g.Expect(c.running(t.Context())).To(ConsistOf("Stack apps/working"))
}

func TestReasonWhyThereIsNoPodIsSaid(t *testing.T) {
	selector := map[string]string{"app": controllerName}
	pod := func(status corev1.PodStatus) client.Object {
		return &corev1.Pod{Namespace: "flux-system", Name: "pod", Labels: selector, Status: status}
	}
	for want, test := range map[string]struct {
		conditions []appsv1.DeploymentCondition
		pods       []client.Object
	}{
		"": {nil, nil},
		"FailedCreate: exceeded quota": {[]appsv1.DeploymentCondition{
			{Type: appsv1.DeploymentReplicaFailure, Status: corev1.ConditionTrue, Reason: "FailedCreate", Message: "exceeded quota"}}, nil},
		"Unschedulable: no nodes": {nil, []client.Object{pod(corev1.PodStatus{Conditions: []corev1.PodCondition{
			{Type: corev1.PodScheduled, Status: corev1.ConditionFalse, Reason: "Unschedulable", Message: "no nodes"}}})}},
		"ImagePullBackOff: no such image": {nil, []client.Object{pod(corev1.PodStatus{ContainerStatuses: []corev1.ContainerStatus{
			{State: corev1.ContainerState{Waiting: &corev1.ContainerStateWaiting{Reason: "ImagePullBackOff", Message: "no such image"}}}}})}},
	} {
		c, _ := newCluster(test.pods...)
		deployment := &appsv1.Deployment{Namespace: "flux-system", Spec: appsv1.DeploymentSpec{Selector: &metav1.LabelSelector{MatchLabels: selector}},
			Status: appsv1.DeploymentStatus{Conditions: test.conditions}}
		NewWithT(t).Expect(c.podProblem(t.Context(), deployment)).To(Equal(want))
	}
}
