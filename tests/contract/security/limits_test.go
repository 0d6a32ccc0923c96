package security_test

import (
	"errors"
	"fmt"
	"go/ast"
	"go/constant"
	"go/parser"
	"go/token"
	"go/types"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"testing"

	. "github.com/onsi/gomega"

	"github.com/stack-controller/stack-controller/tests/contract/pages"
	"github.com/stack-controller/stack-controller/tests/tools"
)

// limit bounds how many small things a tenant, or an agent of a tenant, can make the controller work with.
type limit struct {
	// what is counted.
	what string
	// amount is the bound. "%s" stands for the value of the code, in words of the page.
	amount string
	// code is where the bound is: a constant, or a field of the API with a marker of the CRD. value is what the code has.
	code  string
	value int64
	// sees is what the tenant sees.
	sees string
	// proof is the test.
	proof string
}

const (
	configInvalid = "`ConfigInvalid`, with the object and the limit"
	shortList     = "a shorter list, with the number of items that are left out"
	apiServer     = "The API server rejects the object."
	answerRefused = "`ConnectionFailed`, or the Update waits: the answer is not decoded"
)

// limits lists all counts, in the order of the page.
var limits = []limit{
	{"Parts of one object: keys of a Secret or ConfigMap; labels, annotations, owners and finalizers; lists, maps and nested values of the spec, such as " +
		"`stacks`, `env`, `envFrom`, `config`, templates and pull secrets", "%s bytes of memory, with what each entry takes", "internal/informercache.MaxMemory", 4 << 20,
		"`SpecInvalid`, `PodTemplateInvalid`, `ProgramInvalid`, Stalled; `ConfigInvalid` for a Secret or ConfigMap", "informercache.TestManySmallPartsCountAsTheMemoryThatTheyTake"},
	{"Secrets and ConfigMaps that an operation reads", "%s", "internal/references.MaxObjects", 1000,
		configInvalid, "update.TestOperationAsksForABoundedNumberOfObjectsAndForEachOnce"},
	{"Keys of all these objects", "%s bytes with the keys and values", "internal/controller/inputs.MaxReferenced", 8 << 20,
		configInvalid, "update.TestValuesOfAnOperationAreBounded"},
	{"… and for each key", "%s more bytes", "internal/controller/inputs.KeyCost", 64, configInvalid, "update.TestValuesOfAnOperationAreBounded"},
	{"Environment variables, configuration values, imported Pulumi ESC environments, targets and replacements of an operation", "%s together", "internal/controller/update.maxEntries", 10_000,
		configInvalid, "update.TestOneMoreThanAnOperationMayHaveIsRefused"},
	{"Environment, targets and replacements of an operation, as Linux counts them", "%s bytes", "internal/controller/update.maxProcess", 2 << 20,
		configInvalid, "update.TestOneMoreThanAnOperationMayHaveIsRefused"},
	{"One environment variable", "%s bytes", "internal/controller/update.maxVariable", 128<<10 - 1, configInvalid, "update.TestValuesOfAnOperationAreBounded"},
	{"Environment and configuration of an operation, also values that are replaced", "%s bytes", "internal/controller/update.maxValues", 8 << 20,
		configInvalid, "update.TestOneMoreThanAnOperationMayHaveIsRefused"},
	{"Keys and values in structured configuration values of an operation", "%s", "internal/jsonparts.MaxParts", 100_000,
		configInvalid, "update.TestOneMoreThanAnOperationMayHaveIsRefused"},
	{"Levels of a structured configuration value", "%s", "internal/jsonparts.MaxDepth", 100, configInvalid, "update.TestOneMoreThanAnOperationMayHaveIsRefused"},
	{"Fields of a request to an agent", "%s", "internal/agent/agentpb.MaxRequestFields", 100_000,
		"nothing: the limits above are lower", "server.TestRequestOfEmptyMessagesIsRefusedBeforeItIsDecoded"},
	{"Secrets and ConfigMaps of a Stack whose changes run an update at once", "%s", "internal/controller/stack.maxIndexed", 256,
		"Changes of others are noticed at the next reconciliation.", "stack.TestStackMayHaveABoundedNumberOfDependencies"},
	{"`dependsOn`, `prerequisites` and Stacks in `inputs` of a Stack", "%s together", "internal/controller/stack.maxDependencies", 256, "`SpecInvalid`, Stalled", "stack.TestOneMoreThanAStackMayHaveIsNotRead"},
	{"`dependsOn` with a `readyExpr`", "%s", "internal/controller/stack.maxExpressions", 100, "`InvalidCELExpression`, Stalled", "stack.TestStackMayHaveAHundredExpressions"},
	{"Conditions that are kept of an object of another kind in `dependsOn`", "%s", "internal/objectwatch.maxConditions", 50,
		"A `readyExpr` sees none of them. Whether the object is ready counts.", "objectwatch.TestNothingIsKeptOfAnObjectButWhatIsListed"},
	{"Labels that are kept of such an object", "%s", "internal/objectwatch.maxLabels", 1000, "A `readyExpr` sees none of them.",
		"objectwatch.TestNothingIsKeptOfAnObjectButWhatIsListed"},
	{"All such objects", "%s bytes", "internal/objectwatch.maxAnswers", 16 << 20, "nothing: others are read again", "objectwatch.TestWhatIsKeptOfAllObjectsIsBounded"},
	{"Outputs of other Stacks that were read a moment ago", "%s bytes", "internal/controller/inputs.maxStored", 4 << 20, "nothing: others are read again",
		"inputs.TestStoredOutputsAreReadOnceForAll"},
	{"`sourcePaths` of a Stack", "%s", "api/pulumi/v1.StackSpec.SourcePaths", 256, apiServer, "api.TestListsBeyondTheirLimitsAreRejected"},
	{"Objects with outputs of a Stack", "%s", "api/pulumi/v1.StackSpec.Outputs", 16, apiServer, "api.TestListsBeyondTheirLimitsAreRejected"},
	{"Keys of an object with outputs", "%s", "api/pulumi/v1.OutputObject.Keys", 256, apiServer, "api.TestListsBeyondTheirLimitsAreRejected"},
	{"`inputs` of a Stack", "%s", "api/pulumi/v1.StackSpec.Inputs", 100, apiServer, "api.TestListsBeyondTheirLimitsAreRejected"},
	{"`shareOutputs` of a Stack", "%s", "api/pulumi/v1.StackSpec.ShareOutputs", 32, apiServer, "api.TestListsBeyondTheirLimitsAreRejected"},
	{"Namespaces of an item of `shareOutputs`", "%s", "api/pulumi/v1.OutputShare.Namespaces", 64, apiServer, "api.TestListsBeyondTheirLimitsAreRejected"},
	{"Outputs of an item of `shareOutputs`", "%s", "api/pulumi/v1.OutputShare.Outputs", 256, apiServer, "api.TestListsBeyondTheirLimitsAreRejected"},
	{"Waves of a StackRollout", "%s", "api/auto/v1alpha1.StackRolloutSpec.Waves", 20, apiServer, "api.TestStackRolloutsThatCannotWorkAreRefused"},
	{"Stacks of a StackRollout that are updated at once", "%s", "internal/waves.maxConcurrent", 200, "others wait for their turn", "rollout.TestStatusIsBounded"},
	{"Status of a StackRollout", "%s bytes", "internal/controller/rollout.maxStatus", 48 << 10, "others wait for their turn", "rollout.TestStatusIsBounded"},
	{"Stacks in `status.failing`, and in `status.refused`, of a StackRollout", "%s", "internal/controller/rollout.maxFailing", 10, "a shorter list", "rollout.TestStatusIsBounded"},
	{"Stacks of a StackRollout that make plans at once", "%s", "internal/controller/rollout.maxPlans", 200, "others plan later", "rollout.TestPlansAreBounded"},
	{"Names of such Stacks in the status of a StackRollout", "%s bytes", "internal/controller/rollout.plansLength", 9 << 10, "others plan later", "rollout.TestPlansAreBounded"},
	{"Other sources of the Stacks of a StackRollout", "%s", "internal/controller/rollout.maxSources", 1000, "in `status.refused`", "rollout.TestSourcesOfTheSameRepositoryTakePart"},
	{"Artifacts that the store keeps for the Stacks of a StackRollout", "%s", "internal/controller/rollout.maxKept", 50,
		"What Stacks ran that wait is kept first. Of others, the condition is `RevisionNotKept` if they are needed after they were evicted.", "rollout.TestArtifactsOfStacksThatWaitAreKeptFirst"},
	{"Windows of a StackRollout", "%s", "api/auto/v1alpha1.StackRolloutSpec.Windows", 50, apiServer, "api.TestWindowsThatCannotWorkAreRefused"},
	{"Windows of a Stack", "%s", "api/pulumi/v1.StackSpec.Windows", 50, apiServer, "api.TestWindowsThatCannotWorkAreRefused"},
	{"Approvals that are kept of a StackRollout", "%s", "internal/controller/approval.maxOfRollout", 20, "the oldest are deleted", "e2e.TestOldApprovalsOfAStackRolloutAreDeleted"},
	{"`drift.ignore` of a Stack", "%s", "api/pulumi/v1.DriftSpec.Ignore", 50, apiServer, "api.TestListsBeyondTheirLimitsAreRejected"},
	{"`paths` of an item of `drift.ignore`", "%s", "api/pulumi/v1.DriftIgnore.Paths", 50, apiServer, "api.TestListsBeyondTheirLimitsAreRejected"},
	{"`updateHistoryLimit` of a Stack", "%s", "api/pulumi/v1.StackSpec.UpdateHistoryLimit", 100, apiServer, "api.TestListsBeyondTheirLimitsAreRejected"},
	{"Problems of a pod template that a message names", "%s", "internal/agentruntime/pod/podspec.maxProblems", 20,
		"`PodTemplateInvalid`, with the first ones", "podspec.TestMessageAboutVeryManyProblemsTakesLittleMemory"},
	{"Keys and values of a Program", "%s", "internal/jsonparts.MaxParts", 100_000, "`ProgramInvalid`, Stalled", "render.TestProgramOfVeryManySmallPartsIsRefusedBeforeItIsDecoded"},
	{"Levels of a Program", "%s", "internal/jsonparts.MaxDepth", 100, "`ProgramInvalid`, Stalled", "render.TestWhatCannotBeRenderedIsReportedWithItsPathAndWithoutItsValue"},
	{"What the cache keeps of a Flux source, with 16 bytes for each item", "%s bytes", "internal/source.maxCached", 64 << 10, "nothing", "source.TestCacheHoldsLittleOfASourceWhoseOwnerWritesMuch"},
	{"Approvals of a plan in the status of its Stack", "%s", "internal/controller/plans.MaxApprovals", 10,
		"Further ones are not listed. All are evaluated, without a copy of them.", "stack.TestApprovalsAreOfDistinctPeopleAndBounded"},
	{"Secrets of a plan", "%s", "api/auto/v1alpha1.SavedPlan.Secrets", 9, "`PlanTooLarge`", "api.TestListsBeyondTheirLimitsAreRejected"},
	{"Outputs of an operation", "%s", "internal/agent/agentpb.MaxOutputs", 10_000, "The agent removes the largest ones.", "client.TestLargestAnswersTakeLittleMemory"},
	{"Outputs in the status of a Stack", "%s", "internal/controller/stack.maxShownOutputs", 10_000, "Further ones are not shown.", "stack.TestOneMoreThanAStackMayHaveIsNotRead"},
	{"Changes of a preview in the status of an Update", "%s", "internal/agent/agentpb.MaxChanges", 200, shortList, "client.TestWhatAnAgentSaysIsFitToBeShown"},
	{"Paths of such a change", "%s", "internal/agent/agentpb.MaxChangePaths", 20, "a shorter list", "client.TestWhatAnAgentSaysIsFitToBeShown"},
	{"Drifted resources in the status of a Stack", "%s", "internal/controller/stack.maxDriftedResources", 50, shortList, "stack.TestIgnoredDriftIsNone"},
	{"Kinds of changes that are counted", "%s", "internal/agent/agentpb.MaxChangeKinds", 32, "a shorter list", "client.TestWhatAnAgentSaysIsFitToBeShown"},
	{"Warnings of an operation", "%s", "internal/agent/agentpb.MaxWarnings", 10, "a shorter list", "client.TestWhatAnAgentSaysIsFitToBeShown"},
	{"Fields of what an agent answers about itself and its operations (`GetInfo`)", "%s", "internal/agent/agentpb.MaxInfoFields", 8_000, answerRefused, "client.TestAnswersOfEmptyMessagesAreRefusedBeforeTheyAreDecoded"},
	{"Operations that an agent keeps", "%s", "internal/agent/server.maxFinishedOperations", 50, "The agent forgets the oldest ones.", "server.TestControllerAcceptsTheLargestInfo"},
	{"Fields of an operation that runs", "%s", "internal/agent/agentpb.MaxOperationFields", 500, answerRefused, "client.TestAnswersOfEmptyMessagesAreRefusedBeforeTheyAreDecoded"},
	{"Fields of a result, with its outputs and changes", "%s", "internal/agent/agentpb.MaxResultFields", 69_100, answerRefused, "client.TestAnswersOfEmptyMessagesAreRefusedBeforeTheyAreDecoded"},
}

