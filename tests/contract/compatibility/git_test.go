package compatibility_test

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	. "github.com/onsi/gomega"
	"github.com/onsi/gomega/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	pulumiv1 "github.com/stack-controller/stack-controller/api/pulumi/v1"
	"github.com/stack-controller/stack-controller/tests/framework/gitserver"
	"github.com/stack-controller/stack-controller/tests/framework/statuscheck"
	"github.com/stack-controller/stack-controller/tests/framework/suite"
	"github.com/stack-controller/stack-controller/tests/framework/systemtest"
)

// isCommit expects that the Stack was deployed from the only commit of the public repository.
func isCommit(s *fixture, stack *pulumiv1.Stack) {
	s.Expect(stack.Status.LastUpdate.LastSuccessfulCommit).To(Equal(programsCommit))
	s.Expect(systemtest.Output(stack, "text")).To(Equal(`"none"`))
}

func isPrivateCommit(s *fixture, stack *pulumiv1.Stack) {
	s.Expect(stack.Status.LastUpdate.LastSuccessfulCommit).To(Equal(privateCommit))
}

func TestGitFieldsWork(t *testing.T) {
	suite.Long(t, "each field of the former operator, on the whole system")
	testUses(t, []use{
		{field: "branch", manifest: "git-branch", shows: isCommit},
		{field: "branch (full reference)", manifest: "git-branch", patch: "{spec: {branch: refs/heads/main}}", shows: isCommit},
		{field: "commit", manifest: "git-commit", shows: isCommit},
		{field: "repoDir (without one)", manifest: "git-branch", patch: "{spec: {projectRepo: 'https://git.example.com/acmecorp/flat', repoDir: null}}",
			shows: func(s *fixture, stack *pulumiv1.Stack) { s.Expect(stack.Status.ProjectInfo.Name).To(Equal("flat")) }},
		{field: "shallow", manifest: "git-branch", patch: "{spec: {shallow: true}}", shows: isCommit},
		{field: "gitAuth.accessToken", manifest: "git-token", shows: isPrivateCommit},
		{field: "gitAuth.basicAuth", manifest: "git-basic", shows: isPrivateCommit},
		{field: "gitAuth.sshAuth", manifest: "git-ssh", shows: isPrivateCommit},
		{field: "gitAuthSecret (accessToken)", manifest: "git-secret", shows: isPrivateCommit},
		{field: "gitAuthSecret (user name and password)", manifest: "git-basic", patch: "{spec: {gitAuth: null, gitAuthSecret: git}}", shows: isPrivateCommit},
		{field: "gitAuthSecret (private key)", manifest: "git-ssh", patch: "{spec: {gitAuth: null, gitAuthSecret: git}}", shows: isPrivateCommit},
	})
}

