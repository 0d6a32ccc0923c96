package artifact

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"hash"
	"path"
	"strings"

	"github.com/stack-controller/stack-controller/internal/source/artifact/archive"
)

// anyDirectories is the element of a pattern that stands for any number of directories, none included.
const anyDirectories = "**"

// Selection selects a part of an artifact: a directory, and what matches some patterns. A nil Selection selects everything.
type Selection struct {
	patterns []pattern
	// key is the same for two selections of the same patterns in the same order, however they are written.
	key [sha256.Size]byte
}

// pattern is a name of files and directories with the wildcards of a shell. A directory that matches is selected with everything in it.
//
// The library doublestar is not used. It matches one pattern with one name, which takes 0.1 to 2 µs: for the patterns of the test with
// 90,000 files it takes more than 14 s of CPU. The matcher of this file takes 1.2 s, because it finds out once per directory what the
// patterns match there. The time for braces is exponential in doublestar (20 pairs take 0.6 s for one name), and nothing bounds it. The
// matcher of go-git for .gitignore gives names without a slash another meaning, and does not look further when the first place where **
// could end is the wrong one.
type pattern struct {
	text string
	// elements of the whole name.
	elements []element
}

// element is the part of a pattern between two slashes. prefix is what comes before the first wildcard, suffix what comes after the last
// one, and middle everything from the first to the last wildcard. middle is empty if there is no wildcard.
type element struct{ text, prefix, middle, suffix string }

