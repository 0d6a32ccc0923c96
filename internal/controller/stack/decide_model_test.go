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
	modelResyncs  = []string{"off", "due", "later"}
	modelProjects = []string{"unknown", "known", "known, program runs"}
	modelOutputs  = []string{"none", "written", "of an earlier update", "edited", "stored nowhere", "no longer stored", "impossible", "failing", "no longer wanted"}
)

// modelState is one combination.
type modelState struct {
	update                                                       string
	kind, lastKind                                               autov1alpha1.UpdateType
	last, source, dependency, resync, project, outputs           string
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
	if s.rewritten {
		s.rewrite(stack)
	}
	return o
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

// complete reports whether the Update has ended.
func (s *modelState) complete() bool {
	return slices.Contains([]string{"succeeded", "failed", "interrupted", "removed after it ran"}, s.update)
}

// proven reports whether no resource is left behind when the finalizer is removed.
func (s *modelState) proven() bool {
	neverDeployed := !s.deployed && (s.last == "none" || s.lastKind == autov1alpha1.UpdateTypePreview)
	neverRan := !s.deployed && s.update == "none" && s.lastKind == autov1alpha1.UpdateTypeUp && s.last != "succeeded"
	gone := s.last == "succeeded" && s.lastKind == autov1alpha1.UpdateTypeDestroy
	return s.orphan || !s.destroyOnFinalize || neverDeployed || neverRan || gone
}

// wakes reports whether the waker that the decision names really wakes the Stack.
func (s *modelState) wakes(d decision) bool {
	switch d.wake {
	case byEdit:
		return d.action == actionReady || d.action == actionSuspend || d.action == actionStall || s.foreground && d.after > 0
	case bySource:
		return s.source == "pending" || s.source == "missing"
	case byFetch:
		return s.fetches()
	case byUpdate:
		return s.update != "none" || d.action == actionUpdate
	case byDependencies:
		return s.dependency != "met" && !strings.HasPrefix(s.dependency, "object") && d.after > 0
	case byObjects:
		return s.dependency == "object unmet" && d.after > 0
	case byDependents:
		return s.dependents && s.deleting && d.after > 0
	case byTime:
		return d.after > 0
	case byNothing:
		return d.action == actionRecord || d.action == actionRelease || d.action == actionReadObjects
	}
	return false
}

// broken returns the promises that the decision breaks.
func (s *modelState) broken(d decision) (promises []string) {
	promise := func(kept bool, name string) {
		if !kept {
			promises = append(promises, name)
		}
	}
	exists := s.update != "none"
	waits := strings.HasPrefix(s.update, "waits")
	complete := s.complete()
	promise((d.action == actionWriteOutputs) == s.dueOutputs(), "outputs are written when they are due, and only then")
	if d.action == actionWriteOutputs {
		promise(d.wake == byNothing, "a new decision follows")
		return promises
	}
	unwritten := s.outputs == "impossible" || s.outputs == "failing"
	promise(!unwritten || d.action != actionReady, "a Stack is not ready without its outputs")
	permanent := s.badSpec || s.source == "forbidden" || s.dependency == "cycle" || s.dependency == "forbidden"
	promise(s.wakes(d), "every decision is followed by something that wakes the Stack")
	promise(d.after >= 0, "no time is negative")
	promise(d.action != actionRelease || s.deleting && s.proven(), "the finalizer goes with proof only")
	promise(d.action != actionRelease || !exists && !s.busy || s.workspaceFailed, "nothing runs on when the Stack goes")
	leaves := s.left && s.destroyOnFinalize && !s.orphan
	promise(!s.deleting || exists || !s.proven() || s.busy || leaves || d.action == actionRelease, "nothing that is proven keeps a Stack")
	promise(!leaves || d.action != actionRelease, "what was deployed under another name is not forgotten")
	promise(!exists || slices.Contains([]action{actionRecord, actionFollow, actionCancel, actionSupersede, actionRelease}, d.action), "there is one operation at a time")
	promise(d.action != actionReadObjects || s.dependency == "object not read yet" && !exists && !s.deleting && !s.suspended,
		"objects are read once, and for an update that could start")
	promise(d.action != actionSupersede || waits, "only an Update that waits is replaced")
	asked := s.suspended && s.update == "runs, asked to end"
	promise(d.action != actionCancel || asked, "nothing is cancelled unless somebody asks, and nobody starts it again")
	promise(!asked || d.action == actionCancel || d.action == actionRelease, "what somebody asks to end is ended")
	promise((d.action == actionRecord) == complete, "every result is recorded")
	promise(!s.suspended || !waits || d.action == actionSupersede || d.action == actionRelease, "nothing waits to start while the Stack is suspended")
	promise(!s.suspended || d.action != actionUpdate && d.action != actionRequestDependency, "a suspended Stack starts nothing")
	promise(d.action != actionStall || permanent || leaves || s.suspended && s.deleting || s.outputs == "impossible" || s.dependency == "not shared", "only what somebody has to mend stalls")
	promise(d.action != actionUpdate || !s.badSpec && s.startable(d), "an update needs all that it is made of")
	stuck := s.deleting && !exists && slices.Contains([]action{actionStall, actionWait, actionRetry}, d.action)
	wayOut := pulumiv1.OrphanAnnotation
	if s.proven() && !leaves {
		wayOut = "delete that update"
	}
	promise(!stuck || strings.Contains(d.message, wayOut), "a deletion that waits says how to go on")
	promise(!s.fetches() || d.action != actionUpdate, "nothing starts before its files are there")
	promise(!s.dependents || d.action != actionUpdate, "nothing is destroyed under those who depend on it")
	promise(!s.foreground || d.action != actionUpdate, "nothing starts that the garbage collector would delete")
	promise(!s.destroyable() || d.action == actionUpdate, "nobody waits for what is no reason to wait")
	promise(d.action != actionSuspend || s.suspended && !s.deleting, "nothing is left alone without being suspended")
	nothingToDo := s.last == "succeeded" && !s.request && !s.edited && s.source != "new" && s.source != "same, another input" && s.resync != "due"
	promise(d.action != actionReady || nothingToDo, "what is asked for is not up to date")
	lost := strings.Contains(s.outputs, "stored") && !s.preview
	idle := !exists && !s.suspended && !s.deleting && !s.badSpec && nothingToDo && (s.source == "same" || s.source == "new, same content") && !lost && !unwritten
	promise(!idle || permanent || d.action == actionReady, "an idle Stack stays ready, whatever its dependencies do")
	promise(exists || s.suspended || leaves || s.deleting && s.proven() || s.last == "succeeded" || d.action != actionReady && d.action != actionSuspend, "a failure is tried again")
	return promises
}

// destroyable reports whether a deletion has all that it needs for its first destroy. That a dependency is not met does not matter.
func (s *modelState) destroyable() bool {
	first := s.last == "none" || s.lastKind != autov1alpha1.UpdateTypeDestroy || s.last == "failed long ago"
	return s.deleting && s.update == "none" && !s.proven() && !s.suspended && !s.badSpec && !s.dependents && !s.foreground && first && (s.hasFiles() || s.project == "known" && !s.fetches())
}

// hasFiles reports whether an operation has all files that it needs.
func (s *modelState) hasFiles() bool {
	return slices.Contains([]string{"none", "same", "new", "new, same content", "same, another input"}, s.source)
}

// fetches reports whether the files are being fetched or read.
func (s *modelState) fetches() bool {
	return s.source == "same, not asked for" || s.source == "new, content unknown"
}

func (s *modelState) startable(d decision) bool {
	switch {
	case s.deleting:
		return d.kind == autov1alpha1.UpdateTypeDestroy && !s.proven() && (s.hasFiles() || s.project == "known")
	case s.preview:
		return d.kind == autov1alpha1.UpdateTypePreview && s.hasFiles() && s.dependency == "met"
	}
	return d.kind == autov1alpha1.UpdateTypeUp && s.hasFiles() && s.dependency == "met"
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
		actionStall, actionRetry, actionReady, actionSuspend, actionRelease, actionWriteOutputs, actionReadObjects} {
		g.Expect(reached).To(HaveKey(expected))
	}
	t.Logf("%d states in %s: %v", states, time.Since(start).Round(time.Millisecond), reached)
}

// triedAgain reports whether the next attempt is made when the time in the decision has passed.
func triedAgain(o observation, d decision) bool {
	for range 3 {
		if d.action != actionRetry {
			return true
		}
		o.now = o.now.Add(d.after)
		d = decide(o)
	}
	return false
}
