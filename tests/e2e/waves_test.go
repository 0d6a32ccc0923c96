package e2e_test

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	. "github.com/onsi/gomega"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/fluxcd/pkg/runtime/conditions"
	sourcev1 "github.com/fluxcd/source-controller/api/v1"

	autov1alpha1 "github.com/stack-controller/stack-controller/api/auto/v1alpha1"
	pulumiv1 "github.com/stack-controller/stack-controller/api/pulumi/v1"
	"github.com/stack-controller/stack-controller/tests/framework/statuscheck"
	"github.com/stack-controller/stack-controller/tests/framework/suite"
	"github.com/stack-controller/stack-controller/tests/framework/systemtest"
)

// fleet returns a StackRollout for the ExternalArtifact of the fixture, with the Stack canary before all others, which are updated one by
// one, and Stacks of these names.
func (p *fixture) fleet(names ...string) (rollout *autov1alpha1.StackRollout, stacks []*pulumiv1.Stack) {
	rollout = &autov1alpha1.StackRollout{ObjectMeta: p.Meta("waves"), Spec: autov1alpha1.StackRolloutSpec{
		SourceRef:     autov1alpha1.RolloutSource{Kind: sourcev1.ExternalArtifactKind, Name: p.Name},
		MaxConcurrent: new(intstr.FromInt32(1)),
		Waves: []autov1alpha1.RolloutWave{
			{Name: "canary", Stacks: &metav1.LabelSelector{MatchLabels: map[string]string{"tier": "canary"}}},
			{Name: "rest"},
		},
	}}
	for _, name := range names {
		stack := system.NewStack(p.Name, name, sourcev1.ExternalArtifactKind)
		stack.Spec.Stack, stack.Spec.FluxSource.SourceRef.Name = name, p.Name
		stack.Spec.RolloutRef = &pulumiv1.RolloutReference{Name: rollout.Name}
		if name == "canary" {
			stack.Labels = map[string]string{"tier": "canary"}
		}
		stacks = append(stacks, stack)
	}
	return rollout, stacks
}

// rollout reads the StackRollout.
func (p *fixture) rollout() *autov1alpha1.StackRollout {
	rollout := &autov1alpha1.StackRollout{}
	p.Get("waves", rollout)
	return rollout
}

// awaitRollout waits until the StackRollout has the reason for the revision: for as long as several updates, one after the other, may take.
func (p *fixture) awaitRollout(reason, revision string) *autov1alpha1.StackRollout {
	p.Helper()
	p.Eventually(func(g Gomega) {
		rollout := p.rollout()
		g.Expect(conditions.GetReason(rollout, "Ready")).To(Equal(reason), conditions.GetMessage(rollout, "Ready"))
		g.Expect(rollout.Status.Target.Revision).To(Equal(revision))
		if reason == autov1alpha1.RolloutCompleteReason {
			g.Expect(rollout.Status.Done).NotTo(Equal("0/0"), "its Stacks may have been created just now")
		}
	}).WithTimeout(3 * p.Patience).Should(Succeed())
	rollout := p.rollout()
	p.Succeed(statuscheck.Lint(p.Context(), rollout))
	return rollout
}

// order returns the names of the Stacks in the order in which their updates to the revision began.
func (p *fixture) order(revision string) (names []string) {
	p.Helper()
	updates := slices.DeleteFunc(p.Updates(), func(update autov1alpha1.Update) bool {
		return update.ChangesNothing() || update.Spec.Source.Revision != revision || update.Status.StartTime == nil
	})
	slices.SortFunc(updates, func(a, b autov1alpha1.Update) int { return a.Status.StartTime.Compare(b.Status.StartTime.Time) })
	for i := range updates {
		names = append(names, updates[i].Spec.WorkspaceName)
	}
	return names
}

