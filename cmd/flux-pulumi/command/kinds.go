package command

import (
	"cmp"
	"fmt"
	"regexp"
	"slices"
	"strings"
	"time"

	"github.com/fluxcd/pkg/apis/meta"
	apimeta "k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/duration"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/fluxcd/pkg/runtime/conditions"

	autov1alpha1 "github.com/stack-controller/stack-controller/api/auto/v1alpha1"
	pulumiv1 "github.com/stack-controller/stack-controller/api/pulumi/v1"
	"github.com/stack-controller/stack-controller/cmd/flux-pulumi/print"
	"github.com/stack-controller/stack-controller/internal/steps"
)

// column is a column of the table of a kind.
type column struct {
	heading string
	// wide columns are shown with "-o wide" only.
	wide bool
	cell func(client.Object, time.Time) print.Cell
	// look is for a column, instead of cell, that depends on other objects, too.
	look func(*finder, client.Object) print.Cell
}

// kind is a kind of objects that a command can show.
type kind struct {
	name, plural string
	newList      func() client.ObjectList
	columns      []column
	// when returns the time to sort by, the oldest first. Nil sorts by name.
	when func(client.Object) time.Time
}

// styled returns the cells of a column for objects of one type.
func styled[T client.Object](show func(object T, now time.Time) print.Cell) func(client.Object, time.Time) print.Cell {
	return func(object client.Object, now time.Time) print.Cell { return show(object.(T), now) }
}

// text returns the cells of a column of plain text.
func text[T client.Object](of func(T) string) func(client.Object, time.Time) print.Cell {
	return styled(func(object T, _ time.Time) print.Cell { return print.Cell{Text: of(object)} })
}

func age(object client.Object, now time.Time) print.Cell {
	return print.Cell{Text: since(object.GetCreationTimestamp().Time, now)}
}

func isReady(object client.Object, _ time.Time) print.Cell {
	return ready(object.(conditions.Getter).GetConditions())
}

func created(object client.Object) time.Time { return object.GetCreationTimestamp().Time }

func stacks() kind {
	return kind{
		name: "stack", plural: "stacks",
		newList: func() client.ObjectList { return &pulumiv1.StackList{} },
		columns: []column{
			{heading: "NAME", cell: text(client.Object.GetName)},
			{heading: "STACK", wide: true, cell: text(func(stack *pulumiv1.Stack) string { return stack.Spec.Stack })},
			{heading: "REVISION", cell: text(func(stack *pulumiv1.Stack) string { return short(stack.Status.LastAppliedRevision) })},
			{heading: "LAST UPDATE", wide: true, cell: styled(lastUpdate)},
			{heading: "CHANGES", wide: true, cell: text(func(stack *pulumiv1.Stack) string {
				if stack.Status.LastUpdate == nil {
					return ""
				}
				return counts(stack.Status.LastUpdate.ResourceChanges)
			})},
			{heading: "PLAN", wide: true, cell: text(func(stack *pulumiv1.Stack) string {
				if stack.Status.Plan == nil {
					return ""
				}
				return fmt.Sprintf("%s %s", stack.Status.Plan.State, stack.Status.Plan.Summary)
			})},
			{heading: "HELD", wide: true, look: func(find *finder, object client.Object) print.Cell {
				return print.Cell{Text: find.whyHeld(object.(*pulumiv1.Stack))}
			}},
			{heading: "AGE", wide: true, cell: age},
			{heading: "SUSPENDED", cell: text(func(stack *pulumiv1.Stack) string { return title(stack.Spec.Suspend) })},
			{heading: "READY", cell: isReady},
			{heading: "MESSAGE", cell: text(func(stack *pulumiv1.Stack) string { return message(stack.Status.Conditions, meta.ReadyCondition) })},
		},
	}
}

func lastUpdate(stack *pulumiv1.Stack, now time.Time) print.Cell {
	last := stack.Status.LastUpdate
	if last == nil {
		return print.Cell{}
	}
	cell := print.Cell{Text: strings.TrimSpace(fmt.Sprintf("%s %s", last.Type, last.State)), Style: print.Good}
	if last.State == pulumiv1.StackUpdateFailed {
		cell.Style = print.Bad
	}
	if !last.LastResyncTime.IsZero() {
		cell.Text += " " + since(last.LastResyncTime.Time, now) + " ago"
	}
	return cell
}

func workspaces() kind {
	return kind{
		name: "workspace", plural: "workspaces",
		newList: func() client.ObjectList { return &autov1alpha1.WorkspaceList{} },
		columns: []column{
			{heading: "NAME", cell: text(client.Object.GetName)},
			{heading: "PULUMI", cell: text(func(workspace *autov1alpha1.Workspace) string { return workspace.Status.PulumiVersion })},
			{heading: "IMAGE", wide: true, cell: text(func(workspace *autov1alpha1.Workspace) string { return workspace.Spec.Image })},
			{heading: "ADDRESS", wide: true, cell: text(func(workspace *autov1alpha1.Workspace) string { return workspace.Status.Address })},
			{heading: "AGE", wide: true, cell: age},
			{heading: "READY", cell: isReady},
			{heading: "MESSAGE", cell: text(func(workspace *autov1alpha1.Workspace) string {
				return message(workspace.Status.Conditions, autov1alpha1.WorkspaceReady)
			})},
		},
	}
}

