package e2e_test

import (
	"testing"
	"time"

	. "github.com/onsi/gomega"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/fluxcd/pkg/apis/meta"

	autov1alpha1 "github.com/stack-controller/stack-controller/api/auto/v1alpha1"
	pulumiv1 "github.com/stack-controller/stack-controller/api/pulumi/v1"
	"github.com/stack-controller/stack-controller/tests/framework/suite"
	"github.com/stack-controller/stack-controller/tests/framework/systemtest"
)

// TestFailedStackOfTheFormerControllerSaysOneThing starts with the conditions that the Pulumi Kubernetes Operator leaves on a failed Stack,
// and with those that are left after moving back and forth between both controllers.
func TestFailedStackOfTheFormerControllerSaysOneThing(t *testing.T) {
	suite.Long(t, "further states of the former operator")
	type former struct {
		conditions map[string]string
		ago        time.Duration
	}
	const retrying, failed = "RetryingAfterFailure", "UpdateFailed"
	left := map[*fixture]former{
		alone(t, "former-failed-retrying"): {conditions: map[string]string{"Reconciling": retrying}},
		alone(t, "former-failed-stalled"):  {conditions: map[string]string{"Stalled": failed}},
		alone(t, "former-failed-both"):     {conditions: map[string]string{"Reconciling": retrying, "Stalled": failed}},
		alone(t, "former-failed-due"):      {conditions: map[string]string{"Reconciling": "StackProcessing", "Stalled": failed}, ago: time.Hour},
	}
	for p := range left {
		p.start(p.put(p.returning(1)))
	}
	for p := range left {
		p.Await(ready(""))
	}
	controller := alone(t, "")
	controller.stopController()
	for p, former := range left {
		p.leftByTheFormerController("v1")
		p.markFormerFailure(former.conditions, former.ago)
	}
	controller.startController()
	for p := range left {
		p.Await(func(s *pulumiv1.Stack) bool { return len(s.Status.History) == 1 }) // Await also checks that its conditions agree
	}
}

// markFormerFailure makes the status that of a failed update with the conditions, and applies it as the operator does.
func (p *fixture) markFormerFailure(present map[string]string, ago time.Duration) {
	p.Helper()
	now := metav1.Now()
	entry := func(name, status, reason, message string) any {
		return map[string]any{"type": name, "status": status, "reason": reason, "message": message, "lastTransitionTime": now.UTC().Format(time.RFC3339)}
	}
	entries := []any{entry("Ready", "False", pulumiv1.NotReadyInProgressReason, "reconciliation is in progress")}
	for name, reason := range present {
		entries = append(entries, entry(name, "True", reason, "1 update failure(s)"))
	}
	p.patchStatus(func(s *pulumiv1.Stack) {
		s.Status.Conditions = nil
		last := s.Status.LastUpdate
		last.State, last.Failures, last.Message = pulumiv1.StackUpdateFailed, 3, "\x1b[31merror\x1b[0m: it failed"
		last.LastResyncTime = metav1.NewTime(now.Add(-ago))
	})
	status := &unstructured.Unstructured{Object: map[string]any{"status": map[string]any{"conditions": entries}}}
	status.SetGroupVersionKind(pulumiv1.GroupVersion.WithKind(pulumiv1.StackKind))
	status.SetNamespace(p.Name)
	status.SetName(p.Name)
	p.Expect(system.Client.Status().Apply(p.Context(), client.ApplyConfigurationFromUnstructured(status),
		client.FieldOwner(formerOwner+"/stack-status"), client.ForceOwnership)).To(Succeed())
}

// formerOwner is the field manager of the Pulumi Kubernetes Operator.
const formerOwner = "pulumi-kubernetes-operator"

// patchStatus changes the status of the Stack, which otherwise only the controller does.
func (p *fixture) patchStatus(edit func(*pulumiv1.Stack)) {
	p.Helper()
	stack := &pulumiv1.Stack{}
	p.Get(p.Name, stack)
	before := stack.DeepCopy()
	edit(stack)
	p.Expect(system.Client.Status().Patch(p.Context(), stack, client.MergeFrom(before))).To(Succeed())
}

