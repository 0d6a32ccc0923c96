package command

import (
	"bytes"
	"testing"

	. "github.com/onsi/gomega"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"

	"github.com/fluxcd/pkg/apis/meta"

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

func TestCommandsInAPodThatIsNotThereSayHowToGetIt(t *testing.T) {
	g := NewWithT(t)
	name := metav1.ObjectMeta{Namespace: "apps", Name: "network"}
	stack := &pulumiv1.Stack{ObjectMeta: name}
	c, _ := newCluster()
	g.Expect(c.pulumi(t.Context(), stack, nil, nil, "stack", "export")).To(MatchError(ContainSubstring(`the Stack "network" has no Workspace`)))
	c, _ = newCluster(&autov1alpha1.Workspace{ObjectMeta: name, Status: autov1alpha1.WorkspaceStatus{
		Conditions: []metav1.Condition{{Type: meta.ReadyCondition, Status: metav1.ConditionTrue, Reason: autov1alpha1.IdleReason}},
	}})
	g.Expect(c.pulumi(t.Context(), stack, nil, nil, "stack", "export")).To(MatchError(ContainSubstring("'diff stack network' starts the pod")))
}

func TestControllerIsNotStoppedWhereSomethingStartsItAgain(t *testing.T) {
	kustomization := schema.GroupVersionKind{Group: "kustomize.toolkit.fluxcd.io", Version: "v1", Kind: "Kustomization"}
	byFlux := map[string]string{"kustomize.toolkit.fluxcd.io/name": "operators", "kustomize.toolkit.fluxcd.io/namespace": "flux-system"}
	for name, test := range map[string]struct {
		labels, annotations map[string]string
		spec                map[string]any // of the Kustomization; nil if there is none
		refused, warns      string
	}{
		"nothing":                        {},
		"a Kustomization":                {labels: byFlux, spec: map[string]any{}, refused: "flux suspend kustomization operators --namespace flux-system"},
		"a suspended Kustomization":      {labels: byFlux, spec: map[string]any{"suspend": true}},
		"a Kustomization that is gone":   {labels: byFlux},
		"an Application":                 {annotations: map[string]string{"argocd.argoproj.io/tracking-id": "ops_pulumi:apps/Deployment:x/y"}, warns: "Application ops/pulumi scales it up again"},
		"an Application, by its label":   {labels: map[string]string{"app.kubernetes.io/instance": "pulumi"}, warns: "Application pulumi scales it up again"},
		"a release of Helm by its label": {labels: map[string]string{"app.kubernetes.io/instance": "pulumi"}, annotations: map[string]string{"meta.helm.sh/release-name": "pulumi"}},
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

func TestInstallTakesNoSettingsAway(t *testing.T) {
	g := NewWithT(t)
	objects, err := config.Objects("registry.example.com/stack-controller:v2", "registry.example.com/agent:v2")
	g.Expect(err).NotTo(HaveOccurred())
	wanted := &appsv1.Deployment{}
	for _, object := range objects {
		if object.GetKind() == "Deployment" {
			g.Expect(runtime.DefaultUnstructuredConverter.FromUnstructured(object.Object, wanted)).To(Succeed())
		}
	}
	by := func(manager, field string) metav1.ManagedFieldsEntry {
		return metav1.ManagedFieldsEntry{Manager: manager, FieldsV1: metav1.NewFieldsV1(`{"f:` + field + `":{}}`)}
	}
	for name, test := range map[string]struct {
		change func(*appsv1.Deployment, *corev1.Container)
		want   []string
	}{
		"none": {func(*appsv1.Deployment, *corev1.Container) {}, nil},
		"a flag": {func(d *appsv1.Deployment, c *corev1.Container) {
			d.ManagedFields = append(d.ManagedFields, by("kubectl", "args"))
			c.Args = append(c.Args, "--require-verified-sources=true", "--require-verified-sources=true")
		}, []string{"--require-verified-sources"}},
		"another value": {func(d *appsv1.Deployment, c *corev1.Container) {
			d.ManagedFields = append(d.ManagedFields, by("kubectl", "args"))
			c.Args[0] = "--watch-all-namespaces=false"
		}, []string{"--watch-all-namespaces"}},
		"a flag of an earlier version": {func(_ *appsv1.Deployment, c *corev1.Container) { c.Args = append(c.Args, "--old=true") }, nil},
		"more memory": {func(d *appsv1.Deployment, c *corev1.Container) {
			d.ManagedFields = append(d.ManagedFields, by("kubectl", "resources"))
			c.Resources.Limits = corev1.ResourceList{corev1.ResourceMemory: resource.MustParse("4Gi")}
		}, []string{"resources"}},
	} {
		present := wanted.DeepCopy()
		present.ManagedFields = []metav1.ManagedFieldsEntry{by(fieldOwner, "args"), by(fieldOwner, "resources")}
		test.change(present, &present.Spec.Template.Spec.Containers[0])
		g.Expect(lostSettings(present, wanted)).To(Equal(test.want), name)
	}
	for image, repository := range map[string]string{
		"registry.example.com:5000/a/b:v1@sha256:0": "registry.example.com:5000/a/b", "registry.example.com:5000/a/b": "registry.example.com:5000/a/b", "b:v1": "b",
	} {
		g.Expect(repositoryOf(image)).To(Equal(repository))
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
	}
	g.Expect(unstructured.SetNestedSlice(stacks.Object, versions, "spec", "versions")).To(Succeed())
	g.Expect(c.client.Update(t.Context(), stacks)).To(Succeed())
	g.Expect(s.checkDefinitions(t.Context(), c)).To(ConsistOf("stacks.pulumi.com lacks fields"))
	g.Expect(log.String()).To(ContainSubstring("v1 status.plan"))
}

func TestPreviewHasTheLabelsOfTheShardOfItsStack(t *testing.T) {
	g := NewWithT(t)
	stack := &pulumiv1.Stack{Namespace: "apps", Name: "network", Labels: map[string]string{
		"sharding.fluxcd.io/key": "shard1", pulumiv1.StackNameLabel: "network", pulumiv1.ComponentLabel: pulumiv1.ComponentStack}}
	last := &autov1alpha1.Update{Namespace: "apps", Name: "network-1", Labels: stack.Labels}
	last.Spec.Type, last.Spec.Source = autov1alpha1.UpdateTypeUp, &autov1alpha1.UpdateSource{Digest: "sha256:0"}
	c, _ := newCluster(last)
	preview, err := c.previewOf(t.Context(), stack, "")
	g.Expect(err).NotTo(HaveOccurred())
	g.Expect(preview.Labels).To(Equal(map[string]string{"sharding.fluxcd.io/key": "shard1"}), "without those by which an Update belongs to the Stack")
	g.Expect(stack.Labels).To(HaveLen(3))
}