func TestMisusedGitFieldsAreExplainedAndRecover(t *testing.T) {
	suite.Long(t, "each field of the former operator, on the whole system")
	const (
		invalid, failed = pulumiv1.SpecInvalidReason, pulumiv1.RetryingAfterFailureReason
		missing, denied = pulumiv1.SecretNotFoundReason, pulumiv1.AuthenticationFailedReason
		noRevision      = pulumiv1.RevisionNotFoundReason
		nobody          = "{secret: {name: nobody}}"
	)
	testMisuses(t, []misuse{
		{field: "projectRepo (absent)", manifest: "git-branch", patch: "{spec: {projectRepo: null}}", reason: invalid, says: "spec.projectRepo is missing"},
		{field: "projectRepo (malformed)", manifest: "git-branch", patch: "{spec: {projectRepo: 'this is no URL'}}", reason: invalid, says: "spec.projectRepo: the URL of the git repository"},
		{field: "projectRepo (a file)", manifest: "git-branch", patch: "{spec: {projectRepo: 'file:///etc'}}", reason: invalid, says: "spec.projectRepo: file:// is not accepted"},
		{field: "projectRepo (a command)", manifest: "git-branch", patch: "{spec: {projectRepo: 'ext::sh -c touch% /tmp/pwned'}}", reason: invalid, says: "spec.projectRepo: the URL of the git repository"},
		{field: "projectRepo (a flag)", manifest: "git-branch", patch: "{spec: {projectRepo: '--upload-pack=/bin/false'}}", reason: invalid, says: "spec.projectRepo: the URL of the git repository"},
		{field: "projectRepo (not there)", manifest: "git-branch", patch: "{spec: {projectRepo: 'https://git.example.com/acmecorp/nobody'}}",
			reason: pulumiv1.RepositoryNotFoundReason, says: "acmecorp/nobody"},
		{field: "projectRepo (no server)", manifest: "git-branch", patch: "{spec: {projectRepo: 'http://127.0.0.1:1/acmecorp/nobody'}}",
			reason: pulumiv1.SourceUnavailableReason, says: "127.0.0.1:1"},
		{field: "branch (not there)", manifest: "git-branch", patch: "{spec: {branch: nowhere}}", reason: noRevision, says: "nowhere"},
		{field: "branch (hostile)", manifest: "git-branch", patch: "{spec: {branch: '--upload-pack=touch /tmp/pwned'}}", reason: noRevision, says: "cannot be the name of a branch"},
		{field: "branch (beside a commit)", manifest: "git-branch", patch: "{spec: {commit: abc}}", reason: invalid, says: "spec.branch and spec.commit are both set"},
		{field: "branch (neither)", manifest: "git-branch", patch: "{spec: {branch: null}}", reason: invalid, says: "spec.branch"},
		{field: "commit (not there)", manifest: "git-commit", patch: "{spec: {commit: '0123456789012345678901234567890123456789'}}", reason: noRevision, says: "0123456789012345678901234567890123456789"},
		{field: "repoDir (missing)", manifest: "git-branch", patch: "{spec: {repoDir: nowhere}}", reason: failed, says: "nowhere"},
		{field: "repoDir (outside)", manifest: "git-branch", patch: "{spec: {repoDir: ../../../etc}}", reason: failed, says: "../../../etc"},
		{field: "gitAuthSecret (missing)", manifest: "git-secret", patch: "{spec: {gitAuthSecret: nobody}}", reason: missing, says: "nobody"},
		{field: "gitAuthSecret (without its keys)", manifest: "git-secret", patch: "{spec: {gitAuthSecret: passphrase}}", reason: missing, says: "passphrase"},
		{field: "gitAuth (none for a private repository)", manifest: "git-token", patch: "{spec: {gitAuth: null}}", reason: denied, says: "set gitAuth"},
		{field: "gitAuth.accessToken (missing)", manifest: "git-token", patch: "{spec: {gitAuth: {accessToken: " + nobody + "}}}", reason: missing, says: "nobody"},
		{field: "gitAuth.accessToken (wrong)", manifest: "git-token", patch: "{spec: {gitAuth: {accessToken: {secret: {name: passphrase, key: value}}}}}", reason: denied, says: "passphrase"},
		{field: "gitAuth.accessToken (Env)", manifest: "git-token", patch: "{spec: {gitAuth: {accessToken: {type: Env, env: {name: HOME}, secret: null}}}}",
			reason: invalid, says: "spec.gitAuth.accessToken"},
		{field: "gitAuth.accessToken (another namespace)", manifest: "git-token", patch: "{spec: {gitAuth: {accessToken: {secret: {namespace: kube-system}}}}}",
			reason: invalid, says: "spec.gitAuth.accessToken"},
		{field: "gitAuth.basicAuth.userName (absent)", manifest: "git-basic", patch: "{spec: {gitAuth: {basicAuth: {userName: null}}}}", refused: "spec.gitAuth.basicAuth.userName: Required value"},
		{field: "gitAuth.basicAuth.userName (missing)", manifest: "git-basic", patch: "{spec: {gitAuth: {basicAuth: {userName: " + nobody + "}}}}", reason: missing, says: "nobody"},
		{field: "gitAuth.basicAuth.password (missing key)", manifest: "git-basic", patch: "{spec: {gitAuth: {basicAuth: {password: {secret: {key: nothing}}}}}}", reason: missing, says: "nothing"},
		{field: "gitAuth.basicAuth.password (wrong)", manifest: "git-basic", patch: "{spec: {gitAuth: {basicAuth: {password: {secret: {key: username}}}}}}", reason: denied, says: "git"},
		{field: "gitAuth.sshAuth.sshPrivateKey (no key)", manifest: "git-ssh", patch: "{spec: {gitAuth: {sshAuth: {sshPrivateKey: {secret: {key: password}}}}}}", reason: denied, says: "private key"},
		{field: "gitAuth.sshAuth.password (wrong)", manifest: "git-ssh", patch: "{spec: {gitAuth: {sshAuth: {password: {secret: {key: known_hosts}}}}}}", reason: denied, says: "git"},
		{field: "gitAuth.sshAuth.password (absent)", manifest: "git-ssh", patch: "{spec: {gitAuth: {sshAuth: {password: null}}}}", reason: denied, says: "git"},
		{field: "gitAuth.githubApp (incomplete)", manifest: "git-token", patch: "{spec: {gitAuth: {accessToken: null, githubApp: {appID: {type: Literal, literal: {value: '1'}}}}}}",
			refused: "spec.gitAuth.githubApp.installationID: Required value"},
	})
}

