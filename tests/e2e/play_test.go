package e2e_test

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"testing"

	. "github.com/onsi/gomega"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/fluxcd/pkg/apis/meta"
	sourcev1 "github.com/fluxcd/source-controller/api/v1"

	autov1alpha1 "github.com/stack-controller/stack-controller/api/auto/v1alpha1"
	pulumiv1 "github.com/stack-controller/stack-controller/api/pulumi/v1"
	"github.com/stack-controller/stack-controller/tests/gitserver"
	"github.com/stack-controller/stack-controller/tests/stage"
	"github.com/stack-controller/stack-controller/tests/stage/scene"
	"github.com/stack-controller/stack-controller/tests/statuscheck"
)

var ready, notReady = statuscheck.Ready, statuscheck.NotReady

// play is a scene with a Stack that follows an ExternalArtifact of its name, a git repository or a Program.
type play struct {
	*scene.Scene
	// revisions is how many were put.
	revisions int
}

// begin makes a play for a test that runs beside others.
func begin(t *testing.T, name string) *play {
	t.Helper()
	t.Parallel()
	return alone(t, name)
}

// alone makes a play for a test that runs before the parallel ones, because it stops the controller.
func alone(t *testing.T, name string) *play {
	t.Helper()
	return &play{Scene: scene.New(t, system, name, scene.Patience)}
}

// beside makes a play of the same test.
func (p *play) beside(name string) *play { return alone(p.T, name) }

// secretRef refers to the secret that every namespace here has.
func secretRef() pulumiv1.ResourceRef { return stage.SecretRef(stage.PassphraseSecret, "canary") }

// usesPassword is a Stack with the secret as configuration.
func usesPassword(s *pulumiv1.Stack) {
	s.Spec.SecretRefs = map[string]pulumiv1.ResourceRef{"password": secretRef()}
}

// secret is the content of the Secret that every Stack here uses.
func secret() map[string]string {
	return map[string]string{stage.PassphraseKey: passphraseCanary, "canary": secretCanary}
}

func (p *play) newStack() *pulumiv1.Stack {
	return system.NewStack(p.Name, p.Name, sourcev1.ExternalArtifactKind)
}

// enter creates the namespace, with the Secret that every Stack uses, and the objects.
func (p *play) enter(objects ...client.Object) {
	p.Helper()
	p.Enter(secret(), objects...)
}

// start creates the namespace, its Secret, the Stack after the changes, and an ExternalArtifact that publishes the artifact unless that is nil.
func (p *play) start(artifact *meta.Artifact, changes ...func(*pulumiv1.Stack)) {
	p.Helper()
	stack := p.newStack()
	for _, change := range changes {
		change(stack)
	}
	p.enter(&sourcev1.ExternalArtifact{ObjectMeta: p.Meta(p.Name)}, stack)
	if artifact != nil {
		p.Offer(artifact)
	}
}

// put serves the files as the next revision: v1, v2 and so on.
func (p *play) put(files gitserver.Files) *meta.Artifact {
	p.revisions++
	return artifacts.Put(fmt.Sprintf("v%d", p.revisions), scene.Packed(files))
}

// publish makes the ExternalArtifact offer the files.
func (p *play) publish(files gitserver.Files) *meta.Artifact {
	p.Helper()
	artifact := p.put(files)
	p.Offer(artifact)
	return artifact
}

// yaml is a Pulumi program with the body.
func (p *play) yaml(lines ...string) gitserver.Files { return scene.Program(p.Name, lines...) }

// returning is a Pulumi program whose output "x" has the value.
func (p *play) returning(value any) gitserver.Files { return scene.Returning(p.Name, value) }

// deployed starts a Stack of a trivial program, changed as told, and waits until it is Ready.
func (p *play) deployed(changes ...func(*pulumiv1.Stack)) (*pulumiv1.Stack, *meta.Artifact) {
	p.Helper()
	artifact := p.put(p.returning(1))
	p.start(artifact, changes...)
	return p.Await(ready(artifact.Digest)), artifact
}

// resources returns how many resources the backend has for the stack "dev" of the project.
func (p *play) resources() int {
	p.Helper()
	return len(p.StateResources())
}

// stateOf returns the resource of the key from the state of the stack; nil when it has none.
func (p *play) stateOf(key string) *scene.StateResource {
	p.Helper()
	for _, resource := range p.StateResources() {
		if strings.HasSuffix(resource.URN, "::"+key) {
			return &resource
		}
	}
	return nil
}

// awaitDestroyed waits until the Stack is gone, and expects that nothing is left in its state.
func (p *play) awaitDestroyed() {
	p.Helper()
	p.AwaitGone()
	p.Expect(p.resources()).To(BeZero())
}

// awaitReleased waits until the Stack is gone, and expects that its resources are left.
func (p *play) awaitReleased() {
	p.Helper()
	p.AwaitGone()
	p.Expect(p.resources()).To(BeNumerically(">", 0))
}

// awaitUpdates waits until so many are left.
func (p *play) awaitUpdates(count int) {
	p.Helper()
	p.Eventually(p.Updates).Should(HaveLen(count))
}

// awaitNext waits for the success of an update after the one that the Stack recorded.
func (p *play) awaitNext(stack *pulumiv1.Stack) *pulumiv1.Stack {
	p.Helper()
	previous := stack.Status.LastUpdate.Name
	return p.Await(func(s *pulumiv1.Stack) bool { return ready("")(s) && s.Status.LastUpdate.Name != previous })
}

