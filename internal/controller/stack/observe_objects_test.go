package stack

import (
	"context"
	"fmt"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/go-logr/logr"
	. "github.com/onsi/gomega"
	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/rest"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/fluxcd/pkg/apis/meta"
	"github.com/fluxcd/pkg/runtime/conditions"

	pulumiv1 "github.com/stack-controller/stack-controller/api/pulumi/v1"
	"github.com/stack-controller/stack-controller/internal/informercache"
	"github.com/stack-controller/stack-controller/internal/objectwatch"
	"github.com/stack-controller/stack-controller/internal/references"
	"github.com/stack-controller/stack-controller/tests/framework/controlplane"
)

var (
	kustomizations = schema.GroupVersionKind{Group: "kustomize.toolkit.fluxcd.io", Version: "v1", Kind: "Kustomization"}
	widgets        = schema.GroupVersionKind{Group: "example.com", Version: "v1", Kind: "Widget"}
)

// installKustomizations installs Flux's definition in the API server of all tests.
var installKustomizations = sync.OnceValue(func() error {
	cluster, err := startCluster()
	if err != nil {
		return err
	}
	crds, err := controlplane.FluxCRDs(context.Background(), "kustomize-controller")
	if err != nil {
		return err
	}
	return cluster.InstallCRDs(crds)
})

// onObject adds a dependency on an object of another kind.
func onObject(kind schema.GroupVersionKind, name string, changes ...func(*pulumiv1.DependencyReference)) func(*pulumiv1.Stack) {
	return func(stack *pulumiv1.Stack) {
		reference := pulumiv1.DependencyReference{APIVersion: kind.GroupVersion().String(), Kind: kind.Kind, Name: name}
		for _, change := range changes {
			change(&reference)
		}
		stack.Spec.DependsOn = append(stack.Spec.DependsOn, reference)
	}
}

func onlyExists(reference *pulumiv1.DependencyReference) { reference.Ready = new(false) }

func readyIf(expression string) func(*pulumiv1.DependencyReference) {
	return func(reference *pulumiv1.DependencyReference) { reference.ReadyExpr = expression }
}

// newObjectsFixture is newFixture with a cluster that has Kustomizations.
func newObjectsFixture(t *testing.T, changes ...func(*Reconciler)) *fixture {
	t.Helper()
	s := newFixture(t, changes...)
	s.Expect(installKustomizations()).To(Succeed())
	return s
}

func (s *fixture) kustomization(name string) *unstructured.Unstructured {
	s.t.Helper()
	object := &unstructured.Unstructured{Object: map[string]any{"spec": map[string]any{
		"interval": "1h", "prune": true, "path": "./secret-path", "sourceRef": map[string]any{"kind": "GitRepository", "name": "a"},
	}}}
	object.SetGroupVersionKind(kustomizations)
	object.SetNamespace(s.namespace)
	object.SetName(name)
	s.Expect(s.client.Create(s.t.Context(), object)).To(Succeed())
	return object
}

// report plays kustomize-controller.
func (s *fixture) report(object *unstructured.Unstructured, ready metav1.ConditionStatus) {
	s.t.Helper()
	object.Object["status"] = map[string]any{"observedGeneration": object.GetGeneration(), "lastAppliedRevision": "main@sha1:secret", "conditions": []any{map[string]any{
		"type": "Ready", "status": string(ready), "reason": "Reconciled", "message": "secret-message", "lastTransitionTime": "2026-01-01T00:00:00Z",
		"observedGeneration": object.GetGeneration(),
	}}}
	s.Expect(s.client.Status().Update(s.t.Context(), object)).To(Succeed())
}

func (s *fixture) gets() (count int) {
	for _, request := range s.objectsRead() {
		if !strings.HasSuffix(request, "/kustomizations") {
			count++
		}
	}
	return count
}

