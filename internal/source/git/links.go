package git

import (
	"context"
	"fmt"
	"io"
	"path"
	"slices"
	"strings"

	"github.com/go-git/go-git/v5/plumbing"
	"github.com/go-git/go-git/v5/plumbing/filemode"
	"github.com/go-git/go-git/v5/plumbing/object"
)

const (
	// maxLinkTarget bounds the target of a symbolic link in bytes, as Linux does.
	maxLinkTarget = 4 << 10
	// maxLinkHops is how many links may be on the way from a link to its file, itself included. maxLinkSteps bounds the names on this way.
	maxLinkHops  = 5
	maxLinkSteps = 256
	// maxNamedLinks is how many links Commit.LeftOut names.
	maxNamedLinks = 10
)

// addLink adds a symbolic link, which resolveLinks replaces by the file that it leads to.
func (l *listing) addLink(p *pack, link object.TreeEntry, path string) error {
	n, found := p.find(link.Hash)
	if !found || p.objects[n].kind != plumbing.BlobObject {
		return fmt.Errorf("%w: symbolic link %s", errNoObject, shownPath(path))
	}
	if err := l.count(path); err != nil {
		return err
	}
	l.links = append(l.links, entry{path: path, mode: filemode.Symlink, size: p.objects[n].size, pack: p, object: n})
	return nil
}

// resolveLinks makes a file of every symbolic link that leads to a regular file of the checkout, directly or over other links and over
// directories that are links. The copies count against the limits. All other links are left out: links to directories, out of the checkout,
// to nothing, and in circles. Those of them that could hide a file of Pulumi are entries that the archive package reports.
func (l *listing) resolveLinks(ctx context.Context) error {
	if len(l.links) == 0 {
		return nil
	}
	byPath := func(a, b entry) int { return strings.Compare(a.path, b.path) }
	slices.SortFunc(l.entries, byPath)
	slices.SortFunc(l.links, byPath)
	var current *pack
	defer func() {
		if current != nil {
			current.dropBases()
		}
	}()
	tree := linkTree{entries: l.entries, links: l.links, target: func(link entry) (string, error) {
		if current != nil && current != link.pack {
			current.dropBases()
		}
		current = link.pack
		return readLink(ctx, link)
	}}
	links := l.links
	l.links = nil
	for _, link := range links {
		if err := ctx.Err(); err != nil {
			return err
		}
		file, isRelative, err := tree.follow(link)
		if err != nil {
			return err
		}
		l.names -= int64(len(link.path)) // add counts it again
		switch {
		case file != nil:
			err = l.add(entry{path: link.path, mode: file.mode, size: file.size, pack: file.pack, object: file.object})
		case isRelative || isPulumiFile(link.path):
			err = l.add(entry{path: link.path, mode: filemode.Symlink})
		}
		if err != nil {
			return fmt.Errorf("%w (with the files that its symbolic links lead to)", err)
		}
		if file == nil {
			if l.leftOutCount++; l.leftOutCount <= maxNamedLinks {
				l.leftOut = append(l.leftOut, shownPath(link.path))
			}
		}
	}
	if l.leftOutCount > len(l.leftOut) {
		l.leftOut = append(l.leftOut, "…")
	}
	return nil
}

// readLink returns the target of the link; empty if it is too long.
func readLink(ctx context.Context, link entry) (string, error) {
	if link.size > maxLinkTarget {
		return "", nil
	}
	stream, err := link.pack.open(ctx, link.object)
	if err != nil {
		return "", err
	}
	defer stream.Close()
	content, err := io.ReadAll(io.LimitReader(stream, maxLinkTarget))
	return string(content), err
}

// linkTree follows symbolic links in a checkout. Both lists are sorted by path; entries has the files and the directories.
type linkTree struct {
	entries, links []entry
	target         func(link entry) (string, error)
}

// follow returns the regular file that the link leads to; nil if it leads to none, or only on a way that is too long. isRelative reports
// whether its own target can be read and is not an absolute path.
func (t *linkTree) follow(link entry) (file *entry, isRelative bool, err error) {
	rest, err := t.target(link)
	if err != nil {
		return nil, false, err
	}
	isRelative = rest != "" && rest[0] != '/'
	at, hops := path.Dir(link.path), 1
	for steps := 0; steps < maxLinkSteps && rest != "" && rest[0] != '/'; steps++ {
		name, further, isDirectory := strings.Cut(rest, "/")
		further = strings.TrimLeft(further, "/")
		rest = further
		switch name {
		case ".":
			continue
		case "..":
			if at == "." {
				return nil, isRelative, nil
			}
			at = path.Dir(at)
			continue
		}
		next := path.Join(at, name)
		if found := find(t.entries, next); found != nil {
			if found.mode != filemode.Dir && !isDirectory {
				return found, isRelative, nil
			}
			if found.mode != filemode.Dir {
				return nil, isRelative, nil
			}
			at = next
			continue
		}
		other := find(t.links, next)
		if hops++; other == nil || hops > maxLinkHops {
			return nil, isRelative, nil
		}
		if rest, err = t.target(*other); err != nil {
			return nil, isRelative, err
		}
		if isDirectory {
			rest += "/" + further
		}
	}
	return nil, isRelative, nil
}

func find(sorted []entry, path string) *entry {
	n, found := slices.BinarySearchFunc(sorted, path, func(e entry, path string) int { return strings.Compare(e.path, path) })
	if !found {
		return nil
	}
	return &sorted[n]
}

// isPulumiFile reports whether the path can be that of a project or of the configuration of a stack.
func isPulumiFile(name string) bool {
	return strings.HasPrefix(path.Base(name), "Pulumi.") && slices.Contains([]string{".yaml", ".yml", ".json"}, path.Ext(name))
}
