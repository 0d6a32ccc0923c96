package install_test

import (
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	. "github.com/onsi/gomega"

	"github.com/stack-controller/stack-controller/tests/framework/suite"
)

// finalized matches the code that adds the finalizer to an object, which is named after its kind.
var finalized = regexp.MustCompile(`controllerutil\.AddFinalizer\((\w+), `)

func TestTheGuideSaysWhatToDoWithEachKindThatOnlyTheControllerLetsGo(t *testing.T) {
	t.Parallel()
	g := NewWithT(t)
	_, section, found := strings.Cut(read(t, inRepository("docs", "guides", "installation.md")), "\n## Uninstall\n")
	g.Expect(found).To(BeTrue())
	section, _, _ = strings.Cut(section, "\n## ")
	kinds := map[string]bool{}
	g.Expect(filepath.WalkDir(inRepository("internal", "controller"), func(path string, entry fs.DirEntry, err error) error {
		if err != nil || entry.IsDir() || !strings.HasSuffix(path, ".go") || strings.HasSuffix(path, "_test.go") {
			return err
		}
		content, err := os.ReadFile(path)
		for _, match := range finalized.FindAllSubmatch(content, -1) {
			kinds[string(match[1])] = true
		}
		return err
	})).To(Succeed())
	g.Expect(kinds).To(HaveKey("stack"))
	for kind := range kinds {
		g.Expect(section).To(ContainSubstring("kubectl get " + kind + "s --all-namespaces"))
		g.Expect(section).To(ContainSubstring("kubectl patch " + kind + " "))
	}
}

func TestFluxIsUninstalledWithoutTheControllerAsTheGuidesSay(t *testing.T) {
	suite.Long(t, "needs the flux CLI")
	t.Parallel()
	g := NewWithT(t)
	help, err := run(t.Context(), "flux", "uninstall", "--help")
	g.Expect(err).NotTo(HaveOccurred())
	g.Expect(help).To(ContainSubstring(" --keep-namespace "))
	for _, page := range []string{"installation.md", "troubleshooting.md"} {
		g.Expect(read(t, inRepository("docs", "guides", page))).To(And(ContainSubstring("`flux uninstall`"), ContainSubstring("`--keep-namespace`")), page)
	}
}
