package prebuilt

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"sync/atomic"
	"time"

	"github.com/opencontainers/go-digest"

	"github.com/stack-controller/stack-controller/tests/tools"
)

// heartbeat is how often a running download reports its progress.
const heartbeat = 10 * time.Second

// digestError says that a file has other content than its digest says.
type digestError struct {
	address     string
	got, wanted digest.Digest
}

func (e *digestError) Error() string {
	return fmt.Sprintf("%s has the digest %s, not %s: it was deleted, and nothing of it was unpacked or run", e.address, e.got, e.wanted)
}

// directory returns where the programs of the pin are after a download.
func (p *pin) directory() (string, error) {
	cache, err := tools.CacheDir()
	if err != nil {
		return "", err
	}
	architecture := p.architecture
	if architecture == "*" {
		architecture = runtime.GOARCH
	}
	return filepath.Join(cache, "prebuilt", p.digest.Encoded()[:16]+"-"+architecture), nil
}

// downloaded returns the path of the tool if it was downloaded before, and nothing otherwise.
func (p *pin) downloaded(tool string) (path string, err error) {
	dir, err := p.directory()
	if err != nil {
		return "", err
	}
	path = filepath.Join(dir, tool)
	if _, err := os.Stat(path); err != nil {
		return "", nil //nolint:nilerr // it is not there, or cannot be used
	}
	return path, nil
}

// download gets the programs of the pin into the cache, unless another process did so in the meantime. Nothing of a file is unpacked before
// all of it is verified. progress is called when the download begins, every now and then, and when it ends.
func (p *pin) download(ctx context.Context, f *fetcher, progress func(string)) error {
	dir, err := p.directory()
	if err != nil {
		return err
	}
	if err := os.MkdirAll(filepath.Dir(dir), 0o755); err != nil {
		return fmt.Errorf("create the directory of downloads: %w", err)
	}
	unlock, err := tools.Lock(ctx, dir+".lock")
	if err != nil {
		return err
	}
	defer unlock()
	if _, err := os.Stat(dir); err == nil {
		return nil
	}
	staging := dir + ".new"
	if err := os.RemoveAll(staging); err != nil {
		return fmt.Errorf("remove a download that was interrupted: %w", err)
	}
	if err := os.Mkdir(staging, 0o755); err != nil {
		return fmt.Errorf("create the directory of a download: %w", err)
	}
	defer os.RemoveAll(staging)
	start := time.Now()
	if err := p.fetch(ctx, f, staging, runtime.GOARCH, progress); err != nil {
		return err
	}
	for _, tool := range p.tools {
		if err := p.checkVersion(ctx, tool, staging); err != nil {
			return fmt.Errorf("check the downloaded %s: %w", tool, err)
		}
	}
	if err := os.Rename(staging, dir); err != nil {
		return fmt.Errorf("install %s: %w", p.title(), err)
	}
	progress(fmt.Sprintf("%-40s from %s in %s", p.title(), p.from.Host, time.Since(start).Round(100*time.Millisecond)))
	return nil
}

// fetch downloads the programs of the pin for the architecture, verifies them, and puts them into the directory.
func (p *pin) fetch(ctx context.Context, f *fetcher, dir, architecture string, progress func(string)) error {
	running := &transfer{title: p.title(), host: p.from.Host, progress: progress}
	running.report()
	if p.image() {
		if err := p.fetchImage(ctx, f, dir, architecture, running); err != nil {
			return err
		}
	} else {
		file, err := running.verified(ctx, f, f.at(p.from), nil, p.digest, dir)
		if err != nil {
			return err
		}
		if err := p.take(file, dir); err != nil {
			return err
		}
	}
	for _, tool := range p.tools {
		if err := checkMachine(filepath.Join(dir, tool), architecture); err != nil {
			return fmt.Errorf("check the downloaded %s: %w", tool, err)
		}
	}
	return nil
}

