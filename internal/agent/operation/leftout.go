package operation

import (
	"fmt"
	"path/filepath"
	"strings"
)

// LinkOf returns the first of the symbolic links that is the path or a directory on it; empty if there is none. All are absolute.
func LinkOf(path string, links []string) string {
	for _, link := range links {
		if path == link || strings.HasPrefix(path, link+"/") {
			return link
		}
	}
	return ""
}

// DescribeLink says why there is nothing behind a link of the tree, to be read after the name of the file.
func DescribeLink(tree, link string) string {
	name, err := filepath.Rel(tree, link)
	if err != nil {
		name = filepath.Base(link)
	}
	return fmt.Sprintf("is missing, because %q is a symbolic link that was left out: only a link to a regular file of the same commit is followed; "+
		"replace it by a file", name)
}
