package stack

import (
	"testing"

	. "github.com/onsi/gomega"

	autov1alpha1 "github.com/stack-controller/stack-controller/api/auto/v1alpha1"
	pulumiv1 "github.com/stack-controller/stack-controller/api/pulumi/v1"
)

func TestAnnotationRestoresWhatALostStatusSaid(t *testing.T) {
	up := &pulumiv1.StackUpdateStatus{Type: autov1alpha1.UpdateTypeUp, State: pulumiv1.StackUpdateSucceeded}
	preview := &pulumiv1.StackUpdateStatus{Type: autov1alpha1.UpdateTypePreview, State: pulumiv1.StackUpdateSucceeded}
	destroyed := &pulumiv1.StackUpdateStatus{Type: autov1alpha1.UpdateTypeDestroy, State: pulumiv1.StackUpdateSucceeded}
	notDestroyed := &pulumiv1.StackUpdateStatus{Type: autov1alpha1.UpdateTypeDestroy, State: pulumiv1.StackUpdateFailed}
	for _, test := range []struct {
		name     string
		marked   bool
		status   pulumiv1.StackStatus
		deployed bool
		stack    string
		proof    bool
	}{
		{name: "a new Stack", proof: true},
		{name: "a status that is lost", marked: true, deployed: true, stack: "dev"},
		{name: "a status that lost what is deployed", marked: true, status: pulumiv1.StackStatus{LastUpdate: preview}, deployed: true, stack: "dev"},
		{name: "a status that says it", marked: true, status: pulumiv1.StackStatus{LastUpdate: up, Deployed: true, DeployedStack: "prod"}, deployed: true, stack: "prod"},
		{name: "one that was destroyed", marked: true, status: pulumiv1.StackStatus{LastUpdate: destroyed}, proof: true},
		{name: "one that was not quite", marked: true, status: pulumiv1.StackStatus{LastUpdate: notDestroyed}, deployed: true, stack: "dev"},
	} {
		t.Run(test.name, func(t *testing.T) {
			g := NewWithT(t)
			stack := deleting().stack
			stack.Status = test.status
			if test.marked {
				stack.Annotations = map[string]string{pulumiv1.DeployedStackAnnotation: "dev"}
			}
			recall(stack)
			g.Expect(stack.Status.Deployed).To(Equal(test.deployed))
			g.Expect(stack.Status.DeployedStack).To(Equal(test.stack))
			g.Expect(nothingToDestroy(stack) != "").To(Equal(test.proof))
		})
	}
}
