package config_test

import (
	"encoding/xml"
	"errors"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"

	. "github.com/onsi/gomega"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"sigs.k8s.io/yaml"

	pulumiv1 "github.com/stack-controller/stack-controller/api/pulumi/v1"
	"github.com/stack-controller/stack-controller/config"
	"github.com/stack-controller/stack-controller/tests/tools"
)

// In the words of Artifact Hub.
type shownKind struct {
	Kind, Version, Name, DisplayName, Description string
}

func TestArtifactHubShowsTheKindsOfTheChart(t *testing.T) {
	g := NewWithT(t)
	content, err := os.ReadFile(filepath.Join("chart", "Chart.yaml"))
	g.Expect(err).NotTo(HaveOccurred())
	var chart struct {
		Icon        string
		Annotations map[string]string
	}
	g.Expect(yaml.Unmarshal(content, &chart)).To(Succeed())

	var shown, installed []shownKind
	g.Expect(yaml.UnmarshalStrict([]byte(chart.Annotations["artifacthub.io/crds"]), &shown)).To(Succeed())
	objects, err := config.Objects("controller:v1", "agent:v1")
	g.Expect(err).NotTo(HaveOccurred())
	for _, object := range objects {
		if object.GetKind() == "CustomResourceDefinition" {
			installed = append(installed, storedKind(g, object))
		}
	}
	g.Expect(shown).To(ConsistOf(installed))

	var examples []pulumiv1.Stack
	g.Expect(yaml.UnmarshalStrict([]byte(chart.Annotations["artifacthub.io/crdsExamples"]), &examples)).To(Succeed())
	g.Expect(examples).NotTo(BeEmpty())

	_, icon, found := strings.Cut(chart.Icon, "/main/")
	g.Expect(found).To(BeTrue(), chart.Icon)
	drawing, err := os.Open(filepath.Join(tools.RepositoryRoot(), filepath.FromSlash(icon)))
	g.Expect(err).NotTo(HaveOccurred())
	defer drawing.Close()
	decoder := xml.NewDecoder(drawing)
	for err == nil {
		_, err = decoder.Token()
	}
	g.Expect(errors.Is(err, io.EOF)).To(BeTrue(), "the icon is not well-formed: %s", err)
}

// storedKind returns what Artifact Hub should show of a definition.
func storedKind(g Gomega, definition *unstructured.Unstructured) shownKind {
	kind, _, err := unstructured.NestedString(definition.Object, "spec", "names", "kind")
	g.Expect(err).NotTo(HaveOccurred())
	versions, _, err := unstructured.NestedSlice(definition.Object, "spec", "versions")
	g.Expect(err).NotTo(HaveOccurred())
	for _, version := range versions {
		version := version.(map[string]any)
		if version["storage"] != true {
			continue
		}
		description, _, err := unstructured.NestedString(version, "schema", "openAPIV3Schema", "description")
		g.Expect(err).NotTo(HaveOccurred())
		return shownKind{Kind: kind, Version: version["name"].(string), Name: definition.GetName(), DisplayName: kind, Description: description}
	}
	return shownKind{Kind: kind}
}
