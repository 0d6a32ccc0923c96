package pods_test

import (
	"context"
	"encoding/base64"
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	. "github.com/onsi/gomega"
	corev1 "k8s.io/api/core/v1"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	apimeta "k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/fluxcd/pkg/apis/meta"
	"github.com/fluxcd/pkg/runtime/conditions"

	autov1alpha1 "github.com/stack-controller/stack-controller/api/auto/v1alpha1"
	pulumiv1 "github.com/stack-controller/stack-controller/api/pulumi/v1"
	"github.com/stack-controller/stack-controller/tests/framework/gitserver"
	"github.com/stack-controller/stack-controller/tests/framework/images"
	"github.com/stack-controller/stack-controller/tests/framework/localsystem"
	"github.com/stack-controller/stack-controller/tests/framework/suite"
)

func TestCustomisedStackBecomesReadyAndItsPodIsAsItSays(t *testing.T) {
	suite.Long(t, "further settings of a pod")
	t.Parallel()
	g := NewWithT(t)
	ctx := t.Context()
	const name = "customised"
	// This suspended Stack only provides the namespace, the source and the state.
	removeNamespaceAtEnd(t, g, name)
	app, err := system.Deploy(ctx, name, named(name, program("one")), func(stack *pulumiv1.Stack) { stack.Spec.Suspend = true })
	g.Expect(err).NotTo(HaveOccurred())
	g.Expect(system.Client.Create(ctx, &corev1.ServiceAccount{Namespace: name, Name: "deployer"})).To(Succeed())
	apply(ctx, g, "customised.yaml", map[string]string{
		"NAMESPACE": name, "IMAGE": system.Images.Pulumi.Reference, "BUSYBOX": system.Images.Busybox.Reference,
	})
	_, err = system.WaitReady(ctx, &localsystem.App{Namespace: name, Name: "my-stack", Repository: app.Repository})
	g.Expect(err).NotTo(HaveOccurred())

	pod := podOf(ctx, g, name, "my-stack")
	g.Expect(pod.Name).To(Equal("my-stack-workspace-0"))
	g.Expect(pod.Labels).To(HaveKeyWithValue("example.com/mylabel", "bar"))
	g.Expect(pod.Spec.TerminationGracePeriodSeconds).To(HaveValue(BeEquivalentTo(3600)))
	g.Expect(pod.Spec.ServiceAccountName).To(Equal("deployer"))
	g.Expect(pod.Spec.ImagePullSecrets).To(ConsistOf(corev1.LocalObjectReference{Name: "registry"}))
	g.Expect(pod.Spec.Tolerations).To(ContainElement(corev1.Toleration{
		Key: "example.com/foo", Operator: corev1.TolerationOpExists, Effect: corev1.TaintEffectNoSchedule,
	}))
	pulumi := pod.Spec.Containers[0]
	g.Expect(pulumi.Name).To(Equal("pulumi"))
	g.Expect(pulumi.Resources.Requests.Memory().Equal(resource.MustParse("128Mi"))).To(BeTrue())
	g.Expect(pulumi.Resources.Limits.Cpu().Equal(resource.MustParse("2"))).To(BeTrue())

	greeting, err := kubectl(ctx, "logs", "--namespace="+name, pod.Name, "--container=extra")
	g.Expect(err).NotTo(HaveOccurred())
	g.Expect(greeting).To(Equal("Hello, extra init container!\n"))
	token, err := runInPod(ctx, name, "my-stack", "cat /var/run/secrets/pulumi/token")
	g.Expect(err).NotTo(HaveOccurred())
	claims, err := base64.RawURLEncoding.DecodeString(strings.Split(token, ".")[1])
	g.Expect(err).NotTo(HaveOccurred())
	g.Expect(string(claims)).To(And(ContainSubstring("urn:pulumi:org:ORG_NAME"), ContainSubstring("system:serviceaccount:"+name+":deployer")))
}

