package prebuilt

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"context"
	"debug/elf"
	"encoding/binary"
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"sync"
	"testing"
	"time"

	. "github.com/onsi/gomega"
	"github.com/opencontainers/go-digest"
)

// versions has what this test binary prints when it is run under the name of a tool.
var versions = map[string]string{"pulumi": "v3.250.0", "kubectl": "Client Version: v1.37.0\nKustomize Version: v5.8.1", "kube-apiserver": "Kubernetes v1.36.0"}

// A downloaded tool must be a program of this machine. The only one that is there without a build is the test itself.
func TestMain(m *testing.M) {
	if version, isTool := versions[filepath.Base(os.Args[0])]; isTool {
		fmt.Println(version)
		os.Exit(0)
	}
	os.Exit(m.Run())
}

// program returns the content of a program.
func program(t testing.TB) string {
	t.Helper()
	path, err := os.Executable()
	NewWithT(t).Expect(err).NotTo(HaveOccurred())
	content, err := os.ReadFile(path)
	NewWithT(t).Expect(err).NotTo(HaveOccurred())
	return string(content)
}

// headerOfProgram returns the shortest content that is a program for this machine: its header, which says that nothing follows. It cannot run.
func headerOfProgram(t testing.TB) string {
	t.Helper()
	path, err := os.Executable()
	NewWithT(t).Expect(err).NotTo(HaveOccurred())
	file, err := os.Open(path)
	NewWithT(t).Expect(err).NotTo(HaveOccurred())
	defer file.Close()
	var header elf.Header64
	NewWithT(t).Expect(binary.Read(file, binary.LittleEndian, &header)).To(Succeed())
	header.Phoff, header.Phnum, header.Shoff, header.Shnum, header.Shstrndx = 0, 0, 0, 0, 0
	var content bytes.Buffer
	NewWithT(t).Expect(binary.Write(&content, binary.LittleEndian, header)).To(Succeed())
	return content.String()
}

// forAnotherProcessor returns the same program, with the processor of the other architecture in its header.
func forAnotherProcessor(t testing.TB) string {
	t.Helper()
	other := elf.EM_AARCH64
	if runtime.GOARCH == "arm64" {
		other = elf.EM_X86_64
	}
	const machineOffset = 18 // of two bytes
	content := []byte(program(t))
	binary.LittleEndian.PutUint16(content[machineOffset:], uint16(other))
	return string(content)
}

// member is a member of an archive.
type member struct {
	name, content string
	kind          byte  // a regular file if it is 0
	size          int64 // that of the content if it is 0
}

// archived returns a tar archive, compressed with gzip.
func archived(t testing.TB, members ...member) []byte {
	t.Helper()
	g := NewWithT(t)
	var archive bytes.Buffer
	zipped, err := gzip.NewWriterLevel(&archive, gzip.BestSpeed)
	g.Expect(err).NotTo(HaveOccurred())
	writer := tar.NewWriter(zipped)
	for _, m := range members {
		header := &tar.Header{Name: m.name, Mode: 0o755, Typeflag: tar.TypeReg, Size: int64(len(m.content))}
		if m.kind != 0 {
			header.Typeflag, header.Linkname, header.Size = m.kind, m.content, 0
		}
		if m.size != 0 {
			header.Size = m.size
		}
		g.Expect(writer.WriteHeader(header)).To(Succeed())
		if header.Typeflag == tar.TypeReg {
			_, err := writer.Write([]byte(m.content))
			g.Expect(err).NotTo(HaveOccurred())
		}
	}
	_ = writer.Close() // it fails when a size was a lie
	g.Expect(zipped.Close()).To(Succeed())
	return archive.Bytes()
}

// host serves downloads on loopback, as a mirror.
type host struct {
	*httptest.Server

	mu       sync.Mutex
	files    map[string][]byte
	handlers map[string]http.HandlerFunc
	requests []string
}

func newHost(t testing.TB) *host {
	h := &host{files: map[string][]byte{}, handlers: map[string]http.HandlerFunc{}}
	h.Server = httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		h.mu.Lock()
		h.requests = append(h.requests, r.URL.Path)
		content, handler := h.files[r.URL.Path], h.handlers[r.URL.Path]
		h.mu.Unlock()
		switch {
		case handler != nil:
			handler(w, r)
		case content != nil:
			_, _ = w.Write(content)
		default:
			http.NotFound(w, r)
		}
	}))
	t.Cleanup(h.Close)
	t.Setenv(MirrorVariable, h.URL)
	return h
}

// count returns how many requests came.
func (h *host) count() int {
	h.mu.Lock()
	defer h.mu.Unlock()
	return len(h.requests)
}

// archive serves the archive as that of the tools, and returns its pin.
func (h *host) archive(tools string, archive []byte) string {
	h.files["/example.com/"+tools+".tar.gz"] = archive
	return fmt.Sprintf("%s v1.37.0 linux/%s %s https://example.com/%s.tar.gz bin/*\n", tools, runtime.GOARCH, digest.FromBytes(archive), tools)
}

