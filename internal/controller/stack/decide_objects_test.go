package stack

import (
	"testing"
	"time"

	. "github.com/onsi/gomega"

	pulumiv1 "github.com/stack-controller/stack-controller/api/pulumi/v1"
)

func dependsOnObject(o *observation) { onObject(kustomizations, "base")(o.stack) }

func objectIs(problem *objectProblem) func(*observation) {
	return func(o *observation) {
		dependsOnObject(o)
		o.objects = objectDependencies{read: true, problem: problem}
	}
}

func TestObjectsAreReadOnlyForAnUpdateThatNothingElseHoldsBack(t *testing.T) {
	newCommit := func(o *observation) { o.artifact.Digest = "sha256:b" }
	for name, test := range map[string]struct {
		given  *observation
		action action
	}{
		"nothing to update":          {with(upToDate(), dependsOnObject), actionReady},
		"a failure that is retried":  {with(failed(1, time.Second), dependsOnObject), actionRetry},
		"suspended":                  {with(upToDate(), dependsOnObject, suspended, newCommit), actionSuspend},
		"an update that runs":        {with(updating(), dependsOnObject), actionFollow},
		"a Stack that is not ready":  {with(upToDate(), dependsOnObject, newCommit, waitsFor(pulumiv1.DependencyNotReadyReason)), actionWait},
		"a new commit":               {with(upToDate(), dependsOnObject, newCommit), actionReadObjects},
		"a new commit, all is ready": {with(upToDate(), objectIs(nil), newCommit), actionUpdate},
		"a prerequisite that has to run again": {with(upToDate(), objectIs(&objectProblem{}), newCommit, func(o *observation) {
			o.aged = &agedPrerequisite{request: "after-it"}
		}), actionWait},
	} {
		NewWithT(t).Expect(decide(*test.given).action).To(Equal(test.action), name)
	}
}

func TestObjectThatCannotBeWatchedIsPolledLessAndLessOften(t *testing.T) {
	g := NewWithT(t)
	const reason = pulumiv1.DependencyNotReadyReason
	o := with(upToDate(), objectIs(&objectProblem{reason: reason, found: byPolling}), func(o *observation) { o.artifact.Digest = "sha256:b" })
	for waited, after := range map[time.Duration]time.Duration{0: 5 * time.Second, 20 * time.Second: 10 * time.Second, time.Hour: 30 * time.Second} {
		markWaiting(o.stack, reason, "why")
		for i := range o.stack.Status.Conditions {
			o.stack.Status.Conditions[i].LastTransitionTime = ago(waited)
		}
		d := decide(*o)
		g.Expect([]any{d.action, d.wake, d.after}).To(Equal([]any{actionWait, byTime, after}))
	}
	resync := with(upToDate(), objectIs(&objectProblem{reason: reason, found: byPolling}), resyncIsDue)
	g.Expect(decide(*resync).quiet).To(BeTrue())
	g.Expect(decide(*resync).after).To(Equal(longestPoll), "nobody waits for it")

	o.objects.problem = &objectProblem{reason: reason}
	g.Expect(decide(*o).wake).To(Equal(byObjects))
	g.Expect(decide(*o).after).To(Equal(o.waitInterval))
	o.objects.problem.after = 300 * time.Millisecond
	g.Expect(decide(*o).after).To(Equal(300*time.Millisecond), "it has changed and can be read again then")
	o.objects.problem = &objectProblem{reason: pulumiv1.AccessDeniedReason, found: byAskingAgain}
	d := decide(*o)
	g.Expect([]any{d.action, d.reason, d.wake, d.after}).To(Equal([]any{actionWait, pulumiv1.AccessDeniedReason, byTime, o.waitInterval}))
}
