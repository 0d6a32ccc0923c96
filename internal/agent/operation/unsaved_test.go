package operation_test

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	. "github.com/onsi/gomega"

	"github.com/stack-controller/stack-controller/internal/agent/agentpb"
	"github.com/stack-controller/stack-controller/tests/framework/suite"
)

// The credentials of a backend may expire while an update runs. What the CLI says then, which has the name of this test in a path, is also what it says
// if it never got in.
func TestAccessDeniedAfterTheCreationIsNoReasonToCreateAgain(t *testing.T) {
	suite.Long(t, "Pulumi tries to save the state for a long time")
	f := sleeper(t, "seconds: 3")
	_, ended := f.start()
	backend := filepath.Join(f.state, ".pulumi")
	for _, dir := range []string{"stacks", "locks"} {
		path := filepath.Join(backend, dir)
		f.Expect(os.Rename(path, path+".away")).To(Succeed())
		f.Expect(os.WriteFile(path, nil, 0o600)).To(Succeed())
	}
	var operation *agentpb.Operation
	f.Eventually(ended).WithTimeout(5 * time.Minute).Should(Receive(&operation)) // Pulumi tries to save the state ten times
	f.Expect(operation.GetState()).To(Equal(failed))
	f.Expect(operation.GetRunTime()).NotTo(BeNil())
	f.Expect(f.noted()).To(HaveSuffix("create end\n"))
	for _, dir := range []string{"stacks", "locks"} {
		path := filepath.Join(backend, dir)
		f.Expect(os.Remove(path)).To(Succeed())
		f.Expect(os.Rename(path+".away", path)).To(Succeed())
	}
	f.Expect(f.locks()).To(HaveLen(1))

	f.sleep("seconds: 0")
	operation = f.fail(agentpb.FailureReason_FAILURE_REASON_UPDATE_FAILED, up, afterInterruption)
	f.Expect(operation.GetMessage()).To(ContainSubstring("an earlier update did not finish creating urn:pulumi:dev::demo::test:index:Sleep::slow: another update could create it twice"))
	f.Expect(strings.Count(f.noted(), "create start")).To(Equal(1))
	f.Expect(f.locks()).To(BeEmpty(), "the lock is that of a process of this agent")
}
