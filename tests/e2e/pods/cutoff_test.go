package pods_test

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"testing"
	"time"

	. "github.com/onsi/gomega"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	autov1alpha1 "github.com/stack-controller/stack-controller/api/auto/v1alpha1"
	pulumiv1 "github.com/stack-controller/stack-controller/api/pulumi/v1"
	"github.com/stack-controller/stack-controller/tests/framework/gitserver"
	"github.com/stack-controller/stack-controller/tests/framework/localsystem"
	"github.com/stack-controller/stack-controller/tests/framework/statuscheck"
	"github.com/stack-controller/stack-controller/tests/framework/suite"
)

// sleepingApp is an app with a resource that takes a while to be created or updated. Every status of the app is checked.
type sleepingApp struct {
	*WithT
	*localsystem.App
	ctx context.Context
}

// letOthersRun ends the part of the test that runs alone, and starts a new time limit for the waits that follow.
func (a *sleepingApp) letOthersRun(t *testing.T) {
	t.Parallel()
	a.bound(t)
}

func (a *sleepingApp) bound(t *testing.T) {
	var cancel context.CancelFunc
	// The limit covers several waits, each of which is bounded by patience.
	a.ctx, cancel = context.WithTimeout(t.Context(), 2*patience)
	t.Cleanup(cancel)
}

// deploySleeping deploys an app of that name, in a namespace and with a pulumi project of the same name, and returns when it is ready. The
// properties are those of the slow resource; without them the program does not have that resource yet. The changes apply to the Stack.
func deploySleeping(t *testing.T, name, properties string, changes ...func(*pulumiv1.Stack)) *sleepingApp {
	t.Helper()
	a := &sleepingApp{WithT: NewWithT(t)}
	a.bound(t)
	checkStatuses(t, name)
	a.App = deploy(a.ctx, t, a.WithT, name, sleepingProgram(name, properties), changes...)
	return a
}

// sleepingProgram has two resources: one that is created at once, and after it one with the given properties.
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

// begin commits new properties of the resource, waits until the last line of the resource's journal is the given one, and returns the
// Update that runs.
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

// untilReleased returns the properties of a resource whose operation lasts until release is called.
func (a *sleepingApp) untilReleased() string { return "until: /state/" + a.Name + "-released" }

func (a *sleepingApp) release() { release(a, a.Name) }

// release ends the operation of the resource of that name, which waits for this call.
func release(g Gomega, name string) {
	g.Expect(os.WriteFile(filepath.Join(system.StateDir(), name+"-released"), nil, 0o644)).To(Succeed())
}

// journal returns the journal of one of the app's resources.
func (a *sleepingApp) journal(resource string) []string { return journal(a, a.Name+"-"+resource) }

// awaitLine waits until the last line of the journal is the given one.
func (a *sleepingApp) awaitLine(resource, line string) {
	eventually(a.ctx, a.WithT, func(g Gomega) {
		lines := journal(g, a.Name+"-"+resource)
		g.Expect(lines).NotTo(BeEmpty())
		g.Expect(lines[len(lines)-1]).To(Equal(line))
	})
}

// locks returns the locks of the pulumi stack in the backend.
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

// pod returns the pod of the workspace.
func (a *sleepingApp) pod() *corev1.Pod { return podOf(a.ctx, a, a.Namespace, a.Name) }

// awaitSuccess waits until the Stack has succeeded and has the given number of Updates, and returns the Stack.
func (a *sleepingApp) awaitSuccess(updates int) *pulumiv1.Stack {
	return awaitStack(a.ctx, a.WithT, a.Key(), func(g Gomega, stack *pulumiv1.Stack) {
		g.Expect(stack.Status.CurrentUpdate).To(BeNil())
		g.Expect(stack.Status.LastUpdate.State).To(Equal(pulumiv1.StackUpdateSucceeded), stack.Status.LastUpdate.Message)
		g.Expect(a.updates(g)).To(HaveLen(updates))
	})
}

// expectRecovery expects that the Update was interrupted, that another Update repeated its work in the pod that exists now, and that
// nothing is left of the interrupted one.
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

// removeNamespaceAtEnd searches the namespace for secret values and deletes it at the end of the test, to make room for the pods of other
// tests. It does not wait until the namespace is gone.
func removeNamespaceAtEnd(t *testing.T, g *WithT, name string) {
	t.Cleanup(func() {
		expectNoCanaries(t, name)
		namespace := &corev1.Namespace{Name: name}
		g.Expect(client.IgnoreNotFound(system.Client.Delete(context.WithoutCancel(t.Context()), namespace))).To(Succeed())
	})
}

// quick bounds the time in which a pod ends if its pulumi stops when the agent asks it to. The grace period of the pod is 10 minutes.
const quick = time.Minute

// deaf are the properties of a resource that does not stop when pulumi asks it to.
const deaf = "seconds: 12, ignoreCancel: true"

// graceful is the journal of a creation that pulumi cancelled when it was asked to and that then succeeded; twice is the journal of an
// update that was cut off and run again.
var (
	graceful = []string{"create start", "create aborted", "create start", "create end"}
	twice    = []string{"create start", "create end", "update start", "update start", "update end"}
)

