package e2e_test

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	. "github.com/onsi/gomega"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/fluxcd/pkg/apis/meta"
	"github.com/fluxcd/pkg/runtime/conditions"

	autov1alpha1 "github.com/stack-controller/stack-controller/api/auto/v1alpha1"
	pulumiv1 "github.com/stack-controller/stack-controller/api/pulumi/v1"
	"github.com/stack-controller/stack-controller/tests/framework/gitserver"
	"github.com/stack-controller/stack-controller/tests/framework/statuscheck"
	"github.com/stack-controller/stack-controller/tests/framework/suite"
	"github.com/stack-controller/stack-controller/tests/framework/systemtest"
)

// slowly returns the program of these tests: the resource "quick", and after it the resource "slow", which takes the given number of
// seconds.
func (r *resourceFixture) slowly(seconds int) gitserver.Files {
	lines := append([]string{"resources:"}, r.sleep("quick", "seconds: 0", "")...)
	return r.yaml(append(lines, r.sleep("slow", fmt.Sprintf("seconds: %d", seconds), ", dependsOn: [\"${quick}\"]")...)...)
}

// inTheMiddle starts a Stack, and returns while the Stack creates the slow resource. The creation does not end by itself.
func inTheMiddle(p *fixture, changes ...func(*pulumiv1.Stack)) *resourceFixture {
	p.Helper()
	r := newThings(p, changes...)
	r.publish(r.slowly(1000))
	r.Eventually(func() string {
		content, _ := os.ReadFile(r.journal("slow"))
		return string(content)
	}).Should(Equal("create start\n"))
	return r
}

// hurries publishes a program whose slow resource takes no time.
func (r *resourceFixture) hurries() *meta.Artifact { return r.publish(r.slowly(0)) }

// locks returns the files of the locks that the backend has for the stack.
func (p *fixture) locks() []string {
	p.Helper()
	found, err := filepath.Glob(filepath.Join(p.lockDirectory(), "*.json"))
	p.Succeed(err)
	return found
}

// running returns how many Updates have not ended.
func (p *fixture) running() (count int) {
	for _, update := range p.Updates() {
		if !update.IsComplete() {
			count++
		}
	}
	return count
}

// aborted are the entries in the journal of a resource whose creation was aborted.
var aborted = []string{"create start", "create aborted"}

func TestSuspendedStackEndsItsUpdateWhenItIsAskedTo(t *testing.T) {
	suite.Long(t, "further ways in which an update ends")
	r := inTheMiddle(begin(t, "cancelled"))
	// Neither the annotation nor the suspension alone ends an update: a Stack that is not suspended would start the same update again.
	r.Change(systemtest.Annotate(pulumiv1.CancelUpdateAnnotation, "true"))
	r.Consistently(r.running).WithTimeout(2 * time.Second).Should(Equal(1))
	r.Change(func(s *pulumiv1.Stack) { delete(s.Annotations, pulumiv1.CancelUpdateAnnotation); s.Spec.Suspend = true })
	r.Consistently(r.running).WithTimeout(2 * time.Second).Should(Equal(1))

	r.Change(systemtest.Annotate(pulumiv1.CancelUpdateAnnotation, "true"))
	stack := r.Await(notReady(pulumiv1.SuspendedReason))
	r.Expect(statuscheck.Message(stack)).To(ContainSubstring("its last up did not succeed: the operation was cancelled: pulumi stopped gracefully"))
	r.Expect(stack.Status.LastUpdate.Reason).To(Equal(autov1alpha1.CanceledReason))
	r.Expect(stack.Status.LastUpdate.Failures).To(BeZero())
	r.Expect(stack.Status.History.Latest().LastReconciledStatus).To(Equal("cancelled"))
	r.Expect(r.LastUpdate(stack).Status.State).To(Equal(autov1alpha1.UpdateStateCancelled))
	r.Expect(r.journalEntries("quick")).To(Equal(created))
	r.Expect(r.journalEntries("slow")).To(Equal(aborted))
	r.Expect(r.locks()).To(BeEmpty())
	artifact := r.hurries()
	r.Consistently(r.running).WithTimeout(2 * time.Second).Should(BeZero())

	r.Change(resumed)
	stack = r.Await(ready(artifact.Digest))
	r.Expect(r.journalEntries("quick")).To(Equal(created))
	r.Expect(r.journalEntries("slow")).To(Equal(slices.Concat(aborted, created)))
	r.Expect(r.LastUpdate(stack).Spec.AfterInterruption).To(HaveValue(BeTrue()), "what was cut off may have left something")
	r.Expect(stack.Status.LastUpdate.PendingOperations).To(BeFalse())
}

