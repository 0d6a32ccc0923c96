package stack

import (
	"slices"
	"strings"
	"testing"
	"time"

	. "github.com/onsi/gomega"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/fluxcd/pkg/runtime/conditions"

	autov1alpha1 "github.com/stack-controller/stack-controller/api/auto/v1alpha1"
	pulumiv1 "github.com/stack-controller/stack-controller/api/pulumi/v1"
	"github.com/stack-controller/stack-controller/internal/controller/plans"
	"github.com/stack-controller/stack-controller/internal/source"
	"github.com/stack-controller/stack-controller/tests/framework/suite"
)

const planDigest = "sha256:plan"

// guarded is a Stack with spec.approval that was edited after it was deployed. The plan of the edit has the given state.
func guarded(state pulumiv1.PlanState, changes ...func(*observation)) *observation {
	o := upToDate()
	o.stack.Generation = 3
	o.stack.Spec.Approval = &pulumiv1.ApprovalPolicy{Require: pulumiv1.ApprovalAlways}
	o.stack.Status.Plan = &pulumiv1.PlanStatus{
		Name: "app-plan", Digest: planDigest, ChangesDigest: "sha256:changes", InputsDigest: "sha256:inputs", State: state,
		Operation: pulumiv1.ApprovedUp, Cause: pulumiv1.PlanForChange, Enforce: autov1alpha1.EnforcePlan, Summary: "+1 ~0 +-0 -0", Changes: 1,
		Generation: 3, Commit: "sha256:a", Trigger: "New stack generation: 3", ExpiresAt: &metav1.Time{Time: now.Add(time.Hour)},
	}
	return with(o, changes...)
}

// decidedOn is an Approval about the plan.
func decidedOn(decision autov1alpha1.ApprovalDecision, by string, changes ...func(*autov1alpha1.Approval)) func(*observation) {
	approval := autov1alpha1.Approval{
		Name: by, CreationTimestamp: ago(time.Second),
		Spec: autov1alpha1.ApprovalSpec{Update: "app-plan", Digest: planDigest, Decision: decision, By: by},
	}
	conditions.MarkTrue(&approval, autov1alpha1.ApprovalAccepted, autov1alpha1.ApprovalCountsReason, "it counts")
	for _, change := range changes {
		change(&approval)
	}
	return func(o *observation) { o.approvals = append(o.approvals, *approval.DeepCopy()) }
}

func approvedBy(by string) func(*observation) { return decidedOn(autov1alpha1.ApprovalApprove, by) }
func rejectedBy(by string) func(*observation) { return decidedOn(autov1alpha1.ApprovalReject, by) }

// settlePlan puts what the next decision says about the plan into the status.
func settlePlan(o *observation) {
	if o.stack.Status.Plan != nil {
		o.stack.Status.Plan = nextPlan(*o)
	}
}

