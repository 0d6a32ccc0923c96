package e2e_test

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	. "github.com/onsi/gomega"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	apimeta "k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/fluxcd/pkg/apis/meta"
	"github.com/fluxcd/pkg/runtime/conditions"
	sourcev1 "github.com/fluxcd/source-controller/api/v1"

	autov1alpha1 "github.com/stack-controller/stack-controller/api/auto/v1alpha1"
	pulumiv1 "github.com/stack-controller/stack-controller/api/pulumi/v1"
	"github.com/stack-controller/stack-controller/tests/framework/localsystem"
	"github.com/stack-controller/stack-controller/tests/framework/statuscheck"
	"github.com/stack-controller/stack-controller/tests/framework/suite"
	"github.com/stack-controller/stack-controller/tests/framework/systemtest"
)

func destroyed(s *pulumiv1.Stack) { s.Spec.DestroyOnFinalize = true }

func suspended(s *pulumiv1.Stack) { s.Spec.Suspend = true }

func resumed(s *pulumiv1.Stack) { s.Spec.Suspend = false }

var orphan = systemtest.Annotate(pulumiv1.OrphanAnnotation, "true")

// says matches a Stack that is being deleted and is not ready for the reason, and whose message says how the deletion can continue.
func says(reason string) func(*pulumiv1.Stack) bool {
	return func(s *pulumiv1.Stack) bool {
		return !s.DeletionTimestamp.IsZero() && notReady(reason)(s) &&
			strings.Contains(statuscheck.Message(s), pulumiv1.OrphanAnnotation+"=true")
	}
}

func TestSuspendedStackThatIsDeletedSaysWhatToDo(t *testing.T) {
	suite.Long(t, "further states in which a Stack is deleted")
	t.Parallel()
	for name, goOn := range map[string]struct {
		edit func(*pulumiv1.Stack)
		left bool
	}{
		"deleted-resumed":  {resumed, false},
		"deleted-orphaned": {orphan, true},
	} {
		p := alone(t, name)
		p.deployed(destroyed)
		p.Change(suspended)
		p.Delete()
		waiting := p.Await(says(pulumiv1.SuspendedReason))
		p.Expect(apimeta.IsStatusConditionTrue(waiting.Status.Conditions, meta.StalledCondition)).To(BeTrue())
		p.Expect(p.Updates()).To(HaveLen(1), "nothing runs while the stack is suspended")
		p.Change(goOn.edit)
		p.AwaitGone()
		p.Expect(p.resources() > 0).To(Equal(goOn.left))
	}
}

func TestSuspendedStackWithNothingToDestroyGoesAtOnce(t *testing.T) {
	suite.Long(t, "further states in which a Stack is deleted")
	p := begin(t, "deleted-suspended")
	p.deployed()
	p.Change(suspended)
	p.Delete()
	p.AwaitGone()
}

func TestDeletedStackWhoseSecretIsGoneSaysSoAndGoesOnWithIt(t *testing.T) {
	suite.Long(t, "further states in which a Stack is deleted")
	p := begin(t, "deleted-secretless")
	p.deployed(destroyed)
	p.Expect(system.Client.Delete(p.Context(), p.Secret(localsystem.PassphraseSecret, nil))).To(Succeed())
	p.Delete()
	waiting := p.Await(says(pulumiv1.SecretNotFoundReason))
	p.Expect(statuscheck.Message(waiting)).To(ContainSubstring(localsystem.PassphraseSecret))
	p.Create(p.Secret(localsystem.PassphraseSecret, secret()))
	p.awaitDestroyed()
}

func TestOrphanedStackGoesWhileItsDestroyWaits(t *testing.T) {
	suite.Long(t, "further states in which a Stack is deleted")
	p := begin(t, "deleted-waiting")
	p.deployed(destroyed)
	p.Expect(system.Client.Delete(p.Context(), p.Secret(localsystem.PassphraseSecret, nil))).To(Succeed())
	p.Delete()
	p.Await(says(pulumiv1.SecretNotFoundReason))
	p.Change(orphan)
	p.awaitReleased()
}

// failedOnce starts a Stack whose only update fails after it created something.
func (p *fixture) failedOnce() *meta.Artifact {
	p.Helper()
	artifact := p.put(p.returning("${nothing.here}"))
	p.start(artifact, destroyed, func(s *pulumiv1.Stack) { s.Spec.RetryMaxBackoffDurationSeconds = 3600 })
	p.Await(notReady(pulumiv1.RetryingAfterFailureReason))
	return artifact
}