func TestTimeoutEndsAnUpdateGracefullyAndIsAFailure(t *testing.T) {
	suite.Long(t, "further ways in which an update ends")
	r := inTheMiddle(begin(t, "timeout"), func(s *pulumiv1.Stack) { s.Spec.Timeout = &metav1.Duration{Duration: 20 * time.Second} })
	stack := r.Await(notReady(pulumiv1.RetryingAfterFailureReason))
	r.Expect(statuscheck.Message(stack)).To(MatchRegexp(
		`^up failed \(attempt 1\), next attempt in .*: the operation took longer than its timeout: pulumi stopped gracefully`))
	r.Expect(stack.Status.LastUpdate.Reason).To(Equal(autov1alpha1.TimeoutReason))
	r.Expect(stack.Status.LastUpdate.Failures).To(BeEquivalentTo(1))
	update := r.LastUpdate(stack)
	r.Expect(conditions.GetReason(update, autov1alpha1.UpdateFailed)).To(Equal(autov1alpha1.TimeoutReason))
	r.Expect(update.Status.EndTime.Sub(update.Status.StartTime.Time)).To(BeNumerically("~", 20*time.Second, 10*time.Second))
	r.Expect(r.journalEntries("slow")).To(Equal(aborted))
	r.Expect(r.locks()).To(BeEmpty())

	artifact := r.hurries()
	r.Await(ready(artifact.Digest))
	r.Expect(r.journalEntries("quick")).To(Equal(created))
	r.Expect(r.journalEntries("slow")).To(Equal(slices.Concat(aborted, created)))
}

func TestCreationThatWasCutOffIsNotRepeatedAlthoughAllRecordsOfItAreGone(t *testing.T) {
	suite.Long(t, "operation.TestPendingCreateIsFoundWhereOnlyTheControllerKnowsOfTheInterruption proves it for the agent")
	r := inTheMiddle(begin(t, "cut-off"))
	r.Change(suspended)
	r.KillPulumi()
	stack := r.Await(notReady(pulumiv1.SuspendedReason))
	r.Expect(stack.Status.LastUpdate.Reason).To(Equal(autov1alpha1.InterruptedReason))
	r.Expect(stack.Status.LastUpdate.PendingOperations).To(BeTrue())

	// The agent is deleted with all its records, and someone removes the lock.
	r.deleteWorkspace()
	r.awaitNoWorkspace()
	r.Eventually(r.Directory(r.Name)).ShouldNot(BeADirectory())
	r.Expect(r.locks()).To(HaveLen(1))
	r.pulumi("cancel", "--yes")
	artifact := r.hurries()
	r.Change(func(s *pulumiv1.Stack) {
		s.Spec.Suspend, s.Spec.RetryInterval = false, &metav1.Duration{Duration: 2 * time.Second}
	})
	stack = r.Await(func(s *pulumiv1.Stack) bool { return s.Status.LastUpdate.Failures >= 2 })
	r.Expect(stack.Status.LastUpdate.Message).To(And(ContainSubstring(r.urn("slow")), ContainSubstring("could create it twice")))
	r.Expect(stack.Status.LastUpdate.PendingOperations).To(BeTrue())
	r.Expect(stack.Status.LastUpdate.LastAttemptedCommit).To(Equal(artifact.Digest))
	r.Expect(r.journalEntries("slow")).To(Equal(created[:1]))
}

