package api_test

import (
	"path/filepath"
	"testing"

	. "github.com/onsi/gomega"

	"github.com/stack-controller/stack-controller/tests/tools"
)

func TestPublishedManifestsAreAccepted(t *testing.T) {
	g := NewWithT(t)
	files, err := filepath.Glob(filepath.Join("testdata", "manifests", "*.yaml"))
	g.Expect(err).NotTo(HaveOccurred())
	g.Expect(files).NotTo(BeEmpty())
	for _, file := range files {
		t.Run(filepath.Base(file), func(t *testing.T) {
			_, err := cluster.Kubectl(t.Context(), "apply", "--server-side", "--dry-run=server", "--validate=strict", "-f", file)
			NewWithT(t).Expect(err).NotTo(HaveOccurred())
		})
	}
}

func TestSamplesCanBeAppliedTogether(t *testing.T) {
	samples := filepath.Join(tools.RepositoryRoot(), "config", "samples")
	_, err := cluster.Kubectl(t.Context(), "apply", "--dry-run=server", "-k", samples)
	NewWithT(t).Expect(err).NotTo(HaveOccurred())
}
