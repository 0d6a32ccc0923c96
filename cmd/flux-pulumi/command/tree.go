package command

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"strings"

	"github.com/fluxcd/cli-utils/pkg/kstatus/status"
	"github.com/fluxcd/pkg/apis/meta"
	"github.com/fluxcd/pkg/runtime/conditions"
	"github.com/spf13/cobra"
	apimeta "k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"sigs.k8s.io/controller-runtime/pkg/client"

	autov1alpha1 "github.com/stack-controller/stack-controller/api/auto/v1alpha1"
	pulumiv1 "github.com/stack-controller/stack-controller/api/pulumi/v1"
	"github.com/stack-controller/stack-controller/cmd/flux-pulumi/print"
)

// treeUpdates is how many Updates a tree shows by default.
const treeUpdates = 5

func (s *session) tree() *cobra.Command {
	t := &treeOf{session: s}
	cmd := &cobra.Command{
		Use: "stack NAME", Short: "Show a Stack with its source, Workspace, Updates, dependencies and Pulumi resources",
		Long: "Show a Stack with its source, Workspace, Updates and dependencies. With --resources, the Pulumi resources are read from\n" +
			"the state, with 'pulumi stack export' in the pod of the Workspace.",
	}
	s.onStack(cmd, func(ctx context.Context, c *cluster, stack *pulumiv1.Stack) error {
		t.cluster = c
		root, err := t.build(ctx, stack)
		if err == nil {
			s.out.Tree(root)
		}
		return err
	})
	cmd.Flags().IntVar(&t.limit, "updates", treeUpdates, "How many Updates to show, the latest ones.")
	cmd.Flags().BoolVar(&t.resources, "resources", false, "Show the Pulumi resources, each below its parent.")
	return group("tree", "Show what belongs together", cmd)
}

// treeOf builds the tree of a Stack.
type treeOf struct {
	*session
	cluster   *cluster
	limit     int
	resources bool
	// shown are the Stacks whose dependencies are in the tree already.
	shown map[client.ObjectKey]bool
}

func (t *treeOf) build(ctx context.Context, stack *pulumiv1.Stack) (*print.Node, error) {
	root := t.source(ctx, stack)
	node := root.Add(describe(stack), stackState(stack))
	if err := t.workspace(ctx, stack, node); err != nil {
		return nil, err
	}
	if t.resources {
		if err := t.cluster.addResources(ctx, stack, node); err != nil {
			return nil, err
		}
	}
	t.dependencies(ctx, stack, node, []client.ObjectKey{client.ObjectKeyFromObject(stack)})
	return root, t.dependents(ctx, stack, node)
}

func describe(stack *pulumiv1.Stack) string {
	return fmt.Sprintf("Stack %s/%s (%s)", stack.Namespace, stack.Name, stack.Spec.Stack)
}

// stackState returns the state of a Stack: ready with a revision, or the reason why it is not ready.
func stackState(stack *pulumiv1.Stack) print.Cell {
	cell := ready(stack.Status.Conditions)
	condition := apimeta.FindStatusCondition(stack.Status.Conditions, meta.ReadyCondition)
	switch {
	case stack.Spec.Suspend:
		cell = print.Cell{Text: "suspended", Style: print.Busy}
	case condition == nil:
		cell.Text = "not reconciled yet"
	case condition.Status == metav1.ConditionTrue:
		cell.Text = strings.TrimSpace("Ready " + short(stack.Status.LastAppliedRevision))
	default:
		cell.Text = condition.Reason
	}
	return cell
}

// source returns the node of the source of the Stack.
func (t *treeOf) source(ctx context.Context, stack *pulumiv1.Stack) *print.Node {
	source := t.cluster.sourceOf(stack)
	switch {
	case source != nil:
		node := &print.Node{Text: fmt.Sprintf("%s %s/%s", source.GetKind(), source.GetNamespace(), source.GetName())}
		node.Status = t.cluster.standingOf(ctx, source)
		return node
	case stack.Spec.ProjectRepo != "":
		return &print.Node{Text: "git repository " + stack.Spec.ProjectRepo}
	}
	return &print.Node{Text: "no source"}
}

// standingOf reads an object of any kind, and returns its state according to kstatus.
func (c *cluster) standingOf(ctx context.Context, object *unstructured.Unstructured) print.Cell {
	if err := c.read(ctx, client.ObjectKeyFromObject(object), object); err != nil {
		return print.Cell{Text: err.Error(), Style: print.Bad}
	}
	if suspended, _, _ := unstructured.NestedBool(object.Object, "spec", "suspend"); suspended {
		return print.Cell{Text: "suspended", Style: print.Busy}
	}
	result, err := status.Compute(object)
	if err != nil {
		return print.Cell{Text: err.Error(), Style: print.Bad}
	}
	revision, _, _ := unstructured.NestedString(object.Object, "status", "artifact", "revision")
	switch result.Status {
	case status.CurrentStatus:
		return print.Cell{Text: strings.TrimSpace("Ready " + short(revision)), Style: print.Good}
	case status.FailedStatus:
		return print.Cell{Text: "failed: " + causeOf(object, result), Style: print.Bad}
	}
	return print.Cell{Text: "not ready: " + causeOf(object, result), Style: print.Busy}
}

// causeOf returns why an object is not ready: the message of its Ready condition if that is False. The result of kstatus has the message of
// Reconciling or Stalled instead, which often says only that the object is being reconciled.
func causeOf(object *unstructured.Unstructured, result *status.Result) string {
	ready := conditions.Get(conditions.UnstructuredGetter(object), meta.ReadyCondition)
	if ready != nil && ready.Status == metav1.ConditionFalse && ready.Message != "" {
		return short(ready.Message)
	}
	return result.Message
}

