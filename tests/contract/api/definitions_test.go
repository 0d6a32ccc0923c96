package api_test

import (
	"encoding/json"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	. "github.com/onsi/gomega"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/yaml"

	autov1alpha1 "github.com/stack-controller/stack-controller/api/auto/v1alpha1"
	pulumiv1 "github.com/stack-controller/stack-controller/api/pulumi/v1"
	"github.com/stack-controller/stack-controller/tests/framework/controlplane"
)

// columnGap separates the columns of kubectl's tables; a header may have single spaces in it.
var columnGap = regexp.MustCompile(` {2,}`)

func TestKubectlShowsTheColumnsThatUsersKnow(t *testing.T) {
	for _, tt := range []struct {
		resource string
		manifest string
		narrow   []string
		wide     []string
		cells    []string
	}{
		{
			resource: "stack",
			manifest: `{"apiVersion": "pulumi.com/v1", "kind": "Stack", "metadata": {"name": "columns"}, "spec": {"stack": "dev"}}`,
			narrow:   []string{"NAME", "LAST UPDATE", "AGE", "READY", "RECONCILING", "STALLED", "PERMALINK"},
			wide:     []string{"NAME", "STACK", "LAST UPDATE", "AGE", "LAST COMMIT", "READY", "RECONCILING", "STALLED", "PERMALINK", "PLAN", "CHANGES"},
			cells:    []string{"columns", "dev", "succeeded", "True", "sha256:44d554df", "/updates/3"},
		}, {
			resource: "workspace",
			manifest: `{"apiVersion": "auto.pulumi.com/v1alpha1", "kind": "Workspace", "metadata": {"name": "columns"}, "spec": {"image": "pulumi/pulumi:3.134.1-nonroot"}}`,
			narrow:   []string{"NAME", "IMAGE", "READY", "ADDRESS"},
			wide:     []string{"NAME", "IMAGE", "READY", "ADDRESS"},
			cells:    []string{"columns", "pulumi/pulumi:3.134.1-nonroot", "True", "random-yaml-workspace.default.svc.cluster.local:50051"},
		}, {
			resource: "update",
			manifest: `{"apiVersion": "auto.pulumi.com/v1alpha1", "kind": "Update", "metadata": {"name": "columns"}, "spec": {"workspaceName": "random-yaml", "stackName": "dev", "type": "up"}}`,
			narrow:   []string{"NAME", "WORKSPACE", "PROGRESSING", "FAILED", "COMPLETE", "URL"},
			wide:     []string{"NAME", "WORKSPACE", "TYPE", "START TIME", "END TIME", "PROGRESSING", "FAILED", "COMPLETE", "URL"},
			cells:    []string{"columns", "random-yaml", "up", "False", "True", "/updates/1"},
		}, {
			resource: "program",
			manifest: `{"apiVersion": "pulumi.com/v1", "kind": "Program", "metadata": {"name": "columns"}, "program": {}}`,
			narrow:   []string{"NAME", "AGE", "URL", "READY"},
			wide:     []string{"NAME", "AGE", "URL", "READY"},
			cells:    []string{"columns", "True", "http://controller/program/default/columns/1.tar.gz"},
		},
	} {
		t.Run(tt.resource, func(t *testing.T) {
			g := NewWithT(t)
			ctx := t.Context()
			_, err := cluster.KubectlInput(ctx, tt.manifest, "create", "-f", "-")
			g.Expect(err).NotTo(HaveOccurred())
			status := filepath.Join("testdata", "status", tt.resource+".yaml")
			_, err = cluster.Kubectl(ctx, "apply", "--server-side", "--subresource=status", "--validate=strict", "-f", status)
			g.Expect(err).NotTo(HaveOccurred())

			narrow, err := cluster.Kubectl(ctx, "get", tt.resource, "columns")
			g.Expect(err).NotTo(HaveOccurred())
			g.Expect(headers(narrow)).To(Equal(tt.narrow))

			wide, err := cluster.Kubectl(ctx, "get", tt.resource, "columns", "-o", "wide")
			g.Expect(err).NotTo(HaveOccurred())
			g.Expect(headers(wide)).To(Equal(tt.wide))
			for _, cell := range tt.cells {
				g.Expect(wide).To(ContainSubstring(cell))
			}
		})
	}
}

// headers returns the column names of a table.
func headers(table string) []string {
	line, _, _ := strings.Cut(table, "\n")
	return columnGap.Split(strings.TrimSpace(line), -1)
}