func TestDeletedStackWhoseDestroyNeedsAProgramThatIsGoneSaysWhatToDo(t *testing.T) {
	suite.Long(t, "further states in which a Stack is deleted")
	p := begin(t, "deleted-sourceless")
	artifact := p.failedOnce()
	p.Change(func(s *pulumiv1.Stack) { s.Spec.RunProgram = true })
	artifacts.Replace(artifact.Path, nil)
	p.Expect(system.Client.Delete(p.Context(), &sourcev1.ExternalArtifact{ObjectMeta: p.Meta(p.Name)})).To(Succeed())
	p.Await(notReady(pulumiv1.SourceNotFoundReason))
	p.Delete()
	waiting := p.Await(says(pulumiv1.SourceNotFoundReason))
	p.Expect(statuscheck.Message(waiting)).To(And(HavePrefix("cannot destroy: "), ContainSubstring("set spec.runProgram to false")))
	p.Change(orphan)
	p.AwaitGone()
}

// destroyFails starts a Stack, and deletes it with a backend that does not exist.
func (p *fixture) destroyFails() {
	p.Helper()
	p.deployed(destroyed, retriedLate)
	p.Change(suspended, func(s *pulumiv1.Stack) { s.Spec.Backend = "file:///no/such/directory" })
	p.Delete()
	p.Await(says(pulumiv1.SuspendedReason))
	p.Change(resumed)
	failed := p.Await(says(pulumiv1.RetryingAfterFailureReason))
	p.Expect(failed.Status.LastUpdate.Type).To(Equal(autov1alpha1.UpdateTypeDestroy))
}

func TestOrphanedStackGoesBetweenTwoAttemptsToDestroyIt(t *testing.T) {
	suite.Long(t, "further states in which a Stack is deleted")
	p := begin(t, "deleted-retrying")
	p.destroyFails()
	p.Change(orphan)
	p.awaitReleased()
}

func TestMendedStackIsDestroyedAtOnceThoughTheLastAttemptFailed(t *testing.T) {
	suite.Long(t, "further states in which a Stack is deleted")
	p := begin(t, "deleted-mended")
	p.destroyFails()
	p.Change(func(s *pulumiv1.Stack) { s.Spec.Backend = system.BackendURL })
	p.awaitDestroyed()
}

func TestWorkspaceThatIsDeletedDuringTheDestroyIsMadeAgain(t *testing.T) {
	suite.Long(t, "deletions of which a part is gone")
	p := begin(t, "deleted-under")
	p.deployed(destroyed)
	release := p.hold()
	p.Delete()
	p.awaitRuns("destroy", 1)
	p.deleteWorkspace()
	p.awaitRuns("destroy", 2)
	release()
	p.awaitDestroyed()
}

// TestStackThatIsDeletedInTheForegroundIsDestroyedOnce deletes the Stack as Argo CD does: the garbage collector deletes everything that the
// Stack owns, including objects that are created during the deletion.
func TestStackThatIsDeletedInTheForegroundIsDestroyedOnce(t *testing.T) {
	t.Parallel()
	for name, updates := range map[string]bool{"deleted-foreground": false, "deleted-foreground-updating": true} {
		t.Run(name, func(t *testing.T) {
			p := begin(t, name)
			stack, _ := p.deployed(destroyed)
			release := p.hold()
			if updates {
				p.Change(systemtest.Annotate(pulumiv1.ReconcileRequestAnnotation, "once more"))
				p.awaitHeld()
			}
			// The garbage collector has to wait as long as this ConfigMap has a finalizer.
			slow := &corev1.ConfigMap{ObjectMeta: p.Meta("slow")}
			slow.Finalizers = []string{"example.com/slow"}
			slow.OwnerReferences = []metav1.OwnerReference{*metav1.NewControllerRef(stack, pulumiv1.GroupVersion.WithKind(pulumiv1.StackKind))}
			p.Create(slow)
			p.Expect(system.Client.Delete(p.Context(), stack, client.PropagationPolicy(metav1.DeletePropagationForeground))).To(Succeed())
			p.Await(func(s *pulumiv1.Stack) bool {
				return conditions.GetReason(s, meta.ReadyCondition) == pulumiv1.NotReadyInProgressReason &&
					strings.Contains(statuscheck.Message(s), "deleted in the foreground")
			})
			p.awaitUpdates(0)
			p.Expect(p.runs("destroy")).To(BeZero())
			release()
			p.Expect(system.Client.Patch(p.Context(), slow, client.RawPatch(types.MergePatchType, []byte(`{"metadata":{"finalizers":null}}`)))).To(Succeed())
			p.awaitDestroyed()
			p.Expect(p.runs("destroy")).To(Equal(1))
		})
	}
}

