package operation_test

import (
	"bytes"
	"compress/gzip"
	"crypto/sha256"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"testing"

	. "github.com/onsi/gomega"

	"github.com/stack-controller/stack-controller/internal/agent/agentpb"
	runner "github.com/stack-controller/stack-controller/internal/agent/operation"
	"github.com/stack-controller/stack-controller/tests/framework/suite"
)

const (
	plannedUp      = agentpb.OperationKind_OPERATION_KIND_PLANNED_UP
	plannedDestroy = agentpb.OperationKind_OPERATION_KIND_PLANNED_DESTROY

	planStale    = agentpb.FailureReason_FAILURE_REASON_PLAN_STALE
	planViolated = agentpb.FailureReason_FAILURE_REASON_PLAN_VIOLATED
	planTooLarge = agentpb.FailureReason_FAILURE_REASON_PLAN_TOO_LARGE
)

// planKey is the key of all digests in these tests.
var planKey = bytes.Repeat([]byte("k"), agentpb.PlanKeySize)

// saved makes the operation save a plan.
func saved(request *agentpb.StartOperationRequest) {
	request.Plan = &agentpb.PlanRequest{Key: planKey}
}

func withoutFile(request *agentpb.StartOperationRequest) {
	request.Plan.WithoutFile = true
}

// carriesOut makes the operation carry out the plan that the given operation saved.
func (f *fixture) carriesOut(operation *agentpb.Operation) func(*agentpb.StartOperationRequest) {
	f.t.Helper()
	f.Expect(operation.GetPlan()).NotTo(BeNil())
	f.plan = filepath.Join(f.results, runner.PlanFile)
	content, _ := os.ReadFile(f.plan)
	return func(request *agentpb.StartOperationRequest) {
		request.Plan = &agentpb.PlanRequest{Key: planKey, Expected: operation.GetPlan().GetDigests(), FileDigest: fmt.Sprintf("sha256:%x", sha256.Sum256(content))}
	}
}

// planned is the text of the plan that was saved last.
func (f *fixture) planned() string {
	f.t.Helper()
	file, err := os.Open(filepath.Join(f.results, runner.PlanText))
	f.Expect(err).NotTo(HaveOccurred())
	defer file.Close()
	zip, err := gzip.NewReader(file)
	f.Expect(err).NotTo(HaveOccurred())
	content, err := io.ReadAll(zip)
	f.Expect(err).NotTo(HaveOccurred())
	return string(content)
}

// filesProgram writes a program with a file for each of the contents, named file0 and so on.
func (f *fixture) filesProgram(dir string, contents ...string) {
	f.t.Helper()
	program := "name: demo\nruntime: yaml\nresources:\n"
	for i, content := range contents {
		program += fmt.Sprintf("  file%d:\n    type: test:index:Sleep\n    properties: {file: %q, content: %q}\n    options: {version: 0.1.0}\n",
			i, filepath.Join(dir, fmt.Sprintf("file%d", i)), content)
	}
	f.write("Pulumi.yaml", program)
}

func (f *fixture) content(dir, name string) string {
	content, _ := os.ReadFile(filepath.Join(dir, name))
	return string(content)
}

func TestPlanIsSavedAndCarriedOut(t *testing.T) {
	f, dir := filesFixture(t, 1)
	plan := f.succeed(preview, saved)
	f.Expect(f.changesOf(plan)).To(ConsistOf("create file0"))
	f.Expect(plan.GetPlan().GetSize()).To(BeNumerically(">", 100))
	f.Expect(plan.GetPlan().GetPulumiVersion()).To(Equal(f.runner.Version()))
	f.Expect(f.planned()).To(And(ContainSubstring("+ create test:index:Sleep file0"), ContainSubstring(`+ content: "ours"`)))
	f.Expect(f.readAll(f.home, "plan.json")).To(BeEmpty(), "it has values in clear")
	f.processes()

	operation := f.succeed(plannedUp, f.carriesOut(plan))
	f.Expect(operation.GetKind()).To(Equal(plannedUp))
	f.Expect(operation.GetResourceChanges()).To(Equal(map[string]int64{"create": 2}), "the stack and the file; the steps of its preview do not count")
	f.Expect(f.content(dir, "file0")).To(Equal("ours"))
	f.Expect(f.processesWithState()).To(HaveExactElements(HavePrefix("stack export"), And(HavePrefix("up --yes --plan="), Not(ContainSubstring("--skip-preview")))))
	f.Expect(f.readAll(f.home, "plan.json")).To(BeEmpty())

	again := f.fail(planStale, plannedUp, f.carriesOut(plan))
	f.Expect(again.GetMessage()).To(ContainSubstring("the state of the stack is not the one that the plan was made for"))
}

