package update

import (
	"strings"
	"testing"

	. "github.com/onsi/gomega"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/fluxcd/pkg/apis/meta"
	"github.com/fluxcd/pkg/runtime/conditions"

	autov1alpha1 "github.com/stack-controller/stack-controller/api/auto/v1alpha1"
	pulumiv1 "github.com/stack-controller/stack-controller/api/pulumi/v1"
	"github.com/stack-controller/stack-controller/internal/source"
	"github.com/stack-controller/stack-controller/tests/framework/gitserver"
)

// newRepository creates a git repository with a program on a server of its own, and returns its URL and its first commit.
func newRepository(t *testing.T, text string) (url, sha string) {
	t.Helper()
	g := NewWithT(t)
	server, err := gitserver.Start(t.TempDir())
	g.Expect(err).NotTo(HaveOccurred())
	t.Cleanup(server.Stop)
	repository, sha, err := server.Create("app", gitserver.Files{"Pulumi.yaml": text})
	g.Expect(err).NotTo(HaveOccurred())
	return repository.URL, sha
}

// inGit makes the program of the Workspace come from the repository.
func inGit(url, ref string) func(*autov1alpha1.Workspace) {
	return func(workspace *autov1alpha1.Workspace) {
		workspace.Spec.Local = nil
		workspace.Spec.Git = &autov1alpha1.GitSource{URL: url, Ref: ref}
	}
}

func TestUpdateRunsTheCommitOfTheRepositoryOfItsWorkspace(t *testing.T) {
	s := newFixture(t)
	url, sha := newRepository(t, "name: p")
	s.newReadyWorkspace("app", inGit(url, "main"))
	s.startController()
	done := s.finished(s.newUpdate("up"))
	s.Expect(done).To(haveSucceeded())
	s.Expect(done.Status.Revision).To(Equal("main@sha1:" + sha))
	request := s.agents.script.requests()[0]
	s.Expect(request.GetArtifact().GetDigest()).To(HavePrefix("sha256:"))
	s.Expect(request.GetCommitMetadata()).To(And(
		HaveKeyWithValue("PULUMI_GIT_HEAD", sha), HaveKeyWithValue("PULUMI_GIT_AUTHOR", "Demo"), HaveKeyWithValue("PULUMI_GIT_COMMIT_MESSAGE", "change")))
}

func TestUpdateSaysWhyTheRepositoryOfItsWorkspaceCannotBeUsed(t *testing.T) {
	s := newFixture(t)
	url, _ := newRepository(t, "name: p")
	withToken := func(workspace *autov1alpha1.Workspace) {
		inGit(url, "main")(workspace)
		workspace.Spec.Git.Auth = &autov1alpha1.GitAuth{
			Token: &corev1.SecretKeySelector{Name: "git", Key: "token"},
		}
	}
	s.newReadyWorkspace("app", withToken)
	s.newReadyWorkspace("invalid", inGit("", "main"))
	s.startController()
	waiting := s.newUpdate("up")
	s.Eventually(s.current(waiting)).Should(waitFor(pulumiv1.SecretNotFoundReason, `"git"`))
	invalid := s.newUpdate("invalid", func(update *autov1alpha1.Update) { update.Spec.WorkspaceName = "invalid" })
	s.Expect(s.finished(invalid)).To(haveFailed(autov1alpha1.ConfigInvalidReason, "has no URL"))

	s.newSecret("git", map[string]string{"token": "t0ken"})
	s.Expect(s.finished(waiting)).To(haveSucceeded())
}

func TestCommitWithOtherContentThanTheUpdateNamesIsNeverRun(t *testing.T) {
	s := newFixture(t)
	url, sha := newRepository(t, "name: p")
	s.newReadyWorkspace("app")
	s.startController()
	update := s.newUpdate("up", func(update *autov1alpha1.Update) {
		update.Spec.Source = &autov1alpha1.UpdateSource{Git: &autov1alpha1.GitSource{URL: url, Ref: sha}, Digest: "sha256:" + strings.Repeat("0", 64)}
	})
	s.Eventually(s.current(update)).Should(waitFor(pulumiv1.ArtifactDigestMismatchReason, ""))
	s.Expect(s.agents.script.requests()).To(BeEmpty())
}

// ownedByStack makes the object one that a Stack controls.
func ownedByStack(t *testing.T, object metav1.Object) {
	t.Helper()
	object.SetOwnerReferences([]metav1.OwnerReference{
		{APIVersion: pulumiv1.GroupVersion.String(), Kind: pulumiv1.StackKind, Name: "app", UID: "stack", Controller: new(true)},
	})
}

