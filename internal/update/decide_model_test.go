package update

import (
	"errors"
	"slices"
	"strings"
	"testing"
	"time"

	. "github.com/onsi/gomega"

	"github.com/fluxcd/pkg/runtime/conditions"

	autov1alpha1 "github.com/stack-controller/stack-controller/api/auto/v1alpha1"
	pulumiv1 "github.com/stack-controller/stack-controller/api/pulumi/v1"
	"github.com/stack-controller/stack-controller/internal/agent/client"
	"github.com/stack-controller/stack-controller/internal/agent/proto"
	"github.com/stack-controller/stack-controller/internal/artifact"
	"github.com/stack-controller/stack-controller/internal/runtime"
	"github.com/stack-controller/stack-controller/internal/source"
)

// The values of what a decision is made from, as far as they make a difference.
var (
	modelLives      = []string{"new", "started", "of another controller", "succeeded", "failed"}
	modelDeletions  = []string{"kept", "cancelled", "deleted", "deleted a while ago", "deleted long ago"}
	modelWorkspaces = []string{"none", "ready", "ready for an earlier generation", "without status", "not ready", "incompatible", "going", "going, not ready"}
	modelAgents     = []string{"knows nothing", "none", "unavailable", "denies", "an operation", "the end of an operation"}
	modelArtifacts  = []string{"ready", "fetching", "NotFound", "Integrity", "TooLarge", "Unavailable", "Unusable", "pending", "watched", "missing", "forbidden"}
	modelRequests   = []string{"complete", "secret missing", "invalid", "not readable"}
	modelWaits      = []string{"", autov1alpha1.UpdateTransientFailureReason, pulumiv1.SecretNotFoundReason, pulumiv1.ArtifactDigestMismatchReason,
		pulumiv1.SourceNotFoundReason, reasonQueued}
	modelAges = []time.Duration{-time.Minute, 0, time.Minute, 100 * time.Hour}
)

// longestWait is the longest time that anything is left to itself.
const longestWait = 2 * deliveryTimeout

// modelState is one combination.
type modelState struct {
	life, deletion, workspace, agent string
	operation                        proto.OperationState
	lost, ahead                      bool
	artifact, request, wait          string
	age                              time.Duration
}

// each calls the function for every value.
func each[Value any](values []Value, field *Value, next func()) {
	for _, value := range values {
		*field = value
		next()
	}
}

// modelSpaces enumerates the states: those that observe never leads to are among them, but for an agent without a workspace. What an
// operation would be made of is told in fewer ways where there is nothing to start.
func modelSpaces(visit func(*modelState)) {
	s := &modelState{}
	operations := make([]proto.OperationState, 0, len(proto.OperationState_name))
	for state := range proto.OperationState_name {
		operations = append(operations, proto.OperationState(state))
	}
	agents := func(next func()) {
		each(modelWorkspaces, &s.workspace, func() {
			known := modelAgents
			if s.workspace == "none" {
				known = known[:1]
			}
			each(known, &s.agent, func() {
				s.operation, s.lost = proto.OperationState_OPERATION_STATE_UNSPECIFIED, false
				if s.hasOperation() {
					each(operations, &s.operation, func() { each([]bool{false, true}, &s.lost, next) })
					return
				}
				next()
			})
		})
	}
	waits := func(next func()) {
		each(modelWaits, &s.wait, func() {
			ages := modelAges
			if s.wait == "" {
				ages = ages[:1]
			}
			each(ages, &s.age, next)
		})
	}
	inputs := func(next func()) {
		each([]bool{false, true}, &s.ahead, func() {
			artifacts, requests := modelArtifacts, modelRequests
			if s.life != "new" || s.hasOperation() {
				artifacts, requests = []string{"ready", "forbidden"}, []string{"complete", "invalid"}
			}
			each(artifacts, &s.artifact, func() { each(requests, &s.request, next) })
		})
	}
	each(modelLives, &s.life, func() {
		each(modelDeletions, &s.deletion, func() { agents(func() { waits(func() { inputs(func() { visit(s) }) }) }) })
	})
}