// Only watches wake a Stack in this test.
func TestStackWaitsForAKustomizationAndGoesOnAtOnceWhenItIsReady(t *testing.T) {
	var objects *objectwatch.Watcher
	s := newObjectsFixture(t, func(r *Reconciler) { objects = r.Objects })
	base := s.kustomization("base")
	app := s.dependent("app", onObject(kustomizations, "base"))
	s.await(app, notUpdated(pulumiv1.DependencyNotReadyReason, "dependency Kustomization "+s.namespace+"/base is not ready"))
	s.Eventually(func() (objectwatch.Answer, error) {
		return objects.Read(t.Context(), s.namespace, objectwatch.Key{GroupVersionKind: kustomizations, Namespace: s.namespace, Name: "base"})
	}).Should(HaveField("Watched", true))
	s.Expect(s.client.Delete(t.Context(), base)).To(Succeed())
	s.await(app, notUpdated(pulumiv1.DependencyNotReadyReason, "/base does not exist"))
	base = s.kustomization("base")
	s.await(app, notUpdated(pulumiv1.DependencyNotReadyReason, "/base is not ready"))
	begin := time.Now()
	s.report(base, metav1.ConditionTrue)
	s.await(app, working)
	t.Logf("went on %s after the report", time.Since(begin).Round(time.Millisecond))

	// The Stack is idle now, and the object is of no interest to it.
	s.succeed(app, time.Now())
	before := s.gets()
	version := app.ResourceVersion
	s.report(base, metav1.ConditionFalse)
	s.Expect(s.client.Delete(t.Context(), base)).To(Succeed())
	s.Consistently(func(g Gomega) {
		g.Expect(s.gets()).To(Equal(before))
		g.Expect(s.client.Get(t.Context(), client.ObjectKeyFromObject(app), app)).To(Succeed())
		g.Expect(app.ResourceVersion).To(Equal(version))
		g.Expect(conditions.IsReady(app)).To(BeTrue())
	}, "1s").Should(Succeed())
	// What it is asked to do next waits again.
	s.edit(app, withImage("two"))
	s.await(app, notUpdated(pulumiv1.DependencyNotReadyReason, "does not exist"))
}

func TestObjectIsReadAsOftenAsItChangesForAllStacksThatWaitForIt(t *testing.T) {
	s := newObjectsFixture(t)
	base := s.kustomization("base")
	var stacks []*pulumiv1.Stack
	begin := time.Now()
	for i := range 50 {
		stacks = append(stacks, s.dependent(fmt.Sprint("app-", i), onObject(kustomizations, "base")))
	}
	for _, stack := range stacks {
		s.await(stack, notUpdated(pulumiv1.DependencyNotReadyReason, "is not ready"))
	}
	s.report(base, metav1.ConditionTrue)
	for _, stack := range stacks {
		s.await(stack, working)
	}
	s.Expect(s.gets()).To(BeNumerically("<=", 1+time.Since(begin)/time.Second))
	var lists int
	for _, request := range s.objectsRead() {
		if strings.HasSuffix(request, "/kustomizations") {
			lists++
		}
	}
	s.Expect(lists).To(BeNumerically("<=", 3), "one watch for all")
}

func TestStackWithoutSuchADependencyRequestsNothing(t *testing.T) {
	s := newObjectsFixture(t)
	s.kustomization("base")
	s.succeed(s.dependent("base"), time.Now())
	s.succeed(s.dependent("app", dependsOn("base", "")), time.Now())
	// The reference to a Stack with its kind is the same.
	s.succeed(s.dependent("other", onObject(pulumiv1.GroupVersion.WithKind(pulumiv1.StackKind), "base")), time.Now())
	s.Expect(s.objectsRead()).To(BeEmpty())
}

func TestStackThatOnlyHasToExistNeedNotBeReady(t *testing.T) {
	s := newObjectsFixture(t)
	stack := pulumiv1.GroupVersion.WithKind(pulumiv1.StackKind)
	app := s.dependent("app", onObject(stack, "base", onlyExists), onObject(kustomizations, "base", onlyExists))
	s.await(app, notUpdated(pulumiv1.DependencyNotReadyReason, "dependency "+s.namespace+"/base does not exist"))
	s.dependent("base", func(stack *pulumiv1.Stack) { stack.Spec.Suspend = true })
	s.await(app, notUpdated(pulumiv1.DependencyNotReadyReason, "dependency Kustomization "+s.namespace+"/base does not exist"))
	s.kustomization("base")
	s.await(app, working)
}

