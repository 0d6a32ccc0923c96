package plans

import (
	"testing"
	"time"

	. "github.com/onsi/gomega"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/fluxcd/pkg/runtime/conditions"

	autov1alpha1 "github.com/stack-controller/stack-controller/api/auto/v1alpha1"
	pulumiv1 "github.com/stack-controller/stack-controller/api/pulumi/v1"
)

var now = time.Date(2026, 10, 1, 12, 0, 0, 0, time.UTC)

// at returns a time that is so much later than now.
func at(after time.Duration) *metav1.Time { return new(metav1.NewTime(now.Add(after))) }

var (
	states = []pulumiv1.PlanState{
		pulumiv1.PlanPending, pulumiv1.PlanApproved, pulumiv1.PlanRejected, pulumiv1.PlanExpired, pulumiv1.PlanSuperseded, pulumiv1.PlanStale,
		pulumiv1.PlanApplied, pulumiv1.PlanFailed, "a state of a later version",
	}
	policies = []*pulumiv1.ApprovalPolicy{
		nil, {}, {Enforce: autov1alpha1.EnforceInputs}, {Require: pulumiv1.ApprovalDestructive},
		{Operations: []pulumiv1.ApprovedOperation{pulumiv1.ApprovedDestroy}},
	}
	references = []*Reference{
		nil, {}, {Name: "plan", Digest: "sha256:a"}, {Name: "plan", Digest: "sha256:b"}, {Name: "other", Digest: "sha256:a"},
		{Name: "plan", Digest: "sha256:a", UID: "1"}, {Name: "plan", Digest: "sha256:a", UID: "2"},
		{Name: "plan", Digest: "sha256:a", Enforce: autov1alpha1.EnforcePlan}, {Name: "plan", Digest: "sha256:a", Enforce: autov1alpha1.EnforceInputs},
	}
)

// eachPlan calls try with every combination of what can be in the status of a plan.
func eachPlan(try func(plan pulumiv1.PlanStatus)) {
	for _, state := range states {
		for _, rejectedBy := range []string{"", "bob"} {
			for _, cause := range []pulumiv1.PlanCause{pulumiv1.PlanForChange, pulumiv1.PlanForResync} {
				for _, expiry := range []*metav1.Time{nil, at(-time.Second), at(0), at(time.Hour)} {
					for _, enforce := range []autov1alpha1.PlanEnforcement{"", autov1alpha1.EnforcePlan, autov1alpha1.EnforceInputs} {
						for _, approvals := range [][]pulumiv1.PlanApproval{nil, {{By: "alice"}}} {
							try(pulumiv1.PlanStatus{
								Name: "plan", Digest: "sha256:a", UID: "1", State: state, RejectedBy: rejectedBy, Cause: cause, ExpiresAt: expiry,
								Enforce: enforce, Approvals: approvals, Operation: pulumiv1.ApprovedUp, Changes: 1, Destructive: 1,
							})
						}
					}
				}
			}
		}
	}
}

