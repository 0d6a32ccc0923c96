package update

import (
	"errors"
	"slices"
	"strings"
	"testing"
	"time"

	. "github.com/onsi/gomega"
	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/fluxcd/pkg/runtime/conditions"

	autov1alpha1 "github.com/stack-controller/stack-controller/api/auto/v1alpha1"
	pulumiv1 "github.com/stack-controller/stack-controller/api/pulumi/v1"
	"github.com/stack-controller/stack-controller/internal/agent/agentpb"
	"github.com/stack-controller/stack-controller/internal/agent/client"
	"github.com/stack-controller/stack-controller/internal/agentruntime"
	"github.com/stack-controller/stack-controller/internal/controller/inputs"
	"github.com/stack-controller/stack-controller/internal/references"
	"github.com/stack-controller/stack-controller/internal/source"
	"github.com/stack-controller/stack-controller/internal/source/artifact"
	"github.com/stack-controller/stack-controller/tests/framework/suite"
)

// The values that the facts of a decision can have, as far as they make a difference.
var (
	modelLives      = []string{"new", "started", "preview started", "preview repeated", "of another controller", "succeeded", "failed"}
	modelDeletions  = []string{"kept", "cancelled", "deleted", "deleted a while ago", "deleted long ago"}
	modelWorkspaces = []string{"none", "ready", "ready for an earlier generation", "without status", "not ready", "incompatible", "going", "going, not ready"}
	// modelUnasked is what is known of an agent before it is asked, which it is at once if the operation may have started.
	modelUnasked = "was not asked"
	modelAgents  = []string{"knows nothing", "none", "rests", "rests although it was woken", "unavailable", "denies", "an operation", "the end of an operation",
		"a plan", "a plan that is stored", "a plan that is not stored yet", "a plan that is too large", "a plan that is not there",
		"outputs", "outputs that are stored", "outputs that are not stored yet", "outputs that were not stored for long", "outputs in place of which there are others"}
	modelArtifacts = []string{"ready", "fetching", "NotFound", "Integrity", "TooLarge", "Unavailable", "Unusable", "pending", "watched", "missing", "forbidden"}
	modelRequests  = []string{"complete", "turn not asked for", "not its turn", "secret missing", "input missing", "not shared", "invalid", "not readable", "plan stale", "not approved", "not approved yet"}
	modelWaits     = []string{"", autov1alpha1.UpdateTransientFailureReason, pulumiv1.SecretNotFoundReason, pulumiv1.ArtifactDigestMismatchReason,
		pulumiv1.SourceNotFoundReason, autov1alpha1.QueuedReason}
	modelAges = []time.Duration{-time.Minute, 0, time.Minute, 100 * time.Hour}
)

// longestWait is the longest time for which a decision may leave an Update alone.
const longestWait = 2 * deliveryTimeout

// modelState is one combination of these values.
type modelState struct {
	life, deletion, workspace, agent string
	operation                        agentpb.OperationState
	ahead                            bool
	artifact, request, wait          string
	age                              time.Duration
}

// each sets the field to each value, and calls next.
func each[Value any](values []Value, field *Value, next func()) {
	for _, value := range values {
		*field = value
		next()
	}
}

