package images

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"testing"
	"time"

	. "github.com/onsi/gomega"
)

func TestImageIsBuiltOncePerKey(t *testing.T) {
	g := NewWithT(t)
	t.Setenv("STACK_CONTROLLER_CACHE", t.TempDir())
	builds := 0
	build := func(path string) error {
		builds++
		return os.WriteFile(path, nil, 0o600)
	}
	first, err := cached(t.Context(), "name", hashOf([]byte("1")), nil, build)
	g.Expect(err).NotTo(HaveOccurred())
	g.Expect(cached(t.Context(), "name", hashOf([]byte("1")), nil, build)).To(Equal(first))
	g.Expect(builds).To(Equal(1))
	g.Expect(cached(t.Context(), "name", hashOf([]byte("2")), nil, build)).NotTo(Equal(first))
	g.Expect(builds).To(Equal(2))
}

func TestFailedBuildLeavesNothing(t *testing.T) {
	g := NewWithT(t)
	cache := t.TempDir()
	t.Setenv("STACK_CONTROLLER_CACHE", cache)
	_, err := cached(t.Context(), "name", hashOf(), nil, func(path string) error {
		return errors.Join(os.WriteFile(path, nil, 0o600), errors.New("no space"))
	})
	g.Expect(err).To(MatchError("no space"))
	g.Expect(filepath.Glob(filepath.Join(cache, "images", "name", "[^.]*"))).To(BeEmpty())
}

func TestOldTarballsAreRemovedButNotThoseInUse(t *testing.T) {
	g := NewWithT(t)
	cache := t.TempDir()
	t.Setenv("STACK_CONTROLLER_CACHE", cache)
	write := func(path string) error { return os.WriteFile(path, nil, 0o600) }
	var paths []string
	for n := range 6 {
		path, err := cached(t.Context(), "name", hashOf([]byte(fmt.Sprint(n))), nil, write)
		g.Expect(err).NotTo(HaveOccurred())
		paths = append(paths, path)
	}
	g.Expect(filepath.Glob(filepath.Join(cache, "images", "name", "*.tar"))).To(HaveLen(6), "all of them were used just now")

	// Now only the first one is.
	for n, path := range paths[1:] {
		used := time.Now().Add(-unusedAfter - time.Duration(10-n)*time.Minute)
		g.Expect(os.Chtimes(path, used, used)).To(Succeed())
	}
	last, err := cached(t.Context(), "name", hashOf([]byte("last")), nil, write)
	g.Expect(err).NotTo(HaveOccurred())
	g.Expect(filepath.Glob(filepath.Join(cache, "images", "name", "*.tar"))).To(ConsistOf(last, paths[0], paths[5]))
}
