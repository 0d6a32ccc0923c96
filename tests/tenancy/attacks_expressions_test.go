package tenancy_test

import (
	"fmt"
	"strings"

	. "github.com/onsi/gomega"
	apimeta "k8s.io/apimachinery/pkg/api/meta"

	"github.com/fluxcd/pkg/apis/meta"

	pulumiv1 "github.com/stack-controller/stack-controller/api/pulumi/v1"
	"github.com/stack-controller/stack-controller/tests/tenancy/pressure"
)

// invalidExpression is what a Stack says whose expression is refused when it is compiled.
var invalidExpression = refusal{reasons: []string{pulumiv1.InvalidCELExpressionReason}, says: "readyExpr", stalled: true}

// unready is what a Stack says whose expression is refused, or fails when it is evaluated.
func unready(says string) refusal {
	return refusal{reasons: []string{pulumiv1.DependencyNotReadyReason, pulumiv1.InvalidCELExpressionReason}, says: says}
}

// expressionAttacks have the controller evaluate something.
var expressionAttacks = []attack{
	{
		name: "expression-regex-bomb", promise: "expressions",
		does: "writes thirty expressions of 3 kB with a regular expression that needs 132 MB when it is compiled",
		sees: "`InvalidCELExpression`, Stalled",
		run: func(a *attacker) {
			for i := range 30 {
				a.expectState(a.numbered(a.dependent(pressure.RegexBomb(i))), invalidExpression)
			}
		},
	},
	{
		name: "expression-dynamic-pattern", promise: "expressions",
		does: "builds a regular expression from a name and a literal",
		sees: "`InvalidCELExpression`, Stalled: a regular expression must be a literal.",
		run: func(a *attacker) {
			a.expectExpressions(invalidExpression, `"x".matches("(" + self.metadata.name + "){1000}")`)
		},
	},
	{
		name: "expression-growing-texts", promise: "expressions",
		does: "doubles strings and lists, and replaces each letter of a string by the string",
		sees: "`DependencyNotReady` or `InvalidCELExpression`: values have a maximum size.",
		run: func(a *attacker) {
			doubled := `"xxxxxxxxxxxxxxxx"`
			for range 6 {
				doubled = "(" + doubled + ").replace('x', " + `"xxxxxxxxxxxxxxxx"` + ")"
			}
			a.expectExpressions(unready("dependency"),
				doubled+` == "x"`,
				`[1,2,3,4,5,6,7,8,9].map(a, [1,2,3,4,5,6,7,8,9].map(b, [1,2,3,4,5,6,7,8,9].map(c, [1,2,3,4,5,6,7,8,9].map(d, "xxxxxxxxxxxx")))).size() == 1`,
				`"%999999999d".format([1]) == "x"`)
		},
	},
	{
		name: "expression-too-long", promise: "expressions",
		does: "writes an expression of 300 KiB, and deeply nested expressions",
		sees: "`InvalidCELExpression` or `DependencyNotReady`, with a short message",
		run: func(a *attacker) {
			a.expectExpressions(unready("readyExpr"),
				`"`+strings.Repeat("x", 300<<10)+`" == "x"`, strings.Repeat("(", 1000)+"true"+strings.Repeat(")", 1000), strings.Repeat("!", 8000)+"true")
		},
	},
	{
		name: "expression-reads-secrets", promise: "expressions",
		does: "reads the annotations, `secrets`, template and literals of another Stack in a `readyExpr`",
		sees: "`DependencyNotReady` or `InvalidCELExpression`: expressions do not see these fields.",
		run: func(a *attacker) {
			a.expectExpressions(unready("dependency"),
				`dep.metadata.annotations["example.com/note"].startsWith("c")`, `dep.spec.secrets["password"].startsWith("c")`,
				`has(dep.spec.workspaceTemplate)`, `dep.spec.envRefs["LITERAL"].literal.value.startsWith("c")`)
		},
	},
	{
		name: "expressions-by-the-hundred", promise: "expressions",
		does: "writes three hundred different expressions of 2 KiB",
		sees: "`DependencyNotReady`: the expressions are false. The memory for expressions is limited.",
		run: func(a *attacker) {
			for i := range 20 {
				stack := a.dependent("")
				colleague := stack.Spec.DependsOn[0].Name
				stack.Spec.DependsOn = nil
				for j := range 15 {
					stack.Spec.DependsOn = append(stack.Spec.DependsOn, meta.DependencyReference{Name: colleague,
						ReadyExpr: fmt.Sprintf(`dep.metadata.name == "%s%d-%d"`, strings.Repeat("x", 2000), i, j)})
				}
				a.expectState(a.numbered(stack), refusal{reasons: []string{pulumiv1.DependencyNotReadyReason}, says: "is false"})
			}
		},
	},
}

// dependent is a Stack that depends, by the expression, on another one of the attacker, which has what must not be seen.
func (a *attacker) dependent(expression string) *pulumiv1.Stack {
	a.t.Helper()
	colleague := a.newStack()
	colleague.Name += "-dep"
	colleague.Spec.Suspend = true
	colleague.Annotations = map[string]string{"example.com/note": "colleague"}
	colleague.Spec.Secrets = map[string]string{"password": "colleague"}
	colleague.Spec.EnvRefs["LITERAL"] = literal("colleague")
	if err := a.client.Create(a.ctx, colleague); err != nil {
		a.Expect(err).To(MatchError(ContainSubstring("already exists")))
	}
	a.newProgram()
	return a.newStack(fromProgram(a.name), func(spec *pulumiv1.StackSpec) {
		spec.DependsOn = []meta.DependencyReference{{Name: colleague.Name, ReadyExpr: expression}}
	})
}

// expectExpressions expects the same of Stacks with these expressions.
func (a *attacker) expectExpressions(want refusal, expressions ...string) {
	a.t.Helper()
	for _, expression := range expressions {
		a.expectState(a.numbered(a.dependent(expression)), want)
	}
}

// expectState is expectRefused without the time that the refusal has to last, and for refusals that may be Stalled or not.
func (a *attacker) expectState(stack *pulumiv1.Stack, want refusal) {
	a.t.Helper()
	reason := ""
	await(a, stack, func(g Gomega, stack *pulumiv1.Stack) {
		ready := apimeta.FindStatusCondition(stack.Status.Conditions, meta.ReadyCondition)
		g.Expect(ready).NotTo(BeNil())
		g.Expect(want.reasons).To(ContainElement(ready.Reason), ready.Message)
		g.Expect(ready.Message).To(ContainSubstring(want.says))
		g.Expect(len(ready.Message)).To(BeNumerically("<", 4<<10))
		if want.stalled {
			g.Expect(apimeta.IsStatusConditionTrue(stack.Status.Conditions, meta.StalledCondition)).To(BeTrue(), "%+v", stack.Status.Conditions)
		}
		reason = ready.Reason
	})
	a.sawRefusal(reason, want)
}
