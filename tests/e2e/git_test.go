package e2e_test

import (
	"testing"

	. "github.com/onsi/gomega"

	"github.com/fluxcd/pkg/runtime/conditions"

	pulumiv1 "github.com/stack-controller/stack-controller/api/pulumi/v1"
	"github.com/stack-controller/stack-controller/tests/gitserver"
	"github.com/stack-controller/stack-controller/tests/stage/scene"
	"github.com/stack-controller/stack-controller/tests/statuscheck"
	"github.com/stack-controller/stack-controller/tests/suite"
)

func TestStackFollowsTheBranchOfARepositoryDirectly(t *testing.T) {
	p := begin(t, "git-branch")
	repository, first := p.deployedFromGit(p.returning(1))
	stack := p.Await(ready(first))
	p.Expect(stack.Status.LastUpdate.LastAttemptedCommit).To(Equal(first))
	p.Expect(stack.Status.LastAppliedRevision).To(Equal("main@sha1:" + first))
	p.Expect(stack.Status.LastUpdate.ContentDigest).To(MatchRegexp("^sha256:[0-9a-f]{64}$"))
	list := p.Updates()
	p.Expect(list).To(HaveLen(1))
	p.Expect(list[0].Spec.Source.Git.Ref).To(Equal(first))
	p.Expect(list[0].Spec.Source.Digest).To(Equal(stack.Status.LastUpdate.ContentDigest))
	p.Expect(p.Workspace().Spec.Git).To(BeNil(), "the source is in the Update")

	second := p.commit(repository, p.returning(2))
	p.Request()
	stack = p.Await(ready(second))
	p.Expect(scene.Output(stack, "x")).To(Equal("2"))
	p.Expect(p.Updates()).To(HaveLen(2), "the request was answered with the commit that it found, at once")
}

func TestHistoryOfTheStackTellsTheCommit(t *testing.T) {
	suite.Long(t, "further kinds of git references")
	p := begin(t, "git-history")
	files := gitserver.Files{"app/Pulumi.yaml": p.returning(1)["Pulumi.yaml"]}
	_, sha := p.deployedFromGit(files, func(s *pulumiv1.Stack) { s.Spec.RepoDir = "app" })

	entries := p.history()
	p.Expect(entries).To(HaveLen(1))
	p.Expect(entries[0].Message).To(Equal("Initial stack update: change"), "why it ran, and the first line of the commit's message")
	for variable, value := range map[string]string{
		"git.head": sha, "git.headName": "refs/heads/main", "git.author": "Demo", "git.author.email": "demo@example.com",
		"vcs.kind": "127.0.0.1", "vcs.repo": p.Name, "vcs.root": "app",
	} {
		p.Expect(entries[0].Environment).To(HaveKeyWithValue(variable, value))
	}

	p.Request()
	p.Eventually(p.history).Should(HaveLen(2))
	p.Expect(p.history()[1].Message).To(HavePrefix("Sync request: "))
	p.Expect(p.history()[1].Message).NotTo(ContainSubstring("change"), "the commit is not new")
	p.Await(ready(sha))
}

func TestPinnedCommitStaysWhateverIsPushed(t *testing.T) {
	suite.Long(t, "further kinds of git references")
	p := begin(t, "git-pinned")
	repository, first := p.repository(p.returning(1))
	second := p.commit(repository, p.returning(2))
	p.enter(p.gitStack(repository.URL, func(s *pulumiv1.Stack) { s.Spec.Branch, s.Spec.Commit = "", first }))
	p.Expect(scene.Output(p.Await(ready(first)), "x")).To(Equal("1"))
	p.Change(func(s *pulumiv1.Stack) { s.Spec.Commit = second })
	p.Expect(scene.Output(p.Await(ready(second)), "x")).To(Equal("2"))
}

func TestTagIsDeployed(t *testing.T) {
	suite.Long(t, "further kinds of git references")
	p := begin(t, "git-tag")
	repository, tagged := p.repository(p.returning(1))
	p.Expect(repository.Tag("v1.0.0")).To(Succeed())
	p.commit(repository, p.returning(2))
	p.enter(p.gitStack(repository.URL, func(s *pulumiv1.Stack) { s.Spec.Branch = "refs/tags/v1.0.0" }))
	deployed := p.Await(ready(tagged))
	p.Expect(scene.Output(deployed, "x")).To(Equal("1"))
	p.Expect(deployed.Status.LastAppliedRevision).To(HaveSuffix("@sha1:" + tagged))
}

func TestStackWaitsForABranchThatDoesNotExistYet(t *testing.T) {
	suite.Long(t, "further kinds of git references")
	p := begin(t, "git-later")
	repository, sha := p.repository(p.returning(1))
	p.enter(p.gitStack(repository.URL, func(s *pulumiv1.Stack) { s.Spec.Branch = "later" }))
	waiting := p.Await(notReady(pulumiv1.RevisionNotFoundReason))
	p.Expect(statuscheck.Message(waiting)).To(ContainSubstring("later"))
	p.Expect(conditions.IsStalled(waiting)).To(BeFalse(), "it may appear any time")
	p.Expect(waiting.Status.LastUpdate).To(BeNil(), "waiting is no failed attempt")

	p.Expect(repository.NewBranch("later")).To(Succeed())
	p.Request()
	p.Await(ready(sha))
}

func TestRepositoryThatIsMissingIsTold(t *testing.T) {
	suite.Long(t, "further kinds of git references")
	p := begin(t, "git-missing")
	p.enter(p.gitStack(system.Git.URL("git-nowhere")))
	waiting := p.Await(notReady(pulumiv1.RepositoryNotFoundReason))
	p.Expect(statuscheck.Message(waiting)).To(ContainSubstring("git-nowhere"))
}

func TestGitStackIsDestroyedThoughItsRepositoryIsGone(t *testing.T) {
	suite.Long(t, "further kinds of git references")
	p := begin(t, "git-gone")
	_, sha := p.deployedFromGit(p.returning(1), destroyed)
	p.Expect(p.resources()).To(BeNumerically(">", 0))
	// The repository that the Stack names from now on never existed.
	p.Change(func(s *pulumiv1.Stack) { s.Spec.ProjectRepo = system.Git.URL("git-gone-for-good") })
	stack := p.Await(notReady(pulumiv1.RepositoryNotFoundReason))
	p.Expect(stack.Status.LastUpdate.LastSuccessfulCommit).To(Equal(sha))
	p.Delete()
	p.awaitDestroyed()
}

func TestGitStackWithAnInvalidSourceIsStalled(t *testing.T) {
	suite.Long(t, "further kinds of git references")
	p := begin(t, "git-invalid")
	p.enter(p.gitStack(system.Git.URL(p.Name), func(s *pulumiv1.Stack) { s.Spec.Branch = "" }))
	stalled := p.Await(notReady(pulumiv1.SpecInvalidReason))
	p.Expect(conditions.IsStalled(stalled)).To(BeTrue())
	p.Expect(stalled.Status.LastUpdate).To(BeNil())
}