func TestUpdateByHandIsNotEndedByTheDeletionOfTheStack(t *testing.T) {
	suite.Long(t, "deletions of which a part is gone")
	t.Parallel()
	for name, destroys := range map[string]bool{"deleted-by-hand": true, "deleted-by-hand-kept": false} {
		t.Run(name, func(t *testing.T) {
			p := begin(t, name)
			p.deployed(func(s *pulumiv1.Stack) { s.Spec.DestroyOnFinalize = destroys })
			release := p.hold()
			byHand := p.handmade(autov1alpha1.UpdateTypeUp)
			p.awaitHeld()
			p.awaitUpdate(byHand, (*autov1alpha1.Update).HasStarted)
			p.Delete()
			waiting := p.Await(func(s *pulumiv1.Stack) bool {
				message := statuscheck.Message(s)
				return !s.DeletionTimestamp.IsZero() && (strings.Contains(message, `update "up"`) || strings.Contains(message, "the agent is busy"))
			})
			if !destroys {
				p.Expect(notReady(pulumiv1.WorkspaceInUseReason)(waiting)).To(BeTrue(), fmt.Sprint(waiting.Status.Conditions))
			}
			release()
			p.AwaitGone()
			p.awaitSuccess(byHand)
			p.Expect(p.resources() == 0).To(Equal(destroys))
		})
	}
}

func TestStackIsDestroyedThoughItsWorkspaceIsGone(t *testing.T) {
	suite.Long(t, "deletions of which a part is gone")
	p := begin(t, "deleted-workspaceless")
	p.deployed(destroyed)
	p.deleteWorkspace()
	p.Delete()
	p.awaitDestroyed()
}

func TestDeletedStackWaitsForNoDependency(t *testing.T) {
	suite.Long(t, "deletions of which a part is gone")
	p := begin(t, "deleted-dependent")
	p.deployed(destroyed)
	p.Change(func(s *pulumiv1.Stack) {
		needs("nobody")(s)
		s.Spec.Prerequisites = []pulumiv1.PrerequisiteRef{{Name: "nobody"}}
	})
	p.Await(notReady(pulumiv1.PrerequisiteNotSatisfiedReason))
	p.Delete()
	p.awaitDestroyed()
}

func TestDestroyGoesOnWhenTheBackendIsBack(t *testing.T) {
	suite.Long(t, "deletions of which a part is gone")
	p := begin(t, "deleted-backendless")
	backend := filepath.Join(p.TempDir(), "state")
	p.Expect(os.Mkdir(backend, 0o700)).To(Succeed())
	p.deployed(destroyed, retriedSoon, func(s *pulumiv1.Stack) { s.Spec.Backend = "file://" + backend })
	state := filepath.Join(backend, ".pulumi", "stacks", p.Name, "dev.json")
	p.Expect(state).To(BeAnExistingFile())

	p.Expect(os.Rename(backend, backend+".away")).To(Succeed())
	p.Expect(os.WriteFile(backend, nil, 0o600)).To(Succeed())
	p.Delete()
	failed := p.Await(says(pulumiv1.UpdateFailedReason))
	p.Expect(failed.Status.LastUpdate.Failures).To(BeNumerically(">=", 3))
	p.Expect(failed.Finalizers).To(ContainElement(pulumiv1.Finalizer))

	p.Expect(os.Remove(backend)).To(Succeed())
	p.Expect(os.Rename(backend+".away", backend)).To(Succeed())
	p.AwaitGone()
	content, err := os.ReadFile(state)
	p.Succeed(err)
	p.Expect(string(content)).NotTo(ContainSubstring(`"urn"`), "nothing is left in the state")
}

// forgetUpdates removes the Updates of the namespace and their finalizers, as if they had expired.
func (p *fixture) forgetUpdates() {
	p.Helper()
	for _, update := range p.Updates() {
		before := update.DeepCopy()
		update.Finalizers = nil
		p.Expect(client.IgnoreNotFound(system.Client.Patch(p.Context(), &update, client.MergeFrom(before)))).To(Succeed())
		p.Expect(client.IgnoreNotFound(system.Client.Delete(p.Context(), &update))).To(Succeed())
	}
	p.Expect(p.Updates()).To(BeEmpty())
}

