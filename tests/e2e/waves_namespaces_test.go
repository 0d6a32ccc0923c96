package e2e_test

import (
	"context"
	"testing"

	. "github.com/onsi/gomega"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	sourcev1 "github.com/fluxcd/source-controller/api/v1"

	autov1alpha1 "github.com/stack-controller/stack-controller/api/auto/v1alpha1"
	pulumiv1 "github.com/stack-controller/stack-controller/api/pulumi/v1"
	"github.com/stack-controller/stack-controller/tests/framework/gitserver"
	"github.com/stack-controller/stack-controller/tests/framework/localsystem"
	"github.com/stack-controller/stack-controller/tests/framework/systemtest"
)

// label sets a label of the namespace of the fixture.
func (p *fixture) label(key, value string) {
	p.Helper()
	namespace := &corev1.Namespace{}
	p.Succeed(system.Client.Get(p.Context(), client.ObjectKey{Name: p.Name}, namespace))
	before := namespace.DeepCopy()
	metav1.SetMetaDataLabel(&namespace.ObjectMeta, key, value)
	p.Succeed(system.Client.Patch(p.Context(), namespace, client.MergeFrom(before)))
}

// letControllerReadNamespaces gives the controller the right that the installation does not give it.
func (p *fixture) letControllerReadNamespaces() {
	p.Helper()
	const name = "stack-controller-namespaces"
	role := &rbacv1.ClusterRole{Name: name, Rules: []rbacv1.PolicyRule{{APIGroups: []string{""}, Resources: []string{"namespaces"}, Verbs: []string{"list", "watch"}}}}
	binding := &rbacv1.ClusterRoleBinding{
		Name: name, RoleRef: rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "ClusterRole", Name: name},
		Subjects: []rbacv1.Subject{{Kind: rbacv1.ServiceAccountKind, Namespace: localsystem.Namespace, Name: "stack-controller"}},
	}
	for _, object := range []client.Object{role, binding} {
		p.Create(object)
		p.Cleanup(func() { _ = system.Client.Delete(context.Background(), object) })
	}
}

func TestNamespacesAreSelectedByTheirLabels(t *testing.T) {
	p := begin(t, "waves-namespaces")
	tenant := p.beside("waves-tenant")
	p.letControllerReadNamespaces()
	repository, first := p.repository(p.returning(1))
	revision := func(sha string) string { return gitserver.Branch + "@sha1:" + sha }
	rollout, stacks := p.fleet("east")
	rollout.Spec.SourceRef = autov1alpha1.RolloutSource{Kind: sourcev1.GitRepositoryKind, Name: "git"}
	rollout.Spec.AllowedNamespaces = &autov1alpha1.AllowedNamespaces{
		From: autov1alpha1.FromSelector, Selector: &metav1.LabelSelector{MatchLabels: map[string]string{"infra": "waves"}},
	}
	rollout.Spec.Waves[0] = autov1alpha1.RolloutWave{Name: "early", Namespaces: &metav1.LabelSelector{MatchLabels: map[string]string{"env": "test"}}}
	_, others := tenant.fleet("west")
	for _, stack := range append(stacks, others...) {
		stack.Spec.RolloutRef.Namespace = p.Name
		stack.Spec.FluxSource.SourceRef = pulumiv1.FluxSourceReference{APIVersion: sourcev1.GroupVersion.String(), Kind: sourcev1.GitRepositoryKind, Name: "git"}
	}
	p.enter(p.gitSource("git", repository.URL), rollout, stacks[0])
	tenant.enter(tenant.gitSource("git", repository.URL), others[0])
	p.awaitRollout(autov1alpha1.RolloutCompleteReason, revision(first))
	tenant.AwaitStack("west", notReady(pulumiv1.RolloutNotFoundReason))
	p.Eventually(func() []autov1alpha1.RolloutFailure { return p.rollout().Status.Refused }).Should(ConsistOf(HaveField("Stack", tenant.Name+"/west")))

	// A label of its Namespace lets it join, and gives it what all have.
	tenant.label("infra", "waves")
	tenant.AwaitStack("west", systemtest.Showing("1"))
	p.Eventually(func() string { return p.rollout().Status.Done }).Should(Equal("2/2"))
	p.Expect(p.rollout().Status.Refused).To(BeEmpty())

	// Another one puts it into the first wave.
	tenant.label("env", "test")
	p.Eventually(func() int32 { return p.rollout().Status.Waves[0].Stacks }).Should(BeEquivalentTo(1))
	release := tenant.holdStack("west")
	second := p.commit(repository, p.returning(2))
	p.fetchSource("git")
	tenant.fetchSource("git")
	p.awaitRollout(autov1alpha1.RolloutProgressingReason, revision(second))
	p.Eventually(func() []autov1alpha1.RolloutTurn { return p.rollout().Status.Turns }).Should(ConsistOf(HaveField("Stack", tenant.Name+"/west")))
	p.AwaitStack("east", systemtest.Showing("1"))
	release()
	p.AwaitStack("east", systemtest.Showing("2"))
}
