package operation_test

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/blang/semver"
	. "github.com/onsi/gomega"

	"github.com/stack-controller/stack-controller/internal/agent/agentpb"
	"github.com/stack-controller/stack-controller/internal/agent/cli"
	"github.com/stack-controller/stack-controller/tests/framework/suite"
)

const upgradeRequired = agentpb.FailureReason_FAILURE_REASON_STATE_UPGRADE_REQUIRED

// refusesOldLayout is that the CLI refuses a backend in the old layout.
var refusesOldLayout = cli.Feature{Since: semver.MustParse("3.257.0")}

// cannotUseOldLayout is that no variable makes the CLI use such a backend.
var cannotUseOldLayout = cli.Feature{Since: semver.MustParse("3.275.0")}

// moveToOldLayout makes the state of the deployed stack a file in the old layout, under the name.
func (f *fixture) moveToOldLayout(name string) {
	f.t.Helper()
	stacks := filepath.Join(f.state, ".pulumi", "stacks")
	f.Expect(os.Rename(filepath.Join(stacks, "demo", "dev.json"), filepath.Join(stacks, name+".json"))).To(Succeed())
	f.Expect(os.RemoveAll(filepath.Join(stacks, "demo"))).To(Succeed())
}

func TestStackThatIsOnlyInTheOldLayoutIsNotCreated(t *testing.T) {
	suite.Long(t, "a backend of an old CLI; the recorded failures have its message")
	f := newDeployed(t)
	f.moveToOldLayout("dev")
	expectNew := func(request *agentpb.StartOperationRequest) { request.NewStack = true }
	for _, change := range [][]func(*agentpb.StartOperationRequest){
		nil, {expectNew}, {withConfig(secret("password", canary))},
		{func(request *agentpb.StartOperationRequest) { request.Stack = "organization/demo/dev" }},
	} {
		operation := f.fail(upgradeRequired, up, change...)
		f.Expect(operation.GetMessage()).To(And(ContainSubstring(".pulumi/stacks/dev.json"),
			ContainSubstring("PULUMI_DIY_BACKEND_IGNORE_DEPRECATION_ERROR=1 pulumi state upgrade --yes")))
		f.Expect(f.processes()).NotTo(ContainElement(HavePrefix("stack init ")))
	}
	f.Expect(filepath.Join(f.state, ".pulumi", "stacks", "demo")).NotTo(BeADirectory())

	if f.has(refusesOldLayout) {
		f.pulumi("state", "upgrade", "--yes")
		f.Expect(f.succeed(up).GetResourceChanges()).To(Equal(map[string]int64{"same": 1}))
		f.moveToOldLayout("dev")
	}

	// The user knows that the file is of another project.
	f.succeed(up, withEnv("PULUMI_DIY_BACKEND_NO_LEGACY_WARNING", "true", false), withEnv("PULUMI_SELF_MANAGED_STATE_NO_LEGACY_WARNING", "true", false))
}

func TestStackIsCreatedBesideOthersInTheOldLayout(t *testing.T) {
	f := newDeployed(t)
	f.moveToOldLayout("dev2")
	f.Expect(f.succeed(up).GetResourceChanges()).To(HaveKey("create"))
	f.Expect(f.logged.String()).NotTo(ContainSubstring("dev2"), "the list may be long")
}

func TestBackendInTheOldLayoutIsLeftAsItIs(t *testing.T) {
	suite.Long(t, "TestStackThatIsOnlyInTheOldLayoutIsNotCreated proves it for both layouts together")
	f := newDeployed(t)
	f.moveToOldLayout("dev")
	f.Expect(os.Remove(filepath.Join(f.state, ".pulumi", "meta.yaml"))).To(Succeed())
	if !f.has(refusesOldLayout) {
		f.Expect(f.succeed(up).GetResourceChanges()).To(Equal(map[string]int64{"same": 1}))
		return
	}
	for _, kind := range []agentpb.OperationKind{up, preview, refresh, destroy} {
		operation := f.fail(upgradeRequired, kind)
		f.Expect(operation.GetMessage()).To(And(HavePrefix("the backend has the layout of Pulumi before 3.61"),
			ContainSubstring("PULUMI_DIY_BACKEND_IGNORE_DEPRECATION_ERROR=1 pulumi state upgrade --yes")))
	}
	f.Expect(filepath.Join(f.state, ".pulumi", "meta.yaml")).NotTo(BeAnExistingFile())
	ignore := withEnv("PULUMI_DIY_BACKEND_IGNORE_DEPRECATION_ERROR", "1", false)
	if f.has(cannotUseOldLayout) {
		f.fail(upgradeRequired, up, ignore)
	} else {
		f.Expect(f.succeed(up, ignore).GetResourceChanges()).To(Equal(map[string]int64{"same": 1}))
	}

	// The command of the message works with an older CLI. The oldest one asks in place of taking --yes.
	f.oldestWith("yes\n", []string{"PULUMI_DIY_BACKEND_IGNORE_DEPRECATION_ERROR=1"}, "state", "upgrade")
	f.Expect(f.succeed(up).GetResourceChanges()).To(Equal(map[string]int64{"same": 1}))
}
