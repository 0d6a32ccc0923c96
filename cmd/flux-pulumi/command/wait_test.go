package command

import (
	"context"
	"errors"
	"io"
	"testing"
	"testing/synctest"
	"time"

	. "github.com/onsi/gomega"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"

	"github.com/fluxcd/pkg/apis/meta"

	pulumiv1 "github.com/stack-controller/stack-controller/api/pulumi/v1"
	"github.com/stack-controller/stack-controller/cmd/flux-pulumi/print"
)

// What is known of an object is not hidden by the one call that the timeout cuts short.
func TestTimeoutEndsWithWhatIsKnown(t *testing.T) {
	limiter := errors.New("client rate limiter Wait returned an error: rate: Wait(n=1) would exceed context deadline")
	for name, test := range map[string]struct {
		answers []error
		want    string
	}{
		"the last call is cut short": {[]error{nil, nil, limiter}, "x is not ready after 1.2s: working: on it"},
		"no answer for longer":       {[]error{nil, limiter, limiter}, "x is not ready after 1.2s: the API server does not answer: " + limiter.Error()},
		"no answer at all":           {[]error{limiter, limiter, limiter}, "x is not ready after 1.2s: the API server does not answer: " + limiter.Error()},
		"an answer again":            {[]error{limiter, limiter, nil}, "x is not ready after 1.2s: working: on it"},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				s := &session{log: print.New(io.Discard, func(string) string { return "" })}
				calls := 0
				err := s.await(t.Context(), 1200*time.Millisecond, "x", func(context.Context) (progress, error) {
					calls++
					return progress{state: "working", detail: "on it"}, test.answers[calls-1]
				})
				g := NewWithT(t)
				g.Expect(err).To(MatchError(test.want))
				g.Expect(calls).To(Equal(3))
			})
		})
	}
}

// stalledFor returns a Stack that is Stalled, and whose controller has not handled the request of the user.
func stalledFor(reason string) *pulumiv1.Stack {
	stack := &pulumiv1.Stack{Namespace: "apps", Name: "shop", Generation: 2}
	stack.Annotations = map[string]string{meta.ReconcileRequestAnnotation: "mine"}
	stack.Status.ObservedGeneration, stack.Status.LastHandledReconcileAt = 2, "earlier"
	for kind, status := range map[string]metav1.ConditionStatus{meta.ReadyCondition: metav1.ConditionFalse, meta.StalledCondition: metav1.ConditionTrue} {
		stack.Status.Conditions = append(stack.Status.Conditions,
			metav1.Condition{Type: kind, Status: status, Reason: reason, Message: "why", ObservedGeneration: 2})
	}
	return stack
}

// answering returns a cluster whose reads of a Stack return one version after the other, and then the last one.
func answering(versions ...*pulumiv1.Stack) *cluster {
	c, _ := newCluster()
	c.client = interceptor.NewClient(c.client, interceptor.Funcs{
		Get: func(ctx context.Context, caller client.WithWatch, key client.ObjectKey, into client.Object, options ...client.GetOption) error {
			stack, is := into.(*pulumiv1.Stack)
			if !is {
				return caller.Get(ctx, key, into, options...)
			}
			versions[0].DeepCopyInto(stack)
			versions = versions[min(1, len(versions)-1):]
			return nil
		},
	})
	return c
}

func TestAStalledStackEndsTheWaitWhenItsControllerHasSeenTheRequest(t *testing.T) {
	with := func(stack *pulumiv1.Stack, change func(*pulumiv1.Stack)) *pulumiv1.Stack {
		change(stack)
		return stack
	}
	handled := func(stack *pulumiv1.Stack) { stack.Status.LastHandledReconcileAt = "mine" }
	ready := func(stack *pulumiv1.Stack) {
		stack.Status.Conditions = []metav1.Condition{{Type: meta.ReadyCondition, Status: metav1.ConditionTrue, ObservedGeneration: 2}}
	}
	denied, failedBefore := stalledFor(pulumiv1.AccessDeniedReason), stalledFor(pulumiv1.UpdateFailedReason)
	tooLarge := stalledFor(pulumiv1.ArtifactTooLargeReason)
	updating := with(with(denied.DeepCopy(), handled), func(stack *pulumiv1.Stack) {
		stack.Status.CurrentUpdate = &pulumiv1.CurrentStackUpdate{Name: "shop-2"}
	})
	updated := with(with(denied.DeepCopy(), handled), ready)
	failedAgain := with(with(failedBefore.DeepCopy(), handled), func(stack *pulumiv1.Stack) {
		stack.Status.LastUpdate = &pulumiv1.StackUpdateStatus{Name: "shop-2", State: pulumiv1.StackUpdateFailed}
	})
	edited := with(denied.DeepCopy(), func(stack *pulumiv1.Stack) { stack.Generation++ })
	for name, test := range map[string]struct {
		asked *pulumiv1.Stack
		reads []*pulumiv1.Stack
		says  string
		code  int
		after time.Duration
	}{
		"it became so": {with(denied.DeepCopy(), ready), []*pulumiv1.Stack{stalledFor(pulumiv1.DependencyCycleReason)},
			"(DependencyCycle): why; the request is kept", exitNotReady, 0},
		"it is so for another reason":          {denied, []*pulumiv1.Stack{stalledFor(pulumiv1.DependencyCycleReason)}, "(DependencyCycle): why", exitNotReady, 0},
		"it stays so":                          {denied, []*pulumiv1.Stack{denied}, "(AccessDenied): why", exitNotReady, answerTime},
		"it fetches, and stays so":             {tooLarge, []*pulumiv1.Stack{tooLarge}, "(ArtifactTooLarge): why", exitNotReady, fetchTime},
		"it was so, and the update runs":       {denied, []*pulumiv1.Stack{denied, updating, updated}, "", 0, 2 * pollInterval},
		"the request was handled nevertheless": {denied, []*pulumiv1.Stack{with(denied.DeepCopy(), handled)}, "is not ready (AccessDenied)", exitNotReady, 0},
		"its last edit was not seen":           {edited, []*pulumiv1.Stack{edited}, "is not ready after 2m0s", exitTimeout, 2 * time.Minute},
		"an update failed before":              {failedBefore, []*pulumiv1.Stack{failedBefore}, "is not ready after 2m0s: UpdateFailed", exitTimeout, 2 * time.Minute},
		"the requested update fails, too":      {failedBefore, []*pulumiv1.Stack{failedBefore, failedAgain}, "(UpdateFailed): why", exitNotReady, pollInterval},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				g, start := NewWithT(t), time.Now()
				s, _ := newSession(nil)
				_, err := s.awaitStack(t.Context(), answering(test.reads...), test.asked, 2*time.Minute, "mine")
				g.Expect(time.Since(start)).To(Equal(test.after))
				if test.says == "" {
					g.Expect(err).NotTo(HaveOccurred())
					return
				}
				g.Expect(err).To(MatchError(ContainSubstring(test.says)))
				found, _ := errors.AsType[failure](err)
				g.Expect(found.code).To(Equal(test.code))
			})
		})
	}
}
