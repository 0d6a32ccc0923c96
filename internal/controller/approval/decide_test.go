package approval

import (
	"testing"
	"time"

	. "github.com/onsi/gomega"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/fluxcd/pkg/runtime/conditions"

	autov1alpha1 "github.com/stack-controller/stack-controller/api/auto/v1alpha1"
	pulumiv1 "github.com/stack-controller/stack-controller/api/pulumi/v1"
)

var now = time.Date(2026, 11, 23, 12, 0, 0, 0, time.UTC)

// planned is an Approval of a plan for which its Stack waits.
func planned() *observation {
	update := &autov1alpha1.Update{Name: "app-plan", UID: "plan", CreationTimestamp: metav1.NewTime(now.Add(-time.Minute))}
	update.Spec.Type, update.Spec.SavePlan = autov1alpha1.UpdateTypePreview, new(true)
	update.Status.Plan = &autov1alpha1.SavedPlan{ChangesDigest: "sha256:changes"}
	digest := update.Status.Plan.CalculateDigest()
	update.Status.Plan.Digest = digest
	conditions.MarkTrue(update, autov1alpha1.UpdateComplete, autov1alpha1.UpdateUpdatedReason, "done")
	return &observation{
		now: now, update: update,
		approval: &autov1alpha1.Approval{
			Name: "app-x", CreationTimestamp: metav1.NewTime(now),
			Spec: autov1alpha1.ApprovalSpec{Update: "app-plan", Digest: digest, Decision: autov1alpha1.ApprovalApprove, By: "alice"},
		},
		stack: &pulumiv1.Stack{Name: "app", Status: pulumiv1.StackStatus{Plan: &pulumiv1.PlanStatus{
			Name: "app-plan", UID: "plan", Digest: digest, State: pulumiv1.PlanPending, ExpiresAt: &metav1.Time{Time: now.Add(time.Hour)},
		}}},
	}
}

