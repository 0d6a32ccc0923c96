package e2e_test

import (
	"strings"
	"testing"

	. "github.com/onsi/gomega"
	apimeta "k8s.io/apimachinery/pkg/api/meta"

	"github.com/fluxcd/pkg/apis/meta"
	sourcev1 "github.com/fluxcd/source-controller/api/v1"

	autov1alpha1 "github.com/stack-controller/stack-controller/api/auto/v1alpha1"
	pulumiv1 "github.com/stack-controller/stack-controller/api/pulumi/v1"
	"github.com/stack-controller/stack-controller/tests/stage"
	"github.com/stack-controller/stack-controller/tests/stage/scene"
	"github.com/stack-controller/stack-controller/tests/statuscheck"
	"github.com/stack-controller/stack-controller/tests/suite"
)

func destroyed(s *pulumiv1.Stack) { s.Spec.DestroyOnFinalize = true }

func suspended(s *pulumiv1.Stack) { s.Spec.Suspend = true }

func resumed(s *pulumiv1.Stack) { s.Spec.Suspend = false }

var orphan = scene.Annotate(pulumiv1.OrphanAnnotation, "true")

// says is a Stack that is not ready for the reason and tells how its deletion can go on.
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
	p.Expect(system.Client.Delete(p.Context(), p.Secret(stage.PassphraseSecret, nil))).To(Succeed())
	p.Delete()
	waiting := p.Await(says(pulumiv1.SecretNotFoundReason))
	p.Expect(statuscheck.Message(waiting)).To(ContainSubstring(stage.PassphraseSecret))
	p.Create(p.Secret(stage.PassphraseSecret, secret()))
	p.awaitDestroyed()
}

func TestOrphanedStackGoesWhileItsDestroyWaits(t *testing.T) {
	suite.Long(t, "further states in which a Stack is deleted")
	p := begin(t, "deleted-waiting")
	p.deployed(destroyed)
	p.Expect(system.Client.Delete(p.Context(), p.Secret(stage.PassphraseSecret, nil))).To(Succeed())
	p.Delete()
	p.Await(says(pulumiv1.SecretNotFoundReason))
	p.Change(orphan)
	p.awaitReleased()
}

// failedOnce starts a Stack whose only update fails after it created something, so that it is not known how to destroy it without its
// source.
func (p *play) failedOnce() (*pulumiv1.Stack, *meta.Artifact) {
	p.Helper()
	artifact := p.put(p.returning("${nothing.here}"))
	p.start(artifact, destroyed, func(s *pulumiv1.Stack) { s.Spec.RetryMaxBackoffDurationSeconds = 3600 })
	return p.Await(notReady(pulumiv1.RetryingAfterFailureReason)), artifact
}

func TestDeletedStackWhoseSourceIsGoneAndNeverSucceededSaysWhatToDo(t *testing.T) {
	suite.Long(t, "further states in which a Stack is deleted")
	p := begin(t, "deleted-sourceless")
	stack, artifact := p.failedOnce()
	p.Expect(stack.Status.ProjectInfo).To(BeNil())
	artifacts.Replace(artifact.Path, nil)
	p.Expect(system.Client.Delete(p.Context(), &sourcev1.ExternalArtifact{ObjectMeta: p.Meta(p.Name)})).To(Succeed())
	p.Await(notReady(pulumiv1.SourceNotFoundReason))
	p.Delete()
	waiting := p.Await(says(pulumiv1.SourceNotFoundReason))
	p.Expect(statuscheck.Message(waiting)).To(HavePrefix("cannot destroy: "))
	p.Change(orphan)
	p.AwaitGone()
}

// destroyFails starts a Stack and deletes it with a backend that is not there.
func (p *play) destroyFails() {
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
