// Package packagemirror is a server with the packages of npm and Python and the modules of Go, for pods of a cluster that reaches nothing
// else. It passes requests on to the registry that the machine's npm is configured for, and to the index of the machine's pip, and keeps the
// answers in the tools' cache. Modules of Go come from the machine's module cache, in which they must be.
package packagemirror

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
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
	// URL is the address of the server, without a slash at its end. NPM, GoProxy and Python are those of its registries.
	URL, NPM, GoProxy, Python string
	// OfflineNPM is the address of a registry of npm that has what was asked for at NPM before, by any test on this machine, and asks nobody.
	OfflineNPM string

	registry string // of npm, without a slash at its end
	// index returns that of Python, without a slash at its end.
	index  func() (string, error)
	dir    string // of the cache
	server *http.Server
	client *http.Client
	// files has the address of each file that a page of the index of Python named, by its name.
	files sync.Map

	mu       sync.Mutex
	archives int      // that OfflineNPM gave
	missing  []string // what OfflineNPM did not have
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
	m := &Mirror{registry: strings.TrimSuffix(registry, "/"), index: sync.OnceValues(pythonIndex), dir: filepath.Join(cache, "npm")}
	if err := m.start(listener, filepath.Join(modules, "cache", "download")); err != nil {
		return nil, err
	}
	return m, nil
}

// start serves on the listener, with the modules of Go from that directory.
func (m *Mirror) start(listener net.Listener, modules string) error {
	if err := os.MkdirAll(m.dir, 0o755); err != nil {
		return fmt.Errorf("create the cache of packages: %w", err)
	}
	m.URL, m.client = "http://"+listener.Addr().String(), &http.Client{Timeout: answerTimeout}
	m.NPM, m.OfflineNPM, m.GoProxy, m.Python = m.URL+"/npm/", m.URL+"/offline-npm/", m.URL+"/go", m.URL+pythonPages
	mux := http.NewServeMux()
	mux.Handle("/go/", http.StripPrefix("/go/", http.FileServer(http.Dir(modules))))
	mux.HandleFunc("GET /npm/", m.serve)
	mux.HandleFunc("GET /offline-npm/", m.serveOffline)
	mux.HandleFunc("GET "+pythonPages+"{project}/{$}", m.servePythonPage)
	mux.HandleFunc("GET "+pythonFiles+"{file}", m.servePythonFile)
	m.server = &http.Server{Handler: mux, ReadHeaderTimeout: time.Minute}
	go func() { _ = m.server.Serve(listener) }() // it serves until it is closed
	return nil
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

// Offline returns how many archives of packages clients of OfflineNPM have got so far, and what they asked for that it does not have.
func (m *Mirror) Offline() (archives int, missing []string) {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.archives, slices.Clone(m.missing)
}

func (m *Mirror) serve(w http.ResponseWriter, request *http.Request) {
	name := strings.TrimPrefix(request.URL.EscapedPath(), "/npm/")
	content, err := m.get(request.Context(), m.registry+"/"+name, abbreviated, isArchive(name))
	m.answer(w, name, m.NPM, content, err)
}

func (m *Mirror) serveOffline(w http.ResponseWriter, request *http.Request) {
	name := strings.TrimPrefix(request.URL.EscapedPath(), "/offline-npm/")
	content, _, err := m.kept(m.registry + "/" + name)
	m.mu.Lock()
	switch {
	case content == nil:
		m.missing = append(m.missing, name)
	case isArchive(name):
		m.archives++
	}
	m.mu.Unlock()
	m.answer(w, name, m.OfflineNPM, content, err)
}

// isArchive reports whether a path in a registry of npm is that of an archive of a package, and not of the list of its versions.
func isArchive(name string) bool { return strings.Contains(name, "/-/") }

// answer sends what the registry of npm has under the name. Lists of versions refer to the address instead of the registry.
func (m *Mirror) answer(w http.ResponseWriter, name, address string, content []byte, err error) {
	switch {
	case err != nil:
		http.Error(w, err.Error(), http.StatusBadGateway)
		return
	case content == nil:
		http.Error(w, "there is no "+name, http.StatusNotFound)
		return
	case isArchive(name):
		w.Header().Set("Content-Type", "application/octet-stream")
	default:
		w.Header().Set("Content-Type", "application/json")
		content = bytes.ReplaceAll(content, []byte(m.registry+"/"), []byte(address))
	}
	_, _ = w.Write(content) // a client that disconnects does not need the rest
}

// path returns the path of the file in the cache with what is at the address.
func (m *Mirror) path(address string) string {
	hash := sha256.Sum256([]byte(address))
	return filepath.Join(m.dir, hex.EncodeToString(hash[:16]))
}

// kept returns what the cache has of the address, and since when. It returns nil if the cache has nothing.
func (m *Mirror) kept(address string) (content []byte, age time.Duration, err error) {
	info, err := os.Stat(m.path(address))
	if errors.Is(err, fs.ErrNotExist) {
		return nil, 0, nil
	}
	if err != nil {
		return nil, 0, err
	}
	content, err = os.ReadFile(m.path(address))
	return content, time.Since(info.ModTime()), err
}

// get returns what is at the address: something that never changes, or a list of versions. It returns nil if there is nothing.
func (m *Mirror) get(ctx context.Context, address, accept string, immutable bool) ([]byte, error) {
	cached, age, err := m.kept(address)
	if err != nil {
		return nil, err
	}
	if cached != nil && (immutable || age < fresh) {
		return cached, nil
	}
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, address, nil)
	if err != nil {
		return nil, err
	}
	request.Header.Set("Accept", accept)
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
	return content, keep(m.path(address), content)
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
