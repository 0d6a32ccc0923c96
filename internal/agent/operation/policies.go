package operation

import (
	"fmt"
	"slices"
	"strings"

	"github.com/stack-controller/stack-controller/internal/agent/agentpb"
	"github.com/stack-controller/stack-controller/internal/plaintext"
)

const (
	// maxPolicyText bounds what is shown of the message of a policy, and maxPolicyName of its name and its pack's, in bytes.
	maxPolicyText = 256
	maxPolicyName = 100
	// maxPolicies is how many violations a message names.
	maxPolicies = 5
)

// policyEvent is a violation of a policy. Pulumi Cloud loads the policy packs that its organisation enforces.
type policyEvent struct {
	ResourceURN      string `json:"resourceUrn"`
	Message          string `json:"message"`
	PolicyName       string `json:"policyName"`
	PolicyPackName   string `json:"policyPackName"`
	EnforcementLevel string `json:"enforcementLevel"`
	// Exceptions cover the violation, so that it is none.
	Exceptions []struct{} `json:"exceptions"`
}

// addPolicy keeps a violation that makes the operation fail. A policy sees secrets in clear text, and its message may have them, also those
// that the program made and that the redactor does not know. The first line is the description of the policy, values come after it. The
// whole message is in the log.
func (s *summary) addPolicy(event *policyEvent) {
	if event.EnforcementLevel != "mandatory" || len(event.Exceptions) > 0 {
		return
	}
	// The text is redacted before it is cut: a secret may have several lines.
	first, _, _ := strings.Cut(strings.TrimSpace(s.redactor.String(plaintext.Strip(event.Message))), "\n")
	text := s.describe(event.ResourceURN, fmt.Sprintf("policy %s of %s: %s", plaintext.Cut(event.PolicyName, maxPolicyName),
		plaintext.Cut(event.PolicyPackName, maxPolicyName), plaintext.Cut(first, maxPolicyText)))
	if len(s.policies) <= maxPolicies && !slices.Contains(s.policies, text) {
		s.policies = append(s.policies, text)
	}
}

// policyText describes the violations of policies; nothing if there are none.
func (s *summary) policyText() []string {
	if len(s.policies) > maxPolicies {
		return append(slices.Clone(s.policies[:maxPolicies]), "and others, see the log")
	}
	return s.policies
}

// policyFailure is the failure of an operation that only policies explain.
func policyFailure(sum *summary) *failure {
	lines := append([]string{"policies do not allow this:"}, sum.policyText()...)
	switch steps := sum.stepsDone(); {
	case sum.preview:
	case steps > 0:
		lines = append(lines, fmt.Sprintf("steps that were done before or beside that: %d", steps))
	default:
		lines = append(lines, "nothing was changed")
	}
	return failed(agentpb.FailureReason_FAILURE_REASON_POLICY_VIOLATION, "%s", strings.Join(lines, "\n"))
}
