package stack

import (
	"strings"
	"testing"
	"time"

	. "github.com/onsi/gomega"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/fluxcd/pkg/apis/meta"
	"github.com/fluxcd/pkg/runtime/conditions"

	autov1alpha1 "github.com/stack-controller/stack-controller/api/auto/v1alpha1"
	pulumiv1 "github.com/stack-controller/stack-controller/api/pulumi/v1"
)

// dependent creates the named Stack after the changes, and does not wait for anything.
func (s *stage) dependent(name string, changes ...func(*pulumiv1.Stack)) *pulumiv1.Stack {
	s.t.Helper()
	stack := &pulumiv1.Stack{ObjectMeta: metav1.ObjectMeta{Namespace: s.namespace, Name: name}, Spec: pulumiv1.StackSpec{Stack: name}}
	withImage("one")(stack)
	for _, change := range changes {
		change(stack)
	}
	s.Expect(s.client.Create(s.t.Context(), stack)).To(Succeed())
	return stack
}

func requires(names ...string) func(*pulumiv1.Stack) {
	return func(stack *pulumiv1.Stack) {
		stack.Spec.Prerequisites = nil
		for _, name := range names {
			stack.Spec.Prerequisites = append(stack.Spec.Prerequisites, pulumiv1.PrerequisiteRef{Name: name})
		}
	}
}

func dependsOn(name, expression string) func(*pulumiv1.Stack) {
	return func(stack *pulumiv1.Stack) {
		stack.Spec.DependsOn = []meta.DependencyReference{{Name: name, ReadyExpr: expression}}
	}
}

func within(name string, window time.Duration) func(*pulumiv1.Stack) {
	return func(stack *pulumiv1.Stack) {
		stack.Spec.Prerequisites = []pulumiv1.PrerequisiteRef{{Name: name, Requirement: &pulumiv1.Requirement{
			SucceededWithinDuration: &metav1.Duration{Duration: window},
		}}}
	}
}

func (s *stage) edit(stack *pulumiv1.Stack, change func(*pulumiv1.Stack)) {
	s.t.Helper()
	s.Expect(s.client.Get(s.t.Context(), client.ObjectKeyFromObject(stack), stack)).To(Succeed())
	before := stack.DeepCopy()
	change(stack)
	s.Expect(s.client.Patch(s.t.Context(), stack, client.MergeFrom(before))).To(Succeed())
}

// succeed plays the Update controller: the update that is on its way succeeded at that time.
func (s *stage) succeed(stack *pulumiv1.Stack, end time.Time) *pulumiv1.Stack {
	s.t.Helper()
	s.await(stack, func(stack *pulumiv1.Stack) bool { return stack.Status.CurrentUpdate != nil })
	s.setUpdate(stack, func(update *autov1alpha1.Update) {
		update.Status.StartTime, update.Status.EndTime = &metav1.Time{Time: end}, &metav1.Time{Time: end}
		conditions.MarkFalse(update, autov1alpha1.UpdateProgressing, "Complete", "done")
		conditions.MarkTrue(update, autov1alpha1.UpdateComplete, "Complete", "done")
	})
	return s.await(stack, func(stack *pulumiv1.Stack) bool {
		return conditions.IsReady(stack) && stack.Status.CurrentUpdate == nil
	})
}

// notUpdated is a Stack that says why, and did not start anything.
func notUpdated(reason, message string) func(*pulumiv1.Stack) bool {
	return func(stack *pulumiv1.Stack) bool {
		return conditions.GetReason(stack, meta.ReadyCondition) == reason && stack.Status.CurrentUpdate == nil &&
			strings.Contains(conditions.GetMessage(stack, meta.ReadyCondition), message)
	}
}

func inCycle(path ...string) func(*pulumiv1.Stack) bool {
	return func(stack *pulumiv1.Stack) bool {
		var names []string
		for _, name := range path {
			names = append(names, stack.Namespace+"/"+name)
		}
		return conditions.GetReason(stack, meta.StalledCondition) == pulumiv1.DependencyCycleReason &&
			notUpdated(pulumiv1.DependencyCycleReason, strings.Join(names, " → "))(stack)
	}
}

func working(stack *pulumiv1.Stack) bool { return stack.Status.CurrentUpdate != nil }

