package workspace

import (
	"errors"
	"fmt"
	"slices"
	"testing"
	"time"

	. "github.com/onsi/gomega"
	"google.golang.org/grpc/codes"
	"k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/fluxcd/pkg/apis/meta"
	"github.com/fluxcd/pkg/runtime/conditions"

	autov1alpha1 "github.com/stack-controller/stack-controller/api/auto/v1alpha1"
	"github.com/stack-controller/stack-controller/internal/agent/client"
	"github.com/stack-controller/stack-controller/internal/agentruntime"
	"github.com/stack-controller/stack-controller/tests/framework/suite"
)

// modelState is one combination of what a decision is made from, and of what the Workspace was before.
type modelState struct {
	deleting                         bool
	ready, resting, failing, stalled bool
	retryAfter                       time.Duration
	version                          string
	structured                       bool
	err                              error
	before                           string
	edited                           bool
	// failed says that the last operation could not begin its work.
	failed bool
}

// oldPulumi is supported without structured configuration.
const supportedPulumi, oldPulumi = "v3.250.0", "v3.201.0"

// errServerBusy is an answer of the API server to a runtime that reads or writes objects of the Workspace.
var errServerBusy = fmt.Errorf("read the Secret app-workspace-rpc: %w", apierrors.NewTooManyRequests("too many requests", 1))

var (
	both        = []bool{false, true}
	modelErrors = []error{nil, errors.New("no answer"), agentruntime.ErrNoAgent, &client.Error{Code: codes.Unavailable},
		&client.Error{Code: codes.Unauthenticated}, &client.Error{Code: codes.PermissionDenied}, &client.Error{Kind: client.ErrUnasked}, errServerBusy}
	modelVersions = []string{"", "nonsense", oldPulumi, supportedPulumi, "v4.0.0"}
	modelBefore   = []string{"new", "starting", "ready", "failing", "stalled", "deleting", "idle", "woken"}
)

// each calls the function for every value.
func each[Value any](values []Value, field *Value, next func()) {
	for _, value := range values {
		*field = value
		next()
	}
}

// modelSpace enumerates the states, also those that no runtime ever reports.
func modelSpace(visit func(*modelState)) {
	s := &modelState{}
	agents := func(next func()) {
		each(both, &s.ready, func() {
			each(both, &s.resting, func() {
				each(both, &s.failing, func() { each(both, &s.stalled, func() { each(both, &s.failed, next) }) })
			})
		})
	}
	each(both, &s.deleting, func() {
		each(modelErrors, &s.err, func() {
			each(modelVersions, &s.version, func() {
				each([]time.Duration{0, time.Minute}, &s.retryAfter, func() {
					each(modelBefore, &s.before, func() {
						each(both, &s.edited, func() { each(both, &s.structured, func() { agents(func() { visit(s) }) }) })
					})
				})
			})
		})
	})
}

func (s *modelState) observe() observation {
	reason := autov1alpha1.InitializingReason
	if s.resting {
		reason = autov1alpha1.IdleReason
	}
	before := s.workspace()
	o := observation{deleting: s.deleting, pulumiVersion: s.version, structured: s.structured, err: s.err,
		idle: s.before == "idle", ready: conditions.IsTrue(before, autov1alpha1.WorkspaceReady), works: works(before), agent: agentruntime.Status{
			Ready: s.ready, Resting: s.resting, Failing: s.failing, Stalled: s.stalled, RetryAfter: s.retryAfter,
			Reason: reason, Message: "as the runtime says", Address: address,
		}}
	if s.failed {
		o.last = failure{update: "app-1", reason: autov1alpha1.InstallationFailedReason, message: "no such package"}
	}
	return o
}

// workspace returns the Workspace with its status before the decision.
func (s *modelState) workspace() *autov1alpha1.Workspace {
	workspace := &autov1alpha1.Workspace{Generation: 3, Status: autov1alpha1.WorkspaceStatus{ObservedGeneration: -1}}
	earlier := map[string]observation{"starting": {agent: starting}, "ready": {agent: running, pulumiVersion: supportedPulumi}, "failing": {agent: failed},
		"stalled": {agent: stalled}, "deleting": {deleting: true}, "idle": {agent: agentruntime.Status{
			Ready: true, Resting: true, Reason: autov1alpha1.IdleReason, Message: "m"}, pulumiVersion: supportedPulumi}}
	earlier["woken"] = earlier["idle"] // an Update needs it now
	if o, found := earlier[s.before]; found {
		decide(o).apply(workspace)
	}
	if s.edited {
		workspace.Generation++
	}
	return workspace
}

