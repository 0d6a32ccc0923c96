package images

import (
	"bytes"
	"debug/elf"
	"encoding/json"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"testing"

	. "github.com/onsi/gomega"

	"github.com/stack-controller/stack-controller/tests/framework/suite"
	"github.com/stack-controller/stack-controller/tests/tools"
)

// releaseVersion is the version that the tests release.
const releaseVersion = "v1.2.3"

var released = []struct {
	name, program, imports string
	version                []string // arguments that print the version
}{
	{name: "stack-controller", program: "stack-controller", imports: "sigs.k8s.io/controller-runtime", version: []string{"--version"}},
	{name: "stack-controller-agent", program: "agent", imports: "github.com/pulumi/pulumi/sdk/v3", version: []string{"version"}},
}

// makeRelease runs make for a target with the variables and the base image. It returns the directory of the files or, if make fails, the
// end of its output.
func makeRelease(t *testing.T, target, base string, variables ...string) (string, error) {
	t.Helper()
	output := t.TempDir()
	variables = append(variables, "VERSION="+releaseVersion, "OUTPUT="+output)
	cmd := exec.CommandContext(t.Context(), "make", append(variables, target)...)
	cmd.Dir = tools.RepositoryRoot()
	cmd.Env = append(os.Environ(), "KO_DEFAULTBASEIMAGE="+base)
	if log, err := cmd.CombinedOutput(); err != nil {
		return string(log[max(0, len(log)-failureTail):]), err
	}
	return output, nil
}

func startRegistry(t *testing.T, architectures ...string) *registry {
	t.Helper()
	g := NewWithT(t)
	b, err := newBase(architectures...)
	g.Expect(err).NotTo(HaveOccurred())
	r, err := serve(b)
	g.Expect(err).NotTo(HaveOccurred())
	t.Cleanup(func() { g.Expect(r.Close()).To(Succeed()) })
	return r
}

func TestReleaseHasEveryPlatformWithItsBillOfMaterials(t *testing.T) {
	suite.Long(t, "builds images")
	output, err := makeRelease(t, "images", startRegistry(t, "amd64", "arm64").baseReference(), "IMAGE_REGISTRY=")
	NewWithT(t).Expect(err).NotTo(HaveOccurred(), output)
	machines := map[string]elf.Machine{"amd64": elf.EM_X86_64, "arm64": elf.EM_AARCH64}
	for _, want := range released {
		t.Run(want.name, func(t *testing.T) {
			g := NewWithT(t)
			images := readLayout(t, filepath.Join(output, "images", want.name))
			g.Expect(images).To(HaveLen(len(machines)))
			for architecture, machine := range machines {
				image := images[architecture]
				g.Expect(image.config.Architecture).To(Equal(architecture))
				g.Expect(image.config.Config.User).To(Equal(productUser))
				g.Expect(image.config.Config.Entrypoint).To(Equal([]string{"/ko-app/" + want.program}))
				program := image.files(t)["/ko-app/"+want.program].content
				parsed, err := elf.NewFile(bytes.NewReader(program))
				g.Expect(err).NotTo(HaveOccurred())
				g.Expect(parsed.Machine).To(Equal(machine))
				if architecture == runtime.GOARCH {
					g.Expect(runProgram(t, program, want.version...)).To(Equal(releaseVersion + "\n"))
				}
				g.Expect(billOfMaterials(t, output, want.name+".linux-"+architecture)).To(ContainElements(want.imports, "github.com/stack-controller/stack-controller"))
			}
		})
	}
}

