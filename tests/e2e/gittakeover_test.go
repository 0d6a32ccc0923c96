package e2e_test

import (
	"testing"

	. "github.com/onsi/gomega"

	"github.com/fluxcd/pkg/apis/meta"

	pulumiv1 "github.com/stack-controller/stack-controller/api/pulumi/v1"
	"github.com/stack-controller/stack-controller/tests/suite"
)

// The tests of this file run alone, before the parallel ones: they end the controller.

func TestGitStackOfTheFormerControllerIsTakenOver(t *testing.T) {
	suite.Long(t, "a Stack of the former operator with a repository")
	p := alone(t, "former-git")
	repository, sha := p.deployedFromGit(p.returning(1), func(s *pulumiv1.Stack) {
		s.Annotations = map[string]string{meta.ReconcileRequestAnnotation: "long ago"}
	})
	p.stopController()
	recorded := p.leftByTheFormerController(sha)
	p.startController()
	stack := p.Await(func(s *pulumiv1.Stack) bool { return ready(sha)(s) && len(s.Status.History) == 1 && s.Status.Deployed })
	p.Expect(stack.Status.LastUpdate.Name).To(Equal(recorded.Name))
	p.Expect(stack.Status.LastUpdate.Revision).To(Equal("main@sha1:" + sha))
	// What comes later is deployed later.
	p.beside(p.Name + "-later").deployed()
	p.Expect(p.Updates()).To(HaveLen(2), "nothing runs because the controller changed")

	next := p.commit(repository, p.returning(2))
	p.Request()
	p.Await(ready(next))
}

func TestRestartOfTheControllerLeavesGitStacksAsTheyAre(t *testing.T) {
	suite.Long(t, "a Stack of the former operator with a repository")
	p := alone(t, "git-restarted")
	repository, sha := p.deployedFromGit(p.returning(1))
	before := p.Await(ready(sha))
	p.restartController()
	// A Stack of the same branch is deployed when the answer of the git server has come.
	p.Create(p.gitStack(repository.URL, named("later")))
	p.AwaitStack("later", ready(sha))
	p.Expect(p.Await(ready(sha)).ResourceVersion).To(Equal(before.ResourceVersion), "nothing was written")

	// The next one follows all the same.
	next := p.commit(repository, p.returning(2))
	p.RequestStack("later")
	p.Await(ready(next))
}
