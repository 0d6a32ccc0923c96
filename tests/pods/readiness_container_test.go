package pods_test

import (
	"context"
	"testing"

	. "github.com/onsi/gomega"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"

	autov1alpha1 "github.com/stack-controller/stack-controller/api/auto/v1alpha1"
	pulumiv1 "github.com/stack-controller/stack-controller/api/pulumi/v1"
	"github.com/stack-controller/stack-controller/tests/suite"
)

// late is a ConfigMap or Secret that comes later than the pod that refers to it.
const late = "late"

func TestTroubleWithContainersIsShownAndEndsWithItsCause(t *testing.T) {
	suite.Long(t, "a further state of a pod")
	t.Parallel()
	playTroubles(t, map[string]trouble{
		"init-container-crashes": {
			provoke: func(_ context.Context, _ *WithT, stack *pulumiv1.Stack) {
				pod := podSpecOf(stack)
				pod.InitContainers = append(pod.InitContainers, corev1.Container{
					Name: "gate", Image: system.Images.Busybox.Reference, ImagePullPolicy: corev1.PullIfNotPresent,
					Command: []string{"sh", "-c", `test -n "$KEY" || { echo the gate is closed; exit 3; }`},
					Env: []corev1.EnvVar{{Name: "KEY", ValueFrom: &corev1.EnvVarSource{ConfigMapKeyRef: &corev1.ConfigMapKeySelector{
						LocalObjectReference: corev1.LocalObjectReference{Name: late}, Key: "key", Optional: ptr.To(true),
					}}}},
					TerminationMessagePolicy: corev1.TerminationMessageFallbackToLogsOnError,
					SecurityContext:          &corev1.SecurityContext{AllowPrivilegeEscalation: ptr.To(false), Capabilities: &corev1.Capabilities{Drop: []corev1.Capability{"ALL"}}},
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
					LocalObjectReference: corev1.LocalObjectReference{Name: late}, Key: "key",
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

// mountLateVolume mounts a ConfigMap that does not exist.
func mountLateVolume(_ context.Context, _ *WithT, stack *pulumiv1.Stack) {
	pod := podSpecOf(stack)
	pod.Volumes = append(pod.Volumes, corev1.Volume{Name: late, VolumeSource: corev1.VolumeSource{
		ConfigMap: &corev1.ConfigMapVolumeSource{LocalObjectReference: corev1.LocalObjectReference{Name: late}},
	}})
	pod.Containers[0].VolumeMounts = append(pod.Containers[0].VolumeMounts, corev1.VolumeMount{Name: late, MountPath: "/late"})
}

// createConfigMap creates the ConfigMap that was missing.
func createConfigMap(ctx context.Context, g *WithT, key client.ObjectKey) {
	configMap := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Namespace: key.Namespace, Name: late}, Data: map[string]string{"key": "value"}}
	g.Expect(system.Client.Create(ctx, configMap)).To(Succeed())
}
