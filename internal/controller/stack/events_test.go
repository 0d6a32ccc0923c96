package stack

import (
	"strconv"
	"strings"
	"testing"

	. "github.com/onsi/gomega"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/tools/record"

	"github.com/fluxcd/pkg/runtime/conditions"

	autov1alpha1 "github.com/stack-controller/stack-controller/api/auto/v1alpha1"
	pulumiv1 "github.com/stack-controller/stack-controller/api/pulumi/v1"
	"github.com/stack-controller/stack-controller/internal/report/events"
)

func TestEventsNameTheCommitThatAnArtifactWasMadeFrom(t *testing.T) {
	short, long := strings.Repeat("a", 40), strings.Repeat("b", 64)
	for name, test := range map[string]struct {
		revision, sha string
		want          map[string]string
	}{
		"of a git repository":          {"main@sha1:" + short, short, map[string]string{"pulumi.com/revision": "main@sha1:" + short}},
		"of one with longer hashes":    {"main@sha256:" + long, long, map[string]string{"pulumi.com/revision": "main@sha256:" + long}},
		"of an artifact with a commit": {"latest@sha256:1", short, map[string]string{"pulumi.com/revision": "latest@sha256:1", "pulumi.com/originRevision": "sha1:" + short}},
		"of an artifact without one":   {"latest@sha256:1", "", map[string]string{"pulumi.com/revision": "latest@sha256:1"}},
	} {
		t.Run(name, func(t *testing.T) {
			g := NewWithT(t)
			update := &autov1alpha1.Update{}
			update.UID = types.UID("uid")
			update.Spec.Source = &autov1alpha1.UpdateSource{Commit: &autov1alpha1.CommitInfo{SHA: test.sha}}
			test.want["pulumi.com/token"] = "uid"
			g.Expect(eventMetadata(test.revision, "", update)).To(Equal(test.want))
		})
	}
	NewWithT(t).Expect(events.CommitRevision(commitOfUpdate(&autov1alpha1.Update{}))).To(BeEmpty(), "one without a source")
}

// notification-controller sets the status of the commit that an event names, and else of the revision that a warning names.
func TestWarningNamesTheRevisionOnlyIfItIsAboutWhatThatContains(t *testing.T) {
	const deployed, revision = "main@sha1:a", "main@sha1:b"
	ended := func(reason string, conflicts int64) func(*Reconciler) {
		update := &autov1alpha1.Update{UID: "uid", Spec: autov1alpha1.UpdateSpec{
			Type: autov1alpha1.UpdateTypeUp, Source: &autov1alpha1.UpdateSource{Commit: &autov1alpha1.CommitInfo{SHA: "c"}},
		}}
		conditions.MarkTrue(update, autov1alpha1.UpdateComplete, autov1alpha1.UpdateEndedFailedReason, "done")
		conditions.MarkTrue(update, autov1alpha1.UpdateFailed, reason, "why")
		last := &pulumiv1.StackUpdateStatus{Type: autov1alpha1.UpdateTypeUp, State: pulumiv1.StackUpdateFailed, Reason: reason, Revision: revision, Conflicts: conflicts}
		return func(r *Reconciler) { r.announceResult(t.Context(), &pulumiv1.Stack{}, nil, last, update) }
	}
	decided := func(state pulumiv1.PlanState, reason string, changes ...func(*pulumiv1.PlanStatus)) func(*Reconciler) {
		o := guarded(state)
		o.stack.Status.LastAppliedRevision, o.stack.Status.Plan.Revision, o.artifact.Revision = deployed, revision, revision
		for _, change := range changes {
			change(o.stack.Status.Plan)
		}
		return func(r *Reconciler) {
			result := r.awaitApproval(o, decision{reason: reason, message: "why"})
			_ = result.finish(t.Context())
		}
	}
	of := func(operation pulumiv1.ApprovedOperation, revision string) func(*pulumiv1.PlanStatus) {
		return func(p *pulumiv1.PlanStatus) { p.Operation, p.Revision = operation, revision }
	}
	for name, test := range map[string]struct {
		happens func(*Reconciler)
		names   bool
	}{
		"a failure":                          {ended(autov1alpha1.UpdateFailedReason, 0), true},
		"a lock":                             {ended(autov1alpha1.UpdateConflictReason, 1), false},
		"resources that take long":           {ended(autov1alpha1.AwaitingResourcesReason, 0), false},
		"an interruption":                    {ended(autov1alpha1.InterruptedReason, 0), false},
		"a plan that waits":                  {decided(pulumiv1.PlanPending, pulumiv1.ApprovalRequiredReason), false},
		"a revision that was rejected":       {decided(pulumiv1.PlanRejected, pulumiv1.PlanRejectedReason), true},
		"a change of what is deployed":       {decided(pulumiv1.PlanRejected, pulumiv1.PlanRejectedReason, of(pulumiv1.ApprovedUp, deployed)), false},
		"a correction that was rejected":     {decided(pulumiv1.PlanRejected, pulumiv1.PlanRejectedReason, of(pulumiv1.ApprovedDriftCorrection, deployed)), false},
		"a destroy that was rejected":        {decided(pulumiv1.PlanRejected, pulumiv1.PlanRejectedReason, of(pulumiv1.ApprovedDestroy, revision)), false},
		"a rejected change without a source": {decided(pulumiv1.PlanRejected, pulumiv1.PlanRejectedReason, of(pulumiv1.ApprovedUp, "")), false},
	} {
		t.Run(name, func(t *testing.T) {
			recorder := record.NewFakeRecorder(1)
			test.happens(&Reconciler{EventRecorder: recorder})
			named := Or(ContainSubstring("pulumi.com/revision:"), ContainSubstring("pulumi.com/originRevision:"), ContainSubstring("toolkit.fluxcd.io/commit:"))
			NewWithT(t).Expect(named.Match(<-recorder.Events)).To(Equal(test.names))
		})
	}
}

