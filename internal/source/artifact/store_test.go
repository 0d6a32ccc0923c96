package artifact_test

import (
	"fmt"
	"io"
	"os"
	"path/filepath"
	"testing"

	. "github.com/onsi/gomega"
	"github.com/opencontainers/go-digest"

	"github.com/stack-controller/stack-controller/internal/source/artifact"
)

func TestContentOutlivesTheProcess(t *testing.T) {
	g := NewWithT(t)
	server := newServer(t)
	ref := server.publish("name: demo")
	dir := t.TempDir()
	g.Expect(newStore(t, artifact.Options{Dir: dir}).Fetch(t.Context(), ref)).To(Succeed())
	stray := filepath.Join(dir, "sha256", "README")
	g.Expect(os.WriteFile(stray, nil, 0o600)).To(Succeed())
	g.Expect(os.WriteFile(filepath.Join(dir, "incoming", "artifact-1"), []byte("half of"), 0o600)).To(Succeed())

	restarted := newStore(t, artifact.Options{Dir: dir})
	g.Expect(restarted.Stored(ref)).To(Equal(ref.Digest))
	g.Expect(restarted.Fetch(t.Context(), ref)).To(Succeed())
	g.Expect(server.requests.Load()).To(BeEquivalentTo(1))
	g.Expect(read(restarted, ref)).To(Equal(server.content(ref)))
	g.Expect(os.ReadDir(filepath.Join(dir, "incoming"))).To(BeEmpty(), "what was not complete is removed")
	g.Expect(stray).To(BeAnExistingFile(), "what is not ours stays")
}

func TestDamagedContentIsNeverOpenedAndFetchedAgain(t *testing.T) {
	damages := map[string]func(path string, content []byte) error{
		"changed": func(path string, content []byte) error {
			content[len(content)/2] ^= 1
			return os.WriteFile(path, content, 0o600)
		},
		"cut off": func(path string, content []byte) error { return os.WriteFile(path, content[:len(content)/2], 0o600) },
		"emptied": func(path string, _ []byte) error { return os.Truncate(path, 0) },
	}
	for name, damage := range damages {
		t.Run(name, func(t *testing.T) {
			g := NewWithT(t)
			server := newServer(t)
			ref := server.publish("name: demo")
			dir := t.TempDir()
			g.Expect(newStore(t, artifact.Options{Dir: dir}).Fetch(t.Context(), ref)).To(Succeed())
			path := filepath.Join(dir, "sha256", digest.Digest(ref.Digest).Encoded(), "content")
			g.Expect(damage(path, server.content(ref))).To(Succeed())

			restarted := newStore(t, artifact.Options{Dir: dir})
			_, err := restarted.Open(ref)
			g.Expect(err).To(MatchError(artifact.ErrNotStored))
			g.Expect(restarted.Stored(ref)).To(BeEmpty())
			g.Expect(path).NotTo(BeAnExistingFile())

			g.Expect(restarted.Fetch(t.Context(), ref)).To(Succeed())
			g.Expect(read(restarted, ref)).To(Equal(server.content(ref)))
		})
	}
}

func TestContentRemovedByOthersIsNotStored(t *testing.T) {
	g := NewWithT(t)
	dir := t.TempDir()
	store := newStore(t, artifact.Options{Dir: dir})
	stored := put(t, store, program("a"))
	g.Expect(os.RemoveAll(filepath.Join(dir, "sha256", digest.Digest(stored.Digest).Encoded()))).To(Succeed())

	_, err := store.Open(stored)
	g.Expect(err).To(MatchError(artifact.ErrNotStored))
	g.Expect(store.Stored(stored)).To(BeEmpty())
}

func TestContentOfAnEarlierProcessIsOpenedByManyAtOnce(t *testing.T) {
	g := NewWithT(t)
	dir := t.TempDir()
	content := program("a")
	stored := put(t, newStore(t, artifact.Options{Dir: dir}), content)

	restarted := newStore(t, artifact.Options{Dir: dir})
	type result struct {
		content []byte
		err     error
	}
	const readers = 20
	results := make(chan result, readers)
	for range readers {
		go func() {
			got, err := read(restarted, stored)
			results <- result{got, err}
		}()
	}
	for range readers {
		g.Expect(<-results).To(Equal(result{content: content}))
	}
}

