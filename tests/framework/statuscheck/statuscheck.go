// Package statuscheck checks statuses that a test has seen against the rules that Flux's controllers follow.
package statuscheck

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"k8s.io/apimachinery/pkg/api/equality"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/watch"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/fluxcd/pkg/apis/meta"
	"github.com/fluxcd/pkg/runtime/conditions"
	"github.com/fluxcd/pkg/runtime/conditions/check"

	autov1alpha1 "github.com/stack-controller/stack-controller/api/auto/v1alpha1"
	pulumiv1 "github.com/stack-controller/stack-controller/api/pulumi/v1"
)

// Lint returns what is wrong with the status of a Stack, Program, Workspace, Update or StackRollout. It does not check a suspended Stack, whose status
// stays as it was.
func Lint(ctx context.Context, object conditions.Getter) error {
	switch object := object.(type) {
	case *pulumiv1.Stack:
		if object.Spec.Suspend {
			return nil
		}
		return lintReady(ctx, object)
	case *autov1alpha1.Workspace:
		return lintReady(ctx, object)
	case *pulumiv1.Program:
		return lintReady(ctx, object)
	case *autov1alpha1.StackRollout:
		return lintReady(ctx, object)
	case *autov1alpha1.Update:
		return lintUpdate(object)
	}
	return fmt.Errorf("check the status of %T: there are no rules for it", object)
}

// lintReady checks an object with the conditions Ready, Reconciling and Stalled.
func lintReady(ctx context.Context, object conditions.Getter) error {
	checker := check.NewChecker(nil, &check.Conditions{NegativePolarity: []string{meta.StalledCondition, meta.ReconcilingCondition}})
	if conditions.IsReconciling(object) && conditions.IsUnknown(object, meta.ReadyCondition) {
		checker = check.NewInProgressChecker(nil)
	}
	checker.DisableFetch = true
	fail, _ := checker.Check(ctx, object)
	return fail
}

// lintUpdate checks an object with the conditions of an operation that runs once: Progressing, Failed and Complete.
func lintUpdate(update *autov1alpha1.Update) error {
	var problems []error
	report := func(wrong bool, format string, args ...any) {
		if wrong {
			problems = append(problems, fmt.Errorf(format, args...))
		}
	}
	status := &update.Status
	report(status.ObservedGeneration > update.Generation, "the observed generation is one that does not exist")
	for _, name := range []string{autov1alpha1.UpdateProgressing, autov1alpha1.UpdateFailed, autov1alpha1.UpdateComplete} {
		condition := conditions.Get(update, name)
		if condition == nil {
			problems = append(problems, fmt.Errorf("condition %s must always be present", name))
			continue
		}
		report(condition.Status == metav1.ConditionUnknown, "condition %s must be true or false", name)
		report(condition.ObservedGeneration > update.Generation, "condition %s is about a generation that does not exist", name)
	}
	report(update.IsComplete() && status.Message == "", "the message of an Update that is complete must not be empty")
	progressing, failed, complete := conditions.IsTrue(update, autov1alpha1.UpdateProgressing), update.HasFailed(), update.IsComplete()
	report(progressing && complete, "an Update that is complete must not progress")
	report(progressing && status.StartTime == nil, "an Update that progresses must have a start time")
	report(failed && !complete, "an Update that failed must be complete")
	report(complete != (status.EndTime != nil), "an Update has an end time when it is complete, and only then")
	report(complete != isFinal(status.State), "an Update is in a final state when it is complete, and only then; it is %q", status.State)
	report(complete && failed == (status.State == autov1alpha1.UpdateStateSucceeded), "an Update that is complete has either succeeded or failed")
	return errors.Join(problems...)
}

func isFinal(state autov1alpha1.UpdateState) bool {
	switch state {
	case autov1alpha1.UpdateStateSucceeded, autov1alpha1.UpdateStateFailed, autov1alpha1.UpdateStateInterrupted, autov1alpha1.UpdateStateCancelled:
		return true
	}
	return false
}

// pollInterval is the time between two reads of a Stack.
const pollInterval = 50 * time.Millisecond

// Await waits until the function reports true for the Stack, checks the status against the rules, and returns the Stack. If the context
// ends before that, the error describes the Stack.
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
			return stack, fmt.Errorf("await the state of Stack %s: %w\ngeneration %d, annotations %v, handled %q\nconditions: %v\ncurrent update: %+v\nlast update: %+v",
				key, context.Cause(ctx), stack.Generation, stack.Annotations, stack.Status.LastHandledReconcileAt, stack.Status.Conditions,
				stack.Status.CurrentUpdate, stack.Status.LastUpdate)
		case <-ticker.C:
		}
	}
}

