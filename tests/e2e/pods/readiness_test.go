package pods_test

import (
	"context"
	"testing"

	. "github.com/onsi/gomega"
	corev1 "k8s.io/api/core/v1"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/fluxcd/pkg/runtime/conditions"

	autov1alpha1 "github.com/stack-controller/stack-controller/api/auto/v1alpha1"
	pulumiv1 "github.com/stack-controller/stack-controller/api/pulumi/v1"
	"github.com/stack-controller/stack-controller/tests/framework/podsystem"
	"github.com/stack-controller/stack-controller/tests/framework/suite"
)

// late is the name of a ConfigMap or Secret that is created later than the pod that refers to it.
const late = "late"

func TestProblemWithContainersIsShownAndEndsWithItsCause(t *testing.T) {
	suite.Long(t, "a further state of a pod")
	t.Parallel()
	playProblems(t, map[string]problem{
		"init-container-crashes": {
			provoke: func(_ context.Context, _ *WithT, stack *pulumiv1.Stack) {
				pod := podSpecOf(stack)
				pod.InitContainers = append(pod.InitContainers, corev1.Container{
					Name: "gate", Image: system.Images.Busybox.Reference, ImagePullPolicy: corev1.PullIfNotPresent,
					Command: []string{"sh", "-c", `test -n "$KEY" || { echo the gate is closed; exit 3; }`},
					Env: []corev1.EnvVar{{Name: "KEY", ValueFrom: &corev1.EnvVarSource{ConfigMapKeyRef: &corev1.ConfigMapKeySelector{
						Name: late, Key: "key", Optional: new(true),
					}}}},
					TerminationMessagePolicy: corev1.TerminationMessageFallbackToLogsOnError,
					SecurityContext:          &corev1.SecurityContext{AllowPrivilegeEscalation: new(false), Capabilities: &corev1.Capabilities{Drop: []corev1.Capability{"ALL"}}},
				})
			},
			reason: autov1alpha1.CrashLoopBackOffReason,
			says:   []string{"init container gate of pod init-container-crashes-workspace-0 ended with exit code 3", "the gate is closed"},
			heal:   createConfigMap,
		},
		"out-of-memory": {
			provoke: func(_ context.Context, _ *WithT, stack *pulumiv1.Stack) {
				podSpecOf(stack).Containers[0].Resources.Limits = corev1.ResourceList{corev1.ResourceMemory: resource.MustParse("16Mi")}
			},
			reason: autov1alpha1.CrashLoopBackOffReason,
			says:   []string{"container pulumi of pod out-of-memory-workspace-0 ran out of memory and was killed"},
			heal: func(ctx context.Context, g *WithT, key client.ObjectKey) {
				change(ctx, g, key, func(stack *pulumiv1.Stack) { podSpecOf(stack).Containers[0].Resources.Limits = nil })
			},
		},
		"volume-missing": {
			provoke: mountLateVolume,
			reason:  autov1alpha1.VolumeMountFailedReason,
			says:    []string{"pod volume-missing-workspace-0 cannot start on node", `configmap "late" not found`},
			heal:    createConfigMap,
		},
		"variable-missing": {
			provoke: func(_ context.Context, _ *WithT, stack *pulumiv1.Stack) {
				pulumi := &podSpecOf(stack).Containers[0]
				pulumi.Env = append(pulumi.Env, corev1.EnvVar{Name: "KEY", ValueFrom: &corev1.EnvVarSource{SecretKeyRef: &corev1.SecretKeySelector{
					Name: late, Key: "key",
				}}})
			},
			reason: autov1alpha1.ContainerCreationFailedReason,
			says:   []string{"container pulumi of pod variable-missing-workspace-0 cannot be created", `secret "late" not found`},
			heal: func(ctx context.Context, g *WithT, key client.ObjectKey) {
				g.Expect(system.Client.Create(ctx, secret(key.Namespace, late, "key", "value"))).To(Succeed())
			},
		},
	})
}

// mountLateVolume mounts a ConfigMap that does not exist yet.
func mountLateVolume(_ context.Context, _ *WithT, stack *pulumiv1.Stack) {
	pod := podSpecOf(stack)
	pod.Volumes = append(pod.Volumes, corev1.Volume{Name: late,
		ConfigMap: &corev1.ConfigMapVolumeSource{Name: late}})
	pod.Containers[0].VolumeMounts = append(pod.Containers[0].VolumeMounts, corev1.VolumeMount{Name: late, MountPath: "/late"})
}

// createConfigMap creates the ConfigMap that was missing.
func createConfigMap(ctx context.Context, g *WithT, key client.ObjectKey) {
	configMap := &corev1.ConfigMap{Namespace: key.Namespace, Name: late, Data: map[string]string{"key": "value"}}
	g.Expect(system.Client.Create(ctx, configMap)).To(Succeed())
}

