package v1alpha1

import (
	"testing"

	. "github.com/onsi/gomega"
)

func TestEmptyWorkspaceHasTheDocumentedDefaults(t *testing.T) {
	g := NewWithT(t)
	workspace := &Workspace{}

	g.Expect(workspace.GetServiceAccountName()).To(Equal("default"))
	g.Expect(workspace.GetSecurityProfile()).To(Equal(SecurityProfileRestricted))
}
