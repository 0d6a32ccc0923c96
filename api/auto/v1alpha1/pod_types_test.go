package v1alpha1

import (
	"encoding/json"
	"testing"

	. "github.com/onsi/gomega"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/runtime"
)

func TestPodTemplateWithoutContainersDoesNotMentionThem(t *testing.T) {
	g := NewWithT(t)
	template := &EmbeddedPodTemplateSpec{Spec: &EmbeddedPodSpec{NodeName: "a"}}

	encoded, err := json.Marshal(template)
	g.Expect(err).NotTo(HaveOccurred())
	g.Expect(encoded).To(MatchJSON(`{"spec": {"nodeName": "a"}}`))

	object, err := runtime.DefaultUnstructuredConverter.ToUnstructured(template)
	g.Expect(err).NotTo(HaveOccurred())
	g.Expect(object).To(Equal(map[string]any{"spec": map[string]any{"nodeName": "a"}}))
}

func TestPodTemplateSurvivesEncodingAndDecoding(t *testing.T) {
	g := NewWithT(t)
	template := EmbeddedPodTemplateSpec{
		Metadata: EmbeddedObjectMeta{Labels: map[string]string{"a": "b"}},
		Spec: &EmbeddedPodSpec{
			Containers: []corev1.Container{{Name: PulumiContainerName, Env: []corev1.EnvVar{{Name: "A", Value: "b"}}}}},
	}

	encoded, err := json.Marshal(template)
	g.Expect(err).NotTo(HaveOccurred())
	var decoded EmbeddedPodTemplateSpec
	g.Expect(json.Unmarshal(encoded, &decoded)).To(Succeed())
	g.Expect(decoded).To(Equal(template))
}
