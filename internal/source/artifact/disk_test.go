package artifact_test

import (
	"context"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"syscall"
	"testing"

	. "github.com/onsi/gomega"
	"github.com/opencontainers/go-digest"

	"github.com/stack-controller/stack-controller/internal/source/artifact"
)

func TestFullDiskGetsRoomFromContentThatIsNotNeeded(t *testing.T) {
	g := NewWithT(t)
	size := int64(len(program("old 0")))
	store := newStore(t, artifact.Options{Limits: artifact.Limits{MaxDownloadSize: size + size/2}})
	var old []artifact.Reference
	for i := range 4 {
		old = append(old, storeContent(t, store, "team", fmt.Sprint("old ", i)))
	}
	store.Keep("all", []string{old[0].Digest})
	// The disk is full as long as there is too much in the store.
	full := int64(3)
	content := program("new 0")
	_, ref := makerBy("new", func(_ context.Context, to io.Writer) error {
		if store.Size() >= full*size {
			return fmt.Errorf("write a file: %w", syscall.ENOSPC)
		}
		_, err := to.Write(content)
		return err
	})
	g.Expect(store.Fetch(t.Context(), ref)).To(Succeed())
	g.Expect(store.Stored(old[0])).NotTo(BeEmpty(), "it is kept")
	g.Expect(storedOf(store, old)).To(Equal(2), "no more room was made than for one artifact")

	// The disk is full of something else: then the store keeps what is needed.
	full = 0
	store.Keep("all", []string{old[0].Digest, old[3].Digest, digest.FromBytes(content).String()})
	content = program("new 1")
	ref.Maker.(*maker).key = "another"
	g.Expect(store.Fetch(t.Context(), ref)).To(MatchError(syscall.ENOSPC))
	g.Expect(storedOf(store, old)).To(Equal(2))
}

func TestFullDiskGetsNoRoomFromContentThatIsKept(t *testing.T) {
	g := NewWithT(t)
	store := newStore(t, artifact.Options{Limits: artifact.Limits{MaxDownloadSize: 10 * int64(len(program("old 0")))}})
	var kept []artifact.Reference
	var digests []string
	for i := range 3 {
		kept = append(kept, storeContent(t, store, "fleet", fmt.Sprint("kept ", i)))
		digests = append(digests, kept[i].Digest)
	}
	store.Keep("fleet/all", digests)
	other := storeContent(t, store, "team", "other")
	_, ref := makerBy("new", func(context.Context, io.Writer) error { return fmt.Errorf("write a file: %w", syscall.ENOSPC) })
	g.Expect(store.Fetch(t.Context(), ref)).To(MatchError(syscall.ENOSPC))
	g.Expect(storedOf(store, kept)).To(Equal(3), "although its namespace takes the most room")
	g.Expect(store.Stored(other)).To(BeEmpty())
}

func TestContentWhoseOwnerCannotBeRecordedIsNotKept(t *testing.T) {
	g := NewWithT(t)
	elsewhere, dir := t.TempDir(), t.TempDir()
	stored := storeContent(t, newStore(t, artifact.Options{Dir: elsewhere}), "team", "content")
	owners, err := filepath.Glob(filepath.Join(elsewhere, "sha256", "*", "for-*"))
	g.Expect(err).NotTo(HaveOccurred())
	g.Expect(owners).To(HaveLen(1))
	store := newStore(t, artifact.Options{Dir: dir})
	in, err := filepath.Rel(elsewhere, owners[0])
	g.Expect(err).NotTo(HaveOccurred())
	// No file can be written where there is a directory.
	g.Expect(os.MkdirAll(filepath.Join(dir, in, "obstacle"), 0o700)).To(Succeed())
	g.Expect(store.Fetch(t.Context(), stored)).NotTo(Succeed())
	g.Expect(store.Size()).To(BeZero())
	g.Expect(filepath.Join(dir, filepath.Dir(in))).NotTo(BeADirectory())
	g.Expect(store.Fetch(t.Context(), stored)).To(Succeed())
	g.Expect(store.Stored(stored)).To(Equal(stored.Digest))
}
