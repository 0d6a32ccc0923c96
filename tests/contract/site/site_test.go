// Package site_test builds the site from docs.
package site_test

import (
	"os/exec"
	"path/filepath"
	"testing"

	. "github.com/onsi/gomega"

	"github.com/stack-controller/stack-controller/tests/framework/suite"
	"github.com/stack-controller/stack-controller/tests/tools"
)

func TestSiteHasNoLinkThatLeadsNowhere(t *testing.T) {
	suite.Long(t, "installs a generator of sites with npm; tests/contract/design checks the links of the pages")
	if _, err := exec.LookPath("npm"); err != nil {
		t.Skip("there is no npm")
	}
	g := NewWithT(t)
	output := t.TempDir()
	cmd := exec.CommandContext(t.Context(), "make", "site", "OUTPUT="+output)
	cmd.Dir = tools.RepositoryRoot()
	printed, err := cmd.CombinedOutput()
	g.Expect(err).NotTo(HaveOccurred(), string(printed))
	g.Expect(filepath.Join(output, "site", "index.html")).To(BeARegularFile())
	g.Expect(filepath.Join(output, "site", "guides", "tutorial.html")).To(BeARegularFile())
}
