package stack

import (
	"errors"
	"runtime/debug"
	"slices"
	"strings"
	"testing"
	"time"

	. "github.com/onsi/gomega"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	autov1alpha1 "github.com/stack-controller/stack-controller/api/auto/v1alpha1"
	pulumiv1 "github.com/stack-controller/stack-controller/api/pulumi/v1"
	"github.com/stack-controller/stack-controller/internal/controller/inputs"
	"github.com/stack-controller/stack-controller/internal/source"
	"github.com/stack-controller/stack-controller/tests/framework/suite"
)

// The values of what a decision is made from, as far as they differ in their effect.
var (
	modelUpdates = []string{"none", "waits", "waits for another generation", "runs", "runs, asked to end", "of another controller, runs", "succeeded", "failed",
		"interrupted", "removed before it ran", "removed after it ran"}
	modelKinds   = []autov1alpha1.UpdateType{autov1alpha1.UpdateTypeUp, autov1alpha1.UpdateTypePreview, autov1alpha1.UpdateTypeDestroy}
	modelLasts   = []string{"none", "succeeded", "failed", "failed long ago", "failed often", "interrupted", "interrupted often", "locked"}
	modelSources = []string{"none", "same", "same, not asked for", "new", "new, same content", "new, content unknown", "new, content unavailable", "pending", "missing",
		"missing and not watched", "forbidden", "same, another input"}
	modelDependencies = []string{"met", "unmet", "cycle", "forbidden", "aged", "aged and asked", "behind", "not shared", "object not read yet",
		"object unmet", "object unmet and polled", "object that cannot be read"}
	modelWindows  = []string{"none", "open", "closed", "closed for good"}
	modelResyncs  = []string{"off", "due", "later"}
	modelProjects = []string{"unknown", "known", "known, program runs"}
	modelOutputs  = []string{"none", "written", "of an earlier update", "edited", "stored nowhere", "no longer stored", "impossible", "failing", "no longer wanted"}
)

// modelState is one combination.
type modelState struct {
	update                                                       string
	kind, lastKind                                               autov1alpha1.UpdateType
	last, source, dependency, resync, project, outputs, window   string
	deleting, suspended, destroyOnFinalize, orphan               bool
	preview, deployed, badSpec, request, edited, workspaceFailed bool
	dependents, busy, foreground, left                           bool
	rewritten                                                    bool // an edit that changed nothing in the specification
}

var both = []bool{false, true}

// each calls the function for every value.
func each[Value any](values []Value, field *Value, next func()) {
	for _, value := range values {
		*field = value
		next()
	}
}

// modelSpaces enumerates the states in which there is an Update, in which there is none, and in which the Stack is being deleted. In each
// of the three, it combines all values that can matter.
func modelSpaces(visit func(*modelState)) {
	defer debug.SetGCPercent(debug.SetGCPercent(400)) // the states leave nothing but garbage, and their number needs no memory
	s := &modelState{kind: autov1alpha1.UpdateTypeUp}
	lasts := func(next func()) {
		each(modelLasts, &s.last, func() {
			kinds := modelKinds
			if s.last == "none" {
				kinds = kinds[:1]
			}
			each(kinds, &s.lastKind, next)
		})
	}
	flags := func(next func()) {
		each(both, &s.suspended, func() {
			each(both, &s.preview, func() { each(both, &s.deployed, func() { lasts(next) }) })
		})
	}
	deletion := func(next func()) {
		each(both, &s.destroyOnFinalize, func() { each(both, &s.orphan, func() { flags(next) }) })
	}
	*s = modelState{dependency: "met", resync: "off", project: "unknown"}
	each(modelUpdates[1:], &s.update, func() {
		each(modelKinds, &s.kind, func() {
			each(both, &s.deleting, func() {
				each([]string{"same", "new", "missing"}, &s.source, func() {
					each(both, &s.workspaceFailed, func() { deletion(func() { visit(s) }) })
				})
			})
		})
	})
	// A Stack that is being deleted does not wait for its dependencies.
	*s = modelState{update: "none", resync: "off", deleting: true, dependency: "unmet"}
	triggers := func(next func()) {
		each(both, &s.badSpec, func() {
			each(both, &s.request, func() { each(both, &s.edited, func() { each(modelSources, &s.source, next) }) })
		})
	}
	shapes := func(next func()) {
		for _, shape := range [][4]bool{{}, {true}, {false, true}, {false, false, true}, {false, false, false, true}} {
			s.dependents, s.busy, s.foreground, s.left = shape[0], shape[1], shape[2], shape[3]
			next()
		}
	}
	shapes(func() {
		each(modelProjects, &s.project, func() { triggers(func() { deletion(func() { visit(s) }) }) })
	})
	*s = modelState{update: "none", project: "unknown"}
	each(modelDependencies, &s.dependency, func() {
		each(modelResyncs, &s.resync, func() { triggers(func() { flags(func() { visit(s) }) }) })
	})
	*s = modelState{update: "none", dependency: "met", project: "known"}
	each(modelWindows[1:], &s.window, func() {
		each([]string{"off", "due"}, &s.resync, func() { triggers(func() { flags(func() { visit(s) }) }) })
		s.deleting, s.resync = true, "off"
		triggers(func() { deletion(func() { visit(s) }) })
		s.deleting = false
	})
	*s = modelState{last: "succeeded", dependency: "met", resync: "off", project: "known"}
	each(modelWindows[1:], &s.window, func() {
		each(modelUpdates[1:], &s.update, func() {
			each(modelKinds, &s.kind, func() {
				each(both, &s.deleting, func() {
					each([]string{"same", "new", "missing"}, &s.source, func() { each(both, &s.destroyOnFinalize, func() { visit(s) }) })
				})
			})
		})
	})
	*s = modelState{kind: autov1alpha1.UpdateTypeUp, dependency: "met", resync: "off", project: "unknown"}
	each(modelOutputs[1:], &s.outputs, func() {
		each([]string{"none", "waits", "runs", "succeeded"}, &s.update, func() {
			each(both, &s.deleting, func() {
				each(both, &s.badSpec, func() {
					each([]string{"same", "new", "missing"}, &s.source, func() { flags(func() { visit(s) }) })
				})
			})
		})
	})
}

