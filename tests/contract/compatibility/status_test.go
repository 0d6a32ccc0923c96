package compatibility_test

import (
	"fmt"
	"strings"
	"testing"
	"time"

	. "github.com/onsi/gomega"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/yaml"

	autov1alpha1 "github.com/stack-controller/stack-controller/api/auto/v1alpha1"
	pulumiv1 "github.com/stack-controller/stack-controller/api/pulumi/v1"
	"github.com/stack-controller/stack-controller/tests/framework/suite"
)

// shown is a field of the status and its value, as kubectl's JSONPath prints it. %s stands for any text.
type shown struct{ path, value string }

func TestStatusFieldsShowWhatWasDone(t *testing.T) {
	suite.Long(t, "each field of the former operator, on the whole system")
	t.Parallel()
	s := newFixture(t, "use-status")
	s.applyPatched("configuration", "{metadata: {annotations: {pulumi.com/reconciliation-request: one}}}")
	stack := s.awaitReady("configuration")
	for _, field := range []shown{
		{"observedGeneration", "1"},
		{"observedReconcileRequest", "one"},
		{"outputs.text", "hello"},
		{"outputs.count", "3"},
		{"projectInfo.name", "echo"},
		{"projectInfo.runtime", "yaml"},
		{"currentUpdate", ""},
		{"lastUpdate.generation", "1"},
		{"lastUpdate.reconcileRequest", "one"},
		{"lastUpdate.type", "up"},
		{"lastUpdate.state", "succeeded"},
		{"lastUpdate.message", ""},
		{"lastUpdate.failures", "0"},
		{"conditions[?(@.type=='Ready')].status", "True"},
		{"conditions[?(@.type=='Ready')].reason", "ProcessingCompleted"},
		{"conditions[?(@.type=='Reconciling')].status", ""},
		{"conditions[?(@.type=='Stalled')].status", ""},
	} {
		s.Expect(s.statusField("configuration", field.path)).To(Equal(field.value), field.path)
	}
	last := stack.Status.LastUpdate
	s.Expect(last.LastSuccessfulCommit).To(HavePrefix("sha256:"))
	s.Expect(last.LastAttemptedCommit).To(Equal(last.LastSuccessfulCommit))
	s.Expect(last.LastResyncTime.IsZero()).To(BeFalse())
	s.Expect(s.LastUpdate(stack).Name).To(Equal(last.Name))
	s.Expect(s.LastUpdate(stack).Status.Permalink).To(Equal(last.Permalink))
}

// statusField returns a field of the Stack's status as a user's script would print it.
func (s *fixture) statusField(name, path string) string {
	output, err := system.ControlPlane.Kubectl(s.Context(), "get", "stack", name, "-n", s.Name, "-o", "jsonpath={.status."+path+"}")
	s.Succeed(err)
	return output
}

func TestStatusFieldsShowWhatWentWrong(t *testing.T) {
	suite.Long(t, "each field of the former operator, on the whole system")
	t.Parallel()
	s := newFixture(t, "use-status-failed")
	s.apply("manifests/plain")
	good := s.awaitReady("plain").Status.LastUpdate.LastSuccessfulCommit
	s.patch("plain", "{spec: {fluxSource: {dir: broken}}}")
	stack := s.AwaitStack("plain", notReady(pulumiv1.RetryingAfterFailureReason, "/no/such/file"))
	last := stack.Status.LastUpdate
	s.Expect(last.State).To(Equal(pulumiv1.StackUpdateFailed))
	s.Expect(last.Message).To(ContainSubstring("/no/such/file"))
	s.Expect(last.Failures).To(BeEquivalentTo(1))
	s.Expect(last.LastSuccessfulCommit).To(Equal(good), "what was deployed is still known")
	s.Expect(s.LastUpdate(stack).HasFailed()).To(BeTrue())
	s.Expect(stack.Status.Outputs).NotTo(BeEmpty(), "the outputs of the last success stay")
}

