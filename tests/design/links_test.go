package design_test

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

var (
	codeBlock = regexp.MustCompile("(?ms)^ *```.*?^ *```$")
	link      = regexp.MustCompile(`\]\(([^)\s]+)\)`)
	heading   = regexp.MustCompile(`(?m)^#+ (.*)$`)
	htmlID    = regexp.MustCompile(`(?:id|name)="([^"]+)"`)
	notInSlug = regexp.MustCompile(`[^\p{L}\p{N}_\- ]`)
	linkText  = regexp.MustCompile(`\[([^\]]*)\]\([^)]*\)`)
)

func TestEveryLinkInTheDocumentationLeadsSomewhere(t *testing.T) {
	g := NewWithT(t)
	root := tools.RepositoryRoot()
	pages := []string{"README.md", "CONTRIBUTING.md", "AGENTS.md"}
	g.Expect(filepath.WalkDir(filepath.Join(root, "docs"), func(path string, entry fs.DirEntry, err error) error {
		if err == nil && entry.Name() == "api" {
			return filepath.SkipDir // it is generated, with links to types that it does not list
		}
		if err == nil && strings.HasSuffix(path, ".md") {
			path, err = filepath.Rel(root, path)
			pages = append(pages, path)
		}
		return err
	})).To(Succeed())
	links, anchors := 0, map[string]map[string]bool{}
	for _, page := range pages {
		for _, match := range link.FindAllStringSubmatch(codeBlock.ReplaceAllString(read(t, page), ""), -1) {
			if strings.Contains(match[1], "://") {
				continue
			}
			links++
			path, anchor, _ := strings.Cut(match[1], "#")
			target := page
			if path != "" {
				target = filepath.Join(filepath.Dir(page), path)
			}
			if _, err := os.Stat(filepath.Join(root, target)); err != nil {
				t.Errorf("%s: the link to %s: %s", page, match[1], err)
				continue
			}
			if anchor != "" && anchors[target] == nil {
				anchors[target] = anchorsOf(t, target)
			}
			if anchor != "" && !anchors[target][anchor] {
				t.Errorf("%s: the link to %s: there is no such heading", page, match[1])
			}
		}
	}
	g.Expect(links).To(BeNumerically(">", 100))
}

// anchorsOf returns the anchors that GitHub makes for the headings of a page.
func anchorsOf(t *testing.T, page string) map[string]bool {
	t.Helper()
	text := codeBlock.ReplaceAllString(read(t, page), "")
	anchors := map[string]bool{}
	for _, match := range heading.FindAllStringSubmatch(text, -1) {
		slug := notInSlug.ReplaceAllString(strings.ToLower(linkText.ReplaceAllString(match[1], "$1")), "")
		anchors[strings.ReplaceAll(slug, " ", "-")] = true
	}
	for _, match := range htmlID.FindAllStringSubmatch(text, -1) {
		anchors[match[1]] = true
	}
	return anchors
}
