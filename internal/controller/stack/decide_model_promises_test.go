package stack

import (
	"slices"
	"strings"

	autov1alpha1 "github.com/stack-controller/stack-controller/api/auto/v1alpha1"
	pulumiv1 "github.com/stack-controller/stack-controller/api/pulumi/v1"
)

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
	shut := strings.HasPrefix(s.window, "closed")
	promise(!shut || d.action != actionUpdate || d.kind == autov1alpha1.UpdateTypePreview, "nothing that changes something begins while no window is open")
	promise(!shut || !waits || s.kind == autov1alpha1.UpdateTypePreview || d.action == actionSupersede || d.action == actionRelease,
		"nothing waits to start while no window is open")
	promise(d.action != actionHold || shut, "windows hold nothing that they allow")
	promise(d.action != actionHold || !d.quiet || !s.edited && !s.request && !s.deleting && s.last == "succeeded", "what somebody asks for is shown to wait")
	promise(s.window != "open" && s.window != "closed" || !waits || d.action != actionFollow || s.kind == autov1alpha1.UpdateTypePreview || d.after > 0,
		"an Update that waits is looked at again when a window closes")
	stuck := s.deleting && !exists && slices.Contains([]action{actionStall, actionWait, actionRetry, actionHold}, d.action)
	wayOut := pulumiv1.OrphanAnnotation
	if s.proven() && !leaves {
		wayOut = "delete that update"
	}
	promise(!stuck || strings.Contains(d.message, wayOut), "a deletion that waits says how to go on")
	promise(!s.fetches() || d.action != actionUpdate, "nothing starts before its files are there")
	promise(!s.dependents || d.action != actionUpdate, "nothing is destroyed under those who depend on it")
	promise(!s.foreground || d.action != actionUpdate, "nothing starts that the garbage collector would delete")
	promise(!s.destroyable() || shut || d.action == actionUpdate, "nobody waits for what is no reason to wait")
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