// observe returns the observation of the state.
func (s *modelState) observe() observation {
	o := observation{now: now, waitInterval: 30 * time.Second, jitter: 0.1, stack: &pulumiv1.Stack{}}
	stack := o.stack
	stack.UID, stack.Generation = "1234", 2
	spec := &stack.Spec
	spec.Suspend, spec.Preview, spec.DestroyOnFinalize, spec.RunProgram = s.suspended, s.preview, s.destroyOnFinalize, s.project == "known, program runs"
	stack.Status.Deployed = s.deployed
	if s.deleting {
		stack.DeletionTimestamp = &metav1.Time{Time: now}
	}
	stack.Annotations = map[string]string{}
	if s.orphan {
		stack.Annotations[pulumiv1.OrphanAnnotation] = "true"
	}
	if s.request {
		stack.Annotations[pulumiv1.ReconcileRequestAnnotation] = "now"
	}
	spec.ContinueResyncOnCommitMatch = s.resync != "off"
	if s.project != "unknown" {
		stack.Status.ProjectInfo = &autov1alpha1.ProjectInfo{}
	}
	if s.badSpec {
		o.specProblem = errors.New("bad")
	}
	if s.busy {
		o.unownedUpdate = "by-hand"
	}
	if s.foreground {
		stack.Finalizers = []string{metav1.FinalizerDeleteDependents}
	}
	if s.left {
		stack.Status.LeftStacks = []pulumiv1.LeftStack{{Name: "earlier"}}
	}
	if s.dependents {
		o.dependents = []dependent{{}}
	}
	if s.workspaceFailed {
		o.workspace = workspaceThat(stalled(autov1alpha1.ImagePullFailedReason))
	}
	s.observeLast(stack)
	s.observeSource(&o)
	s.observeDependency(&o)
	s.observeUpdate(&o)
	s.observeOutputs(&o)
	if from, until := s.windowTimes(); s.window != "" {
		stack.Spec.Windows = []autov1alpha1.Window{{Policy: autov1alpha1.WindowAllow, From: &from, Until: &until}}
	}
	if s.rewritten {
		s.rewrite(stack)
	}
	return o
}

// windowTimes returns when a window opens and closes that allows changes.
func (s *modelState) windowTimes() (from, until metav1.Time) {
	switch s.window {
	case "open":
		return ago(time.Hour), ago(-1000 * time.Hour)
	case "closed":
		return ago(-time.Hour), ago(-1000 * time.Hour)
	}
	return ago(2 * time.Hour), ago(time.Hour)
}

// copyOf returns a copy whose Stack and Update can be changed. The copies share what these point to.
func copyOf(o observation) observation {
	o.stack = new(*o.stack)
	if o.update != nil {
		o.update = new(*o.update)
	}
	return o
}

