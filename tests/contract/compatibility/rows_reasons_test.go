package compatibility_test

import (
	"go/ast"
	"go/parser"
	"go/token"
	"os"
	"path"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	. "github.com/onsi/gomega"

	"github.com/fluxcd/pkg/apis/meta"

	"github.com/stack-controller/stack-controller/tests/tools"
)

// newReasonRows returns the rows of the reasons that the operator does not have, with the tests that provoke them and the tests that remove
// their cause.
func newReasonRows() []row {
	const (
		isNew   = "New."
		precise = "The operator reports a more general reason, such as `SourceUnavailable`, or none."
	)
	var rows []row
	for _, reason := range []struct {
		name          string
		uses, misuses []string
	}{
		{"SourceNotFound", []string{sourceMisuse + "fluxSource.sourceRef.name (missing)"}, []string{"compatibility.TestMisusedProgramRefIsExplainedAndRecovers/programRef (missing)"}},
		{"SourceNotReady", []string{"compatibility.TestPublishedManifestsGoAsFarAsTheyCan/flux-source"}, []string{programMisuse + "program (runtime)"}},
		{"ArtifactNotFound", []string{"e2e.TestStackRunsAsSoonAsItsSourceAppears"}, []string{"e2e.TestStackSaysWhatIsWrongWithItsSource/without-artifact"}},
		{"SourceKindNotInstalled", []string{sourceMisuse + "fluxSource.sourceRef.kind (unknown)"}, []string{"e2e.TestStackSaysWhatIsWrongWithItsSource/unknown-kind"}},
		{"AuthenticationFailed", []string{gitMisuse + "gitAuth.accessToken (wrong)"}, []string{"compatibility.TestTokenThatIsRevokedAndRenewed"}},
		{"HostKeyUnknown", []string{"compatibility.TestServerWhoseKeyIsNotKnownGetsNothing"}, []string{"compatibility.TestServerWhoseKeyIsNotKnownGetsNothing"}},
		{"RepositoryNotFound", []string{gitMisuse + "projectRepo (not there)"}, []string{"compatibility.TestRepositoryThatIsRenamed"}},
		{"RevisionNotFound", []string{gitMisuse + "branch (not there)"}, []string{"compatibility.TestBranchThatIsForcePushedDeletedAndPushedAgain"}},
		{"RateLimited", []string{"source.TestServerThatIsLeftAloneIsNotAskedForAToken"}, []string{"git.TestRateLimitsOfServers"}},
		{"LFSPointers", []string{"git.TestLFSPointersAreNamed"}, []string{"git.TestLFSPointersAreNamed"}},
		{"SourceNotVerified", []string{"sources.TestStackThatRequiresItRunsNothingButWhatFluxHasVerified"}, []string{"source.TestSourcesWithoutVerificationAreRefusedForGood"}},
		{"AccessDenied", []string{"e2e.TestStackSaysWhatIsWrongWithItsSource/forbidden-kind"}, []string{"e2e.TestStackSaysWhatIsWrongWithItsSource/other-namespace"}},
		{"ArtifactFetchFailed", []string{"e2e.TestArtifactThatVanishedIsWaitedFor"}, []string{"e2e.TestArtifactThatVanishedIsWaitedFor"}},
		{"ArtifactDigestMismatch", []string{"e2e.TestWrongDigestIsReportedAndRecovers"}, []string{"e2e.TestWrongDigestIsReportedAndRecovers"}},
		{"ArtifactTooLarge", []string{"e2e.TestHostileArtifactNeverRunsAndIsExplained/too-large"}, []string{"e2e.TestHostileArtifactNeverRunsAndIsExplained/bomb"}},
		{"ArtifactUnusable", []string{"e2e.TestHostileArtifactNeverRunsAndIsExplained/garbage"}, []string{"e2e.TestHostileArtifactNeverRunsAndIsExplained/parent-path"}},
		{"SecretNotFound", []string{"e2e.TestMissingSecretKeyIsWaitedForAndIsNoFailure"}, []string{identityMisuse + "accessTokenSecret (missing)"}},
		{"UpdateInterrupted", []string{"e2e.TestInterruptionsInARowAreNoHotLoop"}, []string{"e2e.TestInterruptedUpdateIsRepeatedAtOnceAndIsNoFailure"}},
		{"WorkspaceNotReady", []string{"e2e.TestStackShowsTheFailureOfItsWorkspaceAndRecoversWithIt"}, []string{"pods.TestProblemWithTheCreationOfThePodIsShownAndEndsWithItsCause"}},
		{"StackLost", []string{"e2e.TestLostStackIsNotCreatedAgainAndRecoversWhenItIsBack"}, []string{"e2e.TestDestroyOfALostStackIsNoProof"}},
		{"UpdateConflict", []string{"e2e.TestLockOfAnotherIsShownAndWaitedFor/locked"}, []string{"backends.TestUpdateThatPulumiCloudRefusesBesideAnotherIsAConflict"}},
		{"DependentsExist", []string{"e2e.TestStacksThatAreDeletedTogetherAreDestroyedInReverseOrder"}, []string{"e2e.TestStackIsKeptAsLongAsOthersDependOnItThatNobodyDeletes"}},
		{"WorkspaceInUse", []string{"e2e.TestUpdateByHandIsNotEndedByTheDeletionOfTheStack"}, []string{"stack.TestDeletionGoesOnOrSaysHow"}},
		{"ProgramInvalid", []string{"e2e.TestInvalidProgramIsReportedByProgramAndStackAndRecovers"}, []string{programMisuse + "program (runtime)"}},
	} {
		rows = append(rows, row{field: reason.name, operator: "None.", uses: reason.uses, misuses: reason.misuses, difference: isNew, why: precise})
	}
	// For the other reasons, docs/conditions.md lists what provokes them.
	for _, provoked := range provokedReasons() {
		known := func(row row) bool { return row.field == provoked.field }
		if !slices.ContainsFunc(reasonRows, known) && !slices.ContainsFunc(rows, known) {
			provoked.operator, provoked.difference, provoked.why = "None.", isNew, precise
			rows = append(rows, provoked)
		}
	}
	return rows
}

