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
	"github.com/stack-controller/stack-controller/tests/gitserver"
	"github.com/stack-controller/stack-controller/tests/statuscheck"
	"github.com/stack-controller/stack-controller/tests/suite"
)

// repository is a bare repository on the disk of the git server, for what nobody does through a clone.
type repository struct {
	g    *WithT
	path string
	// first is the commit that it was created with.
	first string
}

// newRepository creates a repository of the name with the program "echo".
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

// commitOn makes a commit with the files of the first one on a parent, and moves the branch there, whatever it was before.
func (r *repository) commitOn(parent, message string) string {
	sha := r.git("commit-tree", r.first+"^{tree}", "-p", parent, "-m", message)
	r.git("update-ref", "refs/heads/main", sha)
	return sha
}

// isAt is a Stack that is Ready with the commit.
func isAt(commit string) func(*pulumiv1.Stack) bool {
	return func(stack *pulumiv1.Stack) bool {
		return isReady(stack) && stack.Status.LastUpdate.LastSuccessfulCommit == commit
	}
}

// keeps expects that what was deployed is still known.
func (s *play) keeps(stack *pulumiv1.Stack, commit string) {
	s.Expect(stack.Status.LastUpdate.LastSuccessfulCommit).To(Equal(commit))
	s.Expect(stack.Status.LastUpdate.State).To(Equal(pulumiv1.StackUpdateSucceeded), "a source in trouble is no failed update")
	s.Expect(stack.Status.LastUpdate.Failures).To(BeZero())
}

// TestHundredStacksOnABranchLookAtItOnce has a hundred Stacks that follow a branch and want to run what it names. Ten are deployed. The
// API server refuses the Workspaces of the others, which costs less than a hundred runs of pulumi: it does so when everything else is
// ready, so each has looked for the commit and asked for its files.
func TestHundredStacksOnABranchLookAtItOnce(t *testing.T) {
	suite.Long(t, "each field of the former operator, on the whole system")
	t.Parallel()
	s := newPlay(t, "story-hundred")
	const name, deployed, all = "story/hundred", 10, 100
	repo := newRepository(s.WithT, name)
	for i := range all {
		template := ""
		if i >= deployed {
			template = ", workspaceTemplate: {metadata: {labels: {'not a label': x}}}"
		}
		// What anybody may read is shared by namespaces and credentials.
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
	s.Expect(seen.looks).To(beAnIntervalApart(1))

	// All of them ask for the second commit, while the server takes its time: the look that runs answers the first of them, and one
	// more answers all others.
	second := repo.commitOn(repo.first, "second")
	before, release := host.hold(name)
	for i := range all {
		s.RequestStack(fmt.Sprintf("stack-%d", i))
	}
	waited := map[string]bool{} // a look that takes too long is given up, and begins anew
	s.awaitCount(all, func(stack *pulumiv1.Stack) bool {
		waited[stack.Name] = waited[stack.Name] || strings.Contains(statuscheck.Message(stack), "looking for main in")
		return waited[stack.Name]
	})
	release()
	seen = haveTried(second)
	s.Expect(seen.checkouts).To(Equal([]string{repo.first, second}))
	s.Expect(len(seen.looks)).To(BeNumerically(">", len(before.looks)))

	// Nobody asks for the third.
	third := repo.commitOn(second, "third")
	s.Eventually(func() []string { return host.traffic(name).checkouts }).WithTimeout(longestInterval + s.Patience).
		Should(Equal([]string{repo.first, second, third}))
	seen = haveTried(third)
	s.Expect(seen.checkouts).To(HaveLen(3), "a commit is checked out once, however many want it")
	s.Expect(seen.looks[len(before.looks)+1:]).To(beAnIntervalApart(1), "a hundred requests need two answers at most")
}

// shortestInterval and longestInterval are those between looks of Stacks that ask for none, with the controller's jitter.
const (
	shortestInterval = pulumiv1.MinResyncInterval * 95 / 100
	longestInterval  = pulumiv1.MinResyncInterval * 105 / 100
)

// beAnIntervalApart expects so many looks at least, and that each is an interval after the one before.
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

// awaitCount waits until so many Stacks of the scene are as asked. That takes the longer the more they are.
func (s *play) awaitCount(count int, is func(*pulumiv1.Stack) bool) {
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
	s := newPlay(t, "story-later")
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
	s := newPlay(t, "story-token")
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
	s := newPlay(t, "story-branch")
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
	s := newPlay(t, "story-renamed")
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