// broken returns the promises that the decision, or the status that it leads to, breaks.
func (s *modelState) broken(d decision, before, after *autov1alpha1.Workspace) (promises []string) {
	promise := func(kept bool, name string) {
		if !kept {
			promises = append(promises, name)
		}
	}
	needless := s.before == "idle" && (s.err != nil || !s.ready && !s.stalled)
	unasked := slices.Contains([]string{"idle", "woken", "ready"}, s.before) && errors.Is(s.err, client.ErrUnasked) ||
		s.before == "ready" && errors.Is(s.err, errServerBusy) && !s.ready && !s.edited
	unchanged := !s.deleting && (needless || unasked)
	promise((d.state == stateUnchanged) == unchanged, "a failure that nobody suffers from changes nothing, and starts no pod")
	if unchanged {
		promise(equality.Semantic.DeepEqual(before, after), "what stays as it is is not written")
		promise((d.retry != nil) == (s.err != nil), "every error is tried again")
		promise(d.retry != nil && d.after == 0 || d.retry == nil && d.after == s.retryAfter, "there is one time to come back")
		return promises
	}
	supported := s.version == supportedPulumi || s.version == oldPulumi && !s.structured
	usable := !s.deleting && s.err == nil && s.ready && supported
	readiness := conditions.Get(after, meta.ReadyCondition)
	isTrue := func(kind string) bool { return conditions.IsTrue(after, kind) }
	observed := after.Status.ObservedGeneration == after.Generation
	ended := d.state == stateReady || d.state == stateStalled
	promise((d.state == stateReady) == (usable && !s.failed), "a workspace is ready when its agent answers and can work, and only then")
	promise(s.deleting || after.CanRunOperations() == usable, "operations run wherever they can, whatever the last one met")
	promise((d.retry != nil) == (s.err != nil && !s.deleting), "every error is tried again")
	promise(d.retry == nil || d.after == 0, "there is one time to come back")
	promise(d.retry != nil || d.after == s.retryAfter, "the runtime is asked again when it says so")
	promise(d.state != stateStalled || s.stalled || s.failed || s.ready && !supported, "only what somebody has to mend stalls")
	promise(s.deleting || s.err != nil || s.ready || !s.stalled || d.state == stateStalled, "what somebody has to mend is shown as such")
	promise(s.deleting || s.err != nil || s.ready || s.stalled || !s.failing || d.state == stateFailing, "a failure is shown as such")
	promise((d.state == stateDeleting) == s.deleting, "a deletion is shown whatever the agent does")
	promise(d.state != stateReady || isIdle(after) == s.resting, "an idle workspace says so")
	promise(d.reason != "" && d.message != "", "every status is explained")

	promise(readiness != nil && readiness.Status == map[bool]metav1.ConditionStatus{true: metav1.ConditionTrue, false: metav1.ConditionFalse}[d.state == stateReady],
		"Ready says what was decided")
	promise(readiness == nil || readiness.Reason == d.reason, "Ready says why")
	promise(isTrue(meta.StalledCondition) == (d.state == stateStalled), "Stalled says what was decided")
	promise(isTrue(meta.ReconcilingCondition) == !ended, "who is neither ready nor stalled is reconciling")
	promise(!ended || observed, "what came to an end is observed")
	promise(ended || after.Status.ObservedGeneration == before.Status.ObservedGeneration, "what goes on is not observed yet")
	promise(!s.deleting || after.Status.Address == before.Status.Address && after.Status.PulumiVersion == before.Status.PulumiVersion,
		"an agent that ends can be found until it has ended")
	refused := d.reason == autov1alpha1.UnauthenticatedReason || d.reason == autov1alpha1.PermissionDeniedReason
	failed := (*client.Error)(nil)
	denied := errors.As(s.err, &failed) && slices.Contains([]codes.Code{codes.Unauthenticated, codes.PermissionDenied}, failed.Code)
	promise(refused == (denied && !s.deleting), "an agent that does not accept the controller is told from one that does not answer")
	return promises
}

// TestEveryStateHasADecisionThatKeepsThePromises checks all combinations of what a decision is made from.
func TestEveryStateHasADecisionThatKeepsThePromises(t *testing.T) {
	suite.WithoutRaceDetector(t)
	g := NewWithT(t)
	begin, states := time.Now(), 0
	reached, wrong := map[state]int{}, map[string]int{}
	modelSpace(func(s *modelState) {
		states++
		d := decide(s.observe())
		reached[d.state]++
		before := s.workspace()
		after := before.DeepCopy()
		d.apply(after)
		promises := s.broken(d, before, after)
		again := after.DeepCopy()
		if d.apply(again); !slices.Equal(again.Status.Conditions, after.Status.Conditions) {
			promises = append(promises, "the same observation changes nothing")
		}
		for _, name := range promises {
			if wrong[name]++; wrong[name] == 1 {
				t.Errorf("%s: %+v: %+v", name, *s, d)
			}
		}
	})
	for name, count := range wrong {
		t.Errorf("%d of %d states: %s", count, states, name)
	}
	for _, expected := range []state{stateStarting, stateReady, stateFailing, stateStalled, stateDeleting, stateUnchanged} {
		g.Expect(reached).To(HaveKey(expected))
	}
	t.Logf("%d states in %s: %v", states, time.Since(begin).Round(time.Millisecond), reached)
}
