package compatibility_test

import (
	"testing"
	"time"

	. "github.com/onsi/gomega"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	pulumiv1 "github.com/stack-controller/stack-controller/api/pulumi/v1"
)

func TestPrerequisiteThatSucceededTooLongAgoIsRunFirst(t *testing.T) {
	t.Parallel()
	s := newScene(t, "use-succeeded-within")
	s.apply("manifests/plain")
	base := s.awaitReady("plain")
	first := base.Status.LastUpdate.Name
	// It succeeded an hour ago.
	before := base.DeepCopy()
	base.Status.LastUpdate.LastResyncTime = metav1.NewTime(time.Now().Add(-time.Hour))
	s.g.Expect(system.Client.Status().Patch(t.Context(), base, client.MergeFrom(before))).To(Succeed())
	patch := "{metadata: {name: dependent}, spec: {stack: dependent, prerequisites: [{name: plain, requirement: {succeededWithinDuration: 10m}}]}}"
	s.g.Expect(s.applyAll(s.manifest("manifests/plain", patch))).To(Succeed())
	dependent := s.awaitReady("dependent")
	base = s.awaitReady("plain")
	s.g.Expect(base.Annotations).To(HaveKeyWithValue(pulumiv1.ReconcileRequestAnnotation, "after-"+first))
	s.g.Expect(base.Status.LastUpdate.Name).NotTo(Equal(first))
	s.g.Expect(dependent.Status.LastUpdate.LastResyncTime.Time).To(BeTemporally(">=", base.Status.LastUpdate.LastResyncTime.Time))
}

func TestPreviewThatFailsSaysSoAndHeals(t *testing.T) {
	t.Parallel()
	s := newScene(t, "misuse-preview")
	s.g.Expect(s.applyAll(s.manifest("manifests/plain", "{spec: {preview: true, fluxSource: {dir: broken}}}"))).To(Succeed())
	s.await("plain", notReady(pulumiv1.PreviewFailedReason, "/no/such/file"))
	s.patch("plain", "{spec: {fluxSource: {dir: echo}}}")
	s.awaitReady("plain")
}

func TestRetryIntervalTakesThePlaceOfTheBackoff(t *testing.T) {
	t.Parallel()
	s := newScene(t, "use-retryinterval")
	s.g.Expect(s.applyAll(s.manifest("manifests/plain", "{spec: {retryInterval: 1s, fluxSource: {dir: broken}}}"))).To(Succeed())
	first := s.await("plain", func(stack *pulumiv1.Stack) bool {
		return stack.Status.LastUpdate != nil && stack.Status.LastUpdate.Failures >= 1
	})
	third := s.await("plain", func(stack *pulumiv1.Stack) bool { return stack.Status.LastUpdate.Failures >= 3 })
	// The backoff alone would wait for 10 s and then for 30 s.
	s.g.Expect(third.Status.LastUpdate.LastResyncTime.Sub(first.Status.LastUpdate.LastResyncTime.Time)).To(BeNumerically("<", 30*time.Second))
}

func TestStackInANamespaceThatGoesSaysWhatToDo(t *testing.T) {
	t.Parallel()
	s := newScene(t, "misuse-namespace")
	s.g.Expect(s.applyAll(s.manifest("manifests/files", "{spec: {workspaceReclaimPolicy: Delete}}"))).To(Succeed())
	s.awaitReady("files")
	s.awaitNoWorkspace("files")
	// What is made when the Stack is deleted is a Workspace, which a namespace that goes does not admit.
	s.g.Expect(system.Client.Delete(t.Context(), &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: s.namespace}})).To(Succeed())
	s.await("files", notReady(pulumiv1.NamespaceTerminatingReason, pulumiv1.OrphanAnnotation))
	s.patch("files", "{metadata: {annotations: {"+pulumiv1.OrphanAnnotation+": 'true'}}}")
	s.awaitGone("files")
	wrote("first", "second")(s, nil)
}
