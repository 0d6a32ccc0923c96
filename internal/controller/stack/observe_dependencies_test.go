package stack

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	. "github.com/onsi/gomega"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/event"

	"github.com/fluxcd/pkg/apis/meta"
	"github.com/fluxcd/pkg/runtime/conditions"

	autov1alpha1 "github.com/stack-controller/stack-controller/api/auto/v1alpha1"
	pulumiv1 "github.com/stack-controller/stack-controller/api/pulumi/v1"
	"github.com/stack-controller/stack-controller/internal/informercache"
	"github.com/stack-controller/stack-controller/internal/references"
)

// dependent creates the named Stack with the changes, and does not wait for anything.
func (s *fixture) dependent(name string, changes ...func(*pulumiv1.Stack)) *pulumiv1.Stack {
	s.t.Helper()
	stack := &pulumiv1.Stack{Namespace: s.namespace, Name: name, Spec: pulumiv1.StackSpec{Stack: name}}
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
		stack.Spec.DependsOn = []pulumiv1.DependencyReference{{Name: name, ReadyExpr: expression}}
	}
}

func within(name string, window time.Duration) func(*pulumiv1.Stack) {
	return func(stack *pulumiv1.Stack) {
		stack.Spec.Prerequisites = []pulumiv1.PrerequisiteRef{{Name: name, Requirement: &pulumiv1.Requirement{
			SucceededWithinDuration: &metav1.Duration{Duration: window},
		}}}
	}
}

func (s *fixture) edit(stack *pulumiv1.Stack, change func(*pulumiv1.Stack)) {
	s.t.Helper()
	s.Expect(s.client.Get(s.t.Context(), client.ObjectKeyFromObject(stack), stack)).To(Succeed())
	before := stack.DeepCopy()
	change(stack)
	s.Expect(s.client.Patch(s.t.Context(), stack, client.MergeFrom(before))).To(Succeed())
}

