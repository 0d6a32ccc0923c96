package program_test

import (
	"testing"
	"time"

	. "github.com/onsi/gomega"
	"github.com/opencontainers/go-digest"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/watch"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/fluxcd/pkg/apis/meta"
	"github.com/fluxcd/pkg/runtime/conditions"

	pulumiv1 "github.com/stack-controller/stack-controller/api/pulumi/v1"
	"github.com/stack-controller/stack-controller/internal/source/render"
)

// secretCanary stands for a secret that a user wrote into a program.
const secretCanary = "canary-3f9a"

func TestProgramThatNoStackUsesGetsItsArtifact(t *testing.T) {
	s := newFixture(t)
	s.startController(nil)
	s.apply("app", "{resources: {a: {type: 'test:index:Sleep', options: {retainOnDelete: true}}}}")
	found := s.await("app")
	s.expectReady(found)

	tarball, err := render.Program(found)
	s.Expect(err).NotTo(HaveOccurred())
	artifact := found.Status.Artifact
	s.Expect(artifact.Digest).To(Equal(digest.FromBytes(tarball).String()))
	s.Expect(artifact.Size).To(HaveValue(BeEquivalentTo(len(tarball))))
	s.Expect(artifact.Revision).To(Equal("1"))
	s.Expect(artifact.URL).To(Equal("program://" + s.namespace + "/app/1"))
	s.Expect(artifact.Path).To(Equal(s.namespace + "/app/1"))
	s.Expect(artifact.LastUpdateTime.Time).To(BeTemporally("~", time.Now(), time.Minute))
	s.Eventually(func() []string { return s.events("app", "NewArtifact") }).Should(ConsistOf("revision 1, " + artifact.Digest))
}

func TestEditOfAProgramIsANewRevision(t *testing.T) {
	s := newFixture(t)
	s.startController(nil)
	s.apply("app", "{outputs: {x: 1}}")
	first := s.await("app")
	s.apply("app", "{outputs: {x: 2}}")
	second := s.await("app")
	s.expectReady(second)
	s.Expect(second.Status.Artifact.Revision).To(Equal("2"))
	s.Expect(second.Status.Artifact.Digest).NotTo(Equal(first.Status.Artifact.Digest))

	s.apply("app", "{outputs: {x: 1}}")
	third := s.await("app")
	s.Expect(third.Status.Artifact.Revision).To(Equal("3"))
	s.Expect(third.Status.Artifact.Digest).To(Equal(first.Status.Artifact.Digest), "what is taken back is what it was")
}

func TestProgramThatCannotBeRenderedIsReportedAndRecoversWhenItIsMended(t *testing.T) {
	s := newFixture(t)
	s.startController(nil)
	s.apply("app", "{outputs: {x: 1}}")
	s.expectReady(s.await("app"))

	s.apply("app", "{runtime: go, outputs: {x: "+secretCanary+"}}")
	found := s.await("app")
	for _, condition := range []string{meta.ReadyCondition, meta.StalledCondition} {
		s.Expect(conditions.GetReason(found, condition)).To(Equal(pulumiv1.ProgramInvalidReason))
		s.Expect(conditions.GetMessage(found, condition)).To(Equal("program.runtime: cannot be set: the runtime of a Program is yaml"))
	}
	s.Expect(conditions.IsStalled(found)).To(BeTrue())
	s.Expect(found.Status.Artifact).To(BeNil())
	s.Eventually(func() []string { return s.events("app", pulumiv1.ProgramInvalidReason) }).Should(ConsistOf(ContainSubstring("program.runtime")))
	s.Expect(s.logged.String()).NotTo(ContainSubstring(secretCanary))

	s.apply("app", "{resources: {a: {type: t, options: {unheardOf: true}}}}")
	found = s.await("app")
	s.expectReady(found)
	s.Expect(found.Status.Artifact.Revision).To(Equal("3"))
}

func TestStatusIsWrittenOnceForEachChange(t *testing.T) {
	s := newFixture(t)
	stop := s.startController(nil)
	watcher, err := s.client.Watch(t.Context(), &pulumiv1.ProgramList{}, client.InNamespace(s.namespace))
	s.Expect(err).NotTo(HaveOccurred())
	defer watcher.Stop()
	s.apply("app", "{outputs: {x: 1}}")
	before := s.await("app")
	stop()

	// A second controller has nothing to do for "app". The status of "later" shows that it has reconciled.
	s.startController(nil)
	s.apply("later", "{}")
	s.await("later")
	s.Expect(s.get("app").ResourceVersion).To(Equal(before.ResourceVersion))
	seen := map[string]int{}
	for seen["later"] < 2 {
		var event watch.Event
		s.Eventually(watcher.ResultChan()).Should(Receive(&event))
		seen[event.Object.(*pulumiv1.Program).Name]++
	}
	s.Expect(seen["app"]).To(Equal(2), "created, and its status written")
}

func TestShardWritesToItsOwnPrograms(t *testing.T) {
	s := newFixture(t)
	selector, err := labels.Parse("shard=one")
	s.Expect(err).NotTo(HaveOccurred())
	s.startController(selector)
	s.apply("other", "{}", "two")
	s.apply("own", "{}", "one")
	s.expectReady(s.await("own"))
	s.expectCounted(1)
	s.Expect(s.get("other").Status.ObservedGeneration).To(BeEquivalentTo(-1))

	s.apply("other", "{}", "one")
	s.expectReady(s.await("other"))
	s.expectCounted(2)
	s.apply("other", "{}", "two")
	s.expectCounted(1)
	artifact, err := s.programs.Resolve(t.Context(), stackOf(s.namespace, "other"), false)
	s.Expect(err).NotTo(HaveOccurred(), "a Program of another shard can be used")
	s.Expect(artifact.Origin.Program.Name).To(Equal("other"))
}

func TestProgramOfAnyNameIsNotLookedAtBeforeItsTime(t *testing.T) {
	s := newFixture(t)
	s.apply("app", "{}")
	s.Expect(s.get("app").Status.ObservedGeneration).To(BeEquivalentTo(-1))
	s.startController(nil)
	s.expectReady(s.await("app"))
	s.expectCounted(1)
	s.Expect(s.client.Delete(t.Context(), s.get("app"))).To(Succeed())
	s.Eventually(func() error {
		return s.client.Get(t.Context(), client.ObjectKey{Namespace: s.namespace, Name: "app"}, &pulumiv1.Program{})
	}).ShouldNot(Succeed(), "nothing holds a Program back")
	s.expectCounted(0)
}