func (s *modelState) hasOperation() bool { return strings.HasSuffix(s.agent, "an operation") }

func (s *modelState) complete() bool { return s.life == "succeeded" || s.life == "failed" }

// modelObjects are the objects that observations share: decide changes none.
type modelObjects struct {
	updates    map[modelState]*autov1alpha1.Update
	workspaces map[string]*autov1alpha1.Workspace
	operations map[proto.OperationState]*proto.Operation
	artifacts  map[string]artifactView
	request    *proto.StartOperationRequest
}

func newModelObjects() *modelObjects {
	return &modelObjects{updates: map[modelState]*autov1alpha1.Update{}, workspaces: map[string]*autov1alpha1.Workspace{},
		operations: map[proto.OperationState]*proto.Operation{}, artifacts: map[string]artifactView{}, request: &proto.StartOperationRequest{}}
}

// once returns what the map has, or makes it.
func once[Key comparable, Value any](known map[Key]Value, key Key, make func() Value) Value {
	value, found := known[key]
	if !found {
		value = make()
		known[key] = value
	}
	return value
}

// observe makes the observation of a state.
func (m *modelObjects) observe(s *modelState) *observation {
	o := &observation{now: testTime, artifact: once(m.artifacts, s.artifact, s.observeArtifact)}
	o.update = once(m.updates, modelState{life: s.life, deletion: s.deletion, wait: s.wait, age: s.age}, s.observeUpdate)
	if s.workspace != "none" {
		o.workspace = once(m.workspaces, s.workspace, s.observeWorkspace)
	}
	switch s.agent {
	case "none":
		o.agent.err = runtime.ErrNoAgent
	case "unavailable":
		o.agent.err = client.ErrUnavailable
	case "denies":
		o.agent.err = client.ErrDenied
	case "an operation", "the end of an operation":
		o.agent.operation = once(m.operations, s.operation, func() *proto.Operation { return &proto.Operation{State: s.operation} })
		o.agent.resultLost = s.lost
	}
	if s.ahead {
		o.ahead = "earlier"
	}
	switch s.request {
	case "complete":
		o.request = m.request
	case "secret missing":
		o.requestError = &missingError{kind: "secret", name: "token", usedBy: "it"}
	case "invalid":
		o.requestError = invalidf("no such thing")
	case "not readable":
		o.requestError = errors.New("forbidden")
	}
	return o
}

func (s *modelState) observeUpdate() *autov1alpha1.Update {
	o := ready()
	update := o.update
	if s.wait != "" {
		waiting(s.wait, s.age)(o)
	}
	switch s.life {
	case "started":
		markProgressing(update, &proto.Operation{})
	case "of another controller":
		abandoned(o)
	case "succeeded":
		markSucceeded(update, testTime, "done")
	case "failed":
		markFailed(update, autov1alpha1.UpdateFailedReason, testTime, "it failed")
	}
	switch s.deletion {
	case "cancelled":
		update.Annotations = map[string]string{pulumiv1.CancelUpdateAnnotation: "true"}
	case "deleted":
		deleted(0)(o)
	case "deleted a while ago":
		deleted(cancelPatience)(o)
	case "deleted long ago":
		deleted(cancelPatience + time.Second)(o)
	}
	return update
}

func (s *modelState) observeWorkspace() *autov1alpha1.Workspace {
	o := ready()
	switch s.workspace {
	case "ready for an earlier generation":
		o.workspace.Generation++
	case "without status":
		o.workspace.Status = autov1alpha1.WorkspaceStatus{}
	case "incompatible":
		conditions.MarkFalse(o.workspace, autov1alpha1.WorkspaceReady, autov1alpha1.IncompatibleConfigurationReason, "too old")
	case "not ready", "going, not ready":
		workspaceUnready(o)
	}
	if strings.HasPrefix(s.workspace, "going") {
		workspaceDeleted(o)
	}
	return o.workspace
}

