package stack

import (
	"fmt"
	"testing"
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
)

// dependentNamed is a Stack that depends on team/base.
func dependentNamed(namespace, name string, changes ...func(*pulumiv1.Stack)) pulumiv1.Stack {
	stack := pulumiv1.Stack{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name}}
	stack.Spec.DependsOn = []meta.DependencyReference{{Namespace: "team", Name: "base"}}
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
		dependentNamed("other", "web"),
		dependentNamed("team", "alone", func(s *pulumiv1.Stack) { s.Spec.DependsOn = nil }),
		dependentNamed("team", "base"),
		dependentNamed("other", "base", requires("base"), func(s *pulumiv1.Stack) { s.Spec.DependsOn = nil }),
	}
	same := []dependent{
		{name: types.NamespacedName{Namespace: "team", Name: "web"}},
		{name: types.NamespacedName{Namespace: "team", Name: "db"}, deleting: true},
	}
	g.Expect((&Reconciler{}).among(stacks, base)).To(Equal(same))
	g.Expect((&Reconciler{AllowCrossNamespaceRefs: true}).among(stacks, base)).To(
		Equal(append(same, dependent{name: types.NamespacedName{Namespace: "other", Name: "web"}})))
}

func TestDependentsThatNobodyDeletesAreNamedFirst(t *testing.T) {
	g := NewWithT(t)
	var list []dependent
	for i := range 7 {
		list = append(list, dependent{name: types.NamespacedName{Namespace: "team", Name: fmt.Sprint("s", i)}, deleting: i < 4})
	}
	g.Expect(describeDependents(list)).To(ContainSubstring(
		": team/s4, team/s5, team/s6, team/s0 (is being deleted), team/s1 (is being deleted), 2 more; delete"))
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

// deployedStack is the Stack "app" of the stage, deployed, with something to destroy.
func (s *stage) deployedStack(change func(*pulumiv1.Stack)) *pulumiv1.Stack {
	s.t.Helper()
	stack := s.newStack(func(stack *pulumiv1.Stack) {
		stack.Spec.DestroyOnFinalize = true
		change(stack)
	})
	s.setWorkspace(starting)
	return s.succeed(stack, time.Now())
}

func (s *stage) awaitGone(stack *pulumiv1.Stack) {
	s.t.Helper()
	s.Eventually(func() bool {
		return apierrors.IsNotFound(s.client.Get(s.t.Context(), client.ObjectKeyFromObject(stack), stack))
	}).Should(BeTrue())
}

// endDestroy plays the Update controller.
func (s *stage) endDestroy(stack *pulumiv1.Stack) {
	s.t.Helper()
	s.await(stack, working)
	s.setUpdate(stack, func(update *autov1alpha1.Update) {
		s.Expect(update.Spec.Type).To(Equal(autov1alpha1.UpdateTypeDestroy))
		update.Status.StartTime, update.Status.EndTime = new(metav1.Now()), new(metav1.Now())
		conditions.MarkTrue(update, autov1alpha1.UpdateComplete, "Complete", "done")
	})
}

// Here only watches wake a Stack.
func TestStackIsDestroyedOnceItsLastDependentIsGone(t *testing.T) {
	s := newStage(t)
	stack := s.deployedStack(func(stack *pulumiv1.Stack) { stack.Spec.DestroyAfterDependents = true })
	one, two := s.dependent("one", requires("app")), s.dependent("two", dependsOn("app", ""))
	for _, each := range []*pulumiv1.Stack{one, two} {
		s.succeed(each, time.Now())
	}
	s.Expect(s.client.Delete(t.Context(), stack)).To(Succeed())
	s.await(stack, notUpdated(pulumiv1.DependentsExistReason, s.namespace+"/one, "+s.namespace+"/two;"))
	s.edit(one, requires())
	s.await(stack, notUpdated(pulumiv1.DependentsExistReason, "any more: "+s.namespace+"/two;"))
	s.Expect(s.client.Delete(t.Context(), two)).To(Succeed())
	s.awaitGone(two)
	s.endDestroy(stack)
	s.awaitGone(stack)
}

func TestDestroyThatMissesItsServiceAccountSaysSoAndGoesOnWithIt(t *testing.T) {
	s := newStage(t)
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
