package command

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	. "github.com/onsi/gomega"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"

	autov1alpha1 "github.com/stack-controller/stack-controller/api/auto/v1alpha1"
	pulumiv1 "github.com/stack-controller/stack-controller/api/pulumi/v1"
)

// The Stack records the rejection after the command has looked for it once.
func TestRejectionSucceedsWhereItCounts(t *testing.T) {
	const left, waits = "what is left of plan app-1 is rejected", "waiting until the Stack records the decision"
	for name, test := range map[string]struct {
		state, then pulumiv1.PlanState
		recorded    bool
		says, fails string
	}{
		"a plan that waits":              {state: pulumiv1.PlanPending, then: pulumiv1.PlanRejected, recorded: true, says: "plan app-1 is rejected"},
		"one that failed":                {state: pulumiv1.PlanFailed, then: pulumiv1.PlanFailed, recorded: true, says: left},
		"one that was out of date":       {state: pulumiv1.PlanStale, then: pulumiv1.PlanStale, recorded: true, says: left},
		"one that fails meanwhile":       {state: pulumiv1.PlanApproved, then: pulumiv1.PlanFailed, recorded: true, says: left},
		"one that is being carried out":  {state: pulumiv1.PlanApproved, then: pulumiv1.PlanApproved, recorded: true, fails: "is being carried out or was"},
		"one that was carried out":       {state: pulumiv1.PlanApproved, then: pulumiv1.PlanApplied, fails: "is being carried out or was"},
		"one that failed, not recorded":  {state: pulumiv1.PlanFailed, then: pulumiv1.PlanFailed, fails: waits},
		"one that waits, not recorded":   {state: pulumiv1.PlanPending, then: pulumiv1.PlanPending, fails: waits},
		"one that another one follows":   {state: pulumiv1.PlanFailed, says: "plan app-1 is rejected"},
		"one that waits and is replaced": {state: pulumiv1.PlanPending, says: "plan app-1 is rejected"},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				g := NewWithT(t)
				stack := &pulumiv1.Stack{Namespace: "apps", Name: "app"}
				stack.Status.Plan = &pulumiv1.PlanStatus{Name: "app-1", Digest: "sha256:a", UID: "1", State: test.state}
				c, reads := newCluster(stack)
				c.client = interceptor.NewClient(c.client, interceptor.Funcs{
					Get: func(ctx context.Context, caller client.WithWatch, key client.ObjectKey, into client.Object, options ...client.GetOption) error {
						err := caller.Get(ctx, key, into, options...)
						plan := into.(*pulumiv1.Stack).Status.Plan
						switch {
						case *reads == 1:
						case test.then == "":
							plan.Name, plan.UID, plan.Digest = "app-2", "2", "sha256:b"
						default:
							if plan.State = test.then; test.recorded {
								plan.RejectedBy = "bob"
							}
						}
						return err
					},
				})
				s, log := newSession(nil)
				err := s.awaitDecision(t.Context(), c, stack, &autov1alpha1.Approval{Spec: autov1alpha1.ApprovalSpec{
					Update: "app-1", Digest: "sha256:a", Decision: autov1alpha1.ApprovalReject, By: "bob",
				}}, time.Minute)
				if test.fails != "" {
					g.Expect(err).To(MatchError(ContainSubstring(test.fails)))
					return
				}
				g.Expect(err).NotTo(HaveOccurred())
				g.Expect(log.String()).To(ContainSubstring(test.says))
			})
		})
	}
}
