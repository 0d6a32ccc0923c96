package pods_test

import (
	"context"
	"testing"

	. "github.com/onsi/gomega"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"

	autov1alpha1 "github.com/stack-controller/stack-controller/api/auto/v1alpha1"
	"github.com/stack-controller/stack-controller/internal/runtime/pod/podspec"
	"github.com/stack-controller/stack-controller/tests/cluster"
	"github.com/stack-controller/stack-controller/tests/podstage"
)

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
	// The agent runs as who the pod says, and nobody but that user and its group may read its key.
	output, err := runInPod(ctx, name, name, "id -u && stat -L -c %a "+podspec.RPCPath+"/tls.key && ! touch "+podspec.RPCPath+"/x 2>/dev/null && grep -E '^(CapEff|NoNewPrivs|Seccomp):' /proc/1/status")
	g.Expect(err).NotTo(HaveOccurred(), output)
	g.Expect(output).To(Equal("1000\n440\nCapEff:\t0000000000000000\nNoNewPrivs:\t1\nSeccomp:\t2\n"))

	controllers := &corev1.PodList{}
	g.Expect(system.Client.List(ctx, controllers, client.InNamespace(cluster.FluxNamespace), client.MatchingLabels{"app": podstage.ControllerName})).To(Succeed())
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

// expectUnprivileged expects what the restricted level asks for, and no more than that.
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

// expectWorkspaceVolumes expects that only the agent has what proves who it is, and that the container which copies the agent
// writes nowhere else.
func expectWorkspaceVolumes(g *WithT, pod *corev1.Pod) {
	bootstrap := pod.Spec.InitContainers[0]
	g.Expect(bootstrap.Name).To(Equal(podspec.BootstrapContainerName))
	g.Expect(ptr.Deref(bootstrap.SecurityContext.ReadOnlyRootFilesystem, false)).To(BeTrue())
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
