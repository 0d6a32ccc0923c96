package install_test

import (
	"bytes"
	"compress/gzip"
	"context"
	"crypto/sha256"
	"encoding/base64"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	. "github.com/onsi/gomega"
	"sigs.k8s.io/yaml"

	"github.com/stack-controller/stack-controller/tests/framework/suite"
	"github.com/stack-controller/stack-controller/tests/tools"
)

const registry = "registry.example.com/pulumi/"

// The digests of the pushed images.
var (
	controllerDigest = "sha256:" + strings.Repeat("1", 64)
	agentDigest      = "sha256:" + strings.Repeat("2", 64)
)

// releaseFiles makes a release without its images. It returns the directory of the files, or the output if that fails. If pushed is not
// empty, the images count as pushed with that version.
func releaseFiles(t *testing.T, version, pushed string) (string, error) {
	t.Helper()
	output := t.TempDir()
	if pushed != "" {
		references := fmt.Sprintf("%[1]sstack-controller:%[2]s@%[3]s\n%[1]sstack-controller-agent:%[2]s@%[4]s\n", registry, pushed, controllerDigest, agentDigest)
		NewWithT(t).Expect(os.WriteFile(filepath.Join(output, "images.txt"), []byte(references), 0o600)).To(Succeed())
	}
	cmd := exec.CommandContext(t.Context(), inRepository(".ci", "release"), "manifests", "chart", "checksums")
	cmd.Dir = tools.RepositoryRoot()
	cmd.Env = append(os.Environ(), "VERSION="+version, "IMAGE_REGISTRY="+strings.TrimSuffix(registry, "/"), "OUTPUT="+output)
	if message, err := cmd.CombinedOutput(); err != nil {
		return string(message), err
	}
	return output, nil
}

// namedVersion returns the version of the release that pages and files for readers install.
func namedVersion(t *testing.T) string {
	t.Helper()
	_, rest, found := strings.Cut(read(t, inRepository("config", "pulumi", "Pulumi.yaml")), "/releases/download/")
	NewWithT(t).Expect(found).To(BeTrue())
	version, _, _ := strings.Cut(rest, "/")
	return version
}

// unpack unpacks the manifests of the release in the directory and returns the directory with the unpacked files.
func unpack(t *testing.T, dir string) string {
	t.Helper()
	unpacked := t.TempDir()
	output, err := exec.CommandContext(t.Context(), "tar", "-xzf", filepath.Join(dir, "manifests.tar.gz"), "-C", unpacked).CombinedOutput()
	NewWithT(t).Expect(err).NotTo(HaveOccurred(), string(output))
	return unpacked
}

// read returns the content of a file. The elements are joined to its path.
func read(t *testing.T, elements ...string) string {
	t.Helper()
	content, err := os.ReadFile(filepath.Join(elements...))
	NewWithT(t).Expect(err).NotTo(HaveOccurred())
	return string(content)
}

