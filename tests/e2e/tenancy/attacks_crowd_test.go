package tenancy_test

import (
	"context"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	. "github.com/onsi/gomega"
	"golang.org/x/sync/errgroup"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	apimeta "k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/fluxcd/pkg/apis/meta"
	sourcev1 "github.com/fluxcd/source-controller/api/v1"

	pulumiv1 "github.com/stack-controller/stack-controller/api/pulumi/v1"
	"github.com/stack-controller/stack-controller/tests/e2e/tenancy/pressure"
)

// pressTime is how long an attack repeats its requests. Beside all other attacks, the API server accepts about seven requests per second.
// The longer the attack lasts, the more its requests exceed mostWakes.
const pressTime = time.Minute

// mostWakes is how often a Stack may be reconciled in pressTime: a hundred times at once, then twice per second, and a few times more.
const mostWakes = 100 + int(pressTime/(500*time.Millisecond)) + 10

// noSource is the refusal of a Stack whose source does not exist.
var noSource = refusal{reasons: []string{pulumiv1.SourceNotFoundReason}, says: "does not exist"}

// crowdAttacks try to use the whole controller.
var crowdAttacks = []attack{
	{
		name: "stacks-without-number", promise: "fairness", in: crowdName, heavy: true,
		does: "creates a thousand Stacks in one namespace, whose sources do not exist",
		sees: "`SourceNotFound`: each Stack is reconciled. Stacks in other namespaces do not wait for them.",
		run: func(a *attacker) {
			a.Expect(a.means.Crowd(a.ctx, *manyStacks)).To(Succeed())
			last := &pulumiv1.Stack{ObjectMeta: inNamespace(crowdName, fmt.Sprint("crowd-", *manyStacks-1))}
			a.expectState(last, noSource)
		},
	},
	{
		name: "requests-without-an-end", promise: "fairness", in: crowdName, heavy: true,
		does: "requests reconciliations of a Stack as fast as the API server allows",
		sees: "`lastHandledReconcileAt` changes at a limited rate.",
		run: func(a *attacker) {
			ctx, cancel := context.WithTimeout(a.ctx, pressTime)
			defer cancel()
			// The status of a suspended Stack has every request that a reconcile has seen.
			stack := a.createStack(func(spec *pulumiv1.StackSpec) { spec.Suspend = true })
			handled := a.count(&pulumiv1.StackList{}, stack, func(object client.Object) string {
				return object.(*pulumiv1.Stack).Status.LastHandledReconcileAt
			})
			a.Expect(a.means.Request(ctx, stack)).To(Succeed())
			a.Expect(a.client.Get(a.ctx, client.ObjectKeyFromObject(stack), stack)).To(Succeed())
			requested, err := strconv.Atoi(stack.Annotations[meta.ReconcileRequestAnnotation])
			a.Expect(err).NotTo(HaveOccurred())
			a.Expect(requested).To(BeNumerically(">", mostWakes), "too few to be limited")
			// The other Stacks of the namespace have their turns in between, and there may be a thousand of them.
			a.Expect(handled()).To(And(BeNumerically(">=", 1), BeNumerically("<=", mostWakes)), "of %d requests", requested)
			a.saw("lastHandledReconcileAt")
		},
	},
	{
		name: "events-that-cost-much", promise: "fairness", in: crowdName, heavy: true,
		does: "edits four suspended Stacks once per second, which have 100,000 numbers in 900 objects, one in the other",
		sees: "`SourceNotFound` for another Stack of the attacker: all events of Stacks wait for each other, and those of large objects are shortened before they are decoded.",
		run: func(a *attacker) {
			ctx, cancel := context.WithTimeout(a.ctx, pressTime)
			defer cancel()
			numbers := strings.Repeat(`{"a":`, 900) + "[" + strings.Repeat("0,", 100_000) + "0]" + strings.Repeat("}", 900)
			var pressing errgroup.Group
			for i := range 4 {
				stack := a.newStack(func(spec *pulumiv1.StackSpec) {
					spec.Suspend, spec.Config = true, map[string]apiextensionsv1.JSON{"a": {Raw: []byte(numbers)}}
				})
				stack.Name += fmt.Sprint("-", i)
				a.create(stack)
				pressing.Go(func() error { return a.means.Touch(ctx, stack) })
			}
			a.expectState(a.createStack(fromProgram("none")), noSource)
			a.Expect(pressing.Wait()).To(Succeed())
		},
	},
	{
		name: "source-that-alternates", promise: "fairness", in: crowdName, heavy: true,
		does: "switches the status of an ExternalArtifact between two artifacts as fast as the API server allows",
		sees: "`ArtifactFetchFailed`. The Stack is reconciled at a limited rate.",
		run: func(a *attacker) {
			ctx, cancel := context.WithTimeout(a.ctx, pressTime)
			defer cancel()
			stack := a.createStack(fromFlux(sourcev1.ExternalArtifactKind, "", a.name))
			source := &sourcev1.ExternalArtifact{ObjectMeta: stack.ObjectMeta}
			version := func(object client.Object) string { return object.GetResourceVersion() }
			published, written := a.count(&sourcev1.ExternalArtifactList{}, source, version), a.count(&pulumiv1.StackList{}, stack, version)
			a.Expect(a.means.Alternate(ctx, a.name)).To(Succeed())
			// The Stack is written once more, for its finalizer.
			a.Expect(written()).To(And(BeNumerically(">", 1), BeNumerically("<=", mostWakes+1)))
			a.Expect(published()).To(BeNumerically(">", mostWakes), "too few to be limited")
			a.expectState(stack, notFetched)
			a.expectRequested("/page/")
		},
	},
	{
		name: "git-tarpits", promise: "fairness", in: crowdName,
		does: "follows thirty git repositories on a server that sends one byte per second",
		sees: "`SourceUnavailable` after a timeout. The repositories of other tenants are checked meanwhile.",
		run: func(a *attacker) {
			a.Expect(a.means.GitTarpits(a.ctx, a.name, 30)).To(Succeed())
			a.expectAny(30, unavailable("in time"))
			a.expectRequested("/tarpit/" + a.name)
		},
	},
	{
		name: "git-references-without-an-end", promise: "sizes", in: agentsName,
		does: "follows ten git repositories with an endless list of references",
		sees: "`SourceUnavailable` or `ArtifactTooLarge`. The controller matches references while it reads them, and limits the size of the answer.",
		run: func(a *attacker) {
			a.Expect(a.means.GitReferences(a.ctx, a.name, 10)).To(Succeed())
			a.expectAny(10, refusal{reasons: []string{pulumiv1.SourceUnavailableReason, pulumiv1.ArtifactTooLargeReason}})
			a.expectRequested("/references/" + a.name)
		},
	},
	{
		name: "git-packs-without-an-end", promise: "sizes", in: agentsName,
		does: "follows ten git repositories that answer with an endless packfile of files, which unpacks to a thousand times its size",
		sees: "`ArtifactTooLarge`. The controller limits the size of the packfile, and that of its content.",
		run: func(a *attacker) {
			a.Expect(a.means.GitPacks(a.ctx, a.name, 10)).To(Succeed())
			a.expectAny(10, refusal{reasons: []string{pulumiv1.ArtifactTooLargeReason}})
			a.expectRequested("/packs/" + a.name)
		},
	},
	{
		name: "artifact-tarpits", promise: "fairness", in: hangingName,
		does: "publishes ten ExternalArtifacts on a web server that sends one byte per second",
		sees: "`ArtifactFetchFailed`: the download is stopped because it is too slow. Other tenants have their own share of workers.",
		run: func(a *attacker) {
			a.Expect(a.means.ArtifactTarpits(a.ctx, a.name, 10)).To(Succeed())
			a.expectAny(10, notFetched)
			a.expectRequested("/tarpit/artifact/")
		},
	},
	{
		name: "owner-of-everything", promise: "fairness", in: crowdName,
		does: "creates and deletes Stacks that depend on each other, as fast as possible",
		sees: "`NotFound`: the Stacks are created and deleted. Other tenants are not affected.",
		run: func(a *attacker) {
			var stacks []*pulumiv1.Stack
			for i := range 40 {
				stack := a.newStack(fromProgram("none"))
				stack.Name += fmt.Sprint("-", i)
				stack.Spec.Prerequisites = []pulumiv1.PrerequisiteRef{{Name: fmt.Sprint(a.name, "-", i+1)}}
				stack.Spec.DependsOn = []pulumiv1.DependencyReference{{Name: fmt.Sprint(a.name, "-", (i+39)%40)}}
				a.create(stack)
				a.Expect(client.IgnoreNotFound(a.client.Delete(a.ctx, stack))).To(Succeed())
				stacks = append(stacks, stack)
			}
			for _, stack := range stacks {
				a.eventually(func(g Gomega) {
					g.Expect(apierrors.IsNotFound(a.client.Get(a.ctx, client.ObjectKeyFromObject(stack), stack))).To(BeTrue(), "%+v", stack.Status)
				})
			}
			a.saw(string(metav1.StatusReasonNotFound))
		},
	},
}

