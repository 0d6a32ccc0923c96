package operation_test

import (
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	. "github.com/onsi/gomega"

	"github.com/stack-controller/stack-controller/internal/agent/agentpb"
	"github.com/stack-controller/stack-controller/tests/framework/suite"
)

// afterInterruption tells the agent that an earlier operation was interrupted, which only the controller knows.
func afterInterruption(request *agentpb.StartOperationRequest) { request.AfterInterruption = true }

// killAndForget kills pulumi in the middle of an operation. It also removes the lock, and the agent's directory with its records, so that
// only the state shows what was cut off.
func (f *fixture) killAndForget(ended <-chan *agentpb.Operation) {
	f.t.Helper()
	f.Expect(syscall.Kill(f.cli(), syscall.SIGKILL)).To(Succeed())
	f.await(ended)
	for _, lock := range f.locks() {
		f.Expect(os.Remove(lock)).To(Succeed())
	}
	f.Expect(os.RemoveAll(filepath.Join(f.home, ".automation"))).To(Succeed())
	f.restart()
}

func TestPendingCreateIsFoundWhereOnlyTheControllerKnowsOfTheInterruption(t *testing.T) {
	f := sleeper(t, "seconds: 1000")
	_, ended := f.start()
	f.killAndForget(ended)

	f.sleep("seconds: 0")
	operation := f.run(up, afterInterruption)
	f.Expect(operation.GetState()).To(Equal(failed))
	f.Expect(operation.GetMessage()).To(And(ContainSubstring("urn:pulumi:dev::demo::test:index:Sleep::slow"), ContainSubstring("could create it twice")))
	f.Expect(f.processes()).To(HaveExactElements(HavePrefix("stack export "), HavePrefix("stack init ")))
	f.Expect(strings.Count(f.noted(), "create start")).To(Equal(1))

	// Once somebody has decided, the update goes on, and costs only one more reading of the state.
	f.pulumi("refresh", "--yes", "--skip-preview", "--clear-pending-creates", "--stack", "dev")
	operation = f.succeed(up, afterInterruption)
	f.Expect(operation.GetMessage()).NotTo(ContainSubstring("cut off"))
	f.Expect(strings.Count(strings.Join(f.processes(), "\n"), "stack export")).To(Equal(1))
	f.Expect(strings.Count(f.noted(), "create end")).To(Equal(1))
}

func TestDestroyAfterAPendingCreateIsNoProofThatNothingIsLeft(t *testing.T) {
	suite.Long(t, "further pending creates; see TestPendingCreateIsFoundWhereOnlyTheControllerKnowsOfTheInterruption")
	f := sleeper(t, "seconds: 1000")
	_, ended := f.start()
	f.killAndForget(ended)

	removed := func(request *agentpb.StartOperationRequest) {
		request.Options = &agentpb.OperationOptions{Remove: true}
	}
	for range 2 {
		operation := f.fail(agentpb.FailureReason_FAILURE_REASON_UPDATE_FAILED, destroy, afterInterruption, removed)
		f.Expect(operation.GetMessage()).To(And(ContainSubstring("all known resources are destroyed"),
			ContainSubstring("an earlier update did not finish creating urn:pulumi:dev::demo::test:index:Sleep::slow"), ContainSubstring("--clear-pending-creates")))
		f.Expect(f.processes()).To(HaveExactElements(HavePrefix("stack export "), HavePrefix("destroy ")), "the record of it stays")
	}

	f.pulumi("refresh", "--yes", "--skip-preview", "--clear-pending-creates", "--stack", "dev")
	f.succeed(destroy, afterInterruption, removed)
	f.Expect(f.processes()).To(ContainElement(HavePrefix("stack rm ")))
}

func TestPendingUpdatesAndDeletionsAreReported(t *testing.T) {
	suite.Long(t, "further things that an earlier operation leaves")
	f := sleeper(t, "seconds: 0, deleteSeconds: 1000")
	f.succeed(up)

	f.sleep("seconds: 1000")
	_, ended := f.beginUntil("update start\n", up)
	f.killAndForget(ended)
	f.sleep("seconds: 0, deleteSeconds: 1000, content: new")
	operation := f.succeed(up, afterInterruption)
	f.Expect(operation.GetMessage()).To(ContainSubstring(
		"an earlier operation was cut off while it was updating test:index:Sleep slow: a refresh shows whether that took effect"))
	f.Expect(f.run(up, afterInterruption).GetMessage()).NotTo(ContainSubstring("cut off"))

	f.write("Pulumi.yaml", simpleProgram)
	_, ended = f.beginUntil("delete start\n", up)
	f.killAndForget(ended)
	f.sleep("seconds: 0")
	operation = f.succeed(up, afterInterruption)
	f.Expect(operation.GetMessage()).To(ContainSubstring("cut off while it was deleting test:index:Sleep slow"))
	f.Expect(strings.Count(f.noted(), "create start")).To(Equal(1))
}
