package stack

import (
	"errors"
	"testing"
	"time"

	. "github.com/onsi/gomega"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/fluxcd/pkg/runtime/conditions"

	autov1alpha1 "github.com/stack-controller/stack-controller/api/auto/v1alpha1"
	pulumiv1 "github.com/stack-controller/stack-controller/api/pulumi/v1"
	"github.com/stack-controller/stack-controller/internal/source"
)

func orphaned(o *observation) {
	o.stack.Annotations = map[string]string{pulumiv1.OrphanAnnotation: "true"}
}

func knownProject(o *observation) {
	o.stack.Status.ProjectInfo = &autov1alpha1.ProjectInfo{Name: "app", Runtime: "yaml"}
}

func runsProgram(o *observation) { o.stack.Spec.RunProgram = true }

// withoutSource is a Stack whose source no longer exists.
var withoutSource = noSource(&source.Problem{Reason: pulumiv1.SourceNotFoundReason, Message: "it is gone", Watched: true})

// needed is a Stack that others depend on.
func needed(o *observation) {
	o.dependents = []dependent{{name: types.NamespacedName{Namespace: "team", Name: "web"}}}
}

// inForeground is a Stack whose dependents are deleted first.
func inForeground(o *observation) { o.stack.Finalizers = []string{metav1.FinalizerDeleteDependents} }

// destroyFailed is a Stack that is being deleted and whose last destroys failed: so many of them, the last one just now.
func destroyFailed(failures int64) *observation {
	o := deleting()
	last := o.stack.Status.LastUpdate
	last.Type, last.State, last.Failures, last.LastResyncTime = autov1alpha1.UpdateTypeDestroy, pulumiv1.StackUpdateFailed, failures, ago(time.Second)
	return o
}

// firstToDeploy makes the Update in progress the first one that would deploy anything.
func firstToDeploy(o *observation) {
	o.stack.Status.CurrentUpdate.First, o.stack.Status.LastUpdate = true, nil
}

// workspaceWith gives the Stack a Workspace whose agent has reported the version of its CLI; empty if there never was an agent.
func workspaceWith(version string, changes ...func(*autov1alpha1.Workspace)) func(*observation) {
	return func(o *observation) {
		o.workspace = &autov1alpha1.Workspace{Name: "app", UID: "5678", Status: autov1alpha1.WorkspaceStatus{PulumiVersion: version}}
		o.update.OwnerReferences = []metav1.OwnerReference{
			*metav1.NewControllerRef(o.workspace, autov1alpha1.GroupVersion.WithKind(autov1alpha1.WorkspaceKind)),
		}
		for _, change := range changes {
			change(o.workspace)
		}
	}
}

func answering(workspace *autov1alpha1.Workspace) {
	conditions.MarkTrue(workspace, autov1alpha1.WorkspaceReady, autov1alpha1.SucceededReason, "")
}

