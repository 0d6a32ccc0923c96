package main

import (
	"fmt"
	"os"
	"path/filepath"
	"syscall"
	"testing"

	. "github.com/onsi/gomega"

	"github.com/stack-controller/stack-controller/internal/agent/agentpb"
	"github.com/stack-controller/stack-controller/internal/agent/client"
	"github.com/stack-controller/stack-controller/tests/framework/programs"
	"github.com/stack-controller/stack-controller/tests/framework/suite"
)

// sleeper is a program with a resource that takes 1000 seconds to be created.
const sleeper = `
name: demo
runtime: yaml
resources:
  slow:
    type: test:index:Sleep
    properties: {journal: %q, seconds: 1000}
    options: {version: 0.1.0}
`

func TestAPodThatIsDeletedReportsHowItsOperationEnded(t *testing.T) {
	suite.Long(t, "waits as long as an agent that nobody answers")
	b := newBench(t)
	b.Expect(programs.PutProvider(t.Context(), filepath.Join(b.dir, "home", ".pulumi"))).Error().NotTo(HaveOccurred())
	a := b.start("--termination-grace=10m")
	journal := filepath.Join(filepath.Dir(b.dir), "journal")
	digest := b.push(a, fmt.Sprintf(sleeper, journal))
	b.startUpdate(a, b.update("a", digest))
	b.Eventually(func() string { noted, _ := os.ReadFile(journal); return string(noted) }).WithTimeout(patience).Should(ContainSubstring("create start"))
	b.Expect(b.locks()).To(HaveLen(1))

	b.Expect(a.process.Signal(syscall.SIGTERM)).To(Succeed())
	b.Expect(b.wait(a, "a")).To(And(
		HaveField("State", agentpb.OperationState_OPERATION_STATE_INTERRUPTED),
		HaveField("Message", ContainSubstring("the agent is shutting down: pulumi stopped gracefully"))))
	b.Expect(b.locks()).To(BeEmpty())
	b.Expect(a.StartOperation(t.Context(), b.update("b", digest))).Error().To(MatchError(client.ErrUnavailable))
	b.Expect(a.ForgetOperation(t.Context(), "a")).To(Succeed())
	var code int
	b.Eventually(a.exit).WithTimeout(patience).Should(Receive(&code))
	b.Expect(code).To(Equal(0))
}

// locks returns the locks of the backend.
func (b *bench) locks() []string {
	b.t.Helper()
	locks, err := filepath.Glob(filepath.Join(filepath.Dir(b.dir), "state", ".pulumi", "locks", "*", "*", "*", "*.json"))
	b.Expect(err).NotTo(HaveOccurred())
	return locks
}
