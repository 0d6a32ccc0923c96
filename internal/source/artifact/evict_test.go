package artifact_test

import (
	"fmt"
	"os"
	"path/filepath"
	"testing"
	"time"

	. "github.com/onsi/gomega"
	"github.com/opencontainers/go-digest"

	"github.com/stack-controller/stack-controller/internal/source/artifact"
)

// storeContent stores content for the namespace.
func storeContent(t *testing.T, store *artifact.Store, namespace, name string) artifact.Reference {
	t.Helper()
	return storeContentOf(t, store, namespace, name, name)
}

// storeContentOf stores content for one of several sources of the namespace.
func storeContentOf(t *testing.T, store *artifact.Store, namespace, source, name string) artifact.Reference {
	t.Helper()
	content := program(name)
	_, ref := makerOf(namespace+"/"+source, content)
	ref.Namespace, ref.Digest = namespace, digest.FromBytes(content).String()
	NewWithT(t).Expect(store.Fetch(t.Context(), ref)).To(Succeed())
	return ref
}

func storedOf(store *artifact.Store, refs []artifact.Reference) (found int) {
	for _, ref := range refs {
		if store.Stored(ref) != "" {
			found++
		}
	}
	return found
}

func TestNamespaceThatFillsTheStoreEvictsItsOwnContent(t *testing.T) {
	for name, limits := range map[string]artifact.Options{
		"in number": {MaxStored: 20},
		"in bytes":  {MaxStoreSize: 20 * int64(len(program("victim 0"))), Limits: artifact.Limits{MaxDownloadSize: 1000}},
	} {
		t.Run(name, func(t *testing.T) {
			g := NewWithT(t)
			limits.Dir = t.TempDir()
			store := newStore(t, limits)
			var victims, flood []artifact.Reference
			for i := range 5 {
				victims = append(victims, storeContent(t, store, "victim", fmt.Sprint("victim ", i)))
			}
			for i := range 100 {
				flood = append(flood, storeContent(t, store, "evil", fmt.Sprintf("evil %03d", i)))
			}
			g.Expect(storedOf(store, victims)).To(Equal(5))
			g.Expect(storedOf(store, flood[:80])).To(BeZero())
			g.Expect(storedOf(store, flood[90:])).To(Equal(10), "what it used last it has still")

			store = newStore(t, limits)
			for i := range 100 {
				storeContent(t, store, "evil", fmt.Sprintf("more %03d", i))
			}
			g.Expect(storedOf(store, victims)).To(Equal(5), "after a restart, too")
		})
	}
}

func TestContentThatIsKeptIsEvictedLast(t *testing.T) {
	g := NewWithT(t)
	store := newStore(t, artifact.Options{Dir: t.TempDir(), MaxStored: 20})
	old, victim := storeContent(t, store, "fleet", "old"), storeContent(t, store, "victim", "victim")
	store.Keep("fleet/all", []string{old.Digest, "", "sha256:nothing"})
	for i := range 50 {
		storeContent(t, store, "fleet", fmt.Sprint(i))
	}
	g.Expect(storedOf(store, []artifact.Reference{old, victim})).To(Equal(2))

	// Nobody fills the store with it: what a namespace keeps goes before the content of others.
	var all []string
	for i := range 50 {
		all = append(all, storeContent(t, store, "evil", fmt.Sprint("evil ", i)).Digest)
		store.Keep("evil/all", all)
	}
	g.Expect(storedOf(store, []artifact.Reference{old, victim})).To(Equal(2))

	store.Keep("fleet/all", nil)
	for i := range 50 {
		storeContent(t, store, "fleet", fmt.Sprint("more ", i))
	}
	g.Expect(store.Stored(old)).To(BeEmpty())
	g.Expect(store.Stored(victim)).NotTo(BeEmpty())
}

func TestContentThatAnotherNamespaceHasTooIsKeptForThat(t *testing.T) {
	g := NewWithT(t)
	dir := t.TempDir()
	store := newStore(t, artifact.Options{Dir: dir, MaxStored: 10})
	victim, shared := storeContent(t, store, "victim", "shared"), storeContent(t, store, "evil", "shared")
	for i := range 30 {
		storeContent(t, store, "evil", fmt.Sprint(i))
	}
	g.Expect(store.Stored(shared)).To(BeEmpty())
	g.Expect(store.Stored(victim)).To(Equal(victim.Digest))
	g.Expect(newStore(t, artifact.Options{Dir: dir, MaxStored: 10}).Stored(shared)).To(BeEmpty())
}

func TestContentThatNobodyUsedForADayIsEvictedFirst(t *testing.T) {
	g := NewWithT(t)
	dir := t.TempDir()
	store := newStore(t, artifact.Options{Dir: dir, MaxStored: 5})
	unused := storeContent(t, store, "gone", "unused")
	var busy []artifact.Reference
	for i := range 4 {
		busy = append(busy, storeContent(t, store, "busy", fmt.Sprint(i)))
	}
	yesterday := time.Now().Add(-25 * time.Hour)
	content := filepath.Join(dir, "sha256", digest.Digest(unused.Digest).Encoded(), "content")
	g.Expect(os.Chtimes(content, yesterday, yesterday)).To(Succeed())

	store = newStore(t, artifact.Options{Dir: dir, MaxStored: 5})
	busy = append(busy, storeContent(t, store, "busy", "4"))
	g.Expect(store.Stored(unused)).To(BeEmpty())
	g.Expect(storedOf(store, busy)).To(Equal(5))
}

func TestOwnersOfContentAreBoundedHoweverManySourcesPublishIt(t *testing.T) {
	g := NewWithT(t)
	dir := t.TempDir()
	store := newStore(t, artifact.Options{Dir: dir, MaxStored: 10})
	victim := storeContent(t, store, "victim", "victim")
	for i := range 300 {
		storeContentOf(t, store, "evil", fmt.Sprint("source ", i), fmt.Sprint("evil ", i%5))
	}
	files, err := filepath.Glob(filepath.Join(dir, "sha256", "*", "for-*"))
	g.Expect(err).NotTo(HaveOccurred())
	g.Expect(files).NotTo(BeEmpty())
	g.Expect(len(files)).To(BeNumerically("<=", 8*10))
	g.Expect(store.Stored(victim)).To(Equal(victim.Digest))
}
