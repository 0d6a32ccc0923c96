package pods_test

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	. "github.com/onsi/gomega"
	authenticationv1 "k8s.io/api/authentication/v1"
	authorizationv1 "k8s.io/api/authorization/v1"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"

	"github.com/stack-controller/stack-controller/tests/cluster"
	"github.com/stack-controller/stack-controller/tests/podstage"
)

const (
	controllerUser = "system:serviceaccount:" + cluster.FluxNamespace + ":" + podstage.ControllerName
	otherNamespace = "default"
)

// controllerGroups are the groups of the controller's ServiceAccount.
var controllerGroups = []string{"system:serviceaccounts", "system:serviceaccounts:" + cluster.FluxNamespace, "system:authenticated"}

// right is a verb, a resource with its subresource and group ("verb resource/subresource.group"), and a name and a namespace,
// which may be empty.
type right struct{ does, name, namespace string }

func TestControllerMayDoNothingThatItDoesNotNeed(t *testing.T) {
	t.Parallel()
	g := NewWithT(t)
	client, err := kubernetes.NewForConfig(system.Cluster.UserConfig(controllerUser, controllerGroups...))
	g.Expect(err).NotTo(HaveOccurred())
	const flux, other = cluster.FluxNamespace, otherNamespace
	for _, test := range []struct {
		allowed bool
		rights  []right
	}{
		{allowed: true, rights: []right{ // so that a test which asks wrongly is noticed
			{does: "get secrets", name: "any", namespace: other}, {does: "watch secrets", namespace: other}, {does: "create statefulsets.apps", namespace: other},
			{does: "delete pods", namespace: other}, {does: "list events", namespace: other},
			{does: "use workspaces/rpc.auto.pulumi.com", namespace: other},
			{does: "create serviceaccounts/token", name: podstage.ControllerName, namespace: flux},
		}},
		{rights: []right{
			{does: "update secrets", namespace: other}, {does: "patch secrets", namespace: other}, {does: "delete secrets", namespace: other},
			{does: "update configmaps", namespace: other}, {does: "patch configmaps", namespace: other}, {does: "delete configmaps", namespace: other},
			{does: "get pods", namespace: other}, {does: "create pods", namespace: other}, {does: "create pods", namespace: flux}, {does: "update pods", namespace: other}, {does: "patch pods", namespace: other},
			{does: "create pods/exec", namespace: other}, {does: "create pods/attach", namespace: other}, {does: "create pods/portforward", namespace: other},
			{does: "create pods/ephemeralcontainers", namespace: other}, {does: "get pods/log", namespace: other},
			{does: "create pods/eviction", namespace: other},
			{does: "create deployments.apps", namespace: other}, {does: "create daemonsets.apps", namespace: other}, {does: "create jobs.batch", namespace: other},
			{does: "delete statefulsets.apps", namespace: other}, {does: "delete services", namespace: other},
			{does: "create serviceaccounts/token", name: "default", namespace: other},
			{does: "create serviceaccounts/token", name: podstage.ControllerName, namespace: other},
			{does: "create serviceaccounts/token", name: "source-controller", namespace: flux},
			{does: "create serviceaccounts", namespace: other}, {does: "get serviceaccounts", namespace: other},
			{does: "get nodes"}, {does: "list nodes"}, {does: "get nodes/proxy"}, {does: "list namespaces"}, {does: "get persistentvolumes"},
			{does: "create roles.rbac.authorization.k8s.io", namespace: other}, {does: "create rolebindings.rbac.authorization.k8s.io", namespace: other},
			{does: "create clusterrolebindings.rbac.authorization.k8s.io"}, {does: "update clusterroles.rbac.authorization.k8s.io"},
			{does: "bind clusterroles.rbac.authorization.k8s.io", name: "cluster-admin"}, {does: "escalate clusterroles.rbac.authorization.k8s.io"},
			{does: "impersonate users"}, {does: "impersonate groups"}, {does: "impersonate serviceaccounts", namespace: other},
			{does: "approve signers.certificates.k8s.io"}, {does: "create certificatesigningrequests.certificates.k8s.io"},
			{does: "create tokenreviews.authentication.k8s.io"}, {does: "create subjectaccessreviews.authorization.k8s.io"},
			{does: "create mutatingwebhookconfigurations.admissionregistration.k8s.io"}, {does: "update customresourcedefinitions.apiextensions.k8s.io"},
			{does: "create stacks.pulumi.com", namespace: other}, {does: "delete stacks.pulumi.com", namespace: other},
			{does: "patch gitrepositories.source.toolkit.fluxcd.io", namespace: other},
			{does: "get leases.coordination.k8s.io", namespace: other},
		}},
	} {
		for _, asked := range test.rights {
			review, err := client.AuthorizationV1().SelfSubjectAccessReviews().Create(t.Context(), asked.review(), metav1.CreateOptions{})
			g.Expect(err).NotTo(HaveOccurred())
			g.Expect(review.Status.Allowed).To(Equal(test.allowed), "%+v", asked)
		}
	}
}

