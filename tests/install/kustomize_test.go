package install_test

import (
	"os"
	"strings"
	"testing"

	. "github.com/onsi/gomega"
)

// What "images:" of an overlay does, spec.images of a Flux Kustomization does too.
func TestAnOverlayReplacesBothImages(t *testing.T) {
	g := NewWithT(t)
	deployment := kustomize(t, kustomization(t, `
resources: [repository/config/default]
images:
- name: stack-controller/stack-controller
  newName: mirror.example.com/controller
  newTag: v1.2.3
- name: stack-controller/stack-controller-agent
  newName: mirror.example.com/agent
  digest: sha256:0000000000000000000000000000000000000000000000000000000000000000
`)).get(t, "Deployment", "stack-controller")
	g.Expect(manager(t, deployment, "image")).To(Equal("mirror.example.com/controller:v1.2.3"))
	g.Expect(environment(t, deployment, "AGENT_IMAGE")).To(Equal(
		"mirror.example.com/agent@sha256:0000000000000000000000000000000000000000000000000000000000000000"))
}

func TestAnOverlayMovesEverythingIntoAnotherNamespace(t *testing.T) {
	g := NewWithT(t)
	rendered := kustomize(t, kustomization(t, `
resources: [repository/config/default]
namespace: elsewhere
`))
	for _, object := range rendered {
		if namespace := object.GetNamespace(); namespace != "" {
			g.Expect(namespace).To(Equal("elsewhere"), "%s %s", object.GetKind(), object.GetName())
		}
		if object.GetKind() == "RoleBinding" || object.GetKind() == "ClusterRoleBinding" {
			g.Expect(at(t, object, "subjects", 0, "namespace")).To(Equal("elsewhere"), "%s %s", object.GetKind(), object.GetName())
		}
	}
}

// The patch is the one in the documentation. It names rules by their place, which a new rule may move.
func TestTheDocumentedPatchTakesAwayTheRightToListSecrets(t *testing.T) {
	g := NewWithT(t)
	content, err := os.ReadFile(inRepository("docs", "guides", "installation.md"))
	g.Expect(err).NotTo(HaveOccurred())
	_, section, found := strings.Cut(string(content), "\n### Watching Secrets and ConfigMaps\n")
	g.Expect(found).To(BeTrue())
	_, patches, _ := strings.Cut(section, "\n```\n")
	patches, _, _ = strings.Cut(patches, "\n```\n")
	rendered := kustomize(t, kustomization(t, "resources: [repository/config/default]\n"+patches))
	verbs := map[any]any{}
	for _, rule := range at(t, rendered.get(t, "ClusterRole", "stack-controller"), "rules").([]any) {
		fields := rule.(map[string]any)
		for _, resource := range fields["resources"].([]any) {
			verbs[resource] = fields["verbs"]
		}
	}
	g.Expect(verbs["secrets"]).To(ConsistOf("create", "get"))
	g.Expect(verbs["configmaps"]).To(ConsistOf("get"))
	g.Expect(manager(t, rendered.get(t, "Deployment", "stack-controller"), "args")).To(ContainElement("--watch-configs-label-selector=none"))
}

func TestFluxLeavesTheDefinitionsWhenItPrunes(t *testing.T) {
	g := NewWithT(t)
	definitions := 0
	for _, object := range kustomize(t, inRepository("config", "default")) {
		if object.GetKind() == "CustomResourceDefinition" {
			definitions++
			g.Expect(object.GetAnnotations()).To(HaveKeyWithValue("kustomize.toolkit.fluxcd.io/prune", "disabled"), object.GetName())
		}
	}
	g.Expect(definitions).To(Equal(4))
}