func TestEveryPlanIsJudged(t *testing.T) {
	g := NewWithT(t)
	g.Expect(Judge(Case{Now: now}).State).To(Equal(Missing))
	seen := map[State]int{}
	eachPlan(func(plan pulumiv1.PlanStatus) {
		for _, policy := range policies {
			for _, reference := range references {
				for _, changed := range []string{"", "New commit detected"} {
					c := Case{Plan: &plan, Policy: policy, Reference: reference, Changed: changed, Now: now}
					verdict := Judge(c)
					seen[verdict.State]++
					named := reference == nil || reference.Name == plan.Name && reference.Digest == plan.Digest && reference.UID != "2"
					rejected := plan.RejectedBy != "" || plan.State == pulumiv1.PlanRejected
					for promise, kept := range map[string]bool{
						"whatever is not approved has a reason":      (verdict.Problem == "") == (verdict.State == Approved),
						"another plan is missing":                    named || verdict.State == Missing,
						"nothing runs that was not approved":         verdict.State != Approved || plan.State == pulumiv1.PlanApproved,
						"nothing runs that was rejected":             verdict.State != Approved || !rejected,
						"nothing runs too late":                      verdict.State != Approved || plan.ExpiresAt == nil || now.Before(plan.ExpiresAt.Time),
						"nothing runs that is not asked for":         verdict.State != Approved || changed == "",
						"nothing runs that is checked in less depth": verdict.State != Approved || reference == nil || reference.Enforce == "" || reference.Enforce == plan.Enforce.OrDefault(),
						"nothing runs with another policy":           verdict.State != Approved || policy == nil || policy.Enforce.OrDefault() == plan.Enforce.OrDefault(),
						"nobody waits for what no approval changes":  verdict.State != Pending && verdict.State != Rejected || isOpen(&plan),
						"nobody decides about what is over":          verdict.State != Pending || plan.State != pulumiv1.PlanApplied && plan.State != pulumiv1.PlanFailed && plan.State != pulumiv1.PlanSuperseded,
						"a rejection of a change does not expire":    verdict.State != Expired || plan.RejectedBy == "" || plan.Cause != pulumiv1.PlanForChange || plan.State == pulumiv1.PlanExpired,
					} {
						if !kept {
							t.Errorf("%s: plan %+v, case %+v: %+v", promise, plan, c, verdict)
						}
					}
				}
			}
		}
	})
	for _, state := range []State{Missing, Closed, Changed, Stale, Expired, Rejected, Pending, Approved} {
		g.Expect(seen[state]).NotTo(BeZero(), string(state))
	}
}

// approval returns an Approval of the plan that was accepted.
func approval(by string, decision autov1alpha1.ApprovalDecision, change func(*autov1alpha1.Approval)) autov1alpha1.Approval {
	a := autov1alpha1.Approval{Name: by, Spec: autov1alpha1.ApprovalSpec{Update: "plan", Digest: "sha256:a", Decision: decision, By: by}}
	a.Status.Conditions = []metav1.Condition{{Type: autov1alpha1.ApprovalAccepted, Status: metav1.ConditionTrue}}
	if change != nil {
		change(&a)
	}
	return a
}

func TestEveryPlanFollowsItsApprovals(t *testing.T) {
	g := NewWithT(t)
	approves, rejects := autov1alpha1.ApprovalApprove, autov1alpha1.ApprovalReject
	sets := map[string][]autov1alpha1.Approval{
		"none":       nil,
		"approved":   {approval("carol", approves, nil)},
		"rejected":   {approval("dave", rejects, nil)},
		"both":       {approval("carol", approves, nil), approval("dave", rejects, nil)},
		"of another": {approval("carol", approves, func(a *autov1alpha1.Approval) { a.Spec.Digest = "sha256:b" })},
		"not judged": {approval("carol", approves, func(a *autov1alpha1.Approval) { a.Status.Conditions = nil })},
		"refused":    {approval("dave", rejects, func(a *autov1alpha1.Approval) { a.Status.Conditions[0].Status = metav1.ConditionFalse })},
	}
	seen := map[pulumiv1.PlanState]int{}
	eachPlan(func(plan pulumiv1.PlanStatus) {
		for _, policy := range policies {
			for name, approvals := range sets {
				for _, running := range []bool{false, true} {
					for _, unwanted := range []bool{false, true} {
						before := plan.DeepCopy()
						s := Situation{Policy: policy, Approvals: approvals, Running: running, Unwanted: unwanted, Now: now}
						next := Next(plan, s)
						if IsMadeAgain(&plan) {
							g.Expect(next.RejectedBy != "").To(Equal(plan.RejectedBy != "" || name == "rejected" || name == "both"))
							next.RejectedBy = plan.RejectedBy
						}
						if !isOpen(&plan) {
							g.Expect(next).To(Equal(plan))
							continue
						}
						seen[next.State]++
						rejected := plan.RejectedBy != "" || name == "rejected" || name == "both"
						for promise, kept := range map[string]bool{
							"the plan that is given stays":         plan.RejectedBy == before.RejectedBy && len(plan.Approvals) == len(before.Approvals) && plan.State == before.State,
							"approved are only what may be":        running || next.State != pulumiv1.PlanApproved || len(next.Approvals) > 0 || NeedsNoApproval(policy, &plan) != "",
							"a rejection wins":                     running || next.State != pulumiv1.PlanApproved || !rejected,
							"a rejection is never lost":            !running || !rejected || next.RejectedBy != "",
							"the state stays while an update runs": !running || next.State == plan.State,
							"only the right approvals are taken":   len(next.Approvals) <= len(plan.Approvals) || (name == "approved" || name == "both") && !running,
							"what nobody wants is over":            running || policy != nil && !unwanted || next.State == pulumiv1.PlanSuperseded,
						} {
							if !kept {
								t.Errorf("%s: plan %+v, %s, %+v: %+v", promise, plan, name, s, next)
							}
						}
						g.Expect(Next(next, s)).To(Equal(next), "nothing changes when the same is seen again")
					}
				}
			}
		}
	})
	for _, state := range []pulumiv1.PlanState{pulumiv1.PlanPending, pulumiv1.PlanApproved, pulumiv1.PlanRejected, pulumiv1.PlanExpired, pulumiv1.PlanSuperseded} {
		g.Expect(seen[state]).NotTo(BeZero(), string(state))
	}
}