func TestUpdateThatIsCutOffIsTakenUp(t *testing.T) {
	suite.Long(t, "cuts off updates in pods")
	t.Parallel()
	for name, test := range map[string]struct {
		// before has the properties of the resource when the app is deployed, during has those of the update that is cut off.
		before, during string
		grace          int64 // grace period of the pod, in seconds; 0 is the default of 10 minutes
		cutOff         func(*sleepingApp, *corev1.Pod)
		says           OmegaMatcher
		journal        []string
		samePod        bool
	}{
		"pod-deleted": {
			during: "seconds: 10", cutOff: (*sleepingApp).deletePod, says: ContainSubstring("pulumi stopped gracefully"), journal: graceful,
		},
		// The agent stops Pulumi before the kubelet would kill it.
		"short-grace": {
			before: "seconds: 0", during: "seconds: 20, ignoreCancel: true", grace: 10, cutOff: (*sleepingApp).deletePod,
			says: ContainSubstring("was stopped in the middle of a resource operation"), journal: twice,
		},
		"pod-killed": {
			before: "seconds: 0", during: deaf, cutOff: (*sleepingApp).killPod, says: ContainSubstring("outcome is not known"), journal: twice,
		},
		"agent-killed": {
			before: "seconds: 0", during: deaf, cutOff: (*sleepingApp).killAgent,
			says: Equal("the agent ended while pulumi ran, perhaps for lack of memory; the outcome is not known"), journal: twice, samePod: true,
		},
		"set-deleted": {
			during: "seconds: 10", cutOff: (*sleepingApp).deleteSet, says: ContainSubstring("pulumi stopped gracefully"), journal: graceful,
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			a := deploySleeping(t, name, test.before, func(stack *pulumiv1.Stack) {
				if test.grace != 0 {
					stack.Spec.WorkspaceTemplate.Spec.PodTemplate.Spec.TerminationGracePeriodSeconds = &test.grace
				}
			})
			line := "create start"
			if test.before != "" {
				line = "update start"
			}
			running := a.begin(test.during, line)
			a.Expect(a.locks()).To(HaveLen(1))
			pod, begin := a.pod(), time.Now()
			test.cutOff(a, pod)
			t.Logf("it was cut off after %s", time.Since(begin))
			a.expectRecovery(running, test.says)
			t.Logf("the update had succeeded after %s", time.Since(begin))
			a.Expect(a.journal("slow")).To(Equal(test.journal))
			a.Expect(a.pod().UID == pod.UID).To(Equal(test.samePod))
			if test.samePod {
				a.Expect(pulumiOf(a.pod()).RestartCount).To(BeEquivalentTo(1))
			}
		})
	}
}

// deletePod deletes the pod and expects that another one replaces it soon, because pulumi stops when it is asked to.
func (a *sleepingApp) deletePod(pod *corev1.Pod) {
	begin := time.Now()
	a.Expect(system.Client.Delete(a.ctx, pod)).To(Succeed())
	a.awaitOtherPod(pod.UID)
	a.Expect(time.Since(begin)).To(BeNumerically("<", quick))
}

func (a *sleepingApp) deleteSet(*corev1.Pod) {
	a.Expect(system.Client.Delete(a.ctx, statefulSetOf(a.Name), client.PropagationPolicy(metav1.DeletePropagationBackground))).To(Succeed())
}

func TestCreationThatWasCutOffIsReportedAndNotRepeated(t *testing.T) {
	suite.Long(t, "cuts off updates in pods")
	t.Parallel()
	for name, kill := range map[string]func(*sleepingApp, *corev1.Pod){
		"creation-without-agent": (*sleepingApp).killAgent,
		"creation-without-pod":   (*sleepingApp).killPod,
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			a := deploySleeping(t, name, "")
			running := a.begin(deaf, "create start")
			kill(a, a.pod())
			stack := awaitStack(a.ctx, a.WithT, a.Key(), func(g Gomega, stack *pulumiv1.Stack) {
				g.Expect(stack.Status.LastUpdate.Failures).To(BeNumerically(">=", 1))
				g.Expect(stack.Status.Conditions).To(ContainElement(HaveField("Message", ContainSubstring("another update could create it twice"))))
			})
			a.Expect(stack.Status.LastUpdate.Message).To(ContainSubstring("test:index:Sleep::slow"))
			awaitEnd(a.ctx, a.WithT, running)
			a.Expect(running.Status.State).To(Equal(autov1alpha1.UpdateStateInterrupted))
			a.Expect(a.journal("slow")).To(Equal([]string{"create start"}))

			// The command in the message solves the problem, once the lock that may be left is removed.
			output, err := runInPod(a.ctx, a.Namespace, a.Name, "export PULUMI_CONFIG_PASSPHRASE='correct horse battery staple'\n"+
				"pulumi cancel --yes && pulumi refresh --clear-pending-creates --yes --skip-preview --non-interactive")
			a.Expect(err).NotTo(HaveOccurred(), output)
			a.awaitLine("slow", "create end")
			awaitStack(a.ctx, a.WithT, a.Key(), func(g Gomega, stack *pulumiv1.Stack) {
				g.Expect(stack.Status.CurrentUpdate).To(BeNil())
				g.Expect(stack.Status.LastUpdate.State).To(Equal(pulumiv1.StackUpdateSucceeded))
			})
			a.Expect(a.journal("slow")).To(Equal([]string{"create start", "create start", "create end"}))
			a.Expect(a.journal("first")).To(HaveExactElements("create start", "create end", "read start", "read end"))
			a.Expect(a.locks()).To(BeEmpty())
		})
	}
}