func newElement(text string) element {
	const special = `*?[]\`
	first, last := strings.IndexAny(text, special), strings.LastIndexAny(text, special)
	if first < 0 {
		return element{text: text}
	}
	return element{text, text[:first], text[first : last+1], text[last+1:]}
}

// NewSelection selects the directory and what matches the paths, all relative to the root of the artifact. Without paths
// everything is selected. The error is for the user: a path is malformed or leaves the root.
func NewSelection(dir string, paths []string) (*Selection, error) {
	if len(paths) == 0 {
		return nil, nil
	}
	selection := &Selection{}
	key := sha256.New()
	for i, text := range append([]string{escape(dir)}, paths...) {
		parsed, err := parsePattern(text)
		if err != nil {
			return nil, err
		}
		if i == 0 {
			parsed.text = "" // The directory is not reported as unmatched.
		}
		selection.patterns = append(selection.patterns, parsed)
		for _, part := range parsed.elements {
			fmt.Fprintf(key, "/%s", part.text)
		}
		fmt.Fprint(key, "//")
	}
	key.Sum(selection.key[:0])
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
	for part := range strings.SplitSeq(text, "/") {
		if part == "" || part == "." {
			continue
		}
		if part == ".." {
			return pattern{}, fmt.Errorf(`%q has ".." in it; paths do not leave the source`, text)
		}
		if _, err := path.Match(part, ""); err != nil {
			return pattern{}, fmt.Errorf("%q is not a pattern: %w", text, err)
		}
		if part == anyDirectories && len(parsed.elements) > 0 && parsed.elements[len(parsed.elements)-1].text == anyDirectories {
			continue // Twice means the same as once.
		}
		parsed.elements = append(parsed.elements, newElement(part))
	}
	return parsed, nil
}

const (
	// maxMatchSteps bounds the matching of one selection with one artifact. A step is one element of a pattern against one name. It takes
	// about 20 ns, so all steps take one or two seconds. 256 patterns such as **/*.json against 90,000 files take three quarters of the
	// steps.
	maxMatchSteps = 60_000_000
	// stepBytes is how many comparisons of path.Match count as a step.
	stepBytes = 8
	// maxPositions bounds the memory for the directories around a name, in possible elements: about 8 MiB.
	maxPositions = 1 << 20
)

// ErrSelectionTooComplex says that matching the paths with the names in the artifact takes too long. Only another selection, or an artifact
// with fewer files, can help.
var ErrSelectionTooComplex = errors.New("the patterns take too long to be matched with all files; use fewer of them, or fewer wildcards")

// content returns the content of the artifact of this manifest for the selection. The only error is that of the context.
func (m *manifest) content(ctx context.Context, artifact string, selection *Selection) (foundContent, error) {
	if m.whole {
		return foundContent{digest: artifact}, nil
	}
	digest, unmatched, err := m.match(ctx, selection, maxMatchSteps)
	if errors.Is(err, ErrSelectionTooComplex) {
		return foundContent{err: fmt.Errorf("%d files: %w", len(m.files), err)}, nil
	}
	return foundContent{digest: digest, unmatched: unmatched}, err
}

// match identifies the selected files: their names, their contents, and which of them can be executed. It also returns the indices of the
// patterns of the selection that match nothing.
func (m *manifest) match(ctx context.Context, selection *Selection, steps int) (digest string, unmatched []int, err error) {
	matcher := &matcher{ctx: ctx, sum: sha256.New(), matched: make([]bool, len(selection.patterns)), steps: steps}
	if err := matcher.root(m.files, selection.patterns); err != nil {
		return "", nil, err
	}
	for i, matched := range matcher.matched {
		if !matched && selection.patterns[i].text != "" {
			unmatched = append(unmatched, i)
		}
	}
	return "sha256:" + hex.EncodeToString(matcher.sum.Sum(nil)), unmatched, nil
}

// matcher goes through the sorted names of an artifact once, with all patterns of a selection. What the patterns match of a directory is
// found out once for everything in it. So for each name only its last element is compared, and only with the pattern elements that are
// possible in that directory.
type matcher struct {
	ctx context.Context
	// sum is the hash of the selected files.
	sum hash.Hash
	// elements are the elements of all patterns, with an end after the last one of each pattern. The possible elements in a directory are
	// those, by their index, that the next name is compared with.
	elements []patternElement
	// matched says which patterns have matched a file.
	matched []bool
	// selected says that a pattern matches the entry that was entered last, or a directory that contains it.
	selected bool
	// seen has, for each element, the last round in which it was reached.
	seen  []int
	round int
	// positions is how many possible elements the directories around a name have together. steps is how many steps are left.
	positions, steps int
	// scratch is a buffer for the possible elements in a file. Nothing is compared with them, but enter computes them all the same.
	scratch []int32
}

// patternElement is an element of a pattern, or its end.
type patternElement struct {
	element
	pattern int32
	isEnd   bool
}

func (m *matcher) root(files []archive.File, patterns []pattern) error {
	var starts []int32
	for i := range patterns {
		starts = append(starts, int32(len(m.elements))) //nolint:gosec // the patterns are bounded
		for _, element := range patterns[i].elements {
			m.elements = append(m.elements, patternElement{element: element, pattern: int32(i)})
		}
		m.elements = append(m.elements, patternElement{pattern: int32(i), isEnd: true})
	}
	if len(files) == 0 {
		return nil
	}
	m.seen = make([]int, len(m.elements))
	m.round++
	var possible []int32
	for _, start := range starts {
		possible = m.reach(possible, start)
	}
	return m.directory(files, 0, possible)
}

// directory matches the files of a directory. length is the length of its name in bytes, including the slash at the end.
func (m *matcher) directory(files []archive.File, length int, possible []int32) error {
	selected := m.selected
	if m.positions += len(possible); m.positions > maxPositions {
		return ErrSelectionTooComplex
	}
	for len(files) > 0 {
		name, _, isDirectory := strings.Cut(files[0].Name[length:], "/")
		count, next := 1, m.scratch[:0]
		if isDirectory {
			next = nil
		}
		next = m.enter(possible, name, selected, next)
		switch {
		case m.steps < 0:
			return ErrSelectionTooComplex
		case m.round%1024 == 2 && m.ctx.Err() != nil:
			return m.ctx.Err()
		case isDirectory:
			inner := length + len(name) + 1
			for count < len(files) && strings.HasPrefix(files[count].Name, files[0].Name[:inner]) {
				count++
			}
			if err := m.directory(files[:count], inner, next); err != nil {
				return err
			}
		case m.selected:
			// The length of the name makes the hashed text unambiguous; that of the sum is fixed.
			fmt.Fprintf(m.sum, "%d:%s", len(files[0].Name), files[0].Name)
			_, _ = m.sum.Write(files[0].Sum[:])
		}
		if !isDirectory {
			m.scratch = next
		}
		files = files[count:]
	}
	m.positions -= len(possible)
	return nil
}

// enter appends the possible elements in an entry of a directory to next. The entry is a file, or a directory with at least one file.
func (m *matcher) enter(possible []int32, name string, selected bool, next []int32) []int32 {
	m.round++
	m.selected = selected
	m.steps -= 1 + len(possible)
	for _, at := range possible {
		wanted := &m.elements[at]
		switch {
		case m.steps < 0:
			return next
		case m.selected && m.matched[wanted.pattern]:
			// The pattern cannot add anything.
		case wanted.text == anyDirectories:
			next = m.reach(next, at)
		case m.matches(&wanted.element, name):
			next = m.reach(next, at+1)
		}
	}
	return next
}

// reach appends the element to next, once. After ** it also appends the following element, because ** may stand for no directory. At the
// end of a pattern it records that the pattern has matched.
func (m *matcher) reach(next []int32, at int32) []int32 {
	reached := &m.elements[at]
	switch {
	case reached.isEnd:
		m.selected, m.matched[reached.pattern] = true, true
		return next
	case m.seen[at] == m.round:
		return next
	}
	m.seen[at] = m.round
	if next = append(next, at); reached.text == anyDirectories {
		return m.reach(next, at+1)
	}
	return next
}

// matches reports whether the element matches the name. A call of path.Match takes at most time proportional to the product of both
// lengths, which is counted in steps.
func (m *matcher) matches(wanted *element, name string) bool {
	switch {
	case wanted.middle == "":
		return wanted.text == name
	case len(name) < len(wanted.prefix)+len(wanted.suffix) || !strings.HasPrefix(name, wanted.prefix) || !strings.HasSuffix(name, wanted.suffix):
		return false
	case wanted.middle == "*":
		return true
	}
	m.steps -= len(wanted.text) * (len(name) + 1) / stepBytes
	if m.steps < 0 {
		return false
	}
	ok, _ := path.Match(wanted.text, name)
	return ok
}
