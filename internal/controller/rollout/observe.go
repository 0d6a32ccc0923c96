package rollout

import (
	"context"
	"errors"
	"fmt"
	"time"

	"sigs.k8s.io/controller-runtime/pkg/client"

	autov1alpha1 "github.com/stack-controller/stack-controller/api/auto/v1alpha1"
	pulumiv1 "github.com/stack-controller/stack-controller/api/pulumi/v1"
	"github.com/stack-controller/stack-controller/internal/controller/plans"
	"github.com/stack-controller/stack-controller/internal/informercache"
	"github.com/stack-controller/stack-controller/internal/waves"
)

// observe reads what a decision is made from. All of it is in caches.
func (r *Reconciler) observe(ctx context.Context, rollout *autov1alpha1.StackRollout) (*observation, error) {
	o := &observation{now: time.Now(), rollout: rollout}
	own := follower(rollout)
	found, err := r.Sources.Resolve(ctx, own)
	if errors.As(err, &o.problem) {
		err = nil
	}
	if err != nil {
		return nil, fmt.Errorf("read the source: %w", err)
	}
	if found != nil {
		o.offer = &autov1alpha1.RolloutRevision{Revision: found.Revision, Digest: found.Digest}
	}
	stacks, err := stacksOf(ctx, r.stacks(), client.ObjectKeyFromObject(rollout))
	if err != nil {
		return nil, err
	}
	admitted := make([]*pulumiv1.Stack, 0, len(stacks))
	refuse := func(stack *pulumiv1.Stack, message string) {
		if len(o.refused) < maxRefused {
			o.refused = append(o.refused, autov1alpha1.RolloutFailure{Stack: waves.Name(stack.Namespace, stack.Name), Message: message})
		}
	}
	others := r.sourcesLike(ctx, rollout, found)
	for i := range stacks {
		stack := &stacks[i]
		if !waves.Admits(rollout, stack.Namespace) {
			refuse(stack, "spec.allowedNamespaces does not admit its namespace")
		} else if problem := others.check(stack); problem != "" {
			refuse(stack, problem)
		} else {
			admitted = append(admitted, stack)
		}
	}
	o.observeAgain = func(status *autov1alpha1.StackRolloutStatus) []*waves.Member {
		members := make([]*waves.Member, len(admitted))
		for i, stack := range admitted {
			members[i] = waves.Observe(stack, status)
			members[i].Behind = others.isBehind(stack, status)
		}
		return members
	}
	o.hours = r.hoursOf(client.ObjectKeyFromObject(rollout), len(admitted), o.now)
	o.check, o.invalidCheck = r.checksOf(ctx, rollout, admitted), checkExpressions(rollout.Spec.Waves)
	o.members = o.observeAgain(&rollout.Status)
	list := &autov1alpha1.ApprovalList{}
	err = r.List(ctx, list, client.InNamespace(rollout.Namespace), client.MatchingFields{informercache.ApprovalsByRollout: rollout.Name}, client.UnsafeDisableDeepCopy)
	if err != nil {
		return nil, fmt.Errorf("list the approvals of the stackrollout: %w", err)
	}
	for i := range list.Items {
		if plans.Counts(&list.Items[i]) {
			o.approvals = append(o.approvals, list.Items[i].Spec)
		}
	}
	return o, nil
}