// succeed plays the Update controller: the update that is in progress succeeds, with the given end time.
func (s *fixture) succeed(stack *pulumiv1.Stack, end time.Time) *pulumiv1.Stack {
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

// notUpdated matches a Stack that shows the reason and the message, and has started no update.
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

func TestCycleIsReportedOnEachOfItsStacksAndRecoversWithAnyOfThem(t *testing.T) {
	for _, mended := range []string{"one", "two", "three"} {
		t.Run(mended, func(t *testing.T) {
			s := newFixture(t)
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

func TestSmallCyclesAreReported(t *testing.T) {
	s := newFixture(t)
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

func TestReadyStacksShowTheCycleThatAnEditCloses(t *testing.T) {
	s := newFixture(t)
	base := s.dependent("base")
	s.succeed(base, time.Now())
	top := s.dependent("top", requires("base"))
	s.succeed(top, time.Now())
	s.edit(base, requires("top"))
	s.await(base, inCycle("base", "top", "base"))
	s.await(top, inCycle("top", "base", "top"))
	// The edit is reverted, and nothing has to run.
	s.edit(base, requires())
	s.await(base, func(stack *pulumiv1.Stack) bool {
		return conditions.IsReady(stack) && stack.Status.LastUpdate.Generation == stack.Generation
	})
	s.await(top, func(stack *pulumiv1.Stack) bool { return conditions.IsReady(stack) })
}

func TestReadyExprDecidesWhenADependencyIsReady(t *testing.T) {
	s := newFixture(t)
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
	s := newFixture(t)
	for name, expression := range map[string]string{
		"syntax": "dep.", "type": "'text'", "variable": "other.status", "long": strings.Repeat("true || ", 2000) + "true", "field": "dep.spec.secrets.a == 'x'",
		"pattern": `self.metadata.name.matches("(a{1000}){1000}")`, "macro": "optional.of(1).optMap(a, a).hasValue()",
	} {
		stack := s.dependent(name, dependsOn("nobody", expression))
		s.await(stack, reasonIs(meta.StalledCondition, pulumiv1.InvalidCELExpressionReason))
		s.Expect(conditions.GetReason(stack, meta.ReadyCondition)).To(Equal(pulumiv1.InvalidCELExpressionReason))
		s.edit(stack, dependsOn("nobody", "true"))
		s.await(stack, notUpdated(pulumiv1.DependencyNotReadyReason, "nobody does not exist"))
	}
}

func TestPrerequisiteThatSucceededTooLongAgoIsAskedToRunOnce(t *testing.T) {
	s := newFixture(t)
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
	s := newFixture(t)
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
	required := upToDate().stack
	required.Status.LastUpdate.LastResyncTime = ago(time.Hour)
	item := dependency{name: client.ObjectKeyFromObject(required), field: "prerequisite", window: new(time.Minute)}
	old := func(o *observation) { o.aged = aged(required, item, now) }
	g.Expect(decide(*with(upToDate(), old)).action).To(Equal(actionReady))
	g.Expect(decide(*with(failed(1, time.Second), old)).action).To(Equal(actionRetry))
	newCommit := func(o *observation) { o.artifact.Digest = "sha256:b" }
	g.Expect(decide(*with(upToDate(), old, newCommit)).action).To(Equal(actionRequestDependency))
	required.Annotations = map[string]string{pulumiv1.ReconcileRequestAnnotation: "after-app-1"}
	g.Expect(decide(*with(upToDate(), old, newCommit)).action).To(Equal(actionWait))

	required.Status.LastUpdate.LastResyncTime = ago(5 * time.Second)
	g.Expect(aged(required, dependency{window: new(time.Millisecond)}, now)).To(BeNil(), "an update cannot be that young for long")
}

func TestDependenciesAreLookedAtOnlyWhenAnUpdateCouldStart(t *testing.T) {
	g := NewWithT(t)
	o := upToDate()
	o.stack.Spec.DependsOn = []pulumiv1.DependencyReference{{Name: "base", ReadyExpr: "'none'"}}
	o.stack.Spec.Suspend = true
	g.Expect((&Reconciler{}).observeDependencies(t.Context(), o)).To(Succeed())
	o.stack.Spec.Suspend, o.update = false, updating().update
	g.Expect((&Reconciler{}).observeDependencies(t.Context(), o)).To(Succeed())
	g.Expect(o.dependency).To(BeNil())
	conditions.MarkTrue(o.update, autov1alpha1.UpdateComplete, autov1alpha1.UpdateSucceededReason, "done")
	g.Expect((&Reconciler{}).observeDependencies(t.Context(), o)).To(Succeed())
	g.Expect(o.dependency.reason).To(Equal(pulumiv1.InvalidCELExpressionReason), "the next one may start in the same reconcile")
	o.update, o.dependency = nil, nil
	g.Expect((&Reconciler{}).observeDependencies(t.Context(), o)).To(Succeed())
	g.Expect(o.dependency.reason).To(Equal(pulumiv1.InvalidCELExpressionReason))
}

func TestStackMayHaveAHundredExpressions(t *testing.T) {
	g := NewWithT(t)
	list := make([]dependency, maxExpressions)
	for i := range list {
		list[i] = dependency{expression: "true"}
	}
	g.Expect((&Reconciler{}).checkDependencies(&pulumiv1.Stack{}, list)).To(BeNil())
	list = append(list, dependency{expression: "true"})
	g.Expect((&Reconciler{}).checkDependencies(&pulumiv1.Stack{}, list).message).To(ContainSubstring("100 dependencies"))
}

func TestStackMayHaveABoundedNumberOfDependencies(t *testing.T) {
	g := NewWithT(t)
	stack := &pulumiv1.Stack{}
	for i := range maxDependencies {
		stack.Spec.DependsOn = append(stack.Spec.DependsOn, pulumiv1.DependencyReference{Name: fmt.Sprint(i)})
		stack.Spec.SecretEnvs = append(stack.Spec.SecretEnvs, fmt.Sprint(i), fmt.Sprint("more", i))
	}
	g.Expect((&Reconciler{}).checkDependencies(stack, namedDependencies(stack))).To(BeNil())
	requires("one more")(stack)
	problem := (&Reconciler{}).checkDependencies(stack, namedDependencies(stack))
	g.Expect(problem.permanent).To(BeTrue())
	g.Expect(problem.message).To(ContainSubstring("256 prerequisites, dependencies and Stacks in inputs, and this one has 257"))
	for name, values := range (&Reconciler{}).stackIndexes() {
		g.Expect(len(values(stack))).To(BeNumerically("<=", maxIndexed), name)
	}
}

// Otherwise each change of a Stack costs what others have created.
func TestStackIsNotWokenByWhatItMayNotUse(t *testing.T) {
	g := NewWithT(t)
	stack := &pulumiv1.Stack{Namespace: "evil", Name: "s"}
	stack.Spec.DependsOn = []pulumiv1.DependencyReference{
		{Namespace: "team", Name: "app", ReadyExpr: "true"},
		{APIVersion: "kustomize.toolkit.fluxcd.io/v1", Kind: "Kustomization", Namespace: "team", Name: "app"},
	}
	for _, index := range []string{dependencyIndex, readyExprIndex, objectsIndex} {
		g.Expect((&Reconciler{}).stackIndexes()[index](stack)).To(BeEmpty(), index)
		g.Expect((&Reconciler{Scope: references.Scope{OtherNamespaces: true}}).stackIndexes()[index](stack)).To(HaveLen(1), index)
	}
}

func TestDependentOfWhichTheCacheHasLittleIsFound(t *testing.T) {
	// No watch reports the deletion of the dependent: what the cache has of it does not name the Stack.
	s := newFixture(t, func(r *Reconciler) { r.WaitInterval = time.Second })
	stack := s.deployedStack(func(stack *pulumiv1.Stack) { stack.Spec.DestroyAfterDependents = true })
	large := s.dependent("large", dependsOn("app", ""), func(stack *pulumiv1.Stack) {
		stack.Spec.Suspend = true
		stack.Annotations = map[string]string{"example.com/large": strings.Repeat("x", informercache.MaxSize)}
		for i := range maxDependencies - 1 {
			stack.Spec.DependsOn = append([]pulumiv1.DependencyReference{{Name: strings.Repeat("x", 240) + fmt.Sprint(i)}}, stack.Spec.DependsOn...)
		}
	})
	s.Expect(s.client.Delete(t.Context(), stack)).To(Succeed())
	s.await(stack, notUpdated(pulumiv1.DependentsExistReason, s.namespace+"/large;"))
	s.Expect(s.client.Delete(t.Context(), large)).To(Succeed())
	s.endDestroy(stack)
	s.awaitGone(stack)
}

// knownStacks is a client that reads Stacks from memory.
type knownStacks struct {
	client.Client
	stacks map[types.NamespacedName]*pulumiv1.Stack
}

func (k knownStacks) Get(_ context.Context, key client.ObjectKey, into client.Object, _ ...client.GetOption) error {
	k.stacks[key].DeepCopyInto(into.(*pulumiv1.Stack))
	return nil
}

func TestExpressionsThatTakeLongAreEvaluatedInSeveralReconciles(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := NewWithT(t)
		stack := &pulumiv1.Stack{Namespace: "team", Name: "app", UID: "app", ResourceVersion: "1"}
		known, evaluated := knownStacks{stacks: map[types.NamespacedName]*pulumiv1.Stack{}}, 0
		for i := range 12 {
			name := fmt.Sprint("dep-", i)
			known.stacks[types.NamespacedName{Namespace: "team", Name: name}] = &pulumiv1.Stack{
				Namespace: "team", Name: name, UID: types.UID(name), ResourceVersion: "1",
			}
			stack.Spec.DependsOn = append(stack.Spec.DependsOn, pulumiv1.DependencyReference{Name: name, ReadyExpr: "true"})
		}
		ready := true
		r := &Reconciler{Client: known, evaluate: func(context.Context, string, *pulumiv1.Stack, *pulumiv1.Stack) (bool, error) {
			evaluated++
			time.Sleep(100 * time.Millisecond)
			return ready, nil
		}}
		observe := func() (problem *dependencyProblem, evaluations int) {
			o, before, begin := &observation{now: time.Now(), stack: stack, waitInterval: time.Hour}, evaluated, time.Now()
			g.Expect(r.observeDependencies(t.Context(), o)).To(Succeed())
			g.Expect(time.Since(begin)).To(BeNumerically("<=", maxEvaluationTime+100*time.Millisecond))
			if o.dependency != nil && o.dependency.after > 0 {
				g.Expect(o.dependency.permanent).To(BeFalse())
				g.Expect(blockedByDependency(*o, o.dependency).after).To(Equal(evaluationPause))
			}
			return o.dependency, evaluated - before
		}
		problem, evaluations := observe()
		g.Expect(problem.message).To(Equal("the readyExprs of the dependencies take more than 500ms together: the rest follows in 1s"))
		g.Expect(evaluations).To(Equal(5))
		written := problem.message
		// The expression of a dependency that changed is evaluated again.
		known.stacks[types.NamespacedName{Namespace: "team", Name: "dep-0"}].ResourceVersion = "2"
		problem, evaluations = observe()
		g.Expect(problem.message).To(Equal(written), "another message would be another version of this Stack, and all would begin again")
		g.Expect(evaluations).To(Equal(5))
		problem, evaluations = observe()
		g.Expect(problem).To(BeNil())
		g.Expect(evaluations).To(Equal(3))

		// The results are dropped once all expressions were evaluated.
		_, found := r.evaluated.Load(client.ObjectKeyFromObject(stack))
		g.Expect(found).To(BeFalse())
		ready = false
		problem, evaluations = observe()
		g.Expect(problem.message).To(ContainSubstring(`dep-0 is not ready: readyExpr "true" is false`))
		g.Expect(evaluations).To(Equal(1))
	})
}

// dependentNamed is a Stack that depends on team/base.
func dependentNamed(namespace, name string, changes ...func(*pulumiv1.Stack)) pulumiv1.Stack {
	stack := pulumiv1.Stack{Namespace: namespace, Name: name}
	stack.Spec.DependsOn = []pulumiv1.DependencyReference{{Namespace: "team", Name: "base"}}
	for _, change := range changes {
		change(&stack)
	}
	return stack
}

func ending(stack *pulumiv1.Stack) { stack.DeletionTimestamp = &metav1.Time{Time: now} }

func TestDependentsAreThoseThatMayNameTheStack(t *testing.T) {
	g := NewWithT(t)
	base := types.NamespacedName{Namespace: "team", Name: "base"}
	stacks := []pulumiv1.Stack{
		dependentNamed("team", "web"),
		dependentNamed("team", "db", requires("base"), func(s *pulumiv1.Stack) { s.Spec.DependsOn = nil }, ending),
		dependentNamed("team", "shop", takes(output("vpc", "base", "vpcId")), func(s *pulumiv1.Stack) { s.Spec.DependsOn = nil }),
		dependentNamed("other", "web"),
		dependentNamed("team", "alone", func(s *pulumiv1.Stack) { s.Spec.DependsOn = nil }),
		dependentNamed("team", "base"),
		dependentNamed("other", "base", requires("base"), func(s *pulumiv1.Stack) { s.Spec.DependsOn = nil }),
	}
	same := []dependent{
		{name: types.NamespacedName{Namespace: "team", Name: "web"}},
		{name: types.NamespacedName{Namespace: "team", Name: "db"}, deleting: true},
		{name: types.NamespacedName{Namespace: "team", Name: "shop"}},
	}
	g.Expect((&Reconciler{}).dependentsAmong(stacks, base)).To(Equal(same))
	g.Expect((&Reconciler{Scope: references.Scope{OtherNamespaces: true}}).dependentsAmong(stacks, base)).To(
		Equal(append(same, dependent{name: types.NamespacedName{Namespace: "other", Name: "web"}})))
}

func TestDependentsThatNobodyDeletesAreNamedFirst(t *testing.T) {
	g := NewWithT(t)
	var list []dependent
	for i := range 7 {
		list = append(list, dependent{name: types.NamespacedName{Namespace: "team", Name: fmt.Sprint("s", i)}, deleting: i < 4})
	}
	g.Expect(describeDependents(list)).To(ContainSubstring(
		": team/s4, team/s5, team/s6, team/s0 (is being deleted), team/s1 (is being deleted), 2 more; delete these Stacks, take this one out of their dependsOn, prerequisites and inputs, "))
}

func TestStackIsWokenByWhatItsDependentsNameAndByTheirEnd(t *testing.T) {
	g := NewWithT(t)
	web := dependentNamed("team", "web")
	other, gone, ready := web.DeepCopy(), web.DeepCopy(), web.DeepCopy()
	other.Spec.DependsOn = nil
	ending(gone)
	conditions.MarkTrue(ready, meta.ReadyCondition, "Done", "done")
	for changed, expected := range map[*pulumiv1.Stack]bool{other: true, gone: true, ready: false} {
		g.Expect(dependentChanged.Update(event.UpdateEvent{ObjectOld: &web, ObjectNew: changed})).To(Equal(expected))
	}
	g.Expect(dependentChanged.Delete(event.DeleteEvent{Object: &web})).To(BeTrue())
	g.Expect(dependentChanged.Create(event.CreateEvent{Object: &web})).To(BeFalse())
}

// deployedStack is the Stack "app" of the fixture, deployed, with something to destroy.
func (s *fixture) deployedStack(change func(*pulumiv1.Stack)) *pulumiv1.Stack {
	s.t.Helper()
	stack := s.newStack(func(stack *pulumiv1.Stack) {
		stack.Spec.DestroyOnFinalize = true
		change(stack)
	})
	s.setWorkspace(starting)
	return s.succeed(stack, time.Now())
}

func (s *fixture) awaitGone(stack *pulumiv1.Stack) {
	s.t.Helper()
	s.Eventually(func() bool {
		return apierrors.IsNotFound(s.client.Get(s.t.Context(), client.ObjectKeyFromObject(stack), stack))
	}).Should(BeTrue())
}

// endDestroy plays the Update controller.
func (s *fixture) endDestroy(stack *pulumiv1.Stack) {
	s.t.Helper()
	s.await(stack, working)
	s.setUpdate(stack, func(update *autov1alpha1.Update) {
		s.Expect(update.Spec.Type).To(Equal(autov1alpha1.UpdateTypeDestroy))
		update.Status.StartTime, update.Status.EndTime = new(metav1.Now()), new(metav1.Now())
		conditions.MarkTrue(update, autov1alpha1.UpdateComplete, "Complete", "done")
	})
}

// Only watches wake a Stack in this test.
func TestStackIsDestroyedOnceItsLastDependentIsGone(t *testing.T) {
	s := newFixture(t)
	stack := s.deployedStack(func(stack *pulumiv1.Stack) { stack.Spec.DestroyAfterDependents = true })
	one, two := s.dependent("one", requires("app")), s.dependent("two", dependsOn("app", ""))
	for _, each := range []*pulumiv1.Stack{one, two} {
		s.succeed(each, time.Now())
	}
	s.Expect(s.client.Delete(t.Context(), stack)).To(Succeed())
	s.await(stack, notUpdated(pulumiv1.DependentsExistReason, s.namespace+"/one, "+s.namespace+"/two;"))
	s.edit(one, requires())
	s.await(stack, notUpdated(pulumiv1.DependentsExistReason, "any longer: "+s.namespace+"/two;"))
	s.Expect(s.client.Delete(t.Context(), two)).To(Succeed())
	s.awaitGone(two)
	s.endDestroy(stack)
	s.awaitGone(stack)
}

func TestDestroyThatMissesItsServiceAccountSaysSoAndGoesOnWithIt(t *testing.T) {
	s := newFixture(t)
	stack := s.deployedStack(func(*pulumiv1.Stack) {})
	s.Expect(s.client.Delete(t.Context(), stack)).To(Succeed())
	s.await(stack, working)
	s.setWorkspace(failing(autov1alpha1.ServiceAccountNotFoundReason, `serviceaccount "deployer" not found`))
	s.await(stack, reasonIs(meta.ReadyCondition, pulumiv1.WorkspaceNotReadyReason))
	s.Expect(conditions.GetMessage(stack, meta.ReadyCondition)).To(And(
		ContainSubstring(`(ServiceAccountNotFound): serviceaccount "deployer" not found`), ContainSubstring(pulumiv1.OrphanAnnotation+"=true")))
	s.setWorkspace(starting)
	s.await(stack, reasonIs(meta.ReconcilingCondition, pulumiv1.StackProcessingReason))
	s.endDestroy(stack)
	s.awaitGone(stack)
}
