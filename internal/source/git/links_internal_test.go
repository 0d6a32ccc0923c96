package git

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/go-git/go-git/v5/plumbing/filemode"
)

// FuzzLinks compares links with those of a real file system: one that is followed leads to the same file there.
func FuzzLinks(f *testing.F) {
	f.Add("d/f", "d/../link2", "./d//f")
	f.Add("link2/f", "d", "link1")
	f.Add("../tree/d/f", "/etc/passwd", "link3/f")
	f.Add(strings.Repeat("d/../", 60)+"d/f", "link1/..", "d/f/")
	f.Fuzz(func(t *testing.T, one, two, three string) {
		dir, err := filepath.EvalSymlinks(t.TempDir())
		if err != nil {
			t.Fatal(err)
		}
		tree := filepath.Join(dir, "tree")
		if err := os.MkdirAll(filepath.Join(tree, "d"), 0o700); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(filepath.Join(tree, "d/f"), nil, 0o600); err != nil {
			t.Fatal(err)
		}
		targets := map[string]string{"link1": one, "link2": two, "d/link3": three}
		links := linkTree{
			entries: []entry{{path: "d", mode: filemode.Dir}, {path: "d/f", mode: filemode.Regular}},
			target:  func(link entry) (string, error) { return targets[link.path], nil },
		}
		for name, target := range targets {
			links.links = append(links.links, entry{path: name, mode: filemode.Symlink})
			if os.Symlink(target, filepath.Join(tree, name)) != nil {
				return // not a target that a file system has
			}
		}
		slices.SortFunc(links.links, func(a, b entry) int { return strings.Compare(a.path, b.path) })
		for _, link := range links.links {
			file, _, err := links.follow(link)
			if err != nil {
				t.Fatal(err)
			}
			if file == nil {
				continue
			}
			if real, err := filepath.EvalSymlinks(filepath.Join(tree, link.path)); err != nil || real != filepath.Join(tree, file.path) {
				t.Fatalf("%q: %s is %q, but there %q, %v", targets, link.path, file.path, real, err)
			}
		}
	})
}