// leftByTheFormerController turns the objects of a deployed Stack into those that the Pulumi Kubernetes Operator would have left: a
// Workspace that the operator applied, with fields that this controller would not set, an Update that the operator completed, and a status
// with the given commit and without all newer fields. The controller must be stopped meanwhile.
func (p *fixture) leftByTheFormerController(commit string) (recorded *autov1alpha1.Update) {
	p.Helper()
	workspace := p.Workspace()
	p.Expect(system.Client.Delete(p.Context(), workspace)).To(Succeed())
	p.awaitNoWorkspace()
	workspace.ObjectMeta = metav1.ObjectMeta{Namespace: p.Name, Name: p.Name, Labels: workspace.Labels, OwnerReferences: workspace.OwnerReferences}
	workspace.Spec.Stacks[0].Config = []autov1alpha1.ConfigItem{{Key: "left", Value: &apiextensionsv1.JSON{Raw: []byte(`"over"`)}}}
	workspace.Spec.PulumiLogLevel = 1
	content, err := runtime.DefaultUnstructuredConverter.ToUnstructured(workspace)
	p.Succeed(err)
	delete(content, "status")
	object := &unstructured.Unstructured{Object: content}
	object.SetGroupVersionKind(autov1alpha1.GroupVersion.WithKind(autov1alpha1.WorkspaceKind))
	p.Expect(system.Client.Apply(p.Context(), client.ApplyConfigurationFromUnstructured(object), client.FieldOwner(formerOwner))).To(Succeed())

	now := metav1.Now()
	recorded = p.formerUpdate(p.Name+"-193a0f", "False", autov1alpha1.UpdateCompleteReason, autov1alpha1.UpdateSucceededReason,
		"True", autov1alpha1.UpdateUpdatedReason)
	p.patchStatus(func(s *pulumiv1.Stack) {
		s.Status = pulumiv1.StackStatus{
			ObservedGeneration: s.Generation,
			Outputs:            s.Status.Outputs,
			ProjectInfo:        s.Status.ProjectInfo,
			Conditions: []metav1.Condition{{Type: meta.ReadyCondition, Status: metav1.ConditionTrue, Reason: pulumiv1.ProcessingCompletedReason,
				Message: "the stack has been processed and is up to date", LastTransitionTime: now}},
			LastUpdate: &pulumiv1.StackUpdateStatus{
				Generation: s.Generation, Name: recorded.Name, Type: autov1alpha1.UpdateTypeUp, State: pulumiv1.StackUpdateSucceeded,
				LastAttemptedCommit: commit, LastSuccessfulCommit: commit, LastResyncTime: now,
			},
		}
	})
	return recorded
}

// formerUpdate creates an Update as the Pulumi Kubernetes Operator does, with the conditions Progressing, Failed (always False) and
// Complete. The operator adds its finalizer to every Update.
func (p *fixture) formerUpdate(name string, progressing metav1.ConditionStatus, progress, failure string, complete metav1.ConditionStatus, completion string,
) *autov1alpha1.Update {
	p.Helper()
	stack := &pulumiv1.Stack{}
	p.Get(p.Name, stack)
	update := &autov1alpha1.Update{
		Namespace: p.Name, Name: name, Finalizers: []string{pulumiv1.Finalizer},
		Labels: map[string]string{pulumiv1.ComponentLabel: pulumiv1.ComponentStack, pulumiv1.StackNameLabel: p.Name},
		OwnerReferences: []metav1.OwnerReference{
			*metav1.NewControllerRef(p.Workspace(), autov1alpha1.GroupVersion.WithKind(autov1alpha1.WorkspaceKind)),
			{APIVersion: pulumiv1.GroupVersion.String(), Kind: pulumiv1.StackKind, Name: p.Name, UID: stack.UID, BlockOwnerDeletion: new(true)},
		},
		Spec: autov1alpha1.UpdateSpec{
			WorkspaceName: p.Name, StackName: stack.Spec.Stack, Type: autov1alpha1.UpdateTypeUp,
			TTLAfterCompleted: &metav1.Duration{Duration: 24 * time.Hour},
		},
	}
	p.Create(update)
	before := update.DeepCopy()
	now := metav1.Now()
	if complete == metav1.ConditionTrue {
		update.Status.StartTime, update.Status.EndTime = &now, &now
	}
	update.Status.Conditions = []metav1.Condition{
		{Type: autov1alpha1.UpdateProgressing, Status: progressing, Reason: progress, LastTransitionTime: now},
		{Type: autov1alpha1.UpdateFailed, Status: metav1.ConditionFalse, Reason: failure, LastTransitionTime: now},
		{Type: autov1alpha1.UpdateComplete, Status: complete, Reason: completion, LastTransitionTime: now},
	}
	p.Expect(system.Client.Status().Patch(p.Context(), update, client.MergeFrom(before))).To(Succeed())
	return update
}

// awaitFinalized waits until the Update has no finalizer.
func (p *fixture) awaitFinalized(update *autov1alpha1.Update) {
	p.Helper()
	p.awaitUpdate(update, func(u *autov1alpha1.Update) bool { return len(u.Finalizers) == 0 })
}

