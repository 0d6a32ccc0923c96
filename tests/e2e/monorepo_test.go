package e2e_test

import (
	"fmt"
	"strings"
	"testing"

	. "github.com/onsi/gomega"

	pulumiv1 "github.com/stack-controller/stack-controller/api/pulumi/v1"
	"github.com/stack-controller/stack-controller/tests/gitserver"
)

// project is a program in a directory of its own.
func project(dir, value string) gitserver.Files {
	return gitserver.Files{dir + "/Pulumi.yaml": fmt.Sprintf("name: monorepo-%s\nruntime: yaml\noutputs:\n  x: %s\n", dir, value)}
}

// applied is a Stack that is Ready and shows the commit as what it runs.
func applied(sha string) func(*pulumiv1.Stack) bool {
	return func(s *pulumiv1.Stack) bool {
		return ready(sha)(s) && strings.HasSuffix(s.Status.LastAppliedRevision, "@sha1:"+sha) &&
			strings.HasSuffix(s.Status.LastAttemptedRevision, "@sha1:"+sha) && strings.HasSuffix(readyMessage(s), "@sha1:"+sha)
	}
}

func TestCommitRunsOnlyTheStacksThatItTouches(t *testing.T) {
	t.Parallel()
	g := NewWithT(t)
	repository, first, err := system.Git.Create("monorepo", gitserver.Files{
		"a/Pulumi.yaml": project("a", "1")["a/Pulumi.yaml"], "b/Pulumi.yaml": project("b", "1")["b/Pulumi.yaml"], "lib/x.txt": "x", "README.md": "old",
	})
	g.Expect(err).NotTo(HaveOccurred())
	for _, dir := range []string{"a", "b"} {
		name := "monorepo-" + dir
		stack := gitStack(name, repository)
		stack.Spec.RepoDir = dir
		stack.Spec.SourcePaths = []string{"lib/**", "absent/*.yaml"}
		startInNamespace(t, g, name, stack)
		await(t.Context(), g, name, applied(first))
		g.Expect(eventsOf(t.Context(), g, name, "SourcePathUnmatched")).To(ConsistOf(ContainSubstring(`matches ["absent/*.yaml"]`)))
	}
	// The branch is polled every minute at most; another spec that means the same would run an update, and so would a request. So the
	// first Stack asks, and the second one hears of what was found, because both follow the same branch.
	second, err := repository.Commit(project("a", "2"))
	g.Expect(err).NotTo(HaveOccurred())
	await(t.Context(), g, "monorepo-b", ready(first))
	request(t, g, "monorepo-a")
	a := await(t.Context(), g, "monorepo-a", applied(second))
	g.Expect(string(a.Status.Outputs["x"].Raw)).To(Equal("2"))
	b := await(t.Context(), g, "monorepo-b", applied(second))
	g.Expect(updates(t.Context(), g, "monorepo-b")).To(HaveLen(1), "the commit is none of it")
	g.Expect(b.Status.LastUpdate.Revision).To(Equal("main@sha1:"+first), "the operation ran that")

	third, err := repository.Commit(gitserver.Files{"lib/x.txt": "y"})
	g.Expect(err).NotTo(HaveOccurred())
	request(t, g, "monorepo-a")
	await(t.Context(), g, "monorepo-a", applied(third))
	await(t.Context(), g, "monorepo-b", applied(third))
	g.Expect(updates(t.Context(), g, "monorepo-b")).To(HaveLen(2), "a path that both share changed")
}

func TestEveryRevisionRunsWhenTheSpecSaysSo(t *testing.T) {
	t.Parallel()
	g := NewWithT(t)
	const name = "every-revision"
	repository, _ := deployedFromGit(t, g, name, yamlProgram(name, "outputs:", "  x: 1"), func(s *pulumiv1.Stack) {
		s.Spec.UpdateOn = pulumiv1.UpdateOnRevision
	})
	// A second Stack of the same branch asks, so that it is not the request that runs an update.
	other := gitStack(name, repository)
	other.Name, other.Spec.Stack = "other", "other"
	g.Expect(system.Client.Create(t.Context(), other)).To(Succeed())
	second, err := repository.Commit(gitserver.Files{})
	g.Expect(err).NotTo(HaveOccurred())
	g.Eventually(func(g Gomega) {
		g.Expect(system.Client.Get(t.Context(), keyIn(name, "other"), other)).To(Succeed())
		g.Expect(ready("")(other)).To(BeTrue())
	}).WithTimeout(patience).WithPolling(pollInterval).Should(Succeed())
	requestOf(t, g, keyIn(name, "other"))
	stack := await(t.Context(), g, name, applied(second))
	g.Expect(stack.Status.LastUpdate.Revision).To(Equal("main@sha1:" + second))
	g.Expect(history(g, name, "dev")).To(HaveLen(2), "the same content was deployed again")
}

func TestPathsCountForFluxSourcesToo(t *testing.T) {
	t.Parallel()
	g := NewWithT(t)
	const name = "flux-paths"
	files := gitserver.Files{"app/Pulumi.yaml": yamlProgram(name, "outputs:", "  x: 1")["Pulumi.yaml"], "other/file": "1"}
	first := artifacts.put("v1", packed(files))
	g.Expect(start(t.Context(), name, first, func(s *pulumiv1.Stack) {
		s.Spec.FluxSource.Dir, s.Spec.SourcePaths = "app", []string{"lib"}
	})).To(Succeed())
	await(t.Context(), g, name, ready(first.Digest))

	files["other/file"] = "2"
	second := artifacts.put("v2", packed(files))
	g.Expect(publish(t.Context(), name, second)).To(Succeed())
	stack := await(t.Context(), g, name, ready(second.Digest))
	g.Expect(stack.Status.LastAppliedRevision).To(Equal("v2"))
	g.Expect(updates(t.Context(), g, name)).To(HaveLen(1))

	files["app/Pulumi.yaml"] = yamlProgram(name, "outputs:", "  x: 2")["Pulumi.yaml"]
	third := artifacts.put("v3", packed(files))
	g.Expect(publish(t.Context(), name, third)).To(Succeed())
	stack = await(t.Context(), g, name, ready(third.Digest))
	g.Expect(string(stack.Status.Outputs["x"].Raw)).To(Equal("2"))
}
