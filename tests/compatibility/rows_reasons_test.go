package compatibility_test

import (
	"go/ast"
	"go/parser"
	"go/token"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"

	. "github.com/onsi/gomega"

	"github.com/stack-controller/stack-controller/tests/tools"
)

// newReasons are those that the operator does not have, with the tests that bring them about and those that mend their cause.
func newReasonRows() []row {
	const (
		isNew   = "New."
		precise = "The operator says `SourceUnavailable`, `SpecInvalid`, or nothing."
	)
	var rows []row
	for _, reason := range []struct {
		name          string
		uses, misuses []string
	}{
		{"SourceNotFound", []string{sourceMisuse + "fluxSource.sourceRef.name (missing)"}, []string{"compatibility.TestMisusedProgramRefIsExplainedAndHeals/programRef (missing)"}},
		{"SourceNotReady", []string{"compatibility.TestPublishedManifestsGoAsFarAsTheyCan/flux-source"}, []string{programMisuse + "resources (unknown field)"}},
		{"ArtifactNotFound", []string{"e2e.TestStackRunsAsSoonAsItsSourceAppears"}, []string{"e2e.TestStackSaysWhatIsWrongWithItsSource/without-artifact"}},
		{"SourceKindNotInstalled", []string{sourceMisuse + "fluxSource.sourceRef.kind (unknown)"}, []string{"e2e.TestStackSaysWhatIsWrongWithItsSource/unknown-kind"}},
		{"AuthenticationFailed", []string{gitMisuse + "gitAuth.accessToken (wrong)"}, []string{"compatibility.TestTokenThatIsRevokedAndRenewed"}},
		{"HostKeyUnknown", []string{"compatibility.TestServerWhoseKeyIsNotKnownGetsNothing"}, []string{"compatibility.TestServerWhoseKeyIsNotKnownGetsNothing"}},
		{"RepositoryNotFound", []string{gitMisuse + "projectRepo (not there)"}, []string{"compatibility.TestRepositoryThatIsRenamed"}},
		{"RevisionNotFound", []string{gitMisuse + "branch (not there)"}, []string{"compatibility.TestBranchThatIsForcePushedDeletedAndPushedAgain"}},
		{"RateLimited", []string{"source.TestServerThatIsLeftAloneIsNotAskedForAToken"}, []string{"git.TestRateLimitsOfServers"}},
		{"LFSPointers", []string{"git.TestLFSPointersAreNamed"}, []string{"git.TestLFSPointersAreNamed"}},
		{"AccessDenied", []string{"e2e.TestStackSaysWhatIsWrongWithItsSource/forbidden-kind"}, []string{"e2e.TestStackSaysWhatIsWrongWithItsSource/other-namespace"}},
		{"ArtifactFetchFailed", []string{"e2e.TestArtifactThatVanishedIsWaitedFor"}, []string{"e2e.TestArtifactThatVanishedIsWaitedFor"}},
		{"ArtifactDigestMismatch", []string{"e2e.TestWrongDigestIsReportedWithBothAndHeals"}, []string{"e2e.TestWrongDigestIsReportedWithBothAndHeals"}},
		{"ArtifactTooLarge", []string{"e2e.TestHostileArtifactNeverRunsAndIsExplained/too-large"}, []string{"e2e.TestHostileArtifactNeverRunsAndIsExplained/bomb"}},
		{"ArtifactUnusable", []string{"e2e.TestHostileArtifactNeverRunsAndIsExplained/garbage"}, []string{"e2e.TestHostileArtifactNeverRunsAndIsExplained/parent-path"}},
		{"SecretNotFound", []string{"e2e.TestMissingSecretKeyIsWaitedForAndIsNoFailure"}, []string{identityMisuse + "accessTokenSecret (missing)"}},
		{"UpdateInterrupted", []string{"e2e.TestInterruptionsInARowAreNoHotLoop"}, []string{"e2e.TestInterruptedUpdateIsRepeatedAtOnceAndIsNoFailure"}},
		{"WorkspaceNotReady", []string{"e2e.TestStackTellsTheTroubleOfItsWorkspaceAndHealsWithIt"}, []string{"pods.TestTroubleWithTheCreationOfThePodIsShownAndEndsWithItsCause"}},
		{"StackLost", []string{"e2e.TestLostStackIsNotCreatedAgainAndHealsWhenItIsBack"}, []string{"e2e.TestDestroyOfALostStackIsNoProof"}},
		{"UpdateConflict", []string{"e2e.TestLockOfAnotherIsShownAndWaitedFor/locked"}, []string{"backends.TestUpdateThatPulumiCloudRefusesBesideAnotherIsAConflict"}},
		{"DependentsExist", []string{"e2e.TestStacksThatAreDeletedTogetherAreDestroyedInReverseOrder"}, []string{"e2e.TestStackIsKeptAsLongAsOthersDependOnItThatNobodyDeletes"}},
		{"WorkspaceInUse", []string{"e2e.TestUpdateByHandIsNotEndedByTheDeletionOfTheStack"}, []string{"stack.TestDeletionGoesOnOrSaysHow"}},
		{"ProgramInvalid", []string{"e2e.TestInvalidProgramIsToldByProgramAndStackAndHeals"}, []string{programMisuse + "resources (unknown field)"}},
	} {
		rows = append(rows, row{field: reason.name, operator: "None.", uses: reason.uses, misuses: reason.misuses, difference: isNew, why: precise})
	}
	return rows
}

func TestEveryReasonHasARow(t *testing.T) {
	g := NewWithT(t)
	path := filepath.Join(tools.RepositoryRoot(), "api", "pulumi", "v1", "condition_types.go")
	file, err := parser.ParseFile(token.NewFileSet(), path, nil, parser.SkipObjectResolution)
	g.Expect(err).NotTo(HaveOccurred())
	found := 0
	ast.Inspect(file, func(node ast.Node) bool {
		constant, ok := node.(*ast.ValueSpec)
		if !ok || !strings.HasSuffix(constant.Names[0].Name, "Reason") {
			return true
		}
		literal, ok := constant.Values[0].(*ast.BasicLit)
		if !ok {
			return true // one of Flux's
		}
		found++
		reason, err := strconv.Unquote(literal.Value)
		g.Expect(err).NotTo(HaveOccurred())
		g.Expect(slices.ContainsFunc(append(reasonRows, newReasonRows()...), func(row row) bool { return row.field == reason })).To(BeTrue(), "%s has no row", reason)
		return true
	})
	g.Expect(found).To(BeNumerically(">", 20))
}
