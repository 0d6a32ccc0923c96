package e2e_test

import (
	"context"
	"fmt"
	"testing"

	. "github.com/onsi/gomega"

	pulumiv1 "github.com/stack-controller/stack-controller/api/pulumi/v1"
	"github.com/stack-controller/stack-controller/tests/gitserver"
)

// program is a Pulumi program with one output.
func program(value string) gitserver.Files {
	return gitserver.Files{"Pulumi.yaml": fmt.Sprintf("name: e2e\nruntime: yaml\nvariables:\n  value: %s\noutputs:\n  value: ${value}\n", value)}
}

func TestStackFollowsTheCommitsOfAGitRepository(t *testing.T) {
	g := NewWithT(t)
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()

	app, err := system.Deploy(ctx, "follows-commits", program("first"))
	g.Expect(err).NotTo(HaveOccurred())
	stack, err := system.WaitReady(ctx, app)
	g.Expect(err).NotTo(HaveOccurred())
	g.Expect(stack.Status.LastUpdate).NotTo(BeNil())
	g.Expect(stack.Status.LastUpdate.State).To(Equal(pulumiv1.StackUpdateSucceeded))
	first := stack.Status.LastUpdate.LastSuccessfulCommit
	g.Expect(first).To(MatchRegexp("^sha256:[0-9a-f]{64}$"))
	g.Expect(string(stack.Status.Outputs["value"].Raw)).To(Equal(`"first"`))

	rollout, err := system.Rollout(ctx, app, program("second"))
	g.Expect(err).NotTo(HaveOccurred())
	g.Expect(rollout.Digest).NotTo(Equal(first))
	stack, err = system.WaitReady(ctx, app)
	g.Expect(err).NotTo(HaveOccurred())
	g.Expect(stack.Status.LastUpdate.LastSuccessfulCommit).To(Equal(rollout.Digest))
	g.Expect(stack.Status.LastAppliedRevision).To(Equal("main@sha1:" + rollout.SHA))
	g.Expect(string(stack.Status.Outputs["value"].Raw)).To(Equal(`"second"`))
}
