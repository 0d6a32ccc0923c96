package e2e_test

import (
	"testing"
	"time"

	. "github.com/onsi/gomega"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/fluxcd/pkg/runtime/conditions"
	sourcev1 "github.com/fluxcd/source-controller/api/v1"

	autov1alpha1 "github.com/stack-controller/stack-controller/api/auto/v1alpha1"
	pulumiv1 "github.com/stack-controller/stack-controller/api/pulumi/v1"
	"github.com/stack-controller/stack-controller/tests/framework/statuscheck"
	"github.com/stack-controller/stack-controller/tests/framework/suite"
	"github.com/stack-controller/stack-controller/tests/framework/systemtest"
)

// freeze returns windows that forbid changes until some time from now, to the second.
func freeze(left time.Duration) []autov1alpha1.Window {
	now := time.Now().Truncate(time.Second)
	return []autov1alpha1.Window{{Policy: autov1alpha1.WindowDeny, From: new(metav1.NewTime(now.Add(-time.Hour))), Until: new(metav1.NewTime(now.Add(left)))}}
}

// frozen makes the windows of a Stack forbid changes for some time.
func frozen(left time.Duration) func(*pulumiv1.Stack) {
	return func(stack *pulumiv1.Stack) { stack.Spec.Windows = freeze(left) }
}

func TestWindowHoldsUpdatesUntilItOpens(t *testing.T) {
	p := begin(t, "window")
	held, other := p.newStack(), system.NewStack(p.Name, "other", sourcev1.ExternalArtifactKind)
	held.Spec.DestroyOnFinalize, held.Spec.Windows = true, freeze(time.Hour)
	other.Spec.Stack, other.Spec.FluxSource.SourceRef.Name = "other", held.Spec.FluxSource.SourceRef.Name
	p.enter(&sourcev1.ExternalArtifact{ObjectMeta: p.Meta(other.Spec.FluxSource.SourceRef.Name)}, held, other)
	first := p.publish(p.returning(1))
	// The first update is held.
	stack := p.AwaitStack(held.Name, notReady(pulumiv1.WindowClosedReason))
	p.Expect(conditions.IsStalled(stack)).To(BeTrue())
	p.Expect(statuscheck.Message(stack)).To(MatchRegexp("^Initial stack update: window 1 forbids changes until .*Z$"))
	p.Eventually(p.events).WithArguments(pulumiv1.WindowClosedReason).Should(HaveLen(1))
	p.ChangeStack(held.Name, func(stack *pulumiv1.Stack) { stack.Spec.Windows = nil })
	p.AwaitStack(held.Name, ready(first.Digest))

	// A commit is held, too, and the Stack stays ready: it has what its spec asks for.
	p.ChangeStack(held.Name, frozen(time.Hour))
	p.AwaitStack(held.Name, func(stack *pulumiv1.Stack) bool { return stack.Status.ObservedGeneration == stack.Generation })
	second := p.publish(p.returning(2))
	p.AwaitStack("other", ready(second.Digest))
	p.AwaitStack(held.Name, ready(first.Digest))
	// So it does when it is edited in a way that needs no update.
	p.ChangeStack(held.Name, frozen(2*time.Hour))
	p.AwaitStack(held.Name, func(stack *pulumiv1.Stack) bool {
		return stack.Status.ObservedGeneration == stack.Generation && conditions.IsReady(stack)
	})
	p.AwaitStack(held.Name, ready(first.Digest))
	// Somebody who asks for an update is told. What was asked for comes when the window closes.
	p.RequestStack(held.Name)
	stack = p.AwaitStack(held.Name, notReady(pulumiv1.WindowClosedReason))
	p.Expect(systemtest.Output(stack, "x")).To(Equal("1"))
	before := len(p.Updates())
	p.ChangeStack(held.Name, frozen(3*time.Second))
	stack = p.AwaitStack(held.Name, ready(second.Digest))
	p.Expect(stack.Status.LastUpdate.LastResyncTime.Time).To(BeTemporally(">=", stack.Spec.Windows[0].Until.Time))
	p.Expect(p.Updates()).To(HaveLen(before+1), "one update is for the commit and the request")

	// So is the end.
	p.ChangeStack(held.Name, frozen(time.Hour))
	p.Succeed(system.Client.Delete(p.Context(), stack))
	stack = p.AwaitStack(held.Name, notReady(pulumiv1.WindowClosedReason))
	p.Expect(statuscheck.Message(stack)).To(ContainSubstring(pulumiv1.OrphanAnnotation))
	p.ChangeStack(held.Name, frozen(time.Second))
	p.awaitDestroyed()
}

