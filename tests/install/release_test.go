package install_test

import (
	"crypto/sha256"
	"encoding/hex"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	. "github.com/onsi/gomega"
	"sigs.k8s.io/yaml"

	"github.com/stack-controller/stack-controller/tests/tools"
)

// releaseFiles makes a release but for its images, and returns the directory with its files.
func releaseFiles(t *testing.T, version string) (string, error) {
	t.Helper()
	output := t.TempDir()
	for _, part := range []string{"manifests", "chart", "checksums"} {
		cmd := exec.CommandContext(t.Context(), inRepository(".ci", "release"), part)
		cmd.Dir = tools.RepositoryRoot()
		cmd.Env = append(os.Environ(), "VERSION="+version, "IMAGE_REGISTRY=registry.example.com/pulumi", "OUTPUT="+output)
		if message, err := cmd.CombinedOutput(); err != nil {
			return string(message), err
		}
	}
	return output, nil
}

// read returns a file of the release.
func read(t *testing.T, elements ...string) string {
	t.Helper()
	content, err := os.ReadFile(filepath.Join(elements...))
	NewWithT(t).Expect(err).NotTo(HaveOccurred())
	return string(content)
}

func TestAReleasePinsItsImagesWhereverItIsInstalledFrom(t *testing.T) {
	g := NewWithT(t)
	dir, err := releaseFiles(t, "v1.2.3-rc.1")
	g.Expect(err).NotTo(HaveOccurred(), dir)

	released, err := run(t.Context(), "helm", "template", "stack-controller", filepath.Join(dir, "stack-controller-1.2.3-rc.1.tgz"),
		"--namespace=flux-system", "--kube-version=1.36.0")
	g.Expect(err).NotTo(HaveOccurred())
	unpacked := t.TempDir()
	output, err := exec.CommandContext(t.Context(), "tar", "-xzf", filepath.Join(dir, "manifests.tar.gz"), "-C", unpacked).CombinedOutput()
	g.Expect(err).NotTo(HaveOccurred(), string(output))

	for way, rendered := range map[string]objects{
		"install.yaml": decode(t, read(t, dir, "install.yaml")),
		"the chart":    decode(t, released),
		"manifests":    kustomize(t, filepath.Join(unpacked, "default")),
	} {
		deployment := rendered.get(t, "Deployment", "stack-controller")
		g.Expect(manager(t, deployment, "image")).To(Equal("registry.example.com/pulumi/stack-controller:v1.2.3-rc.1"), way)
		g.Expect(environment(t, deployment, "AGENT_IMAGE")).To(Equal("registry.example.com/pulumi/stack-controller-agent:v1.2.3-rc.1"), way)
		g.Expect(rendered.names()).To(ContainElement("CustomResourceDefinition stacks.pulumi.com"), way)
		// Deleting what was installed must not delete Flux.
		g.Expect(rendered.names()).NotTo(ContainElement(HavePrefix("Namespace ")), way)
	}
	for _, name := range decode(t, read(t, dir, "crds.yaml")).names() {
		g.Expect(name).To(HavePrefix("CustomResourceDefinition "))
	}

	metadata, err := run(t.Context(), "helm", "show", "chart", filepath.Join(dir, "stack-controller-1.2.3-rc.1.tgz"))
	g.Expect(err).NotTo(HaveOccurred())
	var versions struct{ Version, AppVersion string }
	g.Expect(yaml.Unmarshal([]byte(metadata), &versions)).To(Succeed())
	g.Expect(versions).To(Equal(struct{ Version, AppVersion string }{"1.2.3-rc.1", "v1.2.3-rc.1"}))
}

func TestTheSameSourceGivesTheSameRelease(t *testing.T) {
	g := NewWithT(t)
	first, err := releaseFiles(t, "v1.2.3")
	g.Expect(err).NotTo(HaveOccurred(), first)
	second, err := releaseFiles(t, "v1.2.3")
	g.Expect(err).NotTo(HaveOccurred(), second)

	sums := read(t, first, "checksums.txt")
	g.Expect(read(t, second, "checksums.txt")).To(Equal(sums))
	lines := strings.Split(strings.TrimSpace(sums), "\n")
	g.Expect(lines).To(HaveLen(4))
	for _, line := range lines {
		sum, name, found := strings.Cut(line, "  ")
		g.Expect(found).To(BeTrue(), line)
		digest := sha256.Sum256([]byte(read(t, first, name)))
		g.Expect(hex.EncodeToString(digest[:])).To(Equal(sum), name)
	}
}

func TestAReleaseNeedsAVersion(t *testing.T) {
	for _, version := range []string{"1.2.3", "v1.2", "latest", "v1.2.3+build", "v1.2.3|rm"} {
		t.Run(version, func(t *testing.T) {
			message, err := releaseFiles(t, version)
			g := NewWithT(t)
			g.Expect(err).To(HaveOccurred())
			g.Expect(message).To(ContainSubstring("VERSION must be"))
		})
	}
}
