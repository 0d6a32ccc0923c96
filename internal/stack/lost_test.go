package stack

import (
	"testing"
	"time"

	. "github.com/onsi/gomega"

	"github.com/fluxcd/pkg/runtime/conditions"

	autov1alpha1 "github.com/stack-controller/stack-controller/api/auto/v1alpha1"
	pulumiv1 "github.com/stack-controller/stack-controller/api/pulumi/v1"
)

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

func TestLostStackIsTriedAgainAtOnceWhenSomebodyAllowsToCreateIt(t *testing.T) {
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