func TestChangesAreCarriedOutAsTheyWereApproved(t *testing.T) {
	const makes, applies = "a plan is made", "the plan is carried out"
	policy := func(change func(*pulumiv1.ApprovalPolicy)) func(*observation) {
		return func(o *observation) { change(o.stack.Spec.Approval) }
	}
	plan := func(change func(*pulumiv1.PlanStatus)) func(*observation) {
		return func(o *observation) { change(o.stack.Status.Plan) }
	}
	newCommit := func(content string) func(*observation) {
		return func(o *observation) {
			o.stack.Status.LastUpdate.ContentDigest, o.stack.Status.Plan.ContentDigest = "sha256:before", "sha256:content"
			o.artifact = &source.Artifact{Digest: "sha256:b", Revision: "main@sha1:b"}
			o.content.digest = content
		}
	}
	expired := plan(func(p *pulumiv1.PlanStatus) { p.ExpiresAt = &metav1.Time{Time: now} })
	resync := func(o *observation) {
		o.stack.Status.LastUpdate.Generation = 3
		o.stack.Status.Plan.Cause = pulumiv1.PlanForResync
	}
	for name, tt := range map[string]struct {
		given *observation
		want  string
		quiet bool
	}{
		"a change is planned":                    {given: guarded("", func(o *observation) { o.stack.Status.Plan = nil }), want: makes},
		"a plan waits":                           {given: guarded(pulumiv1.PlanPending), want: pulumiv1.ApprovalRequiredReason},
		"one that is approved is carried out":    {given: guarded(pulumiv1.PlanPending, approvedBy("alice")), want: applies},
		"a rejection wins":                       {given: guarded(pulumiv1.PlanPending, approvedBy("alice"), rejectedBy("bob")), want: pulumiv1.PlanRejectedReason},
		"also when it comes later":               {given: guarded(pulumiv1.PlanApproved, plan(func(p *pulumiv1.PlanStatus) { p.Approvals = []pulumiv1.PlanApproval{{By: "alice"}} }), rejectedBy("bob")), want: pulumiv1.PlanRejectedReason},
		"an approval does not undo a rejection":  {given: guarded(pulumiv1.PlanRejected, plan(func(p *pulumiv1.PlanStatus) { p.RejectedBy = "bob" }), approvedBy("alice")), want: pulumiv1.PlanRejectedReason},
		"not for another digest":                 {given: guarded(pulumiv1.PlanPending, decidedOn(autov1alpha1.ApprovalApprove, "alice", func(a *autov1alpha1.Approval) { a.Spec.Digest = "sha256:other" })), want: pulumiv1.ApprovalRequiredReason},
		"not for another plan":                   {given: guarded(pulumiv1.PlanPending, decidedOn(autov1alpha1.ApprovalApprove, "alice", func(a *autov1alpha1.Approval) { a.Spec.Update = "app-other" })), want: pulumiv1.ApprovalRequiredReason},
		"not before it was judged":               {given: guarded(pulumiv1.PlanPending, decidedOn(autov1alpha1.ApprovalApprove, "alice", func(a *autov1alpha1.Approval) { a.Status.Conditions = nil })), want: pulumiv1.ApprovalRequiredReason},
		"a rejection counts before it is judged": {given: guarded(pulumiv1.PlanPending, approvedBy("alice"), decidedOn(autov1alpha1.ApprovalReject, "bob", func(a *autov1alpha1.Approval) { a.Status.Conditions = nil })), want: pulumiv1.PlanRejectedReason},
		"not one that was refused":               {given: guarded(pulumiv1.PlanPending, decidedOn(autov1alpha1.ApprovalApprove, "alice", func(a *autov1alpha1.Approval) { a.Status.Conditions[0].Status = metav1.ConditionFalse })), want: pulumiv1.ApprovalRequiredReason},
		"a status that says so is not enough":    {given: guarded(pulumiv1.PlanApproved), want: pulumiv1.ApprovalRequiredReason},
		"one that has expired is made again":     {given: guarded(pulumiv1.PlanPending, expired, approvedBy("alice")), want: makes},
		"a rejected one does not expire":         {given: guarded(pulumiv1.PlanPending, expired, rejectedBy("bob")), want: pulumiv1.PlanRejectedReason},
		"another commit":                         {given: guarded(pulumiv1.PlanPending, newCommit("sha256:other"), approvedBy("alice")), want: makes},
		"the same content":                       {given: guarded(pulumiv1.PlanPending, newCommit("sha256:content"), approvedBy("alice")), want: applies},
		"an edit":                                {given: guarded(pulumiv1.PlanPending, approvedBy("alice"), func(o *observation) { o.stack.Generation = 4 }), want: makes},
		"a request":                              {given: guarded(pulumiv1.PlanPending, approvedBy("alice"), requested(pulumiv1.ReconcileRequestAnnotation)), want: makes},
		"another enforcement":                    {given: guarded(pulumiv1.PlanPending, approvedBy("alice"), policy(func(p *pulumiv1.ApprovalPolicy) { p.Enforce = autov1alpha1.EnforceInputs })), want: makes},
		"a plan that was removed":                {given: guarded(pulumiv1.PlanPending, approvedBy("alice"), func(o *observation) { o.planGone = true }), want: makes},
		"nothing to approve":                     {given: guarded(pulumiv1.PlanPending, plan(func(p *pulumiv1.PlanStatus) { p.Changes = 0 })), want: applies},
		"nothing to approve and rejected":        {given: guarded(pulumiv1.PlanPending, plan(func(p *pulumiv1.PlanStatus) { p.Changes = 0 }), rejectedBy("bob")), want: pulumiv1.PlanRejectedReason},
		"nothing destructive":                    {given: guarded(pulumiv1.PlanPending, policy(func(p *pulumiv1.ApprovalPolicy) { p.Require = pulumiv1.ApprovalDestructive })), want: applies},
		"something destructive":                  {given: guarded(pulumiv1.PlanPending, policy(func(p *pulumiv1.ApprovalPolicy) { p.Require = pulumiv1.ApprovalDestructive }), plan(func(p *pulumiv1.PlanStatus) { p.Destructive = 1 })), want: pulumiv1.ApprovalRequiredReason},
		"an operation that needs none": {given: guarded(pulumiv1.PlanPending, policy(func(p *pulumiv1.ApprovalPolicy) {
			p.Operations = []pulumiv1.ApprovedOperation{pulumiv1.ApprovedDestroy}
		})), want: applies},
		"one that was out of date once":  {given: guarded(pulumiv1.PlanStale, plan(func(p *pulumiv1.PlanStatus) { p.Stale, p.StaleSince = 1, new(ago(0)) })), want: makes},
		"one that was out of date twice": {given: guarded(pulumiv1.PlanStale, plan(func(p *pulumiv1.PlanStatus) { p.Stale, p.StaleSince = 2, new(ago(0)) })), want: pulumiv1.PlanStaleReason},
		"one that was applied":           {given: guarded(pulumiv1.PlanApplied), want: makes},
		"a plan from the schedule":       {given: guarded(pulumiv1.PlanPending, resync), want: pulumiv1.ApprovalRequiredReason, quiet: true},
		"a preview is no change":         {given: guarded(pulumiv1.PlanPending, func(o *observation) { o.stack.Spec.Preview = true }), want: "nothing is planned"},
		"without approval":               {given: guarded(pulumiv1.PlanPending, func(o *observation) { o.stack.Spec.Approval = nil }), want: "nothing is planned"},
	} {
		t.Run(name, func(t *testing.T) {
			g := NewWithT(t)
			settlePlan(tt.given)
			d := decide(*tt.given)
			got := d.reason
			switch {
			case d.plans:
				got = makes
			case d.applies:
				got = applies
			case d.action == actionUpdate:
				got = "nothing is planned"
			}
			g.Expect(got).To(Equal(tt.want))
			g.Expect(d.quiet).To(Equal(tt.quiet))
		})
	}
}