func TestDeletionGoesOnOrSaysHow(t *testing.T) {
	expectDecisions(t, []decisionCase{
		{name: "suspended, and nothing to destroy", given: with(deleting(), suspended, leavesResources),
			action: actionRelease, wake: byNothing},
		{name: "suspended, and nothing deployed", given: with(deleting(), suspended, func(o *observation) { o.stack.Status = pulumiv1.StackStatus{} }),
			action: actionRelease, wake: byNothing},
		{name: "suspended", given: with(deleting(), suspended), action: actionStall, wake: byEdit, reason: pulumiv1.SuspendedReason,
			says: []string{"spec.suspend to false", pulumiv1.OrphanAnnotation + "=true"}},
		{name: "suspended, and orphaned", given: with(deleting(), suspended, orphaned), action: actionRelease, wake: byNothing},
		{name: "suspended after a destroy failed", given: with(destroyFailed(1), suspended), action: actionStall, wake: byEdit, reason: pulumiv1.SuspendedReason},
		{name: "suspended while a destroy waits", given: with(destroying(), suspended), action: actionSupersede, wake: byUpdate},
		{name: "suspended while a destroy runs", given: with(destroying(), suspended, running), action: actionFollow, wake: byUpdate},

		{name: "previewed only", given: with(deleting(), func(o *observation) {
			o.stack.Spec.Preview, o.stack.Status.Deployed = true, false
			o.stack.Status.LastUpdate.Type = autov1alpha1.UpdateTypePreview
		}), action: actionRelease, wake: byNothing},
		{name: "previewed after an up", given: with(deleting(), func(o *observation) {
			o.stack.Spec.Preview = true
			o.stack.Status.LastUpdate.Type = autov1alpha1.UpdateTypePreview
		}), action: actionUpdate, wake: byUpdate, fresh: true},
		{name: "destroyed, but not all of it", given: destroyFailed(1), action: actionRetry, wake: byTime, reason: pulumiv1.RetryingAfterFailureReason,
			says: []string{"next attempt in", pulumiv1.OrphanAnnotation}},
		{name: "the spec is mended", given: with(destroyFailed(9), edited), action: actionUpdate, wake: byUpdate, fresh: true},
		{name: "a Secret is mended", given: using(destroyFailed(9), "a-1", "a-2"), action: actionUpdate, wake: byUpdate, fresh: true},
		{name: "the program is mended", given: with(destroyFailed(9), newDigest),
			action: actionUpdate, wake: byUpdate, fresh: true},
		{name: "it was destroyed without the program", given: with(destroyFailed(9), func(o *observation) { o.stack.Status.LastUpdate.LastAttemptedCommit = "" }),
			action: actionRetry, wake: byTime},
		{name: "a retry is asked for", given: with(destroyFailed(9), requested(pulumiv1.ReconcileRequestAnnotation)), action: actionUpdate, wake: byUpdate, fresh: true},
		{name: "orphaned between two attempts", given: with(destroyFailed(1), orphaned), action: actionRelease, wake: byNothing},
		{name: "orphaned while a destroy waits", given: with(destroying(), orphaned), action: actionSupersede, wake: byUpdate},
		{name: "orphaned while a destroy runs", given: with(destroying(), orphaned, running), action: actionFollow, wake: byUpdate},

		{name: "while an up waits", given: with(updating(), beingDeleted),
			action: actionSupersede, wake: byUpdate},
		{name: "while the first up waits for an agent", given: with(updating(), beingDeleted, firstToDeploy, workspaceWith("")), action: actionCancel, wake: byUpdate},
		{name: "while the first up waits, and there is an agent", given: with(updating(), beingDeleted, firstToDeploy, workspaceWith("v3.276.0", answering)),
			action: actionCancel, wake: byUpdate},
		{name: "while the first up waits for the agent to come back", given: with(updating(), beingDeleted, firstToDeploy, workspaceWith("v3.276.0")),
			action: actionSupersede, wake: byUpdate},
		{name: "while the first up waits, and its workspace was replaced", given: with(updating(), beingDeleted, firstToDeploy, workspaceWith(""), func(o *observation) {
			o.workspace.UID = "9abc"
		}), action: actionSupersede, wake: byUpdate},
		{name: "while the first up waits and is being cancelled", given: with(updating(), beingDeleted, firstToDeploy, workspaceWith(""), func(o *observation) {
			metav1.SetMetaDataAnnotation(&o.update.ObjectMeta, pulumiv1.CancelUpdateAnnotation, "true")
		}), action: actionFollow, wake: byUpdate},
		{name: "while an up runs", given: with(updating(), running, beingDeleted),
			action: actionFollow, wake: byUpdate},
		{name: "edited while a destroy waits", given: with(destroying(), edited), action: actionSupersede, wake: byUpdate},

		{name: "the spec is unusable", given: with(deleting(), func(o *observation) { o.specProblem = errors.New("bad") }),
			action: actionStall, wake: byEdit, reason: pulumiv1.SpecInvalidReason, says: []string{"fix the spec", pulumiv1.OrphanAnnotation}},
		{name: "the source is gone, and the project is not known", given: with(deleting(), withoutSource), action: actionWait, wake: bySource,
			reason: pulumiv1.SourceNotFoundReason, says: []string{"it is gone", pulumiv1.OrphanAnnotation}},
		{name: "the source is gone", given: with(deleting(), withoutSource, knownProject), action: actionUpdate, wake: byUpdate, fresh: true},
		{name: "the source is gone, and its program has to run", given: with(deleting(), withoutSource, knownProject, runsProgram), action: actionWait, wake: bySource,
			reason: pulumiv1.SourceNotFoundReason, says: []string{"it is gone", "runProgram to false", pulumiv1.OrphanAnnotation}},
		{name: "the source is forbidden", given: with(deleting(), noSource(&source.Problem{Reason: pulumiv1.AccessDeniedReason, Message: "no", Permanent: true})), action: actionStall, wake: byEdit, reason: pulumiv1.AccessDeniedReason, says: []string{pulumiv1.OrphanAnnotation}},
		{name: "in the foreground", given: with(deleting(), inForeground), action: actionWait, wake: byEdit,
			says: []string{"Kubernetes deletes its workspace and updates first", pulumiv1.OrphanAnnotation + "=true"}},
		{name: "in the foreground, and nothing to destroy", given: with(deleting(), inForeground, leavesResources), action: actionRelease, wake: byNothing},
		{name: "others depend on it", given: with(deleting(), needed), action: actionWait, wake: byDependents, reason: pulumiv1.DependentsExistReason,
			says: []string{"team/web", "destroyAfterDependents to false", pulumiv1.OrphanAnnotation}},
		{name: "others depend on it, after a destroy failed", given: with(destroyFailed(1), needed), action: actionWait, wake: byDependents},
		{name: "others depend on it, and it is suspended", given: with(deleting(), needed, suspended), action: actionStall, wake: byEdit, reason: pulumiv1.SuspendedReason},
		{name: "others depend on it, and it is orphaned", given: with(deleting(), needed, orphaned), action: actionRelease, wake: byNothing},
		{name: "others depend on it, and there is nothing to destroy", given: with(deleting(), needed, leavesResources),
			action: actionRelease, wake: byNothing},
		{name: "others depend on it while its destroy runs", given: with(destroying(), needed, running), action: actionFollow, wake: byUpdate},
		{name: "a dependency is not ready", given: with(deleting(), func(o *observation) { o.dependency = &dependencyProblem{message: "no"} }),
			action: actionUpdate, wake: byUpdate, fresh: true},
	})
}