func TestApprovalsInTheStatusAreBounded(t *testing.T) {
	g := NewWithT(t)
	var approvals []autov1alpha1.Approval
	for i := range 3 * MaxApprovals {
		approvals = append(approvals, approval(string(rune('a'+i)), autov1alpha1.ApprovalApprove, nil))
	}
	plan := pulumiv1.PlanStatus{Name: "plan", Digest: "sha256:a", UID: "1", State: pulumiv1.PlanPending, Changes: 1}
	g.Expect(Next(plan, Situation{Policy: &pulumiv1.ApprovalPolicy{}, Approvals: approvals, Now: now}).Approvals).To(HaveLen(MaxApprovals))
}

func TestOnlyAPlanThatWasSavedIsOne(t *testing.T) {
	saved := func(change func(*autov1alpha1.Update)) *autov1alpha1.Update {
		update := &autov1alpha1.Update{Name: "plan", UID: types.UID("1")}
		update.Spec.Type, update.Spec.SavePlan = autov1alpha1.UpdateTypePreview, new(true)
		update.Status.Plan = &autov1alpha1.SavedPlan{ChangesDigest: "sha256:c"}
		update.Status.Plan.Digest = update.Status.Plan.CalculateDigest()
		conditions.MarkTrue(update, autov1alpha1.UpdateComplete, autov1alpha1.UpdateSucceededReason, "")
		if change != nil {
			change(update)
		}
		return update
	}
	wanted := saved(nil).Status.Plan.Digest
	for name, test := range map[string]struct {
		change func(*autov1alpha1.Update)
		want   State
	}{
		"a plan":                       {nil, Approved},
		"an Update that makes none":    {func(u *autov1alpha1.Update) { u.Spec.SavePlan = nil }, Missing},
		"one that has not ended":       {func(u *autov1alpha1.Update) { u.Status.Conditions = nil }, Missing},
		"one that failed":              {func(u *autov1alpha1.Update) { conditions.MarkTrue(u, autov1alpha1.UpdateFailed, "x", "") }, Missing},
		"one without a plan":           {func(u *autov1alpha1.Update) { u.Status.Plan = nil }, Missing},
		"another digest":               {func(u *autov1alpha1.Update) { u.Status.Plan.Digest = "sha256:b" }, Changed},
		"a part that somebody changed": {func(u *autov1alpha1.Update) { u.Status.Plan.ChangesDigest = "sha256:d" }, Changed},
	} {
		t.Run(name, func(t *testing.T) {
			verdict := Saved(saved(test.change), wanted)
			g := NewWithT(t)
			g.Expect(verdict.State).To(Equal(test.want))
			g.Expect(verdict.Problem == "").To(Equal(test.want == Approved))
		})
	}
}
