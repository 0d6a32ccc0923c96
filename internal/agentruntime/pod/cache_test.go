package pod

import (
	"encoding/json"
	"slices"
	"strings"
	"testing"

	. "github.com/onsi/gomega"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	autov1alpha1 "github.com/stack-controller/stack-controller/api/auto/v1alpha1"
	"github.com/stack-controller/stack-controller/internal/agentruntime/pod/podspec"
)

func TestCacheKeepsLittleOfObjectsThatSomebodyElseLabelled(t *testing.T) {
	const payload = 200 << 10
	meta := metav1.ObjectMeta{
		Name: "app-workspace", Namespace: "team",
		Labels:          map[string]string{autov1alpha1.ComponentLabel: autov1alpha1.ComponentWorkspace, "example.com/x": strings.Repeat("x", 63)},
		Annotations:     map[string]string{"example.com/large": strings.Repeat("x", payload), appliedHashAnnotation: "0a1b", podspec.WorkspaceNameAnnotation: strings.Repeat("x", payload)},
		OwnerReferences: []metav1.OwnerReference{{Kind: "Pod", Name: strings.Repeat("x", payload), Controller: new(true)}, {Kind: strings.Repeat("x", payload)}},
		Finalizers:      []string{strings.Repeat("x", payload)},
		ManagedFields:   []metav1.ManagedFieldsEntry{{Manager: strings.Repeat("x", payload)}},
	}
	containers := []corev1.Container{{Name: "x", Env: []corev1.EnvVar{{Name: "X", Value: strings.Repeat("x", payload)}}}}
	initContainers := slices.Repeat([]corev1.Container{{
		Name: strings.Repeat("x", 63), Env: containers[0].Env, VolumeMounts: []corev1.VolumeMount{{Name: podspec.ShareVolume, MountPath: strings.Repeat("x", payload)}},
	}}, 30)
	service := serviceMetadata()
	service.ObjectMeta = *meta.DeepCopy()
	for name, object := range map[string]client.Object{
		"pod": &corev1.Pod{ObjectMeta: *meta.DeepCopy(), Spec: corev1.PodSpec{InitContainers: initContainers, Containers: containers}}, "service": service,
		"statefulset": &appsv1.StatefulSet{ObjectMeta: *meta.DeepCopy(), Spec: appsv1.StatefulSetSpec{
			Template: corev1.PodTemplateSpec{ObjectMeta: *meta.DeepCopy(), Spec: corev1.PodSpec{Containers: containers}},
		}},
	} {
		t.Run(name, func(t *testing.T) {
			g := NewWithT(t)
			for of, settings := range CachedObjects() {
				if strings.HasSuffix(strings.ToLower(kindOf(of)), name) {
					kept, err := settings.Transform(object)
					g.Expect(err).NotTo(HaveOccurred())
					content, err := json.Marshal(kept)
					g.Expect(err).NotTo(HaveOccurred())
					g.Expect(len(content)).To(BeNumerically("<", 4<<10))
					g.Expect(object.GetAnnotations()).To(HaveKeyWithValue(appliedHashAnnotation, "0a1b"))
					return
				}
			}
			t.Fatal("it is not cached")
		})
	}
}

func kindOf(object client.Object) string {
	switch object.(type) {
	case *corev1.Pod:
		return "pod"
	case *appsv1.StatefulSet:
		return "statefulset"
	}
	return "service"
}