func TestReadyExprOfAnObjectSeesOnlyItsMetadataAndConditions(t *testing.T) {
	s := newObjectsFixture(t)
	base := s.kustomization("base")
	for name, expression := range map[string]string{
		"spec": "dep.spec.path == './secret-path'", "message": "dep.status.conditions.exists(c, c.message == 'x') || dep.status.lastAppliedRevision == ''",
		"annotations": "size(dep.metadata.annotations) > 0", "outputs": "has(dep.status.outputs)", "last": "dep.status.lastUpdate.state == 'succeeded'",
	} {
		stack := s.dependent(name, onObject(kustomizations, "base", readyIf(expression)))
		s.await(stack, reasonIs(meta.StalledCondition, pulumiv1.InvalidCELExpressionReason))
		s.Expect(conditions.GetMessage(stack, meta.ReadyCondition)).To(ContainSubstring("is not a field that it may read of an object"))
	}
	s.report(base, metav1.ConditionFalse)
	hidden := s.dependent("hidden", onObject(kustomizations, "base", readyIf("dep.status.conditions.exists(c, has(c.message)) || has([dep][0].spec)")))
	s.await(hidden, notUpdated(pulumiv1.DependencyNotReadyReason, "is false"))
	app := s.dependent("app", onObject(kustomizations, "base", readyIf(
		"dep.status.observedGeneration == dep.metadata.generation && dep.metadata.labels['for'] == self.metadata.name && dep.kind == 'Kustomization'")))
	s.await(app, notUpdated(pulumiv1.DependencyNotReadyReason, "cannot be evaluated"))
	base.SetLabels(map[string]string{"for": "app"})
	s.Expect(s.client.Update(t.Context(), base)).To(Succeed())
	s.await(app, working)
	s.await(hidden, notUpdated(pulumiv1.DependencyNotReadyReason, "is false"))
	list := &pulumiv1.StackList{}
	s.Expect(s.client.List(t.Context(), list, client.InNamespace(s.namespace))).To(Succeed())
	for i := range list.Items {
		s.Expect(conditions.GetMessage(&list.Items[i], meta.ReadyCondition)).NotTo(ContainSubstring("secret-message"))
	}
}

func TestKindThatIsNotAllowedStallsAndNamesTheFlag(t *testing.T) {
	s := newObjectsFixture(t)
	for kind, says := range map[schema.GroupVersionKind]string{
		{Group: "apps", Version: "v1", Kind: "Deployment"}:                "the platform team adds apps/Deployment to the flag --dependency-kinds",
		{Version: "v1", Kind: "Secret"}:                                   `objects of the kind Secret in the group "" are not allowed`,
		{Group: "rbac.authorization.k8s.io", Version: "v1", Kind: "Role"}: "are not allowed",
	} {
		stack := s.dependent(strings.ToLower(kind.Kind), onObject(kind, "a"))
		s.await(stack, reasonIs(meta.StalledCondition, pulumiv1.AccessDeniedReason))
		s.Expect(conditions.GetMessage(stack, meta.ReadyCondition)).To(ContainSubstring(says))
		if kind.Kind != "Deployment" {
			s.Expect(conditions.GetMessage(stack, meta.ReadyCondition)).NotTo(ContainSubstring("flag"), "it would not help")
		}
		s.edit(stack, func(stack *pulumiv1.Stack) { stack.Spec.DependsOn = nil })
		s.await(stack, working)
	}
}

