package shape

import (
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/validation/field"
	"k8s.io/utils/ptr"

	autov1alpha1 "github.com/stack-controller/stack-controller/api/auto/v1alpha1"
)

// unprivileged is user and group of pods with the restricted profile, as in the pulumi/pulumi:latest-nonroot image.
const unprivileged = 1000

// podSecurity is what the security profile says about the pod as a whole.
// See https://kubernetes.io/docs/concepts/security/pod-security-standards.
func podSecurity(profile autov1alpha1.SecurityProfile) *corev1.PodSecurityContext {
	security := &corev1.PodSecurityContext{
		SeccompProfile: &corev1.SeccompProfile{Type: corev1.SeccompProfileTypeRuntimeDefault},
	}
	if profile == autov1alpha1.SecurityProfileRestricted {
		security.RunAsNonRoot = ptr.To(true)
		security.RunAsUser = ptr.To[int64](unprivileged)
		security.RunAsGroup = ptr.To[int64](unprivileged)
		security.FSGroup = ptr.To[int64](unprivileged)
	}
	return security
}

// restrict adds what the restricted profile wants of every container. What the user says stays, and what contradicts it is
// left out: a privileged container cannot be forbidden to gain privileges.
func restrict(container *corev1.Container) {
	if container.SecurityContext == nil {
		container.SecurityContext = &corev1.SecurityContext{}
	}
	security := container.SecurityContext
	if ptr.Deref(security.Privileged, false) {
		return
	}
	if security.AllowPrivilegeEscalation == nil {
		security.AllowPrivilegeEscalation = ptr.To(false)
	}
	if security.Capabilities == nil {
		security.Capabilities = &corev1.Capabilities{}
	}
	if len(security.Capabilities.Drop) == 0 {
		security.Capabilities.Drop = []corev1.Capability{"ALL"}
	}
}

// checkUsers finds containers that are to run as root and must not: kubelet would never start them.
func checkUsers(profile autov1alpha1.SecurityProfile, custom *corev1.PodSpec, at *field.Path) field.ErrorList {
	var problems field.ErrorList
	isRoot := func(user *int64) bool { return user != nil && *user == 0 }
	refuse := func(at *field.Path) {
		problems = append(problems, field.Forbidden(at.Child("securityContext", "runAsUser"),
			"0 is root, which runAsNonRoot forbids; use another user, or set runAsNonRoot to false beside it, or spec.securityProfile to baseline"))
	}
	pod := ptr.Deref(custom.SecurityContext, corev1.PodSecurityContext{})
	forbidden := ptr.Deref(pod.RunAsNonRoot, profile == autov1alpha1.SecurityProfileRestricted)
	if forbidden && isRoot(pod.RunAsUser) {
		refuse(at)
	}
	containers := func(list string, containers []corev1.Container) {
		for i := range containers {
			own := ptr.Deref(containers[i].SecurityContext, corev1.SecurityContext{})
			if ptr.Deref(own.RunAsNonRoot, forbidden) && isRoot(own.RunAsUser) {
				refuse(at.Child(list).Key(containers[i].Name))
			}
		}
	}
	containers("initContainers", custom.InitContainers)
	containers("containers", custom.Containers)
	return problems
}
