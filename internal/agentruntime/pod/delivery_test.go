package pod

import (
	"errors"
	"testing"
	"time"

	. "github.com/onsi/gomega"
	"github.com/onsi/gomega/types"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/version"
	ctrlclient "sigs.k8s.io/controller-runtime/pkg/client"

	autov1alpha1 "github.com/stack-controller/stack-controller/api/auto/v1alpha1"
)

// server answers with a version.
type server struct {
	version string
	asked   int
}

func (s *server) ServerVersion() (*version.Info, error) {
	s.asked++
	if s.version == "" {
		return nil, errors.New("no answer")
	}
	return &version.Info{GitVersion: s.version}, nil
}

func TestImageVolumesAreUsableWhereTheyAreAlwaysOn(t *testing.T) {
	for gitVersion, usable := range map[string]bool{
		"v1.35.9": false, "v1.36.0": true, "v1.37.2-eks-1234": true, "v1.36.0+k3s1": true, "v2.0.0": true, "unknown": false,
	} {
		g := NewWithT(t)
		asked := &server{version: gitVersion}
		volumes := &imageVolumes{discovery: asked}
		g.Expect(volumes.usable("team", noon)).To(Equal(usable), gitVersion)
		g.Expect(volumes.usable("team", noon.Add(time.Minute))).To(Equal(usable), gitVersion)
		g.Expect(asked.asked).To(Equal(1))
	}
	g := NewWithT(t)
	asked := &server{}
	volumes := &imageVolumes{discovery: asked}
	_, err := volumes.usable("team", noon)
	g.Expect(err).To(HaveOccurred())
	asked.version = "v1.36.0"
	g.Expect(volumes.usable("team", noon)).To(BeTrue(), "it is asked again")
	volumes.refused("team", noon)
	g.Expect(volumes.usable("team", noon.Add(refusalTime-time.Second))).To(BeFalse())
	g.Expect(volumes.usable("other", noon)).To(BeTrue(), "a tenant delays only pods of its own")
	g.Expect(volumes.usable("team", noon.Add(refusalTime))).To(BeTrue())
}

// copies and mounts match pods whose agent comes from an init container, and from an image volume.
func copies() types.GomegaMatcher { return HaveField("Spec.InitContainers", HaveLen(1)) }
func mounts() types.GomegaMatcher {
	return And(HaveField("Spec.InitContainers", BeEmpty()), HaveField("Spec.Volumes", ContainElement(HaveField("Image", Not(BeNil())))))
}

func TestPodThatCannotStartWithAnImageVolumeGetsAnInitContainer(t *testing.T) {
	s := newFixture(t)
	s.delivery = AutomaticDelivery
	s.startController()
	works := s.create("works", autov1alpha1.WorkspaceSpec{})
	stays, _ := s.makeReady(works)
	s.Expect(stays).To(mounts())

	fails := s.create("fails", autov1alpha1.WorkspaceSpec{})
	pod := s.pod(fails)
	s.Expect(pod).To(mounts())
	s.bind(pod)
	s.report(pod, func(status *corev1.PodStatus) {
		status.Phase = corev1.PodPending
		status.ContainerStatuses = []corev1.ContainerStatus{{Name: autov1alpha1.PulumiContainerName, Image: "pulumi/pulumi",
			State: corev1.ContainerState{Waiting: &corev1.ContainerStateWaiting{Reason: "CreateContainerError", Message: `failed to mkdir ""`}}}}
	})
	s.Eventually(s.beingDeleted(pod)).Should(BeTrue())
	s.finish(pod)
	next, _ := s.makeReady(fails, pod.UID)
	s.Expect(next).To(copies())

	late := s.create("late", autov1alpha1.WorkspaceSpec{})
	lateNext, _ := s.makeReady(late)
	s.Expect(lateNext).To(copies(), "what does not work is not tried again at once")

	// Another process remembers nothing, and what works stays.
	s.stop()
	s.startController()
	s.Eventually(s.status(fails)).Should(beReady())
	s.Eventually(s.status(works)).Should(beReady())
	for _, pod := range []*corev1.Pod{stays, next, lateNext} {
		s.Expect(s.beingDeleted(pod)()).To(BeFalse(), pod.Name)
	}
	s.change(fails, func(spec *autov1alpha1.WorkspaceSpec) { spec.Image = "example.com/other" })
	s.Eventually(s.beingDeleted(next)).Should(BeTrue())
	s.finish(next)
	last, _ := s.makeReady(fails, next.UID)
	s.Expect(last).To(copies(), "an edit of the user does not change how the agent is delivered")
}