func TestStackWhoseCreationWasCutOffIsNotRemovedUntilSomebodyLooked(t *testing.T) {
	suite.Long(t, "further ways in which an update ends")
	r := inTheMiddle(begin(t, "cut-off-deleted"), destroyed)
	r.Change(suspended)
	r.KillPulumi()
	r.Await(notReady(pulumiv1.SuspendedReason))
	r.Delete()
	r.Change(func(s *pulumiv1.Stack) {
		s.Spec.Suspend, s.Spec.RetryInterval = false, &metav1.Duration{Duration: 2 * time.Second}
	})
	stack := r.Await(func(s *pulumiv1.Stack) bool { return s.Status.LastUpdate.Failures >= 2 })
	r.Expect(stack.Status.LastUpdate.Type).To(Equal(autov1alpha1.UpdateTypeDestroy))
	r.Expect(statuscheck.Message(stack)).To(And(ContainSubstring(r.urn("slow")), ContainSubstring("--clear-pending-creates"),
		ContainSubstring(pulumiv1.OrphanAnnotation+"=true")))
	r.Expect(r.journalEntries("quick")).To(Equal(slices.Concat(created, deleted)), "all that is known is destroyed")

	r.pulumi("refresh", "--yes", "--skip-preview", "--clear-pending-creates")
	r.AwaitGone()
	r.Expect(r.journalEntries("slow")).To(Equal(created[:1]))
}

// interruptedUpdates returns how many Updates of the namespace were ended from outside.
func (p *fixture) interruptedUpdates() (count int) {
	p.Helper()
	for _, update := range p.Updates() {
		if update.WasInterrupted() {
			p.Expect(update.Status.State).To(Equal(autov1alpha1.UpdateStateInterrupted))
			count++
		}
	}
	return count
}

func TestInterruptedUpdateIsRepeatedAtOnceAndIsNoFailure(t *testing.T) {
	p := begin(t, "interrupted")
	artifact := p.put(p.returning(1))
	release := p.hold()
	p.start(artifact, retriedLate)
	p.awaitRuns("up", 1)
	p.KillAgent()
	p.awaitRuns("up", 2)
	stack := p.Await(func(s *pulumiv1.Stack) bool { return s.Status.LastUpdate != nil && s.Status.CurrentUpdate != nil })
	p.Expect(stack.Status.LastUpdate.State).To(Equal(pulumiv1.StackUpdateFailed))
	p.Expect(stack.Status.LastUpdate.Failures).To(BeZero())
	p.Expect(stack.Status.LastUpdate.Interruptions).To(BeEquivalentTo(1))
	p.Expect(stack.Status.LastUpdate.Message).To(ContainSubstring("the agent ended while pulumi ran"))
	p.Expect(stack.Status.History[0].LastReconciledStatus).To(Equal("interrupted"))
	release()

	stack = p.Await(ready(artifact.Digest))
	p.Expect(stack.Status.LastUpdate.Interruptions).To(BeZero())
	p.Expect(p.interruptedUpdates()).To(Equal(1))
	p.Expect(p.Updates()).To(HaveLen(2))
	p.Eventually(p.events).WithArguments("StackUpdateInterrupted").Should(ConsistOf(ContainSubstring("will be repeated")))
	p.Expect(p.events("StackUpdateFailure")).To(BeEmpty())
}

func TestInterruptionsInARowAreNoHotLoop(t *testing.T) {
	suite.Long(t, "further interruptions")
	p := begin(t, "interrupted-often")
	artifact := p.put(p.returning(1))
	release := p.hold()
	p.start(artifact)
	for i := range 4 {
		p.awaitRuns("up", i+1)
		p.KillAgent()
	}
	stack := p.Await(notReady(pulumiv1.UpdateInterruptedReason))
	p.Expect(statuscheck.Message(stack)).To(ContainSubstring("up was interrupted 4 times in a row, next attempt in"))
	p.Expect(stack.Status.LastUpdate.Failures).To(BeZero())
	release()
	stack = p.Await(ready(artifact.Digest))
	p.Expect(stack.Status.LastUpdate.Interruptions).To(BeZero())
	p.Expect(p.interruptedUpdates()).To(Equal(4))
}

func TestInterruptedDestroyIsRepeated(t *testing.T) {
	suite.Long(t, "further interruptions")
	p := begin(t, "destroy-interrupted")
	p.deployed(destroyed)
	release := p.hold()
	p.Delete()
	p.awaitRuns("destroy", 1)
	p.KillAgent()
	p.awaitRuns("destroy", 2)
	p.Expect(p.interruptedUpdates()).To(Equal(1))
	release()
	p.awaitDestroyed()
}

