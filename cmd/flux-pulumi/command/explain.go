package command

import (
	"context"
	"fmt"
	"strings"
	"time"

	"github.com/fluxcd/pkg/apis/meta"
	"github.com/spf13/cobra"
	apimeta "k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"sigs.k8s.io/controller-runtime/pkg/client"

	autov1alpha1 "github.com/stack-controller/stack-controller/api/auto/v1alpha1"
	pulumiv1 "github.com/stack-controller/stack-controller/api/pulumi/v1"
	"github.com/stack-controller/stack-controller/cmd/flux-pulumi/print"
	"github.com/stack-controller/stack-controller/internal/report/reasons"
	"github.com/stack-controller/stack-controller/internal/windows"
)

func (s *session) explain() *cobra.Command {
	cmd := &cobra.Command{
		Use: "stack NAME", Short: "Say why a Stack is as it is, what wakes it, and what to do",
		Long: "Explain the state of a Stack, what wakes it, and what to do. This includes problems of its Workspace, its Update, its\n" +
			"source and its dependencies. The explanations are those of docs/conditions.md.",
	}
	s.onStack(cmd, func(ctx context.Context, c *cluster, stack *pulumiv1.Stack) error {
		sections, err := (&explainer{session: s, cluster: c}).explain(ctx, stack)
		s.out.Sections(sections) // what was read before an error helps, too
		return err
	})
	return group("explain", "Say why something is as it is", cmd)
}

// explainer reads what explains the state of a Stack. It prints nothing.
type explainer struct {
	*session
	cluster *cluster
}

// explain returns a section about the Stack, and one for each of its Workspace and Update that is part of the reason.
func (e *explainer) explain(ctx context.Context, stack *pulumiv1.Stack) ([]print.Section, error) {
	sections := []print.Section{e.stack(ctx, stack)}
	for _, of := range []func(context.Context, *pulumiv1.Stack) (*print.Section, error){e.workspace, e.update} {
		section, err := of(ctx, stack)
		if err != nil {
			return sections, err
		}
		if section != nil {
			sections = append(sections, *section)
		}
	}
	return sections, nil
}

func (e *explainer) stack(ctx context.Context, stack *pulumiv1.Stack) print.Section {
	section := print.Section{Title: describe(stack), State: stackState(stack)}
	condition := apimeta.FindStatusCondition(stack.Status.Conditions, meta.ReadyCondition)
	if condition != nil || !stack.Spec.Suspend { // one that was suspended when it was created has none
		section.Facts = append(section.Facts, e.reason(pulumiv1.StackKind, condition)...)
	}
	if stack.Spec.Suspend {
		section.Add("Suspended", print.Cell{Text: fmt.Sprintf("Nothing starts until the Stack is resumed: %s resume stack %s -n %s",
			invocation(e.Program), stack.Name, stack.Namespace), Style: print.Busy})
	}
	if !stack.Spec.Suspend && !isSeen(stack) { // no controller has to look at a suspended Stack
		section.Add("Outdated", print.Cell{Text: "The controller has not seen the last edit yet. If that lasts, check that it runs, and that it " +
			"manages this Stack (--watch-label-selector, --watch-all-namespaces).", Style: print.Busy})
	}
	section.Facts = append(section.Facts, revisions(stack, e.Now())...)
	section.Facts = append(section.Facts, drift(stack)...)
	section.Facts = append(section.Facts, opening(stack, e.Now())...)
	section.Facts = append(section.Facts, e.dependencies(ctx, stack)...)
	section.Facts = append(section.Facts, e.source(ctx, stack)...)
	return section
}

// reason explains the reason of a condition.
func (e *explainer) reason(kind string, condition *metav1.Condition) []print.Fact {
	if condition == nil {
		return []print.Fact{{Label: "State", Text: print.Cell{Text: "No controller has reconciled it yet."}}}
	}
	reason := condition.Reason
	explanation, known := reasons.Find(kind, condition.Reason)
	if known {
		reason = fmt.Sprintf("%s (%s), for %s", reason, explanation.State, since(condition.LastTransitionTime.Time, e.Now()))
	}
	wakes := explanation.Wakes
	if kind == pulumiv1.StackKind && wakes != "" && !strings.Contains(wakes, "request") {
		wakes += "; and always an edit, a request and its source"
	}
	return []print.Fact{
		{Label: "Reason", Text: print.Cell{Text: reason}},
		{Label: "Message", Text: print.Cell{Text: short(condition.Message)}},
		{Label: "Meaning", Text: print.Cell{Text: explanation.Means}},
		{Label: "Woken by", Text: print.Cell{Text: wakes}},
		{Label: "What to do", Text: print.Cell{Text: explanation.Todo, Style: print.Strong}},
	}
}

// revisions returns the deployed revision and, if it differs, the attempted one.
func revisions(stack *pulumiv1.Stack, now time.Time) []print.Fact {
	applied, attempted := short(stack.Status.LastAppliedRevision), short(stack.Status.LastAttemptedRevision)
	facts := []print.Fact{{Label: "Deployed", Text: print.Cell{Text: applied}}}
	if attempted != applied {
		facts = append(facts, print.Fact{Label: "Tried", Text: print.Cell{Text: attempted}})
	}
	if last := lastUpdate(stack, now); last.Text != "" {
		facts = append(facts, print.Fact{
			Label: "Last update", Text: print.Cell{Text: last.Text + ": " + stack.Status.LastUpdate.Name, Style: last.Style},
		})
	}
	return facts
}

