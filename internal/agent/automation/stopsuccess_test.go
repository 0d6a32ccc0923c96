package automation_test

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"testing"
	"time"

	. "github.com/onsi/gomega"

	"github.com/stack-controller/stack-controller/internal/agent/automation"
	"github.com/stack-controller/stack-controller/internal/agent/proto"
	"github.com/stack-controller/stack-controller/tests/provider/install"
)

// restoreCLI takes back what replaceCLI did.
func (f *fixture) restoreCLI() {
	f.t.Helper()
	f.Expect(os.WriteFile(f.options.Pulumi, fmt.Appendf(nil, wrapper, f.commands, tool(f.t, "pulumi")), 0o755)).To(Succeed())
}

func TestOperationThatStopsSuccessfullyHasNotSucceeded(t *testing.T) {
	f := newFixture(t)
	f.write("Pulumi.yaml", simpleProgram)
	f.Expect(f.run(up).GetState()).To(Equal(succeeded))
	f.replaceCLI("trap 'exit 0' INT\ntouch %q\nwhile :; do sleep 0.1; done\n")
	for _, kind := range []proto.OperationKind{up, destroy} {
		f.Expect(os.RemoveAll(f.journal())).To(Succeed())
		ctx, cancel := context.WithCancelCause(t.Context())
		result := make(chan *proto.Operation, 1)
		go func() { result <- f.runner.Run(ctx, f.request(kind), f.project, nil) }()
		f.Eventually(f.journal()).WithTimeout(long).Should(BeAnExistingFile())
		cancel(automation.ErrCancelled)
		var operation *proto.Operation
		f.Eventually(result).WithTimeout(long).Should(Receive(&operation))
		f.Expect(operation.GetState()).To(Equal(cancelled))
		f.Expect(operation.GetMessage()).To(ContainSubstring("pulumi stopped gracefully"))
	}
	f.restoreCLI()
	f.Expect(f.run(destroy).GetMessage()).To(ContainSubstring("delete 1"))
}

// As when a signal came from outside.
func TestDestroyThatDestroysNothingHasToProveThatNothingIsLeft(t *testing.T) {
	f := newFixture(t)
	f.write("Pulumi.yaml", simpleProgram)
	f.Expect(f.run(up).GetState()).To(Equal(succeeded))
	f.replaceCLI("touch %q\n[ \"$2\" = destroy ] && exit 0\nexec " + tool(t, "pulumi") + " \"$@\"\n")
	operation := f.run(destroy)
	f.Expect(operation.GetState()).To(Equal(failed))
	f.Expect(operation.GetMessage()).To(ContainSubstring("without destroying anything, but the stack has 1 resources"))
	f.restoreCLI()
	f.Expect(f.run(destroy).GetState()).To(Equal(succeeded))
	f.Expect(f.run(destroy).GetState()).To(Equal(succeeded), "there is nothing left to destroy")
}

// Pulumi ends successfully when it is asked to stop just before it has found out what to do.
func TestDestroyThatIsStoppedAtAnyMomentTellsTheTruth(t *testing.T) {
	f := newFixture(t)
	f.Expect(install.Install(t.Context(), filepath.Join(f.home, ".pulumi"))).To(Succeed())
	f.sleep("seconds: 0")
	f.Expect(f.run(up).GetState()).To(Equal(succeeded))
	begin := time.Now()
	f.Expect(f.run(destroy).GetState()).To(Equal(succeeded))
	took := time.Since(begin)
	const moments = 12
	for moment := range moments {
		f.Expect(f.run(up).GetState()).To(Equal(succeeded))
		f.Expect(os.RemoveAll(f.journal())).To(Succeed())
		ctx, cancel := context.WithCancelCause(t.Context())
		// Most of the time is that until there is something to destroy.
		timer := time.AfterFunc(took*time.Duration(moments+moment)/(2*moments), func() { cancel(automation.ErrCancelled) })
		operation := f.runContext(ctx, destroy)
		timer.Stop()
		t.Log(operation.GetState(), operation.GetMessage())
		if operation.GetState() == succeeded {
			f.Expect(f.noted()).To(ContainSubstring("delete end"))
		}
		f.Expect(f.locks()).To(BeEmpty())
	}
}