// workspace adds the Workspace with its Updates, the latest first.
func (t *treeOf) workspace(ctx context.Context, stack *pulumiv1.Stack, node *print.Node) error {
	workspace := &autov1alpha1.Workspace{}
	err := t.cluster.read(ctx, client.ObjectKeyFromObject(stack), workspace)
	switch {
	case err != nil && client.IgnoreNotFound(err) != nil:
		return err
	case err != nil:
		node = node.Add("no Workspace", print.Cell{})
	default:
		state := ready(workspace.Status.Conditions)
		if condition := apimeta.FindStatusCondition(workspace.Status.Conditions, autov1alpha1.WorkspaceReady); condition != nil {
			state.Text = condition.Reason
			if condition.Status == metav1.ConditionTrue {
				state.Text = strings.TrimSpace("Ready " + workspace.Status.PulumiVersion)
			}
		}
		node = node.Add(fmt.Sprintf("Workspace %s/%s", workspace.Namespace, workspace.Name), state)
	}
	found, err := t.cluster.updatesOf(ctx, stack)
	if err != nil {
		return err
	}
	for i := range found[:min(max(t.limit, 0), len(found))] {
		t.update(&found[i], node)
	}
	if more := len(found) - max(t.limit, 0); more > 0 {
		node.Add(fmt.Sprintf("%d older Updates", more), print.Cell{})
	}
	return nil
}

func (t *treeOf) update(update *autov1alpha1.Update, node *print.Node) {
	state := stateOf(update)
	if changes := counts(update.Status.ResourceChanges); changes != "" {
		state.Text += ", " + changes
	}
	if end := update.Status.EndTime; end != nil {
		state.Text += ", " + since(end.Time, t.Now()) + " ago"
	}
	node.Add(strings.TrimSpace(fmt.Sprintf("Update %s (%s) %s", update.Name, update.Spec.Type, revisionOf(update))), state)
}

// updatesOf returns the Updates of the Stack, the latest first.
func (c *cluster) updatesOf(ctx context.Context, stack *pulumiv1.Stack) ([]autov1alpha1.Update, error) {
	list := &autov1alpha1.UpdateList{}
	err := c.list(ctx, list, client.InNamespace(stack.Namespace), client.MatchingLabels{pulumiv1.StackNameLabel: stack.Name})
	slices.SortStableFunc(list.Items, func(a, b autov1alpha1.Update) int {
		return cmp.Or(b.CreationTimestamp.Compare(a.CreationTimestamp.Time), strings.Compare(a.Name, b.Name))
	})
	return list.Items, err
}

// dependenciesOf returns the Stacks that the Stack waits for.
func dependenciesOf(stack *pulumiv1.Stack) (keys []client.ObjectKey) {
	for _, reference := range stack.GetDependsOn() {
		keys = append(keys, client.ObjectKey{Namespace: cmp.Or(reference.Namespace, stack.Namespace), Name: reference.Name})
	}
	for _, reference := range stack.Spec.Prerequisites {
		keys = append(keys, client.ObjectKey{Namespace: stack.Namespace, Name: reference.Name})
	}
	for _, name := range autov1alpha1.StacksOf(stack.Namespace, stack.Spec.Inputs) {
		if !slices.Contains(keys, name) {
			keys = append(keys, name)
		}
	}
	return keys
}

// dependencies adds the Stacks that the Stack waits for, and recursively their dependencies. The path has the Stacks above, to detect
// cycles.
func (t *treeOf) dependencies(ctx context.Context, stack *pulumiv1.Stack, node *print.Node, path []client.ObjectKey) {
	for i := range stack.Spec.DependsOn {
		// Its state is a matter of its own tools; who may see the Stack need not be allowed to read it.
		if reference := &stack.Spec.DependsOn[i]; !reference.IsStack() {
			node.Add("depends on "+reference.Kind+" "+cmp.Or(reference.Namespace, stack.Namespace)+"/"+reference.Name, print.Cell{})
		}
	}
	for _, key := range dependenciesOf(stack) {
		dependency := &pulumiv1.Stack{}
		switch err := t.cluster.read(ctx, key, dependency); {
		case slices.Contains(path, key):
			node.Add("depends on Stack "+key.String(), print.Cell{Text: "a circle", Style: print.Bad})
		case err != nil:
			node.Add("depends on Stack "+key.String(), print.Cell{Text: err.Error(), Style: print.Bad})
		default:
			below := node.Add("depends on "+describe(dependency), stackState(dependency))
			if t.shown[key] {
				if len(dependenciesOf(dependency)) > 0 {
					below.Add("see above", print.Cell{})
				}
				continue
			}
			t.dependencies(ctx, dependency, below, append(slices.Clone(path), key))
			if t.shown == nil {
				t.shown = map[client.ObjectKey]bool{}
			}
			t.shown[key] = true
		}
	}
}

// dependents adds the Stacks of the namespace that wait for the Stack.
func (t *treeOf) dependents(ctx context.Context, stack *pulumiv1.Stack, node *print.Node) error {
	list := &pulumiv1.StackList{}
	if err := t.cluster.list(ctx, list, client.InNamespace(stack.Namespace)); err != nil {
		return err
	}
	for i := range list.Items {
		if other := &list.Items[i]; slices.Contains(dependenciesOf(other), client.ObjectKeyFromObject(stack)) {
			node.Add("needed by "+describe(other), stackState(other))
		}
	}
	return nil
}
