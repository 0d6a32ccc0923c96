package podspec

import (
	"errors"
	"fmt"
	"runtime"
	"testing"

	. "github.com/onsi/gomega"
	corev1 "k8s.io/api/core/v1"
)

func TestMessageAboutVeryManyProblemsTakesLittleMemory(t *testing.T) {
	g := NewWithT(t)
	workspace := parse(g, `{podTemplate: {spec: {}}}`)
	pulumi := corev1.Container{Name: "pulumi"}
	for i := range 20_000 {
		pulumi.VolumeMounts = append(pulumi.VolumeMounts, corev1.VolumeMount{Name: "a", MountPath: fmt.Sprint("/share/agent/", i)})
	}
	workspace.Spec.PodTemplate.Spec.Containers = []corev1.Container{pulumi}
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	_, err := Build(workspace, settings())
	invalid, ok := errors.AsType[*InvalidError](err)
	g.Expect(ok).To(BeTrue(), "%v", err)
	text := invalid.Error()
	runtime.ReadMemStats(&after)
	g.Expect(text).To(ContainSubstring("it would hide the agent"))
	g.Expect(invalid.Problems).To(HaveLen(maxProblems))
	g.Expect(after.TotalAlloc-before.TotalAlloc).To(BeNumerically("<", 64<<20), "bytes")
}
