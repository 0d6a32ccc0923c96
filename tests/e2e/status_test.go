package e2e_test

import (
	"context"
	"testing"

	. "github.com/onsi/gomega"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/fluxcd/pkg/apis/meta"
	"github.com/fluxcd/pkg/runtime/conditions"

	autov1alpha1 "github.com/stack-controller/stack-controller/api/auto/v1alpha1"
	pulumiv1 "github.com/stack-controller/stack-controller/api/pulumi/v1"
	"github.com/stack-controller/stack-controller/tests/statuscheck"
)

func keyOf(name string) types.NamespacedName {
	return types.NamespacedName{Namespace: name, Name: name}
}

// await returns the Stack once it is as asked, having checked its status against the rules of kstatus.
func await(ctx context.Context, g *WithT, name string, is func(*pulumiv1.Stack) bool) *pulumiv1.Stack {
	stack := &pulumiv1.Stack{}
	g.Eventually(func(g Gomega) {
		g.Expect(system.Client.Get(ctx, keyOf(name), stack)).To(Succeed())
		g.Expect(is(stack)).To(BeTrue(), "conditions: %v\nlast update: %+v", stack.Status.Conditions, stack.Status.LastUpdate)
	}).WithContext(ctx).WithTimeout(patience).WithPolling(pollInterval).Should(Succeed())
	lint(ctx, g, stack)
	return stack
}

// lint checks a status against the rules that Flux's own controllers follow.
func lint(ctx context.Context, g *WithT, stack *pulumiv1.Stack) {
	g.Expect(statuscheck.Lint(ctx, stack)).To(Succeed(), "conditions: %v", stack.Status.Conditions)
}

// ready is a Stack that has been deployed as its spec and its source's digest ask; any digest when empty.
func ready(digest string) func(*pulumiv1.Stack) bool {
	return func(stack *pulumiv1.Stack) bool {
		return conditions.IsReady(stack) && stack.Status.ObservedGeneration == stack.Generation && stack.Status.CurrentUpdate == nil &&
			(digest == "" || stack.Status.LastUpdate.LastSuccessfulCommit == digest)
	}
}

// notReady is a Stack whose Ready condition is false for the reason.
func notReady(reason string) func(*pulumiv1.Stack) bool {
	return func(stack *pulumiv1.Stack) bool {
		return conditions.IsFalse(stack, meta.ReadyCondition) && conditions.GetReason(stack, meta.ReadyCondition) == reason
	}
}

// change patches the Stack.
func change(ctx context.Context, g *WithT, name string, edit func(*pulumiv1.Stack)) {
	stack := &pulumiv1.Stack{}
	g.Expect(system.Client.Get(ctx, keyOf(name), stack)).To(Succeed())
	before := stack.DeepCopy()
	edit(stack)
	g.Expect(system.Client.Patch(ctx, stack, client.MergeFrom(before))).To(Succeed())
}

// updates returns the Updates in the namespace.
func updates(ctx context.Context, g *WithT, namespace string) []autov1alpha1.Update {
	var list autov1alpha1.UpdateList
	g.Expect(system.Client.List(ctx, &list, client.InNamespace(namespace))).To(Succeed())
	return list.Items
}

// awaitGone waits until the Stack is gone.
func awaitGone(ctx context.Context, g *WithT, name string) {
	g.Eventually(func() bool {
		return apierrors.IsNotFound(system.Client.Get(ctx, keyOf(name), &pulumiv1.Stack{}))
	}).WithContext(ctx).WithTimeout(patience).WithPolling(pollInterval).Should(BeTrue())
}

// stopController ends the controller. A test that fails before it has started the next one does not take it away from the other tests.
func stopController(t *testing.T, g *WithT) {
	t.Helper()
	g.Expect(system.StopController()).To(Succeed())
	stopped := system.Controller()
	t.Cleanup(func() {
		if system.Controller() == stopped {
			g.Expect(system.StartController(context.Background())).To(Succeed())
		}
	})
}
