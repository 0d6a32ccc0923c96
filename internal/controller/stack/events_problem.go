package stack

import (
	"strconv"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	eventv1 "github.com/fluxcd/pkg/apis/event/v1"
	"github.com/fluxcd/pkg/apis/meta"
	"github.com/fluxcd/pkg/runtime/conditions"

	pulumiv1 "github.com/stack-controller/stack-controller/api/pulumi/v1"
)

// problemGrace is how long a Stack that is not Stalled shows a problem before there is an event about it. Most problems of objects that are
// applied together, such as a source that does not exist yet, end sooner.
const problemGrace = time.Minute

// tokenMetadata returns metadata with which notification-controller does not take an event for one of the five minutes before: the same problem may
// begin and end several times. It does not forward the token.
func tokenMetadata(since metav1.Time) map[string]string {
	return map[string]string{pulumiv1.GroupVersion.Group + "/" + eventv1.MetaTokenKey: strconv.FormatInt(since.Unix(), 10)}
}

// announceProblem records one event about a problem that the condition Ready shows, unless one was recorded, and one event when the Stack is
// ready again, or only waits for its wave: hundreds of new Stacks may do that, and nobody has to act. The status remembers what was announced. A running
// operation leaves the outcome open, and a suspended Stack only shows what it showed before: neither is the beginning or the end of a problem.
func (r *Reconciler) announceProblem(stack *pulumiv1.Stack, now time.Time, result *outcome) {
	ready, problem := conditions.Get(stack, meta.ReadyCondition), stack.Status.Problem
	switch {
	case ready == nil || ready.Status == metav1.ConditionUnknown:
		return
	case ready.Status == metav1.ConditionTrue, ready.Reason == pulumiv1.WaveNotOpenReason:
		stack.Status.Problem = nil
		if problem != nil && problem.Announced != "" && !result.announcesSuccess {
			announced, message := problem.Announced, ready.Message
			result.addEvent(func() {
				r.AnnotatedEventf(stack, tokenMetadata(problem.Since), corev1.EventTypeNormal, eventRecovered, "%s is over: %s", announced, message)
			})
		}
		return
	case stack.Spec.Suspend && stack.DeletionTimestamp.IsZero():
		return
	}
	if problem == nil {
		problem = &pulumiv1.ProblemStatus{}
		stack.Status.Problem = problem
	}
	if problem.Reason != ready.Reason {
		problem.Reason, problem.Since = ready.Reason, metav1.NewTime(now).Rfc3339Copy()
	}
	left := problem.Since.Add(problemGrace).Sub(now)
	switch {
	case result.announcesProblem:
		problem.Announced = ready.Reason
	case problem.Announced == ready.Reason:
	case conditions.IsStalled(stack) || left <= 0:
		problem.Announced = ready.Reason
		reason, message := ready.Reason, ready.Message
		result.addEvent(func() {
			r.AnnotatedEventf(stack, tokenMetadata(problem.Since), corev1.EventTypeWarning, reason, "%s", message)
		})
	default:
		result.after = soonest(result.after, left)
	}
}
