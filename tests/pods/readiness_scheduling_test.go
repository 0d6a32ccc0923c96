package pods_test

import (
	"context"
	"testing"

	. "github.com/onsi/gomega"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	"sigs.k8s.io/controller-runtime/pkg/client"

	autov1alpha1 "github.com/stack-controller/stack-controller/api/auto/v1alpha1"
	pulumiv1 "github.com/stack-controller/stack-controller/api/pulumi/v1"
	"github.com/stack-controller/stack-controller/tests/podstage"
	"github.com/stack-controller/stack-controller/tests/suite"
)

// lateLabel is a label that the node gets later than the pod asks for it.
const lateLabel = "example.com/late"

func TestTroubleWithTheNodeIsShownAndEndsWithItsCause(t *testing.T) {
	suite.Long(t, "a further state of a pod")
	t.Parallel()
	t.Cleanup(func() {
		_, err := kubectl(context.WithoutCancel(t.Context()), "label", "nodes", "--all", lateLabel+"-")
		NewWithT(t).Expect(err).NotTo(HaveOccurred())
	})
	playTroubles(t, map[string]trouble{
		"no-such-node": {
			provoke: func(_ context.Context, _ *WithT, stack *pulumiv1.Stack) {
				podSpecOf(stack).NodeSelector = map[string]string{lateLabel: "true"}
			},
			reason: autov1alpha1.UnschedulableReason,
			says:   []string{"no node takes pod no-such-node-workspace-0", "didn't match Pod's node affinity/selector"},
			heal: func(ctx context.Context, g *WithT, _ client.ObjectKey) {
				_, err := kubectl(ctx, "label", "nodes", "--all", lateLabel+"=true")
				g.Expect(err).NotTo(HaveOccurred())
			},
		},
		"too-few-processors": {
			provoke: func(_ context.Context, _ *WithT, stack *pulumiv1.Stack) {
				podSpecOf(stack).Containers[0].Resources.Requests = corev1.ResourceList{corev1.ResourceCPU: resource.MustParse("1000")}
			},
			reason: autov1alpha1.UnschedulableReason,
			says:   []string{"no node takes pod too-few-processors-workspace-0", "Insufficient cpu"},
			heal: func(ctx context.Context, g *WithT, key client.ObjectKey) {
				change(ctx, g, key, func(stack *pulumiv1.Stack) { podSpecOf(stack).Containers[0].Resources.Requests = nil })
			},
		},
		"claim-missing": {
			provoke: func(ctx context.Context, g *WithT, stack *pulumiv1.Stack) {
				_, err := kubectl(ctx, "delete", "--namespace="+stack.Namespace, "persistentvolumeclaim", podstage.StateClaim)
				g.Expect(err).NotTo(HaveOccurred())
				_, err = kubectl(ctx, "delete", "persistentvolume", "state-"+stack.Namespace)
				g.Expect(err).NotTo(HaveOccurred())
			},
			reason: autov1alpha1.UnschedulableReason,
			says:   []string{"no node takes pod claim-missing-workspace-0", `persistentvolumeclaim "state" not found`},
			heal: func(ctx context.Context, g *WithT, key client.ObjectKey) {
				g.Expect(system.ClaimState(ctx, key.Namespace)).To(Succeed())
			},
		},
	})
}
