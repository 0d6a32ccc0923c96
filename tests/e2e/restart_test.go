package e2e_test

import (
	"slices"
	"strings"
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
	"github.com/stack-controller/stack-controller/tests/stage/scene"
	"github.com/stack-controller/stack-controller/tests/suite"
)

// restarts are the ways in which a controller ends.
func restarts() map[string]func() error {
	return map[string]func() error{"killed": system.KillController, "stopped": system.StopController}
}

// The tests that end the controller run alone, before the parallel ones.

func TestUpdateSurvivesTheControllerAndRunsOnce(t *testing.T) {
	for name, end := range restarts() {
		t.Run(name, func(t *testing.T) {
			p := alone(t, "survives-"+name)
			p.deployed()
			before := p.calls(p.Name)
			release := p.hold()
			artifact := p.publish(p.returning(2))
			p.awaitHeld()
			running := p.Await(func(s *pulumiv1.Stack) bool { return s.Status.CurrentUpdate != nil }).Status.CurrentUpdate

			p.Expect(end()).To(Succeed())
			p.startController()
			release()

			stack := p.Await(ready(artifact.Digest))
			p.Expect(stack.Status.LastUpdate.Name).To(Equal(running.Name))
			p.Expect(stack.Status.LastUpdate.State).To(Equal(pulumiv1.StackUpdateSucceeded))
			p.Expect(stack.Status.LastUpdate.Failures).To(BeZero())
			p.Expect(p.Updates()).To(HaveLen(2))
			calls := p.calls(p.Name)[len(before):]
			calls = slices.DeleteFunc(calls, func(call string) bool { return strings.HasSuffix(call, " version") })
			p.Expect(calls).To(ConsistOf(ContainSubstring(" up ")), "one update is one process of the CLI")
		})
	}
}

func TestRevisionsDuringAnUpdateEndWithTheLastOne(t *testing.T) {
	suite.Long(t, "further moments of a restart")
	p := begin(t, "overtaken")
	p.deployed()
	release := p.hold()
	var last *meta.Artifact
	for i := range 4 {
		last = p.publish(p.returning(i + 2))
		p.awaitHeld()
	}
	release()
	stack := p.Await(ready(last.Digest))
	p.Expect(scene.Output(stack, "x")).To(Equal("5"))
	p.Expect(len(p.Updates())).To(BeNumerically("<=", 3), "revisions in between are skipped")
}

func TestStackDeletedDuringAnUpdateIsDestroyedAfterIt(t *testing.T) {
	suite.Long(t, "further moments of a restart")
	p := begin(t, "interrupted-life")
	p.deployed(destroyed)
	release := p.hold()
	p.publish(p.returning(2))
	p.awaitHeld()
	p.Delete()
	release()
	p.awaitDestroyed()
}

func TestRestartWritesNothingAboutSettledStacks(t *testing.T) {
	for name, end := range restarts() {
		t.Run(name, func(t *testing.T) {
			p := alone(t, "rests-"+name)
			p.deployed()
			versions := func() []string {
				found := []string{p.Await(ready("")).ResourceVersion, p.Workspace().ResourceVersion}
				for _, update := range p.Updates() {
					found = append(found, update.Name, update.ResourceVersion)
				}
				return found
			}
			p.Eventually(p.Updates).Should(ConsistOf(HaveField("Finalizers", BeEmpty())))
			before := versions()
			p.Expect(end()).To(Succeed())
			p.startController()
			// What is deployed after the restart comes after what was there before it.
			p.beside(p.Name + "-later").deployed()
			p.Expect(versions()).To(Equal(before))
		})
	}
}

// annotateAsUsersDo does what users do, with their words.
func (p *play) annotateAsUsersDo(annotation string) {
	p.Helper()
	_, err := system.ControlPlane.Kubectl(p.Context(), "--namespace="+p.Name, "annotate", "stack/"+p.Name, annotation, "--overwrite")
	p.Succeed(err)
}