func TestProblemWithTheCreationOfThePodIsShownAndEndsWithItsCause(t *testing.T) {
	suite.Long(t, "a further state of a pod")
	t.Parallel()
	playProblems(t, map[string]problem{
		"quota-exceeded":        exceeded(corev1.ResourcePods, "0", "1", "the pod cannot be created"),
		"set-quota-exceeded":    exceeded("count/statefulsets.apps", "0", "1", "the API server refuses, trying again", "count/statefulsets.apps=1"),
		"secret-quota-exceeded": exceeded("count/secrets", "1", "3", "the API server refuses, trying again", "count/secrets=1"), // those of the passphrase, the token, the outputs
		"limit-range": {
			provoke: func(ctx context.Context, g *WithT, stack *pulumiv1.Stack) {
				g.Expect(system.Client.Create(ctx, memoryLimits(stack.Namespace))).To(Succeed())
				pulumi := &podSpecOf(stack).Containers[0]
				pulumi.Resources.Limits = corev1.ResourceList{corev1.ResourceMemory: resource.MustParse("1Gi")}
			},
			reason: autov1alpha1.PodCreationFailedReason,
			says:   []string{"the pod cannot be created", "maximum memory usage per Container is 512Mi, but limit is 1Gi"},
			heal: func(ctx context.Context, g *WithT, key client.ObjectKey) {
				g.Expect(system.Client.Delete(ctx, memoryLimits(key.Namespace))).To(Succeed())
			},
		},
		"account-missing": {
			provoke: func(_ context.Context, _ *WithT, stack *pulumiv1.Stack) { stack.Spec.ServiceAccountName = "late" },
			reason:  autov1alpha1.ServiceAccountNotFoundReason,
			says:    []string{"the pod cannot be created", `serviceaccount "late" not found`},
			heal: func(ctx context.Context, g *WithT, key client.ObjectKey) {
				account := &corev1.ServiceAccount{Namespace: key.Namespace, Name: "late"}
				g.Expect(system.Client.Create(ctx, account)).To(Succeed())
			},
		},
		"pod-security": {
			provoke: func(_ context.Context, _ *WithT, stack *pulumiv1.Stack) {
				pod := podSpecOf(stack)
				pod.Containers = append(pod.Containers, corev1.Container{
					Name: "privileged", Image: system.Images.Busybox.Reference, ImagePullPolicy: corev1.PullIfNotPresent,
					Command:         []string{"sleep", "86400"},
					SecurityContext: &corev1.SecurityContext{Privileged: new(true)},
				})
			},
			reason: autov1alpha1.PodSecurityViolationReason,
			says:   []string{"the pod cannot be created", `violates PodSecurity "restricted:latest"`, `container "privileged" must not set securityContext.privileged=true`},
			heal: func(ctx context.Context, g *WithT, key client.ObjectKey) {
				enforce(ctx, g, key.Namespace, "privileged")
			},
		},
		"baseline": {
			provoke: func(_ context.Context, _ *WithT, stack *pulumiv1.Stack) {
				stack.Spec.WorkspaceTemplate.Spec.SecurityProfile = autov1alpha1.SecurityProfileBaseline
			},
			reason: autov1alpha1.PodSecurityViolationReason,
			says:   []string{"the pod cannot be created", `violates PodSecurity "restricted:latest"`},
			heal:   func(ctx context.Context, g *WithT, key client.ObjectKey) { enforce(ctx, g, key.Namespace, "baseline") },
			then: func(g *WithT, pod *corev1.Pod) {
				g.Expect(pod.Spec.SecurityContext.RunAsNonRoot).To(BeNil())
				g.Expect(pod.Spec.SecurityContext.SeccompProfile.Type).To(Equal(corev1.SeccompProfileTypeRuntimeDefault))
			},
		},
		"template-invalid": {
			provoke: func(_ context.Context, _ *WithT, stack *pulumiv1.Stack) {
				podSpecOf(stack).NodeSelector = map[string]string{"no label": "x"}
			},
			reason:  autov1alpha1.ObjectRejectedReason,
			says:    []string{"the API server refuses", "nodeSelector", "no label"},
			stalled: true,
			heal: func(ctx context.Context, g *WithT, key client.ObjectKey) {
				change(ctx, g, key, func(stack *pulumiv1.Stack) { podSpecOf(stack).NodeSelector = nil })
			},
		},
	})
}