func TestChangedSecretConfigAndRevisionReachTheNextUpdateInTheSamePod(t *testing.T) {
	suite.Long(t, "further settings of a pod")
	t.Parallel()
	g := NewWithT(t)
	ctx := t.Context()
	const name = "same-pod"
	removeNamespaceAtEnd(t, g, name)
	app, err := system.Deploy(ctx, name, named(name, configured("${config} ${variable}")), func(stack *pulumiv1.Stack) {
		stack.Spec.Config = map[string]apiextensionsv1.JSON{"config": {Raw: []byte(`"config-1"`)}}
		stack.Spec.EnvRefs["VARIABLE"] = pulumiv1.ResourceRef{Type: pulumiv1.ResourceRefSecret, SecretRef: &pulumiv1.SecretSelector{Name: "variable", Key: "value"}}
		stack.Spec.WorkspaceTemplate.Spec.Stacks = []autov1alpha1.WorkspaceStack{{Name: "dev", Config: []autov1alpha1.ConfigItem{{
			Key: "variable", ValueFrom: &autov1alpha1.ConfigValueFrom{Env: "VARIABLE"},
		}}}}
		mountInSource(stack.Spec.WorkspaceTemplate.Spec.PodTemplate.Spec, "kube-root-ca.crt", "certificates/ca.crt")
	})
	g.Expect(err).NotTo(HaveOccurred())
	// The pod starts before the Secret exists; the update waits for the Secret.
	awaitStack(ctx, g, app.Key(), func(g Gomega, stack *pulumiv1.Stack) {
		ready := apimeta.FindStatusCondition(stack.Status.Conditions, meta.ReadyCondition)
		g.Expect(ready).To(HaveField("Reason", pulumiv1.SecretNotFoundReason))
	})
	variable := secret(name, "variable", "value", "variable-1")
	g.Expect(system.Client.Create(ctx, variable)).To(Succeed())
	waitReady(ctx, g, app)
	expectOutput(ctx, g, app.Key(), "config-1 variable-1")
	before := podOf(ctx, g, name, name)

	variable.StringData = map[string]string{"value": "variable-2"}
	g.Expect(system.Client.Update(ctx, variable)).To(Succeed())
	request(ctx, g, app.Key(), "the Secret")
	expectOutput(ctx, g, app.Key(), "config-1 variable-2")
	change(ctx, g, app.Key(), func(stack *pulumiv1.Stack) {
		stack.Spec.Config["config"] = apiextensionsv1.JSON{Raw: []byte(`"config-2"`)}
	})
	expectOutput(ctx, g, app.Key(), "config-2 variable-2")
	_, err = system.Rollout(ctx, app, named(name, configured("new ${config} ${variable}")))
	g.Expect(err).NotTo(HaveOccurred())
	expectOutput(ctx, g, app.Key(), "new config-2 variable-2")
	mounted, err := runInPod(ctx, name, name, "cat certificates/ca.crt")
	g.Expect(err).NotTo(HaveOccurred())
	g.Expect(mounted).To(HavePrefix("-----BEGIN CERTIFICATE-----"))

	after := podOf(ctx, g, name, name)
	g.Expect(after.UID).To(Equal(before.UID))
	g.Expect(after.Status.ContainerStatuses[0].RestartCount).To(BeZero())
}

// mountInSource mounts the key ca.crt of a ConfigMap at a path of the source.
func mountInSource(pod *autov1alpha1.EmbeddedPodSpec, configMap, path string) {
	pod.Volumes = append(pod.Volumes, corev1.Volume{Name: "mounted", ConfigMap: &corev1.ConfigMapVolumeSource{Name: configMap}})
	mount := corev1.VolumeMount{Name: "mounted", MountPath: "/share/source/" + path, SubPath: "ca.crt"}
	pod.Containers[0].VolumeMounts = append(pod.Containers[0].VolumeMounts, mount)
}

