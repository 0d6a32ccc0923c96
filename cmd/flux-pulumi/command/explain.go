package command

import (
	"context"
	"fmt"
	"strings"

	"github.com/fluxcd/pkg/apis/meta"
	"github.com/spf13/cobra"
	apimeta "k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	autov1alpha1 "github.com/stack-controller/stack-controller/api/auto/v1alpha1"
	pulumiv1 "github.com/stack-controller/stack-controller/api/pulumi/v1"
	"github.com/stack-controller/stack-controller/cmd/flux-pulumi/print"
	"github.com/stack-controller/stack-controller/internal/report/reasons"
)

func (s *session) explain() *cobra.Command {
	cmd := &cobra.Command{
		Use: "stack NAME", Short: "Say why a Stack is as it is, what wakes it, and what to do",
		Long: "Explain the state of a Stack, what wakes it, and what to do. This includes problems of its Workspace, its Update, its\n" +
			"source and its dependencies. The explanations are those of docs/conditions.md.",
	}
	s.onStack(cmd, func(ctx context.Context, c *cluster, stack *pulumiv1.Stack) error {
		return (&explainer{session: s, cluster: c}).explain(ctx, stack)
	})
	return group("explain", "Say why something is as it is", cmd)
}

// explainer explains the state of objects.
type explainer struct {
	*session
	cluster *cluster
}

func (e *explainer) explain(ctx context.Context, stack *pulumiv1.Stack) error {
	condition := apimeta.FindStatusCondition(stack.Status.Conditions, meta.ReadyCondition)
	e.title(describe(stack), stackState(stack))
	e.reason(pulumiv1.StackKind, condition)
	if stack.Spec.Suspend {
		e.out.Fact("Suspended", print.Cell{Text: fmt.Sprintf("Nothing starts until the Stack is resumed: %s resume stack %s -n %s",
			invocation(e.Program), stack.Name, stack.Namespace), Style: print.Busy})
	}
	if !stack.Spec.Suspend && !isSeen(stack) { // no controller has to look at a suspended Stack
		e.out.Fact("Outdated", print.Cell{Text: "The controller has not seen the last edit yet. If that lasts, check that it runs, and that it " +
			"manages this Stack (--watch-label-selector, --watch-all-namespaces).", Style: print.Busy})
	}
	e.revisions(stack)
	e.drift(stack)
	e.dependencies(ctx, stack)
	e.source(ctx, stack)
	if err := e.workspace(ctx, stack); err != nil {
		return err
	}
	return e.update(ctx, stack)
}

// title begins a section.
func (e *explainer) title(text string, state print.Cell) {
	e.out.Line("%s  %s", e.out.Paint(print.Strong, print.Clean(text)), e.out.Paint(state.Style, print.Clean(state.Text)))
}

// reason explains the reason of a condition.
func (e *explainer) reason(kind string, condition *metav1.Condition) {
	if condition == nil {
		e.out.Fact("State", print.Cell{Text: "No controller has reconciled it yet."})
		return
	}
	explanation, known := reasons.Find(kind, condition.Reason)
	if known {
		lasts := since(condition.LastTransitionTime.Time, e.Now())
		e.out.Fact("Reason", print.Cell{Text: fmt.Sprintf("%s (%s), for %s", condition.Reason, explanation.State, lasts)})
	} else {
		e.out.Fact("Reason", print.Cell{Text: condition.Reason})
	}
	e.out.Fact("Message", print.Cell{Text: short(condition.Message)})
	e.out.Fact("Meaning", print.Cell{Text: explanation.Means})
	if wakes := explanation.Wakes; kind == pulumiv1.StackKind && wakes != "" && !strings.Contains(wakes, "request") {
		e.out.Fact("Woken by", print.Cell{Text: wakes + "; and always an edit, a request and its source"})
	} else {
		e.out.Fact("Woken by", print.Cell{Text: wakes})
	}
	e.out.Fact("What to do", print.Cell{Text: explanation.Todo, Style: print.Strong})
}

// revisions shows the deployed revision and, if it differs, the attempted one.
func (e *explainer) revisions(stack *pulumiv1.Stack) {
	applied, attempted := short(stack.Status.LastAppliedRevision), short(stack.Status.LastAttemptedRevision)
	e.out.Fact("Deployed", print.Cell{Text: applied})
	if attempted != applied {
		e.out.Fact("Tried", print.Cell{Text: attempted})
	}
	if last := lastUpdate(stack, e.Now()); last.Text != "" {
		e.out.Fact("Last update", print.Cell{Text: last.Text + ": " + stack.Status.LastUpdate.Name, Style: last.Style})
	}
}

