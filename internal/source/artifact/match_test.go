package artifact

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"io"
	"path"
	"slices"
	"strings"
	"testing"
	"time"

	. "github.com/onsi/gomega"
	"github.com/opencontainers/go-digest"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/lru"

	"github.com/stack-controller/stack-controller/internal/source/artifact/archive"
	"github.com/stack-controller/stack-controller/tests/framework/suite"
)

// matchesSimply defines what a pattern matches. It tries everything that ** can stand for.
func matchesSimply(pattern, name []string) bool {
	switch {
	case len(pattern) == 0:
		return true // A directory that matches includes everything in it.
	case pattern[0] == anyDirectories:
		for i := range len(name) + 1 {
			if matchesSimply(pattern[1:], name[i:]) {
				return true
			}
		}
		return false
	case len(name) == 0:
		return false
	}
	ok, _ := path.Match(pattern[0], name[0])
	return ok && matchesSimply(pattern[1:], name[1:])
}

// contentSimply computes the digest and the unmatched patterns directly from their definitions.
func contentSimply(m *manifest, selection *Selection) (string, []int) {
	sum := sha256.New()
	matched := make([]bool, len(selection.patterns))
	for _, file := range m.files {
		selected := false
		for i := range selection.patterns {
			var elements []string
			for _, element := range selection.patterns[i].elements {
				elements = append(elements, element.text)
			}
			if matchesSimply(elements, strings.Split(file.Name, "/")) {
				selected, matched[i] = true, true
			}
		}
		if selected {
			fmt.Fprintf(sum, "%d:%s", len(file.Name), file.Name)
			_, _ = sum.Write(file.Sum[:])
		}
	}
	var unmatched []int
	for i := range matched {
		if !matched[i] && selection.patterns[i].text != "" {
			unmatched = append(unmatched, i)
		}
	}
	return "sha256:" + hex.EncodeToString(sum.Sum(nil)), unmatched
}

// manifestOf returns a manifest with files of these names.
func manifestOf(names ...string) *manifest {
	m := &manifest{}
	for _, name := range names {
		m.files = append(m.files, archive.File{Name: name, Sum: sha256.Sum256([]byte(name))})
	}
	m.sort()
	return m
}

func FuzzPatternsMatchWhatTheyMean(f *testing.F) {
	f.Add("a/**/b\n*.go\n**/x?[a-c]*", "a/x/b\na/b/c.go\nmain.go\nb/c/xyb1\na/b")
	f.Add("**/**/*a*a*b\n**", "aaaaaaaaaaaaaaaaaaaaaaaaaaaaaa/aaaaaaaa\naab/x")
	f.Add("lib/**\nlib\n**/lib/*/x", "lib\nlib/a\nlib/a/x\na-b/lib/c/x\na/lib/c/x")
	f.Add("a/**/b/**/c\n./a//b\nä*\n\\*", "a/b/b/c\na/b/x/c/d\nähm\n*")
	f.Fuzz(func(t *testing.T, patterns, names string) {
		if len(patterns) > 200 || len(names) > 400 || strings.Count(patterns, anyDirectories) > 6 {
			return
		}
		selection, err := NewSelection("a/b", strings.Split(patterns, "\n"))
		if err != nil {
			return
		}
		var files []string
		for name := range strings.SplitSeq(names, "\n") {
			if clean := path.Clean(name); clean == name && !strings.HasPrefix(name, "/") {
				files = append(files, name)
			}
		}
		m := manifestOf(files...)
		digest, unmatched, err := m.match(t.Context(), selection, maxMatchSteps)
		wantDigest, wantUnmatched := contentSimply(m, selection)
		if err != nil || digest != wantDigest || !slices.Equal(unmatched, wantUnmatched) {
			t.Fatalf("%q on %q: %v, unmatched %v and not %v", patterns, files, err, unmatched, wantUnmatched)
		}
	})
}

// manyFiles returns a manifest with nearly as many files as an archive can have. Callers choose names that are bad cases for the matcher.
func manyFiles(name func(int) string) *manifest {
	names := make([]string, 90_000)
	for i := range names {
		names[i] = name(i)
	}
	return manifestOf(names...)
}

func repeated(count int, pattern func(int) string) *Selection {
	patterns := make([]string, count)
	for i := range patterns {
		patterns[i] = pattern(i)
	}
	selection, err := NewSelection("app", patterns)
	if err != nil {
		panic(err)
	}
	return selection
}

func TestUsualPatternsAreMatchedWithManyFiles(t *testing.T) {
	suite.WithoutRaceDetector(t)
	files := manyFiles(func(i int) string { return fmt.Sprintf("apps/team-%d/service-%d/file-%d.json", i%100, i%1000, i) })
	for name, selection := range map[string]*Selection{
		"directories": repeated(256, func(i int) string { return fmt.Sprintf("apps/team-%d/service-%d", i, i) }),
		"suffixes":    repeated(256, func(i int) string { return fmt.Sprintf("**/*.x%d", i) }),
		"names":       repeated(256, func(i int) string { return fmt.Sprintf("**/x%d*.json", i) }),
		"wildcards":   repeated(20, func(i int) string { return fmt.Sprintf("apps/*/service-*/[a-f]?le-*-%d.json", i) }),
	} {
		begin := time.Now()
		_, _, err := files.match(t.Context(), selection, maxMatchSteps)
		t.Logf("%s: %s", name, time.Since(begin))
		NewWithT(t).Expect(err).NotTo(HaveOccurred(), name)
	}
}

