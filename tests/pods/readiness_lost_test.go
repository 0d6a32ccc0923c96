package pods_test

import (
	"context"
	"testing"
	"time"

	. "github.com/onsi/gomega"
	corev1 "k8s.io/api/core/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/fluxcd/pkg/runtime/conditions"

	autov1alpha1 "github.com/stack-controller/stack-controller/api/auto/v1alpha1"
	pulumiv1 "github.com/stack-controller/stack-controller/api/pulumi/v1"
	"github.com/stack-controller/stack-controller/tests/stage"
	"github.com/stack-controller/stack-controller/tests/suite"
)

// atOnce is how long it may take until a Workspace whose pod went says so. It takes a moment on a quiet machine.
const atOnce = 5 * time.Second

func TestWorkspaceIsNotReadyAtOnceWhenItsPodGoesAndReadyWithTheNext(t *testing.T) {
	suite.Long(t, "a further state of a pod")
	t.Parallel()
	for name, test := range map[string]struct {
		end     func(ctx context.Context, g *WithT, pod *corev1.Pod)
		reason  string
		samePod bool
	}{
		"idle-pod-deleted": {
			end: func(ctx context.Context, g *WithT, pod *corev1.Pod) {
				g.Expect(system.Client.Delete(ctx, pod)).To(Succeed())
			},
			reason: autov1alpha1.PodTerminatingReason,
		},
		"idle-container-killed": {
			end: func(ctx context.Context, g *WithT, pod *corev1.Pod) {
				g.Expect(system.Cluster.KillContainer(ctx, pod.Status.ContainerStatuses[0].ContainerID)).To(Succeed())
			},
			reason:  autov1alpha1.CrashLoopBackOffReason,
			samePod: true,
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			g := NewWithT(t)
			ctx, cancel := context.WithTimeout(t.Context(), healingPatience)
			defer cancel()
			app, recorder := deployRecorded(ctx, t, name)
			before := podOf(ctx, g, name, name)

			begin := time.Now()
			test.end(ctx, g, before)
			eventually(ctx, g, func(g Gomega) {
				g.Expect(recorder.when(autov1alpha1.WorkspaceKind, "True", begin)).NotTo(BeZero(), "%v", recorder.reasons(autov1alpha1.WorkspaceKind, begin))
			})
			lowered, raised := recorder.when(autov1alpha1.WorkspaceKind, "False", begin), recorder.when(autov1alpha1.WorkspaceKind, "True", begin)
			t.Logf("%s: not ready after %s, ready after %s: %v", name, lowered.Sub(begin), raised.Sub(begin), recorder.reasons(autov1alpha1.WorkspaceKind, begin))
			g.Expect(lowered.Sub(begin)).To(BeNumerically("<", atOnce))
			g.Expect(recorder.reasons(autov1alpha1.WorkspaceKind, begin)).To(ContainElement("False " + test.reason))
			g.Expect(recorder.reasons(pulumiv1.StackKind, begin)).To(BeEmpty(), "the Stack needs no pod")
			g.Expect(podOf(ctx, g, name, name).UID == before.UID).To(Equal(test.samePod))

			_, err := system.Rollout(ctx, app, programWith(name, "two"))
			g.Expect(err).NotTo(HaveOccurred())
		})
	}
}

// deployRecorded deploys an app and returns when it is ready.
func deployRecorded(ctx context.Context, t *testing.T, name string, changes ...func(*pulumiv1.Stack)) (*stage.App, *recorder) {
	t.Helper()
	g := NewWithT(t)
	checkStatuses(t, name)
	recorder := record(t, g, name)
	app := deploy(ctx, t, g, name, programWith(name, "one"), changes...)
	eventually(ctx, g, func(g Gomega) { g.Expect(recorder.readySince(time.Time{})).NotTo(BeZero()) })
	return app, recorder
}

// awaitReadyWorkspace waits until the Workspace is ready, in the pod that is there.
func awaitReadyWorkspace(ctx context.Context, g *WithT, key client.ObjectKey) {
	eventually(ctx, g, func(g Gomega) {
		workspace := &autov1alpha1.Workspace{}
		g.Expect(system.Client.Get(ctx, key, workspace)).To(Succeed())
		g.Expect(conditions.IsReady(workspace)).To(BeTrue(), "%+v", workspace.Status.Conditions)
		pod := podOf(ctx, g, key.Namespace, key.Name)
		g.Expect(pod.DeletionTimestamp).To(BeNil())
		g.Expect(pulumiOf(pod).Ready).To(BeTrue())
	})
}