func (s *modelState) observeLast(stack *pulumiv1.Stack) {
	if s.last == "none" {
		return
	}
	last := &pulumiv1.StackUpdateStatus{
		Name: "app-1", Generation: 2, Type: s.lastKind, State: pulumiv1.StackUpdateFailed, LastAttemptedCommit: "sha256:a",
		ContentDigest: "sha256:content", LastResyncTime: ago(time.Second), Failures: 1,
	}
	if s.source == "none" {
		last.LastAttemptedCommit, last.ContentDigest = "", ""
	}
	switch s.last {
	case "succeeded":
		last.State, last.Failures = pulumiv1.StackUpdateSucceeded, 0
	case "failed long ago":
		last.LastResyncTime = ago(48 * time.Hour)
	case "failed often":
		last.Failures = stalledAfterFailures
	case "interrupted":
		last.Interruptions = 1
	case "interrupted often":
		last.Interruptions = 100
	case "locked":
		last.Conflicts, last.ConflictsSince = 1, &metav1.Time{Time: now}
	}
	if s.edited {
		last.Generation = 1
	}
	stack.Status.LastUpdate = last
	if s.resync == "due" {
		last.LastResyncTime = ago(time.Hour)
	}
}

func (s *modelState) observeSource(o *observation) {
	found := &source.Artifact{Digest: "sha256:a", Revision: "main@sha1:a"}
	other := &source.Artifact{Digest: "sha256:b", Revision: "main@sha1:b"}
	problem := &source.Problem{Reason: pulumiv1.SourceNotFoundReason, Message: "why"}
	switch s.source {
	case "same":
		o.artifact, o.content = found, stored
	case "same, another input":
		o.artifact, o.content = found, stored
		o.inputs.values = []inputs.ValueID{{Input: "app:size", ID: "2"}}
		if last := o.stack.Status.LastUpdate; last != nil {
			last.InputValuesDigest = "1"
		}
	case "same, not asked for":
		o.artifact = found
	case "new":
		o.artifact, o.content = other, content{requested: true, stored: true, digest: "sha256:other"}
	case "new, same content":
		o.artifact, o.content = other, stored
	case "new, content unknown":
		o.artifact = other
	case "new, content unavailable":
		o.artifact, o.content = other, content{requested: true, problem: errors.New("no route")}
	case "pending":
		problem.Pending, o.sourceProblem = true, problem
	case "missing":
		problem.Watched, o.sourceProblem = true, problem
	case "missing and not watched":
		o.sourceProblem = problem
	case "forbidden":
		problem.Permanent, o.sourceProblem = true, problem
	}
}

func (s *modelState) observeDependency(o *observation) {
	switch s.dependency {
	case "unmet":
		o.dependency = &dependencyProblem{reason: pulumiv1.DependencyNotReadyReason}
	case "cycle":
		o.dependency = &dependencyProblem{reason: pulumiv1.DependencyCycleReason, permanent: true}
	case "forbidden":
		o.dependency = &dependencyProblem{reason: pulumiv1.AccessDeniedReason, permanent: true}
	case "not shared":
		o.dependency = &dependencyProblem{reason: pulumiv1.AccessDeniedReason, foreign: true}
	case "aged":
		o.aged = &agedPrerequisite{request: "after-it"}
	case "aged and asked":
		o.aged = new(agedPrerequisite)
	case "behind":
		o.behind = &dependencyProblem{reason: pulumiv1.DependencyNotReadyReason}
	case "object unmet":
		o.objects.problem = &objectProblem{reason: pulumiv1.DependencyNotReadyReason}
	case "object unmet and polled":
		o.objects.problem = &objectProblem{reason: pulumiv1.DependencyNotReadyReason, found: byPolling}
	case "object that cannot be read":
		o.objects.problem = &objectProblem{reason: pulumiv1.AccessDeniedReason, found: byAskingAgain}
	}
	if strings.HasPrefix(s.dependency, "object") {
		onObject(kustomizations, "base")(o.stack)
		o.objects.read = o.objects.problem != nil
	}
}

func (s *modelState) observeUpdate(o *observation) {
	if s.update == "none" {
		return
	}
	o.update = &autov1alpha1.Update{Spec: autov1alpha1.UpdateSpec{Type: s.kind, Source: &autov1alpha1.UpdateSource{}}}
	current := &pulumiv1.CurrentStackUpdate{Name: "app-2", Generation: 2, Commit: "sha256:a"}
	o.stack.Status.CurrentUpdate = current
	set := func(condition string, value metav1.ConditionStatus) {
		o.update.Status.Conditions = append(o.update.Status.Conditions, metav1.Condition{Type: condition, Status: value})
	}
	if !slices.Contains([]string{"waits", "waits for another generation", "of another controller, runs", "removed before it ran"}, s.update) {
		o.update.Status.StartTime = &metav1.Time{Time: now}
	}
	switch s.update {
	case "waits for another generation":
		current.Generation = 1
	case "runs, asked to end":
		o.stack.Annotations[pulumiv1.CancelUpdateAnnotation] = "true"
	case "of another controller, runs":
		set(autov1alpha1.UpdateProgressing, metav1.ConditionTrue)
	case "succeeded", "removed after it ran":
		set(autov1alpha1.UpdateComplete, metav1.ConditionTrue)
	case "failed", "interrupted":
		set(autov1alpha1.UpdateComplete, metav1.ConditionTrue)
		set(autov1alpha1.UpdateFailed, metav1.ConditionTrue)
	}
	if strings.HasPrefix(s.update, "removed") {
		o.update.DeletionTimestamp = &metav1.Time{Time: now}
	}
}

