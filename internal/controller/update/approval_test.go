package update

import (
	"testing"
	"time"

	. "github.com/onsi/gomega"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	ctrlclient "sigs.k8s.io/controller-runtime/pkg/client"

	autov1alpha1 "github.com/stack-controller/stack-controller/api/auto/v1alpha1"
	pulumiv1 "github.com/stack-controller/stack-controller/api/pulumi/v1"
	"github.com/stack-controller/stack-controller/internal/agent/agentpb"
)

// ownProgram is the source of the Stack in these tests.
var ownProgram = &autov1alpha1.UpdateSource{Digest: "sha256:own"}

// previewOf makes the Update a preview of the source.
func previewOf(from *autov1alpha1.UpdateSource) func(*autov1alpha1.Update) {
	return func(u *autov1alpha1.Update) {
		u.Spec.Plan, u.Spec.Type, u.Spec.Source = nil, autov1alpha1.UpdateTypePreview, from
	}
}

func ownedBy(uid types.UID) []metav1.OwnerReference {
	return []metav1.OwnerReference{{APIVersion: pulumiv1.GroupVersion.String(), Kind: pulumiv1.StackKind, Name: "app", UID: uid}}
}

func TestUpdateByHandIsRefusedInAGatedWorkspace(t *testing.T) {
	const digest = "sha256:plan"
	for name, tt := range map[string]struct {
		update func(*autov1alpha1.Update)
		stack  func(*pulumiv1.Stack)
		action action
		reason string
	}{
		"the approved plan":                    {action: actionStart},
		"without spec.approval":                {update: func(u *autov1alpha1.Update) { u.Spec.Plan = nil }, stack: func(s *pulumiv1.Stack) { s.Spec.Approval = nil }, action: actionStart},
		"a preview":                            {update: func(u *autov1alpha1.Update) { u.Spec.Plan, u.Spec.Type = nil, autov1alpha1.UpdateTypePreview }, action: actionStart},
		"a preview of the source of the Stack": {update: previewOf(ownProgram), action: actionStart},
		"a preview of another program":         {update: previewOf(&autov1alpha1.UpdateSource{Digest: "sha256:mine"}), action: actionFinish},
		"a preview of another stack": {update: func(u *autov1alpha1.Update) {
			previewOf(ownProgram)(u)
			u.Spec.StackName = "other"
		}, action: actionFinish},
		"a preview that creates a stack": {update: func(u *autov1alpha1.Update) {
			previewOf(ownProgram)(u)
			u.Spec.NewStack = new(true)
		}, action: actionFinish},
		"a preview that the Stack created": {update: func(u *autov1alpha1.Update) {
			previewOf(&autov1alpha1.UpdateSource{Digest: "sha256:new"})(u)
			u.UID, u.Generation = "created", 1
		}, stack: func(s *pulumiv1.Stack) { s.Status.CurrentUpdate = &pulumiv1.CurrentStackUpdate{UID: "created"} }, action: actionStart},
		"a preview that the Stack created and somebody edited": {update: func(u *autov1alpha1.Update) {
			previewOf(&autov1alpha1.UpdateSource{Digest: "sha256:mine"})(u)
			u.UID, u.Generation = "created", 2
		}, stack: func(s *pulumiv1.Stack) { s.Status.CurrentUpdate = &pulumiv1.CurrentStackUpdate{UID: "created"} }, action: actionFinish},
		"a preview that claims to be of the Stack": {update: func(u *autov1alpha1.Update) {
			previewOf(&autov1alpha1.UpdateSource{Digest: "sha256:mine"})(u)
			u.OwnerReferences = ownedBy("stack")
		}, action: actionFinish},
		"a preview that the Stack may have created just now": {update: func(u *autov1alpha1.Update) {
			previewOf(&autov1alpha1.UpdateSource{Digest: "sha256:new"})(u)
			u.OwnerReferences, u.CreationTimestamp = ownedBy("stack"), metav1.NewTime(ready().now)
		}, action: actionWait},
		"a refresh that only shows": {update: func(u *autov1alpha1.Update) {
			u.Spec.Plan, u.Spec.Type, u.Spec.PreviewOnly = nil, autov1alpha1.UpdateTypeRefresh, new(true)
		}, action: actionStart},
		"a refresh that only shows the project of the Stack": {update: func(u *autov1alpha1.Update) {
			u.Spec.Plan, u.Spec.Type, u.Spec.PreviewOnly = nil, autov1alpha1.UpdateTypeRefresh, new(true)
			u.Spec.ProjectInfo = &autov1alpha1.ProjectInfo{Name: "shop", Runtime: "yaml"}
		}, action: actionStart},
		"a refresh that only shows another project": {update: func(u *autov1alpha1.Update) {
			u.Spec.Plan, u.Spec.Type, u.Spec.PreviewOnly = nil, autov1alpha1.UpdateTypeRefresh, new(true)
			u.Spec.ProjectInfo = &autov1alpha1.ProjectInfo{Name: "payroll", Runtime: "yaml"}
		}, action: actionFinish},
		"a destroy that only shows a project that is not known": {update: func(u *autov1alpha1.Update) {
			u.Spec.Plan, u.Spec.Type, u.Spec.PreviewOnly = nil, autov1alpha1.UpdateTypeDestroy, new(true)
			u.Spec.ProjectInfo = &autov1alpha1.ProjectInfo{Name: "payroll", Runtime: "yaml"}
		}, stack: func(s *pulumiv1.Stack) { s.Status.ProjectInfo = nil }, action: actionFinish},
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
		"one of the Stack itself waits": {update: func(u *autov1alpha1.Update) { u.UID, u.Generation = "created", 1 }, stack: func(s *pulumiv1.Stack) {
			s.Status.Plan.State, s.Status.CurrentUpdate = pulumiv1.PlanPending, &pulumiv1.CurrentStackUpdate{UID: "created"}
		}, action: actionWait},
		"one that claims to be of the Stack": {update: func(u *autov1alpha1.Update) {
			u.Spec.Plan, u.OwnerReferences = nil, ownedBy("stack")
		}, action: actionFinish},
		"a new one with the UID of the Stack and another kind": {update: func(u *autov1alpha1.Update) {
			u.Spec.Plan, u.OwnerReferences, u.CreationTimestamp = nil, ownedBy("stack"), metav1.NewTime(ready().now)
			u.OwnerReferences[0].APIVersion = "example.com/v1"
		}, action: actionFinish},
		"a new one that claims to be of the Stack": {update: func(u *autov1alpha1.Update) {
			u.Spec.Plan, u.OwnerReferences, u.CreationTimestamp = nil, ownedBy("stack"), metav1.NewTime(ready().now)
		}, action: actionWait},
	} {
		t.Run(name, func(t *testing.T) {
			g := NewWithT(t)
			o := ready()
			stack := &pulumiv1.Stack{Name: "app", UID: "stack", Generation: 2}
			stack.Spec.Approval, stack.Spec.Stack = &pulumiv1.ApprovalPolicy{}, o.update.Spec.StackName
			stack.Status.ProjectInfo = &autov1alpha1.ProjectInfo{Name: "shop", Runtime: "yaml"}
			stack.Status.Plan = &pulumiv1.PlanStatus{Name: "app-plan", Digest: digest, State: pulumiv1.PlanApproved, Generation: 2}
			o.update.Spec.Type, o.update.Spec.Plan = autov1alpha1.UpdateTypeUp, &autov1alpha1.PlanReference{Name: "app-plan", Digest: digest}
			if tt.update != nil {
				tt.update(o.update)
			}
			if tt.stack != nil {
				tt.stack(stack)
			}
			o.approval = approvalOf(o.update, stack, func(_ *pulumiv1.Stack, from *autov1alpha1.UpdateSource) bool { return from == ownProgram }, o.now)
			d := decide(o)
			g.Expect(d.action).To(Equal(tt.action), d.message)
			if tt.action != actionStart {
				g.Expect(d.reason).To(Equal(autov1alpha1.ApprovalRequiredReason))
			}
		})
	}
}

