package e2e_test

import (
	"context"
	"fmt"
	"testing"

	. "github.com/onsi/gomega"

	pulumiv1 "github.com/stack-controller/stack-controller/api/pulumi/v1"
	"github.com/stack-controller/stack-controller/tests/gitserver"
	"github.com/stack-controller/stack-controller/tests/stage/scene"
)

// program is a Pulumi program with one output.
func program(value string) gitserver.Files {
	return gitserver.Files{"Pulumi.yaml": fmt.Sprintf("name: e2e\nruntime: yaml\nvariables:\n  value: %s\noutputs:\n  value: ${value}\n", value)}
}

func TestStackFollowsTheCommitsOfAGitRepository(t *testing.T) {
	p := begin(t, "follows-commits")
	ctx, cancel := context.WithTimeout(p.Context(), p.Patience)
	defer cancel()
	app, err := system.Deploy(ctx, p.Name, program("first"))
	p.Succeed(err)
	stack, err := system.WaitReady(ctx, app)
	p.Succeed(err)
	p.Expect(stack.Status.LastUpdate).NotTo(BeNil())
	p.Expect(stack.Status.LastUpdate.State).To(Equal(pulumiv1.StackUpdateSucceeded))
	first := stack.Status.LastUpdate.LastSuccessfulCommit
	p.Expect(first).To(MatchRegexp("^sha256:[0-9a-f]{64}$"))
	p.Expect(scene.Output(stack, "value")).To(Equal(`"first"`))

	rollout, err := system.Rollout(ctx, app, program("second"))
	p.Succeed(err)
	p.Expect(rollout.Digest).NotTo(Equal(first))
	stack, err = system.WaitReady(ctx, app)
	p.Succeed(err)
	p.Expect(stack.Status.LastUpdate.LastSuccessfulCommit).To(Equal(rollout.Digest))
	p.Expect(stack.Status.LastAppliedRevision).To(Equal("main@sha1:" + rollout.SHA))
	p.Expect(scene.Output(stack, "value")).To(Equal(`"second"`))
}