// configured returns a program whose output is made from the configuration keys "config" and "variable".
func configured(value string) gitserver.Files {
	return gitserver.Files{"Pulumi.yaml": `
name: app
runtime: yaml
config:
  config: {type: string}
  variable: {type: string}
outputs:
  value: ` + value + "\n"}
}

// expectOutput waits until the Stack has the output "value".
func expectOutput(ctx context.Context, g *WithT, key client.ObjectKey, want string) {
	awaitStack(ctx, g, key, func(g Gomega, stack *pulumiv1.Stack) {
		g.Expect(string(stack.Status.Outputs["value"].Raw)).To(Equal(`"`+want+`"`), "%+v", stack.Status.Conditions)
	})
}

// slow returns a program whose resource takes that many seconds to be created or updated, and has a journal in the state directory.
func slow(name string, seconds int) gitserver.Files {
	return journaled(name, fmt.Sprintf("seconds: %d", seconds))
}

// slowUntilReleased returns a program whose resource is created or updated only when release is called.
func slowUntilReleased(name string) gitserver.Files {
	return journaled(name, fmt.Sprintf("until: /state/%s-released", name))
}

func journaled(name, properties string) gitserver.Files {
	return gitserver.Files{"Pulumi.yaml": fmt.Sprintf(`
name: %s
runtime: yaml
resources:
  slow:
    type: test:index:Sleep
    properties: {%s, journal: /state/%s}
    options: {version: 0.1.0}
outputs:
  value: "%s"
`, name, properties, name, properties)}
}

// deletions records when the deletion of each pod of the namespace was requested, until the context ends.
type deletions struct {
	mu sync.Mutex
	at map[types.UID]time.Time
}

func watchDeletions(ctx context.Context, g *WithT, namespace string) *deletions {
	watcher, err := system.Client.Watch(ctx, &corev1.PodList{}, client.InNamespace(namespace))
	g.Expect(err).NotTo(HaveOccurred())
	d := &deletions{at: map[types.UID]time.Time{}}
	go func() {
		defer watcher.Stop()
		for event := range watcher.ResultChan() {
			pod, ok := event.Object.(*corev1.Pod)
			if !ok || pod.DeletionTimestamp == nil {
				continue
			}
			d.mu.Lock()
			if _, known := d.at[pod.UID]; !known {
				// The timestamp is the end of the grace period.
				grace := time.Duration(ptr.Deref(pod.DeletionGracePeriodSeconds, 0)) * time.Second
				d.at[pod.UID] = pod.DeletionTimestamp.Add(-grace)
			}
			d.mu.Unlock()
		}
	}()
	return d
}

// of returns when the deletion of the pod was requested.
func (d *deletions) of(g Gomega, pod *corev1.Pod) time.Time {
	d.mu.Lock()
	defer d.mu.Unlock()
	g.Expect(d.at).To(HaveKey(pod.UID))
	return d.at[pod.UID]
}

