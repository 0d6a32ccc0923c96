package e2e_test

import (
	"testing"
	"time"

	. "github.com/onsi/gomega"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	sourcev1 "github.com/fluxcd/source-controller/api/v1"

	pulumiv1 "github.com/stack-controller/stack-controller/api/pulumi/v1"
	"github.com/stack-controller/stack-controller/tests/stage"
)

// deleteNamespace does "kubectl delete namespace": everything in it is deleted, in no order, and nothing can be created in it.
func deleteNamespace(t *testing.T, g *WithT, name string) {
	t.Helper()
	g.Expect(system.Client.Delete(t.Context(), &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: name}})).To(Succeed())
}

// awaitNamespaceGone waits until the namespace, and thus all that was in it, is gone.
func awaitNamespaceGone(t *testing.T, g *WithT, name string) {
	t.Helper()
	g.Eventually(func() bool {
		return apierrors.IsNotFound(system.Client.Get(t.Context(), client.ObjectKey{Name: name}, &corev1.Namespace{}))
	}).WithTimeout(patience).WithPolling(pollInterval).Should(BeTrue())
}

// stuck is a Stack whose namespace goes before it was destroyed.
func stuck(t *testing.T, g *WithT, name string) *pulumiv1.Stack {
	t.Helper()
	stack := await(t.Context(), g, name, says(pulumiv1.NamespaceTerminatingReason))
	g.Expect(readyMessage(stack)).To(And(ContainSubstring("the namespace is being deleted"), ContainSubstring(`stack "dev"`)))
	g.Expect(stack.Finalizers).To(ContainElement(pulumiv1.Finalizer))
	return stack
}

func TestStackWhoseNamespaceGoesIsKeptAndCanBeDestroyedFromAnother(t *testing.T) {
	t.Parallel()
	g := NewWithT(t)
	const name, rescue = "deleted-namespace", "deleted-namespace-rescue"
	_, artifact := deployed(t, g, name, destroyed)
	deleteNamespace(t, g, name)
	stack := stuck(t, g, name)
	for _, object := range []client.Object{
		&corev1.Secret{ObjectMeta: objectMeta(name, stage.PassphraseSecret)},
		&sourcev1.ExternalArtifact{ObjectMeta: objectMeta(name, name)},
	} {
		g.Eventually(func() bool {
			return apierrors.IsNotFound(system.Client.Get(t.Context(), client.ObjectKeyFromObject(object), object))
		}).WithTimeout(patience).WithPolling(pollInterval).Should(BeTrue(), "%T", object)
	}
	// It does not try again and again.
	g.Expect(system.Client.Get(t.Context(), keyOf(name), stack)).To(Succeed())
	version := stack.ResourceVersion
	g.Consistently(func(g Gomega) {
		g.Expect(system.Client.Get(t.Context(), keyOf(name), stack)).To(Succeed())
		g.Expect(stack.ResourceVersion).To(Equal(version))
	}).WithTimeout(3 * time.Second).Should(Succeed())

	// The same Stack in another namespace takes over what is deployed, and destroys it.
	copied := artifactStack(rescue)
	copied.Spec = *stack.Spec.DeepCopy()
	copied.Spec.FluxSource.SourceRef.Name = rescue
	startInNamespace(t, g, rescue, &sourcev1.ExternalArtifact{ObjectMeta: objectMeta(rescue, rescue)}, copied)
	g.Expect(publish(t.Context(), rescue, artifact)).To(Succeed())
	await(t.Context(), g, rescue, ready(artifact.Digest))
	g.Expect(system.Client.Delete(t.Context(), copied)).To(Succeed())
	awaitGone(t.Context(), g, rescue)
	g.Expect(resources(g, name)).To(BeZero())

	change(t.Context(), g, name, orphan)
	awaitNamespaceGone(t, g, name)
}

func TestStackWhoseNamespaceGoesWithNothingToDestroyGoesWithIt(t *testing.T) {
	t.Parallel()
	g := NewWithT(t)
	const name = "deleted-namespace-kept"
	deployed(t, g, name)
	deleteNamespace(t, g, name)
	awaitNamespaceGone(t, g, name)
	g.Expect(resources(g, name)).To(BeNumerically(">", 0))
}

func TestStackWhoseNamespaceGoesBeforeItSucceededSaysWhatToDo(t *testing.T) {
	t.Parallel()
	g := NewWithT(t)
	const name = "deleted-namespace-failed"
	failedOnce(t, g, name)
	change(t.Context(), g, name, retriedLate)
	deleteNamespace(t, g, name)
	await(t.Context(), g, name, func(s *pulumiv1.Stack) bool {
		return says(pulumiv1.NamespaceTerminatingReason)(s) || says(pulumiv1.SourceNotFoundReason)(s)
	})
	change(t.Context(), g, name, orphan)
	awaitNamespaceGone(t, g, name)
}

// TestDestroyThatRunsWhenItsNamespaceGoesIsEndedAndTold runs alone: it holds pulumi.
func TestDestroyThatRunsWhenItsNamespaceGoesIsEndedAndTold(t *testing.T) {
	g := NewWithT(t)
	const name = "deleted-namespace-running"
	stack, _ := deployed(t, g, name, destroyed)
	release := pulumi.hold(g)
	defer release()
	g.Expect(system.Client.Delete(t.Context(), stack)).To(Succeed())
	awaitRuns(g, name, "destroy", 1)
	deleteNamespace(t, g, name)
	stuck(t, g, name)
	release()
	g.Expect(resources(g, name)).To(BeNumerically(">", 0))
	change(t.Context(), g, name, orphan)
	awaitNamespaceGone(t, g, name)
}

// TestUpdateThatRunsWhenItsNamespaceGoesIsEnded runs alone: it holds pulumi.
func TestUpdateThatRunsWhenItsNamespaceGoesIsEnded(t *testing.T) {
	g := NewWithT(t)
	const name = "deleted-namespace-update"
	deployed(t, g, name)
	release := pulumi.hold(g)
	defer release()
	before := runsOf(g, name, "up")
	g.Expect(publish(t.Context(), name, artifacts.put("v2", packed(yamlProgram(name, "outputs:", "  x: 2"))))).To(Succeed())
	awaitRuns(g, name, "up", before+1)
	deleteNamespace(t, g, name)
	awaitNamespaceGone(t, g, name)
}
