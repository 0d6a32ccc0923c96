package api_test

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	. "github.com/onsi/gomega"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/yaml"

	"github.com/stack-controller/stack-controller/tests/controlplane"
)

// definitions reads the product's definitions from their files.
func definitions() ([]*apiextensionsv1.CustomResourceDefinition, error) {
	files, err := filepath.Glob(filepath.Join(controlplane.ProductCRDs(), "*.yaml"))
	if err != nil {
		return nil, err
	}
	var result []*apiextensionsv1.CustomResourceDefinition
	for _, file := range files {
		content, err := os.ReadFile(file)
		if err != nil {
			return nil, err
		}
		definition := &apiextensionsv1.CustomResourceDefinition{}
		if err := yaml.UnmarshalStrict(content, definition); err != nil {
			return nil, err
		}
		result = append(result, definition)
	}
	return result, nil
}

func TestDefinitionsFitIntoAClientSideApply(t *testing.T) {
	scheme := runtime.NewScheme()
	g := NewWithT(t)
	g.Expect(apiextensionsv1.AddToScheme(scheme)).To(Succeed())
	reader, err := client.New(cluster.Config(), client.Options{Scheme: scheme})
	g.Expect(err).NotTo(HaveOccurred())

	product, err := definitions()
	g.Expect(err).NotTo(HaveOccurred())
	g.Expect(product).To(HaveLen(5))
	for _, definition := range product {
		t.Run(definition.Name, func(t *testing.T) {
			g := NewWithT(t)
			var installed apiextensionsv1.CustomResourceDefinition
			g.Expect(reader.Get(t.Context(), client.ObjectKeyFromObject(definition), &installed)).To(Succeed())
			applied := installed.Annotations["kubectl.kubernetes.io/last-applied-configuration"]
			g.Expect(applied).NotTo(BeEmpty())
			g.Expect(len(applied)).To(BeNumerically("<", 235520), "of the 262144 bytes that annotations may have")
		})
	}
}

func TestFluxDoesNotSubstituteVariablesInDefinitions(t *testing.T) {
	g := NewWithT(t)
	product, err := definitions()
	g.Expect(err).NotTo(HaveOccurred())
	g.Expect(product).To(HaveLen(5))
	for _, definition := range product {
		g.Expect(definition.Annotations).To(HaveKeyWithValue("kustomize.toolkit.fluxcd.io/substitute", "disabled"), definition.Name)
	}
}

func TestNewObjectCountsAsNotObserved(t *testing.T) {
	for _, kind := range []kind{stackV1, stackV1alpha1, workspace, update, {"pulumi.com/v1", "Program", ""}} {
		t.Run(kind.kind+"/"+kind.apiVersion, func(t *testing.T) {
			g := NewWithT(t)
			object := kind.object(g, "new", "")
			if kind.kind == "Program" {
				delete(object.Object, "spec")
			}
			g.Expect(offer(t, object)).To(Succeed())
			g.Expect(object.Object["status"]).To(Equal(map[string]any{"observedGeneration": int64(-1)}))
		})
	}
}

func TestTemplatesAreNotFilledIn(t *testing.T) {
	g := NewWithT(t)
	templates := "{workspaceTemplate: {spec: {image: a}}, updateTemplate: {spec: {parallel: 2}}}"
	for _, kind := range []kind{stackV1, stackV1alpha1} {
		stack := kind.object(g, "template", templates)
		g.Expect(offer(t, stack)).To(Succeed())
		g.Expect(stack.Object["spec"]).To(HaveKeyWithValue("workspaceTemplate", map[string]any{"spec": map[string]any{"image": "a"}}))
		g.Expect(stack.Object["spec"]).To(HaveKeyWithValue("updateTemplate", map[string]any{"spec": map[string]any{"parallel": int64(2)}}))
	}
}

func TestOldVersionShowsTheWholeStack(t *testing.T) {
	g := NewWithT(t)
	status, err := os.ReadFile(filepath.Join("testdata", "status", "stack.yaml"))
	g.Expect(err).NotTo(HaveOccurred())
	stored := stackV1.object(g, "versions", "{timeout: 5m, fluxSource: {sourceRef: {kind: Bucket, name: a}}, workspaceTemplate: {spec: {podTemplate: {spec: {nodeName: a}}}}}")
	g.Expect(apiServer.Create(t.Context(), stored)).To(Succeed())
	var withStatus map[string]any
	g.Expect(yaml.Unmarshal(status, &withStatus)).To(Succeed())
	stored.Object["status"] = withStatus["status"]
	g.Expect(apiServer.Status().Update(t.Context(), stored)).To(Succeed())

	old := &unstructured.Unstructured{}
	old.SetAPIVersion(stackV1alpha1.apiVersion)
	old.SetKind(stackV1alpha1.kind)
	g.Expect(apiServer.Get(t.Context(), client.ObjectKeyFromObject(stored), old)).To(Succeed())
	g.Expect(old.Object["spec"]).To(Equal(stored.Object["spec"]))
	g.Expect(old.Object["status"]).To(Equal(stored.Object["status"]))
}

// TestCategoryPulumiListsEveryKind also has the category of Flux's own kinds.
func TestCategoryPulumiListsEveryKind(t *testing.T) {
	g := NewWithT(t)
	ours := []any{"stacks.pulumi.com", "programs.pulumi.com", "workspaces.auto.pulumi.com", "updates.auto.pulumi.com", "approvals.auto.pulumi.com"}
	resources, err := cluster.Kubectl(t.Context(), "api-resources", "--categories=pulumi", "--no-headers", "-o", "name")
	g.Expect(err).NotTo(HaveOccurred())
	g.Expect(strings.Fields(resources)).To(ConsistOf(ours...))
	resources, err = cluster.Kubectl(t.Context(), "api-resources", "--categories=fluxcd", "--no-headers", "-o", "name")
	g.Expect(err).NotTo(HaveOccurred())
	g.Expect(strings.Fields(resources)).To(ContainElements(append(ours, "gitrepositories.source.toolkit.fluxcd.io")...))
}
