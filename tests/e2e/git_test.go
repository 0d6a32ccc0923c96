package e2e_test

import (
	"encoding/json"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	. "github.com/onsi/gomega"

	"github.com/fluxcd/pkg/runtime/conditions"
	sourcev1 "github.com/fluxcd/source-controller/api/v1"

	pulumiv1 "github.com/stack-controller/stack-controller/api/pulumi/v1"
	"github.com/stack-controller/stack-controller/tests/framework/gitserver"
	"github.com/stack-controller/stack-controller/tests/framework/localsystem"
	"github.com/stack-controller/stack-controller/tests/framework/statuscheck"
	"github.com/stack-controller/stack-controller/tests/framework/suite"
	"github.com/stack-controller/stack-controller/tests/framework/systemtest"
)

// repository creates a git repository with the name of the Stack, and returns its commit.
func (p *fixture) repository(files gitserver.Files) (repository *gitserver.Repository, sha string) {
	p.Helper()
	repository, sha, err := system.Git.Create(p.Name, files)
	p.Succeed(err)
	return repository, sha
}

// commit pushes the files, and returns the commit.
func (p *fixture) commit(repository *gitserver.Repository, files gitserver.Files) (sha string) {
	p.Helper()
	sha, err := repository.Commit(files)
	p.Succeed(err)
	return sha
}

// gitStack returns a Stack that follows the main branch of a git repository.
func (p *fixture) gitStack(url string, changes ...func(*pulumiv1.Stack)) *pulumiv1.Stack {
	stack := p.newStack()
	stack.Spec.FluxSource = nil
	stack.Spec.GitSource = pulumiv1.GitSource{ProjectRepo: url, Branch: gitserver.Branch}
	for _, change := range changes {
		change(stack)
	}
	return stack
}

// named changes the names of a Stack that is created in addition to the Stack of the play.
func named(name string) func(*pulumiv1.Stack) {
	return func(s *pulumiv1.Stack) { s.Name, s.Spec.Stack = name, name }
}

// deployedFromGit creates a repository with the files, and a Stack that follows it and has the changes, and waits until the Stack is Ready.
func (p *fixture) deployedFromGit(files gitserver.Files, changes ...func(*pulumiv1.Stack)) (repository *gitserver.Repository, sha string) {
	p.Helper()
	repository, sha = p.repository(files)
	p.enter(p.gitStack(repository.URL, changes...))
	p.Await(ready(sha))
	return repository, sha
}

// historyEntry is an entry of pulumi's history of updates.
type historyEntry struct {
	Message     string
	Environment map[string]string
}

// history returns the entries of the stack's history in the backend, the oldest first.
func (p *fixture) history() (entries []historyEntry) {
	p.Helper()
	pattern := filepath.Join(strings.TrimPrefix(system.BackendURL, "file://"), ".pulumi", "history", p.Name, "dev", "*.history.json")
	files, err := filepath.Glob(pattern)
	p.Succeed(err)
	slices.Sort(files) // their names begin with the time
	for _, file := range files {
		content, err := os.ReadFile(file)
		p.Succeed(err)
		var entry historyEntry
		p.Expect(json.Unmarshal(content, &entry)).To(Succeed())
		entries = append(entries, entry)
	}
	return entries
}

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
	p.Expect(systemtest.Output(stack, "x")).To(Equal("2"))
	p.Expect(p.Updates()).To(HaveLen(2), "the request was answered with the commit that it found, at once")
}

func TestHistoryOfTheStackShowsTheCommit(t *testing.T) {
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
	p.Expect(systemtest.Output(p.Await(ready(first)), "x")).To(Equal("1"))
	p.Change(func(s *pulumiv1.Stack) { s.Spec.Commit = second })
	p.Expect(systemtest.Output(p.Await(ready(second)), "x")).To(Equal("2"))
}

