package pods_test

import (
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
	"github.com/stack-controller/stack-controller/tests/suite"
)

// quick is how long a pod may take to end whose pulumi stops when it is asked to. The grace period is 10 minutes.
const quick = time.Minute

// deaf are the properties of a resource that does not end when pulumi asks it to.
const deaf = "seconds: 12, ignoreCancel: true"

// graceful is the journal of a creation that pulumi cancelled when it was asked to, and twice that of an update that was made once more.
var (
	graceful = []string{"create start", "create aborted", "create start", "create end"}
	twice    = []string{"create start", "create end", "update start", "update start", "update end"}
)

func TestUpdateThatIsCutOffIsTakenUp(t *testing.T) {
	suite.Long(t, "cuts off updates in pods")
	t.Parallel()
	for name, test := range map[string]struct {
		// before are the properties of the resource when the app is deployed, and during those of the update that is cut off.
		before, during string
		grace          int64 // of the pod, in seconds; 0 is the default of 10 minutes
		cutOff         func(*sleepingApp, *corev1.Pod)
		says           OmegaMatcher
		journal        []string
		samePod        bool
	}{
		"pod-deleted": {
			during: "seconds: 10", cutOff: (*sleepingApp).deletePod, says: ContainSubstring("pulumi stopped gracefully"), journal: graceful,
		},
		// Pulumi is stopped before the kubelet would kill it.
		"short-grace": {
			before: "seconds: 0", during: "seconds: 20, ignoreCancel: true", grace: 10, cutOff: (*sleepingApp).deletePod,
			says: ContainSubstring("was stopped in the middle of a resource operation"), journal: twice,
		},
		"pod-killed": {
			before: "seconds: 0", during: deaf, cutOff: (*sleepingApp).killPod, says: ContainSubstring("outcome is not known"), journal: twice,
		},
		"agent-killed": {
			before: "seconds: 0", during: deaf, cutOff: (*sleepingApp).killAgent,
			says: Equal("the agent ended while pulumi ran; the outcome is not known"), journal: twice, samePod: true,
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

// deletePod deletes the pod, and expects another one soon: pulumi stops when it is asked to.
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

			// What the message says is what helps, once the lock is removed that may be left.
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
	stack := &pulumiv1.Stack{ObjectMeta: metav1.ObjectMeta{Namespace: a.Namespace, Name: a.Name}}
	a.Expect(system.Client.Delete(a.ctx, stack)).To(Succeed())
	a.awaitLine("slow", "delete start")
	a.Expect(system.Client.Delete(a.ctx, a.pod())).To(Succeed())
	eventually(a.ctx, a.WithT, func(g Gomega) { g.Expect(isGone(a.ctx, stack)).To(BeTrue(), "%+v", stack.Status) })
	a.Expect(a.journal("slow")).To(Equal([]string{"create start", "create end", "delete start", "delete aborted", "delete start", "delete end"}))
	a.Expect(a.journal("first")).To(Equal([]string{"create start", "create end", "delete start", "delete end"}))
	a.Expect(a.locks()).To(BeEmpty())
}

// killAgent ends the processes of the container pulumi, and waits until they are gone.
func (a *sleepingApp) killAgent(pod *corev1.Pod) {
	a.Expect(system.Cluster.KillContainer(a.ctx, pulumiOf(pod).ContainerID)).To(Succeed())
	eventually(a.ctx, a.WithT, func(g Gomega) { g.Expect(pulumiOf(a.pod()).RestartCount).To(BeEquivalentTo(1)) })
}

// killPod removes the pod without waiting for anything, and waits until there is another one.
func (a *sleepingApp) killPod(pod *corev1.Pod) {
	_, err := kubectl(a.ctx, "delete", "pod", "--namespace="+pod.Namespace, pod.Name, "--grace-period=0", "--force")
	a.Expect(err).NotTo(HaveOccurred())
	a.awaitOtherPod(pod.UID)
}

// pulumiOf is the state of the container pulumi.
func pulumiOf(pod *corev1.Pod) corev1.ContainerStatus {
	for _, status := range pod.Status.ContainerStatuses {
		if status.Name == autov1alpha1.PulumiContainerName {
			return status
		}
	}
	return corev1.ContainerStatus{}
}

// awaitOtherPod waits until there is another pod of the workspace.
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