// count watches the object, and returns a function that ends the watch and returns how many different values it saw.
func (a *attacker) count(list client.ObjectList, object client.Object, value func(client.Object) string) (counted func() int) {
	a.t.Helper()
	watched, err := a.client.Watch(a.ctx, list, client.InNamespace(object.GetNamespace()), client.MatchingFields{"metadata.name": object.GetName()})
	a.Expect(err).NotTo(HaveOccurred())
	values, ended := map[string]bool{}, make(chan struct{})
	go func() {
		defer close(ended)
		for event := range watched.ResultChan() {
			if changed, ok := event.Object.(client.Object); ok {
				values[value(changed)] = true
			}
		}
	}()
	return func() int {
		watched.Stop()
		<-ended
		return len(values)
	}
}

// expectAny waits until one of the numbered Stacks of the attack is refused. The Stacks wait for each other.
func (a *attacker) expectAny(count int, want refusal) {
	a.t.Helper()
	reason := ""
	a.eventually(func(g Gomega) {
		stacks := &pulumiv1.StackList{}
		g.Expect(a.client.List(a.ctx, stacks, client.InNamespace(a.means.Namespace))).To(Succeed())
		own, says := 0, []string{}
		for i := range stacks.Items {
			if !strings.HasPrefix(stacks.Items[i].Name, a.name+"-") {
				continue
			}
			own++
			ready := apimeta.FindStatusCondition(stacks.Items[i].Status.Conditions, meta.ReadyCondition)
			if ready == nil {
				continue
			}
			g.Expect(ready.Status).NotTo(Equal(metav1.ConditionTrue))
			if slices.Contains(want.reasons, ready.Reason) && strings.Contains(ready.Message, want.says) {
				reason = ready.Reason
			}
			says = append(says, ready.Message)
		}
		g.Expect(own).To(Equal(count))
		g.Expect(reason).NotTo(BeEmpty(), "%q", says)
	})
	a.sawRefusal(reason, want)
}

