package compatibility_test

import (
	"testing"
	"time"

	. "github.com/onsi/gomega"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	autov1alpha1 "github.com/stack-controller/stack-controller/api/auto/v1alpha1"
	pulumiv1 "github.com/stack-controller/stack-controller/api/pulumi/v1"
	"github.com/stack-controller/stack-controller/tests/suite"
)

func TestPrerequisiteThatSucceededTooLongAgoIsRunFirst(t *testing.T) {
	suite.Long(t, "each field of the former operator, on the whole system")
	t.Parallel()
	s := newPlay(t, "use-succeeded-within")
	s.apply("manifests/plain")
	base := s.awaitReady("plain")
	first := base.Status.LastUpdate.Name
	// It succeeded an hour ago.
	before := base.DeepCopy()
	base.Status.LastUpdate.LastResyncTime = metav1.NewTime(time.Now().Add(-time.Hour))
	s.Expect(system.Client.Status().Patch(t.Context(), base, client.MergeFrom(before))).To(Succeed())
	patch := "{metadata: {name: dependent}, spec: {stack: dependent, prerequisites: [{name: plain, requirement: {succeededWithinDuration: 10m}}]}}"
	s.applyPatched("plain", patch)
	dependent := s.awaitReady("dependent")
	base = s.awaitReady("plain")
	s.Expect(base.Annotations).To(HaveKeyWithValue(pulumiv1.ReconcileRequestAnnotation, "after-"+first))
	s.Expect(base.Status.LastUpdate.Name).NotTo(Equal(first))
	s.Expect(dependent.Status.LastUpdate.LastResyncTime.Time).To(BeTemporally(">=", base.Status.LastUpdate.LastResyncTime.Time))
}

func TestPreviewThatFailsSaysSoAndHeals(t *testing.T) {
	suite.Long(t, "each field of the former operator, on the whole system")
	t.Parallel()
	s := newPlay(t, "misuse-preview")
	s.applyPatched("plain", "{spec: {preview: true, fluxSource: {dir: broken}}}")
	s.AwaitStack("plain", notReady(pulumiv1.PreviewFailedReason, "/no/such/file"))
	s.patch("plain", "{spec: {fluxSource: {dir: echo}}}")
	s.awaitReady("plain")
}

func TestRetryIntervalTakesThePlaceOfTheBackoff(t *testing.T) {
	suite.Long(t, "each field of the former operator, on the whole system")
	t.Parallel()
	s := newPlay(t, "use-retryinterval")
	s.applyPatched("plain", "{spec: {retryInterval: 1s, fluxSource: {dir: broken}}}")
	first := s.AwaitStack("plain", func(stack *pulumiv1.Stack) bool {
		return stack.Status.LastUpdate != nil && stack.Status.LastUpdate.Failures >= 1
	})
	third := s.AwaitStack("plain", func(stack *pulumiv1.Stack) bool { return stack.Status.LastUpdate.Failures >= 3 })
	// The backoff alone would wait for 10 s and then for 30 s.
	s.Expect(third.Status.LastUpdate.LastResyncTime.Sub(first.Status.LastUpdate.LastResyncTime.Time)).To(BeNumerically("<", 30*time.Second))
}

func TestStackInANamespaceThatGoesSaysWhatToDo(t *testing.T) {
	suite.Long(t, "each field of the former operator, on the whole system")
	t.Parallel()
	s := newPlay(t, "misuse-namespace")
	s.applyPatched("files", "{spec: {workspaceReclaimPolicy: Delete}}")
	s.awaitReady("files")
	s.AwaitAbsent("files", &autov1alpha1.Workspace{})
	// What is made when the Stack is deleted is a Workspace, which a namespace that goes does not admit.
	s.Expect(system.Client.Delete(t.Context(), &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: s.Name}})).To(Succeed())
	s.AwaitStack("files", notReady(pulumiv1.NamespaceTerminatingReason, pulumiv1.OrphanAnnotation))
	s.patch("files", "{metadata: {annotations: {"+pulumiv1.OrphanAnnotation+": 'true'}}}")
	s.AwaitAbsent("files", &pulumiv1.Stack{})
	wrote("first", "second")(s, nil)
}