func TestKindThatTheClusterGetsLaterIsFound(t *testing.T) {
	var objects *objectwatch.Watcher
	s := newObjectsFixture(t, func(r *Reconciler) { r.WaitInterval, objects = time.Second, r.Objects })
	app := s.dependent("app", onObject(widgets, "base", onlyExists))
	s.await(app, notUpdated(pulumiv1.DependencyNotReadyReason, "the cluster has no kind Widget in example.com/v1"))
	cluster, err := startCluster()
	s.Expect(err).NotTo(HaveOccurred())
	s.Expect(cluster.InstallCRDs(filepath.Join("..", "..", "objectwatch", "testdata", "widgets.yaml"))).To(Succeed())
	s.await(app, notUpdated(pulumiv1.DependencyNotReadyReason, "does not exist"))
	widget := &unstructured.Unstructured{}
	widget.SetGroupVersionKind(widgets)
	widget.SetNamespace(s.namespace)
	widget.SetName("base")
	s.Expect(s.client.Create(t.Context(), widget)).To(Succeed())
	s.await(app, working)

	// Later the kind is removed, with all its objects.
	s.succeed(app, time.Now())
	definition := &unstructured.Unstructured{}
	definition.SetGroupVersionKind(schema.GroupVersionKind{Group: "apiextensions.k8s.io", Version: "v1", Kind: "CustomResourceDefinition"})
	definition.SetName("widgets.example.com")
	s.Expect(s.client.Delete(t.Context(), definition)).To(Succeed())
	s.Eventually(objects.Watched, patience).ShouldNot(ContainElement(widgets.GroupKind()), "the watch finds that out")
	s.edit(app, withImage("two"))
	s.await(app, notUpdated(pulumiv1.DependencyNotReadyReason, "the cluster has no kind Widget in example.com/v1"))
	begin, before := time.Now(), len(s.objectsRead())
	s.Consistently(func(g Gomega) {
		g.Expect(s.client.Get(t.Context(), client.ObjectKeyFromObject(app), app)).To(Succeed())
		g.Expect(conditions.GetMessage(app, meta.ReadyCondition)).To(ContainSubstring("has no kind Widget"))
	}, "3s").Should(Succeed())
	s.Expect(len(s.objectsRead())-before).To(BeNumerically("<=", 4*(1+time.Since(begin)/time.Second)), "it asks rarely")
}

func TestObjectInAnotherNamespaceNeedsTheFlag(t *testing.T) {
	s := newObjectsFixture(t)
	other := newObjectsFixture(t, func(r *Reconciler) { r.Scope = references.Scope{OtherNamespaces: true} })
	base := s.kustomization("base")
	elsewhere := func(namespace string) func(*pulumiv1.DependencyReference) {
		return func(reference *pulumiv1.DependencyReference) { reference.Namespace = namespace }
	}
	app := other.dependent("app", onObject(kustomizations, "base", elsewhere(s.namespace)))
	other.await(app, notUpdated(pulumiv1.DependencyNotReadyReason, "dependency Kustomization "+s.namespace+"/base is not ready"))
	s.report(base, metav1.ConditionTrue)
	other.await(app, working)

	// Without the flag, what exists and what does not look the same, and neither is read.
	other.kustomization("theirs")
	for _, name := range []string{"theirs", "nothing"} {
		stack := s.dependent("needs-"+name, onObject(kustomizations, name, elsewhere(other.namespace)))
		s.await(stack, reasonIs(meta.StalledCondition, pulumiv1.AccessDeniedReason))
		s.Expect(conditions.GetMessage(stack, meta.ReadyCondition)).To(Equal(
			"cannot depend on Kustomization " + other.namespace + "/" + name + ": references to another namespace are not allowed"))
	}
	s.Expect(s.objectsRead()).To(BeEmpty())
}

