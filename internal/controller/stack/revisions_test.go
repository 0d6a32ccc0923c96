package stack

import (
	"context"
	"testing"

	. "github.com/onsi/gomega"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/fluxcd/pkg/apis/meta"
	"github.com/fluxcd/pkg/runtime/conditions"

	autov1alpha1 "github.com/stack-controller/stack-controller/api/auto/v1alpha1"
	pulumiv1 "github.com/stack-controller/stack-controller/api/pulumi/v1"
	"github.com/stack-controller/stack-controller/internal/source"
)

// oneStack is an API server that always answers with the same Stack.
type oneStack struct {
	client.Client
	stack *pulumiv1.Stack
}

func (c oneStack) Get(_ context.Context, _ client.ObjectKey, into client.Object, _ ...client.GetOption) error {
	c.stack.DeepCopyInto(into.(*pulumiv1.Stack))
	return nil
}

// A preview that covers a revision with the same content deploys nothing.
func TestRevisionIsAppliedOnlyByWhatDeploys(t *testing.T) {
	for kind, want := range map[autov1alpha1.UpdateType]string{autov1alpha1.UpdateTypePreview: "main@sha1:old", autov1alpha1.UpdateTypeUp: "main@sha1:new"} {
		o := &observation{stack: &pulumiv1.Stack{}, artifact: &source.Artifact{Digest: "sha256:new", Revision: "main@sha1:new"}}
		o.stack.Status.LastAppliedRevision = "main@sha1:old"
		o.stack.Status.LastUpdate = &pulumiv1.StackUpdateStatus{Type: kind, State: pulumiv1.StackUpdateSucceeded}
		acceptInputs(o)
		g := NewWithT(t)
		g.Expect(o.stack.Status.LastAppliedRevision).To(Equal(want))
		g.Expect(o.stack.Status.LastAttemptedRevision).To(Equal("main@sha1:new"))
	}
}

func TestDependencyWithTheSameSourceComesFirstWithEachRevision(t *testing.T) {
	flux := func(change func(*pulumiv1.Stack)) *pulumiv1.Stack {
		stack := &pulumiv1.Stack{Namespace: "default"}
		stack.Spec.FluxSource = &pulumiv1.FluxSource{SourceRef: pulumiv1.FluxSourceReference{Kind: "GitRepository", Name: "fleet"}}
		stack.Status.LastUpdate = &pulumiv1.StackUpdateStatus{State: pulumiv1.StackUpdateSucceeded, LastAttemptedCommit: "sha256:old"}
		change(stack)
		return stack
	}
	dependsOn := dependency{name: types.NamespacedName{Namespace: "default", Name: "first"}, field: dependsOnField, reason: pulumiv1.DependencyNotReadyReason}
	o := &observation{
		stack:    flux(func(*pulumiv1.Stack) {}),
		artifact: &source.Artifact{Digest: "sha256:new", Revision: "main@sha1:new"},
	}
	for name, test := range map[string]struct {
		change func(*pulumiv1.Stack)
		behind bool
	}{
		"previews the revision": {func(s *pulumiv1.Stack) {
			s.Status.LastUpdate.Type, s.Status.LastUpdate.LastAttemptedCommit = autov1alpha1.UpdateTypePreview, "sha256:new"
		}, true},
		"previews what it deployed": {func(s *pulumiv1.Stack) {
			s.Status.LastUpdate.Type, s.Status.LastAppliedRevision = autov1alpha1.UpdateTypePreview, "main@sha1:new"
			s.Status.LastUpdate.LastSuccessfulCommit = "sha256:new"
		}, false},
		"has other content of the revision": {func(s *pulumiv1.Stack) {
			s.Status.LastAppliedRevision, s.Status.LastUpdate.LastSuccessfulCommit = "main@sha1:new", "sha256:old"
		}, true},
		"is behind":            {func(*pulumiv1.Stack) {}, true},
		"has the revision":     {func(s *pulumiv1.Stack) { s.Status.LastUpdate.LastAttemptedCommit = "sha256:new" }, false},
		"has another source":   {func(s *pulumiv1.Stack) { s.Spec.FluxSource.SourceRef.Name = "other" }, false},
		"has none":             {func(s *pulumiv1.Stack) { s.Spec.FluxSource = nil }, false},
		"is suspended":         {func(s *pulumiv1.Stack) { s.Spec.Suspend = true }, false},
		"in another namespace": {func(s *pulumiv1.Stack) { s.Namespace = "other" }, false},
	} {
		t.Run(name, func(t *testing.T) {
			g := NewWithT(t)
			required := flux(test.change)
			conditions.MarkTrue(required, meta.ReadyCondition, pulumiv1.ProcessingCompletedReason, "")
			r := &Reconciler{Client: oneStack{stack: required}, Sources: &source.Set{Sources: []source.Source{&source.Flux{}}}}
			seen := *o
			g.Expect(r.observeDependency(t.Context(), &seen, dependsOn, &evaluations{})).To(Succeed())
			g.Expect(seen.dependency).To(BeNil())
			g.Expect(seen.behind != nil).To(Equal(test.behind))
			if test.behind {
				g.Expect(seen.behind.message).To(MatchRegexp("has not deployed main@sha1:new of the common source yet|only previews main@sha1:new, and deploys nothing"))
			}
			preview := *o
			preview.stack = flux(func(s *pulumiv1.Stack) { s.Spec.Preview = true })
			g.Expect(r.observeDependency(t.Context(), &preview, dependsOn, &evaluations{})).To(Succeed())
			g.Expect(preview.behind != nil).To(Equal(test.behind && required.Status.LastUpdate.Type != autov1alpha1.UpdateTypePreview), "of a preview")
		})
	}
	g := NewWithT(t)
	g.Expect(dependsOn.followsRevision()).To(BeTrue())
	g.Expect(dependency{field: dependsOnField, expression: "true"}.followsRevision()).To(BeFalse())
	g.Expect(dependency{field: "prerequisite"}.followsRevision()).To(BeFalse())
}
