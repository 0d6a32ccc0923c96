package main

import (
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	. "github.com/onsi/gomega"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	"sigs.k8s.io/yaml"
)

// definitionYAML has one example of everything that is rewritten, in a stored version and in one that is only served.
const definitionYAML = `
apiVersion: apiextensions.k8s.io/v1
kind: CustomResourceDefinition
metadata:
  name: stacks.example.com
spec:
  group: example.com
  scope: Namespaced
  names: {kind: Stack, plural: stacks}
  versions:
  - name: v1
    served: true
    storage: true
    schema: &schema
      openAPIV3Schema:
        description: A stack.
        type: object
        properties:
          workspaceTemplate:
            description: A template.
            type: object
            required: [spec]
            properties:
              spec:
                description: A specification.
                type: object
                required: [image]
                properties:
                  image: {type: string, default: a, description: An image.}
                  podTemplate:
                    type: object
                    properties:
                      spec:
                        description: A pod.
                        type: object
                        required: [containers]
                        properties:
                          containers:
                            description: The containers.
                            type: array
                            x-kubernetes-list-type: map
                            x-kubernetes-list-map-keys: [name]
                            items:
                              description: A container.
                              type: object
                              required: [name]
                              properties:
                                name: {type: string, description: A name.}
                                port:
                                  description: A port.
                                  x-kubernetes-int-or-string: true
                                  anyOf: [{type: integer}, {type: string}]
                                memory:
                                  description: A quantity.
                                  x-kubernetes-int-or-string: true
                                  anyOf: [{type: integer}, {type: string}]
                                  pattern: ^[0-9]+[numkMGTPE]$
  - name: v1alpha1
    served: true
    storage: false
    schema: *schema
`

// shrunk returns the rewritten schemas of definitionYAML, by version.
func shrunk(g Gomega) map[string]apiextensionsv1.JSONSchemaProps {
	content, err := shrinkDefinition([]byte(definitionYAML))
	g.Expect(err).NotTo(HaveOccurred())
	var definition apiextensionsv1.CustomResourceDefinition
	g.Expect(yaml.UnmarshalStrict(content, &definition)).To(Succeed())
	schemas := map[string]apiextensionsv1.JSONSchemaProps{}
	for _, version := range definition.Spec.Versions {
		schemas[version.Name] = *version.Schema.OpenAPIV3Schema
	}
	return schemas
}

func TestPodsLoseTheirDescriptionsAndNothingElse(t *testing.T) {
	g := NewWithT(t)
	template := shrunk(g)["v1"].Properties["workspaceTemplate"].Properties["spec"]
	pod := template.Properties["podTemplate"].Properties["spec"]
	containers := pod.Properties["containers"]
	container := containers.Items.Schema

	g.Expect(template.Properties["image"].Description).To(BeEmpty())
	g.Expect(pod.Description).To(BeEmpty())
	g.Expect(containers.Description).To(BeEmpty())
	g.Expect(container.Description).To(BeEmpty())
	g.Expect(container.Properties["name"].Description).To(BeEmpty())

	g.Expect(containers.XListMapKeys).To(ConsistOf("name"))
	g.Expect(container.Required).To(ConsistOf("name"))
	g.Expect(container.Properties["name"].Type).To(Equal("string"))
}

func TestVersionThatIsNotStoredKeepsOnlyTheDescriptionOfItsKind(t *testing.T) {
	g := NewWithT(t)
	schema := shrunk(g)["v1alpha1"]

	g.Expect(schema.Description).To(Equal("A stack."))
	g.Expect(schema.Properties["workspaceTemplate"].Description).To(BeEmpty())
	g.Expect(schema.Properties["workspaceTemplate"].Properties["spec"].Properties).To(HaveKey("image"))
}

func TestTemplatesRequireNothingAndFillInNothing(t *testing.T) {
	g := NewWithT(t)
	for _, schema := range shrunk(g) {
		template := schema.Properties["workspaceTemplate"].Properties["spec"]

		g.Expect(template.Required).To(BeEmpty())
		g.Expect(template.Properties["image"].Default).To(BeNil())
		g.Expect(template.Properties["podTemplate"].Properties["spec"].Required).To(BeEmpty())
	}
}

func TestNumbersAndQuantitiesAreLimitedToWhatCanBeDecoded(t *testing.T) {
	g := NewWithT(t)
	for _, schema := range shrunk(g) {
		container := schema.Properties["workspaceTemplate"].Properties["spec"].
			Properties["podTemplate"].Properties["spec"].Properties["containers"].Items.Schema

		g.Expect(*container.Properties["port"].Minimum).To(BeEquivalentTo(-1 << 31))
		g.Expect(*container.Properties["port"].Maximum).To(BeEquivalentTo(1<<31 - 1))
		g.Expect(container.Properties["memory"].Pattern).To(Equal(quantityPattern))
	}
}

func TestQuantityPatternMatchesOnlyWhatCanBeParsed(t *testing.T) {
	g := NewWithT(t)
	pattern := regexp.MustCompile(quantityPattern)
	matched := 0
	for _, sign := range []string{"", "+", "-", "--"} {
		for _, number := range []string{"", ".", "0", "1", "1.", ".5", "1.5", "1.5.5", "99999999999999999999", "0.0000000000001"} {
			for _, suffix := range []string{"", "n", "u", "m", "k", "K", "M", "Mi", "Ki", "Ei", "E", "e", "e1", "E-9", "e+3", "e1.5", "e999", "e9999999999999999999999", "x", " "} {
				quantity := sign + number + suffix
				if !pattern.MatchString(quantity) {
					continue
				}
				matched++
				_, err := resource.ParseQuantity(quantity)
				g.Expect(err).NotTo(HaveOccurred(), quantity)
			}
		}
	}
	g.Expect(matched).To(BeNumerically(">", 100))
}

func TestQuantityPatternMatchesUsualQuantities(t *testing.T) {
	g := NewWithT(t)
	for _, quantity := range []string{"0", "1", "100m", "0.5", "1.", ".5", "64Mi", "1Gi", "2Ei", "1e3", "12E6", "1e-3", "129M", "128974848", "-1"} {
		g.Expect(quantity).To(MatchRegexp(quantityPattern))
	}
}

func TestDefinitionThatIsTooLargeIsRefused(t *testing.T) {
	g := NewWithT(t)
	large := strings.Replace(definitionYAML, "A stack.", strings.Repeat("x", maxSize), 1)

	_, err := shrinkDefinition([]byte(large))

	g.Expect(err).To(MatchError(ContainSubstring("the limit is 249856")))
}

func TestShippedDefinitionsAreShrunk(t *testing.T) {
	g := NewWithT(t)
	files, err := filepath.Glob(filepath.Join("..", "bases", "*.yaml"))
	g.Expect(err).NotTo(HaveOccurred())
	g.Expect(files).To(HaveLen(6))
	for _, file := range files {
		content, err := os.ReadFile(file)
		g.Expect(err).NotTo(HaveOccurred())
		again, err := shrinkDefinition(content)
		g.Expect(err).NotTo(HaveOccurred())
		g.Expect(string(again)).To(Equal(string(content)), file)
	}
}