func TestDestroyWhosePodIsDeletedIsTakenUpByTheNextPod(t *testing.T) {
	suite.Long(t, "cuts off updates in pods")
	t.Parallel()
	a := deploySleeping(t, "destroy-interrupted", "deleteSeconds: 8", func(stack *pulumiv1.Stack) {
		stack.Spec.DestroyOnFinalize = true
	})
	stack := &pulumiv1.Stack{Namespace: a.Namespace, Name: a.Name}
	a.Expect(system.Client.Delete(a.ctx, stack)).To(Succeed())
	a.awaitLine("slow", "delete start")
	a.Expect(system.Client.Delete(a.ctx, a.pod())).To(Succeed())
	eventually(a.ctx, a.WithT, func(g Gomega) { g.Expect(isGone(a.ctx, stack)).To(BeTrue(), "%+v", stack.Status) })
	a.Expect(a.journal("slow")).To(Equal([]string{"create start", "create end", "delete start", "delete aborted", "delete start", "delete end"}))
	a.Expect(a.journal("first")).To(Equal([]string{"create start", "create end", "delete start", "delete end"}))
	a.Expect(a.locks()).To(BeEmpty())
}

// killAgent kills the processes of the container pulumi, and waits until the container has restarted.
func (a *sleepingApp) killAgent(pod *corev1.Pod) {
	a.Expect(system.Cluster.KillContainer(a.ctx, pulumiOf(pod).ContainerID)).To(Succeed())
	eventually(a.ctx, a.WithT, func(g Gomega) { g.Expect(pulumiOf(a.pod()).RestartCount).To(BeEquivalentTo(1)) })
}

// killPod deletes the pod by force, without a grace period, and waits until there is another one.
func (a *sleepingApp) killPod(pod *corev1.Pod) {
	_, err := kubectl(a.ctx, "delete", "pod", "--namespace="+pod.Namespace, pod.Name, "--grace-period=0", "--force")
	a.Expect(err).NotTo(HaveOccurred())
	a.awaitOtherPod(pod.UID)
}

// pulumiOf returns the status of the container pulumi.
func pulumiOf(pod *corev1.Pod) corev1.ContainerStatus {
	for _, status := range pod.Status.ContainerStatuses {
		if status.Name == autov1alpha1.PulumiContainerName {
			return status
		}
	}
	return corev1.ContainerStatus{}
}

// awaitOtherPod waits until the workspace has a pod with another UID.
func (a *sleepingApp) awaitOtherPod(uid types.UID) {
	eventually(a.ctx, a.WithT, func(g Gomega) {
		pod := &corev1.Pod{}
		err := system.Client.Get(a.ctx, client.ObjectKey{Namespace: a.Namespace, Name: a.Name + "-workspace-0"}, pod)
		if !apierrors.IsNotFound(err) {
			g.Expect(err).NotTo(HaveOccurred())
		}
		g.Expect(pod.UID).NotTo(BeElementOf(uid, types.UID("")))
	})
}

func TestCommitIsDeployedByTheSamePod(t *testing.T) {
	t.Parallel()
	const name = "commit"
	a := deploySleeping(t, name, "", func(stack *pulumiv1.Stack) { stack.Spec.DestroyOnFinalize = true })
	before := podOf(a.ctx, a, name, name)

	rollout, err := system.Rollout(a.ctx, a.App, sleepingProgram(name, "seconds: 0"))
	a.Expect(err).NotTo(HaveOccurred())
	stack := waitReady(a.ctx, a.WithT, a.App)
	a.Expect(stack.Status.LastUpdate.LastSuccessfulCommit).To(Equal(rollout.Digest))
	a.Expect(a.journal("slow")).To(Equal([]string{"create start", "create end"}))
	after := podOf(a.ctx, a, name, name)
	a.Expect(after.UID).To(Equal(before.UID))
	a.Expect(after.Status.ContainerStatuses[0].RestartCount).To(BeZero())

	a.Expect(system.Client.Delete(a.ctx, stack)).To(Succeed())
	eventually(a.ctx, a.WithT, func(g Gomega) { g.Expect(isGone(a.ctx, stack)).To(BeTrue()) })
	a.Expect(a.journal("slow")).To(Equal([]string{"create start", "create end", "delete start", "delete end"}))
	a.Expect(a.journal("first")).To(Equal([]string{"create start", "create end", "delete start", "delete end"}))
	awaitNone(t, a.WithT, name, &corev1.PodList{})
}