func TestAReleasePinsItsImagesWhereverItIsInstalledFrom(t *testing.T) {
	suite.Long(t, "builds a release; see TestTheChartInstallsWhatKustomizeInstalls")
	t.Parallel()
	g := NewWithT(t)
	const version = "v1.2.3-rc.1"
	dir, err := releaseFiles(t, version, version)
	g.Expect(err).NotTo(HaveOccurred(), dir)

	released, err := run(t.Context(), "helm", "template", "stack-controller", filepath.Join(dir, "stack-controller-1.2.3-rc.1.tgz"),
		"--namespace=flux-system", "--kube-version=1.36.0")
	g.Expect(err).NotTo(HaveOccurred())

	for way, rendered := range map[string]objects{
		"install.yaml": decode(t, read(t, dir, "install.yaml")),
		"the chart":    decode(t, released),
		"manifests":    kustomize(t, filepath.Join(unpack(t, dir), "default")),
	} {
		deployment := rendered.get(t, "Deployment", "stack-controller")
		g.Expect(manager(t, deployment, "image")).To(Equal(registry+"stack-controller:"+version+"@"+controllerDigest), way)
		g.Expect(environment(t, deployment, "AGENT_IMAGE")).To(Equal(registry+"stack-controller-agent:"+version+"@"+agentDigest), way)
		g.Expect(rendered.names()).To(ContainElement("CustomResourceDefinition stacks.pulumi.com"), way)
		// Deleting the installation must not delete Flux.
		g.Expect(rendered.names()).NotTo(ContainElement(HavePrefix("Namespace ")), way)
	}
	// As spec.components of a Flux Kustomization does.
	unpacked := unpack(t, dir)
	overlay := "resources: [default]\ncomponents: [mutual-tls]\n"
	g.Expect(os.WriteFile(filepath.Join(unpacked, "kustomization.yaml"), []byte(overlay), 0o600)).To(Succeed())
	g.Expect(manager(t, kustomize(t, unpacked).get(t, "Deployment", "stack-controller"), "args")).To(
		ContainElement(HavePrefix("--authorized-artifact-server-spiffe-id=")))

	for _, name := range decode(t, read(t, dir, "crds.yaml")).names() {
		g.Expect(name).To(HavePrefix("CustomResourceDefinition "))
	}

	metadata, err := run(t.Context(), "helm", "show", "chart", filepath.Join(dir, "stack-controller-1.2.3-rc.1.tgz"))
	g.Expect(err).NotTo(HaveOccurred())
	var versions struct{ Version, AppVersion string }
	g.Expect(yaml.Unmarshal([]byte(metadata), &versions)).To(Succeed())
	g.Expect(versions).To(Equal(struct{ Version, AppVersion string }{"1.2.3-rc.1", "v1.2.3-rc.1"}))
	var shown struct{ Annotations map[string]string }
	g.Expect(yaml.Unmarshal([]byte(metadata), &shown)).To(Succeed())
	g.Expect(shown.Annotations).To(HaveKeyWithValue("artifacthub.io/prerelease", "true"))
	g.Expect(shown.Annotations["artifacthub.io/images"]).To(MatchYAML(`[
		{name: controller, image: "` + registry + `stack-controller:` + version + `@` + controllerDigest + `"},
		{name: agent, image: "` + registry + `stack-controller-agent:` + version + `@` + agentDigest + `"}]`))
	readme, err := run(t.Context(), "helm", "show", "readme", filepath.Join(dir, "stack-controller-1.2.3-rc.1.tgz"))
	g.Expect(err).NotTo(HaveOccurred())
	g.Expect(readme).To(ContainSubstring("helm install stack-controller oci://" + registry + "charts/stack-controller"))
}

func TestAnotherTagThanThatOfTheReleaseHasNoneOfItsDigests(t *testing.T) {
	suite.Long(t, "further ways to install")
	t.Parallel()
	g := NewWithT(t)
	dir, err := releaseFiles(t, "v1.2.3", "v1.2.3")
	g.Expect(err).NotTo(HaveOccurred(), dir)

	overridden, err := run(t.Context(), "helm", "template", "stack-controller", filepath.Join(dir, "stack-controller-1.2.3.tgz"),
		"--namespace=flux-system", "--kube-version=1.36.0", "--set=image.tag=v2,agentImage.tag=v2,image.registry=mirror.example.com,image.repository=a")
	g.Expect(err).NotTo(HaveOccurred())
	unpacked := unpack(t, dir)
	overlay := `{resources: [default], images: [{name: "` + registry + `stack-controller", newName: mirror.example.com/a, newTag: v2},
		{name: "` + registry + `stack-controller-agent", newTag: v2}]}`
	g.Expect(os.WriteFile(filepath.Join(unpacked, "kustomization.yaml"), []byte(overlay), 0o600)).To(Succeed())

	for way, rendered := range map[string]objects{"the chart": decode(t, overridden), "manifests": kustomize(t, unpacked)} {
		deployment := rendered.get(t, "Deployment", "stack-controller")
		g.Expect(manager(t, deployment, "image")).To(Equal("mirror.example.com/a:v2"), way)
		g.Expect(environment(t, deployment, "AGENT_IMAGE")).To(Equal(registry+"stack-controller-agent:v2"), way)
	}
}