// as replaces the Watcher by one with the rights of a user who has none.
func as(t *testing.T, user string) func(*Reconciler) {
	return func(r *Reconciler) {
		options := r.Objects.Options
		options.Config = rest.CopyConfig(options.Config)
		options.Config.Impersonate = rest.ImpersonationConfig{UserName: user, Groups: []string{"system:authenticated"}}
		g := NewWithT(t)
		http, err := rest.HTTPClientFor(options.Config)
		g.Expect(err).NotTo(HaveOccurred())
		live, err := client.New(options.Config, client.Options{HTTPClient: http, Mapper: options.Mapper})
		g.Expect(err).NotTo(HaveOccurred())
		options.HTTPClient, options.APIReader, options.Log = http, informercache.NewReader(live), logr.Discard()
		r.Objects = objectwatch.New(options)
		ctx, cancel := context.WithCancel(context.Background())
		ended := make(chan error, 1)
		go func() { ended <- r.Objects.Start(ctx) }()
		t.Cleanup(func() {
			cancel()
			g.Eventually(ended, patience).Should(Receive(BeNil()))
		})
	}
}

func TestMissingRightIsNamedAndWithoutAWatchTheObjectIsPolled(t *testing.T) {
	s := newObjectsFixture(t, func(r *Reconciler) { r.WaitInterval = time.Second }, as(t, "dependent"))
	base := s.kustomization("base")
	app := s.dependent("app", onObject(kustomizations, "base"))
	s.await(app, notUpdated(pulumiv1.AccessDeniedReason,
		`allow it with the rule {apiGroups: ["kustomize.toolkit.fluxcd.io"], resources: ["kustomizations"], verbs: ["get", "list", "watch"]}`))
	s.Expect(conditions.IsStalled(app)).To(BeFalse(), "it goes on by itself once the right is there")
	role := s.namespace + "-get"
	s.Expect(s.client.Create(t.Context(), &rbacv1.ClusterRole{Name: role, Rules: []rbacv1.PolicyRule{
		{APIGroups: []string{kustomizations.Group}, Resources: []string{"kustomizations"}, Verbs: []string{"get"}},
	}})).To(Succeed())
	s.Expect(s.client.Create(t.Context(), &rbacv1.ClusterRoleBinding{
		Name: role, RoleRef: rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "ClusterRole", Name: role},
		Subjects: []rbacv1.Subject{{Kind: rbacv1.UserKind, APIGroup: rbacv1.GroupName, Name: "dependent"}},
	})).To(Succeed())
	s.await(app, notUpdated(pulumiv1.DependencyNotReadyReason, "/base is not ready"))
	s.report(base, metav1.ConditionTrue)
	s.await(app, working)
	s.Expect(slices.ContainsFunc(s.objectsRead(), func(request string) bool { return strings.HasSuffix(request, "/base") })).To(BeTrue())
}

func TestObjectsAreLimitedTogetherWithStacks(t *testing.T) {
	g := NewWithT(t)
	stack := &pulumiv1.Stack{}
	for i := range maxDependencies {
		onObject(kustomizations, fmt.Sprint("k", i))(stack)
		dependency := pulumiv1.DependencyReference{Name: fmt.Sprint("s", i)}
		stack.Spec.DependsOn = append(stack.Spec.DependsOn, dependency)
	}
	problem := (&Reconciler{}).checkDependencies(stack, objectsOf(stack))
	g.Expect(problem.message).To(ContainSubstring("256 prerequisites, dependencies and Stacks in inputs, and this one has 512"))
	g.Expect(len(objectsOf(stack)) + len(namedDependencies(stack))).To(Equal(maxDependencies))
	for name, values := range (&Reconciler{}).stackIndexes() {
		g.Expect(len(values(stack))).To(BeNumerically("<=", maxIndexed), name)
	}
	stack.DeletionTimestamp = &metav1.Time{Time: now}
	g.Expect(objectsOf(stack)).To(BeEmpty(), "what is deleted waits for nothing")

	elsewhere := &pulumiv1.Stack{Namespace: "team"}
	onObject(kustomizations, "base", func(r *pulumiv1.DependencyReference) { r.Namespace = "other" })(elsewhere)
	problem = (&Reconciler{}).checkDependencies(elsewhere, objectsOf(elsewhere))
	g.Expect(problem.reason).To(Equal(pulumiv1.AccessDeniedReason))
	g.Expect(problem.message).To(Equal("cannot depend on Kustomization other/base: references to another namespace are not allowed"))
}