func TestPatternsThatTakeTooLongAreGivenUp(t *testing.T) {
	for name, test := range map[string]struct {
		files     *manifest
		selection *Selection
	}{
		"asterisks": {
			manyFiles(func(i int) string { return strings.Repeat("a", 120) + fmt.Sprint(i) + strings.Repeat("a", 60) }),
			repeated(256, func(i int) string { return strings.Repeat("*a", 400) + strings.Repeat("b", i) + "*" }),
		},
		"directories": {
			manyFiles(func(i int) string {
				return strings.Repeat("a/", 60) + fmt.Sprint(i/1000) + strings.Repeat("/a", 30) + fmt.Sprint(i)
			}),
			repeated(256, func(i int) string { return strings.Repeat("**/a/", 190) + fmt.Sprint("b", i) }),
		},
		"depth": {
			manifestOf(strings.Repeat("a/", 100_000)+"x", strings.Repeat("a/", 100_000)+"y"),
			repeated(256, func(i int) string { return strings.Repeat("**/a/", 190) + fmt.Sprint("b", i) }),
		},
	} {
		g := NewWithT(t)
		begin := time.Now()
		_, _, err := test.files.match(t.Context(), test.selection, maxMatchSteps)
		t.Logf("%s: %s", name, time.Since(begin))
		g.Expect(err).To(MatchError(ErrSelectionTooComplex), name)
	}
}

func TestMatchingEndsWithItsContext(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	_, _, err := manifestOf("a", "b").match(ctx, repeated(1, func(int) string { return "a" }), maxMatchSteps)
	NewWithT(t).Expect(err).To(MatchError(context.Canceled))
}

func TestRequestDoesNotMatchItself(t *testing.T) {
	g := NewWithT(t)
	store, err := NewStore(Options{Dir: t.TempDir()})
	g.Expect(err).NotTo(HaveOccurred())
	ref := Reference{Source: "a", Digest: "sha256:a"}
	store.insert(&entry{digest: "sha256:a", owners: map[owner]string{ref.owner(): ""}})
	contents := NewContents(store)
	files := manyFiles(func(i int) string { return fmt.Sprint(strings.Repeat("a", 200), i) })
	contents.manifests.Add("sha256:a", files, 1)
	selection := repeated(256, func(i int) string { return strings.Repeat("*a", 400) + fmt.Sprint("b", i) + "*" })
	waiter := types.NamespacedName{Namespace: "a", Name: "a"}
	for range 1000 {
		g.Expect(contents.Request(ref, selection, waiter)).To(BeNil())
	}
	g.Expect(contents.work.queue.Len()).To(Equal(1), "one thing to do, however often it is asked for")

	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- contents.Start(ctx) }()
	g.Eventually(contents.Events()).WithTimeout(time.Minute).Should(Receive())
	for range 2 {
		_, err := contents.Request(ref, selection, waiter)
		g.Expect(err).To(MatchError(ErrSelectionTooComplex), "it is known from then on")
	}
	g.Expect(contents.work.queue.Len()).To(BeZero())
	cancel()
	g.Expect(<-ended).To(Succeed())
}

func TestSelectionsThatMeanTheSameShareTheirContent(t *testing.T) {
	g := NewWithT(t)
	one, err := NewSelection("app", []string{"./lib//x", "a/**/**/b"})
	g.Expect(err).NotTo(HaveOccurred())
	other, err := NewSelection("app/", []string{"lib/x/", "a/**/b"})
	g.Expect(err).NotTo(HaveOccurred())
	g.Expect(one.key).To(Equal(other.key))
	for _, paths := range [][]string{{"lib/x"}, {"lib", "x", "a/**/b"}, {"a/**/b", "lib/x"}, {"lib/xa/**/b"}} {
		different, err := NewSelection("app", paths)
		g.Expect(err).NotTo(HaveOccurred())
		g.Expect(different.key).NotTo(Equal(one.key), "%q", paths)
	}
	known := foundContent{unmatched: []int{1}}
	g.Expect(known.of(one).Unmatched).To(Equal([]string{"./lib//x"}), "as it is written")
}

func TestMemoryOfWhatWasMadeIsBounded(t *testing.T) {
	g := NewWithT(t)
	store, err := NewStore(Options{Dir: t.TempDir()})
	g.Expect(err).NotTo(HaveOccurred())
	store.made = lru.New(1)
	content := []byte{0x1f, 0x8b}
	for _, key := range []string{"one", "two"} {
		ref := Reference{Maker: namedMaker(key)}
		store.made.Add(ref.owner(), digest.FromBytes(content))
		store.insert(&entry{digest: digest.FromBytes(content), owners: map[owner]string{ref.owner(): ""}})
		g.Expect(store.Stored(ref)).NotTo(BeEmpty())
	}
	g.Expect(store.Stored(Reference{Maker: namedMaker("one")})).To(BeEmpty(), "what is forgotten is made again")
}

type namedMaker string

func (m namedMaker) Key() string                           { return string(m) }
func (m namedMaker) Make(context.Context, io.Writer) error { return nil }

// Equal commits of many sources are one content.
func TestNamespaceWithManyOwnersOfAContentTakesNoPlaceFromOthers(t *testing.T) {
	g := NewWithT(t)
	e := &entry{owners: map[owner]string{"victim": "team"}}
	for i := range 10 {
		e.owners[owner(fmt.Sprint("evil", i))] = "evil"
	}
	for range 9 {
		delete(e.owners, e.ownerOfMost())
	}
	g.Expect(e.owners).To(HaveKey(owner("victim")))
	delete(e.owners, e.ownerOfMost())
	g.Expect(e.owners).To(HaveLen(1))
}