// drift shows what was changed outside of Pulumi.
func (e *explainer) drift(stack *pulumiv1.Stack) {
	condition := apimeta.FindStatusCondition(stack.Status.Conditions, pulumiv1.DriftedCondition)
	if condition == nil {
		return
	}
	style := print.Good
	if condition.Status != metav1.ConditionFalse {
		style = print.Busy
	}
	e.out.Fact("Drift", print.Cell{Text: condition.Reason + ": " + short(condition.Message), Style: style})
}

// dependencies shows the Stacks that the Stack depends on, and whether they are ready.
func (e *explainer) dependencies(ctx context.Context, stack *pulumiv1.Stack) {
	for _, key := range dependenciesOf(stack) {
		dependency := &pulumiv1.Stack{}
		if err := e.cluster.read(ctx, key, dependency); err != nil {
			e.out.Fact("Depends on", print.Cell{Text: fmt.Sprintf("Stack %s: %s", key, err), Style: print.Bad})
			continue
		}
		state := stackState(dependency)
		e.out.Fact("Depends on", print.Cell{Text: fmt.Sprintf("Stack %s: %s", key, state.Text), Style: state.Style})
	}
}

func (e *explainer) source(ctx context.Context, stack *pulumiv1.Stack) {
	source := e.cluster.sourceOf(stack)
	if source == nil {
		e.out.Fact("Source", print.Cell{Text: strings.TrimSpace(stack.Spec.ProjectRepo + " " + stack.Spec.Branch + stack.Spec.Commit)})
		return
	}
	state := e.cluster.standingOf(ctx, source)
	text := fmt.Sprintf("%s %s: %s", source.GetKind(), client.ObjectKeyFromObject(source), state.Text)
	e.out.Fact("Source", print.Cell{Text: text, Style: state.Style})
}

// workspace explains a Workspace that is not ready.
func (e *explainer) workspace(ctx context.Context, stack *pulumiv1.Stack) error {
	workspace := &autov1alpha1.Workspace{}
	if err := e.cluster.read(ctx, client.ObjectKeyFromObject(stack), workspace); err != nil {
		return client.IgnoreNotFound(err)
	}
	condition := apimeta.FindStatusCondition(workspace.Status.Conditions, autov1alpha1.WorkspaceReady)
	if condition != nil && condition.Status == metav1.ConditionTrue {
		return nil
	}
	e.out.Line("")
	e.title(fmt.Sprintf("Workspace %s/%s", workspace.Namespace, workspace.Name), ready(workspace.Status.Conditions))
	e.reason(autov1alpha1.WorkspaceKind, condition)
	return nil
}

// update explains the Update that runs or waits, or else the last one when it failed.
func (e *explainer) update(ctx context.Context, stack *pulumiv1.Stack) error {
	name := ""
	switch current, last := stack.Status.CurrentUpdate, stack.Status.LastUpdate; {
	case current != nil:
		name = current.Name
	case last != nil && last.State == pulumiv1.StackUpdateFailed:
		name = last.Name
	default:
		return nil
	}
	update := &autov1alpha1.Update{}
	if err := e.cluster.read(ctx, client.ObjectKey{Namespace: stack.Namespace, Name: name}, update); err != nil {
		return client.IgnoreNotFound(err)
	}
	e.out.Line("")
	e.title(fmt.Sprintf("Update %s/%s (%s)", update.Namespace, update.Name, update.Spec.Type), stateOf(update))
	condition := apimeta.FindStatusCondition(update.Status.Conditions, autov1alpha1.UpdateProgressing)
	if update.IsComplete() {
		condition = apimeta.FindStatusCondition(update.Status.Conditions, autov1alpha1.UpdateFailed)
	}
	e.reason(autov1alpha1.UpdateKind, condition)
	e.out.Fact("So far", print.Cell{Text: counts(update.Status.ResourceChanges)})
	if update.IsComplete() {
		e.out.Fact("Output", print.Cell{Text: fmt.Sprintf("%s logs stack %s -n %s", invocation(e.Program), stack.Name, stack.Namespace)})
	}
	return nil
}
