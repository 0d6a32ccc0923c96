package server

import (
	"path/filepath"
	"testing"

	. "github.com/onsi/gomega"

	"github.com/stack-controller/stack-controller/internal/agent/agentpb"
)

func TestAProjectThatIsALeftOutLinkIsNotRun(t *testing.T) {
	dir := t.TempDir()
	a := startAgent(t, dir)
	source := pack(t, map[string]string{
		"Pulumi.yaml": projectYAML, "linked/Pulumi.yaml": linkTo + "../../Pulumi.yaml", "linked/Pulumi.yml": projectYAML,
		"to": linkTo + "../other", "fine/Pulumi.yaml": projectYAML, "fine/Pulumi.json": linkTo + "x", "fine/Pulumi.dev.yaml": linkTo + "/etc/passwd",
	})
	a.Expect(a.push(source)).To(Succeed())
	for id, dirs := range map[string]string{"file": "linked", "slashes": "./linked/", "dir": "to", "below": "to/app"} {
		a.accept(update(id, source.digest, dirs))
		a.Expect(a.wait(id)).To(And(
			HaveField("State", failed), HaveField("Failure", agentpb.FailureReason_FAILURE_REASON_PROJECT_INVALID),
			HaveField("Message", ContainSubstring("is a symbolic link that was left out"))), id)
	}
	a.Expect(a.runner.calls).To(BeEmpty())
	a.Expect(a.stop()).To(Succeed())

	// Another agent on the same directory knows the links, too.
	a = startAgent(t, dir)
	a.accept(update("again", source.digest, "linked"))
	a.Expect(a.wait("again")).To(HaveField("Message", ContainSubstring("is a symbolic link that was left out")))
	started := a.startRequest(update("fine", source.digest, "fine"))
	tree := filepath.Join(dir, sourceName)
	a.Expect(started.paths.LeftOut).To(ConsistOf(filepath.Join(tree, "linked/Pulumi.yaml"), filepath.Join(tree, "to"),
		filepath.Join(tree, "fine/Pulumi.json"), filepath.Join(tree, "fine/Pulumi.dev.yaml")))
	a.finish("fine", &agentpb.Operation{State: succeeded})

	// The links of one source are not those of the next one.
	next := pack(t, map[string]string{"linked/Pulumi.yaml": projectYAML})
	a.Expect(a.push(next)).To(Succeed())
	a.Expect(a.startRequest(update("next", next.digest, "linked")).paths.LeftOut).To(BeEmpty())
	a.finish("next", &agentpb.Operation{State: succeeded})
}
