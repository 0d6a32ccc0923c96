package command

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/fluxcd/pkg/apis/meta"
	"github.com/spf13/cobra"
	"k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	apimeta "k8s.io/apimachinery/pkg/api/meta"
	"sigs.k8s.io/controller-runtime/pkg/client"

	autov1alpha1 "github.com/stack-controller/stack-controller/api/auto/v1alpha1"
	pulumiv1 "github.com/stack-controller/stack-controller/api/pulumi/v1"
	"github.com/stack-controller/stack-controller/internal/report/reasons"
)

const (
	// pollInterval is how often an awaited object is read.
	pollInterval = 500 * time.Millisecond
	// defaultTimeout is the default of Flux's command line.
	defaultTimeout = 5 * time.Minute
)

// waiting has the flags of commands that wait.
type waiting struct {
	timeout time.Duration
	wait    bool
}

func (w *waiting) addFlags(cmd *cobra.Command) {
	cmd.Flags().DurationVar(&w.timeout, "timeout", defaultTimeout, "The longest time to wait.")
	cmd.Flags().BoolVar(&w.wait, "wait", true, "Wait for the result, and show what happens until then.")
}

// progress is what an object is doing, and how far it is. The wait ends when done is true.
type progress struct {
	state, detail string
	done          bool
}

// await calls read until it is done, and shows the progress. It returns an error of read unless a later call may succeed. The name is for
// the message of a timeout.
func (s *session) await(ctx context.Context, timeout time.Duration, name string, read func(context.Context) (progress, error)) error {
	ctx, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	ticker := time.NewTicker(pollInterval)
	defer ticker.Stop()
	defer s.log.Clear() // the result may go to another stream
	start, last, unanswered := time.Now(), progress{}, 0
	for {
		now, err := read(ctx)
		switch {
		case err == nil && now.done:
			return nil
		case err != nil && ctx.Err() == nil && !temporary(err):
			return err
		case err == nil:
			last, unanswered = now, 0
		case ctx.Err() == nil:
			// A call that the timeout cuts short fails, too. One failure does not hide what is known already.
			if unanswered++; unanswered > 1 || last.state == "" {
				last = progress{state: "the API server does not answer", detail: err.Error()}
			}
		}
		s.log.Progress(last.state, last.detail, time.Since(start))
		select {
		case <-ctx.Done():
			if errors.Is(ctx.Err(), context.DeadlineExceeded) {
				return failed(exitTimeout, "%s is not ready after %s: %s", name, timeout, join(last.state, last.detail))
			}
			return ctx.Err()
		case <-ticker.C:
		}
	}
}

func join(state, detail string) string {
	if detail == "" {
		return state
	}
	return state + ": " + detail
}

// temporary reports whether a failed call may succeed later.
func temporary(err error) bool {
	if _, known := errors.AsType[failure](err); known {
		return false
	}
	if _, answered := errors.AsType[*apierrors.StatusError](err); answered {
		return apierrors.IsServerTimeout(err) || apierrors.IsTimeout(err) || apierrors.IsTooManyRequests(err) ||
			apierrors.IsInternalError(err) || apierrors.IsServiceUnavailable(err)
	}
	return !apimeta.IsNoMatchError(err)
}

// answerTime is how long a controller has to answer a request. If it finds a Stack Stalled as before, it writes nothing. Another attempt to fetch an
// artifact may take longer, and the Stack is Stalled meanwhile.
const (
	answerTime = 15 * time.Second
	fetchTime  = time.Minute
)

// awaitStack waits until the Stack is up to date after the request, and shows the progress of its Update. The Stack is the one that the API server
// returned for the request. The wait fails when a later Update than its last one ends without success.
func (s *session) awaitStack(ctx context.Context, c *cluster, asked *pulumiv1.Stack, timeout time.Duration, request string) (*pulumiv1.Stack, error) {
	stack, key, start := &pulumiv1.Stack{}, client.ObjectKeyFromObject(asked), time.Now()
	err := s.await(ctx, timeout, fmt.Sprintf("Stack %s", key), func(ctx context.Context) (progress, error) {
		if err := c.read(ctx, key, stack); err != nil {
			return progress{}, err
		}
		if done, err := reached(stack, asked, request, time.Since(start)); done || err != nil {
			return progress{done: done}, err
		}
		return c.progressOf(ctx, stack), nil
	})
	return stack, err
}

