package e2e_test

import (
	"slices"
	"strings"
	"testing"

	. "github.com/onsi/gomega"

	"github.com/fluxcd/pkg/apis/meta"

	pulumiv1 "github.com/stack-controller/stack-controller/api/pulumi/v1"
	"github.com/stack-controller/stack-controller/tests/framework/suite"
	"github.com/stack-controller/stack-controller/tests/framework/systemtest"
)

// restarts returns the ways in which a controller ends.
func restarts() map[string]func() error {
	return map[string]func() error{"killed": system.KillController, "stopped": system.StopController}
}

// The tests that end the controller run alone, before the parallel ones.

func TestUpdateSurvivesTheControllerAndRunsOnce(t *testing.T) {
	for name, end := range restarts() {
		t.Run(name, func(t *testing.T) {
			p := alone(t, "survives-"+name)
			p.deployed()
			before := p.calls(p.Name)
			release := p.hold()
			artifact := p.publish(p.returning(2))
			p.awaitHeld()
			running := p.Await(func(s *pulumiv1.Stack) bool { return s.Status.CurrentUpdate != nil }).Status.CurrentUpdate

			p.Expect(end()).To(Succeed())
			p.startController()
			release()

			stack := p.Await(ready(artifact.Digest))
			p.Expect(stack.Status.LastUpdate.Name).To(Equal(running.Name))
			p.Expect(stack.Status.LastUpdate.State).To(Equal(pulumiv1.StackUpdateSucceeded))
			p.Expect(stack.Status.LastUpdate.Failures).To(BeZero())
			p.Expect(p.Updates()).To(HaveLen(2))
			calls := p.calls(p.Name)[len(before):]
			calls = slices.DeleteFunc(calls, func(call string) bool { return strings.HasSuffix(call, " version") })
			p.Expect(calls).To(ConsistOf(ContainSubstring(" up ")), "one update is one process of the CLI")
		})
	}
}

func TestRevisionsDuringAnUpdateEndWithTheLastOne(t *testing.T) {
	suite.Long(t, "further moments of a restart")
	p := begin(t, "overtaken")
	p.deployed()
	release := p.hold()
	var last *meta.Artifact
	for i := range 4 {
		last = p.publish(p.returning(i + 2))
		p.awaitHeld()
	}
	release()
	stack := p.Await(ready(last.Digest))
	p.Expect(systemtest.Output(stack, "x")).To(Equal("5"))
	p.Expect(len(p.Updates())).To(BeNumerically("<=", 3), "revisions in between are skipped")
}

func TestStackDeletedDuringAnUpdateIsDestroyedAfterIt(t *testing.T) {
	suite.Long(t, "further moments of a restart")
	p := begin(t, "interrupted-life")
	p.deployed(destroyed)
	release := p.hold()
	p.publish(p.returning(2))
	p.awaitHeld()
	p.Delete()
	release()
	p.awaitDestroyed()
}

func TestRestartWritesNothingAboutReadyStacks(t *testing.T) {
	for name, end := range restarts() {
		t.Run(name, func(t *testing.T) {
			p := alone(t, "rests-"+name)
			p.deployed()
			versions := func() []string {
				found := []string{p.Await(ready("")).ResourceVersion, p.Workspace().ResourceVersion}
				for _, update := range p.Updates() {
					found = append(found, update.Name, update.ResourceVersion)
				}
				return found
			}
			p.Eventually(p.Updates).Should(ConsistOf(HaveField("Finalizers", BeEmpty())))
			before := versions()
			p.Expect(end()).To(Succeed())
			p.startController()
			// The controller deploys this Stack after it has reconciled the Stacks that existed before the restart.
			p.beside(p.Name + "-later").deployed()
			p.Expect(versions()).To(Equal(before))
		})
	}
}

func TestRestartOfTheControllerLeavesGitStacksAsTheyAre(t *testing.T) {
	suite.Long(t, "a Stack of the former operator with a repository")
	p := alone(t, "git-restarted")
	repository, sha := p.deployedFromGit(p.returning(1))
	before := p.Await(ready(sha))
	p.restartController()
	// The later Stack of the same branch is deployed as soon as the git server has responded.
	p.Create(p.gitStack(repository.URL, named("later")))
	p.AwaitStack("later", ready(sha))
	p.Expect(p.Await(ready(sha)).ResourceVersion).To(Equal(before.ResourceVersion), "nothing was written")

	// The restarted controller still follows the branch.
	next := p.commit(repository, p.returning(2))
	p.RequestStack("later")
	p.Await(ready(next))
}
