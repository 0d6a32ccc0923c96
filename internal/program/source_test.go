package program_test

import (
	"errors"
	"io"
	"testing"

	. "github.com/onsi/gomega"
	"github.com/opencontainers/go-digest"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	pulumiv1 "github.com/stack-controller/stack-controller/api/pulumi/v1"
	"github.com/stack-controller/stack-controller/internal/artifact"
	"github.com/stack-controller/stack-controller/internal/source"
)

func stackOf(namespace, program string) *pulumiv1.Stack {
	return &pulumiv1.Stack{
		ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: "stack"},
		Spec:       pulumiv1.StackSpec{ProgramRef: &pulumiv1.ProgramReference{Name: program}},
	}
}

// problem returns why the Stack has no artifact, as the cache has it.
func (s *stage) problem(g Gomega, program string) *source.Problem {
	_, err := s.programs.Resolve(s.t.Context(), stackOf(s.namespace, program))
	var problem *source.Problem
	g.Expect(errors.As(err, &problem)).To(BeTrue(), "%v", err)
	g.Expect(problem.Watched).To(BeTrue())
	return problem
}

func TestStackIsToldWhyItHasNoProgram(t *testing.T) {
	s := newStage(t)
	stop := s.startController(nil)
	s.Expect(*s.problem(s, "app")).To(Equal(source.Problem{
		Reason: pulumiv1.SourceNotFoundReason, Message: "Program " + s.namespace + "/app does not exist", Watched: true,
	}))

	s.apply("app", "{zebra: 1}")
	s.await("app")
	s.Eventually(func(g Gomega) {
		problem := s.problem(g, "app")
		g.Expect(problem.Reason).To(Equal(pulumiv1.SourceNotReadyReason))
		g.Expect(problem.Message).To(Equal("Program " + s.namespace + "/app is not ready: program.zebra: unknown field"))
		g.Expect(problem.Pending).To(BeFalse())
	}).Should(Succeed())

	stop()
	s.apply("app", "{outputs: {x: 1}}")
	_, err := s.programs.Refresh(t.Context(), stackOf(s.namespace, "app"))
	var problem *source.Problem
	s.Expect(errors.As(err, &problem)).To(BeTrue())
	s.Expect(problem.Pending).To(BeTrue(), "nobody has looked at this generation")
}

func TestArtifactOfAProgramIsMadeUntilItChanges(t *testing.T) {
	s := newStage(t)
	s.startController(nil)
	s.apply("app", "{outputs: {x: 1}}")
	ready := s.await("app")
	found, err := s.programs.Refresh(t.Context(), stackOf(s.namespace, "app"))
	s.Expect(err).NotTo(HaveOccurred())
	s.Expect(found.Revision).To(Equal("1"))
	s.Expect(found.Digest).To(Equal(ready.Status.Artifact.Digest))
	s.Expect(found.Commit()).To(Equal(found.Digest))
	s.Expect(found.Program.Name).To(Equal("app"))
	s.Expect(found.Published).To(BeTemporally("==", ready.Status.Artifact.LastUpdateTime.Time))

	content, err := found.Maker.Make(t.Context())
	s.Expect(err).NotTo(HaveOccurred())
	tarball, err := io.ReadAll(content)
	s.Expect(err).NotTo(HaveOccurred())
	s.Expect(digest.FromBytes(tarball).String()).To(Equal(found.Digest))
	store, err := artifact.NewStore(artifact.Options{Dir: t.TempDir()})
	s.Expect(err).NotTo(HaveOccurred())
	s.Expect(store.Fetch(t.Context(), found.Reference)).Error().NotTo(HaveOccurred(), "the store takes what is made")

	s.apply("app", "{outputs: {x: 2}}")
	s.expectGone(found.Reference, "has been changed since")
	s.apply("app", "{zebra: 2}")
	s.expectGone(found.Reference, "program.zebra: unknown field")
	s.apply("app", "{outputs: {x: 1}}")
	_, err = s.programs.Reference(s.namespace, "app", found.Digest).Maker.Make(t.Context())
	s.Expect(err).NotTo(HaveOccurred(), "it is what it was")
	s.Expect(s.client.Delete(t.Context(), s.get("app"))).To(Succeed())
	s.expectGone(found.Reference, "does not exist")
}

func (s *stage) expectGone(reference artifact.Reference, why string) {
	s.t.Helper()
	_, err := reference.Maker.Make(s.t.Context())
	var fetchError *artifact.FetchError
	s.Expect(errors.As(err, &fetchError)).To(BeTrue(), "%v", err)
	s.Expect(fetchError.Kind).To(Equal(artifact.NotFound))
	s.Expect(err).To(MatchError(ContainSubstring(why)))
}

func TestProgramOfAnotherNamespaceIsNotUsed(t *testing.T) {
	s, other := newStage(t), newStage(t)
	s.startController(nil)
	other.startController(nil)
	other.apply("app", "{}")
	other.await("app")
	s.Expect(s.problem(s, "app").Reason).To(Equal(pulumiv1.SourceNotFoundReason))
}

func TestStacksLookAgainWhenAProgramOffersSomethingElse(t *testing.T) {
	s := newStage(t)
	s.startController(nil)
	s.apply("app", "{}")
	before := s.await("app")
	labelled := before.DeepCopy()
	labelled.Labels = map[string]string{"a": "b"}
	s.Expect(source.ProgramChanged(before, labelled)).To(BeFalse())
	s.apply("app", "{outputs: {x: 1}}")
	s.Expect(source.ProgramChanged(before, s.await("app"))).To(BeTrue())
}
