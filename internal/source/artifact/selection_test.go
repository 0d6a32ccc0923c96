package artifact

import (
	"context"
	"testing"

	. "github.com/onsi/gomega"
)

// selects reports whether one pattern matches one name.
func (p pattern) selects(name string) bool {
	p.text = "looked for"
	_, unmatched, err := manifestOf(name).match(context.Background(), &Selection{patterns: []pattern{p}}, maxMatchSteps)
	return err == nil && len(unmatched) == 0
}

func TestPatternsMatchFilesAndAllThatIsInDirectories(t *testing.T) {
	for pattern, names := range map[string]map[string]bool{
		"modules/vpc":     {"modules/vpc/index.ts": true, "modules/vpc": true, "modules/vpc2/index.ts": false, "other/modules/vpc/x": false},
		"modules/vpc/":    {"modules/vpc/a/b": true},
		"./modules//vpc":  {"modules/vpc/a": true},
		"*.yaml":          {"a.yaml": true, "dir/a.yaml": false, "a.yml": false},
		"**/*.yaml":       {"a.yaml": true, "x/y/a.yaml": true, "x/a.yml": false},
		"a/**/b/c":        {"a/b/c": true, "a/b/x/b/c": true, "a/x/b/y/c": false},
		"a/**/**/z":       {"a/z": true, "a/1/2/z": true},
		"lib/**":          {"lib/x": true, "lib/x/y": true, "libs/x": false},
		"lib/?/[ab]*":     {"lib/1/alpha": true, "lib/1/gamma": false, "lib/12/alpha": false},
		"**":              {"anything/at/all": true},
		".":               {"anything": true},
		`literally\*`:     {"literally*": true, "literallyx": false},
		"**/package.json": {"package.json": true, "a/package.json": true, "a/package.json5": false},
	} {
		parsed, err := parsePattern(pattern)
		NewWithT(t).Expect(err).NotTo(HaveOccurred(), pattern)
		for name, want := range names {
			NewWithT(t).Expect(parsed.selects(name)).To(Equal(want), "%s on %s", pattern, name)
		}
	}
}

func TestPathsThatLeaveTheSourceAreRefused(t *testing.T) {
	for path, why := range map[string]string{
		"../other":   `has ".."`,
		"a/../../b":  `has ".."`,
		"a/..":       `has ".."`,
		"/etc":       "is absolute",
		"a/[":        "is not a pattern",
		"a/b[z":      "is not a pattern",
		"trailing\\": "is not a pattern",
	} {
		_, err := NewSelection("app", []string{"fine", path})
		NewWithT(t).Expect(err).To(MatchError(ContainSubstring(why)), path)
	}
	_, err := NewSelection("../app", []string{"fine"})
	NewWithT(t).Expect(err).To(HaveOccurred(), "the directory does not leave it either")
}

func TestDirectoryIsNoPattern(t *testing.T) {
	g := NewWithT(t)
	selection, err := NewSelection("a[1]*", []string{"x"})
	g.Expect(err).NotTo(HaveOccurred())
	g.Expect(selection.patterns[0].selects("a[1]*/Pulumi.yaml")).To(BeTrue())
	g.Expect(selection.patterns[0].selects("a1b/Pulumi.yaml")).To(BeFalse())
}
