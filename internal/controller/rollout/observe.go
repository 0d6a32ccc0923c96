package rollout

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"sigs.k8s.io/controller-runtime/pkg/client"

	autov1alpha1 "github.com/stack-controller/stack-controller/api/auto/v1alpha1"
	pulumiv1 "github.com/stack-controller/stack-controller/api/pulumi/v1"
	"github.com/stack-controller/stack-controller/internal/controller/plans"
	"github.com/stack-controller/stack-controller/internal/informercache"
	"github.com/stack-controller/stack-controller/internal/namespaces"
	"github.com/stack-controller/stack-controller/internal/waves"
)

// namespace is what a StackRollout has to know of a namespace with Stacks that name it.
type namespace struct {
	admitted bool
	labels   map[string]string
}

// namespacesOf returns all namespaces of the Stacks. The error says why nobody knows which of them are selected; then none is admitted but that
// of the StackRollout.
func (r *Reconciler) namespacesOf(rollout *autov1alpha1.StackRollout, stacks []pulumiv1.Stack) (known map[string]*namespace, err error) {
	known = map[string]*namespace{}
	byLabels := waves.SelectsByNamespace(rollout.Spec.Waves)
	for i := range stacks {
		name := stacks[i].Namespace
		if known[name] != nil {
			continue
		}
		found := &namespace{}
		known[name] = found
		admitted, problem := waves.Admits(rollout, name, r.Namespaces)
		if found.admitted = admitted; problem == nil && byLabels {
			found.labels, problem = r.Namespaces.Labels(name)
		}
		if problem != nil {
			err = problem
		}
	}
	return known, err
}

// observe reads what a decision is made from. All of it is in caches, except large Stacks that have to be
// checked; and its own source is looked at again if the cache seems to be behind.
func (r *Reconciler) observe(ctx context.Context, rollout *autov1alpha1.StackRollout) (*observation, error) {
	o := &observation{now: time.Now(), started: r.started, rollout: rollout}
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
		o.commit, o.unwatched = found.Origin.Commit, !found.Watched
	}
	stacks, err := stacksOf(ctx, r.stacks(), client.ObjectKeyFromObject(rollout))
	if err != nil {
		return nil, err
	}
	admitted := make([]*pulumiv1.Stack, 0, len(stacks))
	refuse := func(list *[]autov1alpha1.RolloutFailure, stack *pulumiv1.Stack, message string) {
		*list = append(*list, autov1alpha1.RolloutFailure{Stack: waves.Name(stack.Namespace, stack.Name), Message: message})
	}
	others := r.sourcesLike(ctx, rollout, found)
	var known map[string]*namespace
	if known, o.unknownNamespace = r.namespacesOf(rollout, stacks); errors.Is(o.unknownNamespace, namespaces.ErrNotYet) {
		return nil, o.unknownNamespace
	}
	for i := range stacks {
		stack := &stacks[i]
		if !known[stack.Namespace].admitted {
			if o.unknownNamespace == nil {
				refuse(&o.uninvited, stack, "spec.allowedNamespaces does not admit its namespace")
			}
		} else if problem := others.check(stack); problem != "" {
			refuse(&o.refused, stack, problem)
		} else {
			admitted = append(admitted, stack)
		}
	}
	o.unwatched, o.published = o.unwatched || others.unwatched, others.published
	for _, list := range []*[]autov1alpha1.RolloutFailure{&o.refused, &o.uninvited} {
		// The cache has the Stacks in no order.
		slices.SortFunc(*list, func(a, b autov1alpha1.RolloutFailure) int { return cmp.Compare(a.Stack, b.Stack) })
		*list = (*list)[:min(len(*list), maxRefused)]
	}
	o.observeAgain = func(status *autov1alpha1.StackRolloutStatus) []*waves.Member {
		members, turns := make([]*waves.Member, len(admitted)), waves.Turns(status)
		for i, stack := range admitted {
			members[i] = waves.Observe(stack, rollout, status)
			members[i].Behind, members[i].HasTurn = others.isBehind(stack, status), turns[members[i].NamespacedName]
			members[i].NamespaceLabels = known[stack.Namespace].labels
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
		if approval := &list.Items[i]; plans.Counts(approval) {
			spec := approval.Spec
			spec.Digest = plans.RevisionOf(approval).Digest
			o.approvals = append(o.approvals, spec)
		}
	}
	return o, nil
}