// limitRows returns the table of the page.
func limitRows(t *testing.T, tests *pages.Tests) string {
	var rows strings.Builder
	for _, row := range limits {
		file, found := tests.File(row.proof)
		if !found {
			t.Errorf("%s: there is no test %s", row.what, row.proof)
		}
		fmt.Fprintf(&rows, "| %s | %s | `%s` | %s | [%s](../%s)%s |\n", pages.Cell(row.what), fmt.Sprintf(row.amount, grouped(row.value)), row.code,
			pages.Cell(row.sees), row.proof, file, tests.Mark(row.proof))
	}
	return strings.TrimSpace(rows.String())
}

// grouped returns the number with commas between groups of three digits.
func grouped(number int64) string {
	text := strconv.FormatInt(number, 10)
	for i := len(text) - 3; i > 0; i -= 3 {
		text = text[:i] + "," + text[i:]
	}
	return text
}

func TestLimitsOnCountsAreThoseOfTheCode(t *testing.T) {
	g := NewWithT(t)
	code := &packages{t: t, known: map[string]*types.Package{}}
	for _, row := range limits {
		if strings.HasPrefix(row.code, "api/") {
			g.Expect(markerOf(t, row.code)).To(Equal(row.value), row.code)
			continue
		}
		at := strings.LastIndex(row.code, ".")
		declared, ok := code.in(row.code[:at]).Scope().Lookup(row.code[at+1:]).(*types.Const)
		g.Expect(ok).To(BeTrue(), "there is no constant %s", row.code)
		value, exact := constant.Int64Val(declared.Val())
		g.Expect(exact).To(BeTrue(), row.code)
		g.Expect(value).To(Equal(row.value), row.code)
	}
}

