package localsystem

import (
	"testing"
	"time"

	. "github.com/onsi/gomega"

	"github.com/fluxcd/pkg/apis/meta"
	sourcev1 "github.com/fluxcd/source-controller/api/v1"

	autov1alpha1 "github.com/stack-controller/stack-controller/api/auto/v1alpha1"
	pulumiv1 "github.com/stack-controller/stack-controller/api/pulumi/v1"
)

func source(revision, digest string) *sourcev1.GitRepository {
	s := &sourcev1.GitRepository{}
	s.Name = "app"
	s.Status.Artifact = &meta.Artifact{Revision: revision, Digest: digest}
	return s
}

func update(digest string, state autov1alpha1.UpdateState) *autov1alpha1.Update {
	u := &autov1alpha1.Update{}
	u.Spec.WorkspaceName = "stack"
	u.Spec.Source = &autov1alpha1.UpdateSource{Digest: digest}
	u.Status.State = state
	return u
}

func stackAfter(last pulumiv1.StackUpdateStatus) *pulumiv1.Stack {
	s := &pulumiv1.Stack{}
	s.Name = "stack"
	s.Status.LastUpdate = &last
	return s
}

func TestFollowerTakesEachStepOfItsCommitInWhateverOrderTheyAreSeen(t *testing.T) {
	g := NewWithT(t)
	start := time.Now()
	f := newFollower("app", "stack", "abc")
	for second, object := range []any{
		stackAfter(pulumiv1.StackUpdateStatus{State: pulumiv1.StackUpdateSucceeded, LastSuccessfulCommit: "sha256:old"}),
		source("main@sha1:old", "sha256:old"),
		update("sha256:old", autov1alpha1.UpdateStateSucceeded),
		update("sha256:new", ""),
		source("main@sha1:abc", "sha256:new"),
		update("sha256:new", autov1alpha1.UpdateStateRunning),
		update("sha256:new", autov1alpha1.UpdateStateRunning),
		stackAfter(pulumiv1.StackUpdateStatus{State: pulumiv1.StackUpdateSucceeded, LastSuccessfulCommit: "sha256:new"}),
	} {
		f.note(snapshot{at: start.Add(time.Duration(second) * time.Second), object: object})
		g.Expect(f.result()).To(BeNil(), "after event %d", second)
	}
	f.note(snapshot{at: start.Add(8 * time.Second), object: update("sha256:new", autov1alpha1.UpdateStateSucceeded)})

	rollout, err := f.result()
	g.Expect(err).NotTo(HaveOccurred())
	seconds := func(at time.Time) float64 { return at.Sub(start).Seconds() }
	g.Expect(seconds(rollout.UpdateCreated)).To(Equal(3.0))
	g.Expect(seconds(rollout.Artifact)).To(Equal(4.0))
	g.Expect(seconds(rollout.OperationStarted)).To(Equal(5.0))
	g.Expect(seconds(rollout.Succeeded)).To(Equal(7.0))
	g.Expect(seconds(rollout.OperationEnded)).To(Equal(8.0))
	g.Expect(rollout.Duration()).To(Equal(3 * time.Second))
}

func TestFollowerReportsAFailedUpdateOfItsCommitOnly(t *testing.T) {
	g := NewWithT(t)
	f := newFollower("app", "stack", "abc")
	f.note(snapshot{object: stackAfter(pulumiv1.StackUpdateStatus{
		State: pulumiv1.StackUpdateFailed, LastAttemptedCommit: "sha256:old", Message: "an older one"})})
	f.note(snapshot{object: source("main@sha1:abc", "sha256:new")})
	g.Expect(f.result()).To(BeNil())

	f.note(snapshot{object: stackAfter(pulumiv1.StackUpdateStatus{
		State: pulumiv1.StackUpdateFailed, LastAttemptedCommit: "sha256:new", Message: "no such resource"})})
	_, err := f.result()
	g.Expect(err).To(MatchError(ContainSubstring("no such resource")))
}
