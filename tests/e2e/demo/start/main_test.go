package main

import (
	"archive/tar"
	"compress/gzip"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"syscall"
	"testing"
	"time"

	. "github.com/onsi/gomega"
	"github.com/opencontainers/go-digest"

	"github.com/stack-controller/stack-controller/tests/framework/suite"
	"github.com/stack-controller/stack-controller/tests/tools"
	"github.com/stack-controller/stack-controller/tests/tools/prebuilt"
)

// makers is a directory with what makers would publish, as a mirror has it, and the pins of it.
type makers struct {
	g    Gomega
	dir  string
	pins strings.Builder
}

// put writes the file at the address, and returns its digest.
func (m *makers) put(address string, write func(io.Writer)) digest.Digest {
	staged, err := os.CreateTemp(m.dir, "staged-")
	m.g.Expect(err).NotTo(HaveOccurred())
	digester := digest.SHA256.Digester()
	write(io.MultiWriter(staged, digester.Hash()))
	m.g.Expect(staged.Close()).To(Succeed())
	path := filepath.Join(m.dir, strings.ReplaceAll(address, "DIGEST", digester.Digest().String()))
	m.g.Expect(os.MkdirAll(filepath.Dir(path), 0o700)).To(Succeed())
	m.g.Expect(os.Rename(staged.Name(), path)).To(Succeed())
	return digester.Digest()
}

// packed writes an archive with the tools, which were built from their modules, into the directory of the archive.
func (m *makers) packed(t *testing.T, directory string, names ...string) func(io.Writer) {
	return func(w io.Writer) {
		zipped, err := gzip.NewWriterLevel(w, gzip.BestSpeed)
		m.g.Expect(err).NotTo(HaveOccurred())
		archive := tar.NewWriter(zipped)
		for _, name := range names {
			path, err := tools.Path(t.Context(), name, nil)
			m.g.Expect(err).NotTo(HaveOccurred())
			content, err := os.ReadFile(path)
			m.g.Expect(err).NotTo(HaveOccurred())
			m.g.Expect(archive.WriteHeader(&tar.Header{Name: directory + name, Mode: 0o755, Size: int64(len(content))})).To(Succeed())
			_, err = archive.Write(content)
			m.g.Expect(err).NotTo(HaveOccurred())
		}
		m.g.Expect(archive.Close()).To(Succeed())
		m.g.Expect(zipped.Close()).To(Succeed())
	}
}

func (m *makers) archive(t *testing.T, host string, names ...string) {
	content := m.put(host+"/tools.tar.gz", m.packed(t, "bin/", names...))
	m.pin(t, names, "linux/"+runtime.GOARCH, content, "https://"+host+"/tools.tar.gz", "bin/*")
}

func (m *makers) image(t *testing.T, repository, name string) {
	host, path, _ := strings.Cut(repository, "/")
	base := host + "/v2/" + path
	layer := m.put(base+"/blobs/DIGEST", m.packed(t, "usr/local/bin/", name))
	written := func(value any) func(io.Writer) {
		return func(w io.Writer) { m.g.Expect(json.NewEncoder(w).Encode(value)).To(Succeed()) }
	}
	manifest := m.put(base+"/manifests/DIGEST", written(map[string]any{"layers": []any{map[string]any{"digest": layer}}}))
	index := m.put(base+"/manifests/DIGEST", written(map[string]any{"manifests": []any{
		map[string]any{"digest": manifest, "platform": map[string]any{"os": "linux", "architecture": runtime.GOARCH}}}}))
	m.pin(t, []string{name}, "linux/*", index, "oci://"+repository, "usr/local/bin/*")
}

func (m *makers) pin(t *testing.T, names []string, platform string, content digest.Digest, from, member string) {
	version, err := tools.Version(names[0])
	m.g.Expect(err).NotTo(HaveOccurred())
	fmt.Fprintln(&m.pins, strings.Join(names, ","), version, platform, content, from, member)
}

// The makers' hosts cannot be reached everywhere, so a directory with files in their forms stands in for them.
func TestDemoRunsWithDownloadsAlone(t *testing.T) {
	suite.Long(t, "the whole demo; tests/tools/prebuilt has what can go wrong with a download")
	g := NewWithT(t)
	dir := t.TempDir()
	m := &makers{g: g, dir: filepath.Join(dir, "mirror")}
	g.Expect(os.Mkdir(m.dir, 0o700)).To(Succeed())
	m.archive(t, "envtest.example.com", "kube-apiserver", "etcd", "kubectl")
	m.archive(t, "pulumi.example.com", "pulumi", "pulumi-language-yaml")
	m.image(t, "registry.example.com/kube-controller-manager", "kube-controller-manager")
	m.image(t, "registry.example.com/fluxcd/source-controller", "source-controller")
	pins := filepath.Join(dir, "pins")
	g.Expect(os.WriteFile(pins, []byte(m.pins.String()), 0o600)).To(Succeed())
	start := filepath.Join(dir, "start")
	g.Expect(tools.Compile(t.Context(), "start", tools.RepositoryRoot(), "./tests/e2e/demo/start", start, nil, nil)).To(Succeed())

	// A tool that has to be compiled after all takes longer.
	ctx, cancel := context.WithTimeout(t.Context(), 5*time.Minute)
	defer cancel()
	cmd := exec.CommandContext(ctx, start, "-pins="+pins)
	cmd.Cancel = func() error { return cmd.Process.Signal(syscall.SIGTERM) }
	cmd.WaitDelay = 30 * time.Second
	cmd.Env = append(os.Environ(), "STACK_CONTROLLER_CACHE="+filepath.Join(dir, "cache"), "STACK_CONTROLLER_TEST_PROGRAMS=", "KUBEBUILDER_ASSETS=",
		prebuilt.WaysVariable+"=download", prebuilt.MirrorVariable+"=file://"+m.dir)
	for _, name := range needed {
		cmd.Env = append(cmd.Env, tools.AssetVariable(name)+"=")
	}
	output, err := cmd.CombinedOutput()
	g.Expect(err).NotTo(HaveOccurred(), string(output))
	g.Expect(string(output)).To(SatisfyAll(
		MatchRegexp(`kube-apiserver, etcd, kubectl v\S+ +from envtest\.example\.com in `),
		MatchRegexp(`source-controller v\S+ +from registry\.example\.com in `),
		ContainSubstring(`message  "Hello, new world!"`),
		MatchRegexp(`GitRepository demo/demo .*\n +└── Stack demo/demo \(dev\)  Ready .*\n +└── Workspace demo/demo  Ready .*\n(?: +[├└]── Update demo-.*\n){2}`),
		Not(ContainSubstring("building ")),
	))
	g.Expect(filepath.Join(dir, "cache", "tools")).NotTo(BeADirectory(), "a tool was compiled")
}
