package operation

import (
	"fmt"
	"regexp"
	"slices"
	"strings"

	"github.com/stack-controller/stack-controller/internal/agent/agentpb"
	"github.com/stack-controller/stack-controller/internal/agent/cli"
	"github.com/stack-controller/stack-controller/internal/plaintext"
)

// violation matches what Pulumi says about something that is not in the plan. Values follow, in clear text unless they are marked as
// secret.
var violation = regexp.MustCompile(`violates plan: |is not allowed by the plan: |no plan for resource urn:|expected resource operations for urn:`)

// migration matches what Pulumi says about a component whose library rewrites the state. It refuses that while it makes a plan, and while it carries
// one out: plans are about resources only.
var migration = regexp.MustCompile(`state migration for (urn:pulumi:[^\s'"]+) cannot change state while`)

var (
	// violatingURN matches the resource in the text of a violation.
	violatingURN = regexp.MustCompile(`urn:pulumi:[^\s'"]+`)
	// violatingPath matches the first property in it. What comes after the property may be a part of its value.
	violatingPath = regexp.MustCompile(`violates plan: properties changed: [-+~=]{2}([A-Za-z_$][\w$.-]{0,255})(?:\[|,|$)`)
	// refusedStep matches the step in it.
	refusedStep = regexp.MustCompile(`([a-z-]{1,40}) is not allowed by the plan: `)
)

// maxViolations is how many violations a message names.
const maxViolations = 5

// planFailure replaces the failure of an operation with Pulumi's plan file if Pulumi refused something that is not in the plan, or cannot be in
// one. The text of Pulumi about the former is not used, because it has values in clear text.
func (o *operation) planFailure(f *failure, res cli.Result, sum *summary) *failure {
	if refused := migration.FindStringSubmatch(f.message); refused != nil && len(o.planArguments()) > 0 {
		return failed(agentpb.FailureReason_FAILURE_REASON_PLAN_VIOLATED, "a library of the program rewrites the state of %s, which no plan of Pulumi "+
			"can describe. Use `enforce: Inputs` for this update, which holds it to its inputs, and `enforce: Plan` after it. Changing "+
			"`enforce` in the approval of a Stack may need the verb `bypass`", refused[1])
	}
	if !o.usesPlanFile() {
		return f
	}
	var found []string
	for _, text := range append(slices.Clone(sum.violations), strings.Split(plaintext.Strip(res.Stderr), "\n")...) {
		if !violation.MatchString(text) {
			continue
		}
		if what := o.describeViolation(text); !slices.Contains(found, what) {
			found = append(found, what)
		}
	}
	if len(found) == 0 {
		return f
	}
	done := "nothing was changed"
	if steps := sum.stepsDone(); steps > 0 {
		done = fmt.Sprintf("%d resources were changed before, as in the plan", steps)
	}
	more := ""
	if len(found) > maxViolations {
		more = fmt.Sprintf(" and %d more", len(found)-maxViolations)
		found = found[:maxViolations]
	}
	return failed(agentpb.FailureReason_FAILURE_REASON_PLAN_VIOLATED, "pulumi refused what is not in the plan: %s%s; %s. If the program creates "+
		"resources depending on values that are known only then, or the plan of the same program is violated each time, use `enforce: Inputs`",
		strings.Join(found, ", "), more, done)
}

// describeViolation names the resource, the step and the first property of a violation.
func (o *operation) describeViolation(text string) string {
	what := "a resource"
	// A value may look like the URN of a resource too, but it comes after this part of the text.
	start := text
	if at := violation.FindStringIndex(text); at != nil {
		start = text[:at[1]]
		if strings.HasSuffix(start, "urn:") {
			start = text[at[0]:]
		}
	}
	if named := violatingURN.FindString(start); named != "" {
		what = strings.TrimRight(named, ":;,.")
	}
	if step := refusedStep.FindStringSubmatch(text); step != nil {
		what += " (" + step[1] + ")"
	}
	if path := violatingPath.FindStringSubmatch(text); path != nil {
		what += " (" + path[1] + ")"
	}
	return plaintext.Cut(o.redactor.String(what), agentpb.MaxURN)
}