func TestWhatIsNotInThePlanIsRefusedBeforeAnythingIsChanged(t *testing.T) {
	f, dir := filesFixture(t, 0)
	f.filesProgram(dir, "one", "one")
	f.succeed(up)
	f.filesProgram(dir, "two", "two")
	plan := f.succeed(preview, saved)
	f.Expect(f.planned()).To(ContainSubstring(`~ content: "one" => "two"`))
	before := f.checkpoint()

	f.filesProgram(dir, "two", "canary-plain-value")
	operation := f.fail(planViolated, plannedUp, f.carriesOut(plan))
	f.Expect(operation.GetMessage()).To(And(ContainSubstring("urn:pulumi:dev::demo::test:index:Sleep::file1 (content)"),
		ContainSubstring("nothing was changed"), Not(ContainSubstring("canary")), Not(ContainSubstring("two"))))
	f.filesProgram(dir, "two")
	operation = f.fail(planViolated, plannedUp, f.carriesOut(plan))
	f.Expect(operation.GetMessage()).To(ContainSubstring("a resource (delete)"))
	f.filesProgram(dir, "two", "two", "three")
	operation = f.fail(planViolated, plannedUp, f.carriesOut(plan))
	f.Expect(operation.GetMessage()).To(ContainSubstring("file2 (create)"))
	f.Expect(f.checkpoint()).To(Equal(before))
	f.Expect(f.content(dir, "file0")).To(Equal("one"))

	f.filesProgram(dir, "two", "two")
	f.succeed(plannedUp, f.carriesOut(plan))
	f.Expect(f.content(dir, "file0")).To(Equal("two"))
}

func TestPlanOfOtherInputsIsStale(t *testing.T) {
	f, _ := filesFixture(t, 1)
	password := func(value string) func(*agentpb.StartOperationRequest) { return withConfig(secret("password", value)) }
	plan := f.succeed(preview, saved, password("one"))
	for name, change := range map[string]func(*agentpb.StartOperationRequest){
		"a secret":   withConfig(secret("password", "two")),
		"a variable": withEnv("OTHER", "x", false),
		"an option":  func(request *agentpb.StartOperationRequest) { request.Options.Refresh = true },
		"a program":  func(request *agentpb.StartOperationRequest) { request.GetLocal().Dir = "other" },
	} {
		operation := f.fail(planStale, plannedUp, password("one"), f.carriesOut(plan), change)
		f.Expect(operation.GetMessage()).To(ContainSubstring("are not those that the plan was made with"), name)
	}
	f.succeed(plannedUp, password("one"), f.carriesOut(plan), func(request *agentpb.StartOperationRequest) {
		request.Options.Message, request.Options.Parallel, request.NewStack = "another one", 3, true
		request.CommitMetadata = map[string]string{"PULUMI_GIT_HEAD": "abc"}
	})
}

// The content of such a file is a token that the cluster renews every hour.
func TestPlanStaysGoodWhenATokenInAFileIsRenewed(t *testing.T) {
	f, _ := filesFixture(t, 1)
	token := filepath.Join(t.TempDir(), "token")
	write := func(content string) { f.Expect(os.WriteFile(token, []byte(content), 0o600)).To(Succeed()) }
	fromFile := func(path string) func(*agentpb.StartOperationRequest) {
		return func(request *agentpb.StartOperationRequest) {
			request.Env = append(request.Env, &agentpb.EnvironmentVariable{
				Name: "ARM_OIDC_TOKEN", Secret: true, Value: &agentpb.EnvironmentVariable_FromFile{FromFile: path},
			})
		}
	}
	write("canary-token-one")
	plan := f.succeed(preview, saved, fromFile(token))
	write("canary-token-two")
	other := token + "-other"
	f.Expect(os.WriteFile(other, nil, 0o600)).To(Succeed())
	f.fail(planStale, plannedUp, f.carriesOut(plan), fromFile(other))
	f.succeed(plannedUp, f.carriesOut(plan), fromFile(token))
}

