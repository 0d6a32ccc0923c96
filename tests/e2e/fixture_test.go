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
	"github.com/stack-controller/stack-controller/tests/framework/gitserver"
	"github.com/stack-controller/stack-controller/tests/framework/localsystem"
	"github.com/stack-controller/stack-controller/tests/framework/statuscheck"
	"github.com/stack-controller/stack-controller/tests/framework/systemtest"
)

var ready, notReady = statuscheck.Ready, statuscheck.NotReady

// fixture is a fixture with a Stack that follows a git repository, a Program, or an ExternalArtifact of the same name.
type fixture struct {
	*systemtest.Fixture
	// revisions is how many revisions were served.
	revisions int
}

// begin makes a play for a test that runs in parallel to others.
func begin(t *testing.T, name string) *fixture {
	t.Helper()
	t.Parallel()
	return alone(t, name)
}

// alone makes a play for a test that runs before the parallel ones, for example because it stops the controller.
func alone(t *testing.T, name string) *fixture {
	t.Helper()
	return &fixture{Fixture: systemtest.New(t, system, name, systemtest.Patience)}
}

// beside makes a further play for the same test.
func (p *fixture) beside(name string) *fixture { return alone(p.T, name) }

// secretRef refers to the Secret that every namespace of these tests has.
func secretRef() pulumiv1.ResourceRef {
	return localsystem.SecretRef(localsystem.PassphraseSecret, "canary")
}

// usesPassword makes the secret a part of the Stack's configuration.
func usesPassword(s *pulumiv1.Stack) {
	s.Spec.SecretRefs = map[string]pulumiv1.ResourceRef{"password": secretRef()}
}

// secret returns the content of the Secret that every Stack of these tests uses.
func secret() map[string]string {
	return map[string]string{localsystem.PassphraseKey: passphraseCanary, "canary": secretCanary}
}

func (p *fixture) newStack() *pulumiv1.Stack {
	return system.NewStack(p.Name, p.Name, sourcev1.ExternalArtifactKind)
}

// enter creates the namespace, with the Secret that every Stack uses, and the objects.
func (p *fixture) enter(objects ...client.Object) {
	p.Helper()
	p.Enter(secret(), objects...)
}