func TestKubectlWaitsForAStackAsScriptsDo(t *testing.T) {
	t.Parallel()
	s := newFixture(t, "use-wait")
	s.apply("manifests/plain")
	_, err := system.ControlPlane.Kubectl(t.Context(), "wait", "stack/plain", "-n", s.Name, "--for=condition=Ready", "--timeout=60s")
	s.Succeed(err)
	_, err = system.ControlPlane.Kubectl(t.Context(), "wait", "stack/plain", "-n", s.Name, "--for=jsonpath={.status.lastUpdate.state}=succeeded", "--timeout=5s")
	s.Succeed(err)
	table, err := system.ControlPlane.Kubectl(t.Context(), "get", "stacks", "-n", s.Name)
	s.Succeed(err)
	s.Expect(strings.Fields(strings.Split(table, "\n")[1])).To(ContainElements("plain", "succeeded", "True"))
}

// patchStatus changes the status as kubectl edit --subresource=status does.
func (s *fixture) patchStatus(name, change string) {
	content, err := yaml.YAMLToJSON([]byte("{status: " + change + "}"))
	s.Succeed(err)
	stack := &pulumiv1.Stack{Namespace: s.Name, Name: name}
	s.Expect(system.Client.Status().Patch(s.Context(), stack, client.RawPatch(types.MergePatchType, content))).To(Succeed())
}

// TestStatusThatSomebodyEditedIsPutRight makes changes that an edit, a restored backup or a crashed controller may leave in a status.
func TestStatusThatSomebodyEditedIsPutRight(t *testing.T) {
	suite.Long(t, "each field of the former operator, on the whole system")
	t.Parallel()
	for _, test := range []struct {
		field, change string
	}{
		{"conditions", "{conditions: null}"},
		{"observedGeneration", "{observedGeneration: 0}"},
		{"observedReconcileRequest", "{observedReconcileRequest: never}"},
		{"outputs", "{outputs: {text: wrong}}"},
		{"projectInfo", "{projectInfo: null}"},
		{"currentUpdate", "{currentUpdate: {name: nobody, generation: 1, commit: x}}"},
		{"lastUpdate", "{lastUpdate: null}"},
		{"lastUpdate.name", "{lastUpdate: {name: nobody}}"},
		{"everything", "null"},
	} {
		t.Run(test.field, func(t *testing.T) {
			t.Parallel()
			// The controller is not responsible for the status that the edit leaves, so this test does not check every status.
			s := newFixtureWithoutChecks(t, namespaceFor("edited", test.field))
			s.apply("manifests/plain")
			before := s.awaitReady("plain")
			s.patchStatus("plain", test.change)
			// The controller does not reconcile the Stack until there is a reason to. Here a user requests an update.
			s.patch("plain", "{metadata: {annotations: {pulumi.com/reconciliation-request: now}}}")
			after := s.AwaitStack("plain", func(stack *pulumiv1.Stack) bool {
				return isReady(stack) && stack.Status.ObservedReconcileRequest == "now"
			})
			s.Expect(after.Status.Outputs).To(Equal(before.Status.Outputs))
			s.Expect(after.Status.ProjectInfo).To(Equal(before.Status.ProjectInfo))
			s.Expect(after.Status.LastUpdate.LastSuccessfulCommit).To(Equal(before.Status.LastUpdate.LastSuccessfulCommit))
			s.Expect(len(s.Updates())).To(BeNumerically("<=", 3), "no more updates than an edit can ask for")
		})
	}
}