func TestTagIsDeployed(t *testing.T) {
	suite.Long(t, "further kinds of git references")
	p := begin(t, "git-tag")
	repository, tagged := p.repository(p.returning(1))
	p.Expect(repository.Tag("v1.0.0")).To(Succeed())
	p.commit(repository, p.returning(2))
	p.enter(p.gitStack(repository.URL, func(s *pulumiv1.Stack) { s.Spec.Branch = "refs/tags/v1.0.0" }))
	deployed := p.Await(ready(tagged))
	p.Expect(systemtest.Output(deployed, "x")).To(Equal("1"))
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

func TestGitStackIsDestroyedThoughItsRepositoryIsGone(t *testing.T) {
	suite.Long(t, "further kinds of git references")
	p := begin(t, "git-gone")
	_, sha := p.deployedFromGit(p.returning(1), destroyed)
	p.Expect(p.resources()).To(BeNumerically(">", 0))
	// The Stack now names a repository that never existed.
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

// applied matches a Stack that is Ready and reports the commit as applied.
func applied(sha string) func(*pulumiv1.Stack) bool {
	return func(s *pulumiv1.Stack) bool {
		return ready(sha)(s) && strings.HasSuffix(s.Status.LastAppliedRevision, "@sha1:"+sha) &&
			strings.HasSuffix(s.Status.LastAttemptedRevision, "@sha1:"+sha) && strings.HasSuffix(statuscheck.Message(s), "@sha1:"+sha)
	}
}

func TestCommitRunsOnlyTheStacksThatItTouches(t *testing.T) {
	shared, a, b := begin(t, "monorepo"), alone(t, "monorepo-a"), alone(t, "monorepo-b")
	repository, first := shared.repository(gitserver.Files{
		"a/Pulumi.yaml": a.returning(1)["Pulumi.yaml"], "b/Pulumi.yaml": b.returning(1)["Pulumi.yaml"], "lib/x.txt": "x", "README.md": "old",
	})
	for dir, p := range map[string]*fixture{"a": a, "b": b} {
		p.enter(p.gitStack(repository.URL, func(s *pulumiv1.Stack) {
			s.Spec.RepoDir, s.Spec.SourcePaths = dir, []string{"lib/**", "absent/*.yaml"}
		}))
		p.Await(applied(first))
		p.Eventually(p.events).WithArguments("SourcePathUnmatched").Should(ConsistOf(ContainSubstring(`matches ["absent/*.yaml"]`)))
	}
	// The branch is polled once a minute at most. On the second Stack, a request would run an update, and so would an edit without effect.
	// So the test requests a reconcile of the first Stack. The second Stack is notified of the commit, because both follow the same branch.
	second := shared.commit(repository, gitserver.Files{"a/Pulumi.yaml": a.returning(2)["Pulumi.yaml"]})
	b.Await(ready(first))
	a.Request()
	a.Expect(systemtest.Output(a.Await(applied(second)), "x")).To(Equal("2"))
	stack := b.Await(applied(second))
	b.Expect(b.Updates()).To(HaveLen(1), "the commit is none of it")
	b.Expect(stack.Status.LastUpdate.Revision).To(Equal("main@sha1:"+first), "the operation ran that")

	third := shared.commit(repository, gitserver.Files{"lib/x.txt": "y"})
	a.Request()
	a.Await(applied(third))
	b.Await(applied(third))
	b.Expect(b.Updates()).To(HaveLen(2), "a path that both share changed")
}

func TestEveryRevisionRunsWhenTheSpecSaysSo(t *testing.T) {
	suite.Long(t, "further choices of paths")
	p := begin(t, "every-revision")
	repository, _ := p.deployedFromGit(p.returning(1), func(s *pulumiv1.Stack) { s.Spec.UpdateOn = pulumiv1.UpdateOnRevision })
	// The request is on a second Stack of the same branch, so that it does not run an update of the first Stack itself.
	p.Create(p.gitStack(repository.URL, named("other")))
	second := p.commit(repository, gitserver.Files{})
	p.AwaitStack("other", ready(""))
	p.RequestStack("other")
	stack := p.Await(applied(second))
	p.Expect(stack.Status.LastUpdate.Revision).To(Equal("main@sha1:" + second))
	p.Expect(p.history()).To(HaveLen(2), "the same content was deployed again")
}

func TestPathsCountForFluxSourcesToo(t *testing.T) {
	suite.Long(t, "further choices of paths")
	p := begin(t, "flux-paths")
	program := func(value int) string { return p.returning(value)["Pulumi.yaml"] }
	files := gitserver.Files{"app/Pulumi.yaml": program(1), "other/Pulumi.yaml": program(1)}
	first := p.put(files)
	p.start(first, func(s *pulumiv1.Stack) {
		s.Spec.FluxSource.Dir, s.Spec.SourcePaths = "app", []string{"lib"}
		s.Spec.EnvRefs["REGION"] = localsystem.SecretRef("credentials", "password")
	})
	p.Create(p.credentials("1", watched))
	p.Await(ready(first.Digest))

	files["other/Pulumi.yaml"] = program(2)
	second := p.publish(files)
	stack := p.Await(ready(second.Digest))
	p.Expect(stack.Status.LastAppliedRevision).To(Equal("v2"))
	p.Expect(p.Updates()).To(HaveLen(1))

	files["app/Pulumi.yaml"] = program(2)
	third := p.publish(files)
	stack = p.Await(ready(third.Digest))
	p.Expect(systemtest.Output(stack, "x")).To(Equal("2"))

	// A Stack that depends on it goes on with the revision although a changed Secret waits for a window.
	other := system.NewStack(p.Name, "other", sourcev1.ExternalArtifactKind)
	other.Spec.Stack, other.Spec.FluxSource.SourceRef.Name, other.Spec.FluxSource.Dir = "other", p.Name, "other"
	other.Spec.DependsOn = []pulumiv1.DependencyReference{{Name: p.Name}}
	p.Create(other)
	p.AwaitStack("other", ready(third.Digest))
	p.ChangeStack(p.Name, frozen(time.Hour))
	p.update(p.credentials("2", watched))
	files["other/Pulumi.yaml"] = program(3)
	fourth := p.publish(files)
	p.AwaitStack("other", ready(fourth.Digest))
	stack = p.Await(ready(fourth.Digest))
	p.Expect(stack.Status.LastUpdate.Revision).To(Equal("v3"))
	p.ChangeStack(p.Name, frozen(time.Second))
	stack = p.awaitNext(stack)
	p.Expect(stack.Status.LastUpdate.Revision).To(Equal("v4"), "the Secret")
}
