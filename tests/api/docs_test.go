package api_test

import (
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	. "github.com/onsi/gomega"

	"github.com/stack-controller/stack-controller/tests/tools"
)

var yamlBlock = regexp.MustCompile("(?ms)^```yaml\n(.*?)^```$")

// A block of YAML in the documentation is a manifest that a reader may apply.
func TestEveryManifestInTheDocumentationIsAccepted(t *testing.T) {
	g := NewWithT(t)
	root := tools.RepositoryRoot()
	// It is there where Flux is.
	_, err := cluster.Kubectl(t.Context(), "create", "namespace", "flux-system")
	g.Expect(err).NotTo(HaveOccurred())
	blocks := 0
	check := func(path string) {
		content, err := os.ReadFile(path)
		g.Expect(err).NotTo(HaveOccurred())
		for _, match := range yamlBlock.FindAllStringSubmatch(string(content), -1) {
			blocks++
			_, err := cluster.KubectlInput(t.Context(), match[1], "apply", "--server-side", "--dry-run=server", "--validate=strict", "-f", "-")
			g.Expect(err).NotTo(HaveOccurred(), "%s:\n%s", path, match[1])
		}
	}
	check(filepath.Join(root, "README.md"))
	g.Expect(filepath.WalkDir(filepath.Join(root, "docs"), func(path string, entry fs.DirEntry, err error) error {
		if err == nil && strings.HasSuffix(path, ".md") {
			check(path)
		}
		return err
	})).To(Succeed())
	g.Expect(blocks).To(BeNumerically(">", 2))
}

// The fleet has a test of its own, in which Flux applies it.
func TestEveryManifestOfTheExamplesIsAccepted(t *testing.T) {
	for _, file := range []string{"in-cluster/stack.yaml", "blue-green/stacks.yaml", "buckets/stack.yaml"} {
		t.Run(file, func(t *testing.T) {
			path := filepath.Join(tools.RepositoryRoot(), "docs", "examples", file)
			_, err := cluster.Kubectl(t.Context(), "apply", "--server-side", "--dry-run=server", "--validate=strict", "-f", path)
			NewWithT(t).Expect(err).NotTo(HaveOccurred())
		})
	}
}
