package e2e_test

import (
	"testing"

	. "github.com/onsi/gomega"
	apimeta "k8s.io/apimachinery/pkg/api/meta"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/fluxcd/pkg/apis/meta"

	autov1alpha1 "github.com/stack-controller/stack-controller/api/auto/v1alpha1"
	pulumiv1 "github.com/stack-controller/stack-controller/api/pulumi/v1"
)

func TestStackFollowsTheBranchOfARepositoryDirectly(t *testing.T) {
	t.Parallel()
	g := NewWithT(t)
	const name = "git-branch"
	repository, first := deployedFromGit(t, g, name, yamlProgram(name, "outputs:", "  x: 1"))
	stack := await(t.Context(), g, name, ready(first))
	g.Expect(stack.Status.LastUpdate.LastAttemptedCommit).To(Equal(first))
	g.Expect(stack.Status.LastAppliedRevision).To(Equal("main@sha1:" + first))
	g.Expect(stack.Status.LastUpdate.ContentDigest).To(MatchRegexp("^sha256:[0-9a-f]{64}$"))
	list := updates(t.Context(), g, name)
	g.Expect(list).To(HaveLen(1))
	g.Expect(list[0].Spec.Source.Git.Ref).To(Equal(first))
	g.Expect(list[0].Spec.Source.Digest).To(Equal(stack.Status.LastUpdate.ContentDigest))
	workspace := &autov1alpha1.Workspace{}
	g.Expect(system.Client.Get(t.Context(), keyOf(name), workspace)).To(Succeed())
	g.Expect(workspace.Spec.Git).To(BeNil(), "the source is in the Update")

	second, err := repository.Commit(yamlProgram(name, "outputs:", "  x: 2"))
	g.Expect(err).NotTo(HaveOccurred())
	request(t, g, name)
	stack = await(t.Context(), g, name, ready(second))
	g.Expect(string(stack.Status.Outputs["x"].Raw)).To(Equal("2"))
	g.Expect(updates(t.Context(), g, name)).To(HaveLen(2), "the request was answered with the commit that it found, at once")
}

func TestHistoryOfTheStackTellsTheCommit(t *testing.T) {
	t.Parallel()
	g := NewWithT(t)
	const name = "git-history"
	files := yamlProgram(name, "outputs:", "  x: 1")
	files["app/Pulumi.yaml"] = files["Pulumi.yaml"]
	delete(files, "Pulumi.yaml")
	_, sha := deployedFromGit(t, g, name, files, func(s *pulumiv1.Stack) { s.Spec.RepoDir = "app" })

	entries := history(g, name, "dev")
	g.Expect(entries).To(HaveLen(1))
	g.Expect(entries[0].Message).To(Equal("Initial stack update: change"), "why it ran, and the first line of the commit's message")
	environment := entries[0].Environment
	g.Expect(environment).To(HaveKeyWithValue("git.head", sha))
	g.Expect(environment).To(HaveKeyWithValue("git.headName", "refs/heads/main"))
	g.Expect(environment).To(HaveKeyWithValue("git.author", "Demo"))
	g.Expect(environment).To(HaveKeyWithValue("git.author.email", "demo@example.com"))
	g.Expect(environment).To(HaveKeyWithValue("vcs.kind", "127.0.0.1"))
	g.Expect(environment).To(HaveKeyWithValue("vcs.repo", name))
	g.Expect(environment).To(HaveKeyWithValue("vcs.root", "app"))

	request(t, g, name)
	g.Eventually(func() int { return len(history(g, name, "dev")) }).WithTimeout(patience).WithPolling(pollInterval).Should(Equal(2))
	g.Expect(history(g, name, "dev")[1].Message).To(HavePrefix("Sync request: "))
	g.Expect(history(g, name, "dev")[1].Message).NotTo(ContainSubstring("change"), "the commit is not new")
	await(t.Context(), g, name, ready(sha))
}

func TestPinnedCommitStaysWhateverIsPushed(t *testing.T) {
	t.Parallel()
	g := NewWithT(t)
	const name = "git-pinned"
	repository, first, err := system.Git.Create(name, yamlProgram(name, "outputs:", "  x: 1"))
	g.Expect(err).NotTo(HaveOccurred())
	second, err := repository.Commit(yamlProgram(name, "outputs:", "  x: 2"))
	g.Expect(err).NotTo(HaveOccurred())
	stack := gitStack(name, repository)
	stack.Spec.Branch, stack.Spec.Commit = "", first
	startInNamespace(t, g, name, stack)
	deployed := await(t.Context(), g, name, ready(first))
	g.Expect(string(deployed.Status.Outputs["x"].Raw)).To(Equal("1"))

	change(t.Context(), g, name, func(s *pulumiv1.Stack) { s.Spec.Commit = second })
	deployed = await(t.Context(), g, name, ready(second))
	g.Expect(string(deployed.Status.Outputs["x"].Raw)).To(Equal("2"))
}