func TestUpdateMadeByHandGetsTheSourceOfTheLastOneDelivered(t *testing.T) {
	s := newFixture(t)
	from := s.publish("name: p")
	s.newReadyWorkspace("app", func(workspace *autov1alpha1.Workspace) {
		workspace.Spec.Local = nil
		ownedByStack(t, workspace)
	})
	stop := s.startController()
	first := s.newUpdate("first", func(update *autov1alpha1.Update) {
		update.Spec.Source = from
		ownedByStack(t, update)
	})
	s.Expect(s.finished(first)).To(haveSucceeded())
	stop()
	// The next agent has no artifact yet.
	s.agents.stop(s.key("app"))
	s.agents.wipe(s.key("app"))
	s.agents.start(s.key("app"))
	s.startController()
	done := s.finished(s.newUpdate("second"))
	s.Expect(done).To(haveSucceeded())
	s.Expect(done.Status.Revision).To(Equal(from.Revision))
	s.Expect(done.Spec.Source).To(BeNil(), "nobody writes into somebody else's Update")
	requests := s.agents.script.requests()
	s.Expect(requests[len(requests)-1].GetArtifact().GetDigest()).To(Equal(from.Digest))
}

// The content of a commit is that of its hash, and not of the bytes that some version of the controller packed.
func TestUpdateMadeByHandRunsACommitThatAnEarlierVersionPackedDifferently(t *testing.T) {
	s := newFixture(t)
	url, sha := newRepository(t, "name: p")
	s.newReadyWorkspace("app", func(workspace *autov1alpha1.Workspace) {
		workspace.Spec.Local = nil
		ownedByStack(t, workspace)
	})
	first := s.newUpdate("first", func(update *autov1alpha1.Update) {
		update.Spec.Source = &autov1alpha1.UpdateSource{
			Git: &autov1alpha1.GitSource{URL: url, Ref: sha}, Digest: "sha256:" + strings.Repeat("0", 64), Revision: "main@sha1:" + sha,
		}
		ownedByStack(t, update)
	})
	first.Status.StartTime, first.Status.EndTime = new(metav1.Now()), new(metav1.Now())
	conditions.MarkTrue(first, autov1alpha1.UpdateComplete, autov1alpha1.UpdateEndedFailedReason, "")
	s.Expect(s.client.Status().Update(t.Context(), first)).To(Succeed())
	s.startController()
	done := s.finished(s.newUpdate("second"))
	s.Expect(done).To(haveSucceeded())
	s.Expect(done.Status.Revision).To(Equal("main@sha1:" + sha))
}

func TestSourceProblemsAreWaitedFor(t *testing.T) {
	g := NewWithT(t)
	pending := decide(ready(sourceFails(&source.Problem{Pending: true, Message: "looking"})))
	g.Expect(pending.wake).To(Equal(bySource))
	g.Expect(pending.reason).To(Equal(autov1alpha1.ArtifactPendingReason))
	problem := &source.Problem{Reason: pulumiv1.HostKeyUnknownReason, Watched: true}
	waiting := decide(ready(sourceFails(problem)))
	g.Expect(waiting.action).To(Equal(actionWait))
	g.Expect(waiting.reason).To(Equal(pulumiv1.HostKeyUnknownReason))
	g.Expect(waiting.after).To(BeNumerically(">", 0))
	problem.Permanent = true
	g.Expect(decide(ready(sourceFails(problem))).action).To(Equal(actionFinish))
}

// An Update that somebody creates by hand runs what the last one ran. Later revisions with the same content replaced its artifact.
func TestInheritedSourceIsTheNewestWithTheSameContent(t *testing.T) {
	for name, tt := range map[string]struct {
		last *pulumiv1.StackUpdateStatus
		want string
	}{
		"a later revision":    {last: &pulumiv1.StackUpdateStatus{Name: "app-1", LastAttemptedCommit: "sha256:b"}, want: "sha256:b"},
		"of another update":   {last: &pulumiv1.StackUpdateStatus{Name: "app-2", LastAttemptedCommit: "sha256:b"}, want: "sha256:a"},
		"nothing is recorded": {want: "sha256:a"},
	} {
		t.Run(name, func(t *testing.T) {
			stack := &pulumiv1.Stack{Status: pulumiv1.StackStatus{LastUpdate: tt.last, LastAttemptedRevision: "main@sha1:b"}}
			from := &autov1alpha1.UpdateSource{SourceRef: &meta.NamespacedObjectKindReference{Kind: "GitRepository"}, Digest: "sha256:a"}
			takeNewest(from, "app-1", stack)
			NewWithT(t).Expect(from.Digest).To(Equal(tt.want))
			git := &autov1alpha1.UpdateSource{Digest: "sha256:a"}
			takeNewest(git, "app-1", stack)
			NewWithT(t).Expect(git.Digest).To(Equal("sha256:a"), "only a source that publishes one artifact loses earlier ones")
		})
	}
}