func TestDestroyIsOfEverythingAndAsTheSpecSays(t *testing.T) {
	g := NewWithT(t)
	yes := true
	o := deleting()
	o.workspace = workspaceThat(starting)
	o.stack.Spec.Targets, o.stack.Spec.TargetDependents = []string{"urn:one"}, true
	o.stack.Spec.Refresh, o.stack.Spec.RunProgram = true, true
	o.stack.Spec.UpdateTemplate = &pulumiv1.UpdateTemplate{Spec: &autov1alpha1.UpdateSpec{Target: []string{"urn:two"}, TargetDependents: &yes,
		Exclude: []string{"urn:three"}, ExcludeDependents: &yes, Remove: &yes}}
	o.desired, o.specProblem = desire(o.stack)
	g.Expect(o.specProblem).NotTo(HaveOccurred())
	update, err := desiredUpdate(o, decision{kind: autov1alpha1.UpdateTypeDestroy})
	g.Expect(err).NotTo(HaveOccurred())
	g.Expect(update.Spec.Selection).To(BeZero())
	for _, option := range []*bool{update.Spec.Refresh, update.Spec.RunProgram, update.Spec.Remove} {
		g.Expect(option).To(HaveValue(BeTrue()))
	}
}

func TestProgressOfADeletedStackSaysWhatFollows(t *testing.T) {
	g := NewWithT(t)
	up := with(updating(), toDestroy)
	g.Expect(whileDeleted(up.stack, up.update, "up")).To(Equal("up; the resources are destroyed when the update has ended"))
	destroy := destroying()
	g.Expect(whileDeleted(destroy.stack, destroy.update, "destroy")).To(Equal("destroy"))
	orphaned(destroy)
	g.Expect(whileDeleted(destroy.stack, destroy.update, "destroy")).To(Equal("destroy; the stack is deleted when the update has ended"))
	g.Expect(whileDeleted(updating().stack, up.update, "up")).To(Equal("up"))
}
