package pods_test

import (
	"context"
	"reflect"
	"testing"
	"time"

	. "github.com/onsi/gomega"
	corev1 "k8s.io/api/core/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	autov1alpha1 "github.com/stack-controller/stack-controller/api/auto/v1alpha1"
	pulumiv1 "github.com/stack-controller/stack-controller/api/pulumi/v1"
	"github.com/stack-controller/stack-controller/tests/cluster"
	"github.com/stack-controller/stack-controller/tests/podstage"
)

// TestRestartedControllerSaysNothingNewAboutTroubles runs alone, before the parallel tests: it replaces the controller.
func TestRestartedControllerSaysNothingNewAboutTroubles(t *testing.T) {
	g := NewWithT(t)
	ctx := t.Context()
	var plays []*play
	for _, what := range []struct {
		name string
		trouble
	}{
		{"restart-quota", trouble{
			provoke: func(ctx context.Context, g *WithT, stack *pulumiv1.Stack) {
				g.Expect(system.Client.Create(ctx, quota(stack.Namespace, corev1.ResourcePods, "0"))).To(Succeed())
			},
			reason: autov1alpha1.QuotaExceededReason,
			heal: func(ctx context.Context, g *WithT, key client.ObjectKey) {
				g.Expect(system.Client.Update(ctx, quota(key.Namespace, corev1.ResourcePods, "1"))).To(Succeed())
			},
		}},
		{"restart-volume", trouble{provoke: mountLateVolume, reason: autov1alpha1.VolumeMountFailedReason, heal: createConfigMap}},
	} {
		plays = append(plays, begin(t, g, what.name, what.trouble))
	}
	for _, p := range plays {
		t.Run(p.app.Name+" is shown", p.expectShown)
	}
	var statuses []any
	g.Eventually(func() bool {
		last := statuses
		statuses = statusesOf(ctx, g, plays)
		return reflect.DeepEqual(last, statuses)
	}).WithContext(ctx).WithTimeout(patience).WithPolling(2*time.Second).Should(BeTrue(), "the troubles do not settle")

	before := leadingController(ctx, g)
	_, err := kubectl(ctx, "rollout", "restart", "deployment/"+podstage.ControllerName, "--namespace="+cluster.FluxNamespace)
	g.Expect(err).NotTo(HaveOccurred())
	eventually(ctx, g, func(g Gomega) { g.Expect(leadingController(ctx, g)).NotTo(Equal(before)) })
	g.Expect(system.AwaitController(ctx)).To(Succeed())
	g.Consistently(func(g Gomega) { g.Expect(statusesOf(ctx, g, plays)).To(Equal(statuses)) }).WithContext(ctx).
		WithTimeout(10 * time.Second).WithPolling(pollInterval).Should(Succeed())
	for _, p := range plays {
		p.end(t, g)
	}
	for _, p := range plays {
		t.Run(p.app.Name+" heals", p.expectHealed)
	}
}

// statusesOf are the statuses of the Stacks and Workspaces.
func statusesOf(ctx context.Context, g Gomega, plays []*play) (statuses []any) {
	for _, p := range plays {
		stack := &pulumiv1.Stack{}
		g.Expect(system.Client.Get(ctx, p.app.Key(), stack)).To(Succeed())
		statuses = append(statuses, stack.Status, workspaceOf(ctx, g, p.app).Status)
	}
	return statuses
}