func TestThereAreNotMoreArtifactsThanAllowedHoweverSmallTheyAre(t *testing.T) {
	g := NewWithT(t)
	store := newStore(t, artifact.Options{MaxStored: 2})
	first, second, third := put(t, store, program("1")), put(t, store, program("2")), put(t, store, program("3"))
	g.Expect(store.Stored(first)).To(BeEmpty())
	g.Expect(store.Stored(second)).NotTo(BeEmpty())
	g.Expect(store.Stored(third)).NotTo(BeEmpty())
}

func TestLeastRecentlyUsedContentIsEvicted(t *testing.T) {
	g := NewWithT(t)
	dir := t.TempDir()
	content := make([][]byte, 6)
	var size int64
	for i := range content {
		content[i] = program(fmt.Sprint(i))
		size = max(size, int64(len(content[i])))
	}
	// All have about the same size; there is room for three.
	options := artifact.Options{Dir: dir, Limits: artifact.Limits{MaxDownloadSize: size}, MaxStoreSize: 3*size + size/2}
	store := newStore(t, options)
	putOne := func(i int) artifact.Reference { return put(t, store, content[i]) }
	stored := func(refs ...artifact.Reference) []bool {
		var have []bool
		for _, ref := range refs {
			have = append(have, store.Stored(ref) != "")
		}
		return have
	}

	d0, d1, d2 := putOne(0), putOne(1), putOne(2)
	g.Expect(stored(d0, d1, d2)).To(HaveEach(true))
	g.Expect(read(store, d0)).To(Equal(content[0]))
	d3 := putOne(3)
	g.Expect(stored(d0, d1, d2, d3)).To(Equal([]bool{true, false, true, true}), "the oldest was used, the second was not")

	pinned, err := store.Open(d2)
	g.Expect(err).NotTo(HaveOccurred())
	g.Expect(read(store, d3)).To(Equal(content[3]))
	g.Expect(read(store, d0)).To(Equal(content[0]))
	d4, d5 := putOne(4), putOne(5)
	g.Expect(stored(d0, d2, d3, d4, d5)).To(Equal([]bool{false, true, false, true, true}), "what is open stays")
	g.Expect(io.ReadAll(pinned)).To(Equal(content[2]))
	g.Expect(pinned.Close()).To(Succeed())

	store = newStore(t, artifact.Options{Dir: dir, Limits: options.Limits, MaxStoreSize: 2 * size})
	g.Expect(stored(d2, d4, d5)).To(Equal([]bool{false, true, true}), "a store that became smaller makes room at its start")
	g.Expect(filesBelow(dir)).To(HaveLen(4), "two artifacts, and an owner for each")
}

func TestStoreFullOfOpenContentShrinksWhenThatIsClosed(t *testing.T) {
	g := NewWithT(t)
	a, b := program("a"), program("b")
	size := int64(len(a))
	store := newStore(t, artifact.Options{Limits: artifact.Limits{MaxDownloadSize: size}, MaxStoreSize: size})
	da := put(t, store, a)
	open, err := store.Open(da)
	g.Expect(err).NotTo(HaveOccurred())

	db := put(t, store, b)
	g.Expect(store.Stored(da)).NotTo(BeEmpty())
	g.Expect(store.Stored(db)).NotTo(BeEmpty())
	g.Expect(open.Close()).To(Succeed())
	g.Expect(store.Stored(da)).To(BeEmpty())
	g.Expect(store.Stored(db)).NotTo(BeEmpty())

	open, err = store.Open(db)
	g.Expect(err).NotTo(HaveOccurred())
	g.Expect(open.Close()).To(Succeed())
	g.Expect(open.Close()).To(MatchError(os.ErrClosed), "closing twice does not unpin twice")
}

func TestStoreRefusesOptionsThatCannotWork(t *testing.T) {
	g := NewWithT(t)
	_, err := artifact.NewStore(artifact.Options{})
	g.Expect(err).To(MatchError(ContainSubstring("no directory is given")))
	_, err = artifact.NewStore(artifact.Options{Dir: t.TempDir(), MaxStoreSize: 10})
	g.Expect(err).To(MatchError(ContainSubstring("less than the 104857600 bytes of one artifact")))
	file := filepath.Join(t.TempDir(), "file")
	g.Expect(os.WriteFile(file, nil, 0o600)).To(Succeed())
	_, err = artifact.NewStore(artifact.Options{Dir: file})
	g.Expect(err).To(HaveOccurred())
}

func read(store *artifact.Store, ref artifact.Reference) ([]byte, error) {
	file, err := store.Open(ref)
	if err != nil {
		return nil, err
	}
	defer file.Close()
	return io.ReadAll(file)
}