// invalidExpression is the refusal of a Stack whose expression is rejected when it is compiled.
var invalidExpression = refusal{reasons: []string{pulumiv1.InvalidCELExpressionReason}, says: "readyExpr", stalled: true}

// unready returns the refusal of a Stack whose expression is rejected, or fails when it is evaluated.
func unready(says string) refusal {
	return refusal{reasons: []string{pulumiv1.DependencyNotReadyReason, pulumiv1.InvalidCELExpressionReason}, says: says}
}

// expressionAttacks make the controller evaluate expressions.
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
		name: "expressions-by-the-hundred", promise: "expressions", heavy: true,
		does: "writes three hundred different expressions of 2 KiB",
		sees: "`DependencyNotReady`: the expressions are false. The memory for expressions is limited.",
		run: func(a *attacker) {
			for i := range 20 {
				stack := a.dependent("")
				colleague := stack.Spec.DependsOn[0].Name
				stack.Spec.DependsOn = nil
				for j := range 15 {
					stack.Spec.DependsOn = append(stack.Spec.DependsOn, pulumiv1.DependencyReference{Name: colleague,
						ReadyExpr: fmt.Sprintf(`dep.metadata.name == "%s%d-%d"`, strings.Repeat("x", 2000), i, j)})
				}
				a.expectState(a.numbered(stack), refusal{reasons: []string{pulumiv1.DependencyNotReadyReason}, says: "is false"})
			}
		},
	},
}

// dependent returns a Stack that depends, with the expression, on another Stack of the attacker. That Stack has values that an expression
// must not read.
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
		spec.DependsOn = []pulumiv1.DependencyReference{{Name: colleague.Name, ReadyExpr: expression}}
	})
}

// expectExpressions expects the same refusal for each of the expressions.
func (a *attacker) expectExpressions(want refusal, expressions ...string) {
	a.t.Helper()
	for _, expression := range expressions {
		a.expectState(a.numbered(a.dependent(expression)), want)
	}
}

// expectState is like expectRefused, but does not check that the refusal remains. Unless want.stalled is set, the Stack may be Stalled or
// not.
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
