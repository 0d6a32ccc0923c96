package artifact

import (
	"fmt"
	"path"
	"strings"
)

// anyDirectories is the element of a pattern that stands for any number of directories, none included.
const anyDirectories = "**"

// Selection is the part of an artifact that somebody is interested in: a directory, and what matches some patterns. A nil
// Selection is all of it.
type Selection struct {
	patterns []pattern
}

// pattern is the name of files and directories with the wildcards of a shell; a directory stands for all that is in it.
//
// The matcher of go-git for .gitignore is not used: it gives names without a slash a meaning of their own, and does not look
// further when the first place where ** could end is the wrong one.
type pattern struct {
	text string
	// directory is the part before the first element with a wildcard, empty for the root. Everything that matches is in it, or
	// is it.
	directory string
	// elements of the whole name.
	elements []string
}

// NewSelection selects the directory and what matches the paths, all relative to the root of the artifact. Without paths
// everything is selected. The error is for the user: a path is malformed or leaves the root.
func NewSelection(dir string, paths []string) (*Selection, error) {
	if len(paths) == 0 {
		return nil, nil
	}
	selection := &Selection{}
	for i, text := range append([]string{escape(dir)}, paths...) {
		parsed, err := parsePattern(text)
		if err != nil {
			return nil, err
		}
		if i == 0 {
			parsed.text = "" // It is not one of those that are looked for.
		}
		selection.patterns = append(selection.patterns, parsed)
	}
	return selection, nil
}

// escape makes a pattern that matches nothing but the name.
func escape(name string) string {
	return strings.NewReplacer(`\`, `\\`, `*`, `\*`, `?`, `\?`, `[`, `\[`).Replace(name)
}

func parsePattern(text string) (pattern, error) {
	if strings.HasPrefix(text, "/") {
		return pattern{}, fmt.Errorf("%q is absolute; paths are relative to the root of the source", text)
	}
	parsed := pattern{text: text}
	literal := true
	for element := range strings.SplitSeq(text, "/") {
		if element == "" || element == "." {
			continue
		}
		if element == ".." {
			return pattern{}, fmt.Errorf(`%q has ".." in it; paths do not leave the source`, text)
		}
		if _, err := path.Match(element, ""); err != nil {
			return pattern{}, fmt.Errorf("%q is not a pattern: %w", text, err)
		}
		if literal = literal && !strings.ContainsAny(element, `*?[\`); literal {
			parsed.directory = path.Join(parsed.directory, element)
		}
		if element == anyDirectories && len(parsed.elements) > 0 && parsed.elements[len(parsed.elements)-1] == anyDirectories {
			continue // Twice means the same as once.
		}
		parsed.elements = append(parsed.elements, element)
	}
	return parsed, nil
}

// matches tells whether the pattern matches the name of a file, or of a directory that it is in. It takes the product of
// the numbers of elements as time at most.
func (p *pattern) matches(name string) bool {
	// possible has, for each number of elements of the pattern, whether they match the elements of the name so far.
	possible := make([]bool, len(p.elements)+1)
	possible[0] = true
	p.skipDirectories(possible)
	for element := range strings.SplitSeq(name, "/") {
		if possible[len(p.elements)] {
			return true
		}
		next := make([]bool, len(possible))
		for i, wanted := range p.elements {
			if !possible[i] {
				continue
			}
			if wanted == anyDirectories {
				next[i] = true
			} else if ok, _ := path.Match(wanted, element); ok {
				next[i+1] = true
			}
		}
		p.skipDirectories(next)
		possible = next
	}
	return possible[len(p.elements)]
}

// skipDirectories lets ** stand for no directory.
func (p *pattern) skipDirectories(possible []bool) {
	for i, wanted := range p.elements {
		if wanted == anyDirectories && possible[i] {
			possible[i+1] = true
		}
	}
}