func TestCycleIsToldOnEachOfItsStacksAndHealsWithAnyOfThem(t *testing.T) {
	for _, mended := range []string{"one", "two", "three"} {
		t.Run(mended, func(t *testing.T) {
			s := newStage(t)
			stacks := map[string]*pulumiv1.Stack{
				"one":     s.dependent("one", requires("two")),
				"two":     s.dependent("two", dependsOn("three", "")),
				"outside": s.dependent("outside", requires("one")),
			}
			s.await(stacks["two"], notUpdated(pulumiv1.DependencyNotReadyReason, "three does not exist"))
			stacks["three"] = s.dependent("three", requires("one"), dependsOn("nobody", ""))
			s.await(stacks["one"], inCycle("one", "two", "three", "one"))
			s.await(stacks["two"], inCycle("two", "three", "one", "two"))
			s.await(stacks["three"], inCycle("three", "one", "two", "three"))
			s.await(stacks["outside"], notUpdated(pulumiv1.PrerequisiteNotSatisfiedReason, "one is not ready"))

			s.edit(stacks[mended], func(stack *pulumiv1.Stack) { stack.Spec.Prerequisites, stack.Spec.DependsOn = nil, nil })
			s.await(stacks[mended], working)
			for _, name := range []string{"one", "two", "three"} {
				s.await(stacks[name], func(stack *pulumiv1.Stack) bool { return !conditions.IsStalled(stack) })
			}
		})
	}
}

func TestSmallCyclesAreTold(t *testing.T) {
	s := newStage(t)
	self := s.dependent("self", dependsOn("self", "true"))
	s.await(self, inCycle("self", "self"))
	s.edit(self, func(stack *pulumiv1.Stack) { stack.Spec.DependsOn = nil })
	s.await(self, working)

	left, right := s.dependent("left", requires("right")), s.dependent("right", requires("left"))
	s.await(left, inCycle("left", "right", "left"))
	s.await(right, inCycle("right", "left", "right"))
	s.Expect(s.client.Delete(t.Context(), right)).To(Succeed())
	s.await(left, notUpdated(pulumiv1.PrerequisiteNotSatisfiedReason, "right does not exist"))
}

func TestReadyStacksAreToldOfTheCycleThatAnEditCloses(t *testing.T) {
	s := newStage(t)
	base := s.dependent("base")
	s.succeed(base, time.Now())
	top := s.dependent("top", requires("base"))
	s.succeed(top, time.Now())
	s.edit(base, requires("top"))
	s.await(base, inCycle("base", "top", "base"))
	s.await(top, inCycle("top", "base", "top"))
	s.edit(base, requires())
	s.succeed(base, time.Now())
	s.await(top, func(stack *pulumiv1.Stack) bool { return conditions.IsReady(stack) })
}

func TestReadyExprDecidesWhenADependencyIsReady(t *testing.T) {
	s := newStage(t)
	base := s.dependent("base")
	s.await(base, working)
	top := s.dependent("top", dependsOn("base", "dep.metadata.labels['phase'] == self.spec.stack && dep.apiVersion == 'pulumi.com/v1'"))
	s.await(top, notUpdated(pulumiv1.DependencyNotReadyReason, "cannot be evaluated"))
	s.edit(base, func(stack *pulumiv1.Stack) { metav1.SetMetaDataLabel(&stack.ObjectMeta, "phase", "none") })
	s.await(top, notUpdated(pulumiv1.DependencyNotReadyReason, "is false"))
	s.edit(base, func(stack *pulumiv1.Stack) { metav1.SetMetaDataLabel(&stack.ObjectMeta, "phase", "top") })
	s.await(top, working)
	s.Expect(conditions.IsReady(base)).To(BeFalse(), "the expression takes the place of the condition")
}

func TestReadyExprThatIsNoneStalls(t *testing.T) {
	s := newStage(t)
	for name, expression := range map[string]string{"syntax": "dep.", "type": "'text'", "variable": "other.status", "long": strings.Repeat("true || ", 2000) + "true"} {
		stack := s.dependent(name, dependsOn("nobody", expression))
		s.await(stack, reasonIs(meta.StalledCondition, pulumiv1.InvalidCELExpressionReason))
		s.Expect(conditions.GetReason(stack, meta.ReadyCondition)).To(Equal(pulumiv1.InvalidCELExpressionReason))
		s.edit(stack, dependsOn("nobody", "true"))
		s.await(stack, notUpdated(pulumiv1.DependencyNotReadyReason, "nobody does not exist"))
	}
}

