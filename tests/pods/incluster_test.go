package pods_test

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	. "github.com/onsi/gomega"
	appsv1 "k8s.io/api/apps/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/yaml"

	pulumiv1 "github.com/stack-controller/stack-controller/api/pulumi/v1"
	"github.com/stack-controller/stack-controller/tests/gitserver"
	"github.com/stack-controller/stack-controller/tests/suite"
	"github.com/stack-controller/stack-controller/tests/tools"
)

// kubernetesProvider is the directory of the stand-in for Pulumi's Kubernetes provider, as the CLI wants to have it.
const kubernetesProvider = "resource-kubernetes-v4.34.2"

// applyObjects is a program that applies the objects in a file beside it with the stand-in, which finds the cluster as the real one does.
const applyObjects = `name: in-cluster
runtime: yaml
resources:
  objects:
    type: kubernetes:yaml/v2:ConfigFile
    properties: {file: "${pulumi.cwd}/objects.yaml"}
    options: {version: 4.34.2}
`

// inClusterExample has the documents of docs/examples/in-cluster in the namespace, by their kinds.
func inClusterExample(g *WithT, namespace string) map[string]string {
	content, err := os.ReadFile(filepath.Join(tools.RepositoryRoot(), "docs", "examples", "in-cluster", "stack.yaml"))
	g.Expect(err).NotTo(HaveOccurred())
	documents := map[string]string{}
	for document := range strings.SplitSeq(strings.ReplaceAll(string(content), "namespace: default", "namespace: "+namespace), "\n---\n") {
		var object struct{ Kind string }
		g.Expect(yaml.Unmarshal([]byte(document), &object)).To(Succeed())
		documents[object.Kind] = document + "\n"
	}
	return documents
}

// deployedObjects are what a Program deploys with the Kubernetes provider, as YAML documents.
func deployedObjects(g *WithT, program string) string {
	var decoded struct {
		Program struct {
			Resources map[string]struct {
				Type       string
				Properties map[string]any
			}
		}
	}
	g.Expect(yaml.Unmarshal([]byte(program), &decoded)).To(Succeed())
	var documents []string
	for _, resource := range decoded.Program.Resources {
		// kubernetes:apps/v1:Deployment, and kubernetes:core/v1:Service of the group without a name
		parts := strings.Split(resource.Type, ":")
		resource.Properties["apiVersion"], resource.Properties["kind"] = strings.TrimPrefix(parts[1], "core/"), parts[2]
		document, err := yaml.Marshal(resource.Properties)
		g.Expect(err).NotTo(HaveOccurred())
		documents = append(documents, string(document))
	}
	g.Expect(documents).To(HaveLen(2))
	return strings.Join(documents, "---\n")
}

// TestProgramHasTheRightsOfItsServiceAccount runs the example for a program that deploys into its own cluster: without the Role of the example
// it may not, and the Role is enough.
func TestProgramHasTheRightsOfItsServiceAccount(t *testing.T) {
	suite.Long(t, "runs programs that call the API server")
	t.Parallel()
	g := NewWithT(t)
	ctx := t.Context()
	const name = "in-cluster"
	removeNamespaceAtEnd(t, g, name)
	example := inClusterExample(g, name)
	app, stack, err := system.Provide(ctx, name, gitserver.Files{"Pulumi.yaml": applyObjects, "objects.yaml": deployedObjects(g, example["Program"])})
	g.Expect(err).NotTo(HaveOccurred())

	dir, err := os.MkdirTemp(system.Cluster.Dir, "kubernetes-")
	g.Expect(err).NotTo(HaveOccurred())
	g.Expect(os.Chmod(dir, 0o755)).To(Succeed())
	g.Expect(os.Mkdir(filepath.Join(dir, kubernetesProvider), 0o755)).To(Succeed())
	plugin := filepath.Join(dir, kubernetesProvider, "pulumi-resource-kubernetes")
	g.Expect(tools.Compile(ctx, "the provider", filepath.Join(tools.RepositoryRoot(), "tests", "install", "kubernetes"), ".", plugin, []string{"-trimpath", "-buildvcs=false"}, nil)).
		To(Succeed())
	claimPlugins(ctx, t, g, name, dir)
	mountPlugins(stack)
	stack.Spec.ServiceAccountName = "nginx"
	_, err = system.Cluster.KubectlInput(ctx, example["ServiceAccount"], "apply", "--filename=-")
	g.Expect(err).NotTo(HaveOccurred())
	g.Expect(system.Client.Create(ctx, stack)).To(Succeed())
	awaitStack(ctx, g, app.Key(), func(g Gomega, stack *pulumiv1.Stack) {
		g.Expect(stack.Status.LastUpdate).NotTo(BeNil(), "%+v", stack.Status)
		g.Expect(stack.Status.LastUpdate.Message).To(And(ContainSubstring("system:serviceaccount:"+name+":nginx"), ContainSubstring("forbidden")))
	})

	for _, kind := range []string{"Role", "RoleBinding"} {
		_, err := system.Cluster.KubectlInput(ctx, example[kind], "apply", "--filename=-")
		g.Expect(err).NotTo(HaveOccurred())
	}
	waitReady(ctx, g, app)
	g.Expect(system.Client.Get(ctx, client.ObjectKey{Namespace: name, Name: "nginx"}, &appsv1.Deployment{})).To(Succeed())
}