func TestServerWhoseKeyIsNotKnownGetsNothing(t *testing.T) {
	suite.Long(t, "each field of the former operator, on the whole system")
	t.Parallel()
	s := newFixture(t, "misuse-known-hosts")
	objects := s.manifest("manifests/git-ssh", "")
	delete(objects[0].Object["data"].(map[string]any), "known_hosts")
	s.Expect(s.applyAll(objects)).To(Succeed())
	s.AwaitStack("git-ssh", notReady(pulumiv1.HostKeyUnknownReason, "known hosts"))
	s.apply("manifests/git-ssh")
	s.RequestStack("git-ssh")
	s.awaitReady("git-ssh")
}

// repository is a bare repository on the disk of the git server, for changes that are not made through a clone.
type repository struct {
	g    *WithT
	path string
	// first is the commit with which the repository was created.
	first string
}

// newRepository creates a repository of that name with the programs of testdata/programs.
func newRepository(g *WithT, name string) *repository {
	files, err := gitserver.FilesFromDir("testdata/programs")
	g.Expect(err).NotTo(HaveOccurred())
	_, first, err := system.Git.Create(name, files)
	g.Expect(err).NotTo(HaveOccurred())
	return &repository{g: g, path: filepath.Join(system.Dir, "git", filepath.FromSlash(name)), first: first}
}

func (r *repository) git(args ...string) string {
	command := exec.Command("git", append([]string{"-C", r.path}, args...)...)
	command.Env = append(os.Environ(), "GIT_AUTHOR_NAME=a", "GIT_AUTHOR_EMAIL=a@example.com", "GIT_COMMITTER_NAME=a", "GIT_COMMITTER_EMAIL=a@example.com")
	output, err := command.CombinedOutput()
	r.g.Expect(err).NotTo(HaveOccurred(), "git %v: %s", args, output)
	return strings.TrimSpace(string(output))
}

// commitOn creates a commit on a parent, with the files of the first commit, and moves the branch to it, wherever the branch was before.
func (r *repository) commitOn(parent, message string) string {
	sha := r.git("commit-tree", r.first+"^{tree}", "-p", parent, "-m", message)
	r.git("update-ref", "refs/heads/main", sha)
	return sha
}

// isAt returns a function that reports whether a Stack is ready with the commit.
func isAt(commit string) func(*pulumiv1.Stack) bool {
	return func(stack *pulumiv1.Stack) bool {
		return isReady(stack) && stack.Status.LastUpdate.LastSuccessfulCommit == commit
	}
}

// keeps expects that the status still names the commit that was deployed.
func (s *fixture) keeps(stack *pulumiv1.Stack, commit string) {
	s.Expect(stack.Status.LastUpdate.LastSuccessfulCommit).To(Equal(commit))
	s.Expect(stack.Status.LastUpdate.State).To(Equal(pulumiv1.StackUpdateSucceeded), "a source that fails is no failed update")
	s.Expect(stack.Status.LastUpdate.Failures).To(BeZero())
}

