package install_test

import (
	"os"
	"path/filepath"
	"testing"

	. "github.com/onsi/gomega"

	"github.com/stack-controller/stack-controller/tests/provider/install"
)

func TestProviderIsPutWhereTheCLIFindsIt(t *testing.T) {
	g := NewWithT(t)
	home := t.TempDir()
	for range 2 {
		g.Expect(install.Install(t.Context(), home)).To(Succeed())
	}
	info, err := os.Stat(filepath.Join(home, "plugins", "resource-test-v0.1.0", "pulumi-resource-test"))
	g.Expect(err).NotTo(HaveOccurred())
	g.Expect(info.Mode().Perm() & 0o111).NotTo(BeZero())
}