// Whoever may create Updates can carry out an approved plan. That does not let them bring their own program into the Workspace, where an
// agent would read it.
func TestApprovedPlanIsCarriedOutWithItsProgramOnly(t *testing.T) {
	s := newFixture(t)
	s.newReadyWorkspace("app")
	own, theirs := s.publish("name: own\nruntime: yaml\n"), s.publish("name: theirs\nruntime: yaml\n")
	s.savesPlans([]byte("a file"), "a text")
	s.startController()
	plan := s.finished(s.newUpdate("plan", savesPlanOf, func(update *autov1alpha1.Update) { update.Spec.Source = own }))
	stack := &pulumiv1.Stack{Namespace: s.namespace, Name: "app", Spec: pulumiv1.StackSpec{
		Stack: "dev", Approval: &pulumiv1.ApprovalPolicy{},
	}}
	s.Expect(s.client.Create(t.Context(), stack)).To(Succeed())
	before := stack.DeepCopy()
	stack.Status.Plan = &pulumiv1.PlanStatus{Name: plan.Name, UID: plan.UID, Digest: plan.Status.Plan.Digest, State: pulumiv1.PlanApproved,
		Operation: pulumiv1.ApprovedUp, Generation: stack.Generation}
	s.Expect(s.client.Status().Patch(t.Context(), stack, ctrlclient.MergeFrom(before))).To(Succeed())
	s.agents.script.returns(&agentpb.Operation{State: agentpb.OperationState_OPERATION_STATE_SUCCEEDED})
	carriesOut := func(from *autov1alpha1.UpdateSource) func(*autov1alpha1.Update) {
		return func(update *autov1alpha1.Update) {
			update.Spec.Source, update.Spec.Plan = from, &autov1alpha1.PlanReference{Name: plan.Name, Digest: plan.Status.Plan.Digest}
		}
	}
	delivered, started := s.agents.count("PushSource")+s.agents.count("FetchSource"), len(s.agents.script.requests())
	elsewhere, byURL := own.DeepCopy(), s.sources.serve("name: fetched\nruntime: yaml\n")
	elsewhere.Dir = "other"
	for name, from := range map[string]*autov1alpha1.UpdateSource{"theirs": theirs, "fetched": byURL, "elsewhere": elsewhere, "inherited": nil} {
		s.Expect(s.finished(s.newUpdate(name, carriesOut(from)))).To(haveFailed(autov1alpha1.PlanStaleReason, "another program"))
	}
	s.Expect(s.agents.count("PushSource") + s.agents.count("FetchSource")).To(Equal(delivered))
	s.Expect(s.agents.script.requests()).To(HaveLen(started))
	s.Expect(s.finished(s.newUpdate("own", carriesOut(own)))).To(haveSucceeded())
}

