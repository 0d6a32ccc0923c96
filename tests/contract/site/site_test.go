// Package site_test builds the site from docs.
package site_test

import (
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
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

func TestLinksToPagesOfOthersThatAreGoneAreFound(t *testing.T) {
	node, err := exec.LookPath("node")
	if err != nil {
		t.Skip("there is no node")
	}
	g := NewWithT(t)
	others := http.NewServeMux()
	others.HandleFunc("/there", func(http.ResponseWriter, *http.Request) {})
	others.Handle("/moved", http.RedirectHandler("/there", http.StatusMovedPermanently))
	others.HandleFunc("/refused", func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusForbidden) })
	server := httptest.NewServer(others)
	t.Cleanup(server.Close)
	closed := httptest.NewServer(nil)
	closed.Close()
	check := func(addresses ...string) (string, error) {
		site := t.TempDir()
		page := `<a href="other.html">`
		for _, address := range addresses {
			page += fmt.Sprintf(`<a href="%s#a-heading">`, address)
		}
		g.Expect(os.WriteFile(filepath.Join(site, "index.html"), []byte(page), 0o600)).To(Succeed())
		printed, err := exec.CommandContext(t.Context(), node, filepath.Join(tools.RepositoryRoot(), ".ci", "site", "external.js"), site).CombinedOutput()
		return string(printed), err
	}
	const ours = "https://github.com/stack-controller/stack-controller/blob/main/README.md"
	printed, err := check(server.URL+"/there", server.URL+"/moved", server.URL+"/refused", ours)
	g.Expect(err).NotTo(HaveOccurred(), printed)
	g.Expect(printed).To(Equal("unknown: " + server.URL + "/refused answers 403, in index.html\n3 addresses\n"))

	for address, problem := range map[string]string{server.URL + "/gone": "answers 404", closed.URL: "does not answer"} {
		printed, err = check(server.URL+"/there", address)
		g.Expect(err).To(HaveOccurred())
		g.Expect(printed).To(ContainSubstring("broken: " + address + " " + problem))
	}
}