// Ready returns a function that reports whether a Stack has been deployed as its spec asks, at the commit. An empty commit means any
// commit.
func Ready(commit string) func(*pulumiv1.Stack) bool {
	return func(stack *pulumiv1.Stack) bool {
		return conditions.IsReady(stack) && stack.Status.ObservedGeneration == stack.Generation && stack.Status.CurrentUpdate == nil &&
			(commit == "" || stack.Status.LastUpdate.LastSuccessfulCommit == commit)
	}
}

// NotReady returns a function that reports whether the Ready condition of a Stack is false with the reason.
func NotReady(reason string) func(*pulumiv1.Stack) bool {
	return func(stack *pulumiv1.Stack) bool {
		return conditions.IsFalse(stack, meta.ReadyCondition) && conditions.GetReason(stack, meta.ReadyCondition) == reason
	}
}

// Message returns the message of the Stack's Ready condition.
func Message(stack *pulumiv1.Stack) string { return conditions.GetMessage(stack, meta.ReadyCondition) }

// maxProblems bounds how many problems a Watcher keeps.
const maxProblems = 20

// Watcher checks every status that is written to the Stacks, Programs, Workspaces and Updates of a namespace.
type Watcher struct {
	cancel  context.CancelFunc
	running sync.WaitGroup

	mu       sync.Mutex
	checked  int
	problems []error
}

// Watch starts a Watcher. It ends with Stop or with the context. The namespace need not exist yet.
func Watch(ctx context.Context, from client.WithWatch, namespace string) (*Watcher, error) {
	ctx, cancel := context.WithCancel(ctx)
	w := &Watcher{cancel: cancel}
	for _, list := range []client.ObjectList{&pulumiv1.StackList{}, &pulumiv1.ProgramList{}, &autov1alpha1.WorkspaceList{}, &autov1alpha1.UpdateList{}, &autov1alpha1.StackRolloutList{}} {
		watcher, err := from.Watch(ctx, list, client.InNamespace(namespace))
		if err != nil {
			cancel()
			return nil, fmt.Errorf("watch %T: %w", list, err)
		}
		w.running.Go(func() { w.follow(ctx, watcher) })
	}
	return w, nil
}

// Stop ends the Watcher and returns how many statuses it has checked, and the problems that it found.
func (w *Watcher) Stop() (checked int, err error) {
	w.cancel()
	w.running.Wait()
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.checked, errors.Join(w.problems...)
}

// follow checks every status that the watch reports. It skips a version of an object with the same status as the version before: that
// version was not written by the object's controller, and the controller may not have seen it yet.
func (w *Watcher) follow(ctx context.Context, watcher watch.Interface) {
	defer watcher.Stop()
	last := map[types.UID]any{}
	for {
		select {
		case <-ctx.Done():
			return
		case event, open := <-watcher.ResultChan():
			if ctx.Err() != nil {
				// The event reports only that the watch was ended.
				return
			}
			if !open {
				w.note(errors.Join(errors.New("the watch ended early"), ctx.Err()))
				return
			}
			object, ok := event.Object.(conditions.Setter)
			if !ok {
				w.note(fmt.Errorf("watch statuses: %v", event.Object))
				return
			}
			status := statusOf(object)
			if event.Type == watch.Deleted || len(object.GetConditions()) == 0 || equality.Semantic.DeepEqual(last[object.GetUID()], status) {
				continue
			}
			last[object.GetUID()] = status
			err := Lint(ctx, object)
			if err != nil {
				err = fmt.Errorf("%T %s, version %s: %w\nits status: %+v", object, client.ObjectKeyFromObject(object), object.GetResourceVersion(), err, status)
			}
			w.note(err)
		}
	}
}

func statusOf(object any) any {
	switch object := object.(type) {
	case *pulumiv1.Stack:
		return object.Status
	case *pulumiv1.Program:
		return object.Status
	case *autov1alpha1.Workspace:
		return object.Status
	case *autov1alpha1.StackRollout:
		return object.Status
	case *autov1alpha1.Update:
		return object.Status
	}
	return nil
}

// note counts a checked status, and keeps its problem.
func (w *Watcher) note(problem error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.checked++
	if problem != nil && len(w.problems) < maxProblems {
		w.problems = append(w.problems, problem)
	}
}