func TestTagIsDeployed(t *testing.T) {
	t.Parallel()
	g := NewWithT(t)
	const name = "git-tag"
	repository, tagged, err := system.Git.Create(name, yamlProgram(name, "outputs:", "  x: 1"))
	g.Expect(err).NotTo(HaveOccurred())
	g.Expect(repository.Tag("v1.0.0")).To(Succeed())
	_, err = repository.Commit(yamlProgram(name, "outputs:", "  x: 2"))
	g.Expect(err).NotTo(HaveOccurred())
	stack := gitStack(name, repository)
	stack.Spec.Branch = "refs/tags/v1.0.0"
	startInNamespace(t, g, name, stack)
	deployed := await(t.Context(), g, name, ready(tagged))
	g.Expect(string(deployed.Status.Outputs["x"].Raw)).To(Equal("1"))
	g.Expect(deployed.Status.LastAppliedRevision).To(HaveSuffix("@sha1:" + tagged))
}

func TestStackWaitsForABranchThatDoesNotExistYet(t *testing.T) {
	t.Parallel()
	g := NewWithT(t)
	const name = "git-later"
	repository, sha, err := system.Git.Create(name, yamlProgram(name, "outputs:", "  x: 1"))
	g.Expect(err).NotTo(HaveOccurred())
	stack := gitStack(name, repository)
	stack.Spec.Branch = "later"
	startInNamespace(t, g, name, stack)
	waiting := await(t.Context(), g, name, notReady(pulumiv1.RevisionNotFoundReason))
	g.Expect(readyMessage(waiting)).To(ContainSubstring("later"))
	g.Expect(apimeta.IsStatusConditionTrue(waiting.Status.Conditions, meta.StalledCondition)).To(BeFalse(), "it may appear any time")
	g.Expect(waiting.Status.LastUpdate).To(BeNil(), "waiting is no failed attempt")

	g.Expect(repository.NewBranch("later")).To(Succeed())
	request(t, g, name)
	await(t.Context(), g, name, ready(sha))
}

func TestRepositoryThatIsMissingIsTold(t *testing.T) {
	t.Parallel()
	g := NewWithT(t)
	const name = "git-missing"
	stack := artifactStack(name)
	stack.Spec.FluxSource = nil
	stack.Spec.GitSource = pulumiv1.GitSource{ProjectRepo: system.Git.URL("git-nowhere"), Branch: "main"}
	startInNamespace(t, g, name, stack)
	waiting := await(t.Context(), g, name, notReady(pulumiv1.RepositoryNotFoundReason))
	g.Expect(readyMessage(waiting)).To(ContainSubstring("git-nowhere"))
}

func TestGitStackIsDestroyedThoughItsRepositoryIsGone(t *testing.T) {
	t.Parallel()
	g := NewWithT(t)
	const name = "git-gone"
	_, sha := deployedFromGit(t, g, name, yamlProgram(name, "outputs:", "  x: 1"), func(s *pulumiv1.Stack) { s.Spec.DestroyOnFinalize = true })
	g.Expect(resources(g, name)).To(BeNumerically(">", 0))
	// The repository that the Stack names from now on never existed.
	change(t.Context(), g, name, func(s *pulumiv1.Stack) { s.Spec.ProjectRepo = system.Git.URL("git-gone-for-good") })
	stack := await(t.Context(), g, name, notReady(pulumiv1.RepositoryNotFoundReason))
	g.Expect(stack.Status.LastUpdate.LastSuccessfulCommit).To(Equal(sha))
	g.Expect(system.Client.Delete(t.Context(), stack)).To(Succeed())
	awaitGone(t.Context(), g, name)
	g.Expect(resources(g, name)).To(BeZero())
}

func TestGitStackWithAnInvalidSourceIsStalled(t *testing.T) {
	t.Parallel()
	g := NewWithT(t)
	const name = "git-invalid"
	stack := artifactStack(name)
	stack.Spec.FluxSource = nil
	stack.Spec.GitSource = pulumiv1.GitSource{ProjectRepo: system.Git.URL(name)}
	startInNamespace(t, g, name, stack)
	stalled := await(t.Context(), g, name, notReady(pulumiv1.SpecInvalidReason))
	g.Expect(apimeta.IsStatusConditionTrue(stalled.Status.Conditions, meta.StalledCondition)).To(BeTrue())
	g.Expect(system.Client.Get(t.Context(), client.ObjectKeyFromObject(stack), stack)).To(Succeed())
	g.Expect(stack.Status.LastUpdate).To(BeNil())
}