// start creates the namespace, its Secret, the Stack with the changes, and an ExternalArtifact, which publishes the artifact unless it is
// nil.
func (p *fixture) start(artifact *meta.Artifact, changes ...func(*pulumiv1.Stack)) {
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
func (p *fixture) put(files gitserver.Files) *meta.Artifact {
	p.revisions++
	return artifacts.Put(fmt.Sprintf("v%d", p.revisions), systemtest.Packed(files))
}

// publish makes the ExternalArtifact offer the files.
func (p *fixture) publish(files gitserver.Files) *meta.Artifact {
	p.Helper()
	artifact := p.put(files)
	p.Offer(artifact)
	return artifact
}

// yaml returns a Pulumi program with the lines.
func (p *fixture) yaml(lines ...string) gitserver.Files { return systemtest.Program(p.Name, lines...) }

// returning returns a Pulumi program whose output "x" has the value.
func (p *fixture) returning(value any) gitserver.Files { return systemtest.Returning(p.Name, value) }

// deployed starts a Stack with a trivial program and with the changes, and waits until it is Ready.
func (p *fixture) deployed(changes ...func(*pulumiv1.Stack)) (*pulumiv1.Stack, *meta.Artifact) {
	p.Helper()
	artifact := p.put(p.returning(1))
	p.start(artifact, changes...)
	return p.Await(ready(artifact.Digest)), artifact
}

// resources returns how many resources the backend has for the stack "dev" of the project.
func (p *fixture) resources() int {
	p.Helper()
	return len(p.StateResources())
}

// stateOf returns the resource with the name from the state of the stack, or nil when the state has none.
func (p *fixture) stateOf(key string) *systemtest.StateResource {
	p.Helper()
	for _, resource := range p.StateResources() {
		if strings.HasSuffix(resource.URN, "::"+key) {
			return &resource
		}
	}
	return nil
}

// awaitDestroyed waits until the Stack is gone, and expects that nothing is left in its state.
func (p *fixture) awaitDestroyed() {
	p.Helper()
	p.AwaitGone()
	p.Expect(p.resources()).To(BeZero())
}

// awaitReleased waits until the Stack is gone, and expects that its resources still exist.
func (p *fixture) awaitReleased() {
	p.Helper()
	p.AwaitGone()
	p.Expect(p.resources()).To(BeNumerically(">", 0))
}

// awaitUpdates waits until the namespace has exactly count Updates.
func (p *fixture) awaitUpdates(count int) {
	p.Helper()
	p.Eventually(p.Updates).Should(HaveLen(count))
}

// awaitNext waits for the success of an update after the one that the Stack recorded.
func (p *fixture) awaitNext(stack *pulumiv1.Stack) *pulumiv1.Stack {
	p.Helper()
	previous := stack.Status.LastUpdate.Name
	return p.Await(func(s *pulumiv1.Stack) bool { return ready("")(s) && s.Status.LastUpdate.Name != previous })
}

// outputs reads the Secret with the outputs of the Stack's last Update.
func (p *fixture) outputs(stack *pulumiv1.Stack) *corev1.Secret {
	p.Helper()
	secret := &corev1.Secret{}
	p.Get(stack.Status.LastUpdate.Name+autov1alpha1.OutputsSecretSuffix, secret)
	return secret
}

// events returns the messages of the events of the reason in the namespace.
func (p *fixture) events(reason string) (messages []string) {
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

// deleteWorkspace deletes the Workspace, as a user would by hand, and waits until it is gone or replaced.
func (p *fixture) deleteWorkspace() {
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
func (p *fixture) awaitNoWorkspace() {
	p.Helper()
	p.AwaitAbsent(p.Name, &autov1alpha1.Workspace{})
}

// awaitFinalizer waits until the Stack has its finalizer, which shows that the controller has reconciled it.
func (p *fixture) awaitFinalizer(name string) {
	p.Helper()
	p.AwaitStack(name, func(s *pulumiv1.Stack) bool { return slices.Contains(s.Finalizers, pulumiv1.Finalizer) })
}

// handmade creates an Update as a user would.
func (p *fixture) handmade(kind autov1alpha1.UpdateType, changes ...func(*autov1alpha1.Update)) *autov1alpha1.Update {
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

// awaitUpdate reads the Update until the function reports true for it.
func (p *fixture) awaitUpdate(update *autov1alpha1.Update, is func(*autov1alpha1.Update) bool) {
	p.Helper()
	p.Eventually(func(g Gomega) {
		g.Expect(system.Client.Get(p.Context(), client.ObjectKeyFromObject(update), update)).To(Succeed())
		g.Expect(is(update)).To(BeTrue(), "%+v", update.Status)
	}).Should(Succeed())
}

// awaitSuccess waits until the Update has ended, and expects that it succeeded.
func (p *fixture) awaitSuccess(update *autov1alpha1.Update) {
	p.Helper()
	p.awaitUpdate(update, (*autov1alpha1.Update).IsComplete)
	p.Expect(update.HasFailed()).To(BeFalse(), "%s: %s", update.Name, update.Status.Message)
}

// layer adds a Stack with the name to the namespace. All these Stacks share the source that is named like the namespace.
func (p *fixture) layer(name string, changes ...func(*pulumiv1.Stack)) {
	p.Helper()
	stack := p.newStack()
	stack.Name, stack.Spec.Stack = name, name
	for _, edit := range changes {
		edit(stack)
	}
	p.Create(stack)
}

// deleteLayers deletes the Stacks with these names.
func (p *fixture) deleteLayers(names ...string) {
	p.Helper()
	for _, name := range names {
		p.Expect(system.Client.Delete(p.Context(), &pulumiv1.Stack{ObjectMeta: p.Meta(name)})).To(Succeed())
	}
}

// awaitLayers waits until the namespace has these Stacks and no others.
func (p *fixture) awaitLayers(left ...string) {
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

// stopController stops the controller. If the test fails before it starts the next one, a cleanup does so for the other tests.
func (p *fixture) stopController() {
	p.Helper()
	p.Expect(system.StopController()).To(Succeed())
	stopped := system.Controller()
	p.Cleanup(func() {
		if system.Controller() == stopped {
			p.Expect(system.StartController(context.Background())).To(Succeed())
		}
	})
}

// startController starts the next controller, with further flags.
func (p *fixture) startController(flags ...string) {
	p.Helper()
	p.Expect(system.StartController(p.Context(), flags...)).To(Succeed())
}

// restartController stops the controller and starts the next one.
func (p *fixture) restartController(flags ...string) {
	p.Helper()
	p.stopController()
	p.startController(flags...)
}
