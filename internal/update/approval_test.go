package update

import (
	"testing"
	"time"

	. "github.com/onsi/gomega"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	autov1alpha1 "github.com/stack-controller/stack-controller/api/auto/v1alpha1"
	pulumiv1 "github.com/stack-controller/stack-controller/api/pulumi/v1"
)

func TestUpdateByHandIsRefusedInAGatedWorkspace(t *testing.T) {
	const digest = "sha256:plan"
	for name, tt := range map[string]struct {
		update func(*autov1alpha1.Update)
		stack  func(*pulumiv1.Stack)
		action action
		reason string
	}{
		"the approved plan":     {action: actionStart},
		"without spec.approval": {update: func(u *autov1alpha1.Update) { u.Spec.Plan = nil }, stack: func(s *pulumiv1.Stack) { s.Spec.Approval = nil }, action: actionStart},
		"a preview":             {update: func(u *autov1alpha1.Update) { u.Spec.Plan, u.Spec.Type = nil, autov1alpha1.UpdateTypePreview }, action: actionStart},
		"a refresh that only shows": {update: func(u *autov1alpha1.Update) {
			u.Spec.Plan, u.Spec.Type, u.Spec.PreviewOnly = nil, autov1alpha1.UpdateTypeRefresh, new(true)
		}, action: actionStart},
		"an up that says it only shows":  {update: func(u *autov1alpha1.Update) { u.Spec.Plan, u.Spec.PreviewOnly = nil, new(true) }, action: actionFinish},
		"an up":                          {update: func(u *autov1alpha1.Update) { u.Spec.Plan = nil }, action: actionFinish},
		"a destroy":                      {update: func(u *autov1alpha1.Update) { u.Spec.Plan, u.Spec.Type = nil, autov1alpha1.UpdateTypeDestroy }, action: actionFinish},
		"a refresh":                      {update: func(u *autov1alpha1.Update) { u.Spec.Plan, u.Spec.Type = nil, autov1alpha1.UpdateTypeRefresh }, action: actionFinish},
		"another plan":                   {update: func(u *autov1alpha1.Update) { u.Spec.Plan.Name = "app-mine" }, action: actionFinish},
		"another digest":                 {update: func(u *autov1alpha1.Update) { u.Spec.Plan.Digest = "sha256:mine" }, action: actionFinish},
		"one that Pulumi is not held to": {update: func(u *autov1alpha1.Update) { u.Spec.Plan.Enforce = autov1alpha1.EnforceInputs }, action: actionFinish},
		"one that is not approved":       {stack: func(s *pulumiv1.Stack) { s.Status.Plan.State = pulumiv1.PlanPending }, action: actionFinish},
		"one that was rejected":          {stack: func(s *pulumiv1.Stack) { s.Status.Plan.State = pulumiv1.PlanRejected }, action: actionFinish},
		"a Stack that was edited":        {stack: func(s *pulumiv1.Stack) { s.Generation++ }, action: actionFinish},
		"a Stack without plan":           {stack: func(s *pulumiv1.Stack) { s.Status.Plan = nil }, action: actionFinish},
		"one that has expired":           {stack: func(s *pulumiv1.Stack) { s.Status.Plan.ExpiresAt = new(metav1.NewTime(ready().now)) }, action: actionFinish},
		"one that expires":               {stack: func(s *pulumiv1.Stack) { s.Status.Plan.ExpiresAt = new(metav1.NewTime(time.Now().Add(time.Hour))) }, action: actionStart},
		"one of the Stack itself waits":  {update: func(u *autov1alpha1.Update) { u.OwnerReferences = []metav1.OwnerReference{{UID: "stack"}} }, stack: func(s *pulumiv1.Stack) { s.Status.Plan.State = pulumiv1.PlanPending }, action: actionWait},
		"one that claims to be of a Stack": {update: func(u *autov1alpha1.Update) {
			u.Spec.Plan, u.OwnerReferences = nil, []metav1.OwnerReference{{UID: "stack"}}
		}, action: actionWait},
	} {
		t.Run(name, func(t *testing.T) {
			g := NewWithT(t)
			o := ready()
			stack := &pulumiv1.Stack{ObjectMeta: metav1.ObjectMeta{Name: "app", UID: "stack", Generation: 2}}
			stack.Spec.Approval = &pulumiv1.ApprovalPolicy{}
			stack.Status.Plan = &pulumiv1.PlanStatus{Name: "app-plan", Digest: digest, State: pulumiv1.PlanApproved, Generation: 2}
			o.update.Spec.Type, o.update.Spec.Plan = autov1alpha1.UpdateTypeUp, &autov1alpha1.PlanReference{Name: "app-plan", Digest: digest}
			if tt.update != nil {
				tt.update(o.update)
			}
			if tt.stack != nil {
				tt.stack(stack)
			}
			o.approval = approvalOf(o.update, stack, o.now)
			d := decide(o)
			g.Expect(d.action).To(Equal(tt.action), d.message)
			if tt.action != actionStart {
				g.Expect(d.reason).To(Equal(autov1alpha1.ApprovalRequiredReason))
			}
		})
	}
}