// holdStack makes every "pulumi up" of the Stack wait until release is called.
func (p *fixture) holdStack(name string) (release func()) {
	p.Helper()
	file := filepath.Join(pulumi.dir, "held-"+filepath.Base(p.Directory(name)))
	p.Succeed(os.WriteFile(file, nil, 0o600))
	p.Cleanup(func() { _ = os.Remove(file) })
	return func() { _ = os.Remove(file) }
}

func TestWavesReachOneStackAfterTheOther(t *testing.T) {
	p := begin(t, "waves-order")
	rollout, stacks := p.fleet("canary", "east", "west")
	p.enter(&sourcev1.ExternalArtifact{ObjectMeta: p.Meta(p.Name)}, stacks[0], stacks[1], stacks[2])
	first := p.publish(p.returning(1))
	// Without the StackRollout nothing is deployed.
	for _, stack := range stacks {
		p.Expect(systemtest.Output(p.AwaitStack(stack.Name, notReady(pulumiv1.RolloutNotFoundReason)), "x")).To(BeEmpty())
	}
	release := p.holdStack("canary")
	p.Create(rollout)
	for _, name := range []string{"east", "west"} {
		p.AwaitStack(name, notReady(pulumiv1.WaveNotOpenReason))
	}
	release()
	shown := p.awaitRollout(autov1alpha1.RolloutCompleteReason, first.Revision)
	p.Expect(conditions.IsTrue(shown, autov1alpha1.RolloutComplete)).To(BeTrue())
	p.Expect(shown.Status.Done).To(Equal("3/3"))
	p.Expect(shown.Status.Stable.Revision).To(Equal(first.Revision))
	order := p.order(first.Revision)
	p.Expect(order[0]).To(Equal("canary"))
	p.Expect(order).To(ConsistOf("canary", "east", "west"))

	// A failure of the canary reaches nobody else, and a commit that mends it reaches all.
	broken := p.publish(p.yaml("outputs:", "  x: ${missing}"))
	halted := p.awaitRollout(autov1alpha1.RolloutHaltedReason, broken.Revision)
	p.Expect(halted.Status.Failing).To(ConsistOf(HaveField("Stack", p.Name+"/canary")))
	p.Expect(halted.Status.Failing[0].Message).To(ContainSubstring("missing"))
	p.Expect(p.order(broken.Revision)).To(HaveEach("canary"))
	for _, name := range []string{"east", "west"} {
		stack := p.AwaitStack(name, ready(first.Digest))
		p.Expect(systemtest.Output(stack, "x")).To(Equal("1"))
	}

	mended := p.publish(p.returning(3))
	p.awaitRollout(autov1alpha1.RolloutCompleteReason, mended.Revision)
	p.Expect(p.order(mended.Revision)[0]).To(Equal("canary"))
	for _, stack := range stacks {
		p.Expect(systemtest.Output(p.AwaitStack(stack.Name, ready(mended.Digest)), "x")).To(Equal("3"))
	}

	// A Stack that comes later begins with what all have.
	_, late := p.fleet("late")
	p.Create(late[0])
	p.AwaitStack("late", ready(mended.Digest))
}

