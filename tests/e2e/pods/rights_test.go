package pods_test

import (
	"context"
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
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"

	autov1alpha1 "github.com/stack-controller/stack-controller/api/auto/v1alpha1"
	"github.com/stack-controller/stack-controller/internal/agentruntime/pod/podspec"
	"github.com/stack-controller/stack-controller/tests/framework/cluster"
	"github.com/stack-controller/stack-controller/tests/framework/podsystem"
)

const (
	controllerUser = "system:serviceaccount:" + cluster.FluxNamespace + ":" + podsystem.ControllerName
	otherNamespace = "default"
)

// controllerGroups are the groups of the controller's ServiceAccount.
var controllerGroups = []string{"system:serviceaccounts", "system:serviceaccounts:" + cluster.FluxNamespace, "system:authenticated"}

// right is a verb and a resource with its subresource and group ("verb resource/subresource.group"), with a name and a namespace, which may
// be empty.
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
		{allowed: true, rights: []right{ // these show that the test asks for rights correctly
			{does: "get secrets", name: "any", namespace: other}, {does: "watch secrets", namespace: other}, {does: "create statefulsets.apps", namespace: other},
			{does: "delete pods", namespace: other}, {does: "list events", namespace: other},
			{does: "use workspaces/rpc.auto.pulumi.com", namespace: other},
			{does: "create serviceaccounts/token", name: podsystem.ControllerName, namespace: flux},
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
			{does: "create serviceaccounts/token", name: podsystem.ControllerName, namespace: other},
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

// review returns an access review that asks for the right.
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
	config, err := system.Cluster.ServiceAccountConfig(t.Context(), cluster.FluxNamespace, podsystem.ControllerName)
	g.Expect(err).NotTo(HaveOccurred())
	client, err := kubernetes.NewForConfig(config)
	g.Expect(err).NotTo(HaveOccurred())
	core := client.CoreV1()
	secret := &corev1.Secret{Name: "x"}
	_, err = core.Secrets(otherNamespace).Update(t.Context(), secret, metav1.UpdateOptions{DryRun: []string{metav1.DryRunAll}})
	g.Expect(apierrors.IsForbidden(err)).To(BeTrue(), "%v", err)
	_, err = core.Pods(otherNamespace).Create(t.Context(), &corev1.Pod{Name: "x"}, metav1.CreateOptions{DryRun: []string{metav1.DryRunAll}})
	g.Expect(apierrors.IsForbidden(err)).To(BeTrue(), "%v", err)
	_, err = core.ServiceAccounts(cluster.FluxNamespace).CreateToken(t.Context(), "source-controller", &authenticationv1.TokenRequest{}, metav1.CreateOptions{})
	g.Expect(apierrors.IsForbidden(err)).To(BeTrue(), "%v", err)
	_, err = core.ServiceAccounts(cluster.FluxNamespace).CreateToken(t.Context(), podsystem.ControllerName, &authenticationv1.TokenRequest{}, metav1.CreateOptions{})
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
	const role = podsystem.ControllerName
	g.Expect(bound).To(Equal(map[string]bool{
		"ClusterRole/" + role: true,
		"Role/" + role + "-leader-election in " + cluster.FluxNamespace: true,
		"Role/" + role + "-token-request in " + cluster.FluxNamespace:   true,
	}))
	// These are the rules that kubectl auth can-i --list shows, including those that every user has.
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
		return subject.Namespace == cluster.FluxNamespace && subject.Name == podsystem.ControllerName
	case rbacv1.UserKind:
		return subject.Name == controllerUser
	}
	// All other groups of the controller contain every ServiceAccount.
	return subject.Name == "system:serviceaccounts:"+cluster.FluxNamespace
}

const (
	enforceLabel = "pod-security.kubernetes.io/enforce"
	// apiTokenPath is where containers have the token of their ServiceAccount.
	apiTokenPath = "/var/run/secrets/kubernetes.io/serviceaccount"
)

