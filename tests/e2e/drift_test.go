package e2e_test

import (
	"os"
	"slices"
	"testing"
	"time"

	. "github.com/onsi/gomega"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/fluxcd/pkg/apis/meta"
	"github.com/fluxcd/pkg/runtime/conditions"

	autov1alpha1 "github.com/stack-controller/stack-controller/api/auto/v1alpha1"
	pulumiv1 "github.com/stack-controller/stack-controller/api/pulumi/v1"
	"github.com/stack-controller/stack-controller/tests/framework/statuscheck"
	"github.com/stack-controller/stack-controller/tests/framework/suite"
	"github.com/stack-controller/stack-controller/tests/framework/systemtest"
)

// resetAnnotation makes Flux's helm-controller reset its count of failures. It needs a plain request with the same value.
const resetAnnotation = "reconcile.fluxcd.io/resetAt"

func TestDriftThatNobodyExpectsIsLeftUntilSomebodyDecides(t *testing.T) {
	suite.Long(t, "further ways of drift")
	r := deployedThings(begin(t, "drift"), "", func(s *pulumiv1.Stack) {
		s.Spec.Refresh, s.Spec.ExpectNoRefreshChanges = true, true
		s.Spec.RetryInterval = &metav1.Duration{Duration: 2 * time.Second}
	})
	r.write("first", "theirs")
	before := r.State(r.Name, "dev")
	r.retry()
	stack := r.Await(func(s *pulumiv1.Stack) bool { return conditions.IsStalled(s) && s.Status.LastUpdate.Failures >= 3 })
	r.Expect(statuscheck.Message(stack)).To(And(ContainSubstring("update test:index:Sleep first (content)"), ContainSubstring("expectNoRefreshChanges")))
	r.Expect(stack.Status.LastUpdate.Reason).To(Equal(autov1alpha1.UnexpectedChangesReason))
	r.Expect(r.read("first")).To(Equal("theirs"))
	r.Expect(r.State(r.Name, "dev")).To(Equal(before), "each attempt finds it again, because none writes it down")

	r.Change(func(s *pulumiv1.Stack) { s.Spec.ExpectNoRefreshChanges = false })
	r.Await(ready(""))
	r.Expect(r.read("first")).To(Equal("x"))
	r.Change(func(s *pulumiv1.Stack) { s.Spec.ExpectNoRefreshChanges = true })
	r.Await(ready(""))

	// Drift that someone reverts needs no edit of the Stack.
	r.write("first", "theirs")
	r.retry()
	r.Await(notReady(pulumiv1.RetryingAfterFailureReason))
	r.write("first", "x")
	r.Await(ready(""))
	r.Expect(r.journalEntries("first")).NotTo(ContainElement("delete start"))
}

// TestForcedRequestRevertsDrift sets the annotations that "flux reconcile --force" and "--reset" set.
func TestForcedRequestRevertsDrift(t *testing.T) {
	suite.Long(t, "further ways of drift")
	r := deployedThings(begin(t, "forced"), "")
	request := func(token string, annotations ...string) *pulumiv1.Stack {
		r.Change(func(s *pulumiv1.Stack) {
			for _, annotation := range append(annotations, meta.ReconcileRequestAnnotation) {
				metav1.SetMetaDataAnnotation(&s.ObjectMeta, annotation, token)
			}
		})
		return r.Await(func(s *pulumiv1.Stack) bool {
			return s.Status.LastHandledReconcileAt == token && s.Status.CurrentUpdate == nil
		})
	}
	r.write("first", "theirs")
	r.Expect(ready("")(request("plain"))).To(BeTrue())
	r.Expect(r.read("first")).To(Equal("theirs"), "without a refresh, Pulumi believes its state")

	stack := request("forced", meta.ForceRequestAnnotation)
	r.Expect(r.read("first")).To(Equal("x"))
	r.Expect(stack.Status.LastHandledForceAt).To(Equal("forced"))
	update := r.LastUpdate(stack)
	r.Expect(update.Spec.Refresh).To(HaveValue(BeTrue()))
	r.Expect(update.Spec.Message).To(HaveValue(ContainSubstring(`Forced sync request: "forced"`)))

	// A forced request is carried out once, and only together with a plain request.
	r.write("first", "theirs")
	r.Change(func(s *pulumiv1.Stack) {
		metav1.SetMetaDataAnnotation(&s.ObjectMeta, meta.ForceRequestAnnotation, "alone")
	})
	stack = request("next", resetAnnotation)
	r.Expect(r.read("first")).To(Equal("theirs"))
	r.Expect(stack.Status.LastHandledForceAt).To(Equal("alone"))

	// A forced request works although the spec does not expect the drift. Failures before a reset request no longer count.
	r.Change(func(s *pulumiv1.Stack) {
		s.Spec.Refresh, s.Spec.ExpectNoRefreshChanges = true, true
		s.Spec.RetryInterval = &metav1.Duration{Duration: time.Second}
	})
	r.Await(func(s *pulumiv1.Stack) bool { return conditions.IsStalled(s) && s.Status.LastUpdate.Failures >= 3 })
	r.Change(func(s *pulumiv1.Stack) { s.Spec.RetryInterval = &metav1.Duration{Duration: time.Hour} })
	stack = request("reset", resetAnnotation)
	r.Expect(stack.Status.LastUpdate.Failures).To(BeEquivalentTo(1))
	r.Expect(ready("")(request("again", meta.ForceRequestAnnotation))).To(BeTrue())
	r.Expect(r.read("first")).To(Equal("x"))
}

