package e2e_test

import (
	"strings"
	"testing"
	"time"

	. "github.com/onsi/gomega"
	corev1 "k8s.io/api/core/v1"
	apimeta "k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/fluxcd/pkg/apis/meta"
	"github.com/fluxcd/pkg/runtime/conditions"
	sourcev1 "github.com/fluxcd/source-controller/api/v1"

	autov1alpha1 "github.com/stack-controller/stack-controller/api/auto/v1alpha1"
	pulumiv1 "github.com/stack-controller/stack-controller/api/pulumi/v1"
	"github.com/stack-controller/stack-controller/tests/stage"
)

func destroyed(s *pulumiv1.Stack) { s.Spec.DestroyOnFinalize = true }

func orphan(s *pulumiv1.Stack) {
	metav1.SetMetaDataAnnotation(&s.ObjectMeta, pulumiv1.OrphanAnnotation, "true")
}

// says is a Stack that is not ready for the reason and tells how its deletion can go on.
func says(reason string) func(*pulumiv1.Stack) bool {
	return func(s *pulumiv1.Stack) bool {
		return !s.DeletionTimestamp.IsZero() && notReady(reason)(s) &&
			strings.Contains(conditions.GetMessage(s, meta.ReadyCondition), pulumiv1.OrphanAnnotation+"=true")
	}
}

func TestSuspendedStackThatIsDeletedSaysWhatToDo(t *testing.T) {
	t.Parallel()
	for name, goOn := range map[string]struct {
		edit func(*pulumiv1.Stack)
		left bool
	}{
		"deleted-resumed":  {func(s *pulumiv1.Stack) { s.Spec.Suspend = false }, false},
		"deleted-orphaned": {orphan, true},
	} {
		g := NewWithT(t)
		stack, _ := deployed(t, g, name, destroyed)
		change(t.Context(), g, name, func(s *pulumiv1.Stack) { s.Spec.Suspend = true })
		g.Expect(system.Client.Delete(t.Context(), stack)).To(Succeed())
		waiting := await(t.Context(), g, name, says(pulumiv1.SuspendedReason))
		g.Expect(apimeta.IsStatusConditionTrue(waiting.Status.Conditions, meta.StalledCondition)).To(BeTrue())
		g.Expect(updates(t.Context(), g, name)).To(HaveLen(1), "nothing runs while the stack is suspended")
		change(t.Context(), g, name, goOn.edit)
		awaitGone(t.Context(), g, name)
		g.Expect(resources(g, name) > 0).To(Equal(goOn.left))
	}
}

func TestSuspendedStackWithNothingToDestroyGoesAtOnce(t *testing.T) {
	t.Parallel()
	g := NewWithT(t)
	const name = "deleted-suspended"
	stack, _ := deployed(t, g, name)
	change(t.Context(), g, name, func(s *pulumiv1.Stack) { s.Spec.Suspend = true })
	g.Expect(system.Client.Delete(t.Context(), stack)).To(Succeed())
	awaitGone(t.Context(), g, name)
}

func TestDeletedStackWhoseSecretIsGoneSaysSoAndGoesOnWithIt(t *testing.T) {
	t.Parallel()
	g := NewWithT(t)
	const name = "deleted-secretless"
	stack, _ := deployed(t, g, name, destroyed)
	g.Expect(system.Client.Delete(t.Context(), &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Namespace: name, Name: stage.PassphraseSecret}})).To(Succeed())
	g.Expect(system.Client.Delete(t.Context(), stack)).To(Succeed())
	waiting := await(t.Context(), g, name, says(pulumiv1.SecretNotFoundReason))
	g.Expect(readyMessage(waiting)).To(ContainSubstring(stage.PassphraseSecret))
	g.Expect(system.Client.Create(t.Context(), passphrase(name))).To(Succeed())
	awaitGone(t.Context(), g, name)
	g.Expect(resources(g, name)).To(BeZero())
}