// TestHundredStacksOnABranchPollItOnce has a hundred Stacks that follow a branch. Ten of them are deployed. The API server refuses the
// Workspaces of the others, which costs less than a hundred runs of pulumi. The refusal comes last, when everything else is ready, so each
// of these Stacks has asked for the commit and for its files.
func TestHundredStacksOnABranchPollItOnce(t *testing.T) {
	suite.Long(t, "each field of the former operator, on the whole system")
	t.Parallel()
	s := newFixture(t, "story-hundred")
	const name, deployed, all = "story/hundred", 10, 100
	repo := newRepository(s.WithT, name)
	for i := range all {
		template := ""
		if i >= deployed {
			template = ", workspaceTemplate: {metadata: {labels: {'not a label': x}}}"
		}
		// A repository that anybody may read is shared by all namespaces and credentials.
		patch := fmt.Sprintf("{metadata: {name: stack-%[1]d}, spec: {stack: stack-%[1]d, projectRepo: '%[2]s/%[3]s'%[4]s}}", i, privateAddress, name, template)
		s.applyPatched("git-branch", patch)
	}
	refused := notReady(pulumiv1.WorkspaceFailedReason, "not a label")
	haveTried := func(commit string) traffic {
		s.awaitCount(deployed, isAt(commit))
		s.awaitCount(all-deployed, refused)
		return host.traffic(name)
	}
	seen := haveTried(repo.first)
	s.Expect(seen.checkouts).To(Equal([]string{repo.first}))
	s.Expect(seen.polls).To(beAnIntervalApart(1))

	// All Stacks ask for the second commit while the server holds back its answer. The poll that is already running answers the first of
	// them, and one more poll answers all others.
	second := repo.commitOn(repo.first, "second")
	before, release := host.hold(name)
	for i := range all {
		s.RequestStack(fmt.Sprintf("stack-%d", i))
	}
	waited := map[string]bool{} // a poll that takes too long is abandoned and starts again
	s.awaitCount(all, func(stack *pulumiv1.Stack) bool {
		waited[stack.Name] = waited[stack.Name] || strings.Contains(statuscheck.Message(stack), "looking for main in")
		return waited[stack.Name]
	})
	release()
	seen = haveTried(second)
	s.Expect(seen.checkouts).To(Equal([]string{repo.first, second}))
	s.Expect(len(seen.polls)).To(BeNumerically(">", len(before.polls)))

	// No Stack asks for the third commit.
	third := repo.commitOn(second, "third")
	s.Eventually(func() []string { return host.traffic(name).checkouts }).WithTimeout(longestInterval + s.Patience).
		Should(Equal([]string{repo.first, second, third}))
	seen = haveTried(third)
	s.Expect(seen.checkouts).To(HaveLen(3), "a commit is checked out once, however many want it")
	s.Expect(seen.polls[len(before.polls)+1:]).To(beAnIntervalApart(1), "a hundred requests need two answers at most")
}

// shortestInterval and longestInterval bound the interval, with the controller's jitter, between polls of Stacks that do not request an
// update.
const (
	shortestInterval = pulumiv1.MinResyncInterval * 95 / 100
	longestInterval  = pulumiv1.MinResyncInterval * 105 / 100
)

// beAnIntervalApart expects at least that many polls, each at least shortestInterval after the poll before.
func beAnIntervalApart(atLeast int) types.GomegaMatcher {
	return WithTransform(func(looks []time.Time) error {
		for i := range looks[min(1, len(looks)):] {
			if since := looks[i+1].Sub(looks[i]); since < shortestInterval {
				return fmt.Errorf("look %d is %s after the one before", i+2, since)
			}
		}
		if len(looks) < atLeast {
			return fmt.Errorf("there are only %d looks", len(looks))
		}
		return nil
	}, Succeed())
}

// awaitCount waits until that number of the play's Stacks satisfy the function. The more Stacks there are, the longer it may take.
func (s *fixture) awaitCount(count int, is func(*pulumiv1.Stack) bool) {
	s.Eventually(func() (found int, err error) {
		var list pulumiv1.StackList
		err = system.Client.List(s.Context(), &list, client.InNamespace(s.Name))
		for i := range list.Items {
			if is(&list.Items[i]) {
				found++
			}
		}
		return found, err
	}).WithTimeout(5 * s.Patience).Should(Equal(count))
}