// checksForDrift makes the Stack check for drift when the test calls check, and otherwise only after a day.
func checksForDrift(mode pulumiv1.DriftMode) func(*pulumiv1.Stack) {
	return func(s *pulumiv1.Stack) {
		s.Spec.Drift = &pulumiv1.DriftSpec{Mode: mode, Interval: metav1.Duration{Duration: 24 * time.Hour}}
	}
}

// drifted matches a Stack whose condition Drifted has the reason, after the check that was requested with the token.
func drifted(token, reason string) func(*pulumiv1.Stack) bool {
	return func(s *pulumiv1.Stack) bool {
		return s.Status.Drift != nil && s.Status.Drift.LastHandledCheckAt == token && conditions.GetReason(s, pulumiv1.DriftedCondition) == reason
	}
}

func (r *resourceFixture) check(token string) {
	r.Helper()
	r.Change(systemtest.Annotate(pulumiv1.DriftCheckAnnotation, token))
}

func TestDriftIsReportedWhenTwoChecksSeeTheSame(t *testing.T) {
	r := deployedThings(begin(t, "drift-detect"), "")
	before := r.Await(ready(""))
	r.Change(checksForDrift(pulumiv1.DriftModeDetect))
	r.check("first")
	stack := r.Await(drifted("first", pulumiv1.NoDriftReason))
	r.Expect(stack.Status.LastUpdate.Name).To(Equal(before.Status.LastUpdate.Name), "to look for drift is no reason for an update")

	r.write("first", "theirs")
	r.Expect(os.Remove(r.file("second"))).To(Succeed())
	state := r.State(r.Name, "dev")
	r.check("second")
	stack = r.Await(drifted("second", pulumiv1.DriftDetectedReason))
	r.Expect(stack.Status.Drift.Resources).To(HaveExactElements(
		pulumiv1.DriftedResource{URN: r.urn("first"), Change: pulumiv1.DriftChanged, Paths: []string{"content"}},
		pulumiv1.DriftedResource{URN: r.urn("second"), Change: pulumiv1.DriftGone}))
	r.Expect(ready("")(stack)).To(BeTrue(), "drift says nothing about what the Stack was asked for")
	r.Expect(r.State(r.Name, "dev")).To(Equal(state))
	r.Eventually(func() []string { return r.events(pulumiv1.DriftDetectedReason) }).Should(ContainElement(ContainSubstring("2 resources were changed outside of Pulumi: test:index:Sleep first (content), test:index:Sleep second (gone)")))
	r.Eventually(r.Updates).ShouldNot(ContainElement(HaveField("Name", r.Name+"-drift")), "a check leaves nothing behind")

	r.Change(func(s *pulumiv1.Stack) { s.Spec.Drift = nil })
	r.Await(func(s *pulumiv1.Stack) bool {
		return s.Status.Drift == nil && !conditions.Has(s, pulumiv1.DriftedCondition)
	})
}

func TestIgnoredChangesAreNoDriftAndAFailedCheckKnowsOfNone(t *testing.T) {
	suite.Long(t, "further checks; the tests of internal/controller/stack prove what comes of them")
	r := deployedThings(begin(t, "drift-unknown"), "")
	before := r.Await(ready(""))
	r.write("first", "theirs")
	r.Expect(os.Remove(r.file("second"))).To(Succeed())
	r.Change(checksForDrift(pulumiv1.DriftModeDetect), func(s *pulumiv1.Stack) {
		s.Spec.Drift.Ignore = []pulumiv1.DriftIgnore{
			{Target: &pulumiv1.DriftTarget{Name: "second"}}, {Target: &pulumiv1.DriftTarget{Type: "test:*"}, Paths: []string{"content"}},
		}
	})
	r.check("third")
	stack := r.Await(drifted("third", pulumiv1.NoDriftReason))
	r.Expect(stack.Status.Drift.Resources).To(BeEmpty())
	r.Expect(stack.Status.LastUpdate.Name).To(Equal(before.Status.LastUpdate.Name))
	bringBack := r.lose()
	r.check("fourth")
	stack = r.Await(drifted("fourth", pulumiv1.DriftCheckFailedReason))
	r.Expect(ready("")(stack)).To(BeTrue())
	bringBack()
	r.check("fifth")
	r.Await(drifted("fifth", pulumiv1.NoDriftReason))
}

