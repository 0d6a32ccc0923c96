package stack

import (
	"context"
	"strconv"
	"sync"
	"testing"
	"time"

	. "github.com/onsi/gomega"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	autov1alpha1 "github.com/stack-controller/stack-controller/api/auto/v1alpha1"
	pulumiv1 "github.com/stack-controller/stack-controller/api/pulumi/v1"
	"github.com/stack-controller/stack-controller/internal/informercache"
)

// lateStacks is the client of a controller whose cache has Stacks only some time after they changed, as on a busy machine.
type lateStacks struct {
	client.Client
	delay time.Duration

	mu   sync.Mutex
	seen []seenStack
}

type seenStack struct {
	stack *pulumiv1.Stack
	at    time.Time
}

// Get implements client.Reader. It is for one Stack.
func (c *lateStacks) Get(ctx context.Context, key client.ObjectKey, object client.Object, options ...client.GetOption) error {
	err := c.Client.Get(ctx, key, object, options...)
	stack, ok := object.(*pulumiv1.Stack)
	if err != nil || !ok {
		return err
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if len(c.seen) == 0 || c.seen[len(c.seen)-1].stack.ResourceVersion != stack.ResourceVersion {
		c.seen = append(c.seen, seenStack{stack.DeepCopy(), time.Now()})
	}
	for len(c.seen) > 1 && time.Since(c.seen[1].at) > c.delay {
		c.seen = c.seen[1:]
	}
	c.seen[0].stack.DeepCopyInto(stack)
	return nil
}

func TestCheckIsNotRepeatedBecauseTheCacheIsLate(t *testing.T) {
	late := &lateStacks{delay: 500 * time.Millisecond}
	s := newFixture(t, func(r *Reconciler) { late.Client, r.Client = r.Client, late })
	stack := s.watchedStack()
	check := s.requestCheck(stack, "1")
	s.mark(check, started, func(update *autov1alpha1.Update) {
		update.Status.Changes = []autov1alpha1.ResourceChange{gone("a:b:C", "x")}
	}, succeeds)
	s.await(stack, func(stack *pulumiv1.Stack) bool {
		return stack.Status.Drift != nil && stack.Status.Drift.Unconfirmed != ""
	})
	s.Eventually(func() bool { return s.checked(check) }).Should(BeFalse(), "the check is deleted when its result is in the status")
	s.Consistently(s.updates, "2s").Should(HaveLen(1), "the check that confirms it follows after %s", confirmDelay)
}

func TestCheckThatNoLongerFitsTheStackMakesWay(t *testing.T) {
	s := newFixture(t)
	stack := s.watchedStack()
	check := s.requestCheck(stack, "1")
	s.mark(check, started)
	s.edit(stack, func(stack *pulumiv1.Stack) { stack.Spec.Targets = []string{urnOf("a:b:C", "x")} })
	s.Eventually(func() bool { return s.checked(check) }).Should(BeFalse())
	update := s.awaitUnfinishedUpdate()
	s.Expect(update.Spec.Type).To(Equal(autov1alpha1.UpdateTypeUp))
	s.mark(update, started, succeeds)

	check = s.awaitUnfinishedUpdate()
	s.Expect(check.Spec.Target).To(HaveExactElements(urnOf("a:b:C", "x")), "the request is not forgotten")
	s.mark(check, started, succeeds)
	s.await(stack, reasonIs(pulumiv1.DriftedCondition, pulumiv1.NoDriftReason))
}

// knownUpdates is a client that knows only these Updates. It finds the first one by any name.
type knownUpdates struct {
	client.Client
	updates []autov1alpha1.Update
}

// Get implements client.Reader.
func (k knownUpdates) Get(_ context.Context, _ client.ObjectKey, object client.Object, _ ...client.GetOption) error {
	k.updates[0].DeepCopyInto(object.(*autov1alpha1.Update))
	return nil
}

// List implements client.Reader.
func (k knownUpdates) List(_ context.Context, list client.ObjectList, _ ...client.ListOption) error {
	if updates, ok := list.(*autov1alpha1.UpdateList); ok {
		updates.Items = k.updates
	}
	return nil
}

func ownedBy(stack *pulumiv1.Stack) []metav1.OwnerReference {
	return []metav1.OwnerReference{{APIVersion: pulumiv1.GroupVersion.String(), Kind: pulumiv1.StackKind, Name: stack.Name, UID: stack.UID}}
}

func TestACheckOfManyResourcesIsKnownAgain(t *testing.T) {
	g, o := NewWithT(t), watchful("")
	for i := range 2000 {
		o.stack.Spec.Targets = append(o.stack.Spec.Targets, urnOf("a:b:C", strconv.Itoa(i)))
	}
	check := checked(0)
	check.Status, check.Spec.Target, check.CreationTimestamp = autov1alpha1.UpdateStatus{}, o.stack.Spec.Targets, ago(0)
	check.OwnerReferences = ownedBy(o.stack)
	inCache := informercache.Shortened(check.DeepCopy()).(*autov1alpha1.Update)
	g.Expect(informercache.IsShortened(inCache)).To(BeTrue())
	r := &Reconciler{APIReader: knownUpdates{updates: []autov1alpha1.Update{*check}}}
	g.Expect(r.observeDriftCheck(t.Context(), o, []autov1alpha1.Update{*inCache})).To(Succeed())
	g.Expect(decideOnDrift(*o, decide(*o)).step).To(Equal(driftNone), "a check that is discarded is due again at once")
}

// watchedStack creates a Stack that looks for drift, and waits until it is up to date.
func (s *fixture) watchedStack() *pulumiv1.Stack {
	s.t.Helper()
	stack := &pulumiv1.Stack{Namespace: s.namespace, Name: "app", Spec: pulumiv1.StackSpec{Stack: "dev", Drift: &pulumiv1.DriftSpec{}}}
	withImage("one")(stack)
	s.Expect(s.client.Create(s.t.Context(), stack)).To(Succeed())
	s.mark(s.awaitUnfinishedUpdate(), started, succeeds)
	return s.await(stack, idle)
}

// requestCheck asks for a check with the token, and returns its Update.
func (s *fixture) requestCheck(stack *pulumiv1.Stack, token string) *autov1alpha1.Update {
	s.t.Helper()
	s.edit(stack, func(stack *pulumiv1.Stack) {
		metav1.SetMetaDataAnnotation(&stack.ObjectMeta, pulumiv1.DriftCheckAnnotation, token)
	})
	check := s.awaitUnfinishedUpdate()
	s.Expect(isDriftCheck(check)).To(BeTrue())
	return check
}

// checked reports whether the Update that looked for drift is still there.
func (s *fixture) checked(check *autov1alpha1.Update) bool {
	for _, update := range s.updates() {
		if update.UID == check.UID {
			return true
		}
	}
	return false
}
