package admission_test

import (
	"testing"

	. "github.com/onsi/gomega"
	rbacv1 "k8s.io/api/rbac/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/client-go/rest"
	"sigs.k8s.io/controller-runtime/pkg/client"

	autov1alpha1 "github.com/stack-controller/stack-controller/api/auto/v1alpha1"
	"github.com/stack-controller/stack-controller/tests/framework/argocd"
)

func TestArgoCDApprovesAsItself(t *testing.T) {
	g := NewWithT(t)
	settings, err := argocd.Load()
	g.Expect(err).NotTo(HaveOccurred())
	stack := &unstructured.Unstructured{Object: map[string]any{
		"apiVersion": "pulumi.com/v1", "kind": "Stack", "metadata": map[string]any{"name": "app", "namespace": "bank"},
		"status": map[string]any{"plan": map[string]any{"name": "app-1", "digest": digest}},
	}}
	// As docs/guides/argo-cd.md says.
	role := binding("bank", "argocd-server", "stack-controller-approver")
	role.Subjects = []rbacv1.Subject{{Kind: rbacv1.ServiceAccountKind, Name: "argocd-server", Namespace: "argocd"}}
	g.Expect(admin.Create(t.Context(), role)).To(Succeed())
	config := rest.CopyConfig(cluster.Config())
	config.Impersonate.UserName = "system:serviceaccount:argocd:argocd-server"
	server, err := client.New(config, client.Options{Scheme: scheme})
	g.Expect(err).NotTo(HaveOccurred())

	for action, decision := range map[string]autov1alpha1.ApprovalDecision{"approve": autov1alpha1.ApprovalApprove, "reject": autov1alpha1.ApprovalReject} {
		impacts, err := settings.Do(action, stack)
		g.Expect(err).NotTo(HaveOccurred())
		g.Expect(impacts).To(HaveLen(1))
		g.Expect(impacts[0].Operation).To(Equal("create"))
		object := func() client.Object {
			created := &unstructured.Unstructured{Object: impacts[0].Resource}
			created = created.DeepCopy()
			created.SetName(created.GetName() + "-" + action) // both in one second
			return created
		}
		g.Eventually(func() error { return as(g, "alice").Create(t.Context(), object()) }, patience).Should(Satisfy(forbidden), "it is by Argo CD")
		g.Expect(server.Create(t.Context(), object())).To(Succeed())
		created := &autov1alpha1.Approval{}
		g.Expect(admin.Get(t.Context(), client.ObjectKeyFromObject(object()), created)).To(Succeed())
		g.Expect(created.Spec).To(Equal(autov1alpha1.ApprovalSpec{
			Update: "app-1", Digest: digest, Decision: decision, By: "system:serviceaccount:argocd:argocd-server", Reason: "in Argo CD",
		}))
	}
}