func TestWindowThatOpensAfterARestartLetsTheUpdateBegin(t *testing.T) {
	suite.Long(t, "restarts the controller")
	p := alone(t, "window-restart")
	stack := p.newStack()
	p.enter(&sourcev1.ExternalArtifact{ObjectMeta: p.Meta(stack.Spec.FluxSource.SourceRef.Name)}, stack)
	first := p.publish(p.returning(1))
	p.AwaitStack(stack.Name, ready(first.Digest))
	p.ChangeStack(stack.Name, frozen(15*time.Second))
	second := p.publish(p.returning(2))
	p.restartController()
	after := p.AwaitStack(stack.Name, ready(second.Digest))
	p.Expect(after.Status.LastUpdate.LastResyncTime.Time).To(BeTemporally(">=", after.Spec.Windows[0].Until.Time))
}

func TestUpdateThatAWindowTakesBackHasNotRun(t *testing.T) {
	p := begin(t, "taken-back")
	stack := p.newStack()
	p.enter(&sourcev1.ExternalArtifact{ObjectMeta: p.Meta(stack.Spec.FluxSource.SourceRef.Name)}, stack)
	first := p.publish(p.returning(1))
	p.AwaitStack(stack.Name, ready(first.Digest))
	p.ChangeStack(stack.Name, func(stack *pulumiv1.Stack) {
		stack.Spec.EnvRefs["MISSING"] = pulumiv1.ResourceRef{Type: pulumiv1.ResourceRefSecret, SecretRef: &pulumiv1.SecretSelector{Name: "missing", Key: "key"}}
	})
	p.AwaitStack(stack.Name, notReady(pulumiv1.SecretNotFoundReason))
	p.ChangeStack(stack.Name, func(stack *pulumiv1.Stack) {
		delete(stack.Spec.EnvRefs, "MISSING")
		stack.Spec.Windows = freeze(time.Hour)
	})
	stack = p.AwaitStack(stack.Name, func(stack *pulumiv1.Stack) bool {
		return ready(first.Digest)(stack) && stack.Status.CurrentUpdate == nil
	})
	p.Expect(stack.Status.LastUpdate.PendingOperations).To(BeFalse(), "drift can be looked for")
}

func TestWindowsOfAStackRolloutHoldTurns(t *testing.T) {
	suite.Long(t, "windows of a rollout; the tests of internal/controller/rollout prove when they hold turns")
	p := begin(t, "waves-windows")
	rollout, stacks := p.fleet("canary", "east")
	p.enter(&sourcev1.ExternalArtifact{ObjectMeta: p.Meta(p.Name)}, rollout, stacks[0], stacks[1])
	first := p.publish(p.returning(1))
	p.awaitRollout(autov1alpha1.RolloutCompleteReason, first.Revision)
	set := func(windows []autov1alpha1.Window) {
		p.Eventually(func() error {
			rollout := p.rollout()
			rollout.Spec.Windows = windows
			return system.Client.Update(p.Context(), rollout)
		}).Should(Succeed())
	}
	release := p.holdStack("canary")
	second := p.publish(p.returning(2))
	p.awaitRollout(autov1alpha1.RolloutProgressingReason, second.Revision)
	p.Eventually(func() []string { return p.order(second.Revision) }).Should(Equal([]string{"canary"}))
	set(freeze(time.Hour))
	p.awaitRollout(autov1alpha1.RolloutWindowClosedReason, second.Revision)
	release()
	p.AwaitStack("canary", ready(second.Digest)) // what runs goes on
	p.AwaitStack("east", ready(first.Digest))
	set(freeze(2 * time.Second))
	p.awaitRollout(autov1alpha1.RolloutCompleteReason, second.Revision)
	p.AwaitStack("east", ready(second.Digest))
}
