package e2e_test

import (
	"strings"
	"testing"

	. "github.com/onsi/gomega"

	pulumiv1 "github.com/stack-controller/stack-controller/api/pulumi/v1"
	"github.com/stack-controller/stack-controller/tests/gitserver"
	"github.com/stack-controller/stack-controller/tests/stage/scene"
	"github.com/stack-controller/stack-controller/tests/statuscheck"
	"github.com/stack-controller/stack-controller/tests/suite"
)

// applied is a Stack that is Ready and shows the commit as what it runs.
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
	for dir, p := range map[string]*play{"a": a, "b": b} {
		p.enter(p.gitStack(repository.URL, func(s *pulumiv1.Stack) {
			s.Spec.RepoDir, s.Spec.SourcePaths = dir, []string{"lib/**", "absent/*.yaml"}
		}))
		p.Await(applied(first))
		p.Expect(p.events("SourcePathUnmatched")).To(ConsistOf(ContainSubstring(`matches ["absent/*.yaml"]`)))
	}
	// The branch is polled every minute at most; another spec that means the same would run an update, and so would a request. So the
	// first Stack asks, and the second one hears of what was found, because both follow the same branch.
	second := shared.commit(repository, gitserver.Files{"a/Pulumi.yaml": a.returning(2)["Pulumi.yaml"]})
	b.Await(ready(first))
	a.Request()
	a.Expect(scene.Output(a.Await(applied(second)), "x")).To(Equal("2"))
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
	// A second Stack of the same branch asks, so that it is not the request that runs an update.
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
	files := gitserver.Files{"app/Pulumi.yaml": p.returning(1)["Pulumi.yaml"], "other/file": "1"}
	first := p.put(files)
	p.start(first, func(s *pulumiv1.Stack) { s.Spec.FluxSource.Dir, s.Spec.SourcePaths = "app", []string{"lib"} })
	p.Await(ready(first.Digest))

	files["other/file"] = "2"
	second := p.publish(files)
	stack := p.Await(ready(second.Digest))
	p.Expect(stack.Status.LastAppliedRevision).To(Equal("v2"))
	p.Expect(p.Updates()).To(HaveLen(1))

	files["app/Pulumi.yaml"] = p.returning(2)["Pulumi.yaml"]
	third := p.publish(files)
	stack = p.Await(ready(third.Digest))
	p.Expect(scene.Output(stack, "x")).To(Equal("2"))
}
