package automation_test

import (
	"context"
	"fmt"
	"net/http"
	"net/http/httptest"
	"testing"
	"time"

	. "github.com/onsi/gomega"

	"github.com/stack-controller/stack-controller/internal/agent/automation"
	"github.com/stack-controller/stack-controller/internal/agent/proto"
)

// runFor runs an update that may take so long, as the agent does with the timeout of a request.
func (f *fixture) runFor(timeout time.Duration, change ...func(*proto.StartOperationRequest)) *proto.Operation {
	f.t.Helper()
	ctx, cancel := context.WithTimeoutCause(f.t.Context(), timeout, automation.ErrTimeout)
	defer cancel()
	return f.runContext(ctx, up, change...)
}

// timedOut checks that the operation ended because of its timeout, and says so first.
func (f *fixture) timedOut(operation *proto.Operation, message string) {
	f.t.Helper()
	f.Expect(operation.GetState()).To(Equal(failed))
	f.Expect(operation.GetFailure()).To(Equal(proto.FailureReason_FAILURE_REASON_TIMEOUT))
	f.Expect(operation.GetMessage()).To(And(HavePrefix("the operation took longer than its timeout"), ContainSubstring(message)))
}

func TestTimeoutEndsThePreparations(t *testing.T) {
	f := newFixture(t)
	server := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, request *http.Request) { <-request.Context().Done() }))
	defer server.Close()
	f.write("Pulumi.yaml", fmt.Sprintf(`
name: demo
runtime: yaml
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
	f := sleeper(t, "seconds: 0")
	f.Expect(f.run(up).GetState()).To(Equal(succeeded))
	f.sleep("seconds: 10")
	f.Expect(f.run(up).GetState()).To(Equal(succeeded))
	f.processes()
	f.timedOut(f.runFor(8*time.Second, expectsNoDrift), "pulumi stopped gracefully")
	f.Expect(f.processes()).To(HaveExactElements(HavePrefix("refresh --preview-only")))
}

func TestTimeoutStopsARunningUpdateGracefully(t *testing.T) {
	f := sleeper(t, "seconds: 1000")
	operation := f.runFor(10*time.Second, withGrace(aWhile))
	f.timedOut(operation, "pulumi stopped gracefully")
	f.Expect(f.noted()).To(Equal("create start\ncreate aborted\n"))
	f.Expect(f.locks()).To(BeEmpty())
	f.Expect(f.providers()).To(BeEmpty())
	f.sleep("seconds: 0")
	operation = f.runFor(aWhile)
	f.Expect(operation.GetState()).To(Equal(succeeded), operation.GetMessage())
	f.Expect(f.noted()).To(HaveSuffix("create start\ncreate end\n"))
}

func TestTimeoutDoesNotWaitLongerThanTheGrace(t *testing.T) {
	f := sleeper(t, "seconds: 1000, ignoreCancel: true")
	start := time.Now()
	f.timedOut(f.runFor(10*time.Second, withGrace(time.Second)), "stopped in the middle of a resource operation")
	f.Expect(time.Since(start)).To(BeNumerically("<", long))
	f.Expect(f.locks()).To(BeEmpty())
	f.Expect(f.providers()).To(BeEmpty())
}

func TestTimeoutKillsWhatDoesNotStopWithAllItsDescendants(t *testing.T) {
	f := newFixture(t)
	f.runner.SetTerminateGrace(time.Second)
	f.write("Pulumi.yaml", simpleProgram)
	f.Expect(f.run(up).GetState()).To(Equal(succeeded))
	f.replaceCLI("trap '' INT TERM\nsetsid sleep 2001 &\n(sleep 2002 &)\ntouch %q\nwhile :; do sleep 2003; done\n")
	operation := f.runFor(5*time.Second, withGrace(time.Second))
	f.timedOut(operation, "was killed")
	f.Expect(f.journal()).To(BeAnExistingFile())
	for _, child := range []string{"sleep 2001", "sleep 2002", "sleep 2003"} {
		f.Expect(processesOf(child)).To(BeEmpty())
	}
}

func TestTimeoutDoesNotCutOffTheOutputsOfAnUpdateThatSucceeded(t *testing.T) {
	f := newFixture(t)
	f.write("Pulumi.yaml", "name: demo\nruntime: yaml\noutputs:\n  token: {fn::secret: canary}\n")
	f.Expect(f.run(up).GetState()).To(Equal(succeeded))
	f.replaceCLI("case \" $* \" in *' output '*) touch %q; sleep 10;; esac\nexec " + tool(t, "pulumi") + " \"$@\"\n")
	start := time.Now()
	operation := f.runFor(10 * time.Second)
	f.Expect(operation.GetState()).To(Equal(succeeded), operation.GetMessage())
	f.Expect(f.journal()).To(BeAnExistingFile())
	f.Expect(time.Since(start)).To(BeNumerically(">", 10*time.Second), "its time was over")
	f.Expect(operation.GetOutputs()["token"].GetValue()).To(BeEquivalentTo(`"canary"`))
}
