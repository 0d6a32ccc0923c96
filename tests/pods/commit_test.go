package pods_test

import (
	"context"
	"testing"

	. "github.com/onsi/gomega"

	"github.com/stack-controller/stack-controller/tests/gitserver"
)

// program is a project with one output.
func program(value string) gitserver.Files {
	return gitserver.Files{"Pulumi.yaml": "name: app\nruntime: yaml\noutputs:\n  value: " + value + "\n"}
}

func TestCommitIsDeployedByTheSamePod(t *testing.T) {
	g := NewWithT(t)
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	app, err := system.Deploy(ctx, "commit", program("one"))
	g.Expect(err).NotTo(HaveOccurred())
	stack, err := system.WaitReady(ctx, app)
	g.Expect(err).NotTo(HaveOccurred())
	g.Expect(stack.Status.Outputs).To(HaveKey("value"))

	rollout, err := system.Rollout(ctx, app, program("two"))
	g.Expect(err).NotTo(HaveOccurred())
	t.Logf("from the artifact to the success: %s", rollout.Duration())
}
