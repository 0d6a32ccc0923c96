package rollout

import (
	"context"
	"fmt"
	"slices"

	"sigs.k8s.io/controller-runtime/pkg/client"

	autov1alpha1 "github.com/stack-controller/stack-controller/api/auto/v1alpha1"
	pulumiv1 "github.com/stack-controller/stack-controller/api/pulumi/v1"
	"github.com/stack-controller/stack-controller/internal/informercache"
	"github.com/stack-controller/stack-controller/internal/source"
	"github.com/stack-controller/stack-controller/internal/waves"
)

// A StackRollout belongs to the controller whose selector matches its labels, and its Stacks may belong to others. That controller decides for
// all of them, so it has a cache of the Stacks of all shards. Every controller reads the status of every StackRollout, and keeps the artifacts
// that its own Stacks may need.

// addIndexes adds the indexes of the cache with the Stacks of all shards. The Stack controller adds them to the one of its shard.
func (r *Reconciler) addIndexes(ctx context.Context) error {
	for field, value := range map[string]func(*pulumiv1.Stack) string{
		informercache.StacksBySource: r.Sources.Key,
		informercache.StacksByRollout: func(stack *pulumiv1.Stack) string {
			if key, named := waves.RolloutOf(stack); named {
				return key.String()
			}
			return ""
		},
	} {
		err := r.AllStacks.IndexField(ctx, &pulumiv1.Stack{}, field, func(object client.Object) []string {
			if found := value(object.(*pulumiv1.Stack)); found != "" {
				return []string{found}
			}
			return nil
		})
		if err != nil {
			return fmt.Errorf("index the stacks of all shards by %s: %w", field, err)
		}
	}
	return nil
}

// stacks returns the reader with the Stacks of all shards.
func (r *Reconciler) stacks() client.Reader {
	if r.AllStacks != nil {
		return r.AllStacks
	}
	return r.Client
}

// CacheTransform keeps of a Stack of any shard what a StackRollout has to know, and what a check may read: 2 to 3 kB without outputs.
func CacheTransform(object any) (any, error) {
	stack, ok := object.(*pulumiv1.Stack)
	if !ok {
		return source.CacheTransform(object)
	}
	stack.Annotations, stack.ManagedFields, stack.OwnerReferences, stack.Finalizers = nil, nil, nil, nil
	spec, status := &stack.Spec, &stack.Status
	if spec.RolloutRef == nil {
		*spec, *status, stack.Labels = pulumiv1.StackSpec{}, pulumiv1.StackStatus{}, nil
		return stack, nil
	}
	*spec = pulumiv1.StackSpec{
		Stack: spec.Stack, Branch: spec.Branch, Commit: spec.Commit, Suspend: spec.Suspend, Preview: spec.Preview, RolloutRef: spec.RolloutRef,
		FluxSource: spec.FluxSource, ProgramRef: spec.ProgramRef, DependsOn: spec.DependsOn, Prerequisites: spec.Prerequisites,
		Inputs: giversOf(spec.Inputs), Windows: spec.Windows, ShareOutputs: spec.ShareOutputs, Approval: spec.Approval,
	}
	status.History, status.LeftStacks, status.OutputObjects, status.StoredOutputs = nil, nil, nil, nil
	if plan := status.Plan; plan != nil {
		status.Plan = &pulumiv1.PlanStatus{Name: plan.Name, State: plan.State, Operation: plan.Operation}
		status.Plan.Commit, status.Plan.Revision = plan.Commit, plan.Revision
	}
	if drift := status.Drift; drift != nil {
		drift.Resources, drift.Correction = nil, nil
	}
	return stack, nil
}

// giversOf keeps of the inputs only the Stacks whose outputs they are, each once for a name and a namespace.
func giversOf(inputs []autov1alpha1.Input) (givers []autov1alpha1.Input) {
	for i := range inputs {
		if from := inputs[i].Stack; from != nil {
			giver := autov1alpha1.StackOutput{Name: from.Name, Namespace: from.Namespace}
			if !slices.ContainsFunc(givers, func(known autov1alpha1.Input) bool { return *known.Stack == giver }) {
				givers = append(givers, autov1alpha1.Input{Stack: &giver})
			}
		}
	}
	return givers
}

// keepForShard keeps the artifacts that the Stacks of this shard may need of a StackRollout of another one.
func (r *Reconciler) keepForShard(ctx context.Context, rollout *autov1alpha1.StackRollout) error {
	stacks, err := stacksOf(ctx, r.Client, client.ObjectKeyFromObject(rollout))
	if err != nil {
		return err
	}
	var members []*waves.Member
	for i := range stacks {
		members = append(members, waves.Observe(&stacks[i], rollout, &rollout.Status))
	}
	var needed []string
	if len(members) > 0 {
		needed = neededBy(&rollout.Status, members)
	}
	r.Store.Keep(client.ObjectKeyFromObject(rollout).String(), needed)
	return nil
}
