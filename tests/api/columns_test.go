package api_test

import (
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	. "github.com/onsi/gomega"
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
