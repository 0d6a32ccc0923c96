package operation_test

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	. "github.com/onsi/gomega"

	"github.com/stack-controller/stack-controller/internal/agent/agentpb"
	"github.com/stack-controller/stack-controller/internal/agent/cli"
	"github.com/stack-controller/stack-controller/tests/framework/suite"
)

const simpleProgram = `
name: demo
runtime: yaml
variables:
  greeting: hello
outputs:
  greeting: ${greeting}
  number: 1234567
  nested: {list: [1, 2.5, true], text: "<&>"}
`

func TestFirstUpdateCreatesTheStackAndTheNextIsOneProcess(t *testing.T) {
	f := newFixture(t)
	f.write("Pulumi.yaml", simpleProgram)

	first := f.succeed(up)
	found := HavePrefix("up ")
	if !f.has(cli.StateSecretsProvider) {
		found = HavePrefix("stack export ")
	}
	f.Expect(f.processes()).To(HaveExactElements(found, HavePrefix("whoami"), HavePrefix("stack init "), HavePrefix("up ")))
	f.Expect(first.GetResourceChanges()).To(Equal(map[string]int64{"create": 1}))
	f.Expect(first.GetRunTime().AsDuration()).To(And(BeNumerically(">", 0),
		BeNumerically("<", first.GetEndTime().AsTime().Sub(first.GetStartTime().AsTime()))))
	f.Expect(first.GetProject().GetName()).To(Equal("demo"))
	f.Expect(first.GetProject().GetRuntime()).To(Equal("yaml"))
	f.Expect(string(first.GetOutputs()["greeting"].GetValue())).To(Equal(`"hello"`))
	f.Expect(string(first.GetOutputs()["number"].GetValue())).To(Equal(`1234567`))
	f.Expect(string(first.GetOutputs()["nested"].GetValue())).To(Equal(`{"list":[1,2.5,true],"text":"<&>"}`))
	f.Expect(first.GetOutputs()["greeting"].GetSecret()).To(BeFalse())

	// A pulumi that is killed while it writes such a file would leave a state that cannot be read.
	files, err := filepath.Glob(filepath.Join(f.state, ".pulumi", "stacks", "demo", "dev.json*"))
	f.Expect(err).NotTo(HaveOccurred())
	f.Expect(files).NotTo(Or(BeEmpty(), ContainElement(HaveSuffix(".attrs"))))

	second := f.succeed(up)
	f.Expect(f.processesWithState()).To(HaveExactElements(HavePrefix("up ")))
	f.Expect(second.GetResourceChanges()).To(Equal(map[string]int64{"same": 1}))
	f.Expect(second.GetOutputs()).To(HaveLen(3))
}

func TestEveryKindOfOperationIsOneProcess(t *testing.T) {
	f := newDeployed(t)

	for _, kind := range []agentpb.OperationKind{preview, refresh, destroy} {
		operation := f.succeed(kind)
		f.Expect(operation.GetKind()).To(Equal(kind))
		f.Expect(f.processesWithState()).To(HaveLen(1), kind.String())
		f.Expect(operation.GetResourceChanges()).NotTo(BeEmpty(), kind.String())
	}
}

func TestPreviewReportsWhatWouldChangeAndLeavesTheStateAlone(t *testing.T) {
	f := newFixture(t)
	f.write("Pulumi.yaml", simpleProgram)

	operation := f.succeed(preview)
	f.Expect(operation.GetResourceChanges()).To(Equal(map[string]int64{"create": 1}))
	f.Expect(operation.GetOutputs()).To(BeEmpty())
	f.Expect(f.run(up).GetResourceChanges()).To(Equal(map[string]int64{"create": 1}))
}

func TestDestroyWorksFromTheStateAloneAndRemovesTheStack(t *testing.T) {
	f := newDeployed(t)
	f.Expect(os.RemoveAll(f.project)).To(Succeed())
	f.processes()

	operation := f.run(destroy, func(request *agentpb.StartOperationRequest) {
		request.Source = &agentpb.StartOperationRequest_Project{Project: &agentpb.ProjectSource{Name: "demo", Runtime: "yaml"}}
		request.CreateStack = false
		request.Options.Remove = true
	})
	f.Expect(operation.GetState()).To(Equal(succeeded), operation.GetMessage())
	f.Expect(operation.GetResourceChanges()).To(Equal(map[string]int64{"delete": 1}))
	f.Expect(f.processes()).To(HaveExactElements(HavePrefix("destroy "), HavePrefix("stack rm ")))
	f.Expect(filepath.Join(f.state, ".pulumi", "stacks", "demo", "dev.json")).NotTo(BeAnExistingFile())
}

func TestMissingStackIsReportedUnlessItMayBeCreated(t *testing.T) {
	f := newFixture(t)
	f.write("Pulumi.yaml", simpleProgram)
	dontCreate := func(request *agentpb.StartOperationRequest) { request.CreateStack = false }

	for _, change := range [][]func(*agentpb.StartOperationRequest){{dontCreate}, {dontCreate, withConfig(secret("password", "canary"))}} {
		operation := f.fail(agentpb.FailureReason_FAILURE_REASON_STACK_NOT_FOUND, up, change...)
		f.Expect(operation.GetMessage()).To(ContainSubstring("no stack named 'dev' found"))
	}
}

