// Package install_test checks that all ways to install the controller lead to the same installation.
package install_test

import (
	"bytes"
	"context"
	"errors"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	. "github.com/onsi/gomega"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/util/yaml"

	"github.com/stack-controller/stack-controller/tests/tools"
)

// inRepository returns a path in the repository.
func inRepository(elements ...string) string {
	return filepath.Join(append([]string{tools.RepositoryRoot()}, elements...)...)
}

// run runs a tool and returns its standard output. The error contains its standard error.
func run(ctx context.Context, tool string, args ...string) (string, error) {
	path, err := tools.Path(ctx, tool, nil)
	if err != nil {
		return "", err
	}
	cmd := exec.CommandContext(ctx, path, args...)
	var stdout, stderr bytes.Buffer
	cmd.Stdout, cmd.Stderr = &stdout, &stderr
	if err := cmd.Run(); err != nil {
		return stdout.String(), errors.Join(err, errors.New(strings.TrimSpace(stderr.String())))
	}
	return stdout.String(), nil
}

// kustomize renders a kustomization.
func kustomize(t *testing.T, dir string) objects {
	t.Helper()
	g := NewWithT(t)
	rendered, err := run(t.Context(), "kubectl", "kustomize", dir)
	g.Expect(err).NotTo(HaveOccurred())
	return decode(t, rendered)
}

// kustomization writes a kustomization.yaml into a new directory. There, the repository's directory config is at "repository/config".
func kustomization(t *testing.T, content string) string {
	t.Helper()
	g := NewWithT(t)
	dir := t.TempDir()
	g.Expect(os.CopyFS(filepath.Join(dir, "repository", "config"), os.DirFS(inRepository("config")))).To(Succeed())
	g.Expect(os.WriteFile(filepath.Join(dir, "kustomization.yaml"), []byte(content), 0o600)).To(Succeed())
	return dir
}

// objects are rendered objects.
type objects []*unstructured.Unstructured

// decode decodes a stream of YAML documents.
func decode(t *testing.T, rendered string) objects {
	t.Helper()
	g := NewWithT(t)
	var decoded objects
	decoder := yaml.NewYAMLOrJSONDecoder(strings.NewReader(rendered), 4096)
	for {
		object := map[string]any{}
		err := decoder.Decode(&object)
		if errors.Is(err, io.EOF) {
			return decoded
		}
		g.Expect(err).NotTo(HaveOccurred())
		if len(object) > 0 {
			decoded = append(decoded, &unstructured.Unstructured{Object: object})
		}
	}
}

// get returns the object of the kind and name.
func (o objects) get(t *testing.T, kind, name string) *unstructured.Unstructured {
	t.Helper()
	for _, object := range o {
		if object.GetKind() == kind && object.GetName() == name {
			return object
		}
	}
	t.Fatalf("there is no %s %s", kind, name)
	return nil
}

// names returns the kinds and names of the objects.
func (o objects) names() []string {
	var names []string
	for _, object := range o {
		names = append(names, object.GetKind()+" "+object.GetName())
	}
	return names
}

// at returns the value at a path of an object. Numbers are indices of lists.
func at(t *testing.T, object *unstructured.Unstructured, path ...any) any {
	t.Helper()
	var value any = object.Object
	for _, step := range path {
		switch step := step.(type) {
		case string:
			fields, _ := value.(map[string]any)
			value = fields[step]
		case int:
			items, _ := value.([]any)
			if step >= len(items) {
				return nil
			}
			value = items[step]
		}
	}
	return value
}

// pod is the path of the pod's specification in a Deployment.
var pod = []any{"spec", "template", "spec"}

// manager returns a field of the controller's container.
func manager(t *testing.T, deployment *unstructured.Unstructured, field string) any {
	t.Helper()
	return at(t, deployment, append(pod[:len(pod):len(pod)], "containers", 0, field)...)
}

// environment returns the value of an environment variable of the controller's container.
func environment(t *testing.T, deployment *unstructured.Unstructured, name string) any {
	t.Helper()
	variables, _ := manager(t, deployment, "env").([]any)
	for _, variable := range variables {
		if fields, _ := variable.(map[string]any); fields["name"] == name {
			return fields["value"]
		}
	}
	return nil
}