// TestAnnotationOfTutorialsDeploysTheLatestCommit has `kubectl annotate stack/NAME pulumi.com/last-update=$(date +%s) --overwrite`.
func TestAnnotationOfTutorialsDeploysTheLatestCommit(t *testing.T) {
	p := alone(t, "kicked")
	repository, first := p.deployedFromGit(p.returning(1), func(s *pulumiv1.Stack) {
		s.Spec.ResyncFrequencySeconds = 3600 // nobody looks by himself
		s.Annotations = map[string]string{pulumiv1.LastUpdateAnnotation: "at its creation"}
	})
	p.Expect(p.Await(ready(first)).Status.ObservedLastUpdateRequest).To(Equal("at its creation"))
	p.Expect(p.Updates()).To(HaveLen(1))
	handled := func(commit, value string) func(*pulumiv1.Stack) bool {
		return func(s *pulumiv1.Stack) bool { return ready(commit)(s) && s.Status.ObservedLastUpdateRequest == value }
	}

	next := p.commit(repository, p.returning(2))
	p.annotateAsUsersDo("pulumi.com/last-update=1763799600")
	p.Await(handled(next, "1763799600"))
	p.Expect(p.Updates()).To(HaveLen(2))

	// It runs what there is already, too.
	p.annotateAsUsersDo("pulumi.com/last-update=1763799601")
	p.Await(handled(next, "1763799601"))
	p.Expect(p.Updates()).To(HaveLen(3))

	// A value is handled once, and other annotations ask for nothing.
	p.annotateAsUsersDo("pulumi.com/last-update=1763799601")
	p.annotateAsUsersDo("example.com/last-update=1763799602")
	p.restartController()
	p.annotateAsUsersDo("pulumi.com/last-update-")
	p.annotateAsUsersDo(meta.ReconcileRequestAnnotation + "=last")
	p.Await(func(s *pulumiv1.Stack) bool { return ready(next)(s) && s.Status.LastHandledReconcileAt == "last" })
	p.Expect(p.Updates()).To(HaveLen(4), "only the last request ran something")
}

// TestManifestThatIsAppliedAgainRunsNothing has what the Pulumi Kubernetes Operator makes of a manifest: the fields that are false are
// gone from the object, and come back when the manifest is applied.
func TestManifestThatIsAppliedAgainRunsNothing(t *testing.T) {
	p := alone(t, "former-applied")
	_, artifact := p.deployed()
	p.stopController()
	recorded := p.leftByTheFormerController(artifact.Revision)
	p.startController()
	stack := p.Await(func(s *pulumiv1.Stack) bool { return ready(artifact.Digest)(s) && len(s.Status.History) == 1 })
	generation := stack.Generation

	handled := func(s *pulumiv1.Stack) bool {
		return ready(artifact.Digest)(s) && s.Status.LastUpdate.Generation == s.Generation
	}
	apply := func(fields string) {
		patch := client.RawPatch("application/merge-patch+json", []byte(`{"spec": `+fields+`}`))
		p.Expect(system.Client.Patch(p.Context(), stack, patch)).To(Succeed())
	}
	apply(`{"refresh": false, "preview": false, "targets": [], "resyncFrequencySeconds": 0, "secretsProvider": ""}`)
	p.Expect(stack.Generation).To(BeNumerically(">", generation), "the API server takes it for another specification")
	stack = p.Await(handled)
	p.Expect(stack.Status.LastUpdate.Name).To(Equal(recorded.Name))

	// What says something new runs, and then the same again does not.
	apply(`{"refresh": true}`)
	ran := p.awaitNext(stack).Status.LastUpdate.Name
	apply(`{"targetDependents": false}`)
	p.Await(handled)
	p.stopController()
	apply(`{"expectNoRefreshChanges": false}`)
	p.startController()
	stack = p.Await(handled)
	p.Expect(stack.Status.LastUpdate.Name).To(Equal(ran))
}

// TestFailedStackOfTheFormerControllerSaysOneThing has the conditions that the Pulumi Kubernetes Operator leaves on a Stack that failed, and
// what a way back and over again leaves of both.
func TestFailedStackOfTheFormerControllerSaysOneThing(t *testing.T) {
	suite.Long(t, "further states of the former operator")
	type former struct {
		conditions map[string]string
		ago        time.Duration
	}
	const retrying, failed = "RetryingAfterFailure", "UpdateFailed"
	left := map[*play]former{
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
		p.Await(func(s *pulumiv1.Stack) bool { return len(s.Status.History) == 1 }) // and its conditions do not contradict each other
	}
}

