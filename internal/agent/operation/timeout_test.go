package operation_test

import (
	"context"
	"fmt"
	"net/http"
	"net/http/httptest"
	"testing"
	"time"

	. "github.com/onsi/gomega"

	"github.com/stack-controller/stack-controller/internal/agent/agentpb"
	runner "github.com/stack-controller/stack-controller/internal/agent/operation"
	"github.com/stack-controller/stack-controller/tests/framework/suite"
)

// runFor runs an update with a timeout, which it enforces as the agent enforces the timeout of a request.
func (f *fixture) runFor(timeout time.Duration, change ...func(*agentpb.StartOperationRequest)) *agentpb.Operation {
	f.t.Helper()
	ctx, cancel := context.WithTimeoutCause(f.t.Context(), timeout, runner.ErrTimeout)
	defer cancel()
	return f.runContext(ctx, up, change...)
}

// timedOut checks that the operation ended because of its timeout, and that its message begins with that.
func (f *fixture) timedOut(operation *agentpb.Operation, message string) {
	f.t.Helper()
	f.Expect(operation.GetState()).To(Equal(failed))
	f.Expect(operation.GetFailure()).To(Equal(agentpb.FailureReason_FAILURE_REASON_TIMEOUT))
	f.Expect(operation.GetMessage()).To(And(HavePrefix("the operation took longer than its timeout"), ContainSubstring(message)))
}

func TestTimeoutEndsThePreparations(t *testing.T) {
	suite.Long(t, "further moments in which an operation is stopped")
	f := newFixture(t)
	server := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, request *http.Request) { <-request.Context().Done() }))
	defer server.Close()
	f.write("Pulumi.yaml", fmt.Sprintf(`
name: demo
runtime: yaml
packages: {}
resources:
  one:
    type: missing:index:Thing
    options: {version: 1.2.3, pluginDownloadURL: %q}
`, server.URL))
	start := time.Now()
	operation := f.runFor(3*time.Second, withGrace(aWhile))
	f.timedOut(operation, "")
	f.Expect(time.Since(start)).To(BeNumerically("<", long), "an installation may be cut off at once")
	f.Expect(f.processes()).To(HaveExactElements(Equal("install")))
}

func TestTimeoutEndsTheSearchForDrift(t *testing.T) {
	suite.Long(t, "further moments in which an operation is stopped")
	f := sleeper(t, "seconds: 0")
	f.succeed(up)
	f.sleep("seconds: 10")
	f.succeed(up)
	f.processes()
	f.timedOut(f.runFor(8*time.Second, expectsNoDrift), "pulumi stopped gracefully")
	f.Expect(f.processes()).To(HaveExactElements(HavePrefix("refresh --preview-only")))
}

func TestTimeoutDoesNotCutOffTheOutputsOfAnUpdateThatSucceeded(t *testing.T) {
	suite.Long(t, "further moments in which an operation is stopped")
	f := newFixture(t)
	f.write("Pulumi.yaml", "name: demo\nruntime: yaml\noutputs:\n  token: {fn::secret: canary}\n")
	f.succeed(up)
	f.replaceCLI("case \" $* \" in *' output '*) touch %q; sleep 10;; esac\nexec " + tool(t, "pulumi") + " \"$@\"\n")
	start := time.Now()
	operation := f.runFor(10 * time.Second)
	f.Expect(operation.GetState()).To(Equal(succeeded), operation.GetMessage())
	f.Expect(f.journal()).To(BeAnExistingFile())
	f.Expect(time.Since(start)).To(BeNumerically(">", 10*time.Second), "its time was over")
	f.Expect(operation.GetOutputs()["token"].GetValue()).To(BeEquivalentTo(`"canary"`))
}
