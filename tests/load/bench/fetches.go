package main

import (
	"archive/tar"
	"compress/gzip"
	"context"
	"crypto/rand"
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"time"

	"github.com/stack-controller/stack-controller/internal/source/artifact"
	"github.com/stack-controller/stack-controller/tests/load/measure"
)

const (
	mebibyte = 1 << 20
	// files is the number of files in the artifact; together they have its size.
	files = 50
	// archiveName is the artifact's name on the server.
	archiveName = "artifact.tar.gz"
	// maxStoreRatio limits the time to fetch an artifact into the store, which also unpacks and checks it, divided by the time of a
	// download with a SHA-256 digest.
	maxStoreRatio = 2.0
)

// benchFetches measures the artifact store beside a plain download that only writes the file. The server listens on loopback.
func benchFetches(ctx context.Context, s settings, limits *measure.Limits, out io.Writer) (err error) {
	dir, err := os.MkdirTemp("", "stack-bench-")
	if err != nil {
		return fmt.Errorf("create the directory of the artifact: %w", err)
	}
	defer func() { err = errors.Join(err, os.RemoveAll(dir)) }()
	served := filepath.Join(dir, "served")
	digest, size, err := writeArtifact(served, s.artifactMiB*mebibyte)
	if err != nil {
		return err
	}
	server := httptest.NewServer(http.FileServer(http.Dir(served)))
	defer server.Close()
	reference := artifact.Reference{URL: server.URL + "/" + archiveName, Digest: digest, Size: &size}

	var bare, hashed, fetched measure.Samples
	for run := range s.runs {
		target := filepath.Join(dir, fmt.Sprintf("run-%d", run))
		for _, measured := range []struct {
			samples *measure.Samples
			fetch   func() error
		}{
			{&bare, func() error { return download(ctx, reference.URL, target+".bare", io.Discard) }},
			{&hashed, func() error { return download(ctx, reference.URL, target+".hashed", sha256.New()) }},
			{&fetched, func() error { return fetchIntoStore(ctx, target+".store", reference) }},
		} {
			start := time.Now()
			if err := measured.fetch(); err != nil {
				return err
			}
			*measured.samples = append(*measured.samples, time.Since(start))
		}
	}
	t := measure.NewTable(out, fmt.Sprintf("artifact of %d MiB, %d files", s.artifactMiB, files), "median", "min", "max")
	t.Row("bare download to a file", bare)
	t.Row("download and SHA-256", hashed)
	t.Row("store: download, SHA-256, check the archive", fetched)
	t.Flush()
	limits.Check("fetching an artifact into the store, beside a download and SHA-256", float64(fetched.Median())/float64(hashed.Median()), maxStoreRatio)
	return nil
}

// writeArtifact writes a gzipped tarball of random files, which do not compress, and returns its digest and size.
func writeArtifact(dir string, size int64) (digest string, written int64, err error) {
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return "", 0, fmt.Errorf("create the directory of the artifact: %w", err)
	}
	file, err := os.Create(filepath.Join(dir, archiveName))
	if err != nil {
		return "", 0, fmt.Errorf("create the artifact: %w", err)
	}
	defer func() { err = errors.Join(err, file.Close()) }()
	hash := sha256.New()
	compressor := gzip.NewWriter(io.MultiWriter(file, hash))
	archive := tar.NewWriter(compressor)
	for i := range files {
		header := &tar.Header{Name: fmt.Sprintf("file-%02d", i), Mode: 0o644, Size: size / files, Typeflag: tar.TypeReg}
		if err := archive.WriteHeader(header); err != nil {
			return "", 0, fmt.Errorf("write the artifact: %w", err)
		}
		if _, err := io.CopyN(archive, rand.Reader, header.Size); err != nil {
			return "", 0, fmt.Errorf("write the artifact: %w", err)
		}
	}
	if err := errors.Join(archive.Close(), compressor.Close()); err != nil {
		return "", 0, fmt.Errorf("write the artifact: %w", err)
	}
	info, err := file.Stat()
	if err != nil {
		return "", 0, fmt.Errorf("read the size of the artifact: %w", err)
	}
	return fmt.Sprintf("sha256:%x", hash.Sum(nil)), info.Size(), nil
}

// download writes the content of the URL to a file and to the hash.
func download(ctx context.Context, url, path string, hash io.Writer) (err error) {
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
	if err != nil {
		return fmt.Errorf("download: %w", err)
	}
	response, err := http.DefaultClient.Do(request)
	if err != nil {
		return fmt.Errorf("download: %w", err)
	}
	defer func() { err = errors.Join(err, response.Body.Close()) }()
	file, err := os.Create(path)
	if err != nil {
		return fmt.Errorf("download: %w", err)
	}
	defer func() { err = errors.Join(err, file.Close()) }()
	if _, err := io.Copy(io.MultiWriter(file, hash), response.Body); err != nil {
		return fmt.Errorf("download: %w", err)
	}
	return nil
}

func fetchIntoStore(ctx context.Context, dir string, reference artifact.Reference) error {
	store, err := artifact.NewStore(artifact.Options{Dir: dir, MaxStoreSize: 2 * *reference.Size,
		Limits: artifact.Limits{MaxDownloadSize: 2 * *reference.Size, MaxUnpackedSize: 2 * *reference.Size, MaxEntries: 2 * files}})
	if err != nil {
		return err
	}
	return store.Fetch(ctx, reference)
}