func (s *modelState) observeArtifact() artifactView {
	switch s.artifact {
	case "ready":
		return artifactView{ready: true}
	case "fetching":
		return artifactView{}
	case "pending", "watched", "missing", "forbidden":
		return artifactView{err: &source.Problem{Reason: pulumiv1.SourceNotFoundReason, Message: "why",
			Pending: s.artifact == "pending", Watched: s.artifact == "watched", Permanent: s.artifact == "forbidden"}}
	}
	return artifactView{err: &artifact.FetchError{Kind: artifact.Kind(s.artifact)}}
}

// wakes tells whether what the decision names really brings the Update back.
func (s *modelState) wakes(d decision) bool {
	switch d.wake {
	case byWorkspace:
		return s.workspace != "ready"
	case byUpdates:
		return s.ahead
	case byObserver:
		return slices.Contains([]action{actionStart, actionFollow, actionCancel, actionReconnect}, d.action) && s.workspace != "none"
	case bySource:
		return s.artifact == "pending" || s.artifact == "watched"
	case byFetch:
		return s.artifact == "fetching"
	case byTime:
		return d.after > 0
	case byNothing:
		return slices.Contains([]action{actionFinish, actionRecord, actionRetire}, d.action)
	}
	return false
}

// nothingRuns tells whether the operation is known not to run, or there is nobody left to ask.
func (s *modelState) nothingRuns() bool {
	gone := s.agent == "none" && (strings.HasPrefix(s.workspace, "going") || s.life == "new" && s.workspace != "ready")
	return s.life == "of another controller" || s.agent == "knows nothing" || s.deletion != "kept" && (gone || s.deletion == "deleted long ago")
}

// broken names the promises that the decision breaks.
func (s *modelState) broken(d decision) (promises []string) {
	promise := func(kept bool, name string) {
		if !kept {
			promises = append(promises, name)
		}
	}
	ours := !s.complete() && s.life != "of another controller"
	final, isDeleted := s.hasOperation() && s.operation.Final(), s.deletion != "kept"
	starts, finishes := d.action == actionStart, d.action == actionFinish
	permanent := s.request == "invalid" || s.artifact == "forbidden"
	promise(s.wakes(d), "every decision is followed by something that wakes the Update")
	promise(d.after >= 0 && d.after <= longestWait, "no time is negative, and none is longer than a delivery may take")
	promise((d.action == actionRetire) == s.complete(), "a complete Update is neither run nor written again")
	promise(!starts || s.life == "new" && s.agent == "knows nothing", "an operation is started once")
	promise(!starts || s.workspace == "ready", "an operation is started in a workspace that is ready for it")
	promise(!starts || !isDeleted, "what is deleted or cancelled is not started")
	promise(!starts || !s.ahead, "a workspace has one operation at a time")
	promise(!starts || s.artifact == "ready" && s.request == "complete", "an operation has all that it is made of")
	promise((d.action == actionRecord) == (ours && final && (s.workspace != "none")), "every result of an agent is recorded, and nothing else is")
	promise(!ours || !s.hasOperation() || final || d.action == actionFollow || d.action == actionCancel, "what runs is followed to its end")
	promise((d.action == actionCancel) == (ours && isDeleted && s.hasOperation() && !final), "a deletion or a request cancels what runs, and nothing else does")
	promise(!finishes || s.nothingRuns(), "nothing that may run is given up")
	promise(!finishes || slices.Contains(s.endings(permanent), d.reason), "an end without result says what is known")
	promise(!finishes || isDeleted || s.life != "new" || permanent, "only what an edit can mend ends an Update that never ran")
	promise(isDeleted || s.life != "new" || s.hasOperation() || slices.Contains([]action{actionStart, actionWait, actionFinish}, d.action), "what was not started waits or starts")
	promise(d.action != actionWait && !finishes || d.reason != "" && d.message != "", "who waits or gives up says why")
	promise(s.request != "secret missing" || !s.startable() || d.reason == pulumiv1.SecretNotFoundReason, "what is missing is named")
	promise(s.request != "complete" || !s.startable() || starts, "what has all that it needs is started")
	promise(d.action != actionReconnect || s.life == "started" && s.agent != "knows nothing" && d.message != "", "only an operation that may run is looked for")
	return promises
}