func TestHeldStackIsEditedWithTheRevisionThatItHas(t *testing.T) {
	p := begin(t, "waves-held")
	rollout, stacks := p.fleet("canary", "east")
	p.enter(&sourcev1.ExternalArtifact{ObjectMeta: p.Meta(p.Name)}, rollout, stacks[0], stacks[1])
	program := func(version string) []string {
		return []string{"config:", "  size: {type: string, default: small}", "outputs:", `  x: "` + version + ` ${size}"`}
	}
	first := p.publish(p.yaml(program("one")...))
	p.AwaitStack("east", systemtest.Showing(`"one small"`))

	release := p.holdStack("canary")
	second := p.publish(p.yaml(program("two")...))
	p.awaitRollout(autov1alpha1.RolloutProgressingReason, second.Revision)
	east := p.AwaitStack("east", ready(first.Digest))
	p.Expect(conditions.Has(east, pulumiv1.HeldCondition)).To(BeFalse(), "most Stacks get their turn before it matters")

	// Everything else goes on, with what the Stack has.
	large := func(stack *pulumiv1.Stack) {
		stack.Spec.Config = map[string]apiextensionsv1.JSON{"size": {Raw: []byte(`"large"`)}}
	}
	p.ChangeStack("east", large)
	p.AwaitStack("east", systemtest.Showing(`"one large"`))
	p.RequestStack("east")
	p.Eventually(func() int {
		return len(slices.DeleteFunc(p.Updates(), func(update autov1alpha1.Update) bool {
			return update.Spec.WorkspaceName != "east" || !strings.HasPrefix(ptr.Deref(update.Spec.Message, ""), "Sync request")
		}))
	}).Should(Equal(1))
	p.AwaitStack("east", systemtest.Showing(`"one large"`))

	release()
	p.AwaitStack("canary", systemtest.Showing(`"two small"`))
	p.AwaitStack("east", systemtest.Showing(`"two large"`))
	p.Expect(p.awaitRollout(autov1alpha1.RolloutCompleteReason, second.Revision).Status.Done).To(Equal("2/2"))
}

// The update of a Stack ends after its turn: what it has is what it ran, and not what it had when the update began.
func TestStackWhoseRevisionIsSupersededWhileItRunsDoesNotGoBack(t *testing.T) {
	suite.Long(t, "a commit in the middle of a wave, as in the walks of internal/controller/rollout")
	p := begin(t, "waves-superseded")
	rollout, stacks := p.fleet("canary", "east")
	p.enter(&sourcev1.ExternalArtifact{ObjectMeta: p.Meta(p.Name)}, rollout, stacks[0], stacks[1])
	first := p.publish(p.returning(1))
	p.awaitRollout(autov1alpha1.RolloutCompleteReason, first.Revision)
	releaseEast := p.holdStack("east")
	second := p.publish(p.returning(2))
	p.Eventually(func() []string { return p.order(second.Revision) }).Should(Equal([]string{"canary", "east"}))
	releaseCanary := p.holdStack("canary")
	third := p.publish(p.returning(3))
	p.awaitRollout(autov1alpha1.RolloutProgressingReason, third.Revision)
	releaseEast()
	p.AwaitStack("east", ready(second.Digest))
	p.Expect(p.order(first.Revision)).To(ConsistOf("canary", "east"))
	releaseCanary()
	p.AwaitStack("east", ready(third.Digest))
	p.Expect(p.order(first.Revision)).To(ConsistOf("canary", "east"), "one update each")
	p.Expect(p.order(second.Revision)).To(ConsistOf("canary", "east"))
}

// A new controller without a volume begins with an empty store, and source-controller keeps only the newest artifact.
func TestHeldStackWhoseRevisionIsGoneWaitsForItsTurn(t *testing.T) {
	suite.Long(t, "restarts the controller")
	p := alone(t, "waves-gone")
	rollout, stacks := p.fleet("canary", "east")
	p.enter(&sourcev1.ExternalArtifact{ObjectMeta: p.Meta(p.Name)}, rollout, stacks[0], stacks[1])
	p.publish(p.returning(1))
	p.AwaitStack("east", systemtest.Showing("1"))
	release := p.holdStack("canary")
	second := p.publish(p.returning(2))
	p.awaitRollout(autov1alpha1.RolloutProgressingReason, second.Revision)
	p.stopController()
	p.Succeed(os.RemoveAll(filepath.Join(system.Dir, "data", "artifacts")))
	p.startController()
	p.AwaitStack("canary", func(stack *pulumiv1.Stack) bool { return stack.Status.CurrentUpdate != nil })
	p.AwaitStack("east", ready("")) // it needs no files to stay as it is
	p.ChangeStack("east", func(stack *pulumiv1.Stack) { stack.Spec.Refresh = true })
	east := p.AwaitStack("east", notReady(pulumiv1.RevisionNotKeptReason))
	p.Expect(statuscheck.Message(east)).To(And(ContainSubstring("v1 is no longer kept"), ContainSubstring(pulumiv1.ReleaseRevisionAnnotation)))
	p.Expect(systemtest.Output(east, "x")).To(Equal("1"))
	release()
	p.AwaitStack("east", systemtest.Showing("2"))
}

