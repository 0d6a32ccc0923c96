// Package packagemirror is a server with the packages of npm and the modules of Go, for pods of a cluster that reaches nothing else. It
// passes requests for npm on to the registry that the machine's npm is configured for, and keeps the answers in the tools' cache. Modules of
// Go come from the machine's module cache, in which they must be.
package packagemirror

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync/atomic"
	"time"

	"github.com/stack-controller/stack-controller/tests/tools"
)

const (
	// maxAnswer bounds an answer of the registry, in bytes.
	maxAnswer = 256 << 20
	// fresh is how long the list of the versions of a package is used before the registry is asked again.
	fresh = time.Hour
	// answerTimeout bounds a request to the registry.
	answerTimeout = 2 * time.Minute
)

// abbreviated asks for what an installation needs of a package, which is a tenth of everything.
const abbreviated = "application/vnd.npm.install-v1+json; q=1.0, application/json; q=0.8"

// Mirror is the running server.
type Mirror struct {
	// URL is the address of the server, without a slash at its end. NPM and GoProxy are those of its two registries.
	URL, NPM, GoProxy string

	registry string // of npm, without a slash at its end
	dir      string // of the cache
	server   *http.Server
	client   *http.Client
	packages atomic.Int64
}

// Start serves on the listener until Stop.
func Start(ctx context.Context, listener net.Listener) (*Mirror, error) {
	registry, err := output(ctx, "npm", "config", "get", "registry")
	if err != nil {
		return nil, err
	}
	modules, err := output(ctx, "go", "env", "GOMODCACHE")
	if err != nil {
		return nil, err
	}
	cache, err := tools.CacheDir()
	if err != nil {
		return nil, err
	}
	m := &Mirror{
		URL: "http://" + listener.Addr().String(), registry: strings.TrimSuffix(registry, "/"), dir: filepath.Join(cache, "npm"),
		client: &http.Client{Timeout: answerTimeout},
	}
	m.NPM, m.GoProxy = m.URL+"/npm/", m.URL+"/go"
	if err := os.MkdirAll(m.dir, 0o755); err != nil {
		return nil, fmt.Errorf("create the cache of packages: %w", err)
	}
	mux := http.NewServeMux()
	mux.Handle("/go/", http.StripPrefix("/go/", http.FileServer(http.Dir(filepath.Join(modules, "cache", "download")))))
	mux.HandleFunc("GET /npm/", m.serve)
	m.server = &http.Server{Handler: mux, ReadHeaderTimeout: time.Minute}
	go func() { _ = m.server.Serve(listener) }() // it serves until it is closed
	return m, nil
}

func output(ctx context.Context, name string, args ...string) (string, error) {
	out, err := exec.CommandContext(ctx, name, args...).Output()
	if err != nil {
		return "", fmt.Errorf("%s %s: %w", name, strings.Join(args, " "), err)
	}
	return strings.TrimSpace(string(out)), nil
}

// Stop stops serving.
func (m *Mirror) Stop() { _ = m.server.Close() }

// Packages returns how many archives of packages of npm clients have got so far.
func (m *Mirror) Packages() int64 { return m.packages.Load() }

func (m *Mirror) serve(w http.ResponseWriter, request *http.Request) {
	name := strings.TrimPrefix(request.URL.EscapedPath(), "/npm/")
	archive := strings.Contains(name, "/-/")
	content, err := m.get(request.Context(), name, archive)
	switch {
	case err != nil:
		http.Error(w, err.Error(), http.StatusBadGateway)
		return
	case content == nil:
		http.NotFound(w, request)
		return
	case archive:
		m.packages.Add(1)
		w.Header().Set("Content-Type", "application/octet-stream")
	default:
		w.Header().Set("Content-Type", "application/json")
		content = bytes.ReplaceAll(content, []byte(m.registry+"/"), []byte(m.NPM))
	}
	_, _ = w.Write(content) // a client that disconnects does not need the rest
}

// get returns the archive of a package, or the list of its versions. It returns nil if there is no such package.
func (m *Mirror) get(ctx context.Context, name string, archive bool) ([]byte, error) {
	hash := sha256.Sum256([]byte(m.registry + "/" + name))
	path := filepath.Join(m.dir, hex.EncodeToString(hash[:16]))
	cached, age := []byte(nil), time.Duration(0)
	if info, err := os.Stat(path); err == nil {
		if cached, err = os.ReadFile(path); err != nil {
			return nil, err
		}
		age = time.Since(info.ModTime())
	}
	if cached != nil && (archive || age < fresh) {
		return cached, nil
	}
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, m.registry+"/"+name, nil)
	if err != nil {
		return nil, err
	}
	request.Header.Set("Accept", abbreviated)
	response, err := m.client.Do(request)
	if err != nil && cached != nil {
		return cached, nil // without the Internet, what was there has to do
	}
	if err != nil {
		return nil, err
	}
	defer response.Body.Close()
	if response.StatusCode == http.StatusNotFound {
		return nil, nil
	}
	if response.StatusCode != http.StatusOK {
		return nil, fmt.Errorf("the registry answers %s", response.Status)
	}
	content, err := io.ReadAll(io.LimitReader(response.Body, maxAnswer))
	if err != nil {
		return nil, err
	}
	return content, keep(path, content)
}

// keep writes the file in one step: other processes may read or write the same one.
func keep(path string, content []byte) error {
	staged, err := os.CreateTemp(filepath.Dir(path), ".new-")
	if err != nil {
		return err
	}
	defer os.Remove(staged.Name()) // fails after the rename
	_, err = staged.Write(content)
	if err := errors.Join(err, staged.Close()); err != nil {
		return err
	}
	return os.Rename(staged.Name(), path)
}