// TestAMirrorNeedsOnlyItsNameAndKeepsTheDigests takes the names of the images from the comment of flux.yaml, which has them for
// spec.images. Flux adds these to the kustomization.yaml of its path, as the overlay does.
func TestAMirrorNeedsOnlyItsNameAndKeepsTheDigests(t *testing.T) {
	suite.Long(t, "further ways to install")
	t.Parallel()
	g := NewWithT(t)
	dir, err := releaseFiles(t, "v1.2.3", "v1.2.3")
	g.Expect(err).NotTo(HaveOccurred(), dir)

	_, images, found := strings.Cut(read(t, dir, "flux.yaml"), "  # images:\n")
	g.Expect(found).To(BeTrue())
	images, _, _ = strings.Cut(images, "  prune:")
	overlay := "resources: [default]\nimages:\n" + strings.ReplaceAll(images, "  # ", "")
	unpacked := unpack(t, dir)
	g.Expect(os.WriteFile(filepath.Join(unpacked, "kustomization.yaml"), []byte(overlay), 0o600)).To(Succeed())
	expectImages := func(rendered objects, mirror string) {
		deployment := rendered.get(t, "Deployment", "stack-controller")
		g.Expect(manager(t, deployment, "image")).To(Equal(mirror + "stack-controller:v1.2.3@" + controllerDigest))
		g.Expect(environment(t, deployment, "AGENT_IMAGE")).To(Equal(mirror + "stack-controller-agent:v1.2.3@" + agentDigest))
	}
	expectImages(kustomize(t, unpacked), "mirror.example.com/")

	for setting, mirror := range map[string]string{"mirror.example.com:5000": "mirror.example.com:5000/pulumi/", "mirror.example.com/proxy": "mirror.example.com/proxy/pulumi/"} {
		rendered, err := run(t.Context(), "helm", "template", "stack-controller", filepath.Join(dir, "stack-controller-1.2.3.tgz"),
			"--namespace=flux-system", "--kube-version=1.36.0", "--set=image.registry="+setting+",agentImage.registry="+setting)
		g.Expect(err).NotTo(HaveOccurred())
		expectImages(decode(t, rendered), mirror)
	}
}

func TestImagesOfAnotherVersionAreNotReleased(t *testing.T) {
	t.Parallel()
	g := NewWithT(t)
	message, err := releaseFiles(t, "v1.2.3", "v1.2.2")
	g.Expect(err).To(HaveOccurred())
	g.Expect(message).To(ContainSubstring("images.txt has no " + registry + "stack-controller:v1.2.3"))
}

func TestTheSameSourceGivesTheSameRelease(t *testing.T) {
	suite.Long(t, "builds the release twice")
	t.Parallel()
	g := NewWithT(t)
	first, err := releaseFiles(t, "v1.2.3", "")
	g.Expect(err).NotTo(HaveOccurred(), first)
	second, err := releaseFiles(t, "v1.2.3", "")
	g.Expect(err).NotTo(HaveOccurred(), second)

	sums := read(t, first, "checksums.txt")
	g.Expect(read(t, second, "checksums.txt")).To(Equal(sums))
	lines := strings.Split(strings.TrimSpace(sums), "\n")
	g.Expect(lines).To(HaveLen(7))
	for _, line := range lines {
		sum, name, found := strings.Cut(line, "  ")
		g.Expect(found).To(BeTrue(), line)
		digest := sha256.Sum256([]byte(read(t, first, name)))
		g.Expect(hex.EncodeToString(digest[:])).To(Equal(sum), name)
	}
}

func TestAReleaseNeedsAVersion(t *testing.T) {
	t.Parallel()
	for _, version := range []string{"1.2.3", "v1.2", "latest", "v1.2.3+build", "v1.2.3|rm"} {
		t.Run(version, func(t *testing.T) {
			message, err := releaseFiles(t, version, "")
			g := NewWithT(t)
			g.Expect(err).To(HaveOccurred())
			g.Expect(message).To(ContainSubstring("VERSION must be"))
		})
	}
}

// releaseSize returns how many bytes Helm stores for a release. It follows what Helm does: the chart's files and the rendered manifest, as
// JSON, compressed and encoded twice.
func releaseSize(ctx context.Context) (int, error) {
	manifest, err := helmTemplate(ctx)
	if err != nil {
		return 0, err
	}
	type file struct {
		Name string `json:"name"`
		Data []byte `json:"data"`
	}
	release := struct {
		Files    []file `json:"files"`
		Manifest string `json:"manifest"`
	}{Manifest: manifest}
	err = filepath.WalkDir(chart(), func(path string, entry fs.DirEntry, err error) error {
		if err != nil || entry.IsDir() {
			return err
		}
		content, err := os.ReadFile(path)
		release.Files = append(release.Files, file{Name: path, Data: content})
		return err
	})
	if err != nil {
		return 0, fmt.Errorf("read the chart: %w", err)
	}
	encoded, err := json.Marshal(release)
	if err != nil {
		return 0, fmt.Errorf("encode the release: %w", err)
	}
	var compressed bytes.Buffer
	writer, err := gzip.NewWriterLevel(&compressed, gzip.BestCompression)
	if err != nil {
		return 0, fmt.Errorf("compress the release: %w", err)
	}
	if _, err := writer.Write(encoded); err != nil {
		return 0, fmt.Errorf("compress the release: %w", err)
	}
	if err := writer.Close(); err != nil {
		return 0, fmt.Errorf("compress the release: %w", err)
	}
	// A Secret holds Helm's base64 text, and the API server counts the bytes of that value.
	return base64.StdEncoding.EncodedLen(compressed.Len()), nil
}
