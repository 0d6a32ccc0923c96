package compatibility_test

import (
	"testing"

	. "github.com/onsi/gomega"

	pulumiv1 "github.com/stack-controller/stack-controller/api/pulumi/v1"
	"github.com/stack-controller/stack-controller/tests/suite"
)

// awaitReason waits as scripts do for the reason of a condition of an object, such as workspace/NAME.
func (s *play) awaitReason(object, condition, reason string) {
	s.Helper()
	for _, until := range []string{"create", `jsonpath={.status.conditions[?(@.type=="` + condition + `")].reason}=` + reason} {
		_, err := system.ControlPlane.Kubectl(s.Context(), "wait", object, "-n", s.Name, "--for="+until, "--timeout="+s.Patience.String())
		s.Succeed(err)
	}
}

// TestWorkspaceTellsWhatKeptItsOperationFromItsWork has what the operator finds out when it makes a Workspace ready.
func TestWorkspaceTellsWhatKeptItsOperationFromItsWork(t *testing.T) {
	suite.Long(t, "each field of the former operator, on the whole system")
	t.Parallel()
	for _, test := range []struct{ reason, patch string }{
		{"Unauthenticated", "{spec: {backend: 'carrier-pigeon://loft'}}"},
		{"InstallationFailed", "{spec: {fluxSource: {dir: uninstallable}}}"},
		{"InitializationFailed", "{spec: {useLocalStackOnly: true}}"},
	} {
		t.Run(test.reason, func(t *testing.T) {
			t.Parallel()
			s := newPlay(t, namespaceFor("workspace", test.reason))
			s.applyPatched("plain", test.patch)
			s.awaitReason("workspace/plain", "Ready", test.reason)
			s.awaitReason("workspace/plain", "Stalled", test.reason)
			stack := s.AwaitStack("plain", notReady(pulumiv1.RetryingAfterFailureReason, ""))
			s.Expect(stack.Status.LastUpdate.State).To(Equal(pulumiv1.StackUpdateFailed))
			// The next operation runs all the same, and heals it.
			s.replace("manifests/plain")
			s.awaitReady("plain")
			s.awaitReason("workspace/plain", "Ready", "Succeeded")
		})
	}
}

// TestUpdateByHandThatDescribesNoOperationIsAborted has Updates that the operator's API server admits, too.
func TestUpdateByHandThatDescribesNoOperationIsAborted(t *testing.T) {
	t.Parallel()
	s := newPlay(t, "updates-by-hand")
	s.apply("manifests/plain")
	s.awaitReady("plain")
	for name, spec := range map[string]string{
		"without-type":  "{workspaceName: plain, stackName: dev}",
		"other-type":    "{workspaceName: plain, stackName: dev, type: carrot}",
		"without-stack": "{workspaceName: plain, type: preview}",
	} {
		s.Expect(s.applyAll(s.parse("{apiVersion: auto.pulumi.com/v1alpha1, kind: Update, metadata: {name: " + name + "}, spec: " + spec + "}"))).To(Succeed())
		s.awaitReason("update/"+name, "Failed", "Aborted")
		s.awaitReason("update/"+name, "Complete", "Failed")
		s.awaitReason("update/"+name, "Progressing", "Failed")
	}
	s.Expect(s.applyAll(s.parse("{apiVersion: auto.pulumi.com/v1alpha1, kind: Update, metadata: {name: nowhere}}"))).To(Succeed())
	s.awaitReason("update/nowhere", "Progressing", "WorkspaceNotFound")
	s.settles("plain", isReady)
}
