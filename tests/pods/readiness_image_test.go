package pods_test

import (
	"context"
	"testing"

	. "github.com/onsi/gomega"
	corev1 "k8s.io/api/core/v1"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"

	autov1alpha1 "github.com/stack-controller/stack-controller/api/auto/v1alpha1"
	pulumiv1 "github.com/stack-controller/stack-controller/api/pulumi/v1"
	"github.com/stack-controller/stack-controller/tests/suite"
)

// lateImage is an image that the node gets later than the pod.
const lateImage = "stack-controller.test/pulumi:late"

func TestTroubleWithTheImageIsShownAndEndsWithItsCause(t *testing.T) {
	suite.Long(t, "a further state of a pod")
	t.Parallel()
	playTroubles(t, map[string]trouble{
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
			says:    []string{"container pulumi", "has an image name that is none", "Not/An/Image:a:b"},
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
					ObjectMeta: metav1.ObjectMeta{Namespace: stack.Namespace, Name: "old"}, Data: map[string]string{"pulumi": "#!/bin/sh\nsleep 2\necho v3.100.0\n"},
				}
				g.Expect(system.Client.Create(ctx, script)).To(Succeed())
				stack.Spec.Config = map[string]apiextensionsv1.JSON{"replicas": {Raw: []byte("3")}}
				pod := podSpecOf(stack)
				pod.Volumes = append(pod.Volumes, corev1.Volume{Name: "old", VolumeSource: corev1.VolumeSource{ConfigMap: &corev1.ConfigMapVolumeSource{
					LocalObjectReference: corev1.LocalObjectReference{Name: "old"}, DefaultMode: ptr.To[int32](0o755),
				}}})
				pod.Containers[0].VolumeMounts = append(pod.Containers[0].VolumeMounts, corev1.VolumeMount{Name: "old", MountPath: "/pulumi/bin"})
			},
			reason: autov1alpha1.IncompatibleConfigurationReason,
			says:   []string{"structured configuration is not supported by pulumi CLI v3.100.0: at least v3.202.0"},
			// Only another image helps.
			stalled: true,
			heal: func(ctx context.Context, g *WithT, key client.ObjectKey) {
				change(ctx, g, key, func(stack *pulumiv1.Stack) { podSpecOf(stack).Containers[0].VolumeMounts[1].MountPath = "/old" })
			},
		},
	})
}

// useTheImage edits the Stack so that it has the image that works.
func useTheImage(ctx context.Context, g *WithT, key client.ObjectKey) {
	change(ctx, g, key, func(stack *pulumiv1.Stack) { stack.Spec.WorkspaceTemplate.Spec.Image = system.Images.Pulumi.Reference })
}

// podSpecOf is the pod as the Stack customizes it. Its first container is the one in which Pulumi runs.
func podSpecOf(stack *pulumiv1.Stack) *corev1.PodSpec {
	return &stack.Spec.WorkspaceTemplate.Spec.PodTemplate.Spec.PodSpec
}
