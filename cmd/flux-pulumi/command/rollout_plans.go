package command

import (
	"cmp"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"golang.org/x/sync/errgroup"
	"sigs.k8s.io/controller-runtime/pkg/client"

	autov1alpha1 "github.com/stack-controller/stack-controller/api/auto/v1alpha1"
	pulumiv1 "github.com/stack-controller/stack-controller/api/pulumi/v1"
	"github.com/stack-controller/stack-controller/cmd/flux-pulumi/print"
	"github.com/stack-controller/stack-controller/internal/steps"
	"github.com/stack-controller/stack-controller/internal/urn"
	"github.com/stack-controller/stack-controller/internal/waves"
)

// readers is how many objects are read at the same time.
const readers = 8

// pendingPlan is a plan of the target that waits for approval.
type pendingPlan struct {
	stack  *pulumiv1.Stack
	update *autov1alpha1.Update
}

// planShape is what several plans have in common: which properties of resources of which types they change, and how. The names of the resources,
// and the values, may differ.
type planShape struct {
	digest  string
	changes []shapeChange
	// partial is true when the plan has more changes than are listed, so that no other plan can be known to be equal.
	partial bool
	plans   []*pendingPlan
}

// shapeChange is a change that is made to some resources.
type shapeChange struct {
	operation, kind, paths string
	count                  int
}

func (s *session) rolloutPlans() *cobra.Command {
	cmd := &cobra.Command{
		Use: "plans NAME", Short: "Show the plans of a StackRollout that wait for approval",
		Long: "Show the plans of the revision of a StackRollout that wait for approval, those that do the same together: they change the same properties\n" +
			"of resources of the same types. The names of the resources, and the values, may differ: look at one of them with 'plan show --diff'.",
	}
	s.onRollout(cmd, func(ctx context.Context, c *cluster, rollout *autov1alpha1.StackRollout) error {
		shapes, err := s.shapesOf(ctx, c, rollout)
		if err != nil {
			return err
		}
		if len(shapes) == 0 {
			s.log.Success("no plan of StackRollout %s waits for approval", rollout.Name)
		}
		for i, shape := range shapes {
			if i > 0 {
				s.out.Line("")
			}
			s.printShape(shape)
		}
		return nil
	})
	return cmd
}

func (s *session) approveShape() *cobra.Command {
	options := struct {
		promotion
		shape string
	}{}
	cmd := &cobra.Command{
		Use: "approve NAME", Short: "Approve all plans of a StackRollout that do the same",
		Long: "Approve all plans of one shape, as 'rollout plans' shows them. It creates one Approval for each Stack in its namespace, with your rights\n" +
			"and your name, and says for which Stacks you may not. A plan that is made later is not approved.",
		Example: fmt.Sprintf("  %s rollout approve infrastructure --shape sha256:… --reason CHG-42", invocation(s.Program)),
		PreRunE: func(cmd *cobra.Command, _ []string) error {
			if options.shape == "" {
				return usage(cmd, errors.New("say which plans with --shape, see 'rollout plans'"))
			}
			return nil
		},
	}
	s.onRollout(cmd, func(ctx context.Context, c *cluster, rollout *autov1alpha1.StackRollout) error {
		shapes, err := s.shapesOf(ctx, c, rollout)
		if err != nil {
			return err
		}
		i := slices.IndexFunc(shapes, func(shape *planShape) bool { return shape.digest == options.shape })
		if i < 0 {
			return failed(exitNotReady, "no plan that waits for approval has this shape by now: see '%s rollout plans %s -n %s'",
				invocation(s.Program), rollout.Name, rollout.Namespace)
		}
		return s.approvePlans(ctx, c, shapes[i].plans, options.promotion)
	})
	cmd.Flags().StringVar(&options.shape, "shape", "", "The shape of the plans, in full.")
	cmd.Flags().StringVar(&options.reason, "reason", "", "Why, for example the number of a change request.")
	cmd.Flags().DurationVar(&options.timeout, "timeout", time.Minute, "The longest time to wait until an Approval counts.")
	return cmd
}

// shapesOf returns the plans of the target that wait for approval, those of most Stacks first. It warns of those that cannot be read.
func (s *session) shapesOf(ctx context.Context, c *cluster, rollout *autov1alpha1.StackRollout) ([]*planShape, error) {
	if rollout.Status.Target == nil {
		return nil, failed(exitNotReady, "StackRollout %q has no revision yet", rollout.Name)
	}
	names := slices.Clone(rollout.Status.Plans)
	for i := range rollout.Status.Turns {
		names = append(names, rollout.Status.Turns[i].Stack)
	}
	found, problems := make([]*pendingPlan, len(names)), make([]error, len(names))
	group, groupCtx := errgroup.WithContext(ctx)
	group.SetLimit(readers)
	for i, name := range names {
		group.Go(func() error {
			found[i], problems[i] = c.pendingPlanOf(groupCtx, name, rollout)
			return nil
		})
	}
	_ = group.Wait() // the problems are shown one by one
	shapes := map[string]*planShape{}
	for i, plan := range found {
		switch {
		case problems[i] != nil:
			s.log.Warning("%s: %s", names[i], problems[i])
		case plan != nil:
			shape := shapeOf(plan)
			if shapes[shape.digest] == nil {
				shapes[shape.digest] = shape
			}
			shapes[shape.digest].plans = append(shapes[shape.digest].plans, plan)
		}
	}
	sorted := make([]*planShape, 0, len(shapes))
	for _, shape := range shapes {
		sorted = append(sorted, shape)
	}
	slices.SortFunc(sorted, func(a, b *planShape) int {
		return cmp.Or(len(b.plans)-len(a.plans), strings.Compare(a.digest, b.digest))
	})
	return sorted, ctx.Err()
}

