// Package statuscheck checks statuses that a test has seen against the rules that Flux's own controllers follow.
package statuscheck

import (
	"context"
	"errors"
	"fmt"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/fluxcd/pkg/apis/meta"
	"github.com/fluxcd/pkg/runtime/conditions"
	"github.com/fluxcd/pkg/runtime/conditions/check"

	autov1alpha1 "github.com/stack-controller/stack-controller/api/auto/v1alpha1"
	pulumiv1 "github.com/stack-controller/stack-controller/api/pulumi/v1"
)

// Lint returns what is wrong with the status of a Stack, Program, Workspace or Update. The status of a suspended Stack stays what it
// was, so nothing is wrong with it.
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
