package cli_test

import (
	"os"
	"os/exec"
	"path/filepath"
	"testing"
	"time"

	. "github.com/onsi/gomega"

	"github.com/stack-controller/stack-controller/tests/tools"
)

const (
	// maxSize of the binary, in bytes, and how long it may take to start at best.
	maxSize = 60 << 20
	maxTime = 50 * time.Millisecond
)

func TestBinaryIsSmallStartsAtOnceAndIsAPluginOfKubectlAndFlux(t *testing.T) {
	g := NewWithT(t)
	dir := t.TempDir()
	binary := filepath.Join(dir, "flux-pulumi")
	g.Expect(tools.Compile(t.Context(), "flux-pulumi", tools.RepositoryRoot(), "./cmd/flux-pulumi", binary,
		[]string{"-trimpath", "-buildvcs=false", "-ldflags=-s -w -X main.version=v1.2.3"}, nil)).To(Succeed())
	info, err := os.Stat(binary)
	g.Expect(err).NotTo(HaveOccurred())
	best := time.Hour
	for range 10 {
		start := time.Now()
		output, err := exec.CommandContext(t.Context(), binary, "version").Output()
		g.Expect(err).NotTo(HaveOccurred())
		g.Expect(string(output)).To(Equal("flux-pulumi v1.2.3\n"))
		best = min(best, time.Since(start))
	}
	t.Logf("%.1f MB, starts in %s", float64(info.Size())/1e6, best.Round(time.Millisecond))
	g.Expect(info.Size()).To(BeNumerically("<=", maxSize))
	g.Expect(best).To(BeNumerically("<=", maxTime))

	g.Expect(os.Symlink("flux-pulumi", filepath.Join(dir, "kubectl-pulumi"))).To(Succeed())
	kubectl, err := tools.Path(t.Context(), "kubectl", nil)
	g.Expect(err).NotTo(HaveOccurred())
	run := func(args ...string) (string, int) {
		cmd := exec.CommandContext(t.Context(), kubectl, args...)
		cmd.Env = append(os.Environ(), "PATH="+dir+string(os.PathListSeparator)+filepath.Dir(kubectl), "KUBECONFIG="+system.ControlPlane.KubeconfigPath)
		output, _ := cmd.CombinedOutput() // its exit code is checked
		return string(output), cmd.ProcessState.ExitCode()
	}
	output, code := run("pulumi", "get", "stacks", "nobody", "-n", recorded)
	g.Expect(output).To(Equal("✗ stack \"nobody\" does not exist in namespace \"apps\"\n"))
	g.Expect(code).To(Equal(1))

	script := "#!/bin/sh\nexec kubectl pulumi __complete \"$@\"\n"
	g.Expect(os.WriteFile(filepath.Join(dir, "kubectl_complete-pulumi"), []byte(script), 0o755)).To(Succeed())
	output, _ = run("__complete", "pulumi", "explain", "stack", "-n", recorded, "net")
	g.Expect(output).To(MatchRegexp("(?m)^network$"))

	flux, err := tools.Path(t.Context(), "flux", nil)
	g.Expect(err).NotTo(HaveOccurred())
	plugins := filepath.Join(dir, ".fluxcd", "plugins")
	g.Expect(os.MkdirAll(plugins, 0o700)).To(Succeed())
	g.Expect(os.Symlink(binary, filepath.Join(plugins, "flux-pulumi"))).To(Succeed())
	cmd := exec.CommandContext(t.Context(), flux, "pulumi", "get", "stacks", "network", "-n", recorded, "-o", "name")
	cmd.Env = append(os.Environ(), "HOME="+dir, "KUBECONFIG="+system.ControlPlane.KubeconfigPath)
	listed, err := cmd.CombinedOutput()
	g.Expect(err).NotTo(HaveOccurred(), "%s", listed)
	g.Expect(string(listed)).To(Equal("stack.pulumi.com/network\n"))
}
