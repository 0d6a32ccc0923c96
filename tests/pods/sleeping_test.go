package pods_test

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"testing"

	. "github.com/onsi/gomega"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	autov1alpha1 "github.com/stack-controller/stack-controller/api/auto/v1alpha1"
	pulumiv1 "github.com/stack-controller/stack-controller/api/pulumi/v1"
	"github.com/stack-controller/stack-controller/tests/gitserver"
	"github.com/stack-controller/stack-controller/tests/stage"
	"github.com/stack-controller/stack-controller/tests/statuscheck"
)

// sleepingApp is an app with a resource whose creation, or update, takes a while. Every status of it is checked.
type sleepingApp struct {
	*WithT
	*stage.App
	ctx context.Context
}

// letOthersRun ends the part of the test that has the system for itself, and begins the bounds of the waits anew.
func (a *sleepingApp) letOthersRun(t *testing.T) {
	t.Parallel()
	a.bound(t)
}

func (a *sleepingApp) bound(t *testing.T) {
	var cancel context.CancelFunc
	// More than one wait, each of which is bounded by patience.
	a.ctx, cancel = context.WithTimeout(t.Context(), 2*patience)
	t.Cleanup(cancel)
}

// deploySleeping deploys an app of that name, in a namespace and with a pulumi project of that name, with the properties of
// the resource, and returns when it is ready. Without properties the resource is not there yet. The changes are to the Stack.
func deploySleeping(t *testing.T, name, properties string, changes ...func(*pulumiv1.Stack)) *sleepingApp {
	t.Helper()
	a := &sleepingApp{WithT: NewWithT(t)}
	a.bound(t)
	checkStatuses(t, name)
	a.App = deploy(a.ctx, t, a.WithT, name, sleepingProgram(name, properties), changes...)
	return a
}

// sleepingProgram has two resources: one that is there at once, and after it the one with these properties.
func sleepingProgram(name, properties string) gitserver.Files {
	program := "name: " + name + "\nruntime: yaml\nresources:\n" +
		resourceThatSleeps("first", fmt.Sprintf("journal: /state/%s-first", name))
	if properties != "" {
		program += resourceThatSleeps("slow", fmt.Sprintf("journal: /state/%s-slow, %s", name, properties)) + "      dependsOn: [\"${first}\"]\n"
	}
	return gitserver.Files{"Pulumi.yaml": program}
}

func resourceThatSleeps(name, properties string) string {
	return fmt.Sprintf("  %s:\n    type: test:index:Sleep\n    properties: {%s}\n    options:\n      version: 0.1.0\n", name, properties)
}

// begin commits other properties of the resource and returns the Update once the last line of the resource's journal is this
// one.
func (a *sleepingApp) begin(properties, line string) *autov1alpha1.Update {
	_, err := a.Repository.Commit(sleepingProgram(a.Name, properties))
	a.Expect(err).NotTo(HaveOccurred())
	a.Expect(system.Fetch(a.ctx, a.App)).To(Succeed())
	a.awaitLine("slow", line)
	var running *autov1alpha1.Update
	eventually(a.ctx, a.WithT, func(g Gomega) {
		for _, update := range a.updates(g) {
			if update.Status.State == autov1alpha1.UpdateStateRunning {
				running = &update
				return
			}
		}
		g.Expect(running).NotTo(BeNil())
	})
	return running
}

// untilReleased are the properties of a resource that takes until release is called.
func (a *sleepingApp) untilReleased() string { return "until: /state/" + a.Name + "-released" }

func (a *sleepingApp) release() { release(a, a.Name) }

// release lets the resource of that name end that takes until then.
func release(g Gomega, name string) {
	g.Expect(os.WriteFile(filepath.Join(system.StateDir(), name+"-released"), nil, 0o644)).To(Succeed())
}

// journal is that of the app's resource.
func (a *sleepingApp) journal(resource string) []string { return journal(a, a.Name+"-"+resource) }