func TestWorkspaceIsNotReclaimedUnderAnUpdateOfSomebodyElse(t *testing.T) {
	suite.Long(t, "further interruptions")
	p := begin(t, "shared")
	release := p.hold()
	artifact := p.put(p.returning(1))
	p.start(artifact, func(s *pulumiv1.Stack) { s.Spec.WorkspaceReclaimPolicy = pulumiv1.WorkspaceReclaimDelete })
	p.awaitRuns("up", 1)
	byHand := p.handmade(autov1alpha1.UpdateTypeUp)
	p.awaitUpdate(byHand, func(u *autov1alpha1.Update) bool { return u.Status.State == autov1alpha1.UpdateStateQueued })
	release()
	p.Await(ready(artifact.Digest))
	p.awaitSuccess(byHand)
}

// lockDirectory returns the directory in which the backend keeps the locks of the stack.
func (p *fixture) lockDirectory() string {
	return filepath.Join(strings.TrimPrefix(system.BackendURL, "file://"), ".pulumi", "locks", "organization", p.Name, "dev")
}

// lock adds a lock of a process on another host to the backend, in the form that pulumi writes, and returns a function that removes the
// lock.
func (p *fixture) lock() (release func()) {
	p.Helper()
	path := filepath.Join(p.lockDirectory(), "11111111-2222-3333-4444-555555555555.json")
	p.Expect(os.MkdirAll(filepath.Dir(path), 0o755)).To(Succeed())
	content := `{"pid":4711,"username":"alice","hostname":"laptop","timestamp":"2026-01-21T02:26:40Z"}`
	p.Expect(os.WriteFile(path, []byte(content), 0o644)).To(Succeed())
	return func() { p.Expect(os.Remove(path)).To(Succeed()) }
}

// conflicts matches a Stack that has met the lock at least count times.
func conflicts(count int64) func(*pulumiv1.Stack) bool {
	return func(s *pulumiv1.Stack) bool {
		return s.Status.LastUpdate != nil && s.Status.LastUpdate.Conflicts >= count && s.Status.CurrentUpdate == nil
	}
}

func TestLockOfAnotherIsShownAndWaitedFor(t *testing.T) {
	suite.Long(t, "waits for the pauses between attempts")
	t.Parallel()
	for _, test := range []struct {
		name  string
		eager bool
		// tries is how many attempts have to meet the lock before it is released.
		tries int64
	}{
		{"locked", false, 2},
		{"locked-eager", true, 3},
	} {
		t.Run(test.name, func(t *testing.T) {
			p := begin(t, test.name)
			watcher, err := statuscheck.Watch(p.Context(), system.Client, p.Name)
			p.Succeed(err)
			stack, _ := p.deployed(func(s *pulumiv1.Stack) {
				s.Spec.RetryOnUpdateConflict, s.Spec.UpdateHistoryLimit = test.eager, new(int32(3))
			})
			first := stack.Status.LastUpdate.Name

			release := p.lock()
			next := p.publish(p.returning(2))
			stack = p.Await(conflicts(1))
			p.Expect(notReady(pulumiv1.UpdateConflictReason)(stack)).To(BeTrue(), fmt.Sprint(stack.Status.Conditions))
			p.Expect(statuscheck.Message(stack)).To(ContainSubstring("the stack is locked by alice@laptop (pid 4711) since 2026-01-21T02:26:40Z"))
			p.Expect(conditions.GetReason(stack, meta.ReconcilingCondition)).To(Equal(pulumiv1.UpdateConflictReason))
			p.Expect(conditions.IsStalled(stack)).To(BeFalse())

			stack = p.Await(conflicts(test.tries))
			p.Expect(stack.Status.LastUpdate.Failures).To(BeZero())
			p.Expect(stack.Status.LastUpdate.Interruptions).To(BeZero())
			p.Expect(stack.Status.History).To(HaveLen(2))
			p.Eventually(p.Updates).Should(HaveLen(2), "the first one, and the last one that met the lock")

			released := time.Now()
			release()
			stack = p.Await(ready(next.Digest))
			p.Logf("Ready %s after the release", time.Since(released).Round(time.Second))
			p.Expect(stack.Status.LastUpdate.Conflicts).To(BeZero())
			p.Expect(stack.Status.LastUpdate.ConflictsSince).To(BeNil())
			p.Eventually(p.Updates).Should(ConsistOf(HaveField("Name", first), HaveField("Name", stack.Status.LastUpdate.Name)))
			p.Eventually(p.events).WithArguments("StackUpdateConflictDetected").Should(ConsistOf(ContainSubstring("alice@laptop")))
			p.Expect(p.events("StackUpdateFailure")).To(BeEmpty())
			p.Eventually(p.events).WithArguments("StackUpdateDetected").Should(HaveLen(2))
			checked, err := watcher.Stop()
			p.Succeed(err)
			p.Expect(checked).To(BeNumerically(">", 5))
		})
	}
}