func TestStackWithoutItsStackRolloutGetsNothingNew(t *testing.T) {
	p := begin(t, "waves-missing")
	rollout, stacks := p.fleet("canary")
	p.enter(&sourcev1.ExternalArtifact{ObjectMeta: p.Meta(p.Name)}, stacks[0])
	first := p.publish(p.returning(1))
	p.AwaitStack("canary", notReady(pulumiv1.RolloutNotFoundReason))
	p.Create(rollout)
	p.AwaitStack("canary", ready(first.Digest))
	p.Expect(system.Client.Delete(p.Context(), rollout)).To(Succeed())
	p.publish(p.returning(2))
	p.Consistently(func() string {
		stack := &pulumiv1.Stack{}
		p.Get("canary", stack)
		return systemtest.Output(stack, "x")
	}).WithTimeout(2 * time.Second).Should(Equal("1"))
	p.AwaitStack("canary", ready(first.Digest))
	p.ChangeStack("canary", func(stack *pulumiv1.Stack) { stack.Spec.RolloutRef = nil })
	p.AwaitStack("canary", systemtest.Showing("2"))
}

func TestWaveIsPromotedByAnApproval(t *testing.T) {
	p := begin(t, "waves-promoted")
	rollout, stacks := p.fleet("canary", "east")
	rollout.Spec.Waves[1].Promotion = autov1alpha1.PromoteManual
	p.enter(&sourcev1.ExternalArtifact{ObjectMeta: p.Meta(p.Name)}, rollout, stacks[0], stacks[1])
	first := p.publish(p.returning(1))
	decide := func(name string, decision autov1alpha1.ApprovalDecision, wave, revision string) *autov1alpha1.Approval {
		approval := &autov1alpha1.Approval{ObjectMeta: p.Meta(name), Spec: autov1alpha1.ApprovalSpec{
			Rollout: rollout.Name, Wave: wave, Revision: revision, Decision: decision, By: "alice"}}
		p.Create(approval)
		p.Eventually(func(g Gomega) {
			p.Get(name, approval)
			g.Expect(conditions.Has(approval, autov1alpha1.ApprovalAccepted)).To(BeTrue())
		}).Should(Succeed())
		return approval
	}
	refused := func(approval *autov1alpha1.Approval) string {
		p.Expect(conditions.IsFalse(approval, autov1alpha1.ApprovalAccepted)).To(BeTrue())
		return conditions.GetReason(approval, autov1alpha1.ApprovalAccepted)
	}
	p.awaitRollout(autov1alpha1.PromotionRequiredReason, first.Revision)
	p.Expect(refused(decide("other", autov1alpha1.ApprovalApprove, "rest", "v0"))).To(Equal(autov1alpha1.RevisionNotTargetReason))
	p.Expect(refused(decide("none", autov1alpha1.ApprovalApprove, "last", first.Revision))).To(Equal(autov1alpha1.WaveNotFoundReason))
	p.AwaitStack("east", notReady(pulumiv1.WaveNotOpenReason))
	counts := decide("first", autov1alpha1.ApprovalApprove, "rest", first.Revision)
	p.Expect(conditions.IsTrue(counts, autov1alpha1.ApprovalAccepted)).To(BeTrue())
	p.Expect(counts.Status.TargetDigest).To(Equal(first.Digest))
	p.Expect(counts.OwnerReferences).To(ConsistOf(HaveField("Kind", autov1alpha1.StackRolloutKind)))
	p.AwaitStack("east", ready(first.Digest))

	second := p.publish(p.returning(2))
	p.awaitRollout(autov1alpha1.PromotionRequiredReason, second.Revision)
	decide("stop", autov1alpha1.ApprovalReject, "", second.Revision)
	rejected := p.awaitRollout(autov1alpha1.RevisionRejectedReason, second.Revision)
	p.Expect(rejected.Status.Rejected).To(Equal(second.Revision))
	p.AwaitStack("east", ready(first.Digest))
	// One Stack may have it nevertheless, if somebody says so.
	p.ChangeStack("east", systemtest.Annotate(pulumiv1.ReleaseRevisionAnnotation, second.Revision))
	p.AwaitStack("east", ready(second.Digest))

	third := p.publish(p.returning(3))
	p.awaitRollout(autov1alpha1.PromotionRequiredReason, third.Revision)
	decide("all", autov1alpha1.ApprovalApprove, "", third.Revision)
	p.awaitRollout(autov1alpha1.RolloutCompleteReason, third.Revision)
}