func TestDeletionHasAPlanOfItsDestroy(t *testing.T) {
	g := NewWithT(t)
	o := guarded(pulumiv1.PlanPending, approvedBy("alice"), toDestroy)
	settlePlan(o)
	d := decide(*o)
	g.Expect(d.plans).To(BeTrue(), "what was approved is an update")
	o.workspace, o.desired = &autov1alpha1.Workspace{}, &desired{}
	update, err := desiredUpdate(o, d)
	g.Expect(err).NotTo(HaveOccurred())
	g.Expect(update.Spec.Type).To(Equal(autov1alpha1.UpdateTypeDestroy))
	g.Expect(update.Spec.PreviewOnly).To(HaveValue(BeTrue()))
	g.Expect(update.Spec.SavePlan).To(HaveValue(BeTrue()))

	o.stack.Status.Plan.Operation = pulumiv1.ApprovedDestroy
	d = decide(*o)
	g.Expect(d.applies).To(BeTrue())
	g.Expect(d.kind).To(Equal(autov1alpha1.UpdateTypeDestroy))

	o.stack.Status.Plan.State, o.stack.Status.Plan.Approvals, o.approvals = pulumiv1.PlanPending, nil, nil
	d = decide(*o)
	g.Expect(d.action).To(Equal(actionAwaitApproval))
	g.Expect(d.message).To(ContainSubstring(pulumiv1.OrphanAnnotation), "a deletion that waits says how to go on")
}

func TestApprovalsAreOfDistinctPeopleAndBounded(t *testing.T) {
	g := NewWithT(t)
	o := guarded(pulumiv1.PlanPending, approvedBy("alice"), approvedBy("alice"))
	for name := range strings.SplitSeq("bcdefghijklmnopq", "") {
		approvedBy(name)(o)
	}
	settlePlan(o)
	settlePlan(o)
	approvals := o.stack.Status.Plan.Approvals
	g.Expect(approvals).To(HaveLen(plans.MaxApprovals))
	g.Expect(slices.IndexFunc(approvals[1:], func(item pulumiv1.PlanApproval) bool { return item.By == "alice" })).To(Equal(-1))
}

