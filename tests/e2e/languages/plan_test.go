package languages_test

import (
	"fmt"
	"testing"

	. "github.com/onsi/gomega"
	corev1 "k8s.io/api/core/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/fluxcd/pkg/runtime/conditions"

	autov1alpha1 "github.com/stack-controller/stack-controller/api/auto/v1alpha1"
	pulumiv1 "github.com/stack-controller/stack-controller/api/pulumi/v1"
	"github.com/stack-controller/stack-controller/tests/framework/gitserver"
)

// Pulumi saves a plan of a program in TypeScript, and holds the update to it: of one that creates a resource, and of one that changes it.
func TestPlanOfAProgramInTypeScriptIsCarriedOutWhenItIsApproved(t *testing.T) {
	t.Parallel()
	g, ctx := NewWithT(t), t.Context()
	const name = "plan-typescript"
	program := func(size string) gitserver.Files {
		return gitserver.Files{"index.ts": fmt.Sprintf(`import * as k8s from "@pulumi/kubernetes";
const settings = new k8s.core.v1.ConfigMap("settings", { metadata: { name: "settings", labels: { size: %q } } });
export const size = settings.metadata.apply(metadata => metadata.labels.size);
`, size)}
	}
	app, stack := provide(t, name, project(t, "nginx-typescript", program("small")))
	stack.Spec.Approval = &pulumiv1.ApprovalPolicy{}
	size := func() string {
		settings := &corev1.ConfigMap{}
		err := system.Client.Get(ctx, client.ObjectKey{Namespace: name, Name: "settings"}, settings)
		g.Expect(client.IgnoreNotFound(err)).To(Succeed())
		return settings.Labels["size"]
	}
	g.Expect(system.Client.Create(ctx, stack)).To(Succeed())
	planned := awaitPlan(t, app.Key(), "")
	g.Expect(planned.Status.Plan.Enforce.OrDefault()).To(Equal(autov1alpha1.EnforcePlan))
	g.Expect(size()).To(BeEmpty())
	approve(t, planned)
	ready := awaitApplied(t, app.Key(), planned.Status.Plan.Name)
	g.Expect(output(g, ready, "size")).To(Equal("small"))
	g.Expect(size()).To(Equal("small"))

	sha := push(t, app, program("large"))
	planned = awaitPlan(t, app.Key(), planned.Status.Plan.Name)
	g.Expect(planned.Status.Plan.Summary).To(Equal("+0 ~1 +-0 -0"))
	g.Expect(size()).To(Equal("small"), "nothing is changed without an approval")
	approve(t, planned)
	ready = awaitApplied(t, app.Key(), planned.Status.Plan.Name)
	g.Expect(ready.Status.LastUpdate.State).To(Equal(pulumiv1.StackUpdateSucceeded), ready.Status.LastUpdate.Message)
	g.Expect(ready.Status.LastUpdate.Revision).To(HaveSuffix(sha))
	g.Expect(output(g, ready, "size")).To(Equal("large"))
	g.Expect(size()).To(Equal("large"))
}

// awaitPlan waits until a plan, other than the earlier one, waits for an approval.
func awaitPlan(t *testing.T, key client.ObjectKey, earlier string) *pulumiv1.Stack {
	t.Helper()
	return await(t, key, func(g Gomega, stack *pulumiv1.Stack) {
		g.Expect(stack.Status.Plan).NotTo(BeNil(), "%s", conditions.GetMessage(stack, "Ready"))
		g.Expect(stack.Status.Plan.Name).NotTo(Equal(earlier))
		g.Expect(stack.Status.Plan.State).To(Equal(pulumiv1.PlanPending), "%s", conditions.GetMessage(stack, "Ready"))
	})
}

// awaitApplied waits until the plan is carried out.
func awaitApplied(t *testing.T, key client.ObjectKey, plan string) *pulumiv1.Stack {
	t.Helper()
	return await(t, key, func(g Gomega, stack *pulumiv1.Stack) {
		g.Expect(stack.Status.Plan.Name).To(Equal(plan))
		g.Expect(stack.Status.Plan.State).To(Equal(pulumiv1.PlanApplied), "%s", conditions.GetMessage(stack, "Ready"))
		g.Expect(stack.Status.CurrentUpdate).To(BeNil())
	})
}

// approve approves the plan that waits.
func approve(t *testing.T, stack *pulumiv1.Stack) {
	t.Helper()
	NewWithT(t).Expect(system.Client.Create(t.Context(), &autov1alpha1.Approval{
		Namespace: stack.Namespace, GenerateName: "yes-",
		Spec: autov1alpha1.ApprovalSpec{
			Update: stack.Status.Plan.Name, Digest: stack.Status.Plan.Digest, Decision: autov1alpha1.ApprovalApprove, By: "admin",
		},
	})).To(Succeed())
}