func TestChangedImageReplacesThePodAfterTheUpdateThatRuns(t *testing.T) {
	suite.Long(t, "replaces pods")
	t.Parallel()
	g := NewWithT(t)
	ctx := t.Context()
	const name = "new-image"
	app := deploy(ctx, t, g, name, slow(name, 0))
	first := waitReady(ctx, g, app)
	before := podOf(ctx, g, name, name)
	gone := watchDeletions(ctx, g, name)

	_, err := app.Repository.Commit(slowUntilReleased(name))
	g.Expect(err).NotTo(HaveOccurred())
	g.Expect(system.Fetch(ctx, app)).To(Succeed())
	eventually(ctx, g, func(g Gomega) {
		g.Expect(journal(g, name)).To(HaveExactElements("create start", "create end", "update start"))
	})
	running := awaitStack(ctx, g, app.Key(), func(g Gomega, stack *pulumiv1.Stack) { g.Expect(stack.Status.CurrentUpdate).NotTo(BeNil()) }).Status.CurrentUpdate.Name
	change(ctx, g, app.Key(), func(stack *pulumiv1.Stack) { stack.Spec.WorkspaceTemplate.Spec.Image = images.OtherPulumiReference })
	release(g, name)
	update := &autov1alpha1.Update{Namespace: name, Name: running}
	awaitEnd(ctx, g, update)
	g.Expect(update.Status.State).To(Equal(autov1alpha1.UpdateStateSucceeded), update.Status.Message)
	g.Expect(journal(g, name)).To(HaveExactElements("create start", "create end", "update start", "update end"))

	stack := awaitStack(ctx, g, app.Key(), func(g Gomega, stack *pulumiv1.Stack) {
		g.Expect(stack.Status.ObservedGeneration).To(Equal(stack.Generation))
		g.Expect(stack.Status.LastUpdate.Name).NotTo(BeElementOf(first.Status.LastUpdate.Name, running))
		g.Expect(stack.Status.LastUpdate.State).To(Equal(pulumiv1.StackUpdateSucceeded))
	})
	after := podOf(ctx, g, name, name)
	g.Expect(after.UID).NotTo(Equal(before.UID))
	g.Expect(after.Spec.Containers[0].Image).To(Equal(images.OtherPulumiReference))
	g.Expect(gone.of(g, before)).To(BeTemporally(">=", update.Status.EndTime.Time))
	next := &autov1alpha1.Update{}
	g.Expect(system.Client.Get(ctx, client.ObjectKey{Namespace: name, Name: stack.Status.LastUpdate.Name}, next)).To(Succeed())
	g.Expect(next.Status.StartTime.Time).To(BeTemporally(">=", after.CreationTimestamp.Time))
}

// A Stack passes a new image to its Workspace only after the running update. A user who edits a Workspace directly does not wait for that.
func TestEditedWorkspaceKeepsItsPodUntilItsUpdateEnds(t *testing.T) {
	suite.Long(t, "replaces pods")
	t.Parallel()
	g := NewWithT(t)
	ctx := t.Context()
	const name = "edited"
	createNamespace(t, g, name)
	workspace := handmadeWorkspace(name, generator(slowUntilReleased(name)["Pulumi.yaml"]))
	g.Expect(system.Client.Create(ctx, workspace)).To(Succeed())
	update := handmadeUpdate(name, autov1alpha1.UpdateTypeUp)
	g.Expect(system.Client.Create(ctx, update)).To(Succeed())
	eventually(ctx, g, func(g Gomega) { g.Expect(journal(g, name)).To(HaveExactElements("create start")) })
	before := podOf(ctx, g, name, name)
	gone := watchDeletions(ctx, g, name)

	eventually(ctx, g, func(g Gomega) {
		g.Expect(system.Client.Get(ctx, client.ObjectKeyFromObject(workspace), workspace)).To(Succeed())
		workspace.Spec.Image = images.OtherPulumiReference
		g.Expect(system.Client.Update(ctx, workspace)).To(Succeed())
	})
	eventually(ctx, g, func(g Gomega) {
		g.Expect(system.Client.Get(ctx, client.ObjectKeyFromObject(workspace), workspace)).To(Succeed())
		g.Expect(conditions.GetReason(workspace, autov1alpha1.WorkspaceReady)).To(Equal(autov1alpha1.RollingUpdateReason))
		g.Expect(conditions.GetMessage(workspace, autov1alpha1.WorkspaceReady)).To(ContainSubstring("its operation goes on until it ends"))
	})
	release(g, name)
	awaitEnd(ctx, g, update)
	g.Expect(update.Status.State).To(Equal(autov1alpha1.UpdateStateSucceeded), update.Status.Message)
	g.Expect(journal(g, name)).To(HaveExactElements("create start", "create end"))

	eventually(ctx, g, func(g Gomega) {
		after := podOf(ctx, g, name, name)
		g.Expect(after.UID).NotTo(Equal(before.UID))
		g.Expect(after.Spec.Containers[0].Image).To(Equal(images.OtherPulumiReference))
		g.Expect(gone.of(g, before)).To(BeTemporally(">=", update.Status.EndTime.Time))
	})
}