// markFormerFailure makes the status that of an update which failed, with the conditions, and applies it as the operator does.
func (p *play) markFormerFailure(present map[string]string, ago time.Duration) {
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

// patchStatus changes the status of the Stack, as nobody but its controller does.
func (p *play) patchStatus(edit func(*pulumiv1.Stack)) {
	p.Helper()
	stack := &pulumiv1.Stack{}
	p.Get(p.Name, stack)
	before := stack.DeepCopy()
	edit(stack)
	p.Expect(system.Client.Status().Patch(p.Context(), stack, client.MergeFrom(before))).To(Succeed())
}

// leftByTheFormerController makes the objects of a Stack that is deployed what the Pulumi Kubernetes Operator would have left:
// a Workspace that it applied, with things in it that this controller would not ask for, an Update that it completed, and a
// status without all that is new here, in which the commit is the one given. Nothing may look at them meanwhile.
func (p *play) leftByTheFormerController(commit string) (recorded *autov1alpha1.Update) {
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

// formerUpdate creates an Update as the Pulumi Kubernetes Operator does, with the conditions Progressing, Failed, which is False, and
// Complete. The operator puts its finalizer on each of them.
func (p *play) formerUpdate(name string, progressing metav1.ConditionStatus, progress, failure string, complete metav1.ConditionStatus, completion string,
) *autov1alpha1.Update {
	p.Helper()
	stack := &pulumiv1.Stack{}
	p.Get(p.Name, stack)
	update := &autov1alpha1.Update{
		ObjectMeta: metav1.ObjectMeta{
			Namespace: p.Name, Name: name, Finalizers: []string{pulumiv1.Finalizer},
			Labels: map[string]string{pulumiv1.ComponentLabel: pulumiv1.ComponentStack, pulumiv1.StackNameLabel: p.Name},
			OwnerReferences: []metav1.OwnerReference{
				*metav1.NewControllerRef(p.Workspace(), autov1alpha1.GroupVersion.WithKind(autov1alpha1.WorkspaceKind)),
				{APIVersion: pulumiv1.GroupVersion.String(), Kind: pulumiv1.StackKind, Name: p.Name, UID: stack.UID, BlockOwnerDeletion: new(true)},
			},
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

// awaitRetired waits until nothing keeps the Update from being deleted.
func (p *play) awaitRetired(update *autov1alpha1.Update) {
	p.Helper()
	p.awaitUpdate(update, func(u *autov1alpha1.Update) bool { return len(u.Finalizers) == 0 })
}

func TestStackOfTheFormerControllerIsTakenOver(t *testing.T) {
	// What stood in the status as the commit.
	plays := map[*play]func(*meta.Artifact) string{
		alone(t, "former-revision"): func(a *meta.Artifact) string { return a.Revision },
		alone(t, "former-digest"):   func(a *meta.Artifact) string { return a.Digest },
	}
	artifacts, recorded := map[*play]*meta.Artifact{}, map[*play]*autov1alpha1.Update{}
	for p := range plays {
		artifacts[p] = p.put(p.returning(1))
		p.start(artifacts[p], destroyed, scene.Annotate(meta.ReconcileRequestAnnotation, "long ago"))
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
	// What comes later is deployed later.
	controller.deployed()
	for p := range plays {
		p.Expect(p.Updates()).To(HaveLen(2), "nothing runs because the controller changed")
		p.awaitRetired(recorded[p])
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
	p.awaitRetired(running)
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
	// What comes later is deployed later.
	p.beside(p.Name + "-later").deployed()
	p.Expect(p.Updates()).To(HaveLen(2), "nothing runs because the controller changed")

	next := p.commit(repository, p.returning(2))
	p.Request()
	p.Await(ready(next))
}

func TestRestartOfTheControllerLeavesGitStacksAsTheyAre(t *testing.T) {
	suite.Long(t, "a Stack of the former operator with a repository")
	p := alone(t, "git-restarted")
	repository, sha := p.deployedFromGit(p.returning(1))
	before := p.Await(ready(sha))
	p.restartController()
	// A Stack of the same branch is deployed when the answer of the git server has come.
	p.Create(p.gitStack(repository.URL, named("later")))
	p.AwaitStack("later", ready(sha))
	p.Expect(p.Await(ready(sha)).ResourceVersion).To(Equal(before.ResourceVersion), "nothing was written")

	// The next one follows all the same.
	next := p.commit(repository, p.returning(2))
	p.RequestStack("later")
	p.Await(ready(next))
}
