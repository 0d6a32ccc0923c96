package e2e_test

import (
	"fmt"
	"testing"
	"time"

	. "github.com/onsi/gomega"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/fluxcd/pkg/apis/meta"
	sourcev1 "github.com/fluxcd/source-controller/api/v1"

	autov1alpha1 "github.com/stack-controller/stack-controller/api/auto/v1alpha1"
	pulumiv1 "github.com/stack-controller/stack-controller/api/pulumi/v1"
	"github.com/stack-controller/stack-controller/tests/framework/gitserver"
	"github.com/stack-controller/stack-controller/tests/framework/suite"
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
	suite.Long(t, "sources of one repository that differ; the tests of internal/controller/rollout prove who gets a turn")
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

// Each of them sees a commit at a time of its own, and a Stack whose source has not seen it takes no place from the others.
func TestHundredSourcesOfOneRepositorySeeACommitAtDifferentTimes(t *testing.T) {
	suite.Long(t, "a hundred Stacks are updated twice")
	p := alone(t, "waves-hundred")
	repository, first := p.repository(p.returning(1))
	var names, canaries []string
	for i := range 100 {
		names = append(names, fmt.Sprintf("stack-%02d", i))
	}
	canaries = names[:10]
	rollout, stacks := p.fleet(names...)
	rollout.Spec.MaxConcurrent = new(intstr.FromInt32(5))
	rollout.Spec.SourceRef = autov1alpha1.RolloutSource{Kind: sourcev1.GitRepositoryKind, Name: names[0]}
	objects := []client.Object{rollout}
	for i, stack := range stacks {
		if i < len(canaries) {
			stack.Labels = map[string]string{"tier": "canary"}
		}
		source := p.gitSource(stack.Name, repository.URL)
		source.Spec.Interval.Duration = time.Duration(5+i/4) * time.Second
		stack.Spec.FluxSource.SourceRef = pulumiv1.FluxSourceReference{APIVersion: sourcev1.GroupVersion.String(), Kind: sourcev1.GitRepositoryKind, Name: source.Name}
		objects = append(objects, source, stack)
	}
	p.enter(objects...)
	expect := func(sha string) {
		t.Helper()
		revision := gitserver.Branch + "@sha1:" + sha
		p.Eventually(func(g Gomega) {
			status := p.rollout().Status
			p.Expect(len(status.Turns)).To(BeNumerically("<=", 5))
			p.Expect(status.Failing).To(BeEmpty())
			g.Expect(status.Target).To(HaveValue(HaveField("Revision", revision)))
			g.Expect(status.Done).To(Equal("100/100"))
		}).WithTimeout(5 * time.Minute).Should(Succeed())
		order := p.order(revision)
		p.Expect(order).To(ConsistOf(names), "each is updated once")
		p.Expect(order[:len(canaries)]).To(ConsistOf(canaries))
	}
	expect(first)
	expect(p.commit(repository, p.returning(2)))
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
