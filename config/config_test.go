package config_test

import (
	"os"
	"os/exec"
	"path/filepath"
	"reflect"
	"strings"
	"testing"

	. "github.com/onsi/gomega"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
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
	wanted := map[string]map[string]any{}
	for document := range strings.SplitSeq(images.Replace(string(output)), "\n---\n") {
		object := &unstructured.Unstructured{}
		g.Expect(yaml.Unmarshal([]byte(document), object)).To(Succeed())
		wanted[nameOf(object)] = object.Object
	}

	objects, err := config.Objects("mirror.example/controller@sha256:1", "mirror.example/agent:v1")
	g.Expect(err).NotTo(HaveOccurred())
	g.Expect(objects).To(HaveLen(len(wanted)))
	for _, object := range objects {
		g.Expect(reflect.DeepEqual(object.Object, wanted[nameOf(object)])).To(BeTrue(), "run make generate: %s differs", nameOf(object))
	}
}

func nameOf(object *unstructured.Unstructured) string {
	return object.GetKind() + " " + object.GetName()
}

func TestGuidesCountTheDefinitions(t *testing.T) {
	g := NewWithT(t)
	files, err := filepath.Glob(filepath.Join("crd", "bases", "*.yaml"))
	g.Expect(err).NotTo(HaveOccurred())
	number := map[int]string{5: "five", 6: "six", 7: "seven", 8: "eight"}[len(files)]
	g.Expect(number).NotTo(BeEmpty())
	for guide, sentence := range map[string]string{"migration.md": " definitions, two of them new", "installation.md": " CustomResourceDefinitions (CRDs)"} {
		content, err := os.ReadFile(filepath.Join("..", "docs", "guides", guide))
		g.Expect(err).NotTo(HaveOccurred())
		g.Expect(string(content)).To(ContainSubstring(" "+number+sentence), guide)
	}
}
