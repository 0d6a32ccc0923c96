package operation

import (
	"bytes"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	. "github.com/onsi/gomega"

	"github.com/stack-controller/stack-controller/internal/agent/agentpb"
	"github.com/stack-controller/stack-controller/internal/agent/cli"
	"github.com/stack-controller/stack-controller/internal/agent/redact"
)

// violating returns an event about a resource of the name that violates a mandatory policy with the message.
func violating(resource, message string) []byte {
	encoded, _ := json.Marshal(map[string]any{"policyEvent": map[string]string{
		"resourceUrn": "urn:pulumi:dev::demo::test:index:Sleep::" + resource, "message": message, "policyName": "no-bad", "policyPackName": "baseline",
		"enforcementLevel": "mandatory",
	}})
	return encoded
}

const (
	diagnosed       = `{"diagnosticEvent": {"severity": "error", "message": "%s"}}`
	updateFailed    = agentpb.FailureReason_FAILURE_REASON_UPDATE_FAILED
	policyViolation = agentpb.FailureReason_FAILURE_REASON_POLICY_VIOLATION
)

// The events are those of an update that succeeded, with an exception in the configuration of the policy pack.
func TestViolationThatAnExceptionCoversIsNoError(t *testing.T) {
	g := NewWithT(t)
	content, err := os.ReadFile(filepath.Join("testdata", "policies", "excepted.json"))
	g.Expect(err).NotTo(HaveOccurred())
	o := &operation{redactor: redact.New(), report: &reporter{operation: &agentpb.Operation{}}}
	sum := &summary{redactor: o.redactor}
	for event := range bytes.Lines(content) {
		sum.add(event)
	}
	g.Expect(sum.changes).To(HaveKey("create"))
	o.noteProblems(sum)
	g.Expect(o.notes).To(BeEmpty())
}

func TestTextOfAPolicyDecidesNothing(t *testing.T) {
	for _, text := range []string{
		"incorrect passphrase", "failed to download plugin", "resource violates plan: x", "is not allowed by the plan: y", "validating stack config",
		"the stack is currently locked by 1 lock(s)", "no stack named 'dev' found", "Panic:            x", "PULUMI_ACCESS_TOKEN must be set",
		"error: no stack named 'dev' found",
	} {
		for _, withPreview := range []bool{false, true} {
			g := NewWithT(t)
			sum := &summary{redactor: redact.New(), withPreview: withPreview}
			sum.add(violating("a", text))
			res := cli.Result{Code: 1, Stderr: "warning: using pulumi-language-yaml from $PATH\n"}
			o := &operation{redactor: sum.redactor, request: &agentpb.StartOperationRequest{Kind: agentpb.OperationKind_OPERATION_KIND_PLANNED_UP}}
			g.Expect(o.planFailure(classify(res, sum), res, sum).reason).To(Equal(policyViolation), text)

			sum.add(fmt.Appendf(nil, diagnosed, "no quota"))
			f := o.planFailure(classify(res, sum), res, sum)
			g.Expect(f.reason).To(Equal(updateFailed), text)
			g.Expect(f.message).To(And(HavePrefix("no quota\n"), ContainSubstring("policy no-bad of baseline: ")))
		}
	}
}

func TestFailureThatTheCLIExplainsIsNotOneOfPolicies(t *testing.T) {
	sum := &summary{redactor: redact.New()}
	sum.add(violating("a", "no"))
	g := NewWithT(t)
	f := classify(cli.Result{Code: 1, Stderr: "error: could not save the state\n"}, sum)
	g.Expect(f.reason).To(Equal(updateFailed))
	g.Expect(f.message).To(HavePrefix("could not save the state\n"))
	f = classify(cli.Result{Code: 1}, sum)
	g.Expect(f.reason).To(Equal(policyViolation))
	sum.add(fmt.Appendf(nil, diagnosed, "update failed"))
	g.Expect(classify(cli.Result{Code: 1}, sum).reason).To(Equal(policyViolation), "that is no explanation")
}

func TestOnlyTheFirstLineOfAPolicyIsShown(t *testing.T) {
	g := NewWithT(t)
	const secret = "first\nsecond"
	sum := &summary{redactor: redact.New(secret)}
	sum.add(violating("a", "\x1b[31mno "+secret+" here\nthe value is made-by-the-program\n"))
	sum.add(violating("a", "no "+secret+" here\nanother value\n"))
	sum.add(violating("b", strings.Repeat("é", 1000)))
	g.Expect(sum.policies).To(HaveLen(2))
	g.Expect(sum.policies[0]).To(Equal("test:index:Sleep a: policy no-bad of baseline: no [secret] here"))
	g.Expect(len(sum.policies[1])).To(BeNumerically("<=", 256+len("test:index:Sleep b: policy no-bad of baseline: ")))
	for i := range 100 {
		sum.add(violating(fmt.Sprint("more", i), "no"))
	}
	f := classify(cli.Result{Code: 1}, sum)
	g.Expect(f.message).To(And(ContainSubstring("\nand others, see the log\n"), HaveSuffix("\nnothing was changed")))
	g.Expect(strings.Count(f.message, "policy no-bad")).To(Equal(maxPolicies))
}

func TestAdviceOfAPolicyIsNoError(t *testing.T) {
	sum := &summary{redactor: redact.New()}
	sum.add(bytes.Replace(violating("a", "no"), []byte("mandatory"), []byte("advisory"), 1))
	NewWithT(t).Expect(sum.policies).To(BeEmpty())
}
