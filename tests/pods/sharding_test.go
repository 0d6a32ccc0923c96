package pods_test

import (
	"context"
	"strings"
	"testing"

	. "github.com/onsi/gomega"
	appsv1 "k8s.io/api/apps/v1"
	coordinationv1 "k8s.io/api/coordination/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"

	autov1alpha1 "github.com/stack-controller/stack-controller/api/auto/v1alpha1"
	pulumiv1 "github.com/stack-controller/stack-controller/api/pulumi/v1"
	"github.com/stack-controller/stack-controller/tests/cluster"
	"github.com/stack-controller/stack-controller/tests/podstage"
	"github.com/stack-controller/stack-controller/tests/suite"
)

const shardKey = "sharding.fluxcd.io/key"

// TestUpdateInAPodIsTakenOverByTheControllerOfAnotherShard is alone: it replaces the controller, twice. Both controllers see the pod, and
// have the same ServiceAccount.
func TestUpdateInAPodIsTakenOverByTheControllerOfAnotherShard(t *testing.T) {
	suite.Long(t, "two controllers with pods")
	a := deploySleeping(t, "moved", "")
	pod := a.pod()
	main := &appsv1.Deployment{ObjectMeta: metav1.ObjectMeta{Namespace: cluster.FluxNamespace, Name: podstage.ControllerName}}
	a.Expect(system.Client.Get(a.ctx, client.ObjectKeyFromObject(main), main)).To(Succeed())
	args := main.Spec.Template.Spec.Containers[0].Args
	t.Cleanup(func() {
		watchWith(t, a, main, args)
		awaitOneLeader(context.WithoutCancel(t.Context()), a)
	})
	watchWith(t, a, main, append(args[:len(args):len(args)], "--watch-label-selector=!"+shardKey))

	shard := &appsv1.Deployment{ObjectMeta: metav1.ObjectMeta{Namespace: main.Namespace, Name: main.Name + "-shard1"}, Spec: *main.Spec.DeepCopy()}
	own := map[string]string{"app": shard.Name}
	shard.Spec.Selector.MatchLabels, shard.Spec.Template.Labels["app"] = own, shard.Name
	shard.Spec.Template.Spec.Containers[0].Args = append(args[:len(args):len(args)], "--watch-label-selector="+shardKey+"=shard1")
	t.Cleanup(func() { a.Expect(system.Client.Delete(context.WithoutCancel(t.Context()), shard)).To(Succeed()) })
	a.Expect(system.Client.Create(a.ctx, shard)).To(Succeed())
	_, err := kubectl(a.ctx, "rollout", "status", "deployment/"+shard.Name, "--namespace="+shard.Namespace, "--timeout=2m")
	a.Expect(err).NotTo(HaveOccurred())

	running := a.begin(a.untilReleased(), "create start")
	change(a.ctx, a.WithT, a.Key(), func(stack *pulumiv1.Stack) { metav1.SetMetaDataLabel(&stack.ObjectMeta, shardKey, "shard1") })
	eventually(a.ctx, a.WithT, func(g Gomega) {
		workspace := &autov1alpha1.Workspace{}
		g.Expect(system.Client.Get(a.ctx, a.Key(), workspace)).To(Succeed())
		g.Expect(workspace.Labels).To(HaveKeyWithValue(shardKey, "shard1"))
		for _, update := range a.updates(g) {
			g.Expect(update.Labels).To(HaveKeyWithValue(shardKey, "shard1"))
		}
	})
	a.Expect(a.journal("slow")).To(Equal([]string{"create start"}))
	a.Expect(a.pulumiProcesses()).To(Equal(1))
	a.expectUndisturbed(running, pod.UID)

	// Back to the main one, which has nothing of it any more.
	change(a.ctx, a.WithT, a.Key(), func(stack *pulumiv1.Stack) { delete(stack.Labels, shardKey) })
	rollout, err := system.Rollout(a.ctx, a.App, sleepingProgram(a.Name, "seconds: 0.1"))
	a.Expect(err).NotTo(HaveOccurred())
	t.Logf("from the artifact to the success with the main controller: %s", rollout.Duration())
	a.Expect(a.pod().UID).To(Equal(pod.UID))
}

// watchWith replaces the controller by one with these arguments.
func watchWith(t *testing.T, a *sleepingApp, deployment *appsv1.Deployment, args []string) {
	t.Helper()
	ctx := context.WithoutCancel(t.Context())
	eventually(ctx, a.WithT, func(g Gomega) {
		g.Expect(system.Client.Get(ctx, client.ObjectKeyFromObject(deployment), deployment)).To(Succeed())
		deployment.Spec.Template.Spec.Containers[0].Args = args
		g.Expect(system.Client.Update(ctx, deployment)).To(Succeed())
	})
	a.Expect(system.AwaitController(ctx)).To(Succeed())
}

// awaitOneLeader waits until the controllers that are gone have given up their leases, for those who ask who leads.
func awaitOneLeader(ctx context.Context, a *sleepingApp) {
	eventually(ctx, a.WithT, func(g Gomega) {
		leases := &coordinationv1.LeaseList{}
		g.Expect(system.Client.List(ctx, leases, client.InNamespace(cluster.FluxNamespace))).To(Succeed())
		held := 0
		for _, lease := range leases.Items {
			if strings.HasPrefix(ptr.Deref(lease.Spec.HolderIdentity, ""), podstage.ControllerName+"-") {
				held++
			}
		}
		g.Expect(held).To(Equal(1))
	})
}