// outputs reads the Secret with the outputs of the Stack's last Update.
func (p *play) outputs(stack *pulumiv1.Stack) *corev1.Secret {
	p.Helper()
	secret := &corev1.Secret{}
	p.Get(stack.Status.LastUpdate.Name+autov1alpha1.OutputsSecretSuffix, secret)
	return secret
}

// events returns the messages of the events of the reason in the namespace.
func (p *play) events(reason string) (messages []string) {
	p.Helper()
	var list corev1.EventList
	p.Expect(system.Client.List(p.Context(), &list, client.InNamespace(p.Name))).To(Succeed())
	for _, event := range list.Items {
		if event.Reason == reason {
			messages = append(messages, slices.Repeat([]string{event.Message}, int(max(event.Count, 1)))...)
		}
	}
	return messages
}

// deleteWorkspace deletes the Workspace as somebody does by hand, and waits until it is gone, or another one is in its place.
func (p *play) deleteWorkspace() {
	p.Helper()
	workspace := p.Workspace()
	first := workspace.UID
	p.Expect(system.Client.Delete(p.Context(), workspace)).To(Succeed())
	p.Eventually(func() bool {
		err := system.Client.Get(p.Context(), p.Key(p.Name), workspace)
		return apierrors.IsNotFound(err) || workspace.UID != first
	}).Should(BeTrue())
}

// awaitNoWorkspace waits until the namespace has no Workspace.
func (p *play) awaitNoWorkspace() {
	p.Helper()
	p.AwaitAbsent(p.Name, &autov1alpha1.Workspace{})
}

// awaitFinalizer waits until the controller has seen the Stack.
func (p *play) awaitFinalizer(name string) {
	p.Helper()
	p.AwaitStack(name, func(s *pulumiv1.Stack) bool { return slices.Contains(s.Finalizers, pulumiv1.Finalizer) })
}

// handmade creates an Update as a user writes it.
func (p *play) handmade(kind autov1alpha1.UpdateType, changes ...func(*autov1alpha1.Update)) *autov1alpha1.Update {
	p.Helper()
	update := &autov1alpha1.Update{
		ObjectMeta: p.Meta(string(kind)),
		Spec:       autov1alpha1.UpdateSpec{WorkspaceName: p.Name, StackName: "dev", Type: kind},
	}
	for _, change := range changes {
		change(update)
	}
	p.Create(update)
	return update
}

// awaitUpdate returns the Update once it is as asked.
func (p *play) awaitUpdate(update *autov1alpha1.Update, is func(*autov1alpha1.Update) bool) {
	p.Helper()
	p.Eventually(func(g Gomega) {
		g.Expect(system.Client.Get(p.Context(), client.ObjectKeyFromObject(update), update)).To(Succeed())
		g.Expect(is(update)).To(BeTrue(), "%+v", update.Status)
	}).Should(Succeed())
}

// awaitSuccess waits until the Update has ended, and expects that it did what it had to.
func (p *play) awaitSuccess(update *autov1alpha1.Update) {
	p.Helper()
	p.awaitUpdate(update, (*autov1alpha1.Update).IsComplete)
	p.Expect(update.HasFailed()).To(BeFalse(), "%s: %s", update.Name, update.Status.Message)
}

// layer adds a Stack with the name to the namespace. All of them share the source, which is named like the namespace.
func (p *play) layer(name string, changes ...func(*pulumiv1.Stack)) {
	p.Helper()
	stack := p.newStack()
	stack.Name, stack.Spec.Stack = name, name
	for _, edit := range changes {
		edit(stack)
	}
	p.Create(stack)
}

// deleteLayers asks for the end of the Stacks of these names.
func (p *play) deleteLayers(names ...string) {
	p.Helper()
	for _, name := range names {
		p.Expect(system.Client.Delete(p.Context(), &pulumiv1.Stack{ObjectMeta: p.Meta(name)})).To(Succeed())
	}
}

// awaitLayers waits until the namespace has these Stacks and no others.
func (p *play) awaitLayers(left ...string) {
	p.Helper()
	p.Eventually(func(g Gomega) {
		var list pulumiv1.StackList
		g.Expect(system.Client.List(p.Context(), &list, client.InNamespace(p.Name))).To(Succeed())
		names := []string{}
		for i := range list.Items {
			names = append(names, list.Items[i].Name)
		}
		g.Expect(names).To(ConsistOf(left))
	}).WithTimeout(2 * p.Patience).Should(Succeed())
}

// stopController ends the controller. A test that fails before it has started the next one does not take it away from the other tests.
func (p *play) stopController() {
	p.Helper()
	p.Expect(system.StopController()).To(Succeed())
	stopped := system.Controller()
	p.Cleanup(func() {
		if system.Controller() == stopped {
			p.Expect(system.StartController(context.Background())).To(Succeed())
		}
	})
}

// startController starts the next one, with further flags.
func (p *play) startController(flags ...string) {
	p.Helper()
	p.Expect(system.StartController(p.Context(), flags...)).To(Succeed())
}

// restartController ends the controller and starts the next one.
func (p *play) restartController(flags ...string) {
	p.Helper()
	p.stopController()
	p.startController(flags...)
}
