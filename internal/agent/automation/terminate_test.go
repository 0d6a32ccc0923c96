package automation_test

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"testing"
	"time"

	. "github.com/onsi/gomega"

	"github.com/stack-controller/stack-controller/internal/agent/automation"
	"github.com/stack-controller/stack-controller/internal/agent/proto"
)

// aWhile is a grace that no test waits for.
const aWhile = time.Hour

func TestAnAgentThatIsGoingToBeKilledCutsTheGrace(t *testing.T) {
	for name, cause := range map[string]error{
		"of an operation that it stops":                 automation.ErrShutdown,
		"of an operation that was being stopped before": automation.ErrCancelled,
	} {
		t.Run(name, func(t *testing.T) {
			f := sleeper(t, "seconds: 1000, ignoreCancel: true")
			cancel, ended := f.start(withGrace(aWhile))
			if errors.Is(cause, automation.ErrCancelled) {
				cancel(cause)
			}
			killed := time.Now().Add(20 * time.Second)
			f.runner.EndBy(killed)
			cancel(automation.ErrShutdown)
			var operation *proto.Operation
			f.Eventually(ended).WithTimeout(long).Should(Receive(&operation))
			f.Expect(time.Now()).To(BeTemporally("<", killed))
			f.Expect(operation.GetMessage()).To(ContainSubstring("stopped in the middle of a resource operation"))
			f.Expect(operation.GetState()).To(Equal(map[error]proto.OperationState{
				automation.ErrShutdown: interrupted, automation.ErrCancelled: cancelled,
			}[cause]))
			f.Expect(f.locks()).To(BeEmpty())
			f.Expect(f.providers()).To(BeEmpty())
			f.Expect(processesOf(filepath.Join(filepath.Dir(f.options.Pulumi), "pulumi-language-yaml"))).To(BeEmpty())

			// What was being created is in the state, and looked at.
			f.restart()
			operation = f.run(up)
			f.Expect(operation.GetMessage()).To(ContainSubstring("could create it twice"))
		})
	}
}

func TestACLIThatDoesNotStopIsKilledBeforeTheAgentIs(t *testing.T) {
	f := newFixture(t)
	f.write("Pulumi.yaml", simpleProgram)
	f.replaceCLI("trap '' INT TERM\ntouch %q\nwhile :; do sleep 1; done\n")
	ctx, cancel := context.WithCancelCause(t.Context())
	result := make(chan *proto.Operation, 1)
	go func() { result <- f.runner.Run(ctx, f.request(up, withGrace(aWhile)), f.project, nil) }()
	f.Eventually(f.journal()).WithTimeout(long).Should(BeAnExistingFile())
	killed := time.Now().Add(6 * time.Second)
	f.runner.EndBy(killed)
	cancel(automation.ErrShutdown)
	var operation *proto.Operation
	f.Eventually(result).WithTimeout(long).Should(Receive(&operation))
	f.Expect(time.Now()).To(BeTemporally("<", killed))
	f.Expect(operation.GetState()).To(Equal(interrupted))
	f.Expect(operation.GetMessage()).To(ContainSubstring("was killed"))
}

// replaceCLI makes the CLI a script; %q in it is the journal.
func (f *fixture) replaceCLI(script string) {
	f.t.Helper()
	f.Expect(os.WriteFile(f.options.Pulumi, fmt.Appendf(nil, "#!/bin/sh\n"+script, f.journal()), 0o755)).To(Succeed())
}

func TestWhatIsNotCutOffOtherwiseEndsBeforeTheAgentDoes(t *testing.T) {
	f := newFixture(t)
	f.write("Pulumi.yaml", "name: demo\nruntime: yaml\noutputs:\n  token: {fn::secret: canary}\n")
	f.Expect(f.run(up).GetState()).To(Equal(succeeded))
	// The update succeeds, but the backend does not answer when its secret outputs are read.
	f.replaceCLI("case \" $* \" in *' output '*) touch %q; exec sleep 1000;; esac\nexec " + tool(t, "pulumi") + " \"$@\"\n")
	ctx, cancel := context.WithCancelCause(t.Context())
	result := make(chan *proto.Operation, 1)
	go func() { result <- f.runner.Run(ctx, f.request(up), f.project, nil) }()
	f.Eventually(f.journal()).WithTimeout(long).Should(BeAnExistingFile())
	killed := time.Now().Add(6 * time.Second)
	f.runner.EndBy(killed)
	cancel(automation.ErrShutdown)
	var operation *proto.Operation
	f.Eventually(result).WithTimeout(long).Should(Receive(&operation))
	f.Expect(time.Now()).To(BeTemporally("<", killed))
	f.Expect(operation.GetState()).To(Equal(interrupted), operation.GetMessage())
}

func TestAnInstallationEndsAtOnceWhenTheAgentStops(t *testing.T) {
	f := newFixture(t)
	asked := make(chan struct{}, 100)
	server := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, request *http.Request) {
		asked <- struct{}{}
		<-request.Context().Done()
	}))
	defer server.Close()
	f.write("Pulumi.yaml", fmt.Sprintf(`
name: demo
runtime: yaml
resources:
  one:
    type: missing:index:Thing
    options: {version: 1.2.3, pluginDownloadURL: %q}
`, server.URL))
	ctx, cancel := context.WithCancelCause(t.Context())
	result := make(chan *proto.Operation, 1)
	go func() { result <- f.runner.Run(ctx, f.request(up, withGrace(aWhile)), f.project, nil) }()
	f.Eventually(asked).WithTimeout(long).Should(Receive())
	cancel(automation.ErrShutdown)
	start := time.Now()
	var operation *proto.Operation
	f.Eventually(result).WithTimeout(long).Should(Receive(&operation))
	f.Expect(time.Since(start)).To(BeNumerically("<", long/2))
	f.Expect(operation.GetState()).To(Equal(interrupted), operation.GetMessage())
	f.Expect(f.processes()).To(HaveExactElements(Equal("install")))
}
