package api_test

import (
	"encoding/json"
	"testing"

	. "github.com/onsi/gomega"

	autov1alpha1 "github.com/stack-controller/stack-controller/api/auto/v1alpha1"
	pulumiv1 "github.com/stack-controller/stack-controller/api/pulumi/v1"
)

// A single object that a client cannot decode stops its watch of every object of the kind.
func TestWhatIsAdmittedCanBeDecoded(t *testing.T) {
	pods := []string{
		"{resources: {limits: {cpu: 1e1.5}}}",
		"{resources: {limits: {cpu: 1e99999999999999999999}}}",
		"{resources: {limits: {cpu: 1e-400}}}",
		"{resources: {requests: {cpu: 99999999999999999999E}}}",
		"{podTemplate: {spec: {containers: [{name: a, livenessProbe: {httpGet: {port: 99999999999}}}]}}}",
		"{podTemplate: {spec: {containers: [{name: a, livenessProbe: {httpGet: {port: -99999999999}}}]}}}",
		"{podTemplate: {spec: {containers: [{name: a, ports: [{containerPort: 99999999999}]}]}}}",
		"{podTemplate: {spec: {containers: [{name: a, resources: {limits: {cpu: 1e1.5}}}]}}}",
		"{podTemplate: {spec: {terminationGracePeriodSeconds: 99999999999999999999}}}",
		"{podTemplate: {spec: {volumes: [{name: a, emptyDir: {sizeLimit: 1e1.5}}]}}}",
		"{pulumiLogLevel: -1}",
		"{pulumiLogLevel: 4294967296}",
		"{stacks: [{name: a, config: [{key: b, value: 1e999}]}]}",
	}
	for _, spec := range pods {
		t.Run("Workspace "+spec, func(t *testing.T) {
			expectDecodable(t, workspace, spec, &autov1alpha1.Workspace{})
		})
		t.Run("Stack "+spec, func(t *testing.T) {
			expectDecodable(t, stackV1alpha1, "workspaceTemplate: {spec: "+spec+"}", &pulumiv1.Stack{})
		})
	}
	for _, spec := range []string{
		"{timeout: 99999999999h}", "{ttlAfterCompleted: 99999999999h}", "{ttlAfterCompleted: '1'}", "{ttlAfterCompleted: ''}",
		"{ttlAfterCompleted: .5h}", "{ttlAfterCompleted: 5.h}", "{ttlAfterCompleted: +5h}", "{parallel: 4294967296}",
		"{source: {url: a, digest: 'a:b', size: 9223372036854775808}}",
	} {
		t.Run("Update "+spec, func(t *testing.T) {
			expectDecodable(t, update, spec, &autov1alpha1.Update{})
		})
	}
	for _, spec := range []string{
		"{retryInterval: 99999999999h}", "{resyncFrequency: 99999999999h}", "{resyncFrequencySeconds: 9223372036854775808}",
		"{prerequisites: [{name: a, requirement: {succeededWithinDuration: 99999999999h}}]}",
		"{workspaceTemplate: {metadata: {creationTimestamp: '2020-01-01t00:00:00z'}}}", "{workspaceTemplate: {status: [1]}}",
	} {
		t.Run("Stack "+spec, func(t *testing.T) {
			expectDecodable(t, stackV1, spec, &pulumiv1.Stack{})
		})
	}
}

// expectDecodable offers an object with the specification, and decodes what the API server would store.
func expectDecodable(t *testing.T, kind kind, spec string, into any) {
	g := NewWithT(t)
	object := kind.object(g, "decoded", spec)
	if err := offer(t, object); err != nil {
		t.Logf("refused: %v", err)
		return
	}
	encoded, err := json.Marshal(object)
	g.Expect(err).NotTo(HaveOccurred())
	g.Expect(json.Unmarshal(encoded, into)).To(Succeed())
}