func TestStackThatIsProbablyNewIsCreatedFirstAndOneThatExistsIsUsed(t *testing.T) {
	suite.Long(t, "further inputs of an operation")
	f := newFixture(t)
	f.write("Pulumi.yaml", simpleProgram)
	expectNew := func(request *agentpb.StartOperationRequest) { request.NewStack = true }
	dontCreate := func(request *agentpb.StartOperationRequest) { request.CreateStack = false }
	f.fail(agentpb.FailureReason_FAILURE_REASON_STACK_NOT_FOUND, up, expectNew, dontCreate)
	f.processes()

	for range 2 {
		f.succeed(up, expectNew, withConfig(secret("password", "canary")))
		f.Expect(f.processes()).To(HaveExactElements(HavePrefix("whoami"), HavePrefix("stack init "), HavePrefix("up ")))
	}
	f.Expect(f.logged.String()).NotTo(ContainSubstring(passphrase))

	wrongBackend := func(request *agentpb.StartOperationRequest) {
		request.Env = append(request.Env, variable("PULUMI_BACKEND_URL", "file:///missing/"+t.Name(), false))
	}
	f.processes()
	f.Expect(f.run(up, expectNew, wrongBackend).GetState()).To(Equal(failed))
	f.Expect(f.processes()).To(HaveExactElements(HavePrefix("whoami"), HavePrefix("up ")), "the operation tells why")
}

func TestRepeatedDestroyKnowsThatTheFirstOneRemovedTheStack(t *testing.T) {
	suite.Long(t, "further things that an earlier operation leaves")
	f := newDeployed(t)
	remove := func(request *agentpb.StartOperationRequest) {
		request.CreateStack, request.Options.Remove = false, true
	}
	f.succeed(destroy, remove)

	f.restart()
	again := f.succeed(destroy, remove)
	f.Expect(again.GetMessage()).To(ContainSubstring("removed from the backend by an earlier attempt"))
	f.Expect(f.run(up, remove).GetFailure()).To(Equal(agentpb.FailureReason_FAILURE_REASON_STACK_NOT_FOUND), "only a destroy has nothing to do")

	f.succeed(up)
	f.Expect(os.RemoveAll(f.state)).To(Succeed())
	f.Expect(os.Mkdir(f.state, 0o755)).To(Succeed())
	f.Expect(f.run(destroy, remove).GetFailure()).To(Equal(agentpb.FailureReason_FAILURE_REASON_STACK_NOT_FOUND), "a stack that is lost was not removed")
}

func TestExpectedNoChangesAreReportedWhenThereAreSome(t *testing.T) {
	f := newCreated(t)
	f.write("Pulumi.yaml", simpleProgram)

	f.fail(agentpb.FailureReason_FAILURE_REASON_UNEXPECTED_CHANGES, preview, func(request *agentpb.StartOperationRequest) { request.Options.ExpectNoChanges = true })
}

func TestSourceTreeIsNotChanged(t *testing.T) {
	suite.Long(t, "further ways to write; the artifact is unpacked anew for each operation")
	f := newCreated(t)
	f.write("Pulumi.yaml", simpleProgram)
	f.write("Pulumi.dev.yaml", "config:\n  demo:unused: x # comment\n")
	f.succeed(up, withConfig(text("a", "b"), secret("c", "canary-config-1")))

	entries, err := os.ReadDir(f.project)
	f.Expect(err).NotTo(HaveOccurred())
	f.Expect(entries).To(HaveLen(2))
	content, err := os.ReadFile(filepath.Join(f.project, "Pulumi.dev.yaml"))
	f.Expect(err).NotTo(HaveOccurred())
	f.Expect(string(content)).To(Equal("config:\n  demo:unused: x # comment\n"))
}

func TestMessageIsRecordedAsItIs(t *testing.T) {
	f := newCreated(t)
	f.write("Pulumi.yaml", simpleProgram)
	operation := f.run(up, func(request *agentpb.StartOperationRequest) {
		request.Options.Message = "say \"hello\"\nin two lines"
		request.CommitMetadata = map[string]string{"PULUMI_GIT_COMMIT_MESSAGE": "from the commit", "PULUMI_GIT_HEAD": "abc"}
	})
	f.Expect(operation.GetState()).To(Equal(succeeded), operation.GetMessage())
	history := f.readAll(f.state, "history")
	f.Expect(history).To(ContainSubstring(`say \"hello\"\nin two lines`))
	f.Expect(history).NotTo(ContainSubstring("from the commit"))
	f.Expect(history).To(ContainSubstring(`"git.head":"abc"`))
}

// readAll returns the content of all files below the directory whose path contains the part.
func (f *fixture) readAll(dir, part string) string {
	f.t.Helper()
	var all strings.Builder
	f.Expect(filepath.WalkDir(dir, func(path string, entry os.DirEntry, err error) error {
		if err != nil || !entry.Type().IsRegular() || !strings.Contains(path, part) {
			return err
		}
		content, err := os.ReadFile(path)
		all.Write(content)
		return err
	})).To(Succeed())
	return all.String()
}
