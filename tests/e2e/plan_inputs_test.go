package e2e_test

import (
	"os"
	"path/filepath"
	"testing"

	. "github.com/onsi/gomega"
	corev1 "k8s.io/api/core/v1"

	pulumiv1 "github.com/stack-controller/stack-controller/api/pulumi/v1"
	"github.com/stack-controller/stack-controller/tests/framework/gitserver"
	"github.com/stack-controller/stack-controller/tests/framework/localsystem"
	"github.com/stack-controller/stack-controller/tests/framework/suite"
)

// Drift is corrected without an approval only with the values that were approved: somebody who writes the Secret could otherwise have a
// value deployed that nobody has seen.
func TestCorrectionRestoresOnlyWhatWasApproved(t *testing.T) {
	suite.Long(t, "further ways of an approval")
	r := newThings(begin(t, "restores"), usesPassword, destroyed)
	r.Change(needsApproval(func(policy *pulumiv1.ApprovalPolicy) {
		policy.Operations = []pulumiv1.ApprovedOperation{pulumiv1.ApprovedUp, pulumiv1.ApprovedDestroy}
	}))
	r.Change(checksForDrift(pulumiv1.DriftModeCorrect))
	lines := append([]string{"config: {password: {type: string, secret: true}}", "resources:"},
		r.sleep("first", "seconds: 0, file: "+r.file("first")+`, content: "${password}"`, "")...)
	artifact := r.publish(r.yaml(lines...))
	r.approve(r.waitsFor(nil))
	r.Await(both(planIs(pulumiv1.PlanApplied), ready(artifact.Digest)))
	approved := r.read("first")
	r.write("first", "theirs")
	r.check("now")
	stack := r.Await(both(planIs(pulumiv1.PlanApplied), func(s *pulumiv1.Stack) bool { return s.Status.Drift.Correction != nil }))
	r.Expect(r.read("first")).To(Equal(approved))
	r.Expect(stack.Status.Plan.Approvals).To(BeEmpty())

	secret := &corev1.Secret{}
	r.Get(localsystem.PassphraseSecret, secret)
	secret.Data["canary"] = []byte(secretCanary + "-other")
	r.Succeed(system.Client.Update(t.Context(), secret))
	r.write("first", "theirs")
	r.check("again")
	stack = r.Await(planIs(pulumiv1.PlanPending))
	r.Expect(stack.Status.Plan.Operation).To(Equal(pulumiv1.ApprovedDriftCorrection))
	r.Eventually(func() []string { return r.events(pulumiv1.ApprovalRequiredReason) }).Should(ContainElement(ContainSubstring("are not those of the last plan that was carried out")))
	r.Expect(r.read("first")).To(Equal("theirs"))
	r.approve(stack)
	r.Await(planIs(pulumiv1.PlanApplied))
	r.Expect(r.read("first")).NotTo(Or(Equal("theirs"), Equal(approved)))
}

// Commits that do not concern the Stack replace the artifact of its plan, and the store of the controller is lost.
func TestApprovedPlanIsCarriedOutThoughItsArtifactIsGone(t *testing.T) {
	suite.Long(t, "further ways of an approval")
	r := guardedThings(alone(t, "plan-artifact"))
	r.Change(func(s *pulumiv1.Stack) { s.Spec.FluxSource.Dir, s.Spec.SourcePaths = "app", []string{"lib"} })
	files := gitserver.Files{"app/Pulumi.yaml": r.with("one", "first")["Pulumi.yaml"], "lib/x": "x"}
	first := r.publish(files)
	stack := r.waitsFor(nil)
	for _, text := range []string{"one", "two", "three"} {
		files["docs/page.md"] = text
		latest := r.publish(files)
		r.Await(func(s *pulumiv1.Stack) bool { return s.Status.Plan.Commit == latest.Digest })
	}
	r.Succeed(system.KillController())
	r.Succeed(os.RemoveAll(filepath.Join(system.Dir, "data", "artifacts")))
	r.startController()
	r.approve(stack)
	stack = r.Await(planIs(pulumiv1.PlanApplied))
	r.Expect(r.read("first")).To(Equal("one"))
	r.Expect(stack.Status.Plan.Approvals).To(ConsistOf(HaveField("By", "alice")), "nobody approved twice")
	r.Expect(r.LastUpdate(stack).Spec.Source.Digest).NotTo(Equal(first.Digest))
}