// startable tells whether nothing but the request can be in the way of a start.
func (s *modelState) startable() bool {
	return s.life == "new" && s.deletion == "kept" && s.workspace == "ready" && s.agent == "knows nothing" && !s.ahead && s.artifact == "ready"
}

// endings are the reasons that an Update may end with that has no result.
func (s *modelState) endings(permanent bool) []string {
	switch {
	case s.life == "of another controller":
		return []string{autov1alpha1.InterruptedReason}
	case s.deletion != "kept" && (s.deletion != "cancelled" || s.life == "new"):
		return []string{autov1alpha1.CanceledReason}
	case s.life == "started":
		return []string{autov1alpha1.InterruptedReason}
	case permanent:
		return []string{autov1alpha1.ConfigInvalidReason}
	}
	return nil
}

// ends lets time pass after the deletion of an Update, while its agent says the same for ever.
func ends(o *observation, d decision) bool {
	patience := *o
	for looks := 0; d.action == actionWait; looks++ {
		if looks > 100 || patience.now.Sub(o.now) > cancelPatience+time.Minute {
			return false
		}
		patience.now = patience.now.Add(d.after)
		d = decide(&patience)
	}
	return slices.Contains([]action{actionFinish, actionRecord, actionRetire, actionCancel}, d.action)
}

// refused names the promises that the answers to a refusal of the agent break.
func refused(o *observation) (promises []string) {
	for _, kind := range []error{client.ErrBusy, client.ErrNotFound, client.ErrUnavailable, client.ErrInvalid, client.ErrDigestMismatch, client.ErrTooLarge,
		client.ErrPulumiUnsupported, client.ErrDenied, client.ErrSourceMissing, runtime.ErrNoAgent, errors.New("disk")} {
		err := &client.Error{What: "call", Kind: kind, Message: "because"}
		start, delivery := decideOnStartError(o, err), decideOnDeliveryError(o, err)
		if (start.action == actionFinish) != (errors.Is(kind, client.ErrInvalid) || errors.Is(kind, client.ErrTooLarge)) || delivery.action == actionFinish {
			promises = append(promises, "only a request that can never work ends an Update")
		}
		for _, d := range []decision{start, delivery, delivering(o)} {
			if d.action != actionFinish && (d.action != actionWait || d.after <= 0 || d.after > longestWait || d.reason == "" || d.message == "") {
				promises = append(promises, "a refusal is tried again")
			}
		}
	}
	return promises
}

// TestEveryStateHasADecisionThatKeepsThePromises goes through all combinations of what a decision is made from.
func TestEveryStateHasADecisionThatKeepsThePromises(t *testing.T) {
	g := NewWithT(t)
	begin, states := time.Now(), 0
	objects := newModelObjects()
	reached, wrong := map[action]int{}, map[string]int{}
	modelSpaces(func(s *modelState) {
		states++
		o := objects.observe(s)
		d := decide(o)
		reached[d.action]++
		promises := s.broken(d)
		if strings.HasPrefix(s.deletion, "deleted") && !ends(o, d) {
			promises = append(promises, "a deletion ends")
		}
		if d.action == actionStart {
			promises = append(promises, refused(o)...)
		}
		if left := d.unshown(o); left < 0 || left > briefWait || left > 0 && d.action != actionWait {
			promises = append(promises, "only a wait is kept out of the status, and not for long")
		}
		for _, name := range promises {
			if wrong[name]++; wrong[name] == 1 {
				t.Errorf("%s: %+v: %s, woken by %s after %s: %s: %s", name, *s, d.action, d.wake, d.after, d.reason, d.message)
			}
		}
	})
	for name, count := range wrong {
		t.Errorf("%d of %d states: %s", count, states, name)
	}
	for _, expected := range []action{actionRetire, actionFinish, actionRecord, actionFollow, actionCancel, actionReconnect, actionStart, actionWait} {
		g.Expect(reached).To(HaveKey(expected))
	}
	t.Logf("%d states in %s: %v", states, time.Since(begin).Round(time.Millisecond), reached)
}
