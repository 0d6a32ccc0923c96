package e2e_test

import (
	"fmt"
	"testing"

	. "github.com/onsi/gomega"

	"github.com/fluxcd/pkg/runtime/conditions"
	sourcev1 "github.com/fluxcd/source-controller/api/v1"

	autov1alpha1 "github.com/stack-controller/stack-controller/api/auto/v1alpha1"
	pulumiv1 "github.com/stack-controller/stack-controller/api/pulumi/v1"
	"github.com/stack-controller/stack-controller/tests/framework/suite"
)

func TestWaveWithDriftStopsTheNextOne(t *testing.T) {
	suite.Long(t, "two checks for drift in a wave; the tests of internal/controller/rollout prove what comes of them")
	p := begin(t, "waves-drift")
	rollout, stacks := p.fleet("canary", "east")
	rollout.Spec.Waves[0].NoDrift = true
	p.enter(&sourcev1.ExternalArtifact{ObjectMeta: p.Meta(p.Name)}, rollout, stacks[0], stacks[1])
	p.awaitRollout(autov1alpha1.RolloutCompleteReason, p.publish(p.returning(0)).Revision)
	p.InstallProvider("canary")
	p.InstallProvider("east")
	r := &resourceFixture{fixture: p, dir: p.TempDir()}
	resource := func(name, needs, content string) []string {
		return r.sleep(name, fmt.Sprintf("seconds: 0, file: \"%s-${pulumi.stack}\", content: %s", r.file("first"), content), needs)
	}
	program := func(lines ...string) []string { return append([]string{"resources:"}, lines...) }
	first := p.publish(p.yaml(program(resource("first", "", "one")...)...))
	p.awaitRollout(autov1alpha1.RolloutCompleteReason, first.Revision)
	canary := p.AwaitStack("canary", ready(first.Digest))
	p.Expect(conditions.GetReason(canary, pulumiv1.DriftedCondition)).To(Equal(pulumiv1.NoDriftReason), "it has no spec.drift, and looked once")
	p.Expect(canary.Status.Drift.CheckedUpdate).To(Equal(canary.Status.LastUpdate.Name))
	p.Expect(conditions.Has(p.AwaitStack("east", ready(first.Digest)), pulumiv1.DriftedCondition)).To(BeFalse())

	// Two resources that write the same file differ from what was deployed as soon as it is deployed.
	fought := append(resource("first", "", "one"), resource("second", ", dependsOn: [\"${first}\"]", "two")...)
	second := p.publish(p.yaml(program(fought...)...))
	halted := p.awaitRollout(autov1alpha1.RolloutHaltedReason, second.Revision)
	p.Expect(halted.Status.Failing).To(ConsistOf(HaveField("Message", ContainSubstring("Sleep first (content)"))))
	p.Expect(conditions.IsStalled(halted)).To(BeTrue())
	p.AwaitStack("canary", ready(second.Digest))
	p.AwaitStack("east", ready(first.Digest))

	agreed := append(resource("first", "", "three"), resource("second", ", dependsOn: [\"${first}\"]", "three")...)
	third := p.publish(p.yaml(program(agreed...)...))
	p.awaitRollout(autov1alpha1.RolloutCompleteReason, third.Revision)
	p.AwaitStack("east", ready(third.Digest))
}
