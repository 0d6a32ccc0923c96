package sources_test

import (
	"testing"

	. "github.com/onsi/gomega"

	sourcev1 "github.com/fluxcd/source-controller/api/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	pulumiv1 "github.com/stack-controller/stack-controller/api/pulumi/v1"
	"github.com/stack-controller/stack-controller/tests/statuscheck"
)

// change patches the Stack of the name.
func change(t *testing.T, name string, edit func(*pulumiv1.Stack)) {
	t.Helper()
	stack := &pulumiv1.Stack{}
	succeed(t, system.Client.Get(t.Context(), keyOf(name), stack))
	before := stack.DeepCopy()
	edit(stack)
	succeed(t, system.Client.Patch(t.Context(), stack, client.MergeFrom(before)))
}

// It restarts the controller, so it does not run beside the other tests, which come after it.
func TestSourceInAnotherNamespaceIsUsedOnlyWhereTheControllerAllowsIt(t *testing.T) {
	g := NewWithT(t)
	const name, shared = "tenant", "shared-sources"
	push(t, shared, "latest", pushed(name, "1"))
	namespace(t, shared)
	create(t, &sourcev1.OCIRepository{
		ObjectMeta: named(shared, shared),
		Spec: sourcev1.OCIRepositorySpec{
			URL: registry.URL(shared), Insecure: true, Interval: hourly, Reference: &sourcev1.OCIRepositoryRef{Tag: "latest"},
		},
	})
	namespace(t, name)
	stack := stackOf(name, sourcev1.OCIRepositoryKind)
	stack.Spec.FluxSource.SourceRef.Namespace, stack.Spec.FluxSource.SourceRef.Name = shared, shared
	create(t, stack)
	stack = await(t, name, statuscheck.NotReady(pulumiv1.AccessDeniedReason))
	g.Expect(statuscheck.Message(stack)).To(ContainSubstring("references to another namespace are not allowed"))

	succeed(t, system.StopController())
	system.ControlWith("--concurrent=8", "--no-cross-namespace-refs=false")
	succeed(t, system.StartController(within(t)))
	await(t, name, showing("1"))
	// In its own namespace, too, the Stack is one that may be changed: the source is watched where it is.
	push(t, shared, "latest", pushed(name, "2"))
	fetch(t, &sourcev1.OCIRepository{ObjectMeta: named(shared, shared)})
	await(t, name, showing("2"))
}