func updates() kind {
	return kind{
		name: "update", plural: "updates", when: created,
		newList: func() client.ObjectList { return &autov1alpha1.UpdateList{} },
		columns: []column{
			{heading: "NAME", cell: text(client.Object.GetName)},
			{heading: "WORKSPACE", cell: text(func(update *autov1alpha1.Update) string { return update.Spec.WorkspaceName })},
			{heading: "TYPE", cell: text(func(update *autov1alpha1.Update) string { return string(update.Spec.Type) })},
			{heading: "STATE", cell: styled(func(update *autov1alpha1.Update, _ time.Time) print.Cell { return stateOf(update) })},
			{heading: "CHANGES", cell: text(func(update *autov1alpha1.Update) string { return counts(update.Status.ResourceChanges) })},
			{heading: "REVISION", wide: true, cell: text(revisionOf)},
			{heading: "AGE", cell: age},
			{heading: "DURATION", cell: styled(func(update *autov1alpha1.Update, now time.Time) print.Cell {
				return print.Cell{Text: durationOf(update, now)}
			})},
			{heading: "URL", wide: true, cell: text(func(update *autov1alpha1.Update) string { return update.Status.Permalink })},
			{heading: "MESSAGE", cell: text(updateMessage)},
		},
	}
}

// updateMessage returns how the Update ended, or what it does or waits for.
func updateMessage(update *autov1alpha1.Update) string {
	if update.Status.Message != "" {
		return short(update.Status.Message)
	}
	return message(update.Status.Conditions, autov1alpha1.UpdateProgressing)
}

// stateOf returns the state of an Update. An Update that no agent has accepted yet is waiting.
func stateOf(update *autov1alpha1.Update) print.Cell {
	switch state := update.Status.State; state {
	case "":
		return print.Cell{Text: "Waiting", Style: print.Busy}
	case autov1alpha1.UpdateStateSucceeded:
		return print.Cell{Text: string(state), Style: print.Good}
	case autov1alpha1.UpdateStateQueued, autov1alpha1.UpdateStatePreparing, autov1alpha1.UpdateStateRunning:
		return print.Cell{Text: string(state), Style: print.Busy}
	default:
		return print.Cell{Text: string(state), Style: print.Bad}
	}
}

func revisionOf(update *autov1alpha1.Update) string {
	if update.Status.Revision == "" && update.Spec.Source != nil {
		return short(update.Spec.Source.Revision)
	}
	return short(update.Status.Revision)
}

// durationOf returns how long the operation took, or has taken so far.
func durationOf(update *autov1alpha1.Update, now time.Time) string {
	if update.Status.StartTime == nil {
		return ""
	}
	end := now
	if update.Status.EndTime != nil {
		end = update.Status.EndTime.Time
	}
	return since(update.Status.StartTime.Time, end)
}

// ready returns a cell with the status of the condition Ready.
func ready(conditions []metav1.Condition) print.Cell {
	condition := apimeta.FindStatusCondition(conditions, meta.ReadyCondition)
	switch {
	case condition == nil:
		return print.Cell{Text: "Unknown", Style: print.Busy}
	case condition.Status == metav1.ConditionTrue:
		return print.Cell{Text: "True", Style: print.Good}
	case condition.Status == metav1.ConditionFalse:
		return print.Cell{Text: "False", Style: print.Bad}
	}
	return print.Cell{Text: string(condition.Status), Style: print.Busy}
}

func message(conditions []metav1.Condition, name string) string {
	if condition := apimeta.FindStatusCondition(conditions, name); condition != nil {
		return short(condition.Message)
	}
	return "not reconciled yet"
}

func title(value bool) string {
	if value {
		return "True"
	}
	return "False"
}

// hash matches a hash in a revision that is too long to be shown.
var hash = regexp.MustCompile(`(sha1:|sha256:|^)([0-9a-f]{8})[0-9a-f]{24,}`)

// short returns the revision with eight digits of each hash, as Flux shows it.
func short(revision string) string { return hash.ReplaceAllString(revision, "$1$2") }

func since(start, end time.Time) string {
	if start.IsZero() {
		return ""
	}
	return duration.HumanDuration(max(end.Sub(start), 0))
}

// counts returns a short form of the numbers of resource changes: "+2 ~1 -1, 4 unchanged".
func counts(changes map[string]int64) string {
	var parts []string
	for _, count := range steps.Counts(changes) {
		switch {
		case count.Name == steps.Same:
		case count.Sign == steps.Unknown:
			parts = append(parts, fmt.Sprintf("%d %s", count.Steps, count.Name))
		default:
			parts = append(parts, fmt.Sprintf("%s%d", count.Sign, count.Steps))
		}
	}
	text, same := strings.Join(parts, " "), changes[steps.Same]
	switch {
	case same > 0 && text != "":
		return fmt.Sprintf("%s, %d unchanged", text, same)
	case same > 0:
		return fmt.Sprintf("%d unchanged", same)
	}
	return text
}

// order sorts objects by time, or by namespace and name.
func (k kind) order(objects []client.Object) {
	slices.SortStableFunc(objects, func(a, b client.Object) int {
		byTime := 0
		if k.when != nil {
			byTime = k.when(a).Compare(k.when(b))
		}
		return cmp.Or(byTime, strings.Compare(a.GetNamespace(), b.GetNamespace()), strings.Compare(a.GetName(), b.GetName()))
	})
}
