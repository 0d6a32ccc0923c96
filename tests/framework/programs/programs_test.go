package programs_test

import (
	"os"
	"path/filepath"
	"testing"

	. "github.com/onsi/gomega"

	"github.com/stack-controller/stack-controller/tests/framework/programs"
)

func TestProviderIsPutWhereTheCLIFindsItInPlaceOfAnOldOne(t *testing.T) {
	g := NewWithT(t)
	home := t.TempDir()
	path, err := programs.PutProvider(t.Context(), home)
	g.Expect(err).NotTo(HaveOccurred())
	g.Expect(path).To(Equal(filepath.Join(home, "plugins", "resource-test-v0.1.0", "pulumi-resource-test")))
	g.Expect(os.Remove(path)).To(Succeed())
	g.Expect(os.WriteFile(path, []byte("old"), 0o600)).To(Succeed())

	g.Expect(programs.PutProvider(t.Context(), home)).Error().NotTo(HaveOccurred())
	info, err := os.Stat(path)
	g.Expect(err).NotTo(HaveOccurred())
	g.Expect(info.Size()).To(BeNumerically(">", 1<<20))
	g.Expect(info.Mode().Perm() & 0o111).NotTo(BeZero())
	g.Expect(os.ReadDir(filepath.Dir(path))).To(HaveLen(1))
}

func TestUnknownProgramIsAnError(t *testing.T) {
	t.Setenv("STACK_CONTROLLER_TEST_PROGRAMS", "")
	NewWithT(t).Expect(programs.Path(t.Context(), "none", nil)).Error().To(MatchError(ContainSubstring(`"none"`)))
}