func TestReleaseIsNamedByItsDigestAndGetsItsVersionLast(t *testing.T) {
	suite.Long(t, "builds images")
	g := NewWithT(t)
	r := startRegistry(t, runtime.GOARCH)
	// One platform is enough for this test.
	t.Setenv("PLATFORMS", "linux/"+runtime.GOARCH)
	t.Setenv("CLI_PLATFORMS", "linux/"+runtime.GOARCH)
	output, err := makeRelease(t, "release", r.baseReference(), "IMAGE_REGISTRY="+r.address+"/flux", "CANDIDATE=1")
	g.Expect(err).NotTo(HaveOccurred(), output)
	for tag := range r.tags {
		g.Expect(tag).To(Or(ContainSubstring(":candidate-"), ContainSubstring(":sha256-")), "nobody may follow what is not signed")
	}
	log, err := exec.CommandContext(t.Context(), filepath.Join(tools.RepositoryRoot(), ".ci", "name"), output).CombinedOutput()
	g.Expect(err).NotTo(HaveOccurred(), string(log))
	read := func(name string) string {
		content, err := os.ReadFile(filepath.Join(output, name))
		g.Expect(err).NotTo(HaveOccurred())
		return string(content)
	}

	var references []string
	for _, name := range []string{"stack-controller:" + releaseVersion, "stack-controller-agent:" + releaseVersion,
		"manifests:" + releaseVersion, "charts/stack-controller:" + strings.TrimPrefix(releaseVersion, "v")} {
		g.Expect(r.tags).To(HaveKey("flux/" + name))
		references = append(references, r.address+"/flux/"+name+"@"+r.tags["flux/"+name])
	}
	g.Expect(strings.Fields(read("images.txt"))).To(Equal(references))
	for n, want := range released {
		g.Expect(read("install.yaml")).To(ContainSubstring(" " + references[n] + "\n"))
		bill := strings.Replace(r.tags["flux/"+want.name+":"+releaseVersion], ":", "-", 1) + ".sbom"
		g.Expect(r.tags).To(HaveKey("flux/" + want.name + ":" + bill))
	}
	// Building the images again from this source gives the same digests.
	rebuilt, err := makeRelease(t, "images", r.baseReference(), "IMAGE_REGISTRY=")
	g.Expect(err).NotTo(HaveOccurred(), rebuilt)
	for n, want := range released {
		layout, err := os.ReadFile(filepath.Join(rebuilt, "images", want.name, "index.json"))
		g.Expect(err).NotTo(HaveOccurred())
		_, digest, _ := strings.Cut(references[n], "@")
		g.Expect(string(layout)).To(ContainSubstring(`"` + digest + `"`))
	}
	// The files of a release on GitHub are not in directories, and checksums.txt lists all of them.
	files, err := os.ReadDir(output)
	g.Expect(err).NotTo(HaveOccurred())
	names, sums := []string{}, []string{"checksums.txt"}
	for _, file := range files {
		names = append(names, file.Name())
	}
	for line := range strings.Lines(read("checksums.txt")) {
		_, name, _ := strings.Cut(strings.TrimSpace(line), "  ")
		sums = append(sums, name)
	}
	g.Expect(names).To(ConsistOf(promisedFiles(t, "linux", runtime.GOARCH)))
	g.Expect(sums).To(ConsistOf(names))
}

// promisedFiles returns the names of the files that the guide promises of a release, with the images and the command line for one platform, and without
// the signatures, which only the workflow makes.
func promisedFiles(t *testing.T, system, architecture string) (names []string) {
	t.Helper()
	g := NewWithT(t)
	guide, err := os.ReadFile(filepath.Join(tools.RepositoryRoot(), "docs", "guides", "installation.md"))
	g.Expect(err).NotTo(HaveOccurred())
	_, table, found := strings.Cut(string(guide), "\nA release has these files:\n\n| file | content |\n|---|---|\n")
	g.Expect(found).To(BeTrue())
	table, _, _ = strings.Cut(table, "\n\n")
	placeholders := strings.NewReplacer("VERSION", strings.TrimPrefix(releaseVersion, "v"), "SYSTEM", system, "ARCHITECTURE", architecture,
		"PLATFORM", system+"-"+architecture)
	for row := range strings.SplitSeq(table, "\n") {
		for name := range strings.SplitSeq(strings.Split(row, "|")[1], ",") {
			name = placeholders.Replace(strings.Trim(name, " `"))
			switch kind, ofImages := strings.CutPrefix(name, "NAME."); {
			case ofImages:
				for _, image := range released {
					names = append(names, image.name+"."+kind)
				}
			case !strings.HasSuffix(name, ".sigstore.json"):
				names = append(names, name)
			}
		}
	}
	return names
}

