package operation_test

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"path/filepath"
	"testing"
	"time"

	. "github.com/onsi/gomega"

	"github.com/stack-controller/stack-controller/internal/agent/agentpb"
	runner "github.com/stack-controller/stack-controller/internal/agent/operation"
	"github.com/stack-controller/stack-controller/tests/framework/suite"
)

// aWhile is a grace that no test waits for.
const aWhile = time.Hour

func TestAnAgentThatIsGoingToBeKilledCutsTheGrace(t *testing.T) {
	for name, cause := range map[string]error{
		"of an operation that it stops":                 runner.ErrShutdown,
		"of an operation that was being stopped before": runner.ErrCancelled,
	} {
		t.Run(name, func(t *testing.T) {
			f := sleeper(t, "seconds: 1000, ignoreCancel: true")
			cancel, ended := f.start(withGrace(aWhile))
			if errors.Is(cause, runner.ErrCancelled) {
				cancel(cause)
			}
			killed := time.Now().Add(20 * time.Second)
			f.runner.EndBy(killed)
			cancel(runner.ErrShutdown)
			operation := f.await(ended)
			f.Expect(time.Now()).To(BeTemporally("<", killed))
			f.Expect(operation.GetMessage()).To(ContainSubstring("stopped in the middle of a resource operation"))
			f.Expect(operation.GetState()).To(Equal(map[error]agentpb.OperationState{
				runner.ErrShutdown: interrupted, runner.ErrCancelled: cancelled,
			}[cause]))
			f.Expect(f.locks()).To(BeEmpty())
			f.Expect(f.providers()).To(BeEmpty())
			f.Expect(processesOf(filepath.Join(filepath.Dir(f.options.Pulumi), "pulumi-language-yaml"))).To(BeEmpty())

			// The state has the resource that was being created, and the next operation looks for it.
			f.restart()
			operation = f.run(up)
			f.Expect(operation.GetMessage()).To(ContainSubstring("could create it twice"))
		})
	}
}

func TestACLIThatDoesNotStopIsKilledBeforeTheAgentIs(t *testing.T) {
	suite.Long(t, "further moments in which an operation is stopped")
	f := newFixture(t)
	f.write("Pulumi.yaml", simpleProgram)
	f.replaceCLI("trap '' INT TERM\ntouch %q\nwhile :; do sleep 1; done\n")
	cancel, result := f.beginUntil("", up, withGrace(aWhile))
	killed := time.Now().Add(6 * time.Second)
	f.runner.EndBy(killed)
	cancel(runner.ErrShutdown)
	operation := f.await(result)
	f.Expect(time.Now()).To(BeTemporally("<", killed))
	f.Expect(operation.GetState()).To(Equal(interrupted))
	f.Expect(operation.GetMessage()).To(ContainSubstring("was killed"))
}

func TestWhatIsNotCutOffOtherwiseEndsBeforeTheAgentDoes(t *testing.T) {
	suite.Long(t, "further moments in which an operation is stopped")
	f := newFixture(t)
	f.write("Pulumi.yaml", "name: demo\nruntime: yaml\noutputs:\n  token: {fn::secret: canary}\n")
	f.succeed(up)
	// The update succeeds, but the backend does not answer when its secret outputs are read.
	f.replaceCLI("case \" $* \" in *' output '*) touch %q; exec sleep 1000;; esac\nexec " + tool(t, "pulumi") + " \"$@\"\n")
	cancel, result := f.beginUntil("", up)
	killed := time.Now().Add(6 * time.Second)
	f.runner.EndBy(killed)
	cancel(runner.ErrShutdown)
	operation := f.await(result)
	f.Expect(time.Now()).To(BeTemporally("<", killed))
	f.Expect(operation.GetState()).To(Equal(interrupted), operation.GetMessage())
}

func TestAnInstallationEndsAtOnceWhenTheAgentStops(t *testing.T) {
	for name, test := range map[string]struct{ project, last string }{
		"by pulumi install": {"packages: {}\n", "install"},
		"by the update":     {"", "up "},
	} {
		t.Run(name, func(t *testing.T) {
			f := newFixture(t)
			asked := make(chan struct{}, 100)
			server := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, request *http.Request) {
				asked <- struct{}{}
				<-request.Context().Done()
			}))
			defer server.Close()
			f.write("Pulumi.yaml", test.project+fmt.Sprintf(`
name: demo
runtime: yaml
resources:
  one:
    type: missing:index:Thing
    options: {version: 1.2.3, pluginDownloadURL: %q}
`, server.URL))
			ctx, cancel := context.WithCancelCause(t.Context())
			result := make(chan *agentpb.Operation, 1)
			go func() { result <- f.runner.Run(ctx, f.request(up, withGrace(aWhile)), f.paths(), nil) }()
			f.Eventually(asked).WithTimeout(long).Should(Receive())
			cancel(runner.ErrShutdown)
			start := time.Now()
			operation := f.await(result)
			f.Expect(time.Since(start)).To(BeNumerically("<", long/2))
			f.Expect(operation.GetState()).To(Equal(interrupted), operation.GetMessage())
			processes := f.processes()
			f.Expect(processes[len(processes)-1]).To(HavePrefix(test.last))
		})
	}
}
