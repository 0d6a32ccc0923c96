package podspec

import (
	"flag"
	"os"
	"path/filepath"
	"testing"

	. "github.com/onsi/gomega"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"sigs.k8s.io/yaml"

	autov1alpha1 "github.com/stack-controller/stack-controller/api/auto/v1alpha1"
	pulumiv1 "github.com/stack-controller/stack-controller/api/pulumi/v1"
	"github.com/stack-controller/stack-controller/internal/template"
)

var updateGolden = flag.Bool("update-golden", false, "write what is built into testdata/*/objects.yaml")

// settings returns the settings of all tests that do not need others.
func settings() Settings {
	return Settings{
		AgentImage:           "example.com/stack-controller-agent:v1.0.0",
		AgentImagePullPolicy: corev1.PullIfNotPresent,
		AgentArgs:            []string{"--max-source-size=268435456", "--max-entries=100000"},
		Controller:           "system:serviceaccount:stack-system:stack-controller",
		TokenAudience:        "auto.pulumi.com/workspaces/team/network",
		SecretHash:           "d3b07384d113edec",
	}
}

func TestObjectsAreThoseInTestdata(t *testing.T) {
	for name, workspace := range examples(t) {
		t.Run(name, func(t *testing.T) {
			g := NewWithT(t)
			file := filepath.Join("testdata", name, "objects.yaml")
			built := asYAML(g, build(g, workspace))
			if *updateGolden {
				g.Expect(os.WriteFile(file, built, 0o600)).To(Succeed())
			}
			want, err := os.ReadFile(file)
			g.Expect(err).NotTo(HaveOccurred())
			g.Expect(string(built)).To(Equal(string(want)), "go test -update-golden writes the files; look at the difference before you commit it")
		})
	}
}

func TestTheSameWorkspaceAlwaysGivesTheSameBytes(t *testing.T) {
	for name, workspace := range examples(t) {
		t.Run(name, func(t *testing.T) {
			g := NewWithT(t)
			unchanged := workspace.DeepCopy()
			first := asYAML(g, build(g, workspace))
			for range 20 {
				g.Expect(asYAML(g, build(g, workspace.DeepCopy()))).To(Equal(first))
			}
			g.Expect(workspace).To(Equal(unchanged))
		})
	}
}

// examples returns the Workspaces in testdata, keyed by directory.
func examples(t *testing.T) map[string]*autov1alpha1.Workspace {
	t.Helper()
	g := NewWithT(t)
	found := map[string]*autov1alpha1.Workspace{}
	files, err := filepath.Glob("testdata/*/*.yaml")
	g.Expect(err).NotTo(HaveOccurred())
	for _, file := range files {
		content, err := os.ReadFile(file)
		g.Expect(err).NotTo(HaveOccurred())
		name := filepath.Base(filepath.Dir(file))
		switch filepath.Base(file) {
		case "workspace.yaml":
			found[name] = &autov1alpha1.Workspace{}
			g.Expect(yaml.UnmarshalStrict(content, found[name])).To(Succeed())
		case "stack.yaml":
			stack := &pulumiv1.Stack{}
			g.Expect(yaml.UnmarshalStrict(content, stack)).To(Succeed())
			found[name] = workspaceOf(g, stack)
		}
	}
	g.Expect(found).To(HaveLen(4))
	return found
}

// workspaceOf returns a Workspace with the Stack's workspace template applied.
func workspaceOf(g *WithT, stack *pulumiv1.Stack) *autov1alpha1.Workspace {
	base := &autov1alpha1.Workspace{Name: stack.Name, Namespace: "team", UID: "3d7a1c0e-8a5b-4f5e-9d57-0a7b8c9d0e1f"}
	workspace, err := template.Workspace(base, stack.Spec.WorkspaceTemplate)
	g.Expect(err).NotTo(HaveOccurred())
	return workspace
}

// parse returns a Workspace named app with the spec.
func parse(g *WithT, spec string) *autov1alpha1.Workspace {
	workspace := &autov1alpha1.Workspace{Name: "app", Namespace: "team", UID: "1"}
	g.Expect(yaml.UnmarshalStrict([]byte(spec), &workspace.Spec)).To(Succeed())
	return workspace
}

func build(g *WithT, workspace *autov1alpha1.Workspace) *Objects {
	objects, err := Build(workspace, settings())
	g.Expect(err).NotTo(HaveOccurred())
	return objects
}

// asYAML returns the objects as they are applied.
func asYAML(g *WithT, objects *Objects) []byte {
	var documents []byte
	for _, object := range []runtime.Object{objects.Service, objects.StatefulSet} {
		configuration, err := ApplyConfiguration(object)
		g.Expect(err).NotTo(HaveOccurred())
		document, err := yaml.Marshal(configuration)
		g.Expect(err).NotTo(HaveOccurred())
		documents = append(append(documents, "---\n"...), document...)
	}
	return documents
}