func TestApprovalsAreCarriedOverToTheSameChanges(t *testing.T) {
	approved := []pulumiv1.PlanApproval{{By: "alice", At: ago(time.Minute)}}
	change := func(operation, name string) autov1alpha1.ResourceChange {
		return autov1alpha1.ResourceChange{Operation: operation, URN: urnOf("a:b:C", name), Digest: operation + name}
	}
	// otherValue is the deletion of y, with another value.
	otherValue, unknown := change("delete", "y"), change("delete", "y")
	otherValue.Digest, unknown.Digest = "other", ""
	before := []autov1alpha1.ResourceChange{change("create", "x"), change("delete", "y")}
	for name, tt := range map[string]struct {
		earlier, plan func(*pulumiv1.PlanStatus)
		changes       []autov1alpha1.ResourceChange
		carried       bool
	}{
		"the state moved":                   {earlier: func(p *pulumiv1.PlanStatus) { p.State = pulumiv1.PlanStale }, carried: true},
		"another commit with equal changes": {earlier: func(p *pulumiv1.PlanStatus) { p.State = pulumiv1.PlanSuperseded }, carried: true},
		"other changes":                     {earlier: func(p *pulumiv1.PlanStatus) { p.State, p.ChangesDigest = pulumiv1.PlanStale, "sha256:other" }},
		"one that nobody approved":          {earlier: func(p *pulumiv1.PlanStatus) { p.State, p.Approvals = pulumiv1.PlanStale, nil }},
		"one that was rejected":             {earlier: func(p *pulumiv1.PlanStatus) { p.State, p.RejectedBy = pulumiv1.PlanSuperseded, "bob" }},
		"one that has expired":              {earlier: func(p *pulumiv1.PlanStatus) { p.State, p.ExpiresAt = pulumiv1.PlanExpired, new(ago(0)) }},
		"one that was carried out":          {earlier: func(p *pulumiv1.PlanStatus) { p.State = pulumiv1.PlanApplied }},
		"one of another operation":          {earlier: func(p *pulumiv1.PlanStatus) { p.State, p.Operation = pulumiv1.PlanStale, pulumiv1.ApprovedDestroy }},
		"the rest after a failure":          {earlier: func(p *pulumiv1.PlanStatus) { p.State, p.ChangesDigest = pulumiv1.PlanFailed, "sha256:whole" }, changes: before[1:], carried: true},
		"a part of one that was not begun": {earlier: func(p *pulumiv1.PlanStatus) {
			p.State, p.ChangesDigest, p.Update = pulumiv1.PlanFailed, "sha256:whole", ""
		}, changes: before[1:]},
		"more than the rest":            {earlier: func(p *pulumiv1.PlanStatus) { p.State, p.ChangesDigest = pulumiv1.PlanFailed, "sha256:whole" }, changes: append(before, change("delete", "z"))},
		"another operation on the same": {earlier: func(p *pulumiv1.PlanStatus) { p.State, p.ChangesDigest = pulumiv1.PlanFailed, "sha256:whole" }, changes: []autov1alpha1.ResourceChange{change("replace", "x")}},
		"the rest, with other inputs": {earlier: func(p *pulumiv1.PlanStatus) {
			p.State, p.ChangesDigest, p.InputsDigest = pulumiv1.PlanFailed, "sha256:whole", "sha256:other"
		}, changes: before[1:]},
		"the rest, with other values":     {earlier: func(p *pulumiv1.PlanStatus) { p.State, p.ChangesDigest = pulumiv1.PlanFailed, "sha256:whole" }, changes: []autov1alpha1.ResourceChange{otherValue}},
		"the rest, with values not known": {earlier: func(p *pulumiv1.PlanStatus) { p.State, p.ChangesDigest = pulumiv1.PlanFailed, "sha256:whole" }, changes: []autov1alpha1.ResourceChange{unknown}},
		"another artifact with the same content": {carried: true, earlier: func(p *pulumiv1.PlanStatus) {
			p.State, p.InputsDigest, p.ContentDigest, p.SpecDigest = pulumiv1.PlanStale, "sha256:other", "sha256:content", "spec"
		}},
		"another artifact with other content": {earlier: func(p *pulumiv1.PlanStatus) {
			p.State, p.InputsDigest, p.ContentDigest, p.SpecDigest = pulumiv1.PlanStale, "sha256:other", "sha256:before", "spec"
		}},
		"another artifact for another specification": {earlier: func(p *pulumiv1.PlanStatus) {
			p.State, p.InputsDigest, p.ContentDigest, p.SpecDigest = pulumiv1.PlanStale, "sha256:other", "sha256:content", "other"
		}},
		"one that was enforced otherwise":     {earlier: func(p *pulumiv1.PlanStatus) { p.State, p.Enforce = pulumiv1.PlanStale, autov1alpha1.EnforceInputs }},
		"the rest, of which not all is known": {earlier: func(p *pulumiv1.PlanStatus) { p.State, p.ChangesDigest = pulumiv1.PlanFailed, "sha256:whole" }},
	} {
		t.Run(name, func(t *testing.T) {
			g := NewWithT(t)
			earlier, plan := guarded("").stack.Status.Plan, guarded(pulumiv1.PlanPending).stack.Status.Plan
			plan.ContentDigest, plan.SpecDigest = "sha256:content", "spec"
			earlier.Approvals, earlier.Update, plan.Name = approved, "app-2", "app-again"
			tt.earlier(earlier)
			plans.CarryOver(plan, earlier, before, tt.changes, now)
			g.Expect(len(plan.Approvals) > 0).To(Equal(tt.carried))
			if tt.carried {
				g.Expect(plan.CarriedFrom).To(Equal("app-plan"))
				g.Expect(plan.ExpiresAt).To(Equal(earlier.ExpiresAt))
			}
		})
	}
}