// take unpacks the programs out of a verified archive into the directory, and removes the archive.
func (p *pin) take(archive, dir string) error {
	file, err := os.Open(archive)
	if err != nil {
		return err
	}
	defer file.Close()
	members := map[string]string{}
	for member, tool := range p.members() {
		members[member] = filepath.Join(dir, tool)
	}
	found, err := unpack(file, members, maxUnpacked)
	if err != nil {
		return err
	}
	for member := range members {
		if !slices.Contains(found, member) {
			return &memberError{member: member}
		}
	}
	return os.Remove(archive)
}

// memberError says that an archive lacks a member.
type memberError struct{ member string }

func (e *memberError) Error() string { return "the archive has no " + e.member }

func (p *pin) fetchImage(ctx context.Context, f *fetcher, dir, architecture string, running *transfer) error {
	images := newRepository(f, p.from)
	layers, err := images.layers(ctx, p.digest, p.system, architecture)
	if err != nil {
		return err
	}
	for _, layer := range layers {
		if err := layer.Digest.Validate(); err != nil {
			return fmt.Errorf("digest of a layer: %w", err)
		}
		file, err := running.verified(ctx, f, images.blob(layer), images.authorized(), layer.Digest, dir)
		if err != nil {
			return err
		}
		var missing *memberError
		if err := p.take(file, dir); !errors.As(err, &missing) {
			return err
		}
		// The program is in another layer. What else was in this one does not matter.
		if err := os.Remove(file); err != nil {
			return err
		}
	}
	return fmt.Errorf("no layer of the image has %s", p.member)
}

// transfer is a download that reports how far it is.
type transfer struct {
	title, host string
	progress    func(string)
	received    atomic.Int64
	expected    atomic.Int64
}

func (t *transfer) report() {
	const megabyte = 1e6
	amount := ""
	if received := t.received.Load(); received > 0 {
		amount = fmt.Sprintf("  %.0f MB", float64(received)/megabyte)
		if expected := t.expected.Load(); expected > 0 {
			amount = fmt.Sprintf("  %.0f of %.0f MB", float64(received)/megabyte, float64(expected)/megabyte)
		}
	}
	t.progress(fmt.Sprintf("%-40s from %s%s", t.title, t.host, amount))
}

// Write counts what came.
func (t *transfer) Write(p []byte) (int, error) {
	t.received.Add(int64(len(p)))
	return len(p), nil
}

// verified downloads the file into the directory and returns its path. Its content has the digest.
func (t *transfer) verified(ctx context.Context, f *fetcher, address *url.URL, header http.Header, wanted digest.Digest, dir string) (path string, err error) {
	file, err := os.CreateTemp(dir, ".download-")
	if err != nil {
		return "", fmt.Errorf("create a file for a download: %w", err)
	}
	defer func() { err = errors.Join(err, file.Close()) }()
	ticker := time.NewTicker(heartbeat)
	defer ticker.Stop()
	over := make(chan struct{})
	defer close(over)
	go func() {
		for {
			select {
			case <-over:
				return
			case <-ticker.C:
				t.report()
			}
		}
	}()
	var digester digest.Digester
	err = f.get(ctx, address, header, func(body io.Reader, length int64) error {
		digester = wanted.Algorithm().Digester()
		t.received.Store(0)
		t.expected.Store(length)
		if _, err := file.Seek(0, io.SeekStart); err != nil {
			return err
		}
		if err := file.Truncate(0); err != nil {
			return err
		}
		received, err := io.Copy(io.MultiWriter(file, digester.Hash(), t), io.LimitReader(body, maxProgram+1))
		if err == nil && received > maxProgram {
			err = fmt.Errorf("%s is larger than %d bytes", address.Redacted(), maxProgram)
		}
		return err
	})
	if err != nil {
		return "", fmt.Errorf("download %s: %w", address.Redacted(), err)
	}
	if got := digester.Digest(); got != wanted {
		return "", errors.Join(&digestError{address: address.Redacted(), got: got, wanted: wanted}, os.Remove(file.Name()))
	}
	return file.Name(), nil
}