// The cache may not have the StatefulSet yet that was written just now: here there is none, because somebody has deleted it.
func TestHowTheAgentGetsIntoAPodIsDecidedOnce(t *testing.T) {
	s := newFixture(t)
	s.delivery = AutomaticDelivery
	s.startController()
	workspace := s.create("once", autov1alpha1.WorkspaceSpec{})
	first := s.pod(workspace)
	s.Expect(first).To(mounts())
	s.runtime.volumes.refused(s.namespace, time.Now()) // another Workspace had a problem with it
	set := &appsv1.StatefulSet{}
	s.Expect(s.client.Get(t.Context(), ctrlclient.ObjectKey{Namespace: s.namespace, Name: "once-workspace"}, set)).To(Succeed())
	s.Expect(s.client.Delete(t.Context(), set)).To(Succeed())
	s.Eventually(func(g Gomega) {
		again := &appsv1.StatefulSet{}
		g.Expect(s.client.Get(t.Context(), ctrlclient.ObjectKeyFromObject(set), again)).To(Succeed())
		g.Expect(again.UID).NotTo(Equal(set.UID))
		g.Expect(&corev1.Pod{Spec: again.Spec.Template.Spec}).To(mounts())
	}).Should(Succeed())
}

func TestOnlyAFailureToStartCountsAgainstAnImageVolume(t *testing.T) {
	for name, test := range map[string]struct {
		change  func(*observation)
		refuses bool
	}{
		"ready":              {func(*observation) {}, false},
		"no status":          {unready, false},
		"not created":        {waits("CreateContainerError", "failed to generate spec"), true},
		"not run":            {waits("RunContainerError", "no such file or directory"), true},
		"not started":        {ended(1, corev1.ContainerStateTerminated{Reason: "StartError", Message: "no such file or directory"}), true},
		"image":              {waits("ImagePullBackOff", "not found"), false},
		"configuration":      {waits("CreateContainerConfigError", `secret "x" not found`), false},
		"other architecture": {waits("CreateContainerError", "exec format error"), false},
		"crash":              {ended(3, corev1.ContainerStateTerminated{Reason: "Error", ExitCode: 1}), false},
		"memory":             {ended(3, corev1.ContainerStateTerminated{Reason: "OOMKilled", ExitCode: 137}), false},
	} {
		t.Run(name, func(t *testing.T) {
			NewWithT(t).Expect(refusesToStart(observed(test.change).pod)).To(Equal(test.refuses))
		})
	}
}

func TestPodThatIsRefusedBecauseOfAVolumeIsRemembered(t *testing.T) {
	refused := happenedAgo(time.Minute, corev1.EventTypeWarning, "FailedCreate",
		`create Pod a in StatefulSet a failed error: pods "a" is forbidden: restricted volume types (volume "agent-image" uses restricted volume type "image")`)
	for name, test := range map[string]struct {
		change  func(*observation)
		refused bool
	}{
		"nothing happened": {withoutPod, false},
		"a volume":         {of(withoutPod, refused), true},
		"a quota":          {of(withoutPod, happenedAgo(time.Minute, corev1.EventTypeWarning, "FailedCreate", "exceeded quota")), false},
		"long ago":         {of(withoutPod, refused, happenedAgo(time.Second, corev1.EventTypeNormal, "SuccessfulCreate", "create Pod a successful")), false},
		"there is a pod":   {refused, false},
	} {
		t.Run(name, func(t *testing.T) {
			tracker := &tracker{}
			tracker.rememberRefusal(observed(test.change))
			NewWithT(t).Expect(tracker.volumeRefused).To(Equal(test.refused))
		})
	}
}
