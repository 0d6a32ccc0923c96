package cli_test

import (
	"testing"

	. "github.com/onsi/gomega"
)

func TestCheckFindsTheControllerAndTheRightsThatAreMissing(t *testing.T) {
	g := NewWithT(t)
	golden(t, "check", 0, "check", "-n", recorded)
	answer := cli(t.Context(), today, "check", "-n", recorded, "--as", "nobody")
	g.Expect(answer.code).To(Equal(0), "a right that is missing is no failure")
	g.Expect(answer.err).To(And(
		ContainSubstring("⚠ the controller cannot be checked"),
		ContainSubstring("⚠ you may not patch stacks.pulumi.com, which these need: reconcile, suspend, resume and cancel"),
		ContainSubstring("⚠ you may not get pods/log, which these need: logs")))
	answer = cli(t.Context(), today, "get", "stacks", "-n", recorded, "--as", "nobody")
	g.Expect(answer.code).To(Equal(1))
	g.Expect(answer.err).To(ContainSubstring("list Stack: you are not allowed to: "))
}