// pendingPlanOf returns the plan of the Stack if it is one of the target and waits for approval; nil otherwise.
func (c *cluster) pendingPlanOf(ctx context.Context, name string, rollout *autov1alpha1.StackRollout) (*pendingPlan, error) {
	namespace, name, _ := strings.Cut(name, "/")
	stack := &pulumiv1.Stack{}
	if err := c.read(ctx, client.ObjectKey{Namespace: namespace, Name: name}, stack); err != nil {
		return nil, client.IgnoreNotFound(err)
	}
	plan := stack.Status.Plan
	if plan == nil || plan.State != pulumiv1.PlanPending || !waves.IsPlanOfTarget(stack, rollout, &rollout.Status) {
		return nil, nil
	}
	update, err := c.planOf(ctx, stack)
	if err != nil {
		return nil, err
	}
	return &pendingPlan{stack, update}, nil
}

// shapeOf returns the shape of a plan.
func shapeOf(plan *pendingPlan) *planShape {
	counts := map[shapeChange]int{}
	for i := range plan.update.Status.Changes {
		change := &plan.update.Status.Changes[i]
		paths := strings.Join(slices.Sorted(slices.Values(change.Paths)), ", ")
		if replaced := slices.Sorted(slices.Values(change.ReplacePaths)); len(replaced) > 0 {
			paths += " (because of " + strings.Join(replaced, ", ") + ")"
		}
		counts[shapeChange{operation: change.Operation, kind: urn.Type(change.URN), paths: paths}]++
	}
	shape := &planShape{partial: plan.update.Status.OmittedChanges > 0}
	for change, count := range counts {
		change.count = count
		shape.changes = append(shape.changes, change)
	}
	slices.SortFunc(shape.changes, func(a, b shapeChange) int {
		return cmp.Or(strings.Compare(a.kind, b.kind), strings.Compare(a.operation, b.operation), strings.Compare(a.paths, b.paths))
	})
	hash := sha256.New()
	for _, change := range shape.changes {
		fmt.Fprintf(hash, "%q %q %q %d\n", change.operation, change.kind, change.paths, change.count)
	}
	fmt.Fprintf(hash, "%q\n", plan.stack.Status.Plan.Operation)
	if shape.partial {
		fmt.Fprintf(hash, "%q\n", plan.stack.Status.Plan.Digest)
	}
	shape.digest = "sha256:" + hex.EncodeToString(hash.Sum(nil))
	return shape
}

func count(stacks int) string {
	if stacks == 1 {
		return "1 Stack"
	}
	return fmt.Sprintf("%d Stacks", stacks)
}

// maxNamed is how many Stacks of a shape are named.
const maxNamed = 10

func (s *session) printShape(shape *planShape) {
	details := print.NewTable(s.out, "", "")
	details.Headless()
	var names []string
	for _, plan := range shape.plans[:min(len(shape.plans), maxNamed)] {
		names = append(names, waves.Name(plan.stack.Namespace, plan.stack.Name))
	}
	named := strings.Join(names, ", ")
	if more := len(shape.plans) - len(names); more > 0 {
		named += fmt.Sprintf(" and %d more", more)
	}
	details.Write([]print.Cell{{Text: "shape"}, {Text: shape.digest}}, []print.Cell{{Text: count(len(shape.plans))}, {Text: named}})
	s.out.Line("")
	var rows [][]print.Cell
	for _, change := range shape.changes {
		text := change.operation
		if change.paths != "" {
			text += ": " + change.paths
		}
		sign := steps.Of(change.operation).Sign
		rows = append(rows, []print.Cell{{Text: sign, Style: styleOf(sign)}, {Text: fmt.Sprint(change.count)}, {Text: change.kind}, {Text: short(text)}})
	}
	print.NewTable(s.out, "", "RESOURCES", "TYPE", "CHANGE").Write(rows...)
	if shape.partial {
		s.log.Warning("it has more changes than are listed, so it is not put together with others")
	}
}

// approvePlans creates an Approval of each plan. It goes on after a failure, and returns an error in the end.
func (s *session) approvePlans(ctx context.Context, c *cluster, approved []*pendingPlan, options promotion) error {
	by, err := c.whoAmI(ctx)
	if err != nil {
		return err
	}
	refused := 0
	for _, plan := range approved {
		if ctx.Err() != nil {
			return ctx.Err()
		}
		made := plan.stack.Status.Plan
		approval := &autov1alpha1.Approval{
			Namespace: plan.stack.Namespace, GenerateName: plan.stack.Name + "-",
			Spec: autov1alpha1.ApprovalSpec{
				Update: made.Name, Digest: made.Digest, Decision: autov1alpha1.ApprovalApprove, Reason: options.reason, By: by,
			},
		}
		name := waves.Name(plan.stack.Namespace, plan.stack.Name)
		err := c.create(ctx, approval)
		if err == nil {
			err = s.awaitAccepted(ctx, c, approval, options.timeout)
		}
		if err != nil {
			refused++
			s.log.Warning("%s: %s", name, err)
			continue
		}
		s.log.Success("plan of %s is approved (%s)", name, made.Summary)
	}
	if refused > 0 {
		return failed(exitNotReady, "%d of %d plans are not approved", refused, len(approved))
	}
	return nil
}
