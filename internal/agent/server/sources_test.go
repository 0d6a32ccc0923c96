package server

import (
	"errors"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"testing"

	. "github.com/onsi/gomega"

	"github.com/stack-controller/stack-controller/internal/agent/agentpb"
	"github.com/stack-controller/stack-controller/internal/agent/client"
)

// openTree opens the sources in the directory like an agent that starts.
func openTree(t *testing.T, dir string) *sources {
	t.Helper()
	root, err := os.OpenRoot(dir)
	NewWithT(t).Expect(err).NotTo(HaveOccurred())
	t.Cleanup(func() { _ = root.Close() })
	s, err := openSources(root, &Options{Log: slog.New(slog.DiscardHandler), Workspace: dir})
	NewWithT(t).Expect(err).NotTo(HaveOccurred())
	return s
}

// write makes files below dir.
func write(t *testing.T, dir string, files map[string]string) {
	t.Helper()
	for name, content := range files {
		path := filepath.Join(dir, name)
		if err := errors.Join(os.MkdirAll(filepath.Dir(path), 0o700), os.WriteFile(path, []byte(content), 0o600)); err != nil {
			t.Fatal(err)
		}
	}
}

// list returns the files below dir with their content.
func list(t *testing.T, dir string) map[string]string {
	t.Helper()
	files := map[string]string{}
	err := fs.WalkDir(os.DirFS(dir), ".", func(path string, entry fs.DirEntry, err error) error {
		if err != nil || !entry.Type().IsRegular() {
			return err
		}
		content, err := os.ReadFile(filepath.Join(dir, path))
		files[path] = string(content)
		return err
	})
	NewWithT(t).Expect(err).NotTo(HaveOccurred())
	return files
}

func TestTheSourceSurvivesARestart(t *testing.T) {
	dir := t.TempDir()
	a := startAgent(t, dir)
	source := pack(t, map[string]string{"Pulumi.yaml": projectYAML})
	a.Expect(a.push(source)).To(Succeed())
	a.Expect(a.stop()).To(Succeed())
	a.Expect(startAgent(t, dir).GetInfo(t.Context())).To(HaveField("SourceDigest", source.digest))
}

func TestAMarkerThatCannotBeTrustedIsNoSource(t *testing.T) {
	good := pack(t, map[string]string{"Pulumi.yaml": projectYAML}).digest
	tests := []struct{ name, content string }{
		{"of an earlier boot", good + "\n6f8f7c5e-0000-4000-8000-000000000000\n"},
		{"of no boot", good + "\n\n"},
		{"half", good},
		{"no digest", "sha256:123\n" + bootID() + "\n"},
		{"empty", ""},
		{"huge", good + "\n" + bootID() + strings.Repeat("\n", maxMarkerSize)},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			g := NewWithT(t)
			dir := t.TempDir()
			write(t, dir, map[string]string{"source/Pulumi.yaml": projectYAML, markerName: tt.content})
			a := startAgent(t, dir)
			g.Expect(a.StartOperation(t.Context(), update("a", good, ""))).Error().To(MatchError(client.ErrSourceMissing))
		})
	}
}

