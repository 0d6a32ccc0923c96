package tenancy_test

import (
	"context"
	"testing"

	. "github.com/onsi/gomega"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/stack-controller/stack-controller/tests/cluster"
	"github.com/stack-controller/stack-controller/tests/podstage"
)

// memoryLimit is the memory that the controller has in every installation, in bytes.
const memoryLimit = 512 << 20

// controllerLimits are what the controller must keep to.
type controllerLimits struct {
	t         *testing.T
	pod       types.UID
	container cluster.Container
}

// watchController finds the container of the controller and checks that the kernel enforces the limit of its manifest.
func watchController(ctx context.Context, t *testing.T, g *WithT) *controllerLimits {
	pod := runningController(ctx, g)
	g.Expect(pod.Spec.Containers[0].Resources.Limits.Memory().Value()).To(BeEquivalentTo(memoryLimit))
	l := &controllerLimits{t: t, pod: pod.UID}
	var err error
	l.container, err = cluster.FindContainer(pod, pod.Spec.Containers[0].Name)
	g.Expect(err).NotTo(HaveOccurred())
	limit, _, err := l.container.MemoryLimit()
	g.Expect(err).NotTo(HaveOccurred())
	g.Expect(limit).To(BeEquivalentTo(memoryLimit))
	return l
}

// expectKept checks that the controller is the one that it was, was never started again, and had memory left.
func (l *controllerLimits) expectKept(ctx context.Context, g *WithT) {
	pod := runningController(ctx, g)
	g.Expect(pod.UID).To(Equal(l.pod))
	g.Expect(pod.Status.ContainerStatuses[0].RestartCount).To(BeZero(), "%+v", pod.Status.ContainerStatuses[0].LastTerminationState)
	_, peak, err := l.container.MemoryLimit()
	g.Expect(err).NotTo(HaveOccurred())
	_, anonymous, err := l.container.Memory()
	g.Expect(err).NotTo(HaveOccurred())
	l.t.Logf("memory of the controller: %d MiB at most, with what the kernel can drop; %d MiB in its process now", peak>>20, anonymous>>20)
	g.Expect(anonymous).To(BeNumerically("<", memoryLimit))
}

func runningController(ctx context.Context, g *WithT) *corev1.Pod {
	pods := &corev1.PodList{}
	g.Expect(system.Client.List(ctx, pods, client.InNamespace(cluster.FluxNamespace), client.MatchingLabels{"app": podstage.ControllerName})).To(Succeed())
	g.Expect(pods.Items).To(HaveLen(1))
	g.Expect(pods.Items[0].Status.ContainerStatuses).To(HaveLen(1))
	return &pods.Items[0]
}