func TestApprovalIsJudgedByThePlanThatItNames(t *testing.T) {
	const later = "later"
	plan := func(state pulumiv1.PlanState) func(*observation) {
		return func(o *observation) { o.stack.Status.Plan.State = state }
	}
	for name, tt := range map[string]struct {
		change func(*observation)
		reason string
	}{
		"it is about the plan":          {change: func(*observation) {}, reason: autov1alpha1.ApprovalCountsReason},
		"one that is approved already":  {change: plan(pulumiv1.PlanApproved), reason: autov1alpha1.ApprovalCountsReason},
		"no such update":                {change: func(o *observation) { o.update, o.stack = nil, nil }, reason: autov1alpha1.PlanNotFoundReason},
		"no plan":                       {change: func(o *observation) { o.update.Spec.SavePlan = nil }, reason: autov1alpha1.PlanNotFoundReason},
		"made before its plan":          {change: func(o *observation) { o.approval.CreationTimestamp = metav1.NewTime(now.Add(-time.Hour)) }, reason: autov1alpha1.PlanNotFoundReason},
		"while the plan was made":       {change: func(o *observation) { o.update.Status = autov1alpha1.UpdateStatus{} }, reason: autov1alpha1.PlanNotFoundReason},
		"a plan that failed":            {change: func(o *observation) { conditions.MarkTrue(o.update, autov1alpha1.UpdateFailed, "x", "x") }, reason: autov1alpha1.PlanNotFoundReason},
		"another digest":                {change: func(o *observation) { o.approval.Spec.Digest = "sha256:other" }, reason: autov1alpha1.DigestMismatchReason},
		"a plan of nobody":              {change: func(o *observation) { o.stack = nil }, reason: autov1alpha1.PlanNotFoundReason},
		"an earlier plan":               {change: func(o *observation) { o.stack.Status.Plan.Name = "app-next" }, reason: autov1alpha1.PlanSupersededReason},
		"one whose place another takes": {change: plan(pulumiv1.PlanSuperseded), reason: autov1alpha1.PlanSupersededReason},
		"one that was carried out":      {change: plan(pulumiv1.PlanApplied), reason: autov1alpha1.PlanSupersededReason},
		"one that somebody rejected": {change: func(o *observation) {
			o.stack.Status.Plan.State, o.stack.Status.Plan.RejectedBy = pulumiv1.PlanRejected, "bob"
		}, reason: autov1alpha1.PlanRejectedReason},
		"one that is rejected a second time": {change: func(o *observation) {
			o.stack.Status.Plan.State, o.stack.Status.Plan.RejectedBy = pulumiv1.PlanRejected, "bob"
			o.approval.Spec.Decision = autov1alpha1.ApprovalReject
		}, reason: autov1alpha1.ApprovalCountsReason},
		"one that failed": {change: plan(pulumiv1.PlanFailed), reason: autov1alpha1.PlanSupersededReason},
		"what is left of one that failed, to be rejected": {change: func(o *observation) {
			o.stack.Status.Plan.State, o.approval.Spec.Decision = pulumiv1.PlanFailed, autov1alpha1.ApprovalReject
		}, reason: autov1alpha1.ApprovalCountsReason},
		"one that is made again, to be rejected": {change: func(o *observation) {
			o.stack.Status.Plan.State, o.approval.Spec.Decision = pulumiv1.PlanStale, autov1alpha1.ApprovalReject
		}, reason: autov1alpha1.ApprovalCountsReason},
		"one that has expired":             {change: func(o *observation) { o.stack.Status.Plan.ExpiresAt.Time = now }, reason: autov1alpha1.PlanExpiredReason},
		"one that has expired, as it says": {change: plan(pulumiv1.PlanExpired), reason: autov1alpha1.PlanExpiredReason},
		"one that the Stack has not seen": {change: func(o *observation) {
			o.stack.Status = pulumiv1.StackStatus{CurrentUpdate: &pulumiv1.CurrentStackUpdate{Name: "app-plan", UID: "plan"}}
		}, reason: later},
		"one that the Stack is about to see": {change: func(o *observation) { o.stack.Status = pulumiv1.StackStatus{} }, reason: later},
		"one that the Stack never sees": {change: func(o *observation) {
			o.stack.Status, o.now = pulumiv1.StackStatus{}, now.Add(maxUnseen)
		}, reason: autov1alpha1.PlanNotFoundReason},
		"an Update with the name of the plan": {change: func(o *observation) { o.update.UID = "other" }, reason: autov1alpha1.PlanSupersededReason},
		"another plan of this Update":         {change: func(o *observation) { o.stack.Status.Plan.Digest = "sha256:other" }, reason: autov1alpha1.PlanSupersededReason},
	} {
		t.Run(name, func(t *testing.T) {
			g := NewWithT(t)
			o := planned()
			tt.change(o)
			said := decide(*o)
			g.Expect(said.after > 0).To(Equal(tt.reason == later))
			if tt.reason == later {
				return
			}
			g.Expect(said.reason).To(Equal(tt.reason))
			g.Expect(said.accepted).To(Equal(tt.reason == autov1alpha1.ApprovalCountsReason))
			g.Expect(said.message).NotTo(BeEmpty())
		})
	}
}

