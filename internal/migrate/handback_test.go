package migrate

import (
	"context"
	"errors"
	"fmt"
	"testing"

	. "github.com/onsi/gomega"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/fluxcd/pkg/apis/meta"
	"github.com/fluxcd/pkg/runtime/conditions"

	pulumiv1 "github.com/stack-controller/stack-controller/api/pulumi/v1"
	"github.com/stack-controller/stack-controller/tests/framework/operator"
)

func TestObjectThatChangedMeanwhileIsReadAgain(t *testing.T) {
	t.Parallel()
	s := newFixture(t)
	stack := s.stack("app", nil, func(stack *pulumiv1.Stack) { failed(stack, kinds[0], 1) })
	stale := stack.DeepCopy()
	s.write(stack, func() { stack.Status.LastUpdate.Message = "later" })
	h, calls := &handBack{Client: admin}, 0
	s.Expect(h.doLatest(s.ctx, stale, func(ctx context.Context, object client.Object) error {
		calls++
		return h.replaceStatus(ctx, object, object.(*pulumiv1.Stack).Status)
	})).To(Succeed())
	s.Expect(calls).To(Equal(2))
	s.read(stack)
	s.Expect(stack.Status.LastUpdate.Message).To(Equal("later"))
}

func TestObjectsOfEveryPageAreHandedBack(t *testing.T) {
	t.Parallel()
	s := newFixture(t)
	for i := range pageSize + 1 {
		program := &pulumiv1.Program{Namespace: s.namespace, Name: fmt.Sprintf("program-%d", i)}
		s.Expect(admin.Create(s.ctx, program)).To(Succeed())
		s.write(program, func() { conditions.MarkTrue(program, meta.ReadyCondition, meta.SucceededReason, "can be run") })
	}
	_, err := s.run()
	s.Expect(err).NotTo(HaveOccurred())
	programs := &pulumiv1.ProgramList{}
	s.Expect(admin.List(s.ctx, programs, client.InNamespace(s.namespace))).To(Succeed())
	s.Expect(programs.Items).To(HaveLen(pageSize + 1))
	for _, program := range programs.Items {
		s.Expect(program.Status.Conditions).To(BeEmpty())
	}
}

// blind is a client that fails to read the objects with a name.
type blind struct {
	client.Client
	name string
}

func (b blind) Get(ctx context.Context, key client.ObjectKey, object client.Object, options ...client.GetOption) error {
	if key.Name == b.name {
		return errors.New("no light")
	}
	return b.Client.Get(ctx, key, object, options...)
}

func TestFailureWithOneObjectKeepsNoOtherBack(t *testing.T) {
	t.Parallel()
	s := newFixture(t)
	s.stack("a", nil, func(stack *pulumiv1.Stack) {
		stack.Status.CurrentUpdate = &pulumiv1.CurrentStackUpdate{Name: "unreadable"}
	})
	other := s.stack("b", nil, func(stack *pulumiv1.Stack) { phases["stalled"].status(s, stack, kinds[0]) })
	_, err := s.run(func(o *Options) { o.Client = blind{o.Client, "unreadable"} })
	s.Expect(err).To(MatchError("Stack " + s.namespace + "/a: read the update unreadable: no light"))
	s.read(other)
	operator.MarkReady(other)
	s.Expect(s.operator.SaveStatus(s.ctx, other)).To(Succeed())
	s.Expect(shown(other)).To(ConsistOf("Ready=ProcessingCompleted"))
}
