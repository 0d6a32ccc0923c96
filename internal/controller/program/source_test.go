package program_test

import (
	"bytes"
	"context"
	"errors"
	"io"
	"testing"

	. "github.com/onsi/gomega"
	"github.com/opencontainers/go-digest"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/util/workqueue"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	pulumiv1 "github.com/stack-controller/stack-controller/api/pulumi/v1"
	"github.com/stack-controller/stack-controller/internal/source"
	"github.com/stack-controller/stack-controller/internal/source/artifact"
)

func stackOf(namespace, program string) *pulumiv1.Stack {
	return &pulumiv1.Stack{
		Namespace: namespace, Name: "stack",
		Spec: pulumiv1.StackSpec{ProgramRef: &pulumiv1.ProgramReference{Name: program}},
	}
}

// problem returns why a Stack with the Program has no artifact, according to the cache.
func (s *fixture) problem(g Gomega, program string) *source.Problem {
	_, err := s.programs.Resolve(s.t.Context(), stackOf(s.namespace, program), false)
	var problem *source.Problem
	g.Expect(errors.As(err, &problem)).To(BeTrue(), "%v", err)
	g.Expect(problem.Watched).To(BeTrue())
	return problem
}

func TestStackSaysWhyItHasNoProgram(t *testing.T) {
	s := newFixture(t)
	stop := s.startController(nil)
	s.Expect(*s.problem(s, "app")).To(Equal(source.Problem{
		Reason: pulumiv1.SourceNotFoundReason, Message: "Program " + s.namespace + "/app does not exist", Watched: true,
	}))

	s.apply("app", "{runtime: go}")
	s.await("app")
	s.Eventually(func(g Gomega) {
		problem := s.problem(g, "app")
		g.Expect(problem.Reason).To(Equal(pulumiv1.SourceNotReadyReason))
		g.Expect(problem.Message).To(HavePrefix("Program " + s.namespace + "/app is not ready: program.runtime: cannot be set"))
		g.Expect(problem.Pending).To(BeFalse())
	}).Should(Succeed())

	stop()
	s.apply("app", "{outputs: {x: 1}}")
	_, err := s.programs.Resolve(t.Context(), stackOf(s.namespace, "app"), true)
	var problem *source.Problem
	s.Expect(errors.As(err, &problem)).To(BeTrue())
	s.Expect(problem.Pending).To(BeTrue(), "nobody has looked at this generation")
}

func TestArtifactOfAProgramIsMadeUntilItChanges(t *testing.T) {
	s := newFixture(t)
	s.startController(nil)
	s.apply("app", "{outputs: {x: 1}}")
	ready := s.await("app")
	found, err := s.programs.Resolve(t.Context(), stackOf(s.namespace, "app"), true)
	s.Expect(err).NotTo(HaveOccurred())
	s.Expect(found.Revision).To(Equal("1"))
	s.Expect(found.Digest).To(Equal(ready.Status.Artifact.Digest))
	s.Expect(found.Commit()).To(Equal(found.Digest))
	s.Expect(found.Origin.Program.Name).To(Equal("app"))
	s.Expect(found.Published).To(BeTemporally("==", ready.Status.Artifact.LastUpdateTime.Time))

	var tarball bytes.Buffer
	s.Expect(found.Maker.Make(t.Context(), &tarball)).To(Succeed())
	s.Expect(digest.FromBytes(tarball.Bytes()).String()).To(Equal(found.Digest))
	store, err := artifact.NewStore(artifact.Options{Dir: t.TempDir()})
	s.Expect(err).NotTo(HaveOccurred())
	s.Expect(store.Fetch(t.Context(), found.Reference)).Error().NotTo(HaveOccurred(), "the store takes what is made")

	s.apply("app", "{outputs: {x: 2}}")
	s.expectGone(found.Reference, "has been changed since")
	s.apply("app", "{runtime: python}")
	s.expectGone(found.Reference, "program.runtime: cannot be set")
	s.apply("app", "{outputs: {x: 1}}")
	again, err := s.programs.Reference(s.namespace, found.UpdateSource(""))
	s.Expect(err).NotTo(HaveOccurred())
	s.Expect(again.Maker.Make(t.Context(), io.Discard)).To(Succeed(), "it is what it was")
	s.Expect(s.client.Delete(t.Context(), s.get("app"))).To(Succeed())
	s.expectGone(found.Reference, "does not exist")
}