// image serves the image as that of the tool, in a registry that wants a token and has the layers on another host, and returns its pin.
func (h *host) image(t testing.TB, tool string, layers ...[]byte) string {
	t.Helper()
	const token = "for-everybody"
	repository := "/registry.example.com/v2/" + tool
	behind := func(content []byte) http.HandlerFunc {
		return func(w http.ResponseWriter, r *http.Request) {
			if r.Header.Get("Authorization") != "Bearer "+token {
				w.Header().Set("WWW-Authenticate", fmt.Sprintf(`Bearer realm="%s/token",service="registry",scope="repository:%s:pull"`, h.URL, tool))
				w.WriteHeader(http.StatusUnauthorized)
				return
			}
			if content == nil {
				http.Redirect(w, r, strings.Replace(h.URL, "127.0.0.1", "localhost", 1)+"/elsewhere/"+filepath.Base(r.URL.Path), http.StatusTemporaryRedirect)
				return
			}
			_, _ = w.Write(content)
		}
	}
	h.handlers["/token"] = func(w http.ResponseWriter, r *http.Request) {
		if r.FormValue("service") != "registry" || r.FormValue("scope") != "repository:"+tool+":pull" || r.Header.Get("Authorization") != "" {
			w.WriteHeader(http.StatusForbidden)
			return
		}
		fmt.Fprintf(w, `{"token": %q}`, token)
	}
	stored := func(value any) digest.Digest {
		content, err := json.Marshal(value)
		NewWithT(t).Expect(err).NotTo(HaveOccurred())
		wanted := digest.FromBytes(content)
		h.handlers[repository+"/manifests/"+wanted.String()] = behind(content)
		return wanted
	}
	var ours manifest
	for _, layer := range layers {
		wanted := digest.FromBytes(layer)
		h.handlers[repository+"/blobs/"+wanted.String()] = behind(nil)
		h.handlers["/elsewhere/"+wanted.String()] = func(w http.ResponseWriter, r *http.Request) {
			if r.Header.Get("Authorization") != "" {
				w.WriteHeader(http.StatusBadRequest)
				return
			}
			_, _ = w.Write(layer)
		}
		ours.Layers = append(ours.Layers, descriptor{Digest: wanted, Size: int64(len(layer))})
	}
	attestation, other, real := descriptor{Digest: stored("attestation")}, descriptor{Digest: stored("other")}, descriptor{Digest: stored(ours)}
	attestation.Platform.OS, attestation.Platform.Architecture = "unknown", "unknown"
	other.Platform.OS, other.Platform.Architecture = "linux", "s390x"
	real.Platform.OS, real.Platform.Architecture = "linux", runtime.GOARCH
	index := stored(manifest{Manifests: []descriptor{attestation, other, real}})
	return fmt.Sprintf("%s v1.9.3 linux/* %s oci://registry.example.com/%s usr/local/bin/*\n", tool, index, tool)
}

// found is what a Finder did.
type found struct {
	finder   *Finder
	compiled []string
	lines    *bytes.Buffer
	mu       sync.Mutex
}

// newFinder returns a Finder with the pins, an empty cache and short waits.
func newFinder(t testing.TB, pins string) *found {
	t.Helper()
	g := NewWithT(t)
	t.Setenv("STACK_CONTROLLER_CACHE", t.TempDir())
	t.Setenv("KUBEBUILDER_ASSETS", "")
	for _, entry := range os.Environ() {
		if name, _, _ := strings.Cut(entry, "="); strings.HasPrefix(name, "TEST_ASSET_") {
			t.Setenv(name, "")
		}
	}
	if os.Getenv(WaysVariable) == "" {
		t.Setenv(WaysVariable, download+","+compile)
	}
	file := filepath.Join(t.TempDir(), "pins")
	g.Expect(os.WriteFile(file, []byte(pins), 0o600)).To(Succeed())
	f := &found{lines: &bytes.Buffer{}}
	var err error
	f.finder, err = New(file, func(line string) {
		f.mu.Lock()
		defer f.mu.Unlock()
		fmt.Fprintln(f.lines, line)
	}, func(_ context.Context, tool string) (string, error) {
		f.compiled = append(f.compiled, tool)
		return "/compiled/" + tool, nil
	})
	g.Expect(err).NotTo(HaveOccurred())
	f.finder.versionTimeout = 500 * time.Millisecond
	f.finder.fetcher, err = newFetcher(os.Getenv(MirrorVariable), limits{
		connect: time.Second, tls: time.Second, header: 300 * time.Millisecond, stall: 300 * time.Millisecond, total: time.Minute, pause: 10 * time.Millisecond,
	})
	g.Expect(err).NotTo(HaveOccurred())
	return f
}

// kept returns the names of all files in the cache but those of locks.
func kept(t testing.TB) (names []string) {
	t.Helper()
	root := filepath.Join(os.Getenv("STACK_CONTROLLER_CACHE"), "prebuilt")
	err := filepath.WalkDir(root, func(path string, entry os.DirEntry, err error) error {
		if err == nil && !entry.IsDir() && filepath.Ext(path) != ".lock" {
			names = append(names, filepath.Base(path))
		}
		return err
	})
	if !os.IsNotExist(err) {
		NewWithT(t).Expect(err).NotTo(HaveOccurred())
	}
	return names
}
