package stack

import (
	"context"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	. "github.com/onsi/gomega"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/fluxcd/pkg/runtime/conditions"

	autov1alpha1 "github.com/stack-controller/stack-controller/api/auto/v1alpha1"
	pulumiv1 "github.com/stack-controller/stack-controller/api/pulumi/v1"
	"github.com/stack-controller/stack-controller/internal/source"
	"github.com/stack-controller/stack-controller/tests/framework/gitserver"
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

func TestWhatTheStackHasStaysVerifiedAsLongAsItIsInUse(t *testing.T) {
	g, o := NewWithT(t), &observation{stack: &pulumiv1.Stack{}, verified: true}
	status := &o.stack.Status
	offered := func(digest string) []string {
		o.artifact = &source.Artifact{Digest: digest}
		followVerification(o)
		g.Expect(status.VerifiedDigest).To(Equal(digest))
		return status.EarlierVerifiedDigests
	}
	g.Expect(offered("sha256:a")).To(BeEmpty())
	g.Expect(offered("sha256:b")).To(BeEmpty(), "nothing was run")
	status.CurrentUpdate = &pulumiv1.CurrentStackUpdate{Commit: "sha256:b"}
	g.Expect(offered("sha256:c")).To(ConsistOf("sha256:b"), "it runs")
	status.LastUpdate, status.CurrentUpdate = &pulumiv1.StackUpdateStatus{LastAttemptedCommit: "sha256:b"}, &pulumiv1.CurrentStackUpdate{Commit: "sha256:c"}
	g.Expect(offered("sha256:d")).To(ConsistOf("sha256:b", "sha256:c"), "one has ended, and one runs")
	g.Expect(offered("sha256:e")).To(ConsistOf("sha256:b", "sha256:c"), "what was offered in between is forgotten")
	status.LastUpdate.LastAttemptedCommit, status.CurrentUpdate = "sha256:unverified", nil
	g.Expect(offered("sha256:e")).To(BeEmpty(), "that something was run says nothing about it")

	status.LastUpdate.LastAttemptedCommit = "sha256:e"
	g.Expect(offered("sha256:f")).To(ConsistOf("sha256:e"))
	g.Expect(offered("sha256:e")).To(BeEmpty(), "it is offered again")
	g.Expect(offered("sha256:f")).To(ConsistOf("sha256:e"))
	o.verified, o.sourceProblem = false, &source.Problem{Reason: pulumiv1.SourceNotVerifiedReason, Revoked: true}
	followVerification(o)
	g.Expect(status.VerifiedDigests()).To(HaveEach(BeEmpty()))
}

// Another version of the controller may pack a commit into other bytes.
func TestUpdateThatWaitsOverAnUpgradeIsMadeAgainWithTheCommitAsItIsPackedNow(t *testing.T) {
	s := newFixture(t)
	server, err := gitserver.Start(t.TempDir())
	s.Expect(err).NotTo(HaveOccurred())
	t.Cleanup(server.Stop)
	repository, sha, err := server.Create("app", gitserver.Files{"Pulumi.yaml": "name: p"})
	s.Expect(err).NotTo(HaveOccurred())
	stack := s.newStack(func(stack *pulumiv1.Stack) {
		stack.Spec.ProjectRepo, stack.Spec.Branch = repository.URL, gitserver.Branch
	})
	update := s.awaitUnfinishedUpdate()
	packedNow := update.Spec.Source.Digest
	before := update.DeepCopy()
	update.Spec.Source.Digest = "sha256:" + strings.Repeat("0", 64)
	s.Expect(s.client.Patch(t.Context(), update, client.MergeFrom(before))).To(Succeed())
	s.mark(update, func(update *autov1alpha1.Update) {
		conditions.MarkFalse(update, autov1alpha1.UpdateProgressing, pulumiv1.ArtifactDigestMismatchReason, "digest mismatch")
	})
	s.endWithdrawn(stack, update, true)
	s.Eventually(func() *autov1alpha1.Update { return s.awaitUnfinishedUpdate() }).ShouldNot(HaveField("UID", update.UID))
	again := s.awaitUnfinishedUpdate().Spec.Source
	s.Expect(again.Git.Ref).To(Equal(sha))
	s.Expect(again.Digest).To(Equal(packedNow))
}

// countedSource is a source of Flux that offers one artifact, and counts who asks for it.
type countedSource struct {
	*source.Flux
	offered source.Artifact
	asked   atomic.Int32
}

func (c *countedSource) Resolve(context.Context, *pulumiv1.Stack, bool) (*source.Artifact, error) {
	c.asked.Add(1)
	return new(c.offered), nil
}

func TestSourceThatIsNotWatchedIsAskedAgainAndAgain(t *testing.T) {
	for watched, enough := range map[bool]int32{false: 20, true: 1} {
		offers := &countedSource{Flux: &source.Flux{}, offered: source.Artifact{Digest: "sha256:a", Watched: watched}}
		s := newFixture(t, func(r *Reconciler) {
			r.Sources, r.WaitInterval = &source.Set{Sources: []source.Source{offers}}, 10*time.Millisecond
		})
		s.Expect(s.client.Create(t.Context(), &pulumiv1.Stack{Namespace: s.namespace, Name: "app", Spec: pulumiv1.StackSpec{Stack: "dev", Suspend: true,
			FluxSource: &pulumiv1.FluxSource{SourceRef: pulumiv1.FluxSourceReference{Kind: "GitRepository", Name: "app"}}}})).To(Succeed())
		s.Eventually(offers.asked.Load).Should(BeNumerically(">=", enough))
		if watched {
			s.Consistently(offers.asked.Load, "2s").Should(BeNumerically("<", 10), "its changes wake the Stack")
		}
	}
}