func TestStackOfTheFormerControllerIsTakenOver(t *testing.T) {
	// The map has, for each play, what the status contains as the commit.
	plays := map[*fixture]func(*meta.Artifact) string{
		alone(t, "former-revision"): func(a *meta.Artifact) string { return a.Revision },
		alone(t, "former-digest"):   func(a *meta.Artifact) string { return a.Digest },
	}
	artifacts, recorded := map[*fixture]*meta.Artifact{}, map[*fixture]*autov1alpha1.Update{}
	for p := range plays {
		artifacts[p] = p.put(p.returning(1))
		p.start(artifacts[p], destroyed, systemtest.Annotate(meta.ReconcileRequestAnnotation, "long ago"))
	}
	for p := range plays {
		p.Await(ready(artifacts[p].Digest))
	}
	controller := alone(t, "former-later")
	controller.stopController()
	for p, of := range plays {
		p.Expect(p.Updates()).To(HaveLen(1))
		recorded[p] = p.leftByTheFormerController(of(artifacts[p]))
	}
	controller.startController()
	for p := range plays {
		stack := p.Await(func(s *pulumiv1.Stack) bool {
			return ready(artifacts[p].Digest)(s) && len(s.Status.History) == 1 && s.Status.Deployed
		})
		p.Expect(stack.Status.LastUpdate.Name).To(Equal(recorded[p].Name))
	}
	// The controller deploys this Stack after it has reconciled those before.
	controller.deployed()
	for p := range plays {
		p.Expect(p.Updates()).To(HaveLen(2), "nothing runs because the controller changed")
		p.awaitFinalized(recorded[p])
		next := p.publish(p.returning(2))
		p.Await(ready(next.Digest))
		workspace := p.Workspace()
		p.Expect(workspace.Spec.Stacks[0].Config).To(BeEmpty(), "what nobody asks for goes")
		p.Expect(workspace.Spec.PulumiLogLevel).To(BeZero())
		p.Expect(workspace.Spec.Flux).To(BeNil(), "the source is in the Update")
		p.Expect(workspace.ManagedFields).NotTo(ContainElement(HaveField("Manager", formerOwner)))
		p.Delete()
		p.awaitDestroyed()
		p.awaitUpdates(0)
	}
}

func TestUpdateThatTheFormerControllerLeftRunningIsRepeated(t *testing.T) {
	suite.Long(t, "further states of the former operator")
	p := alone(t, "former-running")
	_, artifact := p.deployed()
	p.stopController()
	p.leftByTheFormerController("main@sha1:earlier")
	const progressing = autov1alpha1.UpdateProgressingReason
	running := p.formerUpdate(p.Name+"-193a10", "True", progressing, progressing, "False", progressing)
	p.patchStatus(func(s *pulumiv1.Stack) {
		s.Status.CurrentUpdate = &pulumiv1.CurrentStackUpdate{Generation: s.Generation, Name: running.Name, Commit: artifact.Revision}
	})
	p.startController()

	stack := p.Await(ready(artifact.Digest))
	p.Expect(stack.Status.LastUpdate.Name).NotTo(Equal(running.Name))
	p.Expect(stack.Status.LastUpdate.Failures).To(BeZero())
	p.awaitFinalized(running)
	p.Expect(running.WasInterrupted()).To(BeTrue())
	p.Expect(running.Status.Message).To(ContainSubstring("a controller that is gone"))
}

func TestGitStackOfTheFormerControllerIsTakenOver(t *testing.T) {
	suite.Long(t, "a Stack of the former operator with a repository")
	p := alone(t, "former-git")
	repository, sha := p.deployedFromGit(p.returning(1), func(s *pulumiv1.Stack) {
		s.Annotations = map[string]string{meta.ReconcileRequestAnnotation: "long ago"}
	})
	p.stopController()
	recorded := p.leftByTheFormerController(sha)
	p.startController()
	stack := p.Await(func(s *pulumiv1.Stack) bool { return ready(sha)(s) && len(s.Status.History) == 1 && s.Status.Deployed })
	p.Expect(stack.Status.LastUpdate.Name).To(Equal(recorded.Name))
	p.Expect(stack.Status.LastUpdate.Revision).To(Equal("main@sha1:" + sha))
	// The controller deploys this Stack after it has reconciled the one before.
	p.beside(p.Name + "-later").deployed()
	p.Expect(p.Updates()).To(HaveLen(2), "nothing runs because the controller changed")

	next := p.commit(repository, p.returning(2))
	p.Request()
	p.Await(ready(next))
}