func TestPodsHaveNoPrivilegeThatTheyDoNotUse(t *testing.T) {
	t.Parallel()
	g := NewWithT(t)
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	const name = "pod-privileges"
	deploy(ctx, t, g, name, program("one"))

	for _, name := range []string{name, cluster.FluxNamespace} {
		namespace := &corev1.Namespace{}
		g.Expect(system.Client.Get(ctx, client.ObjectKey{Name: name}, namespace)).To(Succeed())
		g.Expect(namespace.Labels).To(HaveKeyWithValue(enforceLabel, "restricted"))
	}
	workspace := podOf(ctx, g, name, name)
	expectUnprivileged(g, workspace)
	expectWorkspaceVolumes(g, workspace)
	// The agent runs as the user in the pod's specification, and only that user and its group can read the agent's key.
	output, err := runInPod(ctx, name, name, "id -u && stat -L -c %a "+podspec.RPCPath+"/tls.key && ! touch "+podspec.RPCPath+"/x 2>/dev/null && grep -E '^(CapEff|NoNewPrivs|Seccomp):' /proc/1/status")
	g.Expect(err).NotTo(HaveOccurred(), output)
	g.Expect(output).To(Equal("1000\n440\nCapEff:\t0000000000000000\nNoNewPrivs:\t1\nSeccomp:\t2\n"))

	controllers := &corev1.PodList{}
	g.Expect(system.Client.List(ctx, controllers, client.InNamespace(cluster.FluxNamespace), client.MatchingLabels{"app": podsystem.ControllerName})).To(Succeed())
	g.Expect(controllers.Items).NotTo(BeEmpty())
	for i := range controllers.Items {
		controller := &controllers.Items[i]
		expectUnprivileged(g, controller)
		g.Expect(controller.Spec.Containers).To(HaveLen(1))
		g.Expect(ptr.Deref(controller.Spec.Containers[0].SecurityContext.ReadOnlyRootFilesystem, false)).To(BeTrue())
		for _, volume := range controller.Spec.Volumes {
			g.Expect(volume.Secret).To(BeNil(), volume.Name)
		}
	}
}

// expectUnprivileged expects that the pod meets the restricted level and has no other privilege.
func expectUnprivileged(g *WithT, pod *corev1.Pod) {
	g.Expect(pod.Spec.HostNetwork || pod.Spec.HostPID || pod.Spec.HostIPC).To(BeFalse())
	g.Expect(ptr.Deref(pod.Spec.ShareProcessNamespace, false)).To(BeFalse())
	for _, volume := range pod.Spec.Volumes {
		g.Expect(volume.HostPath).To(BeNil(), volume.Name)
	}
	whole := ptr.Deref(pod.Spec.SecurityContext, corev1.PodSecurityContext{})
	g.Expect(ptr.Deref(whole.RunAsUser, 1)).NotTo(BeZero())
	for _, container := range append(pod.Spec.InitContainers, pod.Spec.Containers...) {
		security := ptr.Deref(container.SecurityContext, corev1.SecurityContext{})
		g.Expect(ptr.Deref(security.RunAsNonRoot, ptr.Deref(whole.RunAsNonRoot, false))).To(BeTrue(), container.Name)
		g.Expect(ptr.Deref(security.AllowPrivilegeEscalation, true)).To(BeFalse(), container.Name)
		g.Expect(ptr.Deref(security.Privileged, false)).To(BeFalse(), container.Name)
		g.Expect(security.Capabilities).To(Equal(&corev1.Capabilities{Drop: []corev1.Capability{"ALL"}}), container.Name)
		g.Expect(ptr.Deref(security.RunAsUser, 1)).NotTo(BeZero(), container.Name)
		profile := security.SeccompProfile
		if profile == nil {
			profile = whole.SeccompProfile
		}
		g.Expect(profile).To(Equal(&corev1.SeccompProfile{Type: corev1.SeccompProfileTypeRuntimeDefault}), container.Name)
		for _, port := range container.Ports {
			g.Expect(port.HostPort).To(BeZero(), container.Name)
		}
	}
}

// expectWorkspaceVolumes expects that only the agent's container has the key that proves its identity, that the agent cannot be changed in
// the volume that it comes from, and that a container which copies the agent cannot write anywhere else.
func expectWorkspaceVolumes(g *WithT, pod *corev1.Pod) {
	fromImage := slices.ContainsFunc(pod.Spec.Volumes, func(volume corev1.Volume) bool { return volume.Image != nil })
	g.Expect(fromImage).To(Equal(len(pod.Spec.InitContainers) == 0), "there is one way for the agent to get into the pod")
	if !fromImage {
		bootstrap := pod.Spec.InitContainers[0]
		g.Expect(bootstrap.Name).To(Equal(podspec.BootstrapContainerName))
		g.Expect(ptr.Deref(bootstrap.SecurityContext.ReadOnlyRootFilesystem, false)).To(BeTrue())
	}
	for _, container := range append(pod.Spec.InitContainers, pod.Spec.Containers...) {
		for _, mount := range container.VolumeMounts {
			isAgent := container.Name == autov1alpha1.PulumiContainerName
			switch {
			case mount.Name == podspec.RPCVolume:
				g.Expect(isAgent).To(BeTrue(), "%s has the key of the agent", container.Name)
				g.Expect(mount.ReadOnly).To(BeTrue())
			case mount.MountPath == apiTokenPath:
				g.Expect(mount.ReadOnly).To(BeTrue())
			case !isAgent:
				g.Expect(mount.Name).To(Equal(podspec.ShareVolume), container.Name)
			}
		}
	}
}