// The garbage collector removes the owner of a Workspace when its Stack is deleted with --cascade=orphan, while the Stack still waits for the
// approval of its destroy.
func TestWorkspaceThatLostItsOwnerStaysGated(t *testing.T) {
	s := newFixture(t)
	stack := &pulumiv1.Stack{
		Namespace: s.namespace, Name: "gated",
		Spec: pulumiv1.StackSpec{Stack: "dev", Approval: &pulumiv1.ApprovalPolicy{}},
	}
	s.Expect(s.client.Create(t.Context(), stack)).To(Succeed())
	local := func(workspace *autov1alpha1.Workspace) { workspace.Spec.Local = &autov1alpha1.LocalSource{} }
	s.newReadyWorkspace("gated", local)
	s.newReadyWorkspace("left", local, func(workspace *autov1alpha1.Workspace) {
		workspace.Annotations = map[string]string{pulumiv1.ApprovalRequiredAnnotation: "true"}
	})
	s.agents.script.returns(&agentpb.Operation{State: agentpb.OperationState_OPERATION_STATE_SUCCEEDED})
	s.startController()
	destroys := func(workspace string) func(*autov1alpha1.Update) {
		return func(update *autov1alpha1.Update) {
			update.Spec.WorkspaceName, update.Spec.Type = workspace, autov1alpha1.UpdateTypeDestroy
		}
	}
	s.Expect(s.finished(s.newUpdate("destroy-gated", destroys("gated")))).To(haveFailed(autov1alpha1.ApprovalRequiredReason, "spec.approval"))
	s.Expect(s.finished(s.newUpdate("destroy-left", destroys("left")))).To(haveFailed(autov1alpha1.ApprovalRequiredReason, "delete the Workspace"))
	s.Expect(s.finished(s.newUpdate("preview-left", destroys("left"), func(update *autov1alpha1.Update) { update.Spec.Type = autov1alpha1.UpdateTypePreview }))).To(haveFailed(autov1alpha1.ApprovalRequiredReason, "delete the Workspace"))
	s.Expect(s.agents.script.requests()).To(BeEmpty())
}
