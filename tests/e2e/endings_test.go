package e2e_test

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"testing"
	"time"

	. "github.com/onsi/gomega"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/fluxcd/pkg/apis/meta"
	"github.com/fluxcd/pkg/runtime/conditions"

	autov1alpha1 "github.com/stack-controller/stack-controller/api/auto/v1alpha1"
	pulumiv1 "github.com/stack-controller/stack-controller/api/pulumi/v1"
	"github.com/stack-controller/stack-controller/tests/gitserver"
	"github.com/stack-controller/stack-controller/tests/stage/scene"
	"github.com/stack-controller/stack-controller/tests/statuscheck"
	"github.com/stack-controller/stack-controller/tests/suite"
)

// slowly is the program of these tests: a resource "quick", and one "slow" after it, which takes so many seconds.
func (r *things) slowly(seconds int) gitserver.Files {
	lines := append([]string{"resources:"}, r.sleep("quick", "seconds: 0", "")...)
	return r.yaml(append(lines, r.sleep("slow", fmt.Sprintf("seconds: %d", seconds), ", dependsOn: [\"${quick}\"]")...)...)
}

// inTheMiddle starts a Stack, and returns once it creates the slow resource, which does not end by itself.
func inTheMiddle(p *play, changes ...func(*pulumiv1.Stack)) *things {
	p.Helper()
	r := newThings(p, changes...)
	r.publish(r.slowly(1000))
	r.Eventually(func() string {
		content, _ := os.ReadFile(r.journal("slow"))
		return string(content)
	}).Should(Equal("create start\n"))
	return r
}

// hurries publishes a program whose slow resource is quick.
func (r *things) hurries() *meta.Artifact { return r.publish(r.slowly(0)) }

// locks are those that the backend has for the stack.
func (p *play) locks() []string {
	p.Helper()
	found, err := filepath.Glob(filepath.Join(p.lockDirectory(), "*.json"))
	p.Succeed(err)
	return found
}

// running is how many Updates have not ended.
func (p *play) running() (count int) {
	for _, update := range p.Updates() {
		if !update.IsComplete() {
			count++
		}
	}
	return count
}

// What was done to a resource whose creation was aborted.
var aborted = []string{"create start", "create aborted"}

func TestSuspendedStackEndsItsUpdateWhenItIsAskedTo(t *testing.T) {
	suite.Long(t, "further ways in which an update ends")
	r := inTheMiddle(begin(t, "cancelled"))
	// Neither alone ends anything: a Stack that goes on would start the same again.
	r.Change(scene.Annotate(pulumiv1.CancelUpdateAnnotation, "true"))
	r.Consistently(r.running).WithTimeout(2 * time.Second).Should(Equal(1))
	r.Change(func(s *pulumiv1.Stack) { delete(s.Annotations, pulumiv1.CancelUpdateAnnotation); s.Spec.Suspend = true })
	r.Consistently(r.running).WithTimeout(2 * time.Second).Should(Equal(1))

	r.Change(scene.Annotate(pulumiv1.CancelUpdateAnnotation, "true"))
	stack := r.Await(notReady(pulumiv1.SuspendedReason))
	r.Expect(statuscheck.Message(stack)).To(ContainSubstring("its last up did not succeed: the operation was cancelled: pulumi stopped gracefully"))
	r.Expect(stack.Status.LastUpdate.Reason).To(Equal(autov1alpha1.CanceledReason))
	r.Expect(stack.Status.LastUpdate.Failures).To(BeZero())
	r.Expect(stack.Status.History.Latest().LastReconciledStatus).To(Equal("cancelled"))
	r.Expect(r.LastUpdate(stack).Status.State).To(Equal(autov1alpha1.UpdateStateCancelled))
	r.Expect(r.deeds("quick")).To(Equal(created))
	r.Expect(r.deeds("slow")).To(Equal(aborted))
	r.Expect(r.locks()).To(BeEmpty())
	artifact := r.hurries()
	r.Consistently(r.running).WithTimeout(2 * time.Second).Should(BeZero())

	r.Change(resumed)
	stack = r.Await(ready(artifact.Digest))
	r.Expect(r.deeds("quick")).To(Equal(created))
	r.Expect(r.deeds("slow")).To(Equal(slices.Concat(aborted, created)))
	r.Expect(r.LastUpdate(stack).Spec.AfterInterruption).To(HaveValue(BeTrue()), "what was cut off may have left something")
	r.Expect(stack.Status.LastUpdate.Unsettled).To(BeFalse())
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
	r.Expect(r.deeds("slow")).To(Equal(aborted))
	r.Expect(r.locks()).To(BeEmpty())

	artifact := r.hurries()
	r.Await(ready(artifact.Digest))
	r.Expect(r.deeds("quick")).To(Equal(created))
	r.Expect(r.deeds("slow")).To(Equal(slices.Concat(aborted, created)))
}

func TestCreationThatWasCutOffIsNotRepeatedAlthoughAllThatToldOfItIsGone(t *testing.T) {
	r := inTheMiddle(begin(t, "cut-off"))
	r.Change(suspended)
	r.KillPulumi()
	stack := r.Await(notReady(pulumiv1.SuspendedReason))
	r.Expect(stack.Status.LastUpdate.Reason).To(Equal(autov1alpha1.InterruptedReason))
	r.Expect(stack.Status.LastUpdate.Unsettled).To(BeTrue())

	// The agent goes with all that it knew, and somebody removes the lock.
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
	r.Expect(stack.Status.LastUpdate.Unsettled).To(BeTrue())
	r.Expect(stack.Status.LastUpdate.LastAttemptedCommit).To(Equal(artifact.Digest))
	r.Expect(r.deeds("slow")).To(Equal(created[:1]))
}

func TestStackWhoseCreationWasCutOffIsNotLetGoUntilSomebodyLooked(t *testing.T) {
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
	r.Expect(r.deeds("quick")).To(Equal(slices.Concat(created, deleted)), "all that is known is destroyed")

	r.pulumi("refresh", "--yes", "--skip-preview", "--clear-pending-creates")
	r.AwaitGone()
	r.Expect(r.deeds("slow")).To(Equal(created[:1]))
}
