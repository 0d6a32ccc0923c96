package podspec

import (
	"strings"
	"testing"

	. "github.com/onsi/gomega"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/validation"
)

func TestNamesFitLabelsAndHostNames(t *testing.T) {
	long := strings.Repeat("a", 43)
	for _, tt := range []struct{ workspace, object, label string }{
		{"my-stack", "my-stack-workspace", "my-stack"},
		{"a--b", "a--b-workspace", "a--b"},
		{long[:42], long[:42] + "-workspace", long[:42]},
		{long, strings.Repeat("a", 30) + "--66d34fba71-workspace", long},
		{"a.b", "a-b--2e7336dc8e-workspace", "a.b"},
		{"0app", "w0app--0c7b3928e0-workspace", "0app"},
		// A cut never leaves a third hyphen.
		{strings.Repeat("a", 29) + "." + long, strings.Repeat("a", 29) + "--ba6e1f1c17-workspace", strings.Repeat("a", 29) + "-" + strings.Repeat("a", 21) + "--ba6e1f1c17"},
		{strings.Repeat("x", 253), strings.Repeat("x", 30) + "--1329e1bd71-workspace", strings.Repeat("x", 51) + "--1329e1bd71"},
		// This name looks like a shortened name. Without a hash of its own, it would be the name for another Workspace.
		{"a-b--2e7336dc8e", "a-b--2e7336dc8e--879eff7d5a-workspace", "a-b--2e7336dc8e--879eff7d5a"},
	} {
		t.Run(tt.workspace, func(t *testing.T) {
			g := NewWithT(t)
			workspace := &metav1.ObjectMeta{Name: tt.workspace, Namespace: "team"}
			g.Expect(ObjectName(workspace)).To(Equal(tt.object))
			g.Expect(validation.IsDNS1035Label(ObjectName(workspace))).To(BeEmpty())
			g.Expect(len(ObjectName(workspace))).To(BeNumerically("<=", 52))
			g.Expect(PodName(workspace)).To(Equal(tt.object + "-0"))
			g.Expect(SecretName(workspace)).To(Equal(tt.object + "-rpc"))
			g.Expect(Address(workspace, "cluster.local")).To(Equal(tt.object + ".team.svc.cluster.local:50051"))
			for _, value := range Labels(workspace) {
				g.Expect(validation.IsValidLabelValue(value)).To(BeEmpty())
			}
			g.Expect(Selector(workspace)).To(HaveKeyWithValue("auto.pulumi.com/workspace-name", tt.label))
		})
	}
}

func TestTheWorkspaceOfAnObjectIsFound(t *testing.T) {
	for _, name := range []string{"app", "a.b", strings.Repeat("x", 253)} {
		g := NewWithT(t)
		workspace := parse(g, `{}`)
		workspace.Name = name
		objects := build(g, workspace)
		pod := objects.StatefulSet.Spec.Template.ObjectMeta
		pod.Namespace = workspace.Namespace
		for _, object := range []metav1.Object{objects.StatefulSet, objects.Service, &pod} {
			found, ok := WorkspaceOf(object)
			g.Expect(ok).To(BeTrue())
			g.Expect(found).To(Equal(types.NamespacedName{Namespace: "team", Name: name}))
		}
	}
	g := NewWithT(t)
	_, ok := WorkspaceOf(&metav1.ObjectMeta{Name: "app", Labels: map[string]string{"auto.pulumi.com/component": "update", "auto.pulumi.com/workspace-name": "app"}})
	g.Expect(ok).To(BeFalse())
}
