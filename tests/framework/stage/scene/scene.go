package scene

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
	"github.com/stack-controller/stack-controller/tests/framework/stage"
	"github.com/stack-controller/stack-controller/tests/framework/statuscheck"
)

const (
	// Patience bounds every wait. What a test waits for takes a few seconds beside other tests.
	Patience = 60 * time.Second
	// PollInterval is the time between two checks of a wait.
	PollInterval = 50 * time.Millisecond
)

// Scene is the namespace of a test. Methods without a name are about the Stack with the name of the namespace.
type Scene struct {
	*testing.T
	*WithT
	Stage *stage.Stage
	Name  string
	// Patience bounds every wait of the scene.
	Patience time.Duration
}

// New returns a scene whose namespace does not exist yet.
func New(t *testing.T, system *stage.Stage, name string, patience time.Duration) *Scene {
	t.Helper()
	g := NewWithT(t)
	g.SetDefaultEventuallyTimeout(patience)
	g.SetDefaultEventuallyPollingInterval(PollInterval)
	g.SetDefaultConsistentlyPollingInterval(PollInterval)
	return &Scene{T: t, WithT: g, Stage: system, Name: name, Patience: patience}
}

// Succeed fails the test on an error.
func (s *Scene) Succeed(err error) {
	s.Helper()
	s.Expect(err).NotTo(HaveOccurred())
}

// Key returns the namespace and name of an object in the scene.
func (s *Scene) Key(name string) types.NamespacedName {
	return types.NamespacedName{Namespace: s.Name, Name: name}
}

// Meta returns the metadata of an object in the scene.
func (s *Scene) Meta(name string) metav1.ObjectMeta {
	return metav1.ObjectMeta{Namespace: s.Name, Name: name}
}

// Enter creates the namespace, the Secret that the Stacks of a stage use, which must have a passphrase, and the objects.
func (s *Scene) Enter(secret map[string]string, objects ...client.Object) {
	s.Helper()
	namespace := &corev1.Namespace{Name: s.Name}
	s.Create(append([]client.Object{namespace, s.Secret(stage.PassphraseSecret, secret)}, objects...)...)
}

// Create creates the objects in their order.
func (s *Scene) Create(objects ...client.Object) {
	s.Helper()
	for _, object := range objects {
		s.Expect(s.Stage.Client.Create(s.Context(), object)).To(Succeed(), "%T %s", object, object.GetName())
	}
}

// Get reads an object of the scene.
func (s *Scene) Get(name string, into client.Object) {
	s.Helper()
	s.Expect(s.Stage.Client.Get(s.Context(), s.Key(name), into)).To(Succeed(), "%T %s", into, name)
}

// Workspace reads the Workspace of the Stack.
func (s *Scene) Workspace() *autov1alpha1.Workspace {
	s.Helper()
	workspace := &autov1alpha1.Workspace{}
	s.Get(s.Name, workspace)
	return workspace
}

// Secret returns a Secret of the scene, for a create or an update.
func (s *Scene) Secret(name string, content map[string]string) *corev1.Secret {
	return &corev1.Secret{ObjectMeta: s.Meta(name), StringData: content}
}

// Await waits until the function reports true for the Stack, checks the status against the rules of kstatus, and returns the Stack.
func (s *Scene) Await(is func(*pulumiv1.Stack) bool) *pulumiv1.Stack {
	s.Helper()
	return s.AwaitStack(s.Name, is)
}

// AwaitStack does the same as Await for a Stack with another name.
func (s *Scene) AwaitStack(name string, is func(*pulumiv1.Stack) bool) *pulumiv1.Stack {
	s.Helper()
	ctx, cancel := context.WithTimeout(s.Context(), s.Patience)
	defer cancel()
	stack, err := statuscheck.Await(ctx, s.Stage.Client, s.Key(name), is)
	s.Succeed(err)
	return stack
}

// AwaitAbsent waits until an object of the scene is gone.
func (s *Scene) AwaitAbsent(name string, object client.Object) {
	s.Helper()
	s.Eventually(func() bool {
		return apierrors.IsNotFound(s.Stage.Client.Get(s.Context(), s.Key(name), object))
	}).Should(BeTrue(), "%T %s is still there", object, name)
}

// AwaitGone waits until the Stack is gone.
func (s *Scene) AwaitGone() {
	s.Helper()
	s.AwaitAbsent(s.Name, &pulumiv1.Stack{})
}

// Change patches the Stack.
func (s *Scene) Change(edits ...func(*pulumiv1.Stack)) {
	s.Helper()
	s.ChangeStack(s.Name, edits...)
}

// ChangeStack does the same as Change for a Stack with another name.
func (s *Scene) ChangeStack(name string, edits ...func(*pulumiv1.Stack)) {
	s.Helper()
	stack := &pulumiv1.Stack{}
	s.Get(name, stack)
	before := stack.DeepCopy()
	for _, edit := range edits {
		edit(stack)
	}
	s.Expect(s.Stage.Client.Patch(s.Context(), stack, client.MergeFrom(before))).To(Succeed())
}

// Annotate returns a change that sets an annotation.
func Annotate(name, value string) func(*pulumiv1.Stack) {
	return func(stack *pulumiv1.Stack) { metav1.SetMetaDataAnnotation(&stack.ObjectMeta, name, value) }
}

// Request requests a check of the source and an update, as "flux reconcile" does.
func (s *Scene) Request() {
	s.Helper()
	s.RequestStack(s.Name)
}

// RequestStack does the same as Request for a Stack with another name.
func (s *Scene) RequestStack(name string) {
	s.Helper()
	s.ChangeStack(name, Annotate(meta.ReconcileRequestAnnotation, time.Now().Format(time.RFC3339Nano)))
}

// Delete deletes the Stack, and does not wait until it is gone.
func (s *Scene) Delete() {
	s.Helper()
	s.Expect(s.Stage.Client.Delete(s.Context(), &pulumiv1.Stack{ObjectMeta: s.Meta(s.Name)})).To(Succeed())
}

// Updates returns the Updates of the namespace.
func (s *Scene) Updates() []autov1alpha1.Update {
	s.Helper()
	var list autov1alpha1.UpdateList
	s.Expect(s.Stage.Client.List(s.Context(), &list, client.InNamespace(s.Name))).To(Succeed())
	return list.Items
}

// LastUpdate returns the Update that the Stack's status names.
func (s *Scene) LastUpdate(stack *pulumiv1.Stack) *autov1alpha1.Update {
	s.Helper()
	update := &autov1alpha1.Update{}
	s.Get(stack.Status.LastUpdate.Name, update)
	return update
}

// FailureOf returns the reason why the Stack's last Update failed.
func (s *Scene) FailureOf(stack *pulumiv1.Stack) string {
	s.Helper()
	return conditions.GetReason(s.LastUpdate(stack), autov1alpha1.UpdateFailed)
}

// Output returns an output of the Stack, as JSON.
func Output(stack *pulumiv1.Stack, name string) string { return string(stack.Status.Outputs[name].Raw) }

// Showing matches a Stack that is Ready and whose output "x" has the value.
func Showing(value string) func(*pulumiv1.Stack) bool {
	return func(stack *pulumiv1.Stack) bool { return statuscheck.Ready("")(stack) && Output(stack, "x") == value }
}
