package artifact_test

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"context"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"testing"

	. "github.com/onsi/gomega"
	"github.com/opencontainers/go-digest"
	"sigs.k8s.io/controller-runtime/pkg/manager"

	"github.com/stack-controller/stack-controller/internal/source/artifact"
)

var _ manager.Runnable = &artifact.Contents{}

// packedFile is one file of a test's artifact.
type packedFile struct {
	name, content string
	mode          int64
}

// putFiles stores the files, in that order.
func putFiles(t *testing.T, store *artifact.Store, files ...packedFile) artifact.Reference {
	t.Helper()
	var out bytes.Buffer
	compressed := gzip.NewWriter(&out)
	archive := tar.NewWriter(compressed)
	for _, file := range files {
		header := &tar.Header{Name: file.name, Mode: file.mode | 0o600, Size: int64(len(file.content)), Typeflag: tar.TypeReg}
		NewWithT(t).Expect(archive.WriteHeader(header)).To(Succeed())
		NewWithT(t).Expect(write(archive, []byte(file.content))).To(Succeed())
	}
	NewWithT(t).Expect(archive.Close()).To(Succeed())
	NewWithT(t).Expect(compressed.Close()).To(Succeed())
	return put(t, store, out.Bytes())
}

// put stores the content with a Maker, and returns a reference to it.
func put(t *testing.T, store *artifact.Store, content []byte) artifact.Reference {
	t.Helper()
	g := NewWithT(t)
	_, ref := makerOf(digest.FromBytes(content).String(), content)
	g.Expect(store.Fetch(t.Context(), ref)).To(Succeed())
	ref.Digest = store.Stored(ref)
	g.Expect(ref.Digest).NotTo(BeEmpty())
	return ref
}

func startContents(t *testing.T, store *artifact.Store) *artifact.Contents {
	t.Helper()
	contents := artifact.NewContents(store)
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() { ended <- contents.Start(ctx) }()
	t.Cleanup(func() {
		cancel()
		NewWithT(t).Expect(<-ended).To(Succeed())
	})
	return contents
}

// contentOf waits for the Content of the artifact for the directory and the paths.
func contentOf(t *testing.T, contents *artifact.Contents, stored artifact.Reference, dir string, paths ...string) *artifact.Content {
	t.Helper()
	g := NewWithT(t)
	selection, err := artifact.NewSelection(dir, paths)
	g.Expect(err).NotTo(HaveOccurred())
	waiter := waiterNamed("a")
	found, err := contents.Request(stored, selection, waiter)
	g.Expect(err).NotTo(HaveOccurred())
	if found == nil {
		g.Eventually(contents.Events()).Should(Receive(ForWaiter(waiter)))
		found, err = contents.Request(stored, selection, waiter)
		g.Expect(err).NotTo(HaveOccurred())
	}
	g.Expect(found).NotTo(BeNil())
	return found
}

