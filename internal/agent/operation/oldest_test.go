package operation_test

import (
	"os"
	"strings"
	"testing"

	"github.com/blang/semver"
	. "github.com/onsi/gomega"

	"github.com/stack-controller/stack-controller/internal/agent/agentpb"
	"github.com/stack-controller/stack-controller/internal/agent/cli"
	"github.com/stack-controller/stack-controller/tests/framework/suite"
)

// oldest is the name of the test whose subtests run the oldest CLI.
const oldest = "TestOldestCLIDoesAllThatMatters"

// cliOf is the tool that a test runs as the CLI.
func cliOf(t *testing.T) string {
	if strings.HasPrefix(t.Name(), oldest+"/") {
		return "pulumi-oldest"
	}
	return "pulumi"
}

// languageHostOf is the tool that runs the programs of a test. A host asks its CLI for what older ones do not have.
func languageHostOf(t *testing.T) string {
	if cliOf(t) == "pulumi-oldest" {
		return "pulumi-language-yaml-oldest"
	}
	return "pulumi-language-yaml"
}

// has reports whether the CLI of the test has the feature.
func (f *fixture) has(feature cli.Feature) bool {
	f.t.Helper()
	version, err := semver.ParseTolerant(f.runner.Version())
	f.Expect(err).NotTo(HaveOccurred())
	return feature.In(version)
}

// processesWithState is processes, for operations on a stack that exists. It leaves out the process that reads the secrets provider if the CLI
// cannot take it from the state itself.
func (f *fixture) processesWithState() []string {
	f.t.Helper()
	processes := f.processes()
	if !f.has(cli.StateSecretsProvider) {
		f.Expect(processes).To(ContainElement(HavePrefix("stack export ")))
		return processes[1:]
	}
	return processes
}

// TestOldestCLIDoesAllThatMatters runs tests that otherwise have the newest CLI. TEST_ASSET_PULUMI_OLDEST can name any other CLI.
func TestOldestCLIDoesAllThatMatters(t *testing.T) {
	suite.Long(t, "runs the oldest CLI")
	for name, test := range map[string]func(*testing.T){
		"create and update":             TestFirstUpdateCreatesTheStackAndTheNextIsOneProcess,
		"up, preview, refresh, destroy": TestEveryKindOfOperationIsOneProcess,
		"preview":                       TestPreviewReportsWhatWouldChangeAndLeavesTheStateAlone,
		"destroy and remove":            TestRepeatedDestroyKnowsThatTheFirstOneRemovedTheStack,
		"missing stack":                 TestMissingStackIsReportedUnlessItMayBeCreated,
		"unexpected changes":            TestExpectedNoChangesAreReportedWhenThereAreSome,
		"failure":                       TestProviderErrorsAreReportedWithTheResource,
		"secrets":                       TestSecretsAreEncryptedAndShownNowhere,
		"passphrase":                    TestPassphraseProblemsAreReportedAsSuch,
		"secrets provider":              TestSecretsProviderOfAStackIsKeptByAnAgentThatDoesNotKnowIt,
		"cancellation":                  TestCauseOfTheCancellationDecidesTheOutcome,
		"interruption":                  TestSecondSignalEndsAProviderThatIgnoresTheFirst,
		"killed CLI":                    TestKilledCLIIsInterruptedAndLeavesNoProcess,
		"lock of a killed CLI":          TestDestroyReleasesTheLockOfAKilledUpdate,
		"lock of another":               TestLockOfAnotherIsReportedAndLeftAlone,
		"pending operations":            TestPendingUpdatesAndDeletionsAreReported,
		"plan":                          TestPlanIsSavedAndCarriedOut,
		"violated plan":                 TestWhatIsNotInThePlanIsRefusedBeforeAnythingIsChanged,
		"stack in the old layout":       TestStackThatIsOnlyInTheOldLayoutIsNotCreated,
		"backend in the old layout":     TestBackendInTheOldLayoutIsLeftAsItIs,
		"missing flags":                 flagsThatTheOldestDoesNotHave,
		"event log":                     theEventLogLeavesNothing,
		"new agent":                     aNewAgentDoesNotDisturbACLI,
	} {
		t.Run(name, test)
	}
}

func flagsThatTheOldestDoesNotHave(t *testing.T) {
	f := newFixture(t)
	f.write("Pulumi.yaml", simpleProgram)
	for _, test := range []struct {
		kind    agentpb.OperationKind
		options *agentpb.OperationOptions
		flag    string
		since   string
	}{
		{up, &agentpb.OperationOptions{ContinueOnError: true}, "--continue-on-error", "3.114.0"},
		{destroy, &agentpb.OperationOptions{ContinueOnError: true}, "--continue-on-error", "3.113.0"},
		{destroy, &agentpb.OperationOptions{RunProgram: true}, "--run-program", "3.160.0"},
		{refresh, &agentpb.OperationOptions{RunProgram: true}, "--run-program", "3.160.0"},
		{refresh, &agentpb.OperationOptions{Target: []string{"**x"}, TargetDependents: true}, "--target-dependents", "3.158.0"},
		{up, &agentpb.OperationOptions{Exclude: []string{"**x"}}, "--exclude", "3.158.0"},
		{up, &agentpb.OperationOptions{Refresh: true, ExpectNoRefreshChanges: true}, "--preview-only", "3.105.0"},
	} {
		if f.has(cli.Feature{Since: semver.MustParse(test.since)}) {
			continue
		}
		operation := f.fail(agentpb.FailureReason_FAILURE_REASON_CONFIG_INVALID, test.kind, func(request *agentpb.StartOperationRequest) { request.Options = test.options })
		f.Expect(operation.GetMessage()).To(And(ContainSubstring(test.flag+" before v"+test.since), ContainSubstring(f.runner.Version())))
		f.Expect(f.processes()).To(BeEmpty(), "nothing is done")
	}
}

func theEventLogLeavesNothing(t *testing.T) {
	f := newFixture(t)
	f.write("Pulumi.yaml", secretProgram)
	f.succeed(up, withConfig(secret("password", canary)))
	f.Expect(f.processes()).To(ContainElement(And(HavePrefix("up "), ContainSubstring("--event-log "+f.home))))
	f.Expect(os.ReadDir(f.home + "/.automation/events")).To(BeEmpty())
}

// A new agent removes the event logs of the previous agent, while a CLI may still write to them.
func aNewAgentDoesNotDisturbACLI(t *testing.T) {
	f := sleeper(t, "seconds: 1")
	_, ended := f.beginUntil("create start\n", up)
	f.restart()
	operation := f.await(ended)
	f.Expect(operation.GetState()).To(Equal(succeeded), operation.GetMessage())
	f.Expect(operation.GetResourceChanges()).To(HaveKeyWithValue("create", BeEquivalentTo(1)))
	f.Expect(f.locks()).To(BeEmpty())
}

func TestSecretsProviderOfAStackIsKeptByAnAgentThatDoesNotKnowIt(t *testing.T) {
	suite.Long(t, "further states of a secrets provider")
	f := newFixture(t)
	service := newTransit(t)
	f.write("Pulumi.yaml", secretProgram)
	url := "hashivault://mine"
	f.succeed(up, service.provider(url), withConfig(secret("password", canary)))
	f.expectProvider("cloud", url)

	f.Expect(os.RemoveAll(f.home)).To(Succeed())
	f.restart()
	// There is no secret in the configuration, and only the state names the provider.
	f.write("Pulumi.yaml", simpleProgram)
	f.succeed(up, service.provider(""))
	f.expectProvider("cloud", url)
}