// exceeded returns the problem that a quota allows too few objects. It ends when the quota allows more.
func exceeded(what corev1.ResourceName, few, enough string, says ...string) problem {
	return problem{
		provoke: func(ctx context.Context, g *WithT, stack *pulumiv1.Stack) {
			g.Expect(system.Client.Create(ctx, quota(stack.Namespace, what, few))).To(Succeed())
		},
		reason: autov1alpha1.QuotaExceededReason,
		says:   append(says, "exceeded quota: quota"),
		heal: func(ctx context.Context, g *WithT, key client.ObjectKey) {
			g.Expect(system.Client.Update(ctx, quota(key.Namespace, what, enough))).To(Succeed())
		},
	}
}

// enforce makes the namespace enforce a level of pod security.
func enforce(ctx context.Context, g *WithT, namespace, level string) {
	_, err := kubectl(ctx, "label", "--overwrite", "namespace", namespace, enforceLabel+"="+level)
	g.Expect(err).NotTo(HaveOccurred())
}

// quota returns a ResourceQuota that allows that number of objects.
func quota(namespace string, what corev1.ResourceName, count string) *corev1.ResourceQuota {
	return &corev1.ResourceQuota{
		Namespace: namespace, Name: "quota",
		Spec: corev1.ResourceQuotaSpec{Hard: corev1.ResourceList{what: resource.MustParse(count)}},
	}
}

// memoryLimits returns a LimitRange that allows containers at most 512 MiB of memory.
func memoryLimits(namespace string) *corev1.LimitRange {
	return &corev1.LimitRange{
		Namespace: namespace, Name: "memory",
		Spec: corev1.LimitRangeSpec{Limits: []corev1.LimitRangeItem{{
			Type: corev1.LimitTypeContainer, Max: corev1.ResourceList{corev1.ResourceMemory: resource.MustParse("512Mi")},
		}}},
	}
}

// lateImage is an image that the node gets after the pod was created.
const lateImage = "stack-controller.test/pulumi:late"

func TestProblemWithTheImageIsShownAndEndsWithItsCause(t *testing.T) {
	suite.Long(t, "a further state of a pod")
	t.Parallel()
	playProblems(t, map[string]problem{
		"image-missing": {
			provoke: func(_ context.Context, _ *WithT, stack *pulumiv1.Stack) {
				stack.Spec.WorkspaceTemplate.Spec.Image = lateImage
			},
			reason: autov1alpha1.ImagePullFailedReason,
			says:   []string{"image " + lateImage + " of container pulumi", "cannot be pulled"},
			heal: func(ctx context.Context, g *WithT, _ client.ObjectKey) {
				g.Expect(system.Cluster.TagImage(ctx, system.Images.Pulumi.Reference, lateImage)).To(Succeed())
			},
		},
		"image-invalid": {
			provoke: func(_ context.Context, _ *WithT, stack *pulumiv1.Stack) {
				stack.Spec.WorkspaceTemplate.Spec.Image = "Not/An/Image:a:b"
			},
			reason:  autov1alpha1.ImagePullFailedReason,
			says:    []string{"container pulumi", "has an invalid image name", "Not/An/Image:a:b"},
			stalled: true,
			heal:    useTheImage,
		},
		"image-without-pulumi": {
			provoke: func(_ context.Context, _ *WithT, stack *pulumiv1.Stack) {
				stack.Spec.WorkspaceTemplate.Spec.Image = system.Images.Busybox.Reference
			},
			reason: autov1alpha1.CrashLoopBackOffReason,
			says:   []string{"container pulumi", "ended with exit code 1", "find the pulumi CLI"},
			heal:   useTheImage,
		},
		"image-with-old-pulumi": {
			provoke: func(ctx context.Context, g *WithT, stack *pulumiv1.Stack) {
				script := &corev1.ConfigMap{
					Namespace: stack.Namespace, Name: "old", Data: map[string]string{"pulumi": "#!/bin/sh\nsleep 2\necho v3.100.0\n"},
				}
				g.Expect(system.Client.Create(ctx, script)).To(Succeed())
				stack.Spec.Config = map[string]apiextensionsv1.JSON{"replicas": {Raw: []byte("3")}}
				pod := podSpecOf(stack)
				pod.Volumes = append(pod.Volumes, corev1.Volume{Name: "old", ConfigMap: &corev1.ConfigMapVolumeSource{
					Name: "old", DefaultMode: ptr.To[int32](0o755),
				}})
				pod.Containers[0].VolumeMounts = append(pod.Containers[0].VolumeMounts, corev1.VolumeMount{Name: "old", MountPath: "/pulumi/bin"})
			},
			reason: autov1alpha1.IncompatibleConfigurationReason,
			says:   []string{"structured configuration is not supported by pulumi CLI v3.100.0: at least v3.202.0"},
			// Only another image solves the problem.
			stalled: true,
			heal: func(ctx context.Context, g *WithT, key client.ObjectKey) {
				change(ctx, g, key, func(stack *pulumiv1.Stack) { podSpecOf(stack).Containers[0].VolumeMounts[1].MountPath = "/old" })
			},
		},
	})
}