// opening returns whether the windows of the Stack allow changes now.
func opening(stack *pulumiv1.Stack, now time.Time) []print.Fact {
	if len(stack.Spec.Windows) == 0 {
		return nil
	}
	state, err := windows.At(stack.Spec.Windows, now)
	cell := print.Cell{Text: "changes may begin", Style: print.Good}
	switch {
	case err != nil:
		cell = print.Cell{Text: err.Error(), Style: print.Bad}
	case !state.Open:
		cell = print.Cell{Text: "no change may begin: " + state.Message, Style: print.Busy}
	case !state.Next.IsZero():
		cell.Text += ", at least until " + state.Next.UTC().Format(time.RFC3339)
	}
	return []print.Fact{{Label: "Windows", Text: cell}}
}

// drift returns what was changed outside of Pulumi.
func drift(stack *pulumiv1.Stack) []print.Fact {
	condition := apimeta.FindStatusCondition(stack.Status.Conditions, pulumiv1.DriftedCondition)
	if condition == nil {
		return nil
	}
	style := print.Good
	if condition.Status != metav1.ConditionFalse {
		style = print.Busy
	}
	return []print.Fact{{Label: "Drift", Text: print.Cell{Text: condition.Reason + ": " + short(condition.Message), Style: style}}}
}

// dependencies returns the Stacks that the Stack depends on, and whether they are ready.
func (e *explainer) dependencies(ctx context.Context, stack *pulumiv1.Stack) (facts []print.Fact) {
	for _, key := range dependenciesOf(stack) {
		dependency, state := &pulumiv1.Stack{}, print.Cell{}
		if err := e.cluster.read(ctx, key, dependency); err != nil {
			state = print.Cell{Text: err.Error(), Style: print.Bad}
		} else {
			state = stackState(dependency)
		}
		state.Text = fmt.Sprintf("Stack %s: %s", key, state.Text)
		facts = append(facts, print.Fact{Label: "Depends on", Text: state})
	}
	return facts
}

func (e *explainer) source(ctx context.Context, stack *pulumiv1.Stack) []print.Fact {
	source := e.cluster.sourceOf(stack)
	if source == nil {
		repository := strings.TrimSpace(stack.Spec.ProjectRepo + " " + stack.Spec.Branch + stack.Spec.Commit)
		return []print.Fact{{Label: "Source", Text: print.Cell{Text: repository}}}
	}
	state := e.cluster.standingOf(ctx, source)
	state.Text = fmt.Sprintf("%s %s: %s", source.GetKind(), client.ObjectKeyFromObject(source), state.Text)
	facts := []print.Fact{{Label: "Source", Text: state}}
	return append(facts, e.held(ctx, stack, source)...)
}

// held returns what the Stack waits for before it gets what its source offers.
func (e *explainer) held(ctx context.Context, stack *pulumiv1.Stack, source *unstructured.Unstructured) []print.Fact {
	hold, err := (&finder{cluster: e.cluster, ctx: ctx}).holdOf(stack, source)
	switch {
	case err != nil:
		return []print.Fact{{Label: "Held", Text: print.Cell{Text: "not known: " + err.Error(), Style: print.Bad}}}
	case hold == nil:
		return nil
	}
	facts := []print.Fact{{Label: "Held", Text: print.Cell{Text: hold.String(), Style: print.Busy}}}
	if hold.rollout != nil {
		facts = append(facts, print.Fact{Label: "Waves", Text: print.Cell{Text: message(hold.rollout.Status.Conditions, meta.ReadyCondition)}})
	}
	return facts
}

// workspace explains a Workspace that is not ready.
func (e *explainer) workspace(ctx context.Context, stack *pulumiv1.Stack) (*print.Section, error) {
	workspace := &autov1alpha1.Workspace{}
	if err := e.cluster.read(ctx, client.ObjectKeyFromObject(stack), workspace); err != nil {
		return nil, client.IgnoreNotFound(err)
	}
	condition := apimeta.FindStatusCondition(workspace.Status.Conditions, autov1alpha1.WorkspaceReady)
	if condition != nil && condition.Status == metav1.ConditionTrue {
		return nil, nil
	}
	return &print.Section{
		Title: fmt.Sprintf("Workspace %s/%s", workspace.Namespace, workspace.Name), State: ready(workspace.Status.Conditions),
		Facts: e.reason(autov1alpha1.WorkspaceKind, condition),
	}, nil
}

// update explains the Update that runs or waits, or else the last one when it failed.
func (e *explainer) update(ctx context.Context, stack *pulumiv1.Stack) (*print.Section, error) {
	name := ""
	switch current, last := stack.Status.CurrentUpdate, stack.Status.LastUpdate; {
	case current != nil:
		name = current.Name
	case last != nil && last.State == pulumiv1.StackUpdateFailed:
		name = last.Name
	default:
		return nil, nil
	}
	update := &autov1alpha1.Update{}
	if err := e.cluster.read(ctx, client.ObjectKey{Namespace: stack.Namespace, Name: name}, update); err != nil {
		return nil, client.IgnoreNotFound(err)
	}
	condition := apimeta.FindStatusCondition(update.Status.Conditions, autov1alpha1.UpdateProgressing)
	if update.IsComplete() {
		condition = apimeta.FindStatusCondition(update.Status.Conditions, autov1alpha1.UpdateFailed)
	}
	section := &print.Section{
		Title: fmt.Sprintf("Update %s/%s (%s)", update.Namespace, update.Name, update.Spec.Type), State: stateOf(update),
		Facts: e.reason(autov1alpha1.UpdateKind, condition),
	}
	section.Add("So far", print.Cell{Text: counts(update.Status.ResourceChanges)})
	if update.IsComplete() {
		section.Add("Output", print.Cell{Text: fmt.Sprintf("%s logs stack %s -n %s", invocation(e.Program), stack.Name, stack.Namespace)})
	}
	return section, nil
}
