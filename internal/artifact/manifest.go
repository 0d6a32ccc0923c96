package artifact

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"slices"
	"sort"
	"strings"

	"github.com/stack-controller/stack-controller/internal/artifact/archive"
)

const (
	// maxManifestSize bounds the memory of one manifest in bytes. A hundred thousand files with names of 200 bytes fit into it.
	maxManifestSize = 32 << 20
	// fileOverhead is what a file costs in memory beside its name: its sum, and the header of its name, twice for growth.
	fileOverhead = 2 * (sha256.Size + 16)
)

// errManyFiles ends the reading of an archive whose manifest would be too large.
var errManyFiles = errors.New("the manifest is too large")

// manifest knows the files of an artifact.
type manifest struct {
	// files are in the order of their names, each name once. Nil when there are too many: then the artifact is known as a
	// whole only.
	files []archive.File
	whole bool
	// size is about what the manifest costs in memory, in bytes.
	size int64
}

// readManifest reads a stored artifact.
func readManifest(ctx context.Context, store *Store, digest string) (_ *manifest, err error) {
	file, err := store.Open(digest)
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, file.Close()) }()
	m := &manifest{}
	err = archive.Contents(ctx, file, store.options.Limits, func(found archive.File) error {
		if m.size += int64(len(found.Name)) + fileOverhead; m.size > maxManifestSize {
			return errManyFiles
		}
		m.files = append(m.files, found)
		return nil
	})
	switch {
	case errors.Is(err, errManyFiles):
		return &manifest{whole: true, size: fileOverhead}, nil
	case err != nil:
		return nil, fmt.Errorf("read the files of artifact %s: %w", digest, err)
	}
	m.sort()
	return m, nil
}

// sort brings the files into the order of their names and leaves out those that were replaced.
func (m *manifest) sort() {
	slices.SortStableFunc(m.files, func(a, b archive.File) int { return strings.Compare(a.Name, b.Name) })
	kept := m.files[:0]
	for i := range m.files {
		if i+1 < len(m.files) && m.files[i+1].Name == m.files[i].Name {
			continue
		}
		kept = append(kept, m.files[i])
	}
	m.files = slices.Clip(kept)
}

// digest identifies the selected files: their names, their contents, and which of them can be executed. It also returns
// the paths of the selection that match nothing.
func (m *manifest) digest(selection *Selection) (digest string, unmatched []string) {
	selected := map[int]struct{}{}
	for i := range selection.patterns {
		p := &selection.patterns[i]
		matched := false
		from, to := m.within(p.directory)
		for at := from; at < to; at++ {
			if p.matches(m.files[at].Name) {
				selected[at] = struct{}{}
				matched = true
			}
		}
		if !matched && p.text != "" {
			unmatched = append(unmatched, p.text)
		}
	}
	order := make([]int, 0, len(selected))
	for at := range selected {
		order = append(order, at)
	}
	slices.Sort(order)
	sum := sha256.New()
	for _, at := range order {
		// The length keeps apart what would otherwise read the same; the sum has a fixed one.
		fmt.Fprintf(sum, "%d:%s", len(m.files[at].Name), m.files[at].Name)
		_, _ = sum.Write(m.files[at].Sum[:])
	}
	return "sha256:" + hex.EncodeToString(sum.Sum(nil)), unmatched
}

// within returns where the files in the directory begin and end, or the file of that name. Names that only begin in the same way are
// among them; the pattern tells them apart.
func (m *manifest) within(directory string) (from, to int) {
	from = sort.Search(len(m.files), func(i int) bool { return m.files[i].Name >= directory })
	to = from + sort.Search(len(m.files)-from, func(i int) bool { return !strings.HasPrefix(m.files[from+i].Name, directory) })
	return from, to
}