func TestSecretThatArrivesLaterThanTheStackOfAPrivateRepository(t *testing.T) {
	suite.Long(t, "each field of the former operator, on the whole system")
	t.Parallel()
	s := newFixture(t, "story-later")
	objects := s.manifest("manifests/git-token", "")
	s.Expect(s.applyAll(objects[1:])).To(Succeed())
	waits := notReady(pulumiv1.SecretNotFoundReason, `Secret "git"`)
	s.AwaitStack("git-token", waits)
	s.Consistently(func(g Gomega) {
		stack := &pulumiv1.Stack{}
		g.Expect(system.Client.Get(t.Context(), s.Key("git-token"), stack)).To(Succeed())
		g.Expect(waits(stack)).To(BeTrue(), "%v", stack.Status.Conditions)
		g.Expect(stack.Status.LastUpdate).To(BeNil(), "waiting is no failure")
	}).WithTimeout(20 * time.Second).WithPolling(time.Second).Should(Succeed())
	s.Expect(s.Updates()).To(BeEmpty())

	s.Expect(s.applyAll(objects[:1])).To(Succeed())
	s.AwaitStack("git-token", isAt(privateCommit))
}

func TestTokenThatIsRevokedAndRenewed(t *testing.T) {
	suite.Long(t, "each field of the former operator, on the whole system")
	t.Parallel()
	s := newFixture(t, "story-token")
	const name = "story/token"
	repo := newRepository(s.WithT, name)
	host.protect(name, gitPassword)
	s.applyPatched("git-token", "{spec: {projectRepo: '"+privateAddress+"/"+name+"'}}")
	s.AwaitStack("git-token", isAt(repo.first))

	host.protect(name, "canary-that-is-new")
	second := repo.commitOn(repo.first, "second")
	s.RequestStack("git-token")
	stack := s.AwaitStack("git-token", notReady(pulumiv1.AuthenticationFailedReason, `Secret "git"`))
	s.keeps(stack, repo.first)

	s.Expect(s.applyAll(s.parse("{apiVersion: v1, kind: Secret, metadata: {name: git}, stringData: {accessToken: canary-that-is-new}}"))).To(Succeed())
	s.RequestStack("git-token")
	s.AwaitStack("git-token", isAt(second))
}

func TestBranchThatIsForcePushedDeletedAndPushedAgain(t *testing.T) {
	suite.Long(t, "each field of the former operator, on the whole system")
	t.Parallel()
	s := newFixture(t, "story-branch")
	const name = "story/branch"
	repo := newRepository(s.WithT, name)
	repo.git("branch", "other", repo.first)
	second := repo.commitOn(repo.first, "second")
	s.applyPatched("git-branch", "{spec: {projectRepo: '"+gitAddress+"/"+name+"'}}")
	s.AwaitStack("git-branch", isAt(second))

	forced := repo.commitOn(repo.first, "instead of the second")
	repo.git("reflog", "expire", "--expire=now", "--all")
	repo.git("gc", "--prune=now", "--quiet")
	s.RequestStack("git-branch")
	stack := s.AwaitStack("git-branch", isAt(forced))
	s.Expect(stack.Status.LastAppliedRevision).To(Equal("main@sha1:" + forced))

	repo.git("update-ref", "-d", "refs/heads/main")
	s.RequestStack("git-branch")
	stack = s.AwaitStack("git-branch", notReady(pulumiv1.RevisionNotFoundReason, "main"))
	s.keeps(stack, forced)

	last := repo.commitOn(forced, "again")
	s.RequestStack("git-branch")
	s.AwaitStack("git-branch", isAt(last))
}

func TestRepositoryThatIsRenamed(t *testing.T) {
	suite.Long(t, "each field of the former operator, on the whole system")
	t.Parallel()
	s := newFixture(t, "story-renamed")
	repo := newRepository(s.WithT, "story/before")
	s.applyPatched("git-branch", "{spec: {projectRepo: '"+gitAddress+"/story/before'}}")
	s.AwaitStack("git-branch", isAt(repo.first))

	renamed := filepath.Join(filepath.Dir(repo.path), "after")
	s.Expect(os.Rename(repo.path, renamed)).To(Succeed())
	repo.path = renamed
	second := repo.commitOn(repo.first, "second")
	s.RequestStack("git-branch")
	stack := s.AwaitStack("git-branch", notReady(pulumiv1.RepositoryNotFoundReason, "story/before"))
	s.keeps(stack, repo.first)

	s.patch("git-branch", "{spec: {projectRepo: '"+gitAddress+"/story/after'}}")
	s.AwaitStack("git-branch", isAt(second))
}