// A single object that a client cannot decode stops its watch of every object of the kind.
func TestWhatIsAdmittedCanBeDecoded(t *testing.T) {
	pods := []string{
		"{resources: {limits: {cpu: 1e1.5}}}",
		"{resources: {limits: {cpu: 1e99999999999999999999}}}",
		"{resources: {limits: {cpu: 1e-400}}}",
		"{resources: {requests: {cpu: 99999999999999999999E}}}",
		"{podTemplate: {spec: {containers: [{name: a, livenessProbe: {httpGet: {port: 99999999999}}}]}}}",
		"{podTemplate: {spec: {containers: [{name: a, livenessProbe: {httpGet: {port: -99999999999}}}]}}}",
		"{podTemplate: {spec: {containers: [{name: a, ports: [{containerPort: 99999999999}]}]}}}",
		"{podTemplate: {spec: {containers: [{name: a, resources: {limits: {cpu: 1e1.5}}}]}}}",
		"{podTemplate: {spec: {terminationGracePeriodSeconds: 99999999999999999999}}}",
		"{podTemplate: {spec: {volumes: [{name: a, emptyDir: {sizeLimit: 1e1.5}}]}}}",
		"{pulumiLogLevel: -1}",
		"{pulumiLogLevel: 4294967296}",
		"{stacks: [{name: a, config: [{key: b, value: 1e999}]}]}",
	}
	for _, spec := range pods {
		t.Run("Workspace "+spec, func(t *testing.T) {
			expectDecodable(t, workspace, spec, &autov1alpha1.Workspace{})
		})
		t.Run("Stack "+spec, func(t *testing.T) {
			expectDecodable(t, stackV1alpha1, "workspaceTemplate: {spec: "+spec+"}", &pulumiv1.Stack{})
		})
	}
	for _, spec := range []string{
		"{timeout: 99999999999h}", "{ttlAfterCompleted: 99999999999h}", "{ttlAfterCompleted: '1'}", "{ttlAfterCompleted: ''}",
		"{ttlAfterCompleted: .5h}", "{ttlAfterCompleted: 5.h}", "{ttlAfterCompleted: +5h}", "{parallel: 4294967296}",
		"{source: {url: a, digest: 'a:b', size: 9223372036854775808}}",
	} {
		t.Run("Update "+spec, func(t *testing.T) {
			expectDecodable(t, update, spec, &autov1alpha1.Update{})
		})
	}
	for _, spec := range []string{
		"{retryInterval: 99999999999h}", "{resyncFrequency: 99999999999h}", "{resyncFrequencySeconds: 9223372036854775808}",
		"{prerequisites: [{name: a, requirement: {succeededWithinDuration: 99999999999h}}]}",
		"{workspaceTemplate: {metadata: {creationTimestamp: '2020-01-01t00:00:00z'}}}", "{workspaceTemplate: {status: [1]}}",
	} {
		t.Run("Stack "+spec, func(t *testing.T) {
			expectDecodable(t, stackV1, spec, &pulumiv1.Stack{})
		})
	}
}

// expectDecodable creates an object with the specification, in a dry run, and decodes what the API server would store.
func expectDecodable(t *testing.T, kind kind, spec string, into any) {
	g := NewWithT(t)
	object := kind.object(g, "decoded", spec)
	if err := offer(t, object); err != nil {
		t.Logf("refused: %v", err)
		return
	}
	encoded, err := json.Marshal(object)
	g.Expect(err).NotTo(HaveOccurred())
	g.Expect(json.Unmarshal(encoded, into)).To(Succeed())
}

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
	g.Expect(product).To(HaveLen(6))
	for _, definition := range product {
		t.Run(definition.Name, func(t *testing.T) {
			g := NewWithT(t)
			var installed apiextensionsv1.CustomResourceDefinition
			g.Expect(reader.Get(t.Context(), client.ObjectKeyFromObject(definition), &installed)).To(Succeed())
			applied := installed.Annotations["kubectl.kubernetes.io/last-applied-configuration"]
			g.Expect(applied).NotTo(BeEmpty())
			g.Expect(len(applied)).To(BeNumerically("<", 249856), "of the 262144 bytes that annotations may have")
		})
	}
}

func TestFluxDoesNotSubstituteVariablesInDefinitions(t *testing.T) {
	g := NewWithT(t)
	product, err := definitions()
	g.Expect(err).NotTo(HaveOccurred())
	g.Expect(product).To(HaveLen(6))
	for _, definition := range product {
		g.Expect(definition.Annotations).To(HaveKeyWithValue("kustomize.toolkit.fluxcd.io/substitute", "disabled"), definition.Name)
	}
}

func TestNewObjectCountsAsNotObserved(t *testing.T) {
	for _, kind := range []kind{stackV1, stackV1alpha1, workspace, update, rollout, {"pulumi.com/v1", "Program", ""}} {
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

// TestCategoryPulumiListsEveryKind also checks the category that Flux's own kinds have.
func TestCategoryPulumiListsEveryKind(t *testing.T) {
	g := NewWithT(t)
	ours := []any{"stacks.pulumi.com", "programs.pulumi.com", "workspaces.auto.pulumi.com", "updates.auto.pulumi.com", "approvals.auto.pulumi.com", "stackrollouts.auto.pulumi.com"}
	resources, err := cluster.Kubectl(t.Context(), "api-resources", "--categories=pulumi", "--no-headers", "-o", "name")
	g.Expect(err).NotTo(HaveOccurred())
	g.Expect(strings.Fields(resources)).To(ConsistOf(ours...))
	resources, err = cluster.Kubectl(t.Context(), "api-resources", "--categories=fluxcd", "--no-headers", "-o", "name")
	g.Expect(err).NotTo(HaveOccurred())
	g.Expect(strings.Fields(resources)).To(ContainElements(append(ours, "gitrepositories.source.toolkit.fluxcd.io")...))
}
