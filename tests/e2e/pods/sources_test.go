package pods_test

import (
	"testing"
	"time"

	. "github.com/onsi/gomega"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/fluxcd/pkg/runtime/conditions"

	autov1alpha1 "github.com/stack-controller/stack-controller/api/auto/v1alpha1"
	pulumiv1 "github.com/stack-controller/stack-controller/api/pulumi/v1"
	"github.com/stack-controller/stack-controller/tests/framework/localsystem"
	"github.com/stack-controller/stack-controller/tests/framework/suite"
)

// generator returns an init container that writes the program, the text of a Pulumi.yaml.
func generator(program string) corev1.Container {
	return corev1.Container{
		Name:         "generate",
		Image:        system.Images.Busybox.Reference,
		Command:      []string{"sh", "-c", `printf '%s' "$PROGRAM" > /share/workspace/Pulumi.yaml`},
		Env:          []corev1.EnvVar{{Name: "PROGRAM", Value: program}},
		VolumeMounts: []corev1.VolumeMount{{Name: "share", MountPath: "/share"}},
		// The tag is "latest", and there is no registry to pull from.
		ImagePullPolicy: corev1.PullIfNotPresent,
	}
}

// handmadeWorkspace returns a Workspace without a Stack, whose program comes from the init containers. It has the same name as its
// namespace.
func handmadeWorkspace(name string, initContainers ...corev1.Container) *autov1alpha1.Workspace {
	spec := system.WorkspaceSpec()
	spec.Env = stateEnv()
	spec.PodTemplate.Spec.InitContainers = initContainers
	return &autov1alpha1.Workspace{Namespace: name, Name: name, Spec: *spec}
}

// handmadeUpdate returns an Update of handmadeWorkspace, as a user writes it.
func handmadeUpdate(workspace string, kind autov1alpha1.UpdateType) *autov1alpha1.Update {
	return &autov1alpha1.Update{
		Namespace: workspace, Name: string(kind),
		Spec: autov1alpha1.UpdateSpec{WorkspaceName: workspace, StackName: "dev", Type: kind},
	}
}

// sourceless creates a Stack without a source, in a namespace of its own.
func sourceless(t *testing.T, g *WithT, name string, edit func(*autov1alpha1.WorkspaceSpec)) client.ObjectKey {
	createNamespace(t, g, name)
	spec := system.WorkspaceSpec()
	edit(spec)
	stack := &pulumiv1.Stack{Namespace: name, Name: name, Spec: pulumiv1.StackSpec{
		Stack:   "dev",
		Backend: system.BackendURL,
		EnvRefs: map[string]pulumiv1.ResourceRef{"PULUMI_CONFIG_PASSPHRASE": {
			Type: pulumiv1.ResourceRefSecret, SecretRef: &pulumiv1.SecretSelector{Name: localsystem.PassphraseSecret, Key: localsystem.PassphraseKey},
		}},
		WorkspaceTemplate: &pulumiv1.WorkspaceTemplate{Spec: spec},
	}}
	g.Expect(system.Client.Create(t.Context(), stack)).To(Succeed())
	return client.ObjectKeyFromObject(stack)
}

func TestStackRunsTheProgramOfAnInitContainer(t *testing.T) {
	suite.Long(t, "further programs in pods")
	t.Parallel()
	g := NewWithT(t)
	key := sourceless(t, g, "generated", func(spec *autov1alpha1.WorkspaceSpec) {
		// With a quota, each container has to have requests.
		requests := corev1.ResourceList{corev1.ResourceMemory: resource.MustParse("64Mi"), corev1.ResourceCPU: resource.MustParse("100m")}
		own := generator(named("generated", program("generated"))["Pulumi.yaml"])
		own.Resources.Requests = requests
		spec.PodTemplate.Spec.InitContainers = []corev1.Container{own}
		g.Expect(system.Client.Create(t.Context(), &corev1.ResourceQuota{Namespace: "generated", Name: "quota", Spec: corev1.ResourceQuotaSpec{
			Hard: corev1.ResourceList{"requests.memory": resource.MustParse("1Gi"), "requests.cpu": resource.MustParse("1")},
		}})).To(Succeed())
	})
	expectOutput(t.Context(), g, key, "generated")
	pod := &corev1.Pod{}
	g.Expect(system.Client.Get(t.Context(), client.ObjectKey{Namespace: key.Namespace, Name: key.Name + "-workspace-0"}, pod)).To(Succeed())
	g.Expect(pod.Spec.InitContainers).To(ContainElement(HaveField("Name", "bootstrap")), "the agent is copied, not mounted")
}

func TestStackRunsTheProgramOfTheImage(t *testing.T) {
	suite.Long(t, "further programs in pods")
	t.Parallel()
	g := NewWithT(t)
	key := sourceless(t, g, "of-the-image", func(spec *autov1alpha1.WorkspaceSpec) {
		spec.Local = &autov1alpha1.LocalSource{Dir: "/opt/program"}
		// The ConfigMap stands for a program that is built into the image.
		spec.PodTemplate.Spec.Volumes = append(spec.PodTemplate.Spec.Volumes, corev1.Volume{Name: "program",
			ConfigMap: &corev1.ConfigMapVolumeSource{Name: "program"}})
		container := &spec.PodTemplate.Spec.Containers[0]
		container.VolumeMounts = append(container.VolumeMounts, corev1.VolumeMount{Name: "program", MountPath: "/opt/program", ReadOnly: true})
	})
	// The pod waits for the ConfigMap.
	g.Expect(system.Client.Create(t.Context(), &corev1.ConfigMap{
		Namespace: key.Namespace, Name: "program", Data: named("of-the-image", program("built in")),
	})).To(Succeed())
	expectOutput(t.Context(), g, key, "built in")
}