func TestStackWhoseStatusWasClearedIsNotRemovedWithoutADestroy(t *testing.T) {
	suite.Long(t, "deletions after a lost status")
	p := alone(t, "deleted-statusless")
	stack, _ := p.deployed(destroyed)
	p.stopController()
	p.forgetUpdates()
	p.Get(p.Name, stack)
	p.Expect(stack.Annotations).To(HaveKeyWithValue(pulumiv1.DeployedStackAnnotation, "dev"))
	stack.Status = pulumiv1.StackStatus{}
	p.Expect(system.Client.Status().Update(p.Context(), stack)).To(Succeed())
	p.Delete()
	p.startController()
	p.awaitDestroyed()
}

// restored replaces the Stack by its copy from a backup without statuses and finalizers, while the controller is stopped.
func (p *fixture) restored(changes ...func(*pulumiv1.Stack)) {
	p.Helper()
	backup := &pulumiv1.Stack{}
	p.Get(p.Name, backup)
	p.Change(func(s *pulumiv1.Stack) { s.Finalizers = nil })
	p.Delete()
	p.AwaitGone()
	p.forgetUpdates()
	p.awaitNoWorkspace()
	backup.ObjectMeta = metav1.ObjectMeta{Namespace: p.Name, Name: p.Name, Labels: backup.Labels, Annotations: backup.Annotations}
	backup.Status = pulumiv1.StackStatus{}
	for _, edit := range changes {
		edit(backup)
	}
	p.Create(backup)
}

func TestStackThatWasRestoredWithoutStatusIsDestroyedWhenItIsDeleted(t *testing.T) {
	suite.Long(t, "deletions after a lost status")
	p := alone(t, "deleted-restored")
	p.deployed(destroyed)
	p.stopController()
	p.restored(suspended)
	p.startController()
	p.awaitFinalizer(p.Name)
	p.Delete()
	p.Await(says(pulumiv1.SuspendedReason))
	p.Change(resumed)
	p.awaitDestroyed()
}

func TestStackThatWasRestoredWithoutItsBackendIsNotCreatedAgain(t *testing.T) {
	suite.Long(t, "deletions after a lost status")
	p := alone(t, "restored-lost")
	_, artifact := p.deployed(destroyed, retriedSoon)
	p.stopController()
	p.restored()
	bringBack := p.lose()
	p.startController()
	p.Await(notReady(pulumiv1.StackLostReason))
	p.Expect(p.HasState(p.Name, "dev")).To(BeFalse())
	bringBack()
	p.Await(ready(artifact.Digest))
}

func TestStackThatNeverDeployedAnythingGoesThoughItsStackExists(t *testing.T) {
	suite.Long(t, "deletions after a lost status")
	p := begin(t, "deleted-new")
	first, _ := p.deployed()
	// This is another Stack for the same stack, which never ran. It must not destroy what it did not create.
	p.layer("second", destroyed, suspended, func(s *pulumiv1.Stack) { s.Spec.Stack = first.Spec.Stack })
	p.awaitFinalizer("second")
	p.deleteLayers("second")
	p.awaitLayers(p.Name)
	p.Expect(p.resources()).To(BeNumerically(">", 0))
}

// deleteNamespace does what "kubectl delete namespace" does: everything in the namespace is deleted, in no particular order, and nothing
// can be created in it.
func (p *fixture) deleteNamespace() {
	p.Helper()
	p.Expect(system.Client.Delete(p.Context(), &corev1.Namespace{Name: p.Name})).To(Succeed())
}

// awaitNamespaceGone waits until the namespace, and so everything in it, is gone.
func (p *fixture) awaitNamespaceGone() {
	p.Helper()
	p.Eventually(func() bool {
		return apierrors.IsNotFound(system.Client.Get(p.Context(), client.ObjectKey{Name: p.Name}, &corev1.Namespace{}))
	}).Should(BeTrue())
}

// stuck waits until the Stack reports that its namespace is being deleted before the Stack was destroyed.
func (p *fixture) stuck() *pulumiv1.Stack {
	p.Helper()
	stack := p.Await(says(pulumiv1.NamespaceTerminatingReason))
	p.Expect(statuscheck.Message(stack)).To(And(ContainSubstring("the namespace is being deleted"), ContainSubstring(`stack "dev"`)))
	p.Expect(stack.Finalizers).To(ContainElement(pulumiv1.Finalizer))
	return stack
}

