package operation_test

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"testing"
	"time"

	. "github.com/onsi/gomega"

	"github.com/stack-controller/stack-controller/internal/agent/agentpb"
	runner "github.com/stack-controller/stack-controller/internal/agent/operation"
	"github.com/stack-controller/stack-controller/tests/framework/programs"
	"github.com/stack-controller/stack-controller/tests/framework/suite"
)

func TestOperationThatStopsSuccessfullyHasNotSucceeded(t *testing.T) {
	f := newDeployed(t)
	f.replaceCLI("trap 'exit 0' INT\ntouch %q\nwhile :; do sleep 0.1; done\n")
	for _, kind := range []agentpb.OperationKind{up, destroy} {
		f.Expect(os.RemoveAll(f.journal())).To(Succeed())
		cancel, result := f.beginUntil("", kind)
		cancel(runner.ErrCancelled)
		operation := f.await(result)
		f.Expect(operation.GetState()).To(Equal(cancelled))
		f.Expect(operation.GetMessage()).To(ContainSubstring("pulumi stopped gracefully"))
	}
	f.restoreCLI()
	f.Expect(f.run(destroy).GetMessage()).To(ContainSubstring("delete 1"))
}

// The CLI ends as it may after a signal from outside.
func TestDestroyThatDestroysNothingHasToProveThatNothingIsLeft(t *testing.T) {
	f := newDeployed(t)
	f.replaceCLI("touch %q\n[ \"$2\" = destroy ] && exit 0\nexec " + tool(t, "pulumi") + " \"$@\"\n")
	operation := f.run(destroy)
	f.Expect(operation.GetState()).To(Equal(failed))
	f.Expect(operation.GetMessage()).To(ContainSubstring("without destroying anything, but the stack has 1 resources"))
	f.restoreCLI()
	f.succeed(destroy)
	f.Expect(f.run(destroy).GetState()).To(Equal(succeeded), "there is nothing left to destroy")
}

// Pulumi ends successfully when it is asked to stop just before it has found out what to do.
func TestDestroyThatIsStoppedAtAnyMomentReportsTheTruth(t *testing.T) {
	suite.Long(t, "further moments in which an operation is stopped")
	f := newFixture(t)
	f.Expect(programs.PutProvider(t.Context(), filepath.Join(f.home, ".pulumi"))).Error().NotTo(HaveOccurred())
	f.sleep("seconds: 0")
	f.succeed(up)
	deployed := f.readFiles(f.state)
	begin := time.Now()
	f.succeed(destroy)
	took := time.Since(begin)
	const moments = 12
	for moment := range moments {
		f.Expect(errors.Join(os.RemoveAll(f.state), os.CopyFS(f.state, deployed), os.RemoveAll(f.journal()))).To(Succeed())
		ctx, cancel := context.WithCancelCause(t.Context())
		// Most of the time passes before there is something to destroy.
		timer := time.AfterFunc(took*time.Duration(moments+moment)/(2*moments), func() { cancel(runner.ErrCancelled) })
		operation := f.runContext(ctx, destroy)
		timer.Stop()
		t.Log(operation.GetState(), operation.GetMessage())
		if operation.GetState() == succeeded {
			f.Expect(f.noted()).To(ContainSubstring("delete end"))
		}
		f.Expect(f.locks()).To(BeEmpty())
	}
}
