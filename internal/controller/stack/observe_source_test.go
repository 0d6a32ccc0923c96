package stack

import (
	"testing"

	. "github.com/onsi/gomega"

	pulumiv1 "github.com/stack-controller/stack-controller/api/pulumi/v1"
	"github.com/stack-controller/stack-controller/internal/source"
)

func TestVerifiedDigestIsForgottenOnlyWhenItsSourceRefusesIt(t *testing.T) {
	g := NewWithT(t)
	o := &observation{stack: &pulumiv1.Stack{}}
	after := func(change func()) string {
		o.verified, o.artifact, o.sourceProblem = false, nil, nil
		change()
		followVerification(o)
		return o.stack.Status.VerifiedDigest
	}
	offered := func() { o.artifact = &source.Artifact{Digest: "sha256:a"} }
	g.Expect(after(offered)).To(BeEmpty(), "the Stack does not require it")
	g.Expect(after(func() { offered(); o.verified = true })).To(Equal("sha256:a"))
	g.Expect(after(offered)).To(Equal("sha256:a"), "the source looks at the next revision")
	g.Expect(after(func() { o.sourceProblem = &source.Problem{Reason: pulumiv1.SourceNotVerifiedReason} })).To(Equal("sha256:a"))
	g.Expect(after(func() { o.sourceProblem = &source.Problem{Reason: pulumiv1.SourceNotVerifiedReason, Revoked: true} })).To(BeEmpty())
	g.Expect(after(offered)).To(BeEmpty(), "the source looks at another revision")
}
