package systemtest

import (
	"context"
	"testing"
	"time"

	. "github.com/onsi/gomega"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/fluxcd/pkg/apis/meta"
	"github.com/fluxcd/pkg/runtime/conditions"

	autov1alpha1 "github.com/stack-controller/stack-controller/api/auto/v1alpha1"
	pulumiv1 "github.com/stack-controller/stack-controller/api/pulumi/v1"
	"github.com/stack-controller/stack-controller/tests/framework/localsystem"
	"github.com/stack-controller/stack-controller/tests/framework/statuscheck"
)

const (
	// Patience bounds every wait. What a test waits for takes a few seconds beside other tests.
	Patience = 60 * time.Second
	// PollInterval is the time between two checks of a wait.
	PollInterval = 50 * time.Millisecond
)

// Fixture is the namespace of a test. Methods without a name are about the Stack with the name of the namespace.
type Fixture struct {
	*testing.T
	*WithT
	System *localsystem.System
	Name   string
	// Patience bounds every wait of the fixture.
	Patience time.Duration
}

// New returns a fixture whose namespace does not exist yet.
func New(t *testing.T, system *localsystem.System, name string, patience time.Duration) *Fixture {
	t.Helper()
	g := NewWithT(t)
	g.SetDefaultEventuallyTimeout(patience)
	g.SetDefaultEventuallyPollingInterval(PollInterval)
	g.SetDefaultConsistentlyPollingInterval(PollInterval)
	return &Fixture{T: t, WithT: g, System: system, Name: name, Patience: patience}
}

// Succeed fails the test on an error.
func (s *Fixture) Succeed(err error) {
	s.Helper()
	s.Expect(err).NotTo(HaveOccurred())
}

// Key returns the namespace and name of an object in the fixture.
func (s *Fixture) Key(name string) types.NamespacedName {
	return types.NamespacedName{Namespace: s.Name, Name: name}
}

// Meta returns the metadata of an object in the fixture.
func (s *Fixture) Meta(name string) metav1.ObjectMeta {
	return metav1.ObjectMeta{Namespace: s.Name, Name: name}
}

// Enter creates the namespace, the Secret that the Stacks of a system use, which must have a passphrase, and the objects.
func (s *Fixture) Enter(secret map[string]string, objects ...client.Object) {
	s.Helper()
	namespace := &corev1.Namespace{Name: s.Name}
	s.Create(append([]client.Object{namespace, s.Secret(localsystem.PassphraseSecret, secret)}, objects...)...)
}

// Create creates the objects in their order.
func (s *Fixture) Create(objects ...client.Object) {
	s.Helper()
	for _, object := range objects {
		s.Expect(s.System.Client.Create(s.Context(), object)).To(Succeed(), "%T %s", object, object.GetName())
	}
}

// Get reads an object of the fixture.
func (s *Fixture) Get(name string, into client.Object) {
	s.Helper()
	s.Expect(s.System.Client.Get(s.Context(), s.Key(name), into)).To(Succeed(), "%T %s", into, name)
}

// Workspace reads the Workspace of the Stack.
func (s *Fixture) Workspace() *autov1alpha1.Workspace {
	s.Helper()
	workspace := &autov1alpha1.Workspace{}
	s.Get(s.Name, workspace)
	return workspace
}

// Secret returns a Secret of the fixture, for a create or an update.
func (s *Fixture) Secret(name string, content map[string]string) *corev1.Secret {
	return &corev1.Secret{ObjectMeta: s.Meta(name), StringData: content}
}

// Await waits until the function reports true for the Stack, checks the status against the rules of kstatus, and returns the Stack.
func (s *Fixture) Await(is func(*pulumiv1.Stack) bool) *pulumiv1.Stack {
	s.Helper()
	return s.AwaitStack(s.Name, is)
}

// AwaitStack does the same as Await for a Stack with another name.
func (s *Fixture) AwaitStack(name string, is func(*pulumiv1.Stack) bool) *pulumiv1.Stack {
	s.Helper()
	ctx, cancel := context.WithTimeout(s.Context(), s.Patience)
	defer cancel()
	stack, err := statuscheck.Await(ctx, s.System.Client, s.Key(name), is)
	s.Succeed(err)
	return stack
}

// AwaitAbsent waits until an object of the fixture is gone.
func (s *Fixture) AwaitAbsent(name string, object client.Object) {
	s.Helper()
	s.Eventually(func() bool {
		return apierrors.IsNotFound(s.System.Client.Get(s.Context(), s.Key(name), object))
	}).Should(BeTrue(), "%T %s is still there", object, name)
}

// AwaitGone waits until the Stack is gone.
func (s *Fixture) AwaitGone() {
	s.Helper()
	s.AwaitAbsent(s.Name, &pulumiv1.Stack{})
}

// Change patches the Stack.
func (s *Fixture) Change(edits ...func(*pulumiv1.Stack)) {
	s.Helper()
	s.ChangeStack(s.Name, edits...)
}

// ChangeStack does the same as Change for a Stack with another name.
func (s *Fixture) ChangeStack(name string, edits ...func(*pulumiv1.Stack)) {
	s.Helper()
	stack := &pulumiv1.Stack{}
	s.Get(name, stack)
	before := stack.DeepCopy()
	for _, edit := range edits {
		edit(stack)
	}
	s.Expect(s.System.Client.Patch(s.Context(), stack, client.MergeFrom(before))).To(Succeed())
}

// Annotate returns a change that sets an annotation.
func Annotate(name, value string) func(*pulumiv1.Stack) {
	return func(stack *pulumiv1.Stack) { metav1.SetMetaDataAnnotation(&stack.ObjectMeta, name, value) }
}

// Request requests a check of the source and an update, as "flux reconcile" does.
func (s *Fixture) Request() {
	s.Helper()
	s.RequestStack(s.Name)
}

// RequestStack does the same as Request for a Stack with another name.
func (s *Fixture) RequestStack(name string) {
	s.Helper()
	s.ChangeStack(name, Annotate(meta.ReconcileRequestAnnotation, time.Now().Format(time.RFC3339Nano)))
}

// Delete deletes the Stack, and does not wait until it is gone.
func (s *Fixture) Delete() {
	s.Helper()
	s.Expect(s.System.Client.Delete(s.Context(), &pulumiv1.Stack{ObjectMeta: s.Meta(s.Name)})).To(Succeed())
}

// Updates returns the Updates of the namespace.
func (s *Fixture) Updates() []autov1alpha1.Update {
	s.Helper()
	var list autov1alpha1.UpdateList
	s.Expect(s.System.Client.List(s.Context(), &list, client.InNamespace(s.Name))).To(Succeed())
	return list.Items
}

// LastUpdate returns the Update that the Stack's status names.
func (s *Fixture) LastUpdate(stack *pulumiv1.Stack) *autov1alpha1.Update {
	s.Helper()
	update := &autov1alpha1.Update{}
	s.Get(stack.Status.LastUpdate.Name, update)
	return update
}

// FailureOf returns the reason why the Stack's last Update failed.
func (s *Fixture) FailureOf(stack *pulumiv1.Stack) string {
	s.Helper()
	return conditions.GetReason(s.LastUpdate(stack), autov1alpha1.UpdateFailed)
}

// Output returns an output of the Stack, as JSON.
func Output(stack *pulumiv1.Stack, name string) string { return string(stack.Status.Outputs[name].Raw) }

// Showing matches a Stack that is Ready and whose output "x" has the value.
func Showing(value string) func(*pulumiv1.Stack) bool {
	return func(stack *pulumiv1.Stack) bool { return statuscheck.Ready("")(stack) && Output(stack, "x") == value }
}