func TestAnAgentThatEndsWhileItReplacesTheSourceAsksForItAgain(t *testing.T) {
	const steps = 6
	old := pack(t, map[string]string{"Pulumi.yaml": projectYAML, "app/package.json": "{}"})
	next := pack(t, map[string]string{"Pulumi.yaml": projectYAML, "app/package.json": "{}", "new": ""})
	for done := range steps + 1 {
		t.Run(string(rune('0'+done))+" steps done", func(t *testing.T) {
			g := NewWithT(t)
			dir := t.TempDir()
			a := startAgent(t, dir)
			g.Expect(a.push(old)).To(Succeed())
			g.Expect(a.stop()).To(Succeed())
			write(t, dir, map[string]string{"source/app/node_modules/dep/index.js": "installed"})

			s := openTree(t, dir)
			write(t, dir, map[string]string{
				incomingTree + "/Pulumi.yaml": projectYAML, incomingTree + "/app/package.json": "{}", incomingTree + "/new": "",
			})
			swap := s.swap(next.digest)
			g.Expect(swap).To(HaveLen(steps))
			for _, step := range swap[:done] {
				g.Expect(step()).To(Succeed())
			}

			// The next agent reports a source only if the source is complete.
			a = startAgent(t, dir)
			info, err := a.GetInfo(t.Context())
			g.Expect(err).NotTo(HaveOccurred())
			switch done {
			case 0:
				g.Expect(info.GetSourceDigest()).To(Equal(old.digest))
			case steps:
				g.Expect(info.GetSourceDigest()).To(Equal(next.digest))
			default:
				g.Expect(info.GetSourceDigest()).To(BeEmpty())
			}
			g.Expect(a.push(next)).To(Succeed())
			g.Expect(list(t, filepath.Join(dir, "source"))).To(Equal(map[string]string{
				"Pulumi.yaml": projectYAML, "app/package.json": "{}", "new": "", "app/node_modules/dep/index.js": "installed",
			}))
			g.Expect(filepath.Join(dir, oldName)).NotTo(BeAnExistingFile())
			g.Expect(filepath.Join(dir, incomingName)).NotTo(BeAnExistingFile())
		})
	}
}

func TestInstalledDependenciesAreKept(t *testing.T) {
	dir := t.TempDir()
	a := startAgent(t, dir)
	a.Expect(a.push(pack(t, map[string]string{
		"Pulumi.yaml": projectYAML, "app/x": "", "gone/x": "", "own/venv/x": "old", "file/x": "", "vendor/x": "",
	}))).To(Succeed())
	outside := t.TempDir()
	write(t, outside, map[string]string{"secret": "x"})
	write(t, filepath.Join(dir, "source"), map[string]string{
		".venv/bin/python": "python", "app/node_modules/dep/index.js": "dep", "app/node_modules/dep/node_modules/in.js": "in",
		"gone/node_modules/x": "x", "file/venv/x": "x", "sdks/random/x": "sdk", "generated": "not kept", "vendor/generated": "not kept",
	})
	a.Expect(os.Symlink(outside, filepath.Join(dir, "source", "venv"))).To(Succeed())
	a.Expect(os.Symlink("../app", filepath.Join(dir, "source", "own", "link"))).To(Succeed())
	a.Expect(a.push(pack(t, map[string]string{
		"Pulumi.yaml": projectYAML, "app/x": "new", "own/venv/x": "new", "file": "a file now", "vendor/x": "",
	}))).To(Succeed())
	a.Expect(list(t, filepath.Join(dir, "source"))).To(Equal(map[string]string{
		"Pulumi.yaml": projectYAML, "app/x": "new", "own/venv/x": "new", "file": "a file now", "vendor/x": "",
		".venv/bin/python": "python", "app/node_modules/dep/index.js": "dep", "app/node_modules/dep/node_modules/in.js": "in",
		"sdks/random/x": "sdk",
	}))
	a.Expect(filepath.Join(dir, "source", "venv")).NotTo(BeAnExistingFile())
	a.Expect(filepath.Join(outside, "secret")).To(BeARegularFile())
}

func TestTheSourceIsForItsOwnerOnly(t *testing.T) {
	a := startAgent(t, t.TempDir())
	a.Expect(a.push(pack(t, map[string]string{"Pulumi.yaml": projectYAML}))).To(Succeed())
	a.start("a")
	a.finish("a", &agentpb.Operation{State: succeeded})
	for _, name := range []string{"source", "source/Pulumi.yaml", markerName, "operations"} {
		info, err := os.Stat(filepath.Join(a.dir, name))
		a.Expect(err).NotTo(HaveOccurred())
		a.Expect(info.Mode().Perm()&0o077).To(BeZero(), name)
	}
}
