package stack

import (
	"encoding/json"
	"fmt"
	"strings"
	"testing"
	"time"

	. "github.com/onsi/gomega"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/fluxcd/pkg/runtime/conditions"

	autov1alpha1 "github.com/stack-controller/stack-controller/api/auto/v1alpha1"
	pulumiv1 "github.com/stack-controller/stack-controller/api/pulumi/v1"
)

// ended is an Update of the up-to-date Stack that failed for the reason, or succeeded without one.
func ended(reason string) *autov1alpha1.Update {
	update := &autov1alpha1.Update{
		Name:   "app-2",
		Spec:   autov1alpha1.UpdateSpec{Type: autov1alpha1.UpdateTypeUp},
		Status: autov1alpha1.UpdateStatus{Message: "why", EndTime: &metav1.Time{Time: now}},
	}
	update.Status.Conditions = []metav1.Condition{{Type: autov1alpha1.UpdateComplete, Status: metav1.ConditionTrue}}
	if reason != "" {
		update.Status.Conditions = append(update.Status.Conditions, metav1.Condition{Type: autov1alpha1.UpdateFailed, Status: metav1.ConditionTrue, Reason: reason})
	}
	return update
}

func TestResultIsRecordedOnceAndTheSameTwice(t *testing.T) {
	for _, test := range []struct {
		name, reason string
		earlier      int64
		failures     int64
		interrupted  int64
		history      string
		succeeded    bool
	}{
		{name: "success clears the failures", earlier: 2, failures: 0, succeeded: true, history: "succeeded"},
		{name: "failure counts", reason: autov1alpha1.UpdateFailedReason, earlier: 2, failures: 3, history: "failed"},
		{name: "interruption is no failure", reason: autov1alpha1.InterruptedReason, earlier: 2, failures: 2, interrupted: 3, history: "interrupted"},
		{name: "resources that take long are none, and all else succeeded", reason: autov1alpha1.AwaitingResourcesReason, earlier: 2, failures: 0, history: "awaiting"},
	} {
		t.Run(test.name, func(t *testing.T) {
			g := NewWithT(t)
			o := failed(test.earlier, 0)
			o.stack.Status.LastUpdate.Interruptions = 2
			o.stack.Status.CurrentUpdate = &pulumiv1.CurrentStackUpdate{Name: "app-2", Generation: 2, Commit: "sha256:b", Revision: "main@sha1:b"}
			update := ended(test.reason)
			again := o.stack.DeepCopy()
			recordResult(o.stack, update, nil)
			last := o.stack.Status.LastUpdate
			g.Expect(last.Failures).To(Equal(test.failures))
			g.Expect(last.Interruptions).To(Equal(test.interrupted))
			g.Expect(o.stack.Status.History.Latest().LastReconciledStatus).To(Equal(test.history))
			g.Expect(last.LastAttemptedCommit).To(Equal("sha256:b"))
			g.Expect(last.LastSuccessfulCommit == "sha256:b").To(Equal(test.succeeded))
			g.Expect(o.stack.Status.CurrentUpdate).To(BeNil())
			// An old cache may make the controller record the same result twice.
			recordResult(again, update, nil)
			g.Expect(again.Status).To(Equal(o.stack.Status))
		})
	}
}

func TestDestroyLeavesNothingToDestroy(t *testing.T) {
	g := NewWithT(t)
	o := deleting()
	o.stack.Status.CurrentUpdate = &pulumiv1.CurrentStackUpdate{Name: "app-2"}
	update := ended("")
	update.Spec.Type = autov1alpha1.UpdateTypeDestroy
	recordResult(o.stack, update, nil)
	g.Expect(o.stack.Status.Deployed).To(BeFalse())
	g.Expect(nothingToDestroy(o.stack)).To(Equal("the resources were destroyed"))
}

func TestStackThatWasDeployedMustExist(t *testing.T) {
	for _, test := range []struct {
		name, spec, deployed, annotation string
		must                             bool
	}{
		{name: "nothing was deployed", spec: "dev"},
		{name: "it was deployed", spec: "dev", deployed: "dev", must: true},
		{name: "another one was deployed", spec: "prod", deployed: "dev"},
		{name: "somebody allows to create it", spec: "dev", deployed: "dev", annotation: "true"},
		{name: "nobody allows to create it", spec: "dev", deployed: "dev", annotation: "false", must: true},
	} {
		t.Run(test.name, func(t *testing.T) {
			stack := &pulumiv1.Stack{}
			stack.Spec.Stack, stack.Status.DeployedStack = test.spec, test.deployed
			stack.Annotations = map[string]string{pulumiv1.CreateMissingStackAnnotation: test.annotation}
			NewWithT(t).Expect(mustExist(stack)).To(Equal(test.must))
		})
	}
}

func TestMissingStackIsTriedAgainAtOnceWhenSomebodyAllowsToCreateIt(t *testing.T) {
	g := NewWithT(t)
	o := failed(1, time.Second)
	o.stack.Spec.Stack, o.stack.Status.DeployedStack = "dev", "dev"
	o.stack.Status.LastUpdate.Reason = autov1alpha1.StackLostReason
	d := decide(*o)
	g.Expect(d.action).To(Equal(actionRetry))
	g.Expect(d.reason).To(Equal(pulumiv1.StackLostReason))
	o.stack.Annotations = map[string]string{pulumiv1.CreateMissingStackAnnotation: "true"}
	g.Expect(decide(*o).action).To(Equal(actionUpdate))
	o.stack.Status.LastUpdate.Reason = autov1alpha1.StackNotFoundReason
	g.Expect(decide(*o).action).To(Equal(actionRetry), "the annotation has nothing to do with other failures")
}

