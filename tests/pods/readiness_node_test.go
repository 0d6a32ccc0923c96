package pods_test

import (
	"context"
	"testing"
	"time"

	. "github.com/onsi/gomega"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/fluxcd/pkg/apis/meta"
	"github.com/fluxcd/pkg/runtime/conditions"

	autov1alpha1 "github.com/stack-controller/stack-controller/api/auto/v1alpha1"
	pulumiv1 "github.com/stack-controller/stack-controller/api/pulumi/v1"
)

// The tests of this file run alone, before the parallel ones: they are about the only node.

func TestTaintOfTheNodeIsShownAndItsEndHeals(t *testing.T) {
	g := NewWithT(t)
	taint := func(ctx context.Context, taint string) {
		_, err := kubectl(ctx, "taint", "nodes", "--all", taint)
		g.Expect(err).NotTo(HaveOccurred())
	}
	t.Cleanup(func() {
		_, _ = kubectl(context.WithoutCancel(t.Context()), "taint", "nodes", "--all", "example.com/taken-")
	})
	p := begin(t, g, "node-tainted", trouble{
		provoke: func(ctx context.Context, _ *WithT, _ *pulumiv1.Stack) { taint(ctx, "example.com/taken=yes:NoSchedule") },
		reason:  autov1alpha1.UnschedulableReason,
		says:    []string{"no node takes pod node-tainted-workspace-0", "untolerated taint"},
		heal:    func(ctx context.Context, _ *WithT, _ client.ObjectKey) { taint(ctx, "example.com/taken-") },
	})
	t.Run("is shown", p.expectShown)
	p.end(t, g)
	t.Run("heals", p.expectHealed)
}

func TestNodeThatIsLostIsShownAndItsReturnHeals(t *testing.T) {
	g := NewWithT(t)
	const name = "node-lost"
	ctx, cancel := context.WithTimeout(t.Context(), 2*healingPatience)
	defer cancel()
	app, recorder := deployRecorded(ctx, t, name, func(stack *pulumiv1.Stack) {
		pod := podSpecOf(stack)
		pod.TerminationGracePeriodSeconds = ptr.To[int64](5)
	})
	pod := podOf(ctx, g, name, name)
	findNode := func() {
		bounded, cancel := context.WithTimeout(context.WithoutCancel(t.Context()), patience)
		defer cancel()
		g.Expect(system.Cluster.FindNode(bounded)).To(Succeed())
		g.Expect(system.AwaitController(bounded)).To(Succeed())
	}
	t.Cleanup(findNode)

	begin := time.Now()
	g.Expect(system.Cluster.LoseNode()).To(Succeed())
	eventually(ctx, g, func(g Gomega) {
		ready := conditions.Get(workspaceOf(ctx, g, app), autov1alpha1.WorkspaceReady)
		g.Expect(ready).To(HaveField("Reason", autov1alpha1.NodeLostReason))
		g.Expect(ready.Message).To(Equal("node " + pod.Spec.NodeName + " of pod " + pod.Name + " does not answer"))
	})
	t.Logf("the node's loss is shown after %s", time.Since(begin))
	change(ctx, g, app.Key(), func(stack *pulumiv1.Stack) {
		metav1.SetMetaDataAnnotation(&stack.ObjectMeta, pulumiv1.ReconcileRequestAnnotation, "now")
	})
	// The pod is deleted, which nobody carries out. Kubernetes itself evicts no pods while all nodes are lost.
	g.Expect(system.Client.Delete(ctx, pod)).To(Succeed())
	stack := awaitStack(ctx, g, app.Key(), func(g Gomega, stack *pulumiv1.Stack) {
		g.Expect(conditions.GetReason(stack, meta.ReadyCondition)).To(Equal(pulumiv1.WorkspaceNotReadyReason))
		g.Expect(conditions.GetMessage(stack, meta.ReadyCondition)).To(ContainSubstring("has not ended in time, its node " + pod.Spec.NodeName + " may be gone"))
	})
	t.Logf("after %s: %s", time.Since(begin), conditions.GetMessage(stack, meta.ReadyCondition))

	begin = time.Now()
	findNode()
	t.Logf("the node was ready after %s", time.Since(begin))
	_, err := system.WaitReady(ctx, app)
	g.Expect(err).NotTo(HaveOccurred())
	t.Logf("healed in %s: %v", time.Since(begin), recorder.reasons(autov1alpha1.WorkspaceKind, time.Time{}))
	g.Expect(podOf(ctx, g, name, name).UID).NotTo(Equal(pod.UID))
}