// Nothing runs without a pod, so there is nothing to destroy, and nobody has to say that the resources may stay.
func TestStackWhosePodNeverStartedCanBeDeleted(t *testing.T) {
	suite.Long(t, "a further state in which a Stack is deleted")
	t.Parallel()
	g := NewWithT(t)
	const name = "never-started"
	removeNamespaceAtEnd(t, g, name)
	app, err := system.Deploy(t.Context(), name, programWith(name, "one"), func(stack *pulumiv1.Stack) {
		stack.Spec.DestroyOnFinalize = true
		stack.Spec.WorkspaceTemplate.Spec.Image = "Not/An/Image:a:b"
	})
	g.Expect(err).NotTo(HaveOccurred())
	stack := awaitStack(t.Context(), g, app.Key(), func(g Gomega, stack *pulumiv1.Stack) {
		g.Expect(conditions.IsStalled(stack)).To(BeTrue())
	})
	g.Expect(system.Client.Delete(t.Context(), stack)).To(Succeed())
	eventually(t.Context(), g, func(g Gomega) {
		g.Expect(apierrors.IsNotFound(system.Client.Get(t.Context(), app.Key(), &pulumiv1.Stack{}))).To(BeTrue())
	})
}

// useTheImage edits the Stack to use the image that works.
func useTheImage(ctx context.Context, g *WithT, key client.ObjectKey) {
	change(ctx, g, key, func(stack *pulumiv1.Stack) { stack.Spec.WorkspaceTemplate.Spec.Image = system.Images.Pulumi.Reference })
}

// podSpecOf returns the pod template in the Stack. Its first container is the one in which Pulumi runs.
func podSpecOf(stack *pulumiv1.Stack) *corev1.PodSpec {
	return &stack.Spec.WorkspaceTemplate.Spec.PodTemplate.Spec.PodSpec
}

// lateLabel is a label that the node gets after the pod has asked for it.
const lateLabel = "example.com/late"

func TestProblemWithTheNodeIsShownAndEndsWithItsCause(t *testing.T) {
	suite.Long(t, "a further state of a pod")
	t.Parallel()
	t.Cleanup(func() {
		_, err := kubectl(context.WithoutCancel(t.Context()), "label", "nodes", "--all", lateLabel+"-")
		NewWithT(t).Expect(err).NotTo(HaveOccurred())
	})
	playProblems(t, map[string]problem{
		"no-such-node": {
			provoke: func(_ context.Context, _ *WithT, stack *pulumiv1.Stack) {
				podSpecOf(stack).NodeSelector = map[string]string{lateLabel: "true"}
			},
			reason: autov1alpha1.UnschedulableReason,
			says:   []string{"pod no-such-node-workspace-0 cannot be scheduled", "didn't match Pod's node affinity/selector"},
			heal: func(ctx context.Context, g *WithT, _ client.ObjectKey) {
				_, err := kubectl(ctx, "label", "nodes", "--all", lateLabel+"=true")
				g.Expect(err).NotTo(HaveOccurred())
			},
		},
		"too-few-processors": {
			provoke: func(_ context.Context, _ *WithT, stack *pulumiv1.Stack) {
				podSpecOf(stack).Containers[0].Resources.Requests = corev1.ResourceList{corev1.ResourceCPU: resource.MustParse("1000")}
			},
			reason: autov1alpha1.UnschedulableReason,
			says:   []string{"pod too-few-processors-workspace-0 cannot be scheduled", "Insufficient cpu"},
			heal: func(ctx context.Context, g *WithT, key client.ObjectKey) {
				change(ctx, g, key, func(stack *pulumiv1.Stack) { podSpecOf(stack).Containers[0].Resources.Requests = nil })
			},
		},
		"claim-missing": {
			provoke: func(ctx context.Context, g *WithT, stack *pulumiv1.Stack) {
				_, err := kubectl(ctx, "delete", "--namespace="+stack.Namespace, "persistentvolumeclaim", podsystem.StateClaim)
				g.Expect(err).NotTo(HaveOccurred())
				_, err = kubectl(ctx, "delete", "persistentvolume", "state-"+stack.Namespace)
				g.Expect(err).NotTo(HaveOccurred())
			},
			reason: autov1alpha1.UnschedulableReason,
			says:   []string{"pod claim-missing-workspace-0 cannot be scheduled", `persistentvolumeclaim "state" not found`},
			heal: func(ctx context.Context, g *WithT, key client.ObjectKey) {
				g.Expect(system.ClaimState(ctx, key.Namespace)).To(Succeed())
			},
		},
	})
}