// A correction of drift is free of approval only if it restores what was approved.
func TestCorrectionWithOtherValuesNeedsTheApprovalOfAnUpdate(t *testing.T) {
	up, destroy, drift := pulumiv1.ApprovedUp, pulumiv1.ApprovedDestroy, pulumiv1.ApprovedDriftCorrection
	for name, tt := range map[string]struct {
		operations         []pulumiv1.ApprovedOperation
		operation          pulumiv1.ApprovedOperation
		approved, corrects string
		free               bool
	}{
		"the approved values":                 {[]pulumiv1.ApprovedOperation{up, destroy}, drift, "a", "a", true},
		"other values":                        {[]pulumiv1.ApprovedOperation{up, destroy}, drift, "a", "b", false},
		"nobody knows what was approved":      {[]pulumiv1.ApprovedOperation{up}, drift, "", "b", false},
		"nobody knows what there is":          {[]pulumiv1.ApprovedOperation{up}, drift, "", "", false},
		"an update would be free, too":        {[]pulumiv1.ApprovedOperation{destroy}, drift, "a", "b", true},
		"all need one":                        {nil, drift, "a", "a", false},
		"an update is free with other values": {[]pulumiv1.ApprovedOperation{drift}, up, "a", "b", true},
	} {
		t.Run(name, func(t *testing.T) {
			plan := guarded(pulumiv1.PlanPending).stack.Status.Plan
			plan.Operation, plan.ApprovedValuesDigest, plan.ValuesDigest = tt.operation, tt.approved, tt.corrects
			NewWithT(t).Expect(plans.NeedsNoApproval(&pulumiv1.ApprovalPolicy{Operations: tt.operations}, plan) != "").To(Equal(tt.free))
		})
	}
}

func TestApprovedValuesAreThoseOfThePlanThatWasCarriedOut(t *testing.T) {
	for name, tt := range map[string]struct {
		change func(*autov1alpha1.Update)
		want   string
	}{
		"carried out":      {func(*autov1alpha1.Update) {}, "new"},
		"it failed":        {func(u *autov1alpha1.Update) { conditions.MarkTrue(u, autov1alpha1.UpdateFailed, "x", "") }, "new"},
		"it did not start": {func(u *autov1alpha1.Update) { u.Status.StartTime = nil }, "old"},
		"without a plan":   {func(u *autov1alpha1.Update) { u.Spec.Plan = nil }, ""},
		"a preview":        {func(u *autov1alpha1.Update) { u.Spec.Type = autov1alpha1.UpdateTypePreview }, "old"},
	} {
		t.Run(name, func(t *testing.T) {
			g := NewWithT(t)
			o := guarded(pulumiv1.PlanApproved)
			plan := o.stack.Status.Plan
			plan.ValuesDigest, plan.ApprovedValuesDigest = "new", "old"
			o.stack.Status.CurrentUpdate = &pulumiv1.CurrentStackUpdate{Name: "app-2"}
			update := &autov1alpha1.Update{Spec: autov1alpha1.UpdateSpec{
				Type: autov1alpha1.UpdateTypeUp, Plan: &autov1alpha1.PlanReference{Name: plan.Name},
			}}
			update.Status.StartTime = new(ago(time.Second))
			conditions.MarkTrue(update, autov1alpha1.UpdateComplete, "x", "")
			tt.change(update)
			_, err := (&Reconciler{}).recordPlan(t.Context(), o, update)
			g.Expect(err).NotTo(HaveOccurred())
			g.Expect(plan.ApprovedValuesDigest).To(Equal(tt.want))
		})
	}
}