// fromFlux has the reasons that Flux defines.
var fromFlux = map[string]bool{
	meta.DependencyNotReadyReason: true, meta.InvalidCELExpressionReason: true, meta.ProgressingReason: true,
	meta.ProgressingWithRetryReason: true, meta.SuspendedReason: true,
}

var (
	// reasonOfThePage matches the beginning of a row of docs/conditions.md, and testOfThePage a link to a test in that row.
	reasonOfThePage = regexp.MustCompile("^\\| `(\\w+)` \\| ")
	testOfThePage   = regexp.MustCompile(`\[(Test[^]]+)]\(\.\./([^)]+)/[^)/]+\)`)
)

// provokedReasons returns the reasons of Stacks on the page docs/conditions.md, with the tests that provoke them.
func provokedReasons() (rows []row) {
	content, err := os.ReadFile(filepath.Join(tools.RepositoryRoot(), "docs", "conditions.md"))
	if err != nil {
		return nil // the test of that page reports the error
	}
	reasons, err := reasonsOfStacks()
	if err != nil {
		return nil
	}
	section, _, _ := strings.Cut(string(content), "\n## Update\n")
	for line := range strings.Lines(section) {
		reason := reasonOfThePage.FindStringSubmatch(line)
		if reason == nil || fromFlux[reason[1]] || !slices.Contains(reasons, reason[1]) {
			continue
		}
		var tests []string
		for _, link := range testOfThePage.FindAllStringSubmatch(line, -1) {
			tests = append(tests, path.Base(link[2])+"."+link[1])
		}
		if len(tests) > 0 {
			rows = append(rows, row{field: reason[1], uses: tests, misuses: tests})
		}
	}
	return rows
}

// reasonsOfStacks returns the reasons for which the API has constants.
func reasonsOfStacks() (reasons []string, err error) {
	path := filepath.Join(tools.RepositoryRoot(), "api", "pulumi", "v1", "zz_generated.reasons.go")
	file, err := parser.ParseFile(token.NewFileSet(), path, nil, parser.SkipObjectResolution)
	if err != nil {
		return nil, err
	}
	ast.Inspect(file, func(node ast.Node) bool {
		if constant, ok := node.(*ast.ValueSpec); ok {
			reasons = append(reasons, strings.Trim(constant.Values[0].(*ast.BasicLit).Value, `"`))
		}
		return true
	})
	return reasons, nil
}

func TestEveryReasonHasARow(t *testing.T) {
	g := NewWithT(t)
	reasons, err := reasonsOfStacks()
	g.Expect(err).NotTo(HaveOccurred())
	g.Expect(len(reasons)).To(BeNumerically(">", 20))
	for _, reason := range reasons {
		if fromFlux[reason] {
			continue
		}
		g.Expect(slices.ContainsFunc(append(reasonRows, newReasonRows()...), func(row row) bool { return row.field == reason })).To(BeTrue(), "%s has no row", reason)
	}
}
