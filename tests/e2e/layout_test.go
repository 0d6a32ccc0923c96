package e2e_test

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	. "github.com/onsi/gomega"

	"github.com/fluxcd/pkg/runtime/conditions"

	autov1alpha1 "github.com/stack-controller/stack-controller/api/auto/v1alpha1"
	pulumiv1 "github.com/stack-controller/stack-controller/api/pulumi/v1"
	"github.com/stack-controller/stack-controller/tests/framework/statuscheck"
	"github.com/stack-controller/stack-controller/tests/framework/suite"
	"github.com/stack-controller/stack-controller/tests/framework/systemtest"
)

// oldState is the state of a stack dev without resources, as Pulumi before 3.61 wrote it to .pulumi/stacks/dev.json.
func oldState(project string) []byte {
	return fmt.Appendf(nil, `{"version": 3, "checkpoint": {"stack": "dev", "latest": {"manifest": {"time": "2023-01-01T00:00:00Z", "magic": "", "version": ""},
		"resources": [{"urn": "urn:pulumi:dev::%[1]s::pulumi:pulumi:Stack::%[1]s-dev", "custom": false, "type": "pulumi:pulumi:Stack"}]}}}`, project)
}

func TestStackThatIsLeftInTheOldLayoutIsNotCreatedAgain(t *testing.T) {
	suite.Long(t, "what the agent tests already, seen by the Stack")
	p := begin(t, "old-layout")
	backend := p.TempDir()
	write := func(name string, content []byte) {
		path := filepath.Join(backend, ".pulumi", name)
		p.Succeed(os.MkdirAll(filepath.Dir(path), 0o700))
		p.Succeed(os.WriteFile(path, content, 0o600))
	}
	write("stacks/dev.json", oldState(p.Name))
	artifact := p.put(p.returning(1))
	p.start(artifact, func(s *pulumiv1.Stack) { s.Spec.Backend = "file://" + backend })
	refused := func(says string) {
		stack := p.Await(func(s *pulumiv1.Stack) bool {
			return statuscheck.NotReady(pulumiv1.StateUpgradeRequiredReason)(s) && strings.Contains(statuscheck.Message(s), says)
		})
		p.Expect(conditions.IsStalled(stack)).To(BeTrue())
		p.Expect(p.FailureOf(stack)).To(Equal(autov1alpha1.StateUpgradeRequiredReason))
		p.Expect(stack.Status.LastUpdate.Failures).To(BeZero())
		p.Expect(statuscheck.Message(stack)).To(ContainSubstring("PULUMI_DIY_BACKEND_IGNORE_DEPRECATION_ERROR=1 pulumi state upgrade --yes"))
	}
	refused("the backend has the layout of Pulumi before 3.61")

	write("meta.yaml", []byte("version: 1\n"))
	p.Request()
	refused("in .pulumi/stacks/dev.json, so it is not created again")

	p.Pulumi(p.Name, map[string]string{"PULUMI_BACKEND_URL": "file://" + backend}, "state", "upgrade", "--yes")
	p.Request()
	stack := p.Await(systemtest.Showing("1"))
	p.Expect(stack.Status.LastUpdate.ResourceChanges).NotTo(HaveKey("create"))
}
