package pods_test

import (
	"context"
	"fmt"
	"testing"

	. "github.com/onsi/gomega"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/stack-controller/stack-controller/tests/cluster"
)

// connect is a shell command that succeeds when something listens at the address.
func connect(ip string, port int32) string { return fmt.Sprintf("nc -w 3 %s %d </dev/null", ip, port) }

// expectNoWayToSource connects from the pod of a workspace: to the API server, and not to source-controller.
func expectNoWayToSource(t *testing.T, name string) {
	g := NewWithT(t)
	ctx := t.Context()
	source, apiServer := &corev1.Service{}, &corev1.Service{}
	g.Expect(system.Client.Get(ctx, client.ObjectKey{Namespace: cluster.FluxNamespace, Name: "source-controller"}, source)).To(Succeed())
	g.Expect(system.Client.Get(ctx, client.ObjectKey{Namespace: "default", Name: "kubernetes"}, apiServer)).To(Succeed())
	_, err := runInPod(ctx, name, name, connect(apiServer.Spec.ClusterIP, 443))
	g.Expect(err).NotTo(HaveOccurred())
	_, err = runInPod(ctx, name, name, connect(source.Spec.ClusterIP, 80))
	g.Expect(err).To(MatchError(ContainSubstring("exit code 1")))

	// From beside source-controller it can be reached.
	neighbour := &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Namespace: cluster.FluxNamespace, Name: "neighbour"},
		Spec: corev1.PodSpec{
			RestartPolicy: corev1.RestartPolicyNever,
			SecurityContext: &corev1.PodSecurityContext{
				RunAsNonRoot: ptr.To(true), SeccompProfile: &corev1.SeccompProfile{Type: corev1.SeccompProfileTypeRuntimeDefault},
			},
			Containers: []corev1.Container{{
				Name: "ask", Image: system.Images.Busybox.Reference, ImagePullPolicy: corev1.PullIfNotPresent,
				Command: []string{"sh", "-c", connect(source.Spec.ClusterIP, 80)},
				SecurityContext: &corev1.SecurityContext{
					AllowPrivilegeEscalation: ptr.To(false), Capabilities: &corev1.Capabilities{Drop: []corev1.Capability{"ALL"}},
				},
			}},
		},
	}
	g.Expect(system.Client.Create(ctx, neighbour)).To(Succeed())
	t.Cleanup(func() { g.Expect(system.Client.Delete(context.WithoutCancel(ctx), neighbour)).To(Succeed()) })
	eventually(ctx, g, func(g Gomega) {
		g.Expect(system.Client.Get(ctx, client.ObjectKeyFromObject(neighbour), neighbour)).To(Succeed())
		g.Expect(neighbour.Status.Phase).To(Equal(corev1.PodSucceeded))
	})
}
