package artifact_test

import (
	"archive/tar"
	"bytes"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"

	. "github.com/onsi/gomega"
	"github.com/opencontainers/go-digest"

	"github.com/stack-controller/stack-controller/internal/artifact"
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
	g.Expect(restarted.Has(ref.Digest)).To(BeTrue())
	g.Expect(restarted.Fetch(t.Context(), ref)).To(Succeed())
	g.Expect(server.requests.Load()).To(BeEquivalentTo(1))
	g.Expect(read(restarted, ref.Digest)).To(Equal(server.content(ref)))
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
			path := filepath.Join(dir, "sha256", digest.Digest(ref.Digest).Encoded())
			g.Expect(damage(path, server.content(ref))).To(Succeed())

			restarted := newStore(t, artifact.Options{Dir: dir})
			_, err := restarted.Open(ref.Digest)
			g.Expect(err).To(MatchError(artifact.ErrNotStored))
			g.Expect(restarted.Has(ref.Digest)).To(BeFalse())
			g.Expect(path).NotTo(BeAnExistingFile())

			g.Expect(restarted.Fetch(t.Context(), ref)).To(Succeed())
			g.Expect(read(restarted, ref.Digest)).To(Equal(server.content(ref)))
		})
	}
}

func TestContentRemovedByOthersIsNotStored(t *testing.T) {
	g := NewWithT(t)
	dir := t.TempDir()
	store := newStore(t, artifact.Options{Dir: dir})
	stored, err := store.Put(t.Context(), "", bytes.NewReader(program("a")))
	g.Expect(err).NotTo(HaveOccurred())
	g.Expect(os.Remove(filepath.Join(dir, "sha256", digest.Digest(stored).Encoded()))).To(Succeed())

	_, err = store.Open(stored)
	g.Expect(err).To(MatchError(artifact.ErrNotStored))
	g.Expect(store.Has(stored)).To(BeFalse())
}

func TestContentOfAnEarlierProcessIsOpenedByManyAtOnce(t *testing.T) {
	g := NewWithT(t)
	dir := t.TempDir()
	content := program("a")
	stored, err := newStore(t, artifact.Options{Dir: dir}).Put(t.Context(), "", bytes.NewReader(content))
	g.Expect(err).NotTo(HaveOccurred())

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
	put := func(i int) string {
		stored, err := store.Put(t.Context(), "", bytes.NewReader(content[i]))
		g.Expect(err).NotTo(HaveOccurred())
		return stored
	}
	stored := func(digests ...string) []bool {
		var have []bool
		for _, d := range digests {
			have = append(have, store.Has(d))
		}
		return have
	}

	d0, d1, d2 := put(0), put(1), put(2)
	g.Expect(stored(d0, d1, d2)).To(HaveEach(true))
	g.Expect(read(store, d0)).To(Equal(content[0]))
	d3 := put(3)
	g.Expect(stored(d0, d1, d2, d3)).To(Equal([]bool{true, false, true, true}), "the oldest was used, the second was not")

	pinned, err := store.Open(d2)
	g.Expect(err).NotTo(HaveOccurred())
	g.Expect(read(store, d3)).To(Equal(content[3]))
	g.Expect(read(store, d0)).To(Equal(content[0]))
	d4, d5 := put(4), put(5)
	g.Expect(stored(d0, d2, d3, d4, d5)).To(Equal([]bool{false, true, false, true, true}), "what is open stays")
	g.Expect(io.ReadAll(pinned)).To(Equal(content[2]))
	g.Expect(pinned.Close()).To(Succeed())

	store = newStore(t, artifact.Options{Dir: dir, Limits: options.Limits, MaxStoreSize: 2 * size})
	g.Expect(stored(d2, d4, d5)).To(Equal([]bool{false, true, true}), "a store that became smaller makes room at its start")
	g.Expect(filesBelow(dir)).To(HaveLen(2))
}

func TestStoreFullOfOpenContentShrinksWhenThatIsClosed(t *testing.T) {
	g := NewWithT(t)
	a, b := program("a"), program("b")
	size := int64(len(a))
	store := newStore(t, artifact.Options{Limits: artifact.Limits{MaxDownloadSize: size}, MaxStoreSize: size})
	da, err := store.Put(t.Context(), "", bytes.NewReader(a))
	g.Expect(err).NotTo(HaveOccurred())
	open, err := store.Open(da)
	g.Expect(err).NotTo(HaveOccurred())

	db, err := store.Put(t.Context(), "", bytes.NewReader(b))
	g.Expect(err).NotTo(HaveOccurred())
	g.Expect(store.Has(da)).To(BeTrue())
	g.Expect(store.Has(db)).To(BeTrue())
	g.Expect(open.Close()).To(Succeed())
	g.Expect(store.Has(da)).To(BeFalse())
	g.Expect(store.Has(db)).To(BeTrue())

	open, err = store.Open(db)
	g.Expect(err).NotTo(HaveOccurred())
	g.Expect(open.Close()).To(Succeed())
	g.Expect(open.Close()).To(MatchError(os.ErrClosed), "closing twice does not unpin twice")
}

func TestPutStoresWhatIsAcceptable(t *testing.T) {
	content := program("name: demo")
	limits := artifact.Limits{MaxDownloadSize: 1000}
	tests := []struct {
		name    string
		digest  string
		content []byte
		want    string
		kind    artifact.Kind
	}{
		{name: "without a digest", content: content, want: digest.FromBytes(content).String()},
		{name: "with its digest", digest: digest.SHA512.FromBytes(content).String(), content: content, want: digest.SHA512.FromBytes(content).String()},
		{name: "with another digest", digest: digest.FromString("x").String(), content: content, kind: artifact.Integrity},
		{name: "with an invalid digest", digest: "x", content: content, kind: artifact.Unusable},
		{name: "a device", content: tarball(tar.Header{Name: "d", Typeflag: tar.TypeChar}, nil), kind: artifact.Unusable},
		{name: "too large", content: []byte(strings.Repeat("x", 1001)), kind: artifact.TooLarge},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			g := NewWithT(t)
			dir := t.TempDir()
			store := newStore(t, artifact.Options{Dir: dir, Limits: limits})
			got, err := store.Put(t.Context(), tt.digest, bytes.NewReader(tt.content))
			if tt.kind != "" {
				g.Expect(err).To(HaveKind(tt.kind))
				g.Expect(filesBelow(dir)).To(BeEmpty())
				return
			}
			g.Expect(err).NotTo(HaveOccurred())
			g.Expect(got).To(Equal(tt.want))
			g.Expect(read(store, got)).To(Equal(tt.content))
		})
	}
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

func read(store *artifact.Store, d string) ([]byte, error) {
	file, err := store.Open(d)
	if err != nil {
		return nil, err
	}
	defer file.Close()
	return io.ReadAll(file)
}
