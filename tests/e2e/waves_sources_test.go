package e2e_test

import (
	"testing"
	"time"

	. "github.com/onsi/gomega"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/fluxcd/pkg/apis/meta"
	sourcev1 "github.com/fluxcd/source-controller/api/v1"

	autov1alpha1 "github.com/stack-controller/stack-controller/api/auto/v1alpha1"
	pulumiv1 "github.com/stack-controller/stack-controller/api/pulumi/v1"
	"github.com/stack-controller/stack-controller/tests/framework/gitserver"
	"github.com/stack-controller/stack-controller/tests/framework/systemtest"
)

// gitSource returns a GitRepository that is fetched only on request.
func (p *fixture) gitSource(name, url string) *sourcev1.GitRepository {
	return &sourcev1.GitRepository{ObjectMeta: p.Meta(name), Spec: sourcev1.GitRepositorySpec{
		URL: url, Interval: metav1.Duration{Duration: time.Hour}, Reference: &sourcev1.GitRepositoryRef{Branch: gitserver.Branch}}}
}

// fetchSource asks for a fetch of the GitRepository.
func (p *fixture) fetchSource(name string) {
	p.Helper()
	p.Eventually(func() error {
		object := &sourcev1.GitRepository{}
		p.Get(name, object)
		metav1.SetMetaDataAnnotation(&object.ObjectMeta, meta.ReconcileRequestAnnotation, time.Now().Format(time.RFC3339Nano))
		return system.Client.Update(p.Context(), object)
	}).Should(Succeed())
}

// Several sources of one repository see a commit at different times.
func TestStackWhoseSourceIsBehindGetsItsTurnWhenThatHasTheCommit(t *testing.T) {
	p := begin(t, "waves-sources")
	repository, first := p.repository(p.returning(1))
	revision := func(sha string) string { return gitserver.Branch + "@sha1:" + sha }
	rollout, stacks := p.fleet("canary", "east", "stranger")
	rollout.Spec.SourceRef = autov1alpha1.RolloutSource{Kind: sourcev1.GitRepositoryKind, Name: "platform"}
	for i, name := range []string{"platform", "own", "other"} {
		stacks[i].Spec.FluxSource.SourceRef = pulumiv1.FluxSourceReference{APIVersion: sourcev1.GroupVersion.String(), Kind: sourcev1.GitRepositoryKind, Name: name}
	}
	other, _, err := system.Git.Create(p.Name+"-other", p.returning(0))
	p.Succeed(err)
	p.enter(p.gitSource("platform", repository.URL), p.gitSource("own", repository.URL), p.gitSource("other", other.URL), rollout, stacks[0], stacks[1], stacks[2])
	p.Eventually(func() string { return p.awaitRollout(autov1alpha1.RolloutCompleteReason, revision(first)).Status.Done }).Should(Equal("2/2"), "the others may join later")
	p.Eventually(func() []autov1alpha1.RolloutFailure { return p.rollout().Status.Refused }).Should(ConsistOf(And(
		HaveField("Stack", p.Name+"/stranger"), HaveField("Message", And(ContainSubstring(p.Name+"-other"), ContainSubstring("and spec.sourceRef of"))))))

	second := p.commit(repository, p.returning(2))
	p.fetchSource("platform")
	p.AwaitStack("canary", systemtest.Showing("2"))
	p.awaitRollout(autov1alpha1.RolloutProgressingReason, revision(second))
	p.AwaitStack("east", systemtest.Showing("1"))
	p.Eventually(func() []autov1alpha1.RolloutTurn { return p.rollout().Status.Turns }).Should(BeEmpty(), "it would take a place")
	p.fetchSource("own")
	p.AwaitStack("east", systemtest.Showing("2"))
	p.awaitRollout(autov1alpha1.RolloutCompleteReason, revision(second))

	// One that is ahead waits for the source of the StackRollout.
	third := p.commit(repository, p.returning(3))
	p.fetchSource("own")
	p.Eventually(func() string {
		object := &sourcev1.GitRepository{}
		p.Get("own", object)
		return object.Status.Artifact.Revision
	}).Should(Equal(revision(third)))
	p.Consistently(func() []string { return p.order(revision(third)) }).WithTimeout(2 * time.Second).Should(BeEmpty())
	p.fetchSource("platform")
	p.awaitRollout(autov1alpha1.RolloutCompleteReason, revision(third))
	p.Expect(p.order(revision(third))).To(Equal([]string{"canary", "east"}))
}

// That an update succeeded does not say that what it deployed works.
func TestCheckOfAWaveStopsTheOthers(t *testing.T) {
	p := begin(t, "waves-check")
	rollout, stacks := p.fleet("canary", "east")
	rollout.Spec.Waves[0].Check = "stack.status.outputs.x != 2"
	p.enter(&sourcev1.ExternalArtifact{ObjectMeta: p.Meta(p.Name)}, rollout, stacks[0], stacks[1])
	first := p.publish(p.returning(1))
	p.awaitRollout(autov1alpha1.RolloutCompleteReason, first.Revision)
	second := p.publish(p.returning(2))
	halted := p.awaitRollout(autov1alpha1.RolloutHaltedReason, second.Revision)
	p.Expect(halted.Status.Failing).To(ConsistOf(autov1alpha1.RolloutFailure{Stack: p.Name + "/canary", Message: "check is false"}))
	p.AwaitStack("canary", ready(second.Digest))
	p.AwaitStack("east", ready(first.Digest))
	third := p.publish(p.returning(3))
	p.awaitRollout(autov1alpha1.RolloutCompleteReason, third.Revision)
	p.AwaitStack("east", ready(third.Digest))
}