// Whoever may create Updates can name another program with a plan that was approved. Nothing runs for it: no installation of its dependencies,
// which runs its scripts, and no question to its backend, which would get the credentials.
func TestPlanIsComparedWithTheInputsBeforeAnyProcessStarts(t *testing.T) {
	f, _ := filesFixture(t, 1)
	plan := f.succeed(preview, saved)
	f.processes()
	f.write("Pulumi.yaml", "name: demo\nruntime: nodejs\nbackend: {url: 'https://mallory.example.com'}\n")
	f.write("package.json", `{"scripts": {"preinstall": "env"}}`)
	f.fail(planStale, plannedUp, f.carriesOut(plan), func(request *agentpb.StartOperationRequest) {
		request.Source = &agentpb.StartOperationRequest_Artifact{Artifact: &agentpb.ArtifactSource{Digest: "sha256:e0e0"}}
		request.NewStack, request.AfterInterruption, request.Interrupted = true, true, []*agentpb.Period{{}}
	})
	f.Expect(f.processes()).To(BeEmpty())
}

func TestEqualPlansHaveEqualDigests(t *testing.T) {
	suite.Long(t, "further plans")
	f, dir := filesFixture(t, 3)
	first := f.succeed(preview, saved).GetPlan().GetDigests()
	second := f.succeed(preview, saved).GetPlan().GetDigests()
	f.Expect(second).To(HaveField("String()", first.String()))
	f.Expect(first.GetInputs()).To(HaveLen(64))

	// Another state, and the same changes.
	f.succeed(up)
	f.filesProgram(dir, "two", "ours", "ours")
	before := f.succeed(preview, saved).GetPlan().GetDigests()
	f.succeed(refresh)
	after := f.succeed(preview, saved).GetPlan().GetDigests()
	f.Expect(after.GetState()).NotTo(Equal(before.GetState()))
	f.Expect(after.GetChanges()).To(Equal(before.GetChanges()))
	f.filesProgram(dir, "three", "ours", "ours")
	f.Expect(f.succeed(preview, saved).GetPlan().GetDigests().GetChanges()).NotTo(Equal(before.GetChanges()), "the values count")
	otherKey := func(request *agentpb.StartOperationRequest) {
		request.Plan.Key = bytes.Repeat([]byte("x"), agentpb.PlanKeySize)
	}
	f.Expect(f.succeed(preview, saved, otherKey).GetPlan().GetDigests().GetInputs()).NotTo(Equal(before.GetInputs()))
}

func TestPlanWithoutFileComparesInputsAndState(t *testing.T) {
	suite.Long(t, "further plans")
	f, dir := filesFixture(t, 1)
	plan := f.succeed(preview, saved, withoutFile)
	f.Expect(plan.GetPlan().GetSize()).To(BeZero())
	f.Expect(filepath.Join(f.results, runner.PlanFile)).NotTo(BeAnExistingFile())
	f.processes()
	f.succeed(plannedUp, f.carriesOut(plan), withoutFile)
	f.Expect(f.processes()).To(HaveExactElements(HavePrefix("stack export"), HavePrefix("up --yes --skip-preview")))
	f.Expect(f.content(dir, "file0")).To(Equal("ours"))
	f.fail(planStale, plannedUp, f.carriesOut(plan), withoutFile)
}

func TestPlanOfADestroyIsComparedBeforeAnythingIsDestroyed(t *testing.T) {
	suite.Long(t, "further plans")
	f, dir := filesFixture(t, 2)
	f.succeed(up)
	dontCreate := func(request *agentpb.StartOperationRequest) { request.CreateStack = false }
	plan := f.succeed(destroyPreview, saved, fromState, dontCreate)
	f.Expect(f.changesOf(plan)).To(ConsistOf("delete file0", "delete file1"))
	f.Expect(f.planned()).To(ContainSubstring("- delete test:index:Sleep file1"))
	f.Expect(plan.GetPlan().GetSize()).To(BeZero(), "Pulumi has no file for it")
	f.succeed(refresh)
	f.fail(planStale, plannedDestroy, f.carriesOut(plan), fromState, dontCreate)
	f.Expect(f.content(dir, "file0")).To(Equal("ours"))

	plan = f.succeed(destroyPreview, saved, fromState, dontCreate)
	f.processes()
	f.succeed(plannedDestroy, f.carriesOut(plan), fromState, dontCreate)
	f.Expect(f.processes()).To(HaveExactElements(HavePrefix("destroy --preview-only"), HavePrefix("stack export"), HavePrefix("destroy --yes --skip-preview")))
	f.Expect(filepath.Join(dir, "file0")).NotTo(BeAnExistingFile())
}