// The artifact of an approved plan is gone: source-controller keeps a few, and the store of a new controller is empty.
func TestPlanIsMadeAgainWhenItsArtifactIsGone(t *testing.T) {
	waiting := func(reason string) *observation {
		o := guarded(pulumiv1.PlanApproved, approvedBy("alice"))
		settlePlan(o)
		plan := o.stack.Status.Plan
		plan.Commit = "sha256:b"
		o.artifact = &source.Artifact{Digest: "sha256:b", Revision: "main@sha1:b"}
		o.update = &autov1alpha1.Update{Spec: autov1alpha1.UpdateSpec{
			Type: autov1alpha1.UpdateTypeUp, Plan: &autov1alpha1.PlanReference{Name: plan.Name, Digest: plan.Digest},
			Source: &autov1alpha1.UpdateSource{Digest: "sha256:a"},
		}}
		conditions.MarkFalse(o.update, autov1alpha1.UpdateProgressing, reason, "")
		o.stack.Status.CurrentUpdate = &pulumiv1.CurrentStackUpdate{Name: "app-2", Generation: 3}
		return o
	}
	g := NewWithT(t)
	g.Expect(decide(*waiting(pulumiv1.SecretNotFoundReason)).action).To(Equal(actionFollow))
	o := waiting(pulumiv1.SourceNotReadyReason)
	g.Expect(decide(*o).action).To(Equal(actionSupersede))
	o.update.Spec.Source.Digest = "sha256:b"
	g.Expect(decide(*o).action).To(Equal(actionFollow), "another Update would wait for the same artifact")

	o = waiting(pulumiv1.SourceNotReadyReason)
	recordStale(o.stack, o.update, now)
	o.update = nil
	d := decide(*o)
	g.Expect(d.action == actionUpdate && d.plans).To(BeTrue(), "%s", d.action)
	g.Expect(o.stack.Status.Plan.Approvals).NotTo(BeEmpty(), "an equal plan takes them over")
}

func TestChangesAreCounted(t *testing.T) {
	g := NewWithT(t)
	summary, changes, destructive := countChanges(map[string]int64{"create": 2, "update": 1, "replace": 1, "same": 5, "refresh": 1})
	g.Expect(summary).To(Equal("+2 ~1 +-1 -0"))
	g.Expect(changes).To(BeEquivalentTo(4))
	g.Expect(destructive).To(BeEquivalentTo(1))
	summary, changes, destructive = countChanges(map[string]int64{"delete": 1, "import": 1, "something-new": 1})
	g.Expect(summary).To(Equal("+0 ~0 +-0 -1 =2"))
	g.Expect(changes).To(BeEquivalentTo(3))
	g.Expect(destructive).To(BeEquivalentTo(2), "what is not known may be anything")
	summary, changes, destructive = countChanges(map[string]int64{"read": 1, "discard": 1, "same": 3})
	g.Expect(summary).To(Equal("+0 ~0 +-0 -0"))
	g.Expect(changes).To(BeZero(), "to read a resource of others, or to forget it, changes nothing")
	g.Expect(destructive).To(BeZero())
	summary, _, destructive = countChanges(map[string]int64{"import-replacement": 2})
	g.Expect(summary).To(Equal("+0 ~0 +-2 -0"))
	g.Expect(destructive).To(BeEquivalentTo(2))
}

// An Update that was cancelled before it started has carried out no part of its plan.
func TestApprovalsAreVoidWhenTheUpdateDidNotStart(t *testing.T) {
	for _, tt := range []struct {
		started bool
		reason  string
		kept    int
	}{
		{false, autov1alpha1.CanceledReason, 0}, {false, autov1alpha1.PlanStaleReason, 0}, {false, autov1alpha1.UpdateConflictReason, 1},
		{true, autov1alpha1.UpdateFailedReason, 1}, {true, autov1alpha1.PlanStaleReason, 1},
	} {
		g := NewWithT(t)
		o := guarded(pulumiv1.PlanApproved)
		o.stack.Status.Plan.Approvals = []pulumiv1.PlanApproval{{By: "alice", At: ago(time.Minute)}}
		o.stack.Status.CurrentUpdate = &pulumiv1.CurrentStackUpdate{Name: "app-apply"}
		update := &autov1alpha1.Update{Name: "app-apply", Spec: autov1alpha1.UpdateSpec{
			Type: autov1alpha1.UpdateTypeUp, Plan: &autov1alpha1.PlanReference{Name: "app-plan", Digest: planDigest},
		}}
		if tt.started {
			update.Status.StartTime = new(ago(time.Minute))
		}
		conditions.MarkTrue(update, autov1alpha1.UpdateComplete, autov1alpha1.UpdateEndedFailedReason, "done")
		conditions.MarkTrue(update, autov1alpha1.UpdateFailed, tt.reason, "it failed")
		_, err := (&Reconciler{}).recordPlan(t.Context(), o, update)
		g.Expect(err).NotTo(HaveOccurred())
		g.Expect(o.stack.Status.Plan.Approvals).To(HaveLen(tt.kept), "%+v", tt)
	}
}