// review asks for the right.
func (r right) review() *authorizationv1.SelfSubjectAccessReview {
	verb, what, _ := strings.Cut(r.does, " ")
	path, group, _ := strings.Cut(what, ".")
	resource, subresource, _ := strings.Cut(path, "/")
	return &authorizationv1.SelfSubjectAccessReview{Spec: authorizationv1.SelfSubjectAccessReviewSpec{ResourceAttributes: &authorizationv1.ResourceAttributes{
		Verb: verb, Group: group, Resource: resource, Subresource: subresource, Name: r.name, Namespace: r.namespace,
	}}}
}

func TestAPIServerRefusesTheControllerWhatItMayNot(t *testing.T) {
	t.Parallel()
	g := NewWithT(t)
	config, err := system.Cluster.ServiceAccountConfig(t.Context(), cluster.FluxNamespace, podstage.ControllerName)
	g.Expect(err).NotTo(HaveOccurred())
	client, err := kubernetes.NewForConfig(config)
	g.Expect(err).NotTo(HaveOccurred())
	core := client.CoreV1()
	secret := &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Name: "x"}}
	_, err = core.Secrets(otherNamespace).Update(t.Context(), secret, metav1.UpdateOptions{DryRun: []string{metav1.DryRunAll}})
	g.Expect(apierrors.IsForbidden(err)).To(BeTrue(), "%v", err)
	_, err = core.Pods(otherNamespace).Create(t.Context(), &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: "x"}}, metav1.CreateOptions{DryRun: []string{metav1.DryRunAll}})
	g.Expect(apierrors.IsForbidden(err)).To(BeTrue(), "%v", err)
	_, err = core.ServiceAccounts(cluster.FluxNamespace).CreateToken(t.Context(), "source-controller", &authenticationv1.TokenRequest{}, metav1.CreateOptions{})
	g.Expect(apierrors.IsForbidden(err)).To(BeTrue(), "%v", err)
	_, err = core.ServiceAccounts(cluster.FluxNamespace).CreateToken(t.Context(), podstage.ControllerName, &authenticationv1.TokenRequest{}, metav1.CreateOptions{})
	g.Expect(err).NotTo(HaveOccurred())
}

func TestRulesOfTheControllerHaveNoWildcard(t *testing.T) {
	t.Parallel()
	g := NewWithT(t)
	roles, clusterRoles := &rbacv1.RoleBindingList{}, &rbacv1.ClusterRoleBindingList{}
	g.Expect(system.Client.List(t.Context(), roles)).To(Succeed())
	g.Expect(system.Client.List(t.Context(), clusterRoles)).To(Succeed())
	bound := map[string]bool{}
	for _, binding := range roles.Items {
		if slices.ContainsFunc(binding.Subjects, isController) {
			bound[binding.RoleRef.Kind+"/"+binding.RoleRef.Name+" in "+binding.Namespace] = true
		}
	}
	for _, binding := range clusterRoles.Items {
		if slices.ContainsFunc(binding.Subjects, isController) {
			bound[binding.RoleRef.Kind+"/"+binding.RoleRef.Name] = true
		}
	}
	const role = podstage.ControllerName
	g.Expect(bound).To(Equal(map[string]bool{
		"ClusterRole/" + role: true,
		"Role/" + role + "-leader-election in " + cluster.FluxNamespace: true,
		"Role/" + role + "-token-request in " + cluster.FluxNamespace:   true,
	}))
	// As kubectl auth can-i --list shows them, with those that everybody has.
	client, err := kubernetes.NewForConfig(system.Cluster.UserConfig(controllerUser, controllerGroups...))
	g.Expect(err).NotTo(HaveOccurred())
	for _, namespace := range []string{cluster.FluxNamespace, otherNamespace} {
		review, err := client.AuthorizationV1().SelfSubjectRulesReviews().Create(t.Context(),
			&authorizationv1.SelfSubjectRulesReview{Spec: authorizationv1.SelfSubjectRulesReviewSpec{Namespace: namespace}}, metav1.CreateOptions{})
		g.Expect(err).NotTo(HaveOccurred())
		g.Expect(review.Status.Incomplete).To(BeFalse())
		g.Expect(len(review.Status.ResourceRules)).To(BeNumerically(">", 5))
		for _, rule := range review.Status.ResourceRules {
			g.Expect(slices.Concat(rule.Verbs, rule.APIGroups, rule.Resources)).NotTo(ContainElement("*"), fmt.Sprint(rule))
			g.Expect(rule.Verbs).NotTo(ContainElement(BeElementOf("escalate", "bind", "impersonate", "deletecollection")), fmt.Sprint(rule))
		}
	}
}

func isController(subject rbacv1.Subject) bool {
	switch subject.Kind {
	case rbacv1.ServiceAccountKind:
		return subject.Namespace == cluster.FluxNamespace && subject.Name == podstage.ControllerName
	case rbacv1.UserKind:
		return subject.Name == controllerUser
	}
	// Every ServiceAccount is in the other groups.
	return subject.Name == "system:serviceaccounts:"+cluster.FluxNamespace
}