func TestStackWhoseNamespaceGoesIsKeptAndCanBeDestroyedFromAnother(t *testing.T) {
	suite.Long(t, "deletions with a namespace")
	p := begin(t, "deleted-namespace")
	_, artifact := p.deployed(destroyed)
	p.deleteNamespace()
	p.stuck()
	p.AwaitAbsent(localsystem.PassphraseSecret, &corev1.Secret{})
	p.AwaitAbsent(p.Name, &sourcev1.ExternalArtifact{})
	// The Stack does not try again and again.
	stack := p.stuck()
	version := stack.ResourceVersion
	p.Consistently(func() string {
		p.Get(p.Name, stack)
		return stack.ResourceVersion
	}).WithTimeout(3 * time.Second).Should(Equal(version))

	// The same Stack in another namespace takes over the deployed resources, and destroys them.
	rescue := p.beside("deleted-namespace-rescue")
	rescue.start(artifact, func(s *pulumiv1.Stack) {
		s.Spec = *stack.Spec.DeepCopy()
		s.Spec.FluxSource.SourceRef.Name = s.Name
	})
	rescue.Await(ready(artifact.Digest))
	rescue.Delete()
	rescue.AwaitGone()
	p.Expect(p.resources()).To(BeZero())

	p.Change(orphan)
	p.awaitNamespaceGone()
}

func TestStackWhoseNamespaceGoesWithNothingToDestroyGoesWithIt(t *testing.T) {
	suite.Long(t, "further states in which a Stack is deleted")
	p := begin(t, "deleted-namespace-kept")
	p.deployed()
	p.deleteNamespace()
	p.awaitNamespaceGone()
	p.Expect(p.resources()).To(BeNumerically(">", 0))
}

func TestStackWhoseNamespaceGoesBeforeItSucceededSaysWhatToDo(t *testing.T) {
	suite.Long(t, "deletions with a namespace")
	p := begin(t, "deleted-namespace-failed")
	p.failedOnce()
	p.Change(retriedLate)
	p.deleteNamespace()
	p.Await(func(s *pulumiv1.Stack) bool {
		return says(pulumiv1.NamespaceTerminatingReason)(s) || says(pulumiv1.SourceNotFoundReason)(s)
	})
	p.Change(orphan)
	p.awaitNamespaceGone()
}

func TestDestroyThatRunsWhenItsNamespaceGoesIsEndedAndReported(t *testing.T) {
	suite.Long(t, "deletions with a namespace")
	p := begin(t, "deleted-namespace-running")
	p.deployed(destroyed)
	release := p.hold()
	p.Delete()
	p.awaitRuns("destroy", 1)
	p.deleteNamespace()
	p.stuck()
	release()
	p.Expect(p.resources()).To(BeNumerically(">", 0))
	p.Change(orphan)
	p.awaitNamespaceGone()
}

func TestUpdateThatRunsWhenItsNamespaceGoesIsEnded(t *testing.T) {
	suite.Long(t, "deletions with a namespace")
	p := begin(t, "deleted-namespace-update")
	p.deployed()
	p.hold()
	p.publish(p.returning(2))
	p.awaitHeld()
	p.deleteNamespace()
	p.awaitNamespaceGone()
}

// The Pulumi stack that the Stack deployed under another name is neither forgotten nor destroyed without a decision.
func TestStackThatWasRenamedForgetsNothing(t *testing.T) {
	suite.Long(t, "further ways of a deletion")
	r := newThings(begin(t, "renamed"), destroyed)
	r.Await(ready(r.publish(r.with("x", "first")).Digest))
	// A stack that is renamed with its resources is still the same one.
	r.pulumi("stack", "rename", "moved")
	r.Change(func(s *pulumiv1.Stack) { s.Spec.Stack = "moved" })
	stack := r.Await(both(ready(""), func(s *pulumiv1.Stack) bool { return s.Status.DeployedStack == "moved" }))
	r.Expect(stack.Status.LeftStacks).To(BeEmpty())

	r.Change(func(s *pulumiv1.Stack) { s.Spec.Stack = "next" })
	stack = r.Await(both(ready(""), func(s *pulumiv1.Stack) bool { return s.Status.DeployedStack == "next" }))
	r.Expect(stack.Status.LeftStacks).To(ConsistOf(HaveField("Name", "moved")))
	r.Eventually(func() []string { return r.events("PulumiStackLeft") }).Should(ContainElement(ContainSubstring(`"moved"`)))

	r.Delete()
	stack = r.Await(notReady(pulumiv1.PulumiStacksLeftReason))
	r.Expect(statuscheck.Message(stack)).To(And(ContainSubstring(`"moved" of project`), ContainSubstring(pulumiv1.OrphanAnnotation)))
	r.Expect(r.file("first")).NotTo(BeAnExistingFile(), "the present one is destroyed")
	r.Change(func(s *pulumiv1.Stack) { s.Spec.Stack = "moved" })
	r.AwaitGone()
	r.Expect(r.State(r.Name, "moved")).NotTo(ContainSubstring("test:index:Sleep"))
}
