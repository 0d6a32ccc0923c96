package operation_test

import (
	"os"
	"path/filepath"
	"testing"

	. "github.com/onsi/gomega"

	"github.com/stack-controller/stack-controller/internal/agent/agentpb"
	"github.com/stack-controller/stack-controller/tests/framework/suite"
)

const (
	refreshPreview = agentpb.OperationKind_OPERATION_KIND_REFRESH_PREVIEW
	destroyPreview = agentpb.OperationKind_OPERATION_KIND_DESTROY_PREVIEW
)

// fromState makes the operation use the state alone, without the program.
func fromState(request *agentpb.StartOperationRequest) {
	request.Source = &agentpb.StartOperationRequest_Project{Project: &agentpb.ProjectSource{Name: "demo", Runtime: "yaml"}}
}

// changesOf lists the changes without their URNs, which all have the same beginning.
func (f *fixture) changesOf(operation *agentpb.Operation) (changes []string) {
	f.t.Helper()
	f.Expect(operation.GetOmittedChanges()).To(BeZero())
	for _, change := range operation.GetChanges() {
		text := change.GetOperation() + " " + filepath.Base(change.GetUrn()[len("urn:pulumi:dev::demo::test:index:Sleep::"):])
		for _, path := range change.GetPaths() {
			text += " " + path
		}
		changes = append(changes, text)
	}
	return changes
}

func TestPreviewListsWhatWouldChange(t *testing.T) {
	f, dir := filesFixture(t, 2)
	f.Expect(f.changesOf(f.succeed(preview))).To(ConsistOf("create file0", "create file1"))
	f.Expect(f.succeed(up).GetChanges()).To(BeEmpty(), "what was done is counted only")
	f.Expect(f.succeed(preview).GetChanges()).To(BeEmpty())
	f.write("Pulumi.yaml", "name: demo\nruntime: yaml\nconfig:\n  password: {type: string, secret: true}\nresources:\n  file0:\n"+
		"    type: test:index:Sleep\n    properties: {file: "+filepath.Join(dir, "file0")+", content: \"${password}\"}\n    options: {version: 0.1.0}\n")
	operation := f.succeed(preview, withConfig(secret("password", canary)))
	f.Expect(f.changesOf(operation)).To(ConsistOf("update file0 content", "delete file1"))
	f.Expect(operation.String()).NotTo(ContainSubstring("canary-value"))
	f.Expect(filepath.Join(dir, "file1")).To(BeAnExistingFile())
}

func TestRefreshPreviewListsDriftAndChangesNothing(t *testing.T) {
	suite.Long(t, "tests/e2e proves it with TestDriftIsReportedWhenTwoChecksSeeTheSame")
	f, dir := filesFixture(t, 3)
	f.succeed(up)
	f.processes()
	f.Expect(f.succeed(refreshPreview, fromState).GetChanges()).To(BeEmpty())
	f.Expect(os.WriteFile(filepath.Join(dir, "file0"), []byte("theirs"), 0o600)).To(Succeed())
	f.Expect(os.Remove(filepath.Join(dir, "file1"))).To(Succeed())
	before := f.checkpoint()
	operation := f.succeed(refreshPreview, fromState)
	f.Expect(f.changesOf(operation)).To(ConsistOf("update file0 content", "delete file1"))
	f.Expect(f.checkpoint()).To(Equal(before))
	f.Expect(operation.GetOutputs()).To(BeEmpty())
	f.Expect(f.processes()).To(HaveExactElements(HavePrefix("refresh --preview-only"), HavePrefix("refresh --preview-only")), "nothing is prepared for it")
	f.fail(agentpb.FailureReason_FAILURE_REASON_STACK_NOT_FOUND, refreshPreview, fromState, func(request *agentpb.StartOperationRequest) {
		request.Stack, request.CreateStack = "other", false
	})
}

func TestDestroyPreviewListsWhatWouldGoAndDestroysNothing(t *testing.T) {
	f, dir := filesFixture(t, 2)
	f.succeed(up)
	before := f.checkpoint()
	operation := f.succeed(destroyPreview, fromState, func(request *agentpb.StartOperationRequest) { request.Options.Remove = true })
	f.Expect(f.changesOf(operation)).To(ConsistOf("delete file0", "delete file1"))
	f.Expect(f.checkpoint()).To(Equal(before))
	f.Expect(filepath.Join(dir, "file0")).To(BeAnExistingFile())
}

func TestOfManyChangesSomeAreListedAndAllAreCounted(t *testing.T) {
	suite.Long(t, "many resources; see TestPreviewListsWhatWouldChange")
	f, _ := filesFixture(t, agentpb.MaxChanges+5)
	operation := f.succeed(preview)
	f.Expect(operation.GetChanges()).To(HaveLen(agentpb.MaxChanges))
	f.Expect(operation.GetOmittedChanges()).To(BeEquivalentTo(5))
}
