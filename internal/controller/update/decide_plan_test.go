package update

import (
	"testing"
	"time"

	. "github.com/onsi/gomega"
	"google.golang.org/protobuf/types/known/timestamppb"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	autov1alpha1 "github.com/stack-controller/stack-controller/api/auto/v1alpha1"
	"github.com/stack-controller/stack-controller/internal/agent/agentpb"
	"github.com/stack-controller/stack-controller/internal/agent/client"
)

// planDeliveryFails makes the agent ask for a plan whose last delivery ended with the error.
func planDeliveryFails(err error) func(*observation) {
	return func(o *observation) {
		o.plan.saved = &autov1alpha1.SavedPlan{FileDigest: "sha256:f"}
		o.startError, o.delivery = client.ErrPlanMissing, delivery{digest: "sha256:f", err: err}
	}
}

func TestPlanIsOnlyCarriedOutByAnUpdateThatItIsFor(t *testing.T) {
	saved := func() *autov1alpha1.Update {
		plan := &autov1alpha1.Update{
			Name: "plan",
			Spec: autov1alpha1.UpdateSpec{
				WorkspaceName: "app", StackName: "dev", Type: autov1alpha1.UpdateTypePreview, SavePlan: new(true),
			},
			Status: autov1alpha1.UpdateStatus{Plan: &autov1alpha1.SavedPlan{
				ChangesDigest: "sha256:c", StateDigest: "sha256:s", FileDigest: "sha256:f", TextDigest: "sha256:t", StoredSize: 5,
			}},
		}
		plan.Status.Plan.Digest = plan.Status.Plan.CalculateDigest()
		markSucceeded(plan, testTime, "done")
		return plan
	}
	for name, tt := range map[string]struct {
		change func(update, plan *autov1alpha1.Update)
		reason string
	}{
		"the same":               {func(*autov1alpha1.Update, *autov1alpha1.Update) {}, ""},
		"is being deleted":       {func(_, plan *autov1alpha1.Update) { plan.DeletionTimestamp = &metav1.Time{Time: testTime} }, autov1alpha1.PlanStaleReason},
		"failed":                 {func(_, plan *autov1alpha1.Update) { markFailed(plan, "x", testTime, "x") }, autov1alpha1.PlanStaleReason},
		"not done":               {func(_, plan *autov1alpha1.Update) { plan.Status.Conditions = nil }, autov1alpha1.PlanStaleReason},
		"saves none":             {func(_, plan *autov1alpha1.Update) { plan.Spec.SavePlan = nil }, autov1alpha1.PlanStaleReason},
		"has none":               {func(_, plan *autov1alpha1.Update) { plan.Status.Plan = nil }, autov1alpha1.PlanStaleReason},
		"another digest":         {func(update, _ *autov1alpha1.Update) { update.Spec.Plan.Digest = "sha256:x" }, autov1alpha1.PlanStaleReason},
		"a digest that was made": {func(_, plan *autov1alpha1.Update) { plan.Status.Plan.StateDigest = "sha256:x" }, autov1alpha1.PlanStaleReason},
		"another file":           {func(_, plan *autov1alpha1.Update) { plan.Status.Plan.FileDigest = "sha256:x" }, autov1alpha1.PlanStaleReason},
		"another text":           {func(_, plan *autov1alpha1.Update) { plan.Status.Plan.TextDigest = "sha256:x" }, autov1alpha1.PlanStaleReason},
		"another type":           {func(update, _ *autov1alpha1.Update) { update.Spec.Type = autov1alpha1.UpdateTypeDestroy }, autov1alpha1.PlanStaleReason},
		"another stack":          {func(_, plan *autov1alpha1.Update) { plan.Spec.StackName = "prod" }, autov1alpha1.PlanStaleReason},
		"another workspace":      {func(_, plan *autov1alpha1.Update) { plan.Spec.WorkspaceName = "other" }, autov1alpha1.PlanStaleReason},
		"without a file":         {func(_, plan *autov1alpha1.Update) { plan.Status.Plan.StoredSize = 0 }, autov1alpha1.ConfigInvalidReason},
		"of a forged size":       {func(_, plan *autov1alpha1.Update) { plan.Status.Plan.StoredSize = 1 << 40 }, autov1alpha1.PlanStaleReason},
		"without a file, which nobody needs": {func(update, plan *autov1alpha1.Update) {
			plan.Status.Plan.StoredSize, update.Spec.Plan.Enforce = 0, autov1alpha1.EnforceInputs
		}, ""},
	} {
		t.Run(name, func(t *testing.T) {
			g := NewWithT(t)
			plan, update := saved(), ready().update
			update.Spec.Plan = &autov1alpha1.PlanReference{Name: plan.Name, Digest: plan.Status.Plan.Digest}
			tt.change(update, plan)
			problem := comparePlan(update, plan)
			if tt.reason == "" {
				g.Expect(problem).To(BeNil())
				return
			}
			g.Expect(problem.reason).To(Equal(tt.reason))
			d := decide(ready(func(o *observation) { o.plan.problem = problem }))
			g.Expect(d.action).To(Equal(actionFinish))
			g.Expect(d.reason).To(Equal(tt.reason))
			g.Expect(d.message).To(ContainSubstring("nothing was changed"))
		})
	}
}

func TestPlanThatCannotBeStoredIsGivenUpInTheEnd(t *testing.T) {
	g := NewWithT(t)
	look := func(ago time.Duration, last storedPlan) decision {
		return decide(ready(started, func(o *observation) {
			o.update.Spec.SavePlan = new(true)
			o.agent.operation = &agentpb.Operation{
				State: agentpb.OperationState_OPERATION_STATE_SUCCEEDED, Plan: &agentpb.Plan{}, EndTime: timestamppb.New(testTime.Add(-ago)),
			}
			o.stored = last
		}))
	}
	g.Expect(look(0, storedPlan{}).action).To(Equal(actionStorePlan))
	g.Expect(look(time.Minute, storedPlan{err: client.ErrUnavailable, at: testTime.Add(-time.Hour)}).action).To(Equal(actionStorePlan))
	waits := look(time.Minute, storedPlan{err: client.ErrUnavailable, at: testTime})
	g.Expect(waits.action).To(Equal(actionWait))
	g.Expect(waits.after).To(BeNumerically(">", 0))
	givesUp := look(storeTimeout+time.Second, storedPlan{err: client.ErrUnavailable, at: testTime})
	g.Expect(givesUp.action).To(Equal(actionFinish))
	g.Expect(givesUp.reason).To(Equal(autov1alpha1.UpdateFailedReason))
}