func TestNothingIsPushedThatIsBasedOnATag(t *testing.T) {
	g := NewWithT(t)
	message, err := makeRelease(t, "images", "registry.example.com/base:latest", "IMAGE_REGISTRY=registry.example.com/flux")
	g.Expect(err).To(HaveOccurred())
	g.Expect(message).To(ContainSubstring("must name the base image with its digest"))
}

func TestImagesOfTheSourceTreeRunAsTheReleaseDoes(t *testing.T) {
	suite.Long(t, "builds images")
	for n, build := range []func(t *testing.T) (Image, error){
		func(t *testing.T) (Image, error) { return Controller(t.Context(), nil) },
		func(t *testing.T) (Image, error) { return Agent(t.Context(), nil) },
	} {
		want := released[n]
		t.Run(want.name, func(t *testing.T) {
			g := NewWithT(t)
			found, err := build(t)
			g.Expect(err).NotTo(HaveOccurred())
			g.Expect(found.Reference).To(Equal("stack-controller/" + want.name + ":test"))
			image := readImage(t, found.Tar)
			g.Expect(image.references).To(Equal([]string{found.Reference}))
			g.Expect(image.config.Config.User).To(Equal(productUser))
			g.Expect(image.config.Config.Entrypoint).To(Equal([]string{"/ko-app/" + want.program}))
			program := image.files(t)["/ko-app/"+want.program].content
			g.Expect(runProgram(t, program, want.version...)).To(Equal(productVersion + "\n"))
		})
	}
}

func TestImageOfAnotherSourceIsAnotherImage(t *testing.T) {
	g := NewWithT(t)
	dir := t.TempDir()
	file := filepath.Join(dir, "main.go")
	g.Expect(os.WriteFile(file, []byte("package main"), 0o600)).To(Succeed())
	before, err := hashFiles(dir, []string{file})
	g.Expect(err).NotTo(HaveOccurred())
	g.Expect(hashFiles(dir, []string{file})).To(Equal(before))
	g.Expect(os.WriteFile(file, []byte("package other"), 0o600)).To(Succeed())
	g.Expect(hashFiles(dir, []string{file})).NotTo(Equal(before))
}

// readLayout reads the images of a directory in the OCI layout.
func readLayout(t *testing.T, dir string) map[string]storedImage {
	t.Helper()
	g := NewWithT(t)
	content, err := os.ReadFile(filepath.Join(dir, "index.json"))
	g.Expect(err).NotTo(HaveOccurred())
	var list index
	g.Expect(json.Unmarshal(content, &list)).To(Succeed())
	g.Expect(list.Manifests).To(HaveLen(1))
	return readPlatforms(t, list.Manifests[0].Digest, func(digest string) []byte {
		content, err := os.ReadFile(filepath.Join(dir, "blobs", strings.Replace(digest, ":", "/", 1)))
		g.Expect(err).NotTo(HaveOccurred())
		g.Expect(digestPrefix + hashOf(content)).To(Equal(digest))
		return content
	})
}

// billOfMaterials returns the names of the packages in an SPDX document.
func billOfMaterials(t *testing.T, output, name string) []string {
	t.Helper()
	g := NewWithT(t)
	content, err := os.ReadFile(filepath.Join(output, name+".spdx.json"))
	g.Expect(err).NotTo(HaveOccurred())
	var document struct {
		SpdxVersion string                  `json:"spdxVersion"`
		Packages    []struct{ Name string } `json:"packages"`
	}
	g.Expect(json.Unmarshal(content, &document)).To(Succeed())
	g.Expect(document.SpdxVersion).To(HavePrefix("SPDX-"))
	var names []string
	for _, found := range document.Packages {
		names = append(names, found.Name)
	}
	return names
}

// runProgram runs a program of this machine's architecture and returns what it prints.
func runProgram(t *testing.T, program []byte, arguments ...string) string {
	t.Helper()
	g := NewWithT(t)
	path := filepath.Join(t.TempDir(), "program")
	g.Expect(os.WriteFile(path, program, 0o700)).To(Succeed())
	output, err := exec.CommandContext(t.Context(), path, arguments...).CombinedOutput()
	g.Expect(err).NotTo(HaveOccurred(), "%s", output)
	return string(output)
}