func TestDriftIsCorrectedOnTheResourcesThatDrifted(t *testing.T) {
	suite.Long(t, "further ways of drift")
	r := deployedThings(begin(t, "drift-correct"), "", checksForDrift(pulumiv1.DriftModeCorrect))
	r.write("first", "theirs")
	r.check("now")
	stack := r.Await(func(s *pulumiv1.Stack) bool {
		return drifted("now", pulumiv1.NoDriftReason)(s) && s.Status.Drift.Correction != nil
	})
	r.Expect(r.read("first")).To(Equal("x"))
	update := r.LastUpdate(stack)
	r.Expect(update.Spec.Target).To(HaveExactElements(r.urn("first")))
	r.Expect(update.Spec.Message).To(HaveValue(HavePrefix("Correcting drift: 1 resource was changed outside of Pulumi")))
	r.Expect(stack.Status.Drift.Correction.Count).To(BeEquivalentTo(1))

	// A resource that is gone is created again, and one that has its ID gets the new one.
	lines := r.sleep("second", "seconds: 0, file: "+r.file("second")+`, content: "${first.id}"`, "")
	lines = slices.Concat([]string{"resources:"}, r.sleep("first", "seconds: 0, file: "+r.file("first")+", content: x", ""), lines)
	r.Await(ready(r.publish(r.yaml(lines...)).Digest))
	before := r.read("second")
	r.Expect(os.Remove(r.file("first"))).To(Succeed())
	r.check("again")
	r.Await(func(s *pulumiv1.Stack) bool {
		return drifted("again", pulumiv1.NoDriftReason)(s) && s.Status.Drift.Correction != nil
	})
	r.Expect(r.file("first")).To(BeAnExistingFile())
	r.Expect(r.read("second")).NotTo(Equal(before), "the ID is another one")

	// An update with targets corrects nothing else, so nothing else is reported.
	r.Change(func(s *pulumiv1.Stack) {
		s.Spec.UpdateTemplate = &pulumiv1.UpdateTemplate{Spec: &autov1alpha1.UpdateSpec{Target: []string{r.urn("second")}}}
	})
	r.Await(ready(""))
	r.write("first", "theirs")
	r.check("targets")
	r.Await(drifted("targets", pulumiv1.NoDriftReason))
	r.write("second", "theirs")
	r.check("target")
	r.Await(func(s *pulumiv1.Stack) bool {
		return drifted("target", pulumiv1.NoDriftReason)(s) && s.Status.Drift.Correction != nil
	})
	r.Expect(r.read("second")).NotTo(Equal("theirs"))
	r.Expect(r.read("first")).To(Equal("theirs"))
}

func TestCorrectionKeepsIgnoredDriftThatTheProgramIgnoresToo(t *testing.T) {
	suite.Long(t, "further ways of drift")
	r := newThings(begin(t, "drift-ignored"), destroyed, checksForDrift(pulumiv1.DriftModeCorrect), func(s *pulumiv1.Stack) {
		s.Spec.Drift.Ignore = []pulumiv1.DriftIgnore{
			{Target: &pulumiv1.DriftTarget{Name: "kept"}, Paths: []string{"content"}}, {Target: &pulumiv1.DriftTarget{Name: "reverted"}},
			{Target: &pulumiv1.DriftTarget{Name: "apart"}},
		}
	})
	lines := []string{"resources:"}
	for resource, options := range map[string]string{
		"first": "", "apart": "", "reverted": `, dependsOn: ["${first}"]`, "kept": `, dependsOn: ["${first}"], ignoreChanges: [content]`,
	} {
		lines = append(lines, r.sleep(resource, "seconds: 0, content: x, file: "+r.file(resource), options)...)
	}
	r.Await(ready(r.publish(r.yaml(lines...)).Digest))
	for _, resource := range []string{"first", "apart", "reverted", "kept"} {
		r.write(resource, "theirs")
	}
	r.check("now")
	r.Await(func(s *pulumiv1.Stack) bool {
		return drifted("now", pulumiv1.NoDriftReason)(s) && s.Status.Drift.Correction != nil
	})
	r.Expect(r.read("first")).To(Equal("x"))
	r.Expect(r.read("apart")).To(Equal("theirs"))
	r.Expect(r.read("kept")).To(Equal("theirs"))
	r.Expect(r.read("reverted")).To(Equal("x"), "it depends on what drifted")
}

func TestDriftCheckMakesWayForAnUpdate(t *testing.T) {
	suite.Long(t, "further ways of drift")
	r := newThings(begin(t, "drift-way"), destroyed, checksForDrift(pulumiv1.DriftModeDetect))
	r.Await(ready(r.publish(r.yaml(append([]string{"resources:"}, r.sleep("slow", "seconds: 6", "")...)...)).Digest))
	r.check("slow")
	r.Eventually(func() []string { return r.journalEntries("slow") }).Should(ContainElement("read start"))
	r.Await(ready(r.publish(r.yaml(append([]string{"resources:"}, r.sleep("slow", "seconds: 5", "")...)...)).Digest))
	r.Expect(r.journalEntries("slow")).NotTo(ContainElement("read end"), "it was cancelled")
	r.Await(drifted("slow", pulumiv1.NoDriftReason))
}
