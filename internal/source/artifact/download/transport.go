package download

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"

	"github.com/opencontainers/go-digest"

	"github.com/fluxcd/pkg/http/fetch"
)

// transportFetcher does what fetch.ArchiveFetcher does for a Downloader, with a transport of its own. What its errors mean is found out by
// the same function, Downloader.classify.
type transportFetcher struct {
	client *http.Client
	limit  int64  // of the content, in bytes
	host   string // replaces host and port of each URL, unless it is empty
}

// FetchWithContext downloads the file into the directory and verifies its digest.
func (f *transportFetcher) FetchWithContext(ctx context.Context, url, wanted, dir string) error {
	expected, err := digest.Parse(wanted)
	if err != nil {
		return err
	}
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
	if err != nil {
		return err
	}
	if f.host != "" {
		request.URL.Host, request.Host = f.host, f.host
	}
	response, err := f.client.Do(request)
	if err != nil {
		f.client.CloseIdleConnections() // ends connections that are still being made for a request that was refused
		return err
	}
	defer response.Body.Close()
	switch code := response.StatusCode; {
	case code == http.StatusNotFound:
		return fetch.ErrFileNotFound
	case code >= http.StatusInternalServerError:
		return errServer
	case code != http.StatusOK:
		return fmt.Errorf("failed to download (status: %d)", code)
	}
	file, err := os.OpenFile(filepath.Join(dir, fileName), os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
	if err != nil {
		return err
	}
	verifier := expected.Verifier()
	_, err = io.Copy(io.MultiWriter(file, verifier), io.LimitReader(response.Body, f.limit))
	if closed := file.Close(); err == nil {
		err = closed
	}
	if err == nil && !verifier.Verified() {
		return ErrDigestMismatch
	}
	return err
}