func TestWorkspaceAndUpdatesWorkWithoutAStack(t *testing.T) {
	suite.Long(t, "further programs in pods")
	t.Parallel()
	g := NewWithT(t)
	ctx := t.Context()
	const name = "direct"
	createNamespace(t, g, name)
	workspace := handmadeWorkspace(name, generator(slow(name, 0)["Pulumi.yaml"]))
	g.Expect(system.Client.Create(ctx, workspace)).To(Succeed())
	var expected []string
	for _, step := range []struct {
		kind autov1alpha1.UpdateType
		does []string
	}{
		{autov1alpha1.UpdateTypePreview, nil},
		{autov1alpha1.UpdateTypeUp, []string{"create start", "create end"}},
		{autov1alpha1.UpdateTypeRefresh, []string{"read start", "read end"}},
		{autov1alpha1.UpdateTypeDestroy, []string{"delete start", "delete end"}},
	} {
		update := handmadeUpdate(name, step.kind)
		g.Expect(system.Client.Create(ctx, update)).To(Succeed())
		awaitEnd(ctx, g, update)
		g.Expect(update.HasFailed()).To(BeFalse(), "%s: %s", step.kind, update.Status.Message)
		expected = append(expected, step.does...)
		g.Expect(journal(g, name)).To(Equal(expected), string(step.kind))
	}

	g.Expect(system.Client.Delete(ctx, workspace)).To(Succeed())
	awaitNone(t, g, name, &corev1.PodList{})
	for _, object := range []client.Object{serviceOf(name), rpcSecretOf(name)} {
		eventually(ctx, g, func(g Gomega) { g.Expect(isGone(ctx, object)).To(BeTrue(), "%T", object) })
	}
}

func TestReclaimedWorkspaceLeavesNoPodAndComesBackWhenItIsNeeded(t *testing.T) {
	suite.Long(t, "further programs in pods")
	t.Parallel()
	g := NewWithT(t)
	ctx := t.Context()
	const name = "reclaimed"
	app := deploy(ctx, t, g, name, slow(name, 0), func(stack *pulumiv1.Stack) {
		stack.Spec.WorkspaceReclaimPolicy = pulumiv1.WorkspaceReclaimDelete
		stack.Spec.DestroyOnFinalize = true
	})
	awaitNone(t, g, name, &autov1alpha1.WorkspaceList{})
	awaitNone(t, g, name, &corev1.PodList{})

	request(ctx, g, app.Key(), "again")
	awaitNone(t, g, name, &corev1.PodList{})
	stack := waitReady(ctx, g, app)

	g.Expect(system.Client.Delete(ctx, stack)).To(Succeed())
	eventually(ctx, g, func(g Gomega) { g.Expect(isGone(ctx, stack)).To(BeTrue()) })
	g.Expect(journal(g, name)).To(HaveExactElements("create start", "create end", "delete start", "delete end"))
	awaitNone(t, g, name, &corev1.PodList{})
}

func TestIdleWorkspaceHasNoPodUntilTheNextUpdate(t *testing.T) {
	suite.Long(t, "further programs in pods")
	t.Parallel()
	g := NewWithT(t)
	ctx := t.Context()
	const name = "idle"
	app := deploy(ctx, t, g, name, slow(name, 0), func(stack *pulumiv1.Stack) {
		stack.Spec.WorkspaceIdleTimeout = &metav1.Duration{Duration: time.Second}
		stack.Spec.DestroyOnFinalize = true
	})
	awaitIdle := func() {
		awaitNone(t, g, name, &corev1.PodList{})
		eventually(ctx, g, func(g Gomega) {
			workspace := &autov1alpha1.Workspace{}
			g.Expect(system.Client.Get(ctx, app.Key(), workspace)).To(Succeed())
			g.Expect(conditions.IsTrue(workspace, autov1alpha1.WorkspaceReady)).To(BeTrue())
			g.Expect(conditions.GetReason(workspace, autov1alpha1.WorkspaceReady)).To(Equal(autov1alpha1.IdleReason))
			g.Expect(workspace.Status.ObservedGeneration).To(Equal(workspace.Generation))
		})
	}
	awaitIdle()
	set := &appsv1.StatefulSet{}
	g.Expect(system.Client.Get(ctx, client.ObjectKey{Namespace: name, Name: name + "-workspace"}, set)).To(Succeed())
	g.Expect(set.Spec.Replicas).To(HaveValue(BeZero()))

	_, err := app.Repository.Commit(slow(name, 1))
	g.Expect(err).NotTo(HaveOccurred())
	g.Expect(system.Fetch(ctx, app)).To(Succeed())
	eventually(ctx, g, func(g Gomega) {
		g.Expect(journal(g, name)).To(HaveExactElements("create start", "create end", "update start", "update end"))
	})
	waitReady(ctx, g, app)
	awaitIdle()
	g.Expect(system.Client.Get(ctx, client.ObjectKeyFromObject(set), set)).To(Succeed())
	g.Expect(set.Generation).To(BeNumerically("==", 4), "one change for each time that it comes and goes")

	stack := &pulumiv1.Stack{}
	g.Expect(system.Client.Get(ctx, app.Key(), stack)).To(Succeed())
	g.Expect(system.Client.Delete(ctx, stack)).To(Succeed())
	eventually(ctx, g, func(g Gomega) { g.Expect(isGone(ctx, stack)).To(BeTrue()) })
	g.Expect(journal(g, name)).To(HaveExactElements("create start", "create end", "update start", "update end", "delete start", "delete end"))
}
