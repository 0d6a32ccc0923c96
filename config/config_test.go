package config_test

import (
	"os/exec"
	"strings"
	"testing"

	. "github.com/onsi/gomega"
	"sigs.k8s.io/yaml"

	"github.com/stack-controller/stack-controller/config"
	"github.com/stack-controller/stack-controller/tests/tools"
)

func TestObjectsAreThoseOfTheDefaultInstallation(t *testing.T) {
	g := NewWithT(t)
	kubectl, err := tools.Path(t.Context(), "kubectl", nil)
	g.Expect(err).NotTo(HaveOccurred())
	output, err := exec.CommandContext(t.Context(), kubectl, "kustomize", "default").Output()
	g.Expect(err).NotTo(HaveOccurred())
	images := strings.NewReplacer("stack-controller/stack-controller:latest", "mirror.example/controller@sha256:1",
		"stack-controller/stack-controller-agent:latest", "mirror.example/agent:v1")
	wanted := map[string]any{}
	for document := range strings.SplitSeq(images.Replace(string(output)), "\n---\n") {
		var object map[string]any
		g.Expect(yaml.Unmarshal([]byte(document), &object)).To(Succeed())
		wanted[nameOf(object)] = object
	}

	objects, err := config.Objects("mirror.example/controller@sha256:1", "mirror.example/agent:v1")
	g.Expect(err).NotTo(HaveOccurred())
	g.Expect(objects).To(HaveLen(len(wanted)))
	for _, object := range objects {
		g.Expect(object.Object).To(Equal(wanted[nameOf(object.Object)]), "run make generate")
	}
}

func nameOf(object map[string]any) string {
	metadata, _ := object["metadata"].(map[string]any)
	kind, _ := object["kind"].(string)
	name, _ := metadata["name"].(string)
	return kind + " " + name
}
