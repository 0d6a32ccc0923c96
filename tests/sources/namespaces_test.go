package sources_test

import (
	"slices"
	"testing"

	. "github.com/onsi/gomega"

	sourcev1 "github.com/fluxcd/source-controller/api/v1"

	pulumiv1 "github.com/stack-controller/stack-controller/api/pulumi/v1"
	"github.com/stack-controller/stack-controller/tests/stage/scene"
	"github.com/stack-controller/stack-controller/tests/statuscheck"
)

// It restarts the controller, so it does not run beside the other tests, which come after it.
func TestSourceInAnotherNamespaceIsUsedOnlyWhereTheControllerAllowsIt(t *testing.T) {
	p := &play{scene.New(t, system, "tenant", scene.Patience)}
	shared := &play{scene.New(t, system, "shared-sources", scene.Patience)}
	push(shared, "latest", pushed(p.Name, 1))
	source := ociRepository(shared.Name)
	source.ObjectMeta = shared.Meta(shared.Name)
	shared.Enter(passphrase, source)
	stack := system.NewStack(p.Name, p.Name, sourcev1.OCIRepositoryKind)
	stack.Spec.FluxSource.SourceRef.Namespace, stack.Spec.FluxSource.SourceRef.Name = shared.Name, shared.Name
	p.Enter(passphrase, stack)
	refused := p.Await(statuscheck.NotReady(pulumiv1.AccessDeniedReason))
	p.Expect(statuscheck.Message(refused)).To(ContainSubstring("references to another namespace are not allowed"))

	p.Expect(system.StopController()).To(Succeed())
	system.ControlWith(append(slices.Clone(controllerArgs), "--no-cross-namespace-refs=false")...)
	p.Expect(system.StartController(p.Context())).To(Succeed())
	p.Await(scene.Showing("1"))
	// In its own namespace, too, the Stack is one that may be changed: the source is watched where it is.
	push(shared, "latest", pushed(p.Name, 2))
	shared.fetch(source)
	p.Await(scene.Showing("2"))
}
