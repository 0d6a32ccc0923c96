package rollout

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	. "github.com/onsi/gomega"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/intstr"

	"github.com/fluxcd/pkg/apis/meta"
	sourcev1 "github.com/fluxcd/source-controller/api/v1"

	autov1alpha1 "github.com/stack-controller/stack-controller/api/auto/v1alpha1"
	pulumiv1 "github.com/stack-controller/stack-controller/api/pulumi/v1"
	"github.com/stack-controller/stack-controller/internal/source"
	"github.com/stack-controller/stack-controller/internal/waves"
	"github.com/stack-controller/stack-controller/internal/windows"
)

var noon = time.Date(2026, 11, 28, 12, 0, 0, 0, time.UTC)

// revision is what a source offers, or a Stack has; all with the same letter are the same.
func revision(letter string) autov1alpha1.RolloutRevision {
	return autov1alpha1.RolloutRevision{Revision: "main@sha1:" + repeat(letter, 40), Digest: "sha256:" + repeat(letter, 64)}
}

// letter returns what stands for the content of a revision, or of the digest of one.
func letter(digest string) string {
	if digest == "" {
		return ""
	}
	return strings.TrimPrefix(digest, "sha256:")[:1]
}

// packed returns the revision as a source with other rules of what to ignore offers it.
func packed(revision autov1alpha1.RolloutRevision) *autov1alpha1.RolloutRevision {
	return &autov1alpha1.RolloutRevision{Revision: revision.Revision, Digest: "sha256:" + letter(revision.Digest) + repeat("0", 63)}
}

func repeat(letter string, n int) string {
	text := ""
	for range n {
		text += letter
	}
	return text
}

// fleet is a StackRollout with its Stacks, a source, and a clock.
type fleet struct {
	*WithT
	rollout *autov1alpha1.StackRollout
	stacks  []*pulumiv1.Stack
	offer   *autov1alpha1.RolloutRevision
	problem *source.Problem
	// approvals are those that count.
	approvals []autov1alpha1.ApprovalSpec
	// started is when the controller was started; long ago if it is zero.
	now, started time.Time
	events       []string
	last         decision
	// refused are Stacks with another source, and uninvited those that are not admitted.
	refused, uninvited []autov1alpha1.RolloutFailure
	// published is when another source published something.
	published time.Time
	// unknownNamespace says why the labels of Namespaces are not known.
	unknownNamespace error
	// behind reports whether the source of a Stack does not offer the target; nil when all have the source of the StackRollout.
	behind func(*pulumiv1.Stack, *autov1alpha1.StackRolloutStatus) bool
	// reconciler remembers the windows of Stacks.
	reconciler Reconciler
}

func (f *fleet) hours(m *waves.Member) windows.State {
	return f.reconciler.hoursOf(types.NamespacedName{Name: f.rollout.Name}, len(f.stacks), f.now)(m)
}

// between returns a window from some time after noon until another.
func between(policy autov1alpha1.WindowPolicy, from, until time.Duration) autov1alpha1.Window {
	return autov1alpha1.Window{Policy: policy, From: new(metav1.NewTime(noon.Add(from))), Until: new(metav1.NewTime(noon.Add(until)))}
}

// newFleet returns a fleet with three Stacks in wave canary, and five in wave rest, all of which have revision a.
func newFleet(t *testing.T) *fleet {
	f := &fleet{WithT: NewWithT(t), now: noon, rollout: &autov1alpha1.StackRollout{
		Namespace: "platform", Name: "infrastructure", Generation: 1,
		Spec: autov1alpha1.StackRolloutSpec{
			SourceRef:         autov1alpha1.RolloutSource{Kind: sourcev1.GitRepositoryKind, Name: "infrastructure"},
			AllowedNamespaces: &autov1alpha1.AllowedNamespaces{From: autov1alpha1.FromAll},
			Waves: []autov1alpha1.RolloutWave{
				{Name: "canary", Stacks: &metav1.LabelSelector{MatchLabels: map[string]string{"tier": "canary"}}},
				{Name: "rest"},
			},
		},
	}}
	for i := range 8 {
		f.add(fmt.Sprintf("s%d", i), i < 3)
	}
	f.offer = new(revision("a"))
	f.decide()
	f.Expect(f.last.reason).To(Equal(autov1alpha1.RolloutCompleteReason))
	f.events = nil
	return f
}

func (f *fleet) add(name string, canary bool) *pulumiv1.Stack {
	stack := &pulumiv1.Stack{Namespace: "team", Name: name, UID: types.UID("uid-" + name), Generation: 1}
	if canary {
		stack.Labels = map[string]string{"tier": "canary"}
	}
	stack.Spec.RolloutRef = &pulumiv1.RolloutReference{Name: f.rollout.Name, Namespace: f.rollout.Namespace}
	stack.Spec.FluxSource = &pulumiv1.FluxSource{SourceRef: pulumiv1.FluxSourceReference{
		Kind: sourcev1.GitRepositoryKind, Namespace: f.rollout.Namespace, Name: f.rollout.Spec.SourceRef.Name}}
	f.stacks = append(f.stacks, stack)
	succeed(stack, "a")
	stack.Status.LastUpdate.LastResyncTime = metav1.NewTime(noon.Add(-24 * time.Hour))
	return stack
}