func TestOrphanedStackGoesWhileItsDestroyWaits(t *testing.T) {
	t.Parallel()
	g := NewWithT(t)
	const name = "deleted-waiting"
	stack, _ := deployed(t, g, name, destroyed)
	g.Expect(system.Client.Delete(t.Context(), &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Namespace: name, Name: stage.PassphraseSecret}})).To(Succeed())
	g.Expect(system.Client.Delete(t.Context(), stack)).To(Succeed())
	await(t.Context(), g, name, says(pulumiv1.SecretNotFoundReason))
	change(t.Context(), g, name, orphan)
	awaitGone(t.Context(), g, name)
	g.Expect(resources(g, name)).To(BeNumerically(">", 0))
}

// failedOnce starts a Stack whose only update fails after it created something, so that it is not known how to destroy it without its
// source.
func failedOnce(t *testing.T, g *WithT, name string) (*pulumiv1.Stack, *meta.Artifact) {
	lines := []string{"outputs:", "  x: ${nothing.here}"}
	artifact := artifacts.put("v1", packed(yamlProgram(name, lines...)))
	g.Expect(start(t.Context(), name, artifact, destroyed, func(s *pulumiv1.Stack) {
		s.Spec.RetryMaxBackoffDurationSeconds = 3600
	})).To(Succeed())
	return await(t.Context(), g, name, notReady(pulumiv1.RetryingAfterFailureReason)), artifact
}

func TestDeletedStackWhoseSourceIsGoneAndNeverSucceededSaysWhatToDo(t *testing.T) {
	t.Parallel()
	g := NewWithT(t)
	const name = "deleted-sourceless"
	stack, artifact := failedOnce(t, g, name)
	g.Expect(stack.Status.ProjectInfo).To(BeNil())
	artifacts.remove(artifact)
	g.Expect(system.Client.Delete(t.Context(), &sourcev1.ExternalArtifact{ObjectMeta: metav1.ObjectMeta{Namespace: name, Name: name}})).To(Succeed())
	await(t.Context(), g, name, notReady(pulumiv1.SourceNotFoundReason))
	g.Expect(system.Client.Delete(t.Context(), stack)).To(Succeed())
	waiting := await(t.Context(), g, name, says(pulumiv1.SourceNotFoundReason))
	g.Expect(readyMessage(waiting)).To(HavePrefix("cannot destroy: "))
	change(t.Context(), g, name, orphan)
	awaitGone(t.Context(), g, name)
}

// destroyFails starts a Stack and deletes it with a backend that is not there. It returns the right one.
func destroyFails(t *testing.T, g *WithT, name string) (backend string) {
	stack, _ := deployed(t, g, name, destroyed, func(s *pulumiv1.Stack) { s.Spec.RetryInterval = &metav1.Duration{Duration: time.Hour} })
	change(t.Context(), g, name, func(s *pulumiv1.Stack) { s.Spec.Backend, s.Spec.Suspend = "file:///no/such/directory", true })
	g.Expect(system.Client.Delete(t.Context(), stack)).To(Succeed())
	await(t.Context(), g, name, says(pulumiv1.SuspendedReason))
	change(t.Context(), g, name, func(s *pulumiv1.Stack) { s.Spec.Suspend = false })
	failed := await(t.Context(), g, name, says(pulumiv1.RetryingAfterFailureReason))
	g.Expect(failed.Status.LastUpdate.Type).To(Equal(autov1alpha1.UpdateTypeDestroy))
	return stack.Spec.Backend
}

func TestOrphanedStackGoesBetweenTwoAttemptsToDestroyIt(t *testing.T) {
	t.Parallel()
	g := NewWithT(t)
	const name = "deleted-retrying"
	destroyFails(t, g, name)
	change(t.Context(), g, name, orphan)
	awaitGone(t.Context(), g, name)
	g.Expect(resources(g, name)).To(BeNumerically(">", 0))
}

func TestMendedStackIsDestroyedAtOnceThoughTheLastAttemptFailed(t *testing.T) {
	t.Parallel()
	g := NewWithT(t)
	const name = "deleted-mended"
	right := destroyFails(t, g, name)
	change(t.Context(), g, name, func(s *pulumiv1.Stack) { s.Spec.Backend = right })
	awaitGone(t.Context(), g, name)
	g.Expect(resources(g, name)).To(BeZero())
}