func TestStalePlansAreMadeAgainWithoutCountingFailures(t *testing.T) {
	g := NewWithT(t)
	o := guarded(pulumiv1.PlanApproved)
	o.stack.Status.Plan.Approvals = []pulumiv1.PlanApproval{{By: "alice", At: ago(time.Minute)}}
	o.stack.Status.CurrentUpdate, o.stack.Status.Deployed = &pulumiv1.CurrentStackUpdate{Name: "app-apply", First: true}, true
	before := o.stack.Status.LastUpdate.DeepCopy()
	update := &autov1alpha1.Update{Name: "app-apply", Spec: autov1alpha1.UpdateSpec{
		Type: autov1alpha1.UpdateTypeUp, Plan: &autov1alpha1.PlanReference{Name: "app-plan", Digest: planDigest},
	}}
	update.Status.NotRun = true
	conditions.MarkTrue(update, autov1alpha1.UpdateComplete, autov1alpha1.UpdateEndedFailedReason, "done")
	conditions.MarkTrue(update, autov1alpha1.UpdateFailed, autov1alpha1.PlanStaleReason, "the state changed")
	done, err := (&Reconciler{}).recordPlan(t.Context(), o, update)
	g.Expect(err).NotTo(HaveOccurred())
	g.Expect(done).To(BeTrue())
	g.Expect(o.stack.Status.LastUpdate).To(Equal(before))
	g.Expect(o.stack.Status.CurrentUpdate).To(BeNil())
	g.Expect(o.stack.Status.Deployed).To(BeFalse(), "there is nothing to destroy")
	g.Expect(o.stack.Status.Plan.State).To(Equal(pulumiv1.PlanStale))
	g.Expect(decide(*o).plans).To(BeTrue())
	g.Expect(updateName(o.stack)).NotTo(Equal(updateName(guarded(pulumiv1.PlanApproved).stack)), "its Update exists")

	recordStale(o.stack, update, now)
	d := decide(*o)
	g.Expect(d.reason).To(Equal(pulumiv1.PlanStaleReason))
	g.Expect(d.after).To(BeNumerically("~", firstBackoff, time.Second))
}

func TestReasonsOfPlansAreThoseOfTheStack(t *testing.T) {
	for reason, shown := range map[string]string{
		autov1alpha1.PlanViolatedReason: pulumiv1.PlanViolatedReason, autov1alpha1.PlanTooLargeReason: pulumiv1.PlanTooLargeReason,
	} {
		o := failed(1, time.Second)
		o.stack.Status.LastUpdate.Reason = reason
		NewWithT(t).Expect(decide(*o).reason).To(Equal(shown))
	}
}

// planCases are plans as the status may have them, each with the Approvals about it.
func planCases() map[string]func(*observation) {
	cases := map[string]func(*observation){"none": func(*observation) {}}
	states := []pulumiv1.PlanState{pulumiv1.PlanPending, pulumiv1.PlanApproved, pulumiv1.PlanRejected, pulumiv1.PlanExpired, pulumiv1.PlanStale,
		pulumiv1.PlanSuperseded, pulumiv1.PlanApplied, pulumiv1.PlanFailed}
	said := map[string]func(*observation){
		"nobody": func(*observation) {}, "approved": approvedBy("alice"), "rejected": rejectedBy("bob"),
		"other digest": decidedOn(autov1alpha1.ApprovalApprove, "alice", func(a *autov1alpha1.Approval) { a.Spec.Digest = "sha256:other" }),
		"other plan":   decidedOn(autov1alpha1.ApprovalApprove, "alice", func(a *autov1alpha1.Approval) { a.Spec.Update = "app-other" }),
		"refused":      decidedOn(autov1alpha1.ApprovalApprove, "alice", func(a *autov1alpha1.Approval) { a.Status.Conditions[0].Status = metav1.ConditionFalse }),
		"both": func(o *observation) {
			approvedBy("alice")(o)
			rejectedBy("bob")(o)
		},
	}
	for _, state := range states {
		recorded := *guarded(state).stack.Status.Plan
		for _, operation := range []pulumiv1.ApprovedOperation{pulumiv1.ApprovedUp, pulumiv1.ApprovedDestroy, pulumiv1.ApprovedDriftCorrection} {
			for _, generation := range []int64{1, 2} {
				for name, say := range said {
					if state != pulumiv1.PlanPending && state != pulumiv1.PlanApproved && name != "approved" && name != "rejected" {
						continue
					}
					cases[strings.Join([]string{string(state), string(operation), string('0' + rune(generation)), name}, ", ")] = func(o *observation) {
						plan := recorded
						plan.Operation, plan.Generation, plan.ContentDigest = operation, generation, stored.digest
						o.stack.Status.Plan = &plan
						say(o)
					}
				}
			}
		}
	}
	return cases
}

