package update

import (
	"testing"

	. "github.com/onsi/gomega"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	autov1alpha1 "github.com/stack-controller/stack-controller/api/auto/v1alpha1"
)

func TestUpdateThatCameBeforeItsWorkspaceIsNoticed(t *testing.T) {
	for _, tt := range []struct {
		name, annotation string
		owner            string
		behind           bool
	}{
		{"a later generation", "3", "uid", true},
		{"the same generation", "2", "uid", false},
		{"an earlier generation", "1", "uid", false},
		{"a Workspace that was created again", "3", "another", false},
		{"nothing said", "", "uid", false},
		{"nonsense", "many", "uid", false},
	} {
		t.Run(tt.name, func(t *testing.T) {
			workspace := &autov1alpha1.Workspace{Name: "app", UID: "uid", Generation: 2}
			owner := workspace.DeepCopy()
			owner.UID = "another"
			if tt.owner == "uid" {
				owner.UID = "uid"
			}
			update := &autov1alpha1.Update{
				Annotations:     map[string]string{autov1alpha1.WorkspaceGenerationAnnotation: tt.annotation},
				OwnerReferences: []metav1.OwnerReference{*metav1.NewControllerRef(owner, autov1alpha1.GroupVersion.WithKind(autov1alpha1.WorkspaceKind))}}
			NewWithT(t).Expect(isBehind(workspace, update)).To(Equal(tt.behind))
		})
	}
}
