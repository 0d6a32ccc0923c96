package tenancy_test

import (
	"context"
	"fmt"
	"os"
	"path/filepath"

	. "github.com/onsi/gomega"
	authorizationv1 "k8s.io/api/authorization/v1"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/stack-controller/stack-controller/tests/stage"
)

// tenantAccount is the ServiceAccount that a tenant works as.
const tenantAccount = "tenant"

// tenant is somebody who administers namespaces.
type tenant struct {
	namespaces []string
	config     *rest.Config
	client     client.WithWatch
	clientset  kubernetes.Interface
}

// giveFluxRoles installs the roles that come with Flux.
func giveFluxRoles(ctx context.Context, g *WithT) {
	roles, err := os.ReadFile(filepath.Join("testdata", "flux-roles.yaml"))
	g.Expect(err).NotTo(HaveOccurred())
	_, err = system.Cluster.KubectlInput(ctx, string(roles), "apply", "--server-side", "--filename=-")
	g.Expect(err).NotTo(HaveOccurred())
}

// newTenant creates the namespaces that do not exist, with the restricted profile, and somebody with a real token who administers them: with
// the role "admin" and what is aggregated to it.
func newTenant(ctx context.Context, g *WithT, namespaces ...string) *tenant {
	t := &tenant{namespaces: namespaces}
	for _, name := range namespaces {
		namespace := &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: name, Labels: system.NamespaceLabels}}
		g.Expect(client.IgnoreAlreadyExists(system.Client.Create(ctx, namespace))).To(Succeed())
		g.Expect(system.Client.Create(ctx, &rbacv1.RoleBinding{
			ObjectMeta: metav1.ObjectMeta{Namespace: name, Name: tenantAccount},
			RoleRef:    rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "ClusterRole", Name: "admin"},
			Subjects:   []rbacv1.Subject{{Kind: rbacv1.ServiceAccountKind, Namespace: namespaces[0], Name: tenantAccount}},
		})).To(Succeed())
	}
	account := &corev1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Namespace: namespaces[0], Name: tenantAccount}}
	g.Expect(system.Client.Create(ctx, account)).To(Succeed())
	var err error
	t.config, err = system.Cluster.ServiceAccountConfig(ctx, namespaces[0], tenantAccount)
	g.Expect(err).NotTo(HaveOccurred())
	t.config.QPS, t.config.Burst = 200, 400 // a tenant does not hold back
	t.client, err = stage.NewClient(t.config)
	g.Expect(err).NotTo(HaveOccurred())
	t.clientset, err = kubernetes.NewForConfig(t.config)
	g.Expect(err).NotTo(HaveOccurred())
	return t
}

// right is what somebody may do with a resource, "group/resource" or "group/resource/subresource".
type right struct{ verb, group, resource, subresource, namespace string }

// expectRights checks what the tenant may do, and what not.
func (t *tenant) expectRights(ctx context.Context, g *WithT, others ...string) {
	own := t.namespaces[0]
	for _, may := range []right{
		{"create", "pulumi.com", "stacks", "", own}, {"create", "auto.pulumi.com", "updates", "", own},
		{"patch", "source.toolkit.fluxcd.io", "gitrepositories", "status", own}, {"get", "", "secrets", "", own}, {"create", "", "pods", "", own},
		{"create", "", "serviceaccounts", "token", own}, {"create", "rbac.authorization.k8s.io", "rolebindings", "", own},
	} {
		g.Eventually(func() (bool, error) { return t.may(ctx, may) }).WithContext(ctx).WithTimeout(patience).WithPolling(pollInterval).
			Should(BeTrue(), fmt.Sprint(may)) // roles are aggregated by a controller
	}
	not := []right{
		{"patch", "pulumi.com", "stacks", "status", own}, {"patch", "auto.pulumi.com", "workspaces", "status", own},
		{"patch", "auto.pulumi.com", "updates", "status", own}, {"update", "pulumi.com", "stacks", "finalizers", own},
		{"use", "auto.pulumi.com", "workspaces", "rpc", own}, {"get", "", "nodes", "", ""}, {"list", "", "namespaces", "", ""},
	}
	for _, other := range append(others, "flux-system") {
		not = append(not, right{"get", "pulumi.com", "stacks", "", other}, right{"get", "", "secrets", "", other},
			right{"get", "", "pods", "log", other}, right{"create", "source.toolkit.fluxcd.io", "gitrepositories", "", other})
	}
	for _, mayNot := range not {
		allowed, err := t.may(ctx, mayNot)
		g.Expect(err).NotTo(HaveOccurred())
		g.Expect(allowed).To(BeFalse(), fmt.Sprint(mayNot))
	}
}

func (t *tenant) may(ctx context.Context, r right) (bool, error) {
	review := &authorizationv1.SelfSubjectAccessReview{Spec: authorizationv1.SelfSubjectAccessReviewSpec{
		ResourceAttributes: &authorizationv1.ResourceAttributes{
			Verb: r.verb, Group: r.group, Resource: r.resource, Subresource: r.subresource, Namespace: r.namespace,
		},
	}}
	answer, err := t.clientset.AuthorizationV1().SelfSubjectAccessReviews().Create(ctx, review, metav1.CreateOptions{})
	if err != nil {
		return false, fmt.Errorf("ask for a right: %w", err)
	}
	return answer.Status.Allowed, nil
}