func TestDeployedStackIsRememberedUntilItIsDestroyed(t *testing.T) {
	for _, test := range []struct {
		name    string
		kind    autov1alpha1.UpdateType
		fails   bool
		changes map[string]int64
		before  string
		after   string
	}{
		{name: "up", kind: autov1alpha1.UpdateTypeUp, after: "dev"},
		{name: "up that failed at first", kind: autov1alpha1.UpdateTypeUp, fails: true},
		{name: "up that failed in the middle", kind: autov1alpha1.UpdateTypeUp, fails: true, changes: map[string]int64{"create": 1}, after: "dev"},
		{name: "refresh", kind: autov1alpha1.UpdateTypeRefresh, after: "dev"},
		{name: "preview", kind: autov1alpha1.UpdateTypePreview, changes: map[string]int64{"create": 1}},
		{name: "preview of a deployed stack", kind: autov1alpha1.UpdateTypePreview, before: "dev", after: "dev"},
		{name: "destroy", kind: autov1alpha1.UpdateTypeDestroy, before: "dev"},
		{name: "destroy that failed", kind: autov1alpha1.UpdateTypeDestroy, fails: true, changes: map[string]int64{"delete": 1}, before: "dev", after: "dev"},
	} {
		t.Run(test.name, func(t *testing.T) {
			stack, update := &pulumiv1.Stack{}, &autov1alpha1.Update{}
			stack.Status.DeployedStack = test.before
			update.Spec.Type, update.Spec.StackName, update.Status.ResourceChanges = test.kind, "dev", test.changes
			if test.fails {
				conditions.MarkTrue(update, autov1alpha1.UpdateFailed, autov1alpha1.UpdateFailedReason, "why")
				conditions.MarkTrue(update, autov1alpha1.UpdateComplete, autov1alpha1.UpdateEndedFailedReason, "why")
			}
			recordDeployedStack(stack, update)
			NewWithT(t).Expect(stack.Status.DeployedStack).To(Equal(test.after))
		})
	}
}

// outputsOf is the Secret with the outputs of an Update.
func outputsOf(data map[string]string, annotations map[string]string) *corev1.Secret {
	secret := &corev1.Secret{Name: "app-1-stack-outputs", Annotations: annotations, Data: map[string][]byte{}}
	for key, value := range data {
		secret.Data[key] = []byte(value)
	}
	return secret
}

func TestOutputsAreShownUnderTheirNamesAndMasked(t *testing.T) {
	g := NewWithT(t)
	outputs := shownOutputs(outputsOf(
		map[string]string{"url": `"http://x"`, "my_token": `"canary"`, "a_b": `12345678901234567`, "a_b-0123456789abcdef": `{"x":[1.0]}`, "_": `1`, "broken": `canary`, "role": `"arn:canary:app"`},
		map[string]string{"pulumi.com/secrets": `["my_token"]`, "pulumi.com/output-names": `{"my_token":"my token","a_b-0123456789abcdef":"a/b","_":""}`,
			"pulumi.com/shown-outputs": `{"role":"arn:[secret]:app","gone":1}`},
	))
	shown := map[string]string{}
	for name, value := range outputs {
		shown[name] = string(value.Raw)
	}
	g.Expect(shown).To(Equal(map[string]string{
		"url": `"http://x"`, "my token": `"[secret]"`, "a_b": `12345678901234567`, "a/b": `{"x":[1.0]}`, "": `1`, "broken": `"[secret]"`, "role": `"arn:[secret]:app"`,
	}))
	// Somebody who may edit Secrets cannot make the status show a secret by removing or breaking an annotation.
	for _, annotations := range []map[string]string{
		nil, {"pulumi.com/secrets": ""}, {"pulumi.com/secrets": "canary"}, {"pulumi.com/secrets": `[]`, "pulumi.com/shown-outputs": `{"a":`},
		{"pulumi.com/secrets": `[]`, "pulumi.com/output-names": `["canary"]`},
	} {
		outputs = shownOutputs(outputsOf(map[string]string{"a": "1"}, annotations))
		g.Expect(string(outputs["a"].Raw)).To(Equal(`"[secret]"`), "%v", annotations)
	}
}

func TestOutputsInTheStatusAreBounded(t *testing.T) {
	large := `"` + strings.Repeat("x", 100<<10) + `"`
	g := NewWithT(t)
	outputs := shownOutputs(outputsOf(
		map[string]string{"a": large, "b": large, "c": large, "small": `1`, "secret": large}, map[string]string{"pulumi.com/secrets": `["secret"]`},
	))
	g.Expect(string(outputs["small"].Raw)).To(Equal(`1`))
	g.Expect(string(outputs["a"].Raw)).To(Equal(large))
	g.Expect(string(outputs["b"].Raw)).To(Equal(large))
	g.Expect(string(outputs["c"].Raw)).To(Equal(`"[102402 bytes, see key c of secret app-1-stack-outputs]"`))
	g.Expect(string(outputs["secret"].Raw)).To(Equal(`"[secret]"`))

	many := map[string]string{}
	for i := range 50_000 {
		many[fmt.Sprintf("output-with-a-long-name-%05d", i)] = `1`
	}
	none := map[string]string{"pulumi.com/secrets": `[]`}
	outputs = shownOutputs(outputsOf(many, none))
	encoded, err := json.Marshal(outputs)
	g.Expect(err).NotTo(HaveOccurred())
	g.Expect(len(encoded)).To(BeNumerically("<", 512<<10))
	g.Expect(len(outputs)).To(BeNumerically(">", 5000))
	again := shownOutputs(outputsOf(many, none))
	g.Expect(again).To(Equal(outputs), "the same each time: otherwise the status would change for ever")
}
