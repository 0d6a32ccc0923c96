package pods_test

import (
	"testing"

	. "github.com/onsi/gomega"
	corev1 "k8s.io/api/core/v1"

	pulumiv1 "github.com/stack-controller/stack-controller/api/pulumi/v1"
)

func TestCommitIsDeployedByTheSamePod(t *testing.T) {
	t.Parallel()
	const name = "commit"
	a := deploySleeping(t, name, "", func(stack *pulumiv1.Stack) { stack.Spec.DestroyOnFinalize = true })
	before := podOf(a.ctx, a, name, name)

	rollout, err := system.Rollout(a.ctx, a.App, sleepingProgram(name, "seconds: 0"))
	a.Expect(err).NotTo(HaveOccurred())
	stack := waitReady(a.ctx, a.WithT, a.App)
	a.Expect(stack.Status.LastUpdate.LastSuccessfulCommit).To(Equal(rollout.Digest))
	a.Expect(a.journal("slow")).To(Equal([]string{"create start", "create end"}))
	after := podOf(a.ctx, a, name, name)
	a.Expect(after.UID).To(Equal(before.UID))
	a.Expect(after.Status.ContainerStatuses[0].RestartCount).To(BeZero())

	a.Expect(system.Client.Delete(a.ctx, stack)).To(Succeed())
	eventually(a.ctx, a.WithT, func(g Gomega) { g.Expect(isGone(a.ctx, stack)).To(BeTrue()) })
	a.Expect(a.journal("slow")).To(Equal([]string{"create start", "create end", "delete start", "delete end"}))
	a.Expect(a.journal("first")).To(Equal([]string{"create start", "create end", "delete start", "delete end"}))
	awaitNone(t, a.WithT, name, &corev1.PodList{})
}