// behind is a cache that has an earlier Program.
type behind struct {
	client.Client
	program *pulumiv1.Program
}

func (b behind) Get(_ context.Context, _ client.ObjectKey, object client.Object, _ ...client.GetOption) error {
	b.program.DeepCopyInto(object.(*pulumiv1.Program))
	return nil
}

func TestStackIsNotRolledBackToAnEarlierProgram(t *testing.T) {
	s := newFixture(t)
	s.startController(nil)
	s.apply("app", "{outputs: {x: 1}}")
	first := s.await("app")
	s.apply("app", "{outputs: {x: 2}}")
	second := s.await("app")
	sources := &source.Set{Sources: []source.Source{&source.Programs{Client: behind{s.client, first}, APIReader: s.client}}}
	stack := stackOf(s.namespace, "app")
	offered := func() string {
		found, err := sources.Resolve(t.Context(), stack)
		s.Expect(err).NotTo(HaveOccurred())
		return found.Digest
	}
	stack.Status.LastUpdate = &pulumiv1.StackUpdateStatus{LastAttemptedCommit: second.Status.Artifact.Digest, LastResyncTime: metav1.Now()}
	s.Expect(offered()).To(Equal(second.Status.Artifact.Digest))
	stack.Status.LastUpdate.LastAttemptedCommit = first.Status.Artifact.Digest
	s.Expect(offered()).To(Equal(first.Status.Artifact.Digest), "the cache is asked as long as it may be right")
}

func (s *fixture) expectGone(reference artifact.Reference, why string) {
	s.t.Helper()
	err := reference.Maker.Make(s.t.Context(), io.Discard)
	var fetchError *artifact.FetchError
	s.Expect(errors.As(err, &fetchError)).To(BeTrue(), "%v", err)
	s.Expect(fetchError.Kind).To(Equal(artifact.NotFound))
	s.Expect(err).To(MatchError(ContainSubstring(why)))
}

func TestProgramOfAnotherNamespaceIsNotUsed(t *testing.T) {
	s, other := newFixture(t), newFixture(t)
	s.startController(nil)
	other.startController(nil)
	other.apply("app", "{}")
	other.await("app")
	s.Expect(s.problem(s, "app").Reason).To(Equal(pulumiv1.SourceNotFoundReason))
}

func TestStacksAreWokenWhenAProgramOffersSomethingElse(t *testing.T) {
	s := newFixture(t)
	queue := workqueue.NewTypedRateLimitingQueue(workqueue.DefaultTypedControllerRateLimiter[reconcile.Request]())
	defer queue.ShutDown()
	s.startController(nil, func(mgr ctrl.Manager) {
		watch := s.programs.Watch(mgr.GetCache(), func(_ context.Context, key string) []reconcile.Request {
			return []reconcile.Request{{Name: key}}
		})
		s.Expect(watch.Start(t.Context(), queue)).To(Succeed())
	})
	woken := func() string {
		request, _ := queue.Get()
		queue.Done(request)
		return request.Name
	}
	key := s.programs.Key(stackOf(s.namespace, "app"))
	s.apply("app", "{}")
	s.Expect(woken()).To(Equal(key))
	labelled := s.await("app")
	s.Eventually(queue.Len).Should(BeNumerically(">", 0), "its status is new")
	s.Expect(woken()).To(Equal(key))
	labelled.Labels = map[string]string{"a": "b"}
	s.Expect(s.client.Update(t.Context(), labelled)).To(Succeed())
	s.Consistently(queue.Len, "200ms").Should(BeZero())
	s.apply("app", "{outputs: {x: 1}}")
	s.Expect(woken()).To(Equal(key))
}