// succeed makes the Stack report that it was updated to the revision.
func succeed(stack *pulumiv1.Stack, letter string) {
	unchanged(stack, letter)
	stack.Status.LastUpdate = &pulumiv1.StackUpdateStatus{State: pulumiv1.StackUpdateSucceeded,
		LastAttemptedCommit: revision(letter).Digest, LastSuccessfulCommit: revision(letter).Digest}
	stack.Status.LastUpdate.Revision = revision(letter).Revision
}

// unchanged makes the Stack report that the revision changes nothing for it.
func unchanged(stack *pulumiv1.Stack, letter string) {
	stack.Status.ObservedGeneration = stack.Generation
	stack.Status.LastAppliedRevision, stack.Status.LastAttemptedRevision = revision(letter).Revision, revision(letter).Revision
	if last := stack.Status.LastUpdate; last != nil {
		last.LastAttemptedCommit, last.LastSuccessfulCommit = revision(letter).Digest, revision(letter).Digest
	}
	stack.Status.Conditions = []metav1.Condition{{Type: meta.ReadyCondition, Status: metav1.ConditionTrue, ObservedGeneration: stack.Generation}}
}

// fail makes the Stack report that its update to the revision failed.
func fail(stack *pulumiv1.Stack, letter string) {
	successful := ""
	if last := stack.Status.LastUpdate; last != nil {
		successful = last.LastSuccessfulCommit
	}
	stack.Status.LastUpdate = &pulumiv1.StackUpdateStatus{State: pulumiv1.StackUpdateFailed, Failures: 1, Message: "quota exceeded",
		LastAttemptedCommit: revision(letter).Digest, LastSuccessfulCommit: successful}
	stack.Status.LastUpdate.Revision = revision(letter).Revision
	stack.Status.Conditions = []metav1.Condition{{Type: meta.ReadyCondition, Status: metav1.ConditionFalse}}
}

// areBehind returns a function for fleet.behind.
func areBehind(stacks ...*pulumiv1.Stack) func(*pulumiv1.Stack, *autov1alpha1.StackRolloutStatus) bool {
	return func(stack *pulumiv1.Stack, _ *autov1alpha1.StackRolloutStatus) bool {
		return slices.Contains(stacks, stack)
	}
}

func (f *fleet) decide() decision {
	observeAgain := func(status *autov1alpha1.StackRolloutStatus) (members []*waves.Member) {
		turns := waves.Turns(status)
		for _, stack := range f.stacks {
			m := waves.Observe(stack, f.rollout, status)
			m.HasTurn, m.Behind = turns[m.NamespacedName], f.behind != nil && f.behind(stack, status)
			members = append(members, m)
		}
		return members
	}
	f.last = decide(observation{now: f.now, started: f.started, rollout: f.rollout, offer: f.offer, problem: f.problem, published: f.published,
		members: observeAgain(&f.rollout.Status), observeAgain: observeAgain, approvals: f.approvals, refused: f.refused, uninvited: f.uninvited, unknownNamespace: f.unknownNamespace,
		hours: f.hours, check: f.reconciler.checksOf(context.Background(), f.rollout, f.stacks), invalidCheck: checkExpressions(f.rollout.Spec.Waves)})
	f.rollout.Status = f.last.status
	mark(f.rollout, f.last)
	for _, event := range f.last.events {
		f.events = append(f.events, event.reason)
	}
	return f.last
}

// offers makes the source offer the revision.
func (f *fleet) offers(letter string) decision {
	f.offer = new(revision(letter))
	return f.decide()
}

func (f *fleet) approve(decision autov1alpha1.ApprovalDecision, wave, letter string) {
	f.approvals = append(f.approvals, autov1alpha1.ApprovalSpec{Rollout: f.rollout.Name, Wave: wave, Revision: revision(letter).Revision, Digest: revision(letter).Digest,
		Decision: decision, By: "alice"})
}

// turns returns the Stacks that have a turn and are not done yet.
func (f *fleet) turns() (stacks []*pulumiv1.Stack) {
	for _, stack := range f.stacks {
		if waves.HasTurn(&f.rollout.Status, stack.Namespace, stack.Name) {
			stacks = append(stacks, stack)
		}
	}
	return stacks
}

func (f *fleet) state(wave string) autov1alpha1.RolloutWaveState {
	for _, entry := range f.rollout.Status.Waves {
		if entry.Name == wave {
			return entry.State
		}
	}
	return ""
}

// finish makes all that have a turn succeed, until nobody gets another one.
func (f *fleet) finish(letter string) {
	for range 100 {
		turns := f.turns()
		if len(turns) == 0 {
			return
		}
		for _, stack := range turns {
			succeed(stack, letter)
		}
		f.decide()
	}
	f.Expect("the turns").To(BeEmpty())
}

func number(n int) *intstr.IntOrString        { return new(intstr.FromInt32(int32(n))) }
func percent(text string) *intstr.IntOrString { return new(intstr.FromString(text)) }
