package operation_test

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	. "github.com/onsi/gomega"

	"github.com/stack-controller/stack-controller/internal/agent/agentpb"
	"github.com/stack-controller/stack-controller/tests/framework/programs"
	"github.com/stack-controller/stack-controller/tests/framework/suite"
)

// expectsNoDrift asks for a refresh that must find nothing.
func expectsNoDrift(request *agentpb.StartOperationRequest) {
	request.Options.Refresh, request.Options.ExpectNoRefreshChanges = true, true
}

// filesFixture returns a fixture whose program manages files in the returned directory.
func filesFixture(t *testing.T, count int) (*fixture, string) {
	t.Helper()
	f := newCreated(t)
	return f, f.manageFiles(count)
}

// manageFiles makes the program manage count files, named file0 and so on, in the returned directory.
func (f *fixture) manageFiles(count int) (dir string) {
	f.t.Helper()
	f.Expect(programs.PutProvider(f.t.Context(), filepath.Join(f.home, ".pulumi"))).Error().NotTo(HaveOccurred())
	dir = f.t.TempDir()
	program := &strings.Builder{}
	fmt.Fprint(program, "name: demo\nruntime: yaml\nresources:\n")
	for i := range count {
		fmt.Fprintf(program, "  file%d:\n    type: test:index:Sleep\n    properties: {file: %q, content: ours}\n    options: {version: 0.1.0}\n",
			i, filepath.Join(dir, fmt.Sprintf("file%d", i)))
	}
	f.write("Pulumi.yaml", program.String())
	return dir
}

// checkpoint is the state in the backend.
func (f *fixture) checkpoint() string {
	f.t.Helper()
	content, err := os.ReadFile(filepath.Join(f.state, ".pulumi", "stacks", "demo", "dev.json"))
	f.Expect(err).NotTo(HaveOccurred())
	return string(content)
}

func TestDriftFailsAnOperationThatExpectsNoneAndChangesNothing(t *testing.T) {
	suite.Long(t, "tests/e2e proves it with TestDriftIsReportedWhenTwoChecksSeeTheSame")
	f := newFixture(t)
	file := filepath.Join(f.manageFiles(1), "file0")
	content := func() string {
		content, _ := os.ReadFile(file)
		return string(content)
	}

	// A stack that does not exist has no drift. Afterwards one more process looks for drift, with the same targets as the operation.
	f.succeed(up, expectsNoDrift)
	f.processes()
	urn := "urn:pulumi:dev::demo::test:index:Sleep::file0"
	operation := f.succeed(up, expectsNoDrift, func(request *agentpb.StartOperationRequest) { request.Options.Target = []string{urn} })
	f.Expect(operation.GetResourceChanges()).NotTo(HaveKey("refresh"))
	f.Expect(f.processes()).To(HaveExactElements(
		And(HavePrefix("refresh --preview-only --expect-no-changes --stack dev "), ContainSubstring("--target="+urn)),
		And(HavePrefix("up "), ContainSubstring("--refresh"))))

	f.Expect(os.WriteFile(file, []byte("theirs"), 0o600)).To(Succeed())
	before := f.checkpoint()
	for _, kind := range []agentpb.OperationKind{up, up, preview} {
		operation = f.fail(agentpb.FailureReason_FAILURE_REASON_UNEXPECTED_CHANGES, kind, expectsNoDrift)
		f.Expect(operation.GetMessage()).To(And(ContainSubstring("update test:index:Sleep file0 (content)"), ContainSubstring("expectNoRefreshChanges")))
		f.Expect(f.processes()).To(HaveExactElements(HavePrefix("refresh --preview-only")))
		f.Expect(f.checkpoint()).To(Equal(before))
		f.Expect(content()).To(Equal("theirs"))
	}

	// Without a refresh no process looks for drift. To accept the drift is enough to go on.
	f.succeed(up, func(request *agentpb.StartOperationRequest) { request.Options.ExpectNoRefreshChanges = true })
	f.Expect(f.processes()).To(HaveExactElements(HavePrefix("up ")))
	f.Expect(content()).To(Equal("theirs"))
	f.succeed(up, func(request *agentpb.StartOperationRequest) { request.Options.Refresh = true })
	f.Expect(content()).To(Equal("ours"))
	f.succeed(up, expectsNoDrift)
}

func TestExcludedResourcesAreLeftAsTheyAre(t *testing.T) {
	suite.Long(t, "further options of an operation")
	f, dir := filesFixture(t, 2)
	f.succeed(up)
	left, corrected := filepath.Join(dir, "file0"), filepath.Join(dir, "file1")
	for _, file := range []string{left, corrected} {
		f.Expect(os.WriteFile(file, []byte("theirs"), 0o600)).To(Succeed())
	}
	exclude := func(request *agentpb.StartOperationRequest) {
		request.Options.Refresh, request.Options.Exclude = true, []string{"**file0"}
	}
	f.succeed(up, exclude)
	f.Expect(os.ReadFile(left)).To(BeEquivalentTo("theirs"))
	f.Expect(os.ReadFile(corrected)).To(BeEquivalentTo("ours"))
	f.succeed(destroy, exclude)
	f.Expect(left).To(BeAnExistingFile())
	f.Expect(corrected).NotTo(BeAnExistingFile())
	f.succeed(destroy)
	f.Expect(left).NotTo(BeAnExistingFile())
}

func TestDriftDoesNotKeepResourcesFromBeingDestroyed(t *testing.T) {
	suite.Long(t, "further ways of drift; see TestDriftFailsAnOperationThatExpectsNoneAndChangesNothing")
	f, dir := filesFixture(t, 1)
	f.succeed(up)
	f.Expect(os.WriteFile(filepath.Join(dir, "file0"), []byte("theirs"), 0o600)).To(Succeed())
	f.succeed(destroy, expectsNoDrift)
	f.Expect(filepath.Join(dir, "file0")).NotTo(BeAnExistingFile())
}

func TestOfMuchDriftOnlySomeIsNamed(t *testing.T) {
	suite.Long(t, "further inputs of an operation")
	f, dir := filesFixture(t, 8)
	f.succeed(up)
	for i := range 8 {
		f.Expect(os.Remove(filepath.Join(dir, fmt.Sprintf("file%d", i)))).To(Succeed())
	}
	operation := f.fail(agentpb.FailureReason_FAILURE_REASON_UNEXPECTED_CHANGES, up, expectsNoDrift)
	f.Expect(strings.Count(operation.GetMessage(), "delete test:index:Sleep file")).To(Equal(5), operation.GetMessage())
	f.Expect(operation.GetMessage()).To(ContainSubstring(" and 3 more. Nothing was changed"))
}
