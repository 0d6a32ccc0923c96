package sources_test

import (
	"testing"

	. "github.com/onsi/gomega"

	sourcev1 "github.com/fluxcd/source-controller/api/v1"

	pulumiv1 "github.com/stack-controller/stack-controller/api/pulumi/v1"
	"github.com/stack-controller/stack-controller/tests/stage/scene"
	"github.com/stack-controller/stack-controller/tests/statuscheck"
)

func TestStackFollowsWhatAnotherControllerPublishes(t *testing.T) {
	p := begin(t, "external")
	artifacts := scene.ServeArtifacts()
	t.Cleanup(artifacts.Close)
	p.follow(sourcev1.ExternalArtifactKind, &sourcev1.ExternalArtifact{})
	p.Await(statuscheck.NotReady(pulumiv1.ArtifactNotFoundReason))
	p.Offer(artifacts.Put("v1", scene.Packed(scene.Returning(p.Name, 1))))
	p.Await(deployed("v1"))

	second := artifacts.Put("v2", scene.Packed(scene.Returning(p.Name, 2)))
	wrong := second.DeepCopy()
	wrong.Digest = scene.DigestOf([]byte("something else"))
	p.Offer(wrong)
	stack := p.Await(statuscheck.NotReady(pulumiv1.ArtifactDigestMismatchReason))
	p.Expect(statuscheck.Message(stack)).To(And(ContainSubstring(wrong.Digest), Not(ContainSubstring(second.Digest))),
		"the digest of what is there is in the log only")
	p.Expect(scene.Output(stack, "x")).To(Equal("1"), "what does not match its digest is never run")

	second.Revision = "v3"
	p.Offer(second)
	p.Expect(scene.Output(p.Await(deployed("v3")), "x")).To(Equal("2"))
}