// TestStatusOfAnotherTypeIsRefused checks which values the API server does not admit into a status.
func TestStatusOfAnotherTypeIsRefused(t *testing.T) {
	t.Parallel()
	s := newFixture(t, "misuse-status-types")
	s.applyPatched("plain", "{spec: {suspend: true}}")
	for _, field := range fieldsOf(t, "pulumi.com_stacks.yaml", "status") {
		wrong, typed := wrongValues[field.schema.Type]
		if !typed || strings.Contains(field.path, "[]") {
			continue
		}
		content, err := yaml.Marshal(nested(strings.Split(field.path, "."), wrong))
		s.Succeed(err)
		content, err = yaml.YAMLToJSON(content)
		s.Succeed(err)
		stack := &pulumiv1.Stack{Namespace: s.Name, Name: "plain"}
		err = system.Client.Status().Patch(t.Context(), stack, client.RawPatch(types.MergePatchType, content), client.DryRunAll)
		s.Expect(err).To(MatchError(ContainSubstring(strings.NewReplacer(".*", ".key").Replace(field.path))), fmt.Sprint(field.path))
	}
}

// TestEveryUpdateIsNamedByItsStack follows references and labels from a Stack to its objects, as scripts and dashboards do.
func TestEveryUpdateIsNamedByItsStack(t *testing.T) {
	suite.Long(t, "each field of the former operator, on the whole system")
	t.Parallel()
	s := newFixture(t, "use-labels")
	s.apply("manifests/plain")
	stack := s.awaitReady("plain")
	update, workspace := s.LastUpdate(stack), &autov1alpha1.Workspace{}
	s.Get("plain", workspace)
	for _, labels := range []map[string]string{update.Labels, workspace.Labels} {
		s.Expect(labels).To(HaveKeyWithValue("pulumi.com/component", "stack"))
		s.Expect(labels).To(HaveKeyWithValue("pulumi.com/stack-name", "plain"))
	}
	s.Expect(update.Spec.WorkspaceName).To(Equal("plain"))
	s.Expect(update.OwnerReferences).To(HaveLen(2))
	s.Expect(stack.Finalizers).To(ContainElement("finalizer.stack.pulumi.com"))
}

func TestPrerequisiteThatSucceededTooLongAgoIsRunFirst(t *testing.T) {
	suite.Long(t, "each field of the former operator, on the whole system")
	t.Parallel()
	s := newFixture(t, "use-succeeded-within")
	s.apply("manifests/plain")
	base := s.awaitReady("plain")
	first := base.Status.LastUpdate.Name
	// Pretend that it succeeded an hour ago.
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

func TestPreviewThatFailsSaysSoAndRecovers(t *testing.T) {
	suite.Long(t, "each field of the former operator, on the whole system")
	t.Parallel()
	s := newFixture(t, "misuse-preview")
	s.applyPatched("plain", "{spec: {preview: true, fluxSource: {dir: broken}}}")
	s.AwaitStack("plain", notReady(pulumiv1.PreviewFailedReason, "/no/such/file"))
	s.patch("plain", "{spec: {fluxSource: {dir: echo}}}")
	s.awaitReady("plain")
}

func TestRetryIntervalTakesThePlaceOfTheBackoff(t *testing.T) {
	suite.Long(t, "each field of the former operator, on the whole system")
	t.Parallel()
	s := newFixture(t, "use-retryinterval")
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
	s := newFixture(t, "misuse-namespace")
	s.applyPatched("files", "{spec: {workspaceReclaimPolicy: Delete}}")
	s.awaitReady("files")
	s.AwaitAbsent("files", &autov1alpha1.Workspace{})
	// The deletion of the Stack needs a new Workspace, which a terminating namespace does not admit.
	s.Expect(system.Client.Delete(t.Context(), &corev1.Namespace{Name: s.Name})).To(Succeed())
	s.AwaitStack("files", notReady(pulumiv1.NamespaceTerminatingReason, pulumiv1.OrphanAnnotation))
	s.patch("files", "{metadata: {annotations: {"+pulumiv1.OrphanAnnotation+": 'true'}}}")
	s.AwaitAbsent("files", &pulumiv1.Stack{})
	wrote("first", "second")(s, nil)
}
