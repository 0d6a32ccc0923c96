package cli

import (
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/go-logr/logr"
	. "github.com/onsi/gomega"

	"github.com/stack-controller/stack-controller/internal/file"
	"github.com/stack-controller/stack-controller/tests/tools"
)

// TestTheVersionIsReadOnceForEachProgram recognizes a version from the note, because pulumi never had that version.
func TestTheVersionIsReadOnceForEachProgram(t *testing.T) {
	g := NewWithT(t)
	real, err := tools.Path(t.Context(), "pulumi", func(line string) { t.Log(line) })
	g.Expect(err).NotTo(HaveOccurred())
	content, err := os.ReadFile(real)
	g.Expect(err).NotTo(HaveOccurred())
	dir := t.TempDir()
	program, shim, script := filepath.Join(dir, "pulumi"), filepath.Join(dir, "shim", "pulumi"), filepath.Join(dir, "script", "pulumi")
	g.Expect(os.WriteFile(program, content, 0o700)).To(Succeed())
	g.Expect(os.WriteFile(filepath.Join(dir, "manager"), content, 0o700)).To(Succeed())
	g.Expect(os.Mkdir(filepath.Dir(shim), 0o700)).To(Succeed())
	g.Expect(os.Symlink(filepath.Join(dir, "manager"), shim)).To(Succeed())
	g.Expect(os.Mkdir(filepath.Dir(script), 0o700)).To(Succeed())
	g.Expect(os.WriteFile(script, []byte("#!/bin/sh\nexec "+program+` "$@"`), 0o700)).To(Succeed())

	note := filepath.Join(dir, "version.json")
	version := func(path string) string {
		c, err := New(Options{Name: path, Dir: filepath.Join(dir, "events"), Log: logr.Discard()})
		g.Expect(err).NotTo(HaveOccurred())
		g.Expect(c.ReadVersion(t.Context(), note, dir, Environment{"PATH": os.Getenv("PATH"), "HOME": dir})).To(Succeed())
		return c.Version.String()
	}
	edit := func(from, to string) {
		content, err := os.ReadFile(note)
		g.Expect(err).NotTo(HaveOccurred())
		g.Expect(string(content)).To(ContainSubstring(from))
		g.Expect(os.WriteFile(note, []byte(strings.Replace(string(content), from, to, 1)), 0o600)).To(Succeed())
	}

	own := version(program)
	edit(own, "9.9.9")
	g.Expect(version(program)).To(Equal("9.9.9"), "it is known from before")

	g.Expect(os.Chtimes(program, time.Now(), time.Now())).To(Succeed())
	g.Expect(version(program)).To(Equal(own), "the program is another one now")

	g.Expect(os.Remove(note)).To(Succeed())
	for _, path := range []string{script, shim} {
		g.Expect(version(path)).To(Equal(own), path)
		g.Expect(note).NotTo(BeAnExistingFile(), "what %s starts can change without a sign", path)
	}

	for _, broken := range []string{"", "{", `{"version":"9.9.9"}`, noteOf(t, versionNote{Program: identity(program), Version: "none"}),
		noteOf(t, versionNote{Program: identity(program), Version: strings.Repeat("9", maxVersionNote)})} {
		g.Expect(file.Write(note, []byte(broken))).To(Succeed())
		g.Expect(version(program)).To(Equal(own), broken[:min(len(broken), 40)])
	}
}

// noteOf returns the content of a note.
func noteOf(t *testing.T, note versionNote) string {
	t.Helper()
	content, err := json.Marshal(note)
	NewWithT(t).Expect(err).NotTo(HaveOccurred())
	return string(content)
}
