package install_test

import (
	"bytes"
	"compress/gzip"
	"context"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
)

// releaseSize computes how many bytes Helm stores for a release, in the way that it does: the chart's files and what they
// render to, as JSON, compressed and encoded twice.
func releaseSize(ctx context.Context) (int, error) {
	manifest, err := helmTemplate(ctx)
	if err != nil {
		return 0, err
	}
	type file struct {
		Name string `json:"name"`
		Data []byte `json:"data"`
	}
	release := struct {
		Files    []file `json:"files"`
		Manifest string `json:"manifest"`
	}{Manifest: manifest}
	err = filepath.WalkDir(chart(), func(path string, entry fs.DirEntry, err error) error {
		if err != nil || entry.IsDir() {
			return err
		}
		content, err := os.ReadFile(path)
		release.Files = append(release.Files, file{Name: path, Data: content})
		return err
	})
	if err != nil {
		return 0, fmt.Errorf("read the chart: %w", err)
	}
	encoded, err := json.Marshal(release)
	if err != nil {
		return 0, fmt.Errorf("encode the release: %w", err)
	}
	var compressed bytes.Buffer
	writer, err := gzip.NewWriterLevel(&compressed, gzip.BestCompression)
	if err != nil {
		return 0, fmt.Errorf("compress the release: %w", err)
	}
	if _, err := writer.Write(encoded); err != nil {
		return 0, fmt.Errorf("compress the release: %w", err)
	}
	if err := writer.Close(); err != nil {
		return 0, fmt.Errorf("compress the release: %w", err)
	}
	// A Secret holds Helm's base64, and the API server counts the bytes of its value.
	return base64.StdEncoding.EncodedLen(compressed.Len()), nil
}