// awaitLine waits until this is the last line of the journal.
func (a *sleepingApp) awaitLine(resource, line string) {
	eventually(a.ctx, a.WithT, func(g Gomega) {
		lines := journal(g, a.Name+"-"+resource)
		g.Expect(lines).NotTo(BeEmpty())
		g.Expect(lines[len(lines)-1]).To(Equal(line))
	})
}

// locks are those of the pulumi stack in the backend.
func (a *sleepingApp) locks() []string {
	found, err := filepath.Glob(filepath.Join(system.StateDir(), ".pulumi", "locks", "*", a.Name, "*", "*.json"))
	a.Expect(err).NotTo(HaveOccurred())
	return found
}

func (a *sleepingApp) updates(g Gomega) []autov1alpha1.Update {
	list := &autov1alpha1.UpdateList{}
	g.Expect(system.Client.List(a.ctx, list, client.InNamespace(a.Namespace))).To(Succeed())
	return list.Items
}

// pod is the pod of the workspace.
func (a *sleepingApp) pod() *corev1.Pod { return podOf(a.ctx, a, a.Namespace, a.Name) }

// awaitSuccess waits until the Stack has succeeded after so many Updates, and returns it.
func (a *sleepingApp) awaitSuccess(updates int) *pulumiv1.Stack {
	return awaitStack(a.ctx, a.WithT, a.Key(), func(g Gomega, stack *pulumiv1.Stack) {
		g.Expect(stack.Status.CurrentUpdate).To(BeNil())
		g.Expect(stack.Status.LastUpdate.State).To(Equal(pulumiv1.StackUpdateSucceeded), stack.Status.LastUpdate.Message)
		g.Expect(a.updates(g)).To(HaveLen(updates))
	})
}

// expectRecovery expects that the Update was interrupted, that another one took up its work, in the pod that is there now, and
// that nothing is left of it.
func (a *sleepingApp) expectRecovery(interrupted *autov1alpha1.Update, message OmegaMatcher) {
	awaitEnd(a.ctx, a.WithT, interrupted)
	a.Expect(interrupted.Status.State).To(Equal(autov1alpha1.UpdateStateInterrupted))
	a.Expect(interrupted.Status.Message).To(message)
	stack := a.awaitSuccess(3)
	a.Expect(stack.Status.LastUpdate.Name).NotTo(Equal(interrupted.Name))
	a.Expect(stack.Status.LastUpdate.Failures).To(BeZero())
	a.Expect(stack.Status.LastUpdate.Interruptions).To(BeZero())
	for _, update := range a.updates(a) {
		a.Expect(update.WasInterrupted()).To(Equal(update.Name == interrupted.Name), update.Name)
		a.Expect(update.HasFailed()).To(Equal(update.Name == interrupted.Name), update.Name)
	}
	a.Expect(a.locks()).To(BeEmpty())
	a.Expect(a.journal("first")).To(Equal([]string{"create start", "create end"}))
}

// checkStatuses checks, at the end of the test, every status that was written in the namespace.
func checkStatuses(t *testing.T, namespace string) {
	t.Helper()
	watcher, err := statuscheck.Watch(context.WithoutCancel(t.Context()), system.Client, namespace)
	NewWithT(t).Expect(err).NotTo(HaveOccurred())
	t.Cleanup(func() {
		checked, err := watcher.Stop()
		t.Logf("%d statuses were checked", checked)
		if err != nil {
			t.Error(err)
		}
	})
}

// removeNamespaceAtEnd makes room for the pods of others. It does not wait until the namespace is gone.
func removeNamespaceAtEnd(t *testing.T, g *WithT, name string) {
	t.Cleanup(func() {
		expectNoCanaries(t, name)
		namespace := &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: name}}
		g.Expect(client.IgnoreNotFound(system.Client.Delete(context.WithoutCancel(t.Context()), namespace))).To(Succeed())
	})
}