// module is the prefix of the paths of the repository's packages.
const module = "github.com/stack-controller/stack-controller/"

// packages type-checks packages of the repository as far as their constants need it: without bodies of functions, and without packages of
// other modules.
type packages struct {
	t     *testing.T
	known map[string]*types.Package
}

// Import implements types.Importer.
func (p *packages) Import(path string) (*types.Package, error) {
	directory, own := strings.CutPrefix(path, module)
	if !own {
		return nil, errors.New("not a package of the repository")
	}
	return p.in(directory), nil
}

// in returns the package in the directory.
func (p *packages) in(directory string) *types.Package {
	if known := p.known[directory]; known != nil {
		return known
	}
	files := token.NewFileSet()
	config := types.Config{IgnoreFuncBodies: true, Importer: p, Error: func(error) {}}
	// The errors are about packages of other modules.
	checked, _ := config.Check(module+directory, files, parseCode(p.t, files, directory), nil)
	p.known[directory] = checked
	return checked
}

// parseCode parses the files of the directory that are not tests.
func parseCode(t *testing.T, files *token.FileSet, directory string) (parsed []*ast.File) {
	g := NewWithT(t)
	paths, err := filepath.Glob(filepath.Join(tools.RepositoryRoot(), filepath.FromSlash(directory), "*.go"))
	g.Expect(err).NotTo(HaveOccurred())
	for _, path := range paths {
		if strings.HasSuffix(path, "_test.go") {
			continue
		}
		file, err := parser.ParseFile(files, path, nil, parser.ParseComments|parser.SkipObjectResolution)
		g.Expect(err).NotTo(HaveOccurred())
		parsed = append(parsed, file)
	}
	g.Expect(parsed).NotTo(BeEmpty(), directory)
	return parsed
}

// marker matches the limit of a field in the markers of the CRD.
var marker = regexp.MustCompile(`\+kubebuilder:validation:(?:MaxItems|Maximum)=([0-9]+)`)

// markerOf returns the limit of a field of the API, "directory.Type.Field".
func markerOf(t *testing.T, field string) (value int64) {
	parts := strings.Split(field, ".")
	for _, file := range parseCode(t, token.NewFileSet(), parts[0]) {
		ast.Inspect(file, func(node ast.Node) bool {
			declared, ok := node.(*ast.TypeSpec)
			if !ok || declared.Name.Name != parts[1] {
				return true
			}
			structure, _ := declared.Type.(*ast.StructType)
			for _, declared := range structure.Fields.List {
				if len(declared.Names) != 1 || declared.Names[0].Name != parts[2] {
					continue
				}
				for _, comment := range declared.Doc.List {
					if found := marker.FindStringSubmatch(comment.Text); found != nil {
						value, _ = strconv.ParseInt(found[1], 10, 64)
					}
				}
			}
			return false
		})
	}
	return value
}
