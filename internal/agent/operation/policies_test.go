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
)

// enforcePolicies makes the CLI load the policy pack for each up and preview, as Pulumi Cloud makes it load those of its organisation.
func (f *fixture) enforcePolicies() {
	f.t.Helper()
	pack := filepath.Join(filepath.Dir(f.options.Pulumi), programs.PolicyPack)
	f.Expect(programs.Put(f.t.Context(), programs.PolicyPack, pack)).To(Succeed())
	enforcing := fmt.Sprintf("case \"$2\" in up|preview) exec %q \"$@\" --policy-pack %q ;; esac\nexec ", tool(f.t, "pulumi"), pack)
	content, err := os.ReadFile(f.options.Pulumi)
	f.Expect(err).NotTo(HaveOccurred())
	f.writeCLI([]byte(strings.Replace(string(content), "\nexec ", "\n"+enforcing, 1)))
}

func TestViolatedPolicyIsTheReasonAndShowsNoValue(t *testing.T) {
	f := sleeper(t, "content: {fn::secret: \"bad: failed to download plugin made-by-the-program\"}")
	f.enforcePolicies()
	for kind, says := range map[agentpb.OperationKind]string{up: "; nothing was changed", preview: ""} {
		operation := f.fail(agentpb.FailureReason_FAILURE_REASON_POLICY_VIOLATION, kind)
		f.Expect(operation.GetMessage()).To(Equal(
			"policies do not allow this: test:index:Sleep slow: policy no-bad of testpack: no resource may have bad content" + says))
	}
	f.sleep("content: good")
	f.succeed(up)
}