// modelSpaces enumerates the states. Except for an agent without a workspace, they include states that observe never produces. When there
// is nothing to start, the inputs of the operation have fewer values.
func modelSpaces(visit func(*modelState)) {
	s := &modelState{}
	operations := make([]agentpb.OperationState, 0, len(agentpb.OperationState_name))
	for state := range agentpb.OperationState_name {
		operations = append(operations, agentpb.OperationState(state))
	}
	agents := func(next func()) {
		each(modelWorkspaces, &s.workspace, func() {
			known := modelAgents
			switch {
			case s.workspace == "none":
				known = known[:1]
			case s.life == "new" && s.deletion == "kept":
				known = append(slices.Clone(known), modelUnasked)
			}
			each(known, &s.agent, func() {
				s.operation = agentpb.OperationState_OPERATION_STATE_UNSPECIFIED
				switch {
				case s.hasPlan(), s.hasOutputs():
					s.operation = agentpb.OperationState_OPERATION_STATE_SUCCEEDED
				case s.hasOperation():
					each(operations, &s.operation, next)
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
			if s.agent == modelUnasked {
				requests = []string{"turn not asked for", "not approved", "not approved yet"}
			} else if s.deletion != "kept" || s.agent != "knows nothing" {
				// The approval is read before the agent is asked, and only for an operation that may start.
				requests = requests[:len(requests)-2]
			}
			if s.life != "new" || s.hasOperation() {
				artifacts, requests = []string{"ready", "forbidden"}, []string{"complete", "invalid", "plan stale"}
			}
			each(artifacts, &s.artifact, func() { each(requests, &s.request, next) })
		})
	}
	each(modelLives, &s.life, func() {
		each(modelDeletions, &s.deletion, func() { agents(func() { waits(func() { inputs(func() { visit(s) }) }) }) })
	})
}

func (s *modelState) hasOperation() bool {
	return strings.HasSuffix(s.agent, "an operation") || s.hasPlan() || s.hasOutputs()
}

// hasOutputs reports whether the operation of the agent has succeeded and has outputs.
func (s *modelState) hasOutputs() bool { return strings.HasPrefix(s.agent, "outputs") }

// keepsOutputs reports whether there is more to do to keep those outputs.
func (s *modelState) keepsOutputs() bool {
	return (s.agent == "outputs" || s.agent == "outputs that are not stored yet") && !strings.HasPrefix(s.deletion, "deleted")
}

// hasPlan reports whether the operation of the agent has succeeded and is one that saves a plan.
func (s *modelState) hasPlan() bool { return strings.HasPrefix(s.agent, "a plan") }

// unusablePlan reports whether there is no way to keep that plan.
func (s *modelState) unusablePlan() bool {
	return s.agent == "a plan that is too large" || s.agent == "a plan that is not there"
}

// started reports whether the operation was started by this controller, and its end is not recorded.
func (s *modelState) started() bool {
	return strings.HasSuffix(s.life, "started") || s.life == "preview repeated"
}

func (s *modelState) complete() bool { return s.life == "succeeded" || s.life == "failed" }

// modelObjects are the objects that all observations share, because decide changes none of them.
type modelObjects struct {
	updates    map[modelState]*autov1alpha1.Update
	workspaces map[string]*autov1alpha1.Workspace
	operations map[agentpb.OperationState]*agentpb.Operation
	artifacts  map[string]artifactView
	request    *agentpb.StartOperationRequest
}

func newModelObjects() *modelObjects {
	return &modelObjects{updates: map[modelState]*autov1alpha1.Update{}, workspaces: map[string]*autov1alpha1.Workspace{},
		operations: map[agentpb.OperationState]*agentpb.Operation{}, artifacts: map[string]artifactView{}, request: &agentpb.StartOperationRequest{}}
}

// once returns the value of the key, and makes it if there is none.
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
	o := &observation{now: testTime, turn: turnView{asked: true}, artifact: once(m.artifacts, s.artifact, s.observeArtifact)}
	o.agent.asked = s.agent != modelUnasked
	o.update = once(m.updates, modelState{life: s.life, deletion: s.deletion, wait: s.wait, age: s.age}, s.observeUpdate)
	if s.workspace != "none" {
		o.workspace = once(m.workspaces, s.workspace, s.observeWorkspace)
	}
	switch s.agent {
	case "none":
		o.agent.err = agentruntime.ErrNoAgent
	case "rests", "rests although it was woken":
		o.agent.err = agentruntime.ErrResting
		if s.agent != "rests" {
			o.woken = &connection{}
		}
	case "unavailable":
		o.agent.err = client.ErrUnavailable
	case "denies":
		o.agent.err = client.ErrDenied
	case "an operation", "the end of an operation":
		o.agent.operation = once(m.operations, s.operation, func() *agentpb.Operation { return &agentpb.Operation{State: s.operation} })
	}
	if s.hasPlan() {
		o.update = o.update.DeepCopy()
		o.update.Spec.SavePlan = new(true)
		o.agent.operation = &agentpb.Operation{State: s.operation, Plan: &agentpb.Plan{}}
		switch s.agent {
		case "a plan that is stored":
			o.stored.plan = &autov1alpha1.SavedPlan{}
		case "a plan that is not stored yet":
			o.stored = storedPlan{err: client.ErrUnavailable, at: testTime}
		case "a plan that is too large":
			o.stored.err = client.ErrTooLarge
		case "a plan that is not there":
			o.agent.operation.Plan = nil
		}
	}
	if s.hasOutputs() {
		o.agent.operation = once(m.operations, -1, func() *agentpb.Operation {
			return &agentpb.Operation{State: s.operation, Kind: agentpb.OperationKind_OPERATION_KIND_UP, EndTime: timestamppb.New(testTime),
				Outputs: map[string]*agentpb.Output{"url": {}}}
		})
		o.outputs.tried = s.agent != "outputs"
		switch s.agent {
		case "outputs that are stored":
			o.outputs.secret = "up-stack-outputs"
		case "outputs that are not stored yet", "outputs that were not stored for long":
			o.outputs.err = errors.New("denied")
		case "outputs in place of which there are others":
			o.outputs.err = errForeignOutputs
		}
		if s.agent == "outputs that were not stored for long" {
			o.now = testTime.Add(storeTimeout + time.Second)
		}
	}
	if s.ahead {
		o.ahead = "earlier"
	}
	switch s.request {
	case "complete":
		o.request = m.request
	case "not its turn":
		o.turn = turnView{asked: true, place: 1, limit: 1, again: shortestPlaceInterval}
	case "turn not asked for":
		o.turn = turnView{}
	case "secret missing":
		o.requestError = &inputs.MissingError{Kind: references.Secret, Name: "token", UsedBy: "it"}
	case "input missing":
		o.requestError = &inputs.MissingError{Name: "network", Key: "vpcId", UsedBy: "it", OfInput: true}
	case "not shared":
		o.requestError = inputs.Denied(nil, "team", &autov1alpha1.StackOutput{Name: "network", Namespace: "platform", Output: "vpcId"}, false)
	case "invalid":
		o.requestError = inputs.Invalidf("no such thing")
	case "plan stale":
		o.plan.problem = stalePlan("it is gone")
	case "not approved":
		o.approval.problem = "nobody approved it"
	case "not approved yet":
		o.approval = approvalView{problem: "nobody approved it", waits: true}
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
		markProgressing(update, &agentpb.Operation{})
	case "preview started":
		update.Spec.Type = autov1alpha1.UpdateTypePreview
		markProgressing(update, &agentpb.Operation{})
	case "preview repeated":
		update.Spec.Type = autov1alpha1.UpdateTypePreview
		markRepeated(update, autov1alpha1.QueuedReason, "once more")
		markProgressing(update, &agentpb.Operation{})
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
		deleted(unreachableAgentTimeout)(o)
	case "deleted long ago":
		deleted(unreachableAgentTimeout + time.Second)(o)
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

// wakes reports whether the waker that the decision names can really bring the Update back.
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
	case byTurn:
		return s.request == "not its turn" && d.after > 0
	case byDelivery:
		return d.action == actionStorePlan && d.after > 0
	case byStack:
		return s.request == "not approved yet" && d.after > 0
	case byTime:
		return d.after > 0
	case byDecision:
		// What was asked for is not asked for again, so the decisions of a reconcile come to an end.
		return d.action == actionAsk && s.agent == modelUnasked || d.action == actionWake && s.agent == "rests" || d.action == actionQueue && s.request == "turn not asked for" ||
			d.action == actionStoreOutputs && s.agent == "outputs"
	case byNothing:
		return slices.Contains([]action{actionFinish, actionRecord, actionFinalize}, d.action)
	}
	return false
}

// nothingRuns reports whether the operation is known not to run, or no agent is left to ask.
func (s *modelState) nothingRuns() bool {
	cannotRun := s.workspace != "ready" && (s.life == "new" || s.deletion == "cancelled" && s.workspace != "ready for an earlier generation")
	gone := (s.agent == "none" || s.agent == "rests although it was woken") && (strings.HasPrefix(s.workspace, "going") || cannotRun)
	return s.life == "of another controller" || s.agent == "knows nothing" || s.hasPlan() || s.deletion != "kept" && (gone || s.deletion == "deleted long ago")
}

// broken returns the names of the promises that the decision breaks.
func (s *modelState) broken(d decision) (promises []string) {
	promise := func(kept bool, name string) {
		if !kept {
			promises = append(promises, name)
		}
	}
	ours := !s.complete() && s.life != "of another controller"
	final, isDeleted := s.hasOperation() && s.operation.Final(), s.deletion != "kept"
	starts, finishes := d.action == actionStart, d.action == actionFinish
	permanent := s.request == "invalid" || s.artifact == "forbidden" || s.request == "plan stale" || s.request == "not approved" || s.unusablePlan()
	recorded := !s.hasPlan() && !s.keepsOutputs() || s.agent == "a plan that is stored" || strings.HasPrefix(s.deletion, "deleted")
	promise(s.wakes(d), "every decision is followed by something that wakes the Update")
	promise(d.after >= 0 && d.after <= longestWait, "no time is negative, and none is longer than a delivery may take")
	promise((d.action == actionFinalize) == s.complete(), "a complete Update is neither run nor written again")
	promise(!starts || s.life == "new" && s.agent == "knows nothing", "an operation is started once")
	promise(!starts || s.workspace == "ready", "an operation is started in a workspace that is ready for it")
	promise(!starts || !isDeleted, "what is deleted or cancelled is not started")
	promise(!starts || !s.ahead, "a workspace has one operation at a time")
	promise(!starts || s.artifact == "ready" && s.request == "complete", "an operation has all that it is made of")
	promise((d.action == actionWake) == (ours && s.agent == "rests"), "an agent that rests is asked before anything is decided")
	promise((d.action == actionQueue) == (s.startable() && s.request == "turn not asked for"), "only what can start asks for a slot")
	promise((d.action == actionRecord) == (ours && final && recorded && (s.workspace != "none")), "every result of an agent is recorded, and nothing else is")
	promise(d.action != actionStorePlan || s.hasPlan() && !recorded && !s.unusablePlan(), "a plan is stored once")
	promise((d.action == actionStoreOutputs) == (ours && s.workspace != "none" && s.keepsOutputs() && s.agent == "outputs"), "outputs are stored before the agent forgets them")
	promise(!ours || !s.hasOperation() || final || d.action == actionFollow || d.action == actionCancel, "what runs is followed to its end")
	promise((d.action == actionCancel) == (ours && isDeleted && s.hasOperation() && !final), "a deletion or a request cancels what runs, and nothing else does")
	promise(d.action != actionAsk || s.agent == modelUnasked && permanent, "an agent is asked once, and only if that matters")
	promise(!finishes || s.nothingRuns(), "nothing that may run is given up")
	promise(!finishes || slices.Contains(s.endings(permanent), d.reason), "an end without result says what is known")
	promise(!finishes || isDeleted || s.life != "new" || permanent, "only what an edit can mend ends an Update that never ran")
	promise(isDeleted || s.life != "new" || s.hasOperation() || slices.Contains([]action{actionStart, actionWait, actionFinish, actionStorePlan, actionQueue, actionAsk, actionWake}, d.action), "what was not started waits or starts")
	promise(d.action != actionWait && !finishes || d.reason != "" && d.message != "", "who waits or gives up says why")
	reasons := map[string]string{"secret missing": pulumiv1.SecretNotFoundReason, "input missing": pulumiv1.InputNotFoundReason, "not shared": pulumiv1.AccessDeniedReason}
	promise(reasons[s.request] == "" || !s.startable() || d.reason == reasons[s.request], "what is missing is named")
	promise(s.request != "complete" || !s.startable() || starts, "what has all that it needs is started")
	promise((d.action == actionRepeat) == (s.life == "preview started" && s.deletion == "kept" && s.agent == "knows nothing" &&
		s.workspace != "none" && !strings.HasPrefix(s.workspace, "going")),
		"what was lost and changes nothing is run again, once")
	promise(d.action != actionReconnect || s.started() && s.agent != "knows nothing" && d.message != "", "only an operation that may run is looked for")
	return promises
}

// startable reports whether nothing but the request can prevent a start.
func (s *modelState) startable() bool {
	knowsNothing := s.agent == "knows nothing" || s.agent == modelUnasked
	return s.life == "new" && s.deletion == "kept" && s.workspace == "ready" && knowsNothing && !s.ahead && s.artifact == "ready"
}

// endings returns the reasons that an Update without a result may end with.
func (s *modelState) endings(permanent bool) []string {
	switch {
	case s.life == "of another controller":
		return []string{autov1alpha1.InterruptedReason}
	case s.unusablePlan() && !strings.HasPrefix(s.deletion, "deleted"):
		return []string{autov1alpha1.InterruptedReason, autov1alpha1.PlanTooLargeReason}
	case s.deletion != "kept" && (s.deletion != "cancelled" || s.life == "new"):
		return []string{autov1alpha1.CanceledReason}
	case s.started():
		return []string{autov1alpha1.InterruptedReason}
	case permanent:
		return []string{autov1alpha1.ConfigInvalidReason, autov1alpha1.PlanStaleReason, autov1alpha1.ApprovalRequiredReason}
	}
	return nil
}

// TestEveryStateHasADecisionThatKeepsThePromises goes through all combinations of what a decision is made from.
func TestEveryStateHasADecisionThatKeepsThePromises(t *testing.T) {
	suite.WithoutRaceDetector(t)
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
		if left := d.hiddenFor(o); left < 0 || left > briefWait || left > 0 && d.action != actionWait {
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
	for _, expected := range []action{actionFinalize, actionFinish, actionRecord, actionFollow, actionCancel, actionReconnect, actionStart, actionWait,
		actionStorePlan, actionStoreOutputs, actionRepeat, actionQueue, actionAsk, actionWake} {
		g.Expect(reached).To(HaveKey(expected))
	}
	t.Logf("%d states in %s: %v", states, time.Since(begin).Round(time.Millisecond), reached)
}