func TestPlanThatIsNotAsItWasSavedIsRefused(t *testing.T) {
	suite.Long(t, "further plans")
	f, dir := filesFixture(t, 1)
	plan := f.succeed(preview, saved)
	change := f.carriesOut(plan)
	content, err := os.ReadFile(f.plan)
	f.Expect(err).NotTo(HaveOccurred())
	for _, forged := range [][]byte{nil, []byte("no plan"), content[:len(content)/2], append(bytes.Clone(content), content...), append(bytes.Clone(content), 'x')} {
		f.Expect(os.WriteFile(f.plan, forged, 0o600)).To(Succeed())
		f.Expect(f.fail(planStale, plannedUp, change).GetMessage()).To(ContainSubstring("is not as it was saved; nothing was changed"))
	}
	f.Expect(filepath.Join(dir, "file0")).NotTo(BeAnExistingFile())
	f.Expect(os.WriteFile(f.plan, content, 0o600)).To(Succeed())
	f.succeed(plannedUp, change)
}

func TestSecretsAreNotInThePlanOfPulumiNorInItsText(t *testing.T) {
	f, dir := filesFixture(t, 0)
	f.write("Pulumi.yaml", "name: demo\nruntime: yaml\nconfig:\n  password: {type: string, secret: true}\nresources:\n  file0:\n"+
		"    type: test:index:Sleep\n    properties: {file: "+filepath.Join(dir, "file0")+", content: \"${password}\"}\n    options: {version: 0.1.0}\n")
	plan := f.succeed(preview, saved, withConfig(secret("password", canary)))
	f.Expect(f.planned()).To(And(ContainSubstring("content: [secret]"), Not(ContainSubstring(canary))))
	f.Expect(plan.String()).NotTo(ContainSubstring(canary))
	f.plan = filepath.Join(f.results, runner.PlanFile)
	zip, err := gzip.NewReader(bytes.NewReader([]byte(f.readAll(f.results, runner.PlanFile))))
	f.Expect(err).NotTo(HaveOccurred())
	content, err := io.ReadAll(zip)
	f.Expect(err).NotTo(HaveOccurred())
	f.Expect(string(content)).To(And(ContainSubstring("file0"), Not(ContainSubstring(canary))))
	f.succeed(plannedUp, withConfig(secret("password", canary)), f.carriesOut(plan))
	f.Expect(f.content(dir, "file0")).To(Equal(canary))
	f.Expect(f.logged.String()).NotTo(ContainSubstring(canary))
}

// providersProgram writes a program with two providers, of which the second has the name and the region, and a file that the used one makes.
func (f *fixture) providersProgram(dir, used, name, region string) {
	f.t.Helper()
	f.write("Pulumi.yaml", fmt.Sprintf(`name: demo
runtime: yaml
resources:
  here: {type: "pulumi:providers:test", options: {version: 0.1.0}}
  there: {type: "pulumi:providers:test", name: %q, properties: {region: %q}, options: {version: 0.1.0}}
  file0: {type: "test:index:Sleep", properties: {file: %q, content: x}, options: {version: 0.1.0, provider: "${%s}"}}
`, name, region, filepath.Join(dir, "file0"), used))
}

// A provider stands for an account or a region. The request is the same for both plans, as for a program that reads from elsewhere which
// provider it uses.
func TestPlanThatUsesAnotherProviderIsAnotherPlan(t *testing.T) {
	suite.Long(t, "TestChangeOfADefaultProviderIsShownAndCounted proves that providers count")
	f, dir := filesFixture(t, 0)
	f.providersProgram(dir, "here", "other", "a")
	here := f.succeed(preview, saved).GetPlan().GetDigests()
	f.Expect(f.planned()).To(ContainSubstring("Sleep::file0\n    provider: here\n"))
	f.providersProgram(dir, "there", "other", "a")
	there := f.succeed(preview, saved).GetPlan().GetDigests()
	f.Expect(f.planned()).To(ContainSubstring("Sleep::file0\n    provider: other\n"))
	f.Expect(there.GetInputs()).To(Equal(here.GetInputs()))
	f.Expect(there.GetChanges()).NotTo(Equal(here.GetChanges()))
}

