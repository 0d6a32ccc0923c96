package statuscheck

import (
	"context"
	"fmt"
	"time"

	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/fluxcd/pkg/apis/meta"
	"github.com/fluxcd/pkg/runtime/conditions"

	pulumiv1 "github.com/stack-controller/stack-controller/api/pulumi/v1"
)

// pollInterval is how often a Stack is looked at.
const pollInterval = 50 * time.Millisecond

// Await returns the Stack once it is as asked, having checked its status against the rules. Its error tells how the Stack
// stood when the context ended.
func Await(ctx context.Context, from client.Reader, key client.ObjectKey, is func(*pulumiv1.Stack) bool) (*pulumiv1.Stack, error) {
	ticker := time.NewTicker(pollInterval)
	defer ticker.Stop()
	stack := &pulumiv1.Stack{}
	for {
		err := from.Get(ctx, key, stack)
		if err == nil && is(stack) {
			return stack, Lint(ctx, stack)
		}
		if err != nil && ctx.Err() == nil {
			return nil, fmt.Errorf("read Stack %s: %w", key, err)
		}
		select {
		case <-ctx.Done():
			return stack, fmt.Errorf("await the state of Stack %s: %w\nconditions: %v\nlast update: %+v",
				key, context.Cause(ctx), stack.Status.Conditions, stack.Status.LastUpdate)
		case <-ticker.C:
		}
	}
}

// Ready is a Stack that has been deployed as its spec asks, at the commit; at any when that is empty.
func Ready(commit string) func(*pulumiv1.Stack) bool {
	return func(stack *pulumiv1.Stack) bool {
		return conditions.IsReady(stack) && stack.Status.ObservedGeneration == stack.Generation && stack.Status.CurrentUpdate == nil &&
			(commit == "" || stack.Status.LastUpdate.LastSuccessfulCommit == commit)
	}
}

// NotReady is a Stack whose Ready condition is false for the reason.
func NotReady(reason string) func(*pulumiv1.Stack) bool {
	return func(stack *pulumiv1.Stack) bool {
		return conditions.IsFalse(stack, meta.ReadyCondition) && conditions.GetReason(stack, meta.ReadyCondition) == reason
	}
}

// Message is the message of the Stack's Ready condition.
func Message(stack *pulumiv1.Stack) string { return conditions.GetMessage(stack, meta.ReadyCondition) }