func TestResyncThatFindsNothingToDoHasNoResultToAnnounce(t *testing.T) {
	g := NewWithT(t)
	result := func(state pulumiv1.StackUpdateState, commit string, changes map[string]int64) *pulumiv1.StackUpdateStatus {
		return &pulumiv1.StackUpdateStatus{State: state, LastAttemptedCommit: commit, ResourceChanges: changes}
	}
	same := result(pulumiv1.StackUpdateSucceeded, "a", map[string]int64{"same": 3, "create": 0})
	g.Expect(changesNothing(same, same)).To(BeTrue())
	g.Expect(changesNothing(nil, same)).To(BeFalse(), "the first update")
	g.Expect(changesNothing(result(pulumiv1.StackUpdateFailed, "a", nil), same)).To(BeFalse(), "a failure has ended")
	g.Expect(changesNothing(same, result(pulumiv1.StackUpdateFailed, "a", nil))).To(BeFalse())
	g.Expect(changesNothing(same, result(pulumiv1.StackUpdateSucceeded, "b", nil))).To(BeFalse(), "another commit")
	g.Expect(changesNothing(same, result(pulumiv1.StackUpdateSucceeded, "a", map[string]int64{"replace": 1}))).To(BeFalse())
}

func TestEventCountsEveryKindOfChange(t *testing.T) {
	g := NewWithT(t)
	g.Expect(describeChanges(map[string]int64{"same": 4, "import": 2, "delete": 1, "something-new": 1, "update": 0})).
		To(Equal("2 import, 1 delete, 4 same, 1 something-new"))
	g.Expect(describeChanges(nil)).To(Equal("no resource changed"))
}

func TestEventOfAPreviewListsResourcesAndHasABound(t *testing.T) {
	g := NewWithT(t)
	change := func(operation, kind, name string) autov1alpha1.ResourceChange {
		return autov1alpha1.ResourceChange{Operation: operation, URN: "urn:pulumi:dev::shop::" + kind + "::" + name}
	}
	g.Expect(describeResources(nil, 0)).To(BeEmpty())
	g.Expect(describeResources([]autov1alpha1.ResourceChange{
		change("create", "aws:s3/bucket:Bucket", "logs"), change("replace", "shop:index:Site$random:index:RandomPet", "two\n- words\x1b[31m"),
	}, 3)).To(Equal("\n- create aws:s3/bucket:Bucket logs\n- replace random:index:RandomPet two - words\n- and 3 more"))

	var many []autov1alpha1.ResourceChange
	for i := range 25 {
		many = append(many, change("create", "a:b:C", strconv.Itoa(i)))
	}
	g.Expect(describeResources(many, 1)).To(HaveSuffix("\n- create a:b:C 19\n- and 6 more"))
	many[2] = change("create", "a:b:C", strings.Repeat("x", maxEventChangesText))
	g.Expect(describeResources(many, 0)).To(Equal("\n- create a:b:C 0\n- create a:b:C 1\n- and 23 more"))
}
