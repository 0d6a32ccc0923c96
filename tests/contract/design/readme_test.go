package design_test

import (
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	. "github.com/onsi/gomega"

	"github.com/stack-controller/stack-controller/tests/tools"
)

// The two commands with which a new user or developer begins stand together in the README, with what each of them needs, does, takes and shows.
func TestReadmeHasTheTwoFirstCommands(t *testing.T) {
	g := NewWithT(t)
	content, err := os.ReadFile(filepath.Join(tools.RepositoryRoot(), "README.md"))
	g.Expect(err).NotTo(HaveOccurred())
	_, section, found := strings.Cut(string(content), "\n## Try it\n")
	g.Expect(found).To(BeTrue())
	section, _, _ = strings.Cut(section, "\n## ")
	g.Expect(section).To(ContainSubstring("```sh\nmake demo\nmake test\n```"))
	for _, need := range []string{"Go", "git", "make", "without root", "As root"} {
		g.Expect(section).To(ContainSubstring(need))
	}
	makefile, err := os.ReadFile(filepath.Join(tools.RepositoryRoot(), "Makefile"))
	g.Expect(err).NotTo(HaveOccurred())
	for _, command := range []string{"demo", "test"} {
		row := regexp.MustCompile("(?m)^\\| `make " + command + "` \\|(.+)\\|$").FindStringSubmatch(section)
		g.Expect(row).NotTo(BeNil(), "make %s has a row", command)
		cells := strings.Split(row[1], "|")
		g.Expect(cells).To(HaveLen(4), "what it does, how long it takes at first and later, and what one sees")
		for _, cell := range cells {
			g.Expect(strings.TrimSpace(cell)).NotTo(BeEmpty())
		}
		for _, duration := range cells[1:3] {
			g.Expect(duration).To(MatchRegexp(`\d+ (?:seconds|minutes)`))
		}
		g.Expect(string(makefile)).To(MatchRegexp("(?m)^" + command + ":"))
	}
}