func TestApprovalOfARevision(t *testing.T) {
	const commit, earlier = "5287e5dc5287e5dc5287e5dc5287e5dc5287e5dc", "main@sha1:4830b1904830b1904830b1904830b1904830b190"
	for name, tt := range map[string]struct {
		change func(*observation)
		reason string
	}{
		"of the target":   {change: func(*observation) {}, reason: autov1alpha1.ApprovalCountsReason},
		"by its checksum": {change: func(o *observation) { o.approval.Spec.Revision = "sha1:" + commit }, reason: autov1alpha1.ApprovalCountsReason},
		"of all waves":    {change: func(o *observation) { o.approval.Spec.Wave = "" }, reason: autov1alpha1.ApprovalCountsReason},
		"a rejection": {change: func(o *observation) {
			o.approval.Spec.Wave, o.approval.Spec.Decision = "", autov1alpha1.ApprovalReject
		}, reason: autov1alpha1.ApprovalCountsReason},
		"no StackRollout":  {change: func(o *observation) { o.rollout = nil }, reason: pulumiv1.RolloutNotFoundReason},
		"no target":        {change: func(o *observation) { o.rollout.Status.Target = nil; o.now = now.Add(maxUnseen) }, reason: autov1alpha1.RevisionNotTargetReason},
		"another revision": {change: func(o *observation) { o.approval.Spec.Revision = earlier; o.now = now.Add(maxUnseen) }, reason: autov1alpha1.RevisionNotTargetReason},
		"an earlier target": {change: func(o *observation) {
			o.approval.Spec.Revision, o.rollout.Status.Earlier = earlier, []autov1alpha1.RolloutRevision{{Revision: earlier}}
		}, reason: autov1alpha1.RevisionNotTargetReason},
		"another name of the target": {change: func(o *observation) {
			o.rollout.Status.Target.Digest = "sha256:d"
			o.approval.Spec.Revision, o.rollout.Status.Earlier = earlier, []autov1alpha1.RolloutRevision{{Revision: earlier, Digest: "sha256:d"}}
		}, reason: autov1alpha1.ApprovalCountsReason},
		"the stable one": {change: func(o *observation) {
			o.approval.Spec.Revision, o.rollout.Status.Stable = earlier, &autov1alpha1.RolloutRevision{Revision: earlier}
		}, reason: autov1alpha1.RevisionNotTargetReason},
		"too early":           {change: func(o *observation) { o.approval.Spec.Revision = earlier }},
		"before there is any": {change: func(o *observation) { o.rollout.Status.Target = nil }},
		"not in full":         {change: func(o *observation) { o.approval.Spec.Revision = "sha1:5287e5dc" }, reason: autov1alpha1.RevisionNotTargetReason},
		"only the branch":     {change: func(o *observation) { o.approval.Spec.Revision = "main" }, reason: autov1alpha1.RevisionNotTargetReason},
		"no such wave":        {change: func(o *observation) { o.approval.Spec.Wave = "last" }, reason: autov1alpha1.WaveNotFoundReason},
	} {
		t.Run(name, func(t *testing.T) {
			o := &observation{now: now,
				approval: &autov1alpha1.Approval{Name: "a", CreationTimestamp: metav1.NewTime(now), Spec: autov1alpha1.ApprovalSpec{
					Rollout: "all", Wave: "rest", Revision: "main@sha1:" + commit, Decision: autov1alpha1.ApprovalApprove, By: "alice"}},
				rollout: &autov1alpha1.StackRollout{Name: "all"},
			}
			o.rollout.Spec.Waves = []autov1alpha1.RolloutWave{{Name: "canary"}, {Name: "rest"}}
			o.rollout.Status.Target = &autov1alpha1.RolloutTarget{}
			o.rollout.Status.Target.Revision = "main@sha1:" + commit
			tt.change(o)
			said := decide(*o)
			g := NewWithT(t)
			if tt.reason == "" {
				g.Expect(said).To(Equal(verdict{after: shortestWait}), "it is asked again")
				return
			}
			g.Expect(said.after).To(BeZero())
			g.Expect(said.reason).To(Equal(tt.reason))
			g.Expect(said.accepted).To(Equal(tt.reason == autov1alpha1.ApprovalCountsReason))
			g.Expect(said.message).To(ContainSubstring(`StackRollout "all"`))
		})
	}
}

// An Approval whose plan the Stack never records is looked at a bounded number of times.
func TestApprovalThatNobodySeesIsAskedForAFewTimes(t *testing.T) {
	g := NewWithT(t)
	o, times := planned(), 0
	o.stack.Status = pulumiv1.StackStatus{}
	for said := decide(*o); said.after > 0; said = decide(*o) {
		o.now = o.now.Add(said.after)
		times++
		g.Expect(times).To(BeNumerically("<", 50))
	}
	g.Expect(times).To(BeNumerically(">", 3))
}
