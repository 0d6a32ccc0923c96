package operation_test

import (
	"path/filepath"
	"testing"

	. "github.com/onsi/gomega"

	"github.com/stack-controller/stack-controller/internal/agent/agentpb"
	runner "github.com/stack-controller/stack-controller/internal/agent/operation"
)

// losesEvents makes the CLI succeed without the end of its event log, as it does when the disk is full. The last --event-log counts.
func (f *fixture) losesEvents() {
	f.t.Helper()
	pulumi := tool(f.t, "pulumi")
	f.replaceCLI("case \" $* \" in *' --event-log '*) ;; *) exec " + pulumi + " \"$@\";; esac\n" +
		pulumi + " \"$@\" --event-log %[1]q || exit\nfor log; do :; done\ngrep -v summaryEvent %[1]q | head -n 2 >> \"$log\"\n")
}

func TestUpdateWhoseEventsAreLostHasItsOutputs(t *testing.T) {
	f := newCreated(t)
	f.write("Pulumi.yaml", secretProgram+"  asked: \"a-canary-word-b\"\n")
	f.losesEvents()
	for _, kind := range []agentpb.OperationKind{up, refresh} {
		operation := f.succeed(kind, withConfig(secret("password", canary), secret("word", "canary-word")))
		f.Expect(operation.GetMessage()).To(ContainSubstring("pulumi succeeded, but not all of its events arrived"))
		outputs := operation.GetOutputs()
		f.Expect(outputs).To(HaveLen(3))
		f.Expect(string(outputs["plain"].GetValue())).To(Equal(`"visible"`))
		f.Expect(outputs["plain"].GetSecret()).To(BeFalse())
		f.Expect(string(outputs["password"].GetValue())).To(Equal(`"canary-value-51c9\"quoted\""`))
		f.Expect(outputs["password"].GetSecret()).To(BeTrue())
		f.Expect(string(outputs["asked"].GetValue())).To(Equal(`"a-canary-word-b"`))
		f.Expect(string(outputs["asked"].GetShown())).To(Equal(`"a-[secret]-b"`))
		f.expectNoCanary(operation)
	}
	f.Expect(f.succeed(destroy).GetOutputs()).To(BeEmpty())
}

func TestOperationThatOnlyLooksFailsWhenItsEventsAreLost(t *testing.T) {
	f, _ := filesFixture(t, 1)
	f.losesEvents()
	for name, change := range map[string]func(*agentpb.StartOperationRequest){
		"a preview":               func(*agentpb.StartOperationRequest) {},
		"a plan":                  saved,
		"a refresh without drift": func(request *agentpb.StartOperationRequest) { request.Kind = refreshPreview },
		"an update without drift": func(request *agentpb.StartOperationRequest) { request.Kind = up; expectsNoDrift(request) },
	} {
		operation := f.fail(agentpb.FailureReason_FAILURE_REASON_UPDATE_FAILED, preview, change)
		f.Expect(operation.GetMessage()).To(ContainSubstring("not all of its events arrived: what would change is not known"), name)
		f.Expect(operation.GetPlan()).To(BeNil(), name)
		f.Expect(filepath.Join(f.results, runner.PlanText)).NotTo(BeAnExistingFile(), name)
	}

	f.restoreCLI()
	plan := f.succeed(preview, saved)
	f.Expect(f.changesOf(plan)).To(ConsistOf("create file0"))
	f.losesEvents()
	f.succeed(plannedUp, f.carriesOut(plan))

	f.restoreCLI()
	plan = f.succeed(destroyPreview, saved)
	f.losesEvents()
	operation := f.fail(agentpb.FailureReason_FAILURE_REASON_UPDATE_FAILED, plannedDestroy, f.carriesOut(plan))
	f.Expect(operation.GetMessage()).To(ContainSubstring("cannot compare what would be destroyed with the plan: pulumi succeeded, but not all"))
}