// reached reports whether the Stack is up to date after the request, which was made the given time ago. It returns an error when the Stack cannot
// become ready by itself.
func reached(stack, asked *pulumiv1.Stack, request string, ago time.Duration) (bool, error) {
	status, last := &stack.Status, stack.Status.LastUpdate
	condition := apimeta.FindStatusCondition(status.Conditions, meta.ReadyCondition)
	if stack.Spec.Suspend {
		return false, failed(exitNotReady, "Stack %q was suspended meanwhile", stack.Name)
	}
	stalled := apimeta.FindStatusCondition(status.Conditions, meta.StalledCondition)
	if !isHandled(status.LastHandledReconcileAt, request, stack) {
		// A Stack that cannot be updated keeps the request. Its controller writes no status that was decided on before the request.
		patience := answerTime
		if stalled != nil && (stalled.Reason == pulumiv1.ArtifactTooLargeReason || stalled.Reason == pulumiv1.ArtifactUnusableReason) {
			patience = fetchTime
		}
		answered := ago >= patience || !equality.Semantic.DeepEqual(stack.Status, asked.Status)
		if answered && stalled != nil && stalled.ObservedGeneration == stack.Generation && status.CurrentUpdate == nil &&
			!startsAnother(stalled.Reason) {
			return false, failed(exitNotReady, "Stack %q cannot be updated now (%s): %s; the request is kept until it can", stack.Name, stalled.Reason,
				short(stalled.Message))
		}
		return false, nil
	}
	if status.ObservedGeneration != stack.Generation || status.CurrentUpdate != nil || condition == nil {
		return false, nil
	}
	failedNow := last != nil && last.Name != nameOfLast(asked) && last.State == pulumiv1.StackUpdateFailed
	if failedNow || stalled != nil {
		return false, failed(exitNotReady, "Stack %q is not ready (%s): %s", stack.Name, condition.Reason, short(condition.Message))
	}
	return apimeta.IsStatusConditionTrue(status.Conditions, meta.ReadyCondition), nil
}

// startsAnother reports whether a request starts another update of a Stack that is Stalled with the reason.
func startsAnother(reason string) bool {
	row := reasons.Of("Stack").Row(reason)
	return row != nil && row.StartsAnother
}

// isHandled reports whether the controller of an object, which was read after the request was made, has handled it, or a later one that has
// taken its place.
func isHandled(handled, request string, object client.Object) bool {
	return handled == request || handled == object.GetAnnotations()[meta.ReconcileRequestAnnotation]
}

// isSeen reports whether the controller has seen the last edit of the Stack. Only a Stack that is up to date or Stalled has it in
// status.observedGeneration; one that waits has it in its conditions.
func isSeen(stack *pulumiv1.Stack) bool {
	condition := apimeta.FindStatusCondition(stack.Status.Conditions, meta.ReadyCondition)
	return stack.Status.ObservedGeneration == stack.Generation || condition != nil && condition.ObservedGeneration == stack.Generation
}

// progressOf returns what the Update of the Stack does, or what the Stack waits for.
func (c *cluster) progressOf(ctx context.Context, stack *pulumiv1.Stack) progress {
	condition := apimeta.FindStatusCondition(stack.Status.Conditions, meta.ReadyCondition)
	if current := stack.Status.CurrentUpdate; current != nil {
		update := &autov1alpha1.Update{}
		if err := c.read(ctx, client.ObjectKey{Namespace: stack.Namespace, Name: current.Name}, update); err == nil {
			return progressOfUpdate(update)
		}
	}
	switch {
	case condition == nil || !isSeen(stack):
		return progress{state: "waiting for the controller"}
	case condition.Status == "True":
		return progress{state: "waiting for the update to begin"}
	}
	return progress{state: condition.Reason, detail: short(condition.Message)}
}

func progressOfUpdate(update *autov1alpha1.Update) progress {
	state := fmt.Sprintf("%s %s is %s", update.Spec.Type, update.Name, stateOf(update).Text)
	detail := counts(update.Status.ResourceChanges)
	switch text := updateMessage(update); {
	case detail == "":
		detail = text
	case text != "":
		detail += ", " + text
	}
	return progress{state: state, detail: detail}
}