func TestOldApprovalsOfAStackRolloutAreDeleted(t *testing.T) {
	suite.Long(t, "many Approvals")
	p := begin(t, "waves-approvals")
	rollout, stacks := p.fleet("canary")
	p.enter(&sourcev1.ExternalArtifact{ObjectMeta: p.Meta(p.Name)}, rollout, stacks[0])
	p.publish(p.returning(1))
	p.AwaitStack("canary", systemtest.Showing("1"))
	release := p.holdStack("canary")
	target := p.publish(p.returning(2))
	p.awaitRollout(autov1alpha1.RolloutProgressingReason, target.Revision)
	approval := func(name string, decision autov1alpha1.ApprovalDecision) *autov1alpha1.Approval {
		return &autov1alpha1.Approval{ObjectMeta: p.Meta(name), Spec: autov1alpha1.ApprovalSpec{
			Rollout: rollout.Name, Revision: target.Revision, Decision: decision, By: "alice"}}
	}
	p.Create(approval("a-stop", autov1alpha1.ApprovalReject))
	p.awaitRollout(autov1alpha1.RevisionRejectedReason, target.Revision)
	for i := range 25 {
		p.Create(approval(fmt.Sprintf("b%02d", i), autov1alpha1.ApprovalApprove))
	}
	names := func() (names []string) {
		list := &autov1alpha1.ApprovalList{}
		p.Succeed(system.Client.List(p.Context(), list, client.InNamespace(p.Name)))
		for i := range list.Items {
			names = append(names, list.Items[i].Name)
		}
		return names
	}
	p.Eventually(names).Should(HaveLen(21))
	p.Expect(names()).To(ContainElement("a-stop"), "many Approvals do not take a rejection back")
	p.awaitRollout(autov1alpha1.RevisionRejectedReason, target.Revision)
	release()
}

// The content of a directory that did not change needs no turn: a revert reaches the Stacks that never had the commit without an update.
func TestRevisionThatChangesNothingForAStackNeedsNoTurn(t *testing.T) {
	p := begin(t, "waves-unchanged")
	rollout, stacks := p.fleet("canary", "east")
	p.enter(&sourcev1.ExternalArtifact{ObjectMeta: p.Meta(p.Name)}, rollout, stacks[0], stacks[1])
	p.publish(p.returning(1))
	p.AwaitStack("east", systemtest.Showing("1"))
	broken := p.publish(p.yaml("outputs:", "  x: ${missing}"))
	p.awaitRollout(autov1alpha1.RolloutHaltedReason, broken.Revision)

	revert := p.publish(p.returning(1))
	shown := p.awaitRollout(autov1alpha1.RolloutCompleteReason, revert.Revision)
	p.Expect(shown.Status.Waves[1].Unchanged).To(BeEquivalentTo(1))
	p.Expect(p.order(revert.Revision)).To(Equal([]string{"canary"}))
	east := p.AwaitStack("east", ready(revert.Digest))
	p.Expect(east.Status.LastAppliedRevision).To(Equal(revert.Revision))
}
