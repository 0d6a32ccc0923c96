package stack

import (
	"strconv"
	"strings"
	"testing"

	. "github.com/onsi/gomega"
	"k8s.io/apimachinery/pkg/types"

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
