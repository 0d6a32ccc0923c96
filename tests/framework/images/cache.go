package images

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"time"

	"github.com/stack-controller/stack-controller/tests/tools"
)

const (
	// keptTarballs is how many tarballs of an image stay in the cache. Clones of the repository that are in use at the same time need
	// different tarballs.
	keptTarballs = 3
	// unusedAfter is how long a tarball stays in the cache after its last use, whatever the number of tarballs.
	unusedAfter = time.Hour
)

// cached returns the path of the image's tarball for the key. If the cache does not have it, build writes it to the given path.
func cached(ctx context.Context, name, key string, progress func(string), build func(path string) error) (string, error) {
	cache, err := tools.CacheDir()
	if err != nil {
		return "", err
	}
	dir := filepath.Join(cache, "images", name)
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return "", fmt.Errorf("create the cache of the image %s: %w", name, err)
	}
	unlock, err := tools.Lock(ctx, filepath.Join(dir, ".lock"))
	if err != nil {
		return "", err
	}
	defer unlock()
	path := filepath.Join(dir, key[:16]+".tar")
	now := time.Now()
	switch err := os.Chtimes(path, now, now); {
	case err == nil:
		return path, nil
	case !errors.Is(err, fs.ErrNotExist):
		return "", fmt.Errorf("look for the image %s in the cache: %w", name, err)
	}
	if err := build(path + ".new"); err != nil {
		return "", errors.Join(err, removeIfExists(path+".new"))
	}
	if err := os.Rename(path+".new", path); err != nil {
		return "", fmt.Errorf("put the image %s into the cache: %w", name, err)
	}
	if progress != nil {
		progress(fmt.Sprintf("built the image %s in %s", name, time.Since(now).Round(100*time.Millisecond)))
	}
	return path, prune(dir)
}

// prune removes old tarballs, but not those that were used a short time ago.
func prune(dir string) error {
	paths, err := filepath.Glob(filepath.Join(dir, "*.tar"))
	if err != nil {
		return err
	}
	used := make(map[string]time.Time, len(paths))
	for _, path := range paths {
		info, err := os.Stat(path)
		if err != nil {
			return fmt.Errorf("look at the cached image %s: %w", path, err)
		}
		used[path] = info.ModTime()
	}
	slices.SortFunc(paths, func(a, b string) int { return used[b].Compare(used[a]) })
	for _, path := range paths[min(len(paths), keptTarballs):] {
		if time.Since(used[path]) < unusedAfter {
			continue
		}
		if err := os.Remove(path); err != nil {
			return fmt.Errorf("remove an old image from the cache: %w", err)
		}
	}
	return nil
}

func removeIfExists(path string) error {
	if err := os.Remove(path); !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	return nil
}