func TestContentChangesWithTheSelectedFilesOnly(t *testing.T) {
	base := []packedFile{{name: "apps/a/Pulumi.yaml", content: "a"}, {name: "apps/b/Pulumi.yaml", content: "b"}, {name: "lib/x.ts", content: "x"}}
	changed := func(at int, change func(*packedFile)) []packedFile {
		files := slices.Clone(base)
		change(&files[at])
		return files
	}
	for name, tt := range map[string]struct {
		files []packedFile
		same  bool
	}{
		"nothing":                           {base, true},
		"the order in the archive":          {[]packedFile{base[2], base[0], base[1]}, true},
		"a file of somebody else":           {changed(1, func(f *packedFile) { f.content = "B" }), true},
		"a new file of somebody else":       {append(slices.Clone(base), packedFile{name: "apps/c/Pulumi.yaml"}), true},
		"a file that was replaced later on": {append([]packedFile{{name: "lib/x.ts", content: "old"}}, base...), true},
		"a bit that is not unpacked":        {changed(0, func(f *packedFile) { f.mode = 0o044 }), true},
		"the project":                       {changed(0, func(f *packedFile) { f.content = "A" }), false},
		"a path":                            {changed(2, func(f *packedFile) { f.content = "X" }), false},
		"an executable":                     {changed(2, func(f *packedFile) { f.mode = 0o100 }), false},
		"a new file in a path":              {append(slices.Clone(base), packedFile{name: "lib/y.ts"}), false},
		"a name":                            {changed(2, func(f *packedFile) { f.name = "lib/z.ts" }), false},
		"a file that is gone":               {base[:2], false},
		"content that moved to a name":      {changed(2, func(f *packedFile) { f.name, f.content = "lib/x.tsx", "" }), false},
	} {
		t.Run(name, func(t *testing.T) {
			g := NewWithT(t)
			store := newStore(t, artifact.Options{})
			contents := startContents(t, store)
			before := contentOf(t, contents, putFiles(t, store, base...), "apps/a", "lib")
			after := contentOf(t, contents, putFiles(t, store, tt.files...), "apps/a", "lib")
			g.Expect(before.Digest).To(MatchRegexp("^sha256:[0-9a-f]{64}$"))
			g.Expect(after.Digest == before.Digest).To(Equal(tt.same))
		})
	}
}

func TestContentWithoutPathsIsTheArtifactItself(t *testing.T) {
	g := NewWithT(t)
	contents := artifact.NewContents(newStore(t, artifact.Options{}))
	selection, err := artifact.NewSelection("apps/a", nil)
	g.Expect(err).NotTo(HaveOccurred())
	g.Expect(contents.Request(artifact.Reference{Digest: "sha256:whatever"}, selection, waiterNamed("a"))).To(Equal(&artifact.Content{Digest: "sha256:whatever"}))
}

func TestPathsThatMatchNothingAreReported(t *testing.T) {
	store := newStore(t, artifact.Options{})
	stored := putFiles(t, store, packedFile{name: "app/Pulumi.yaml"})
	found := contentOf(t, startContents(t, store), stored, "elsewhere", "app", "lib/**", "*.json")
	NewWithT(t).Expect(found.Unmatched).To(Equal([]string{"lib/**", "*.json"}))
}

func TestContentOfAnArtifactThatIsNotStoredForTheSourceIsAnError(t *testing.T) {
	g := NewWithT(t)
	store := newStore(t, artifact.Options{})
	contents := startContents(t, store)
	file := packedFile{name: "app/Pulumi.yaml"}
	elsewhere := putFiles(t, newStore(t, artifact.Options{}), file)
	selection, err := artifact.NewSelection("app", []string{"lib"})
	g.Expect(err).NotTo(HaveOccurred())
	_, err = contents.Request(elsewhere, selection, waiterNamed("a"))
	g.Expect(err).To(MatchError(artifact.ErrNotStored))

	stored := putFiles(t, store, file)
	g.Expect(contentOf(t, contents, stored, "app", "lib").Digest).NotTo(BeEmpty())
	// A source that only knows the digest learns nothing about the names, although Contents has them.
	_, err = contents.Request(artifact.Reference{Source: "GitRepository/evil/x", Digest: stored.Digest}, selection, waiterNamed("a"))
	g.Expect(err).To(MatchError(artifact.ErrNotStored))
}

func TestArtifactIsReadOnceForAllWhoAsk(t *testing.T) {
	g := NewWithT(t)
	dir := t.TempDir()
	store := newStore(t, artifact.Options{Dir: dir})
	contents := startContents(t, store)
	stored := putFiles(t, store, packedFile{name: "a/x"}, packedFile{name: "b/x"})
	contentOf(t, contents, stored, "a", "lib")
	// Without its file the artifact cannot be read again.
	g.Expect(os.Remove(filepath.Join(dir, "sha256", digest.Digest(stored.Digest).Encoded(), "content"))).To(Succeed())
	for i := range 100 {
		contentOf(t, contents, stored, "b", fmt.Sprintf("lib-%d", i))
	}
}