func TestExpressionIsBoundedAndTellsNoSecret(t *testing.T) {
	g := NewWithT(t)
	dep := stackOf(pulumiv1.StackSpec{
		Secrets:    map[string]string{"clear": "canary-1"},
		SecretRefs: map[string]pulumiv1.ResourceRef{"p": literal("canary-2")},
		EnvRefs:    map[string]pulumiv1.ResourceRef{"E": literal("canary-3")},
	})
	self := stackOf(pulumiv1.StackSpec{})
	for _, expression := range []string{
		"dep.spec.secrets['clear'].contains('canary')", "dep.spec.secretsRef['p'].literal.value.contains('canary')",
		"dep.spec.envRefs['E'].literal.value.contains('canary')",
	} {
		ready, err := evaluateExpression(t.Context(), expression, self, dep)
		g.Expect(err).NotTo(HaveOccurred(), expression)
		g.Expect(ready).To(BeFalse(), expression)
	}
	g.Expect(dep.Spec.Secrets).To(HaveKeyWithValue("clear", "canary-1"), "the Stack itself stays as it is")
	_, err := evaluateExpression(t.Context(), "int(dep.spec.stack) == 1", self, dep)
	g.Expect(err).To(MatchError(errEvaluation))
	g.Expect(err.Error()).NotTo(ContainSubstring("dev"))

	numbers := "[1,2,3,4,5,6,7,8,9,0]"
	endless := numbers + ".all(a, " + numbers + ".all(b, " + numbers + ".all(c, " + numbers + ".all(d, " + numbers + ".all(e, " + numbers +
		".all(f, " + numbers + ".all(g, a + b + c + d + e + f + g < 100)))))))"
	_, err = evaluateExpression(t.Context(), endless, self, dep)
	g.Expect(err).To(MatchError(errEvaluation))
	_, err = evaluateWithoutTimeout(t, endless)
	g.Expect(err).To(MatchError(ContainSubstring("cost limit exceeded")))
}

func TestPrerequisiteThatSucceededTooLongAgoIsAskedToRunOnce(t *testing.T) {
	s := newStage(t)
	base := s.dependent("base")
	base = s.succeed(base, time.Now().Add(-time.Hour))
	first := base.Status.LastUpdate.Name
	top := s.dependent("top", within("base", time.Minute))
	s.await(top, notUpdated(pulumiv1.PrerequisiteNotSatisfiedReason, "base"))
	base = s.await(base, working)
	s.Expect(base.Annotations).To(HaveKeyWithValue(pulumiv1.ReconcileRequestAnnotation, "after-"+first))
	generation := base.Generation
	other := s.dependent("other", within("base", 2*time.Minute))
	s.await(other, notUpdated(pulumiv1.PrerequisiteNotSatisfiedReason, "base"))
	base = s.succeed(base, time.Now())
	s.Expect(base.Generation).To(Equal(generation))
	s.await(top, working)
	s.await(other, working)
	s.Expect(base.Annotations).To(HaveKeyWithValue(pulumiv1.ReconcileRequestAnnotation, "after-"+first), "nobody asked again")
}

func TestStalePrerequisiteThatIsSuspendedIsNotAsked(t *testing.T) {
	s := newStage(t)
	base := s.dependent("base")
	base = s.succeed(base, time.Now().Add(-time.Hour))
	s.edit(base, func(stack *pulumiv1.Stack) { stack.Spec.Suspend = true })
	top := s.dependent("top", within("base", time.Minute))
	s.await(top, func(stack *pulumiv1.Stack) bool {
		return conditions.GetReason(stack, meta.ReadyCondition) == pulumiv1.PrerequisiteNotSatisfiedReason
	})
	s.Consistently(func(g Gomega) {
		g.Expect(s.client.Get(t.Context(), client.ObjectKeyFromObject(base), base)).To(Succeed())
		g.Expect(base.Annotations).NotTo(HaveKey(pulumiv1.ReconcileRequestAnnotation))
	}, "1s").Should(Succeed())
	s.edit(base, func(stack *pulumiv1.Stack) { stack.Spec.Suspend = false })
	s.succeed(base, time.Now())
	s.await(top, working)
}

func TestStalePrerequisiteMattersOnlyWhenThereIsSomethingToUpdate(t *testing.T) {
	g := NewWithT(t)
	required := settled().stack
	required.Status.LastUpdate.LastResyncTime = ago(time.Hour)
	item := dependency{name: client.ObjectKeyFromObject(required), field: "prerequisite", window: new(time.Minute)}
	stale := func(o *observation) { o.stale = staleness(required, item, now) }
	g.Expect(decide(*with(settled(), stale)).action).To(Equal(actionSettle))
	g.Expect(decide(*with(failed(1, time.Second), stale)).action).To(Equal(actionRetry))
	newCommit := func(o *observation) { o.artifact.Digest = "sha256:b" }
	g.Expect(decide(*with(settled(), stale, newCommit)).action).To(Equal(actionAsk))
	required.Annotations = map[string]string{pulumiv1.ReconcileRequestAnnotation: "after-app-1"}
	g.Expect(decide(*with(settled(), stale, newCommit)).action).To(Equal(actionWait))

	required.Status.LastUpdate.LastResyncTime = ago(5 * time.Second)
	g.Expect(staleness(required, dependency{window: new(time.Millisecond)}, now)).To(BeNil(), "an update cannot be that young for long")
}