// Pulumi does not count the steps of providers with such names, and a plan without changes needs no approval.
func TestProviderWithTheNameOfADefaultProviderIsShownAndCounted(t *testing.T) {
	suite.Long(t, "TestChangeOfADefaultProviderIsShownAndCounted is the same for the usual default provider")
	f, dir := filesFixture(t, 0)
	f.providersProgram(dir, "there", "default_mine", "a")
	one := f.succeed(preview, saved)
	f.Expect(f.planned()).To(And(ContainSubstring("+ create pulumi:providers:test default_mine"), ContainSubstring(`+ region: "a"`)))
	f.Expect(one.GetResourceChanges()).To(HaveKeyWithValue("create", BeEquivalentTo(4)), "the stack, two providers and the file")
	f.providersProgram(dir, "there", "default_mine", "b")
	f.Expect(f.succeed(preview, saved).GetPlan().GetDigests().GetChanges()).NotTo(Equal(one.GetPlan().GetDigests().GetChanges()))
	f.succeed(up)
	f.providersProgram(dir, "there", "default_mine", "c")
	update := f.succeed(preview, saved)
	f.Expect(f.planned()).To(ContainSubstring(`~ region: "b" => "c"`))
	f.Expect(update.GetChanges()).To(HaveExactElements(HaveField("Operation", "update")))
	f.Expect(update.GetResourceChanges()).To(HaveKeyWithValue("update", BeEquivalentTo(1)))
	f.succeed(plannedUp, f.carriesOut(update))
	f.Expect(f.succeed(preview).GetChanges()).To(BeEmpty())
}

// The region of a provider that the engine creates comes from the configuration of the stack.
func TestChangeOfADefaultProviderIsShownAndCounted(t *testing.T) {
	suite.Long(t, "further resources; see TestPreviewListsWhatWouldChange")
	f, _ := filesFixture(t, 1)
	region := func(value string) func(*agentpb.StartOperationRequest) {
		return withConfig(&agentpb.ConfigItem{Key: "test:region", Value: &agentpb.ConfigItem_Text{Text: value}})
	}
	f.Expect(f.changesOf(f.succeed(preview, saved, region("a")))).To(ConsistOf("create file0"))
	f.succeed(up, region("a"))
	f.Expect(f.succeed(preview, saved, region("a")).GetChanges()).To(BeEmpty())
	update := f.succeed(preview, saved, region("b"))
	f.Expect(update.GetResourceChanges()).To(HaveKeyWithValue("update", BeEquivalentTo(1)))
	f.Expect(f.planned()).To(ContainSubstring(`~ region: "a" => "b"`))
	f.succeed(plannedUp, region("b"), f.carriesOut(update))
}

// What is imported is known by its ID alone: its inputs can be those of many.
func TestPlanSaysWhichResourceItImports(t *testing.T) {
	suite.Long(t, "further changes in a plan; see TestPlanIsSavedAndCarriedOut")
	f, dir := filesFixture(t, 0)
	f.Expect(os.WriteFile(filepath.Join(dir, "file0"), []byte("x"), 0o600)).To(Succeed())
	var changes []string
	for _, id := range []string{"first:" + filepath.Join(dir, "file0"), "second:" + filepath.Join(dir, "file0")} {
		f.write("Pulumi.yaml", fmt.Sprintf("name: demo\nruntime: yaml\nresources:\n  file0:\n    type: test:index:Sleep\n"+
			"    properties: {file: %[1]q, content: x}\n    options: {version: 0.1.0, import: %[2]q}\n", filepath.Join(dir, "file0"), id))
		changes = append(changes, f.succeed(preview, saved).GetPlan().GetDigests().GetChanges())
		f.Expect(f.planned()).To(ContainSubstring("    id: " + id + "\n"))
	}
	f.Expect(changes[0]).NotTo(Equal(changes[1]))
}