// TestNothingIsCarriedOutThatWasNotApproved combines the states of the model with every plan.
func TestNothingIsCarriedOutThatWasNotApproved(t *testing.T) {
	suite.WithoutRaceDetector(t)
	wrong, states, applied, cases := map[string]int{}, 0, 0, planCases()
	modelSpaces(func(s *modelState) {
		if s.dependency != "met" && !s.deleting || s.source != "same" && s.source != "new" || s.lastKind == autov1alpha1.UpdateTypePreview ||
			s.orphan || s.busy || s.workspaceFailed || s.dependents || s.badSpec || s.project == "known, program runs" ||
			!slices.Contains([]string{"none", "succeeded", "failed", "locked"}, s.last) || s.resync == "later" {
			return // they differ in why there is something to wait for
		}
		seen := s.observe()
		for name, plan := range cases {
			states++
			o := copyOf(seen)
			o.stack.Spec.Approval = &pulumiv1.ApprovalPolicy{}
			plan(&o)
			if o.update != nil && o.stack.Status.Plan != nil && s.kind != autov1alpha1.UpdateTypePreview {
				o.update.Spec.Plan = &autov1alpha1.PlanReference{Name: "app-plan", Digest: planDigest}
			}
			settlePlan(&o)
			d := decide(o)
			if d.action == actionWriteOutputs {
				continue // another decision follows
			}
			has := o.stack.Status.Plan
			approved := has != nil && has.State == pulumiv1.PlanApproved && strings.HasSuffix(name, ", approved")
			if d.applies {
				applied++
			}
			changes := d.action == actionUpdate && d.kind != autov1alpha1.UpdateTypePreview && !d.plans
			waits := strings.HasPrefix(s.update, "waits")
			for promise, kept := range map[string]bool{
				"nothing is changed without an approval of exactly that plan": !changes || d.applies && approved && has.Operation == plannedOperation(d) && has.Generation == o.stack.Generation,
				"what is approved is what somebody approved":                  has == nil || has.State != pulumiv1.PlanApproved || strings.HasSuffix(name, ", approved") || s.hasRun(),
				"what waits to start goes when it is no longer approved":      !waits || s.kind == autov1alpha1.UpdateTypePreview || approved || d.action == actionSupersede,
				"what waits says who has to do what":                          d.action != actionAwaitApproval || d.reason != "" && strings.Contains(d.message, "flux-pulumi") && d.wake == byApproval,
				"a deletion that waits says how to go on":                     d.action != actionAwaitApproval || !s.deleting || strings.Contains(d.message, pulumiv1.OrphanAnnotation),
				"nothing is planned and carried out at once":                  !d.plans || !d.applies,
			} {
				if !kept {
					if wrong[promise]++; wrong[promise] == 1 {
						t.Errorf("%s: %+v, plan %s: %s, plans %t, applies %t, %v", promise, *s, name, d.action, d.plans, d.applies, has)
					}
				}
			}
		}
	})
	g := NewWithT(t)
	g.Expect(wrong).To(BeEmpty(), "of %d states", states)
	g.Expect(applied).To(BeNumerically(">", 100))
	t.Logf("%d states, %d carried out", states, applied)
}

// hasRun reports whether there is an Update whose operation has started. An approval or rejection after that is too late.
func (s *modelState) hasRun() bool {
	return s.update != "none" && !strings.HasPrefix(s.update, "waits")
}