func (s *modelState) observeOutputs(o *observation) {
	if s.outputs == "" || s.outputs == "none" {
		return
	}
	stack := o.stack
	stack.Spec.Outputs = []pulumiv1.OutputObject{{Name: "a"}}
	written := &pulumiv1.OutputObjectsStatus{UID: "1", SpecDigest: outputsDigest(stack)}
	o.outputs.source, stack.Status.OutputObjects = &pulumiv1.StoredOutputs{UID: "1"}, written
	switch s.outputs {
	case "of an earlier update":
		written.UID = "0"
	case "edited":
		o.outputs.edited = []pulumiv1.WrittenOutputObject{{Name: "a"}}
	case "stored nowhere":
		o.outputs.source, written.SpecDigest = nil, ""
	case "no longer stored":
		written.SpecDigest, o.outputs.tried, o.outputs.lost = "", true, true
	case "impossible", "failing":
		written.SpecDigest, o.outputs.tried = "", true
		o.outputs.problem = &outputProblem{reason: pulumiv1.OutputsConflictReason, message: "why", passes: s.outputs == "failing"}
	case "no longer wanted":
		stack.Spec.Outputs = nil
	}
}

// dueOutputs reports whether outputs have to be written.
func (s *modelState) dueOutputs() bool {
	due := slices.Contains([]string{"of an earlier update", "edited", "no longer wanted"}, s.outputs)
	return due && !s.suspended && !s.deleting && !s.badSpec && (s.update == "none" || !s.complete())
}

// TestEveryStateHasADecisionThatKeepsThePromises checks all combinations of what a decision is made from.
func TestEveryStateHasADecisionThatKeepsThePromises(t *testing.T) {
	suite.WithoutRaceDetector(t)
	g := NewWithT(t)
	start, states := time.Now(), 0
	reached := map[action]int{}
	wrong := map[string]int{}
	modelSpaces(func(s *modelState) {
		states++
		o := s.observe()
		d := decide(o)
		reached[d.action]++
		promises := s.broken(d)
		if d.action == actionRetry && !triedAgain(o, d) {
			promises = append(promises, "an attempt comes when its time has come")
		}
		if d.action == actionHold && d.after != rarely && decide(later(o, d.after)).action == actionHold {
			promises = append(promises, "what a window holds begins when it opens")
		}
		if !s.edited && !s.suspended && !s.deleting && s.last != "none" && !sameForRewritten(*s, d) {
			promises = append(promises, "an edit that says nothing new changes nothing")
		}
		for _, name := range promises {
			if wrong[name]++; wrong[name] == 1 {
				t.Errorf("%s: %+v: %s, woken by %s after %s: %s", name, *s, d.action, d.wake, d.after, d.message)
			}
		}
	})
	g.Expect(wrong).To(BeEmpty(), "by promise, of %d states", states)
	for _, expected := range []action{actionRecord, actionUpdate, actionFetch, actionFetch, actionSupersede, actionCancel, actionFollow, actionWait, actionRequestDependency,
		actionStall, actionHold, actionRetry, actionReady, actionSuspend, actionRelease, actionWriteOutputs, actionReadObjects} {
		g.Expect(reached).To(HaveKey(expected))
	}
	t.Logf("%d states in %s: %v", states, time.Since(start).Round(time.Millisecond), reached)
}

// later returns the observation at a later time.
func later(o observation, after time.Duration) observation {
	o.now = o.now.Add(after)
	return o
}

// triedAgain reports whether the next attempt is made when the time in the decision has passed.
func triedAgain(o observation, d decision) bool {
	for range 5 {
		if d.action != actionRetry {
			return true
		}
		if d.after == rarely {
			return len(o.stack.Spec.Windows) > 0 // none opens any longer
		}
		o.now = o.now.Add(d.after)
		d = decide(o)
	}
	return false
}