// lose moves the state of the stack out of the backend, as if the Stack had another backend. It returns a function that moves the state
// back.
func (p *fixture) lose() (bringBack func()) {
	p.Helper()
	state := filepath.Join(strings.TrimPrefix(system.BackendURL, "file://"), ".pulumi", "stacks", p.Name)
	p.Expect(os.Rename(state, state+".away")).To(Succeed())
	return func() {
		p.Expect(os.RemoveAll(state)).To(Succeed())
		p.Expect(os.Rename(state+".away", state)).To(Succeed())
	}
}

func retriedSoon(s *pulumiv1.Stack) { s.Spec.RetryInterval = &metav1.Duration{Duration: time.Second} }

// allowed lets the Stack create a missing stack again.
var allowed = systemtest.Annotate(pulumiv1.CreateMissingStackAnnotation, "true")

func TestLostStackIsNotCreatedAgainAndRecoversWhenItIsBack(t *testing.T) {
	suite.Long(t, "further states of a backend; the decisions are in internal/controller/stack and the message in internal/agent/operation")
	p := begin(t, "lost")
	stack, _ := p.deployed(retriedSoon)
	p.Expect(stack.Status.DeployedStack).To(Equal("dev"))
	bringBack := p.lose()
	next := p.publish(p.returning(2))
	lost := p.Await(notReady(pulumiv1.StackLostReason))
	p.Expect(statuscheck.Message(lost)).To(And(ContainSubstring("was deployed before"), ContainSubstring(pulumiv1.CreateMissingStackAnnotation+"=true")))
	p.Expect(lost.Status.LastUpdate.Reason).To(Equal(autov1alpha1.StackLostReason))
	p.Expect(p.HasState(p.Name, "dev")).To(BeFalse())
	bringBack()
	p.Await(ready(next.Digest))
	p.Expect(p.resources()).To(BeNumerically(">", 0))
}

func TestLostStackIsCreatedAgainWhenSomebodyAllowsIt(t *testing.T) {
	suite.Long(t, "further ways to lose a stack")
	p := begin(t, "lost-for-good")
	p.deployed(retriedLate)
	p.lose()
	next := p.publish(p.returning(2))
	p.Await(notReady(pulumiv1.StackLostReason))
	p.Change(allowed)
	p.Await(ready(next.Digest))
	p.Expect(p.HasState(p.Name, "dev")).To(BeTrue())
}

func TestStackOfAProjectWithAnotherNameIsNotCreatedUntilSomebodyAllowsIt(t *testing.T) {
	suite.Long(t, "further ways to lose a stack")
	p := begin(t, "lost-project")
	const renamed = "lost-project-renamed"
	p.deployed()
	next := p.publish(systemtest.Returning(renamed, 2))
	lost := p.Await(notReady(pulumiv1.StackLostReason))
	p.Expect(statuscheck.Message(lost)).To(ContainSubstring("and the name of the project;"))
	p.Expect(p.HasState(renamed, "dev")).To(BeFalse())
	p.Change(allowed)
	p.Await(ready(next.Digest))
	p.Expect(p.HasState(renamed, "dev")).To(BeTrue())
}

func TestStackWithAnotherNameIsCreated(t *testing.T) {
	suite.Long(t, "further ways to lose a stack")
	p := begin(t, "renamed-stack")
	p.deployed()
	p.Change(func(s *pulumiv1.Stack) { s.Spec.Stack = "prod" })
	p.Await(func(s *pulumiv1.Stack) bool {
		return s.Status.DeployedStack == "prod" && s.Status.LastUpdate.Generation == s.Generation
	})
}

func TestDestroyOfALostStackIsNoProof(t *testing.T) {
	suite.Long(t, "further ways to lose a stack")
	p := begin(t, "lost-deleted")
	p.deployed(destroyed, retriedSoon)
	bringBack := p.lose()
	p.Delete()
	p.Await(says(pulumiv1.StackLostReason))
	p.Expect(p.HasState(p.Name, "dev")).To(BeFalse())
	bringBack()
	p.awaitDestroyed()
}
