package images

import (
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"runtime"
	"strings"
	"testing"

	. "github.com/onsi/gomega"
	"sigs.k8s.io/yaml"

	"github.com/stack-controller/stack-controller/tests/framework/suite"
	"github.com/stack-controller/stack-controller/tests/tools"
)

// plugin and catalog have all fields that the schemas of Flux's catalog of plugins allow; all of them are required.
type (
	plugin struct {
		APIVersion, Kind, Name, Description, Homepage, Source, Bin string
		Versions                                                   []struct {
			Version   string
			Platforms []struct{ OS, Arch, URL, Checksum string }
		}
	}
	catalog struct {
		APIVersion, Kind string
		Plugins          []struct{ Name, Description, Homepage, Source, License string }
	}
)

// krewPlugin has the fields of a manifest for krew.
type krewPlugin struct {
	APIVersion, Kind string
	Metadata         struct{ Name string }
	Spec             struct {
		Version, Homepage, ShortDescription, Description string
		Platforms                                        []struct {
			Selector         struct{ MatchLabels map[string]string }
			URI, SHA256, Bin string
		}
	}
}

const pluginAPI = "cli.fluxcd.io/v1beta1"

// release runs the parts of a release into the directory.
func release(t *testing.T, output string, env []string, parts ...string) {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), filepath.Join(tools.RepositoryRoot(), ".ci", "release"), parts...)
	cmd.Env = append(append(os.Environ(), "VERSION="+releaseVersion, "OUTPUT="+output), env...)
	log, err := cmd.CombinedOutput()
	NewWithT(t).Expect(err).NotTo(HaveOccurred(), "%s", log)
}

func TestCatalogHasEveryArchiveInTheFormatOfFlux(t *testing.T) {
	g := NewWithT(t)
	dir := t.TempDir()
	for _, platform := range []string{"linux_amd64", "darwin_arm64", "windows_amd64"} {
		g.Expect(os.WriteFile(filepath.Join(dir, "flux-pulumi_1.2.3_"+platform+".tar.gz"), []byte(platform), 0o600)).To(Succeed())
	}
	release(t, dir, nil, "catalog", "checksums")
	read := func(name string, into any) {
		content, err := os.ReadFile(filepath.Join(dir, name))
		g.Expect(err).NotTo(HaveOccurred())
		g.Expect(yaml.UnmarshalStrict(content, into)).To(Succeed())
	}
	var offered plugin
	read("pulumi.yaml", &offered)
	g.Expect(offered.APIVersion).To(Equal(pluginAPI))
	g.Expect(offered.Kind).To(Equal("Plugin"))
	g.Expect(offered.Name).To(Equal("pulumi"))
	g.Expect(offered.Bin).To(Equal("flux-pulumi"), "the CLI wants the prefix")
	g.Expect(offered.Description).NotTo(BeEmpty())
	g.Expect(offered.Homepage).To(HavePrefix("https://"))
	g.Expect(offered.Source).To(HavePrefix("https://"))
	g.Expect(offered.Versions).To(HaveLen(1))
	g.Expect(offered.Versions[0].Version).To(Equal("1.2.3"))
	sums, err := os.ReadFile(filepath.Join(dir, "checksums.txt"))
	g.Expect(err).NotTo(HaveOccurred())
	var platforms []string
	for _, platform := range offered.Versions[0].Platforms {
		platforms = append(platforms, platform.OS+"/"+platform.Arch)
		g.Expect(platform.Checksum).To(MatchRegexp("^sha256:[a-f0-9]{64}$"))
		file := "flux-pulumi_1.2.3_" + platform.OS + "_" + platform.Arch + ".tar.gz"
		g.Expect(platform.URL).To(Equal("https://github.com/stack-controller/stack-controller/releases/download/v1.2.3/" + file))
		g.Expect(string(sums)).To(ContainSubstring(strings.TrimPrefix(platform.Checksum, "sha256:") + "  " + file + "\n"))
	}
	g.Expect(platforms).To(ConsistOf("linux/amd64", "darwin/arm64", "windows/amd64"))

	var krew krewPlugin
	read("krew.yaml", &krew)
	g.Expect(krew.Spec.Version).To(Equal(releaseVersion))
	g.Expect(krew.Spec.Platforms).To(HaveLen(3))
	for i, platform := range krew.Spec.Platforms {
		same := offered.Versions[0].Platforms[i]
		g.Expect(platform.Selector.MatchLabels).To(Equal(map[string]string{"os": same.OS, "arch": same.Arch}))
		g.Expect(platform.URI).To(Equal(same.URL))
		g.Expect("sha256:" + platform.SHA256).To(Equal(same.Checksum))
		g.Expect(platform.Bin == "flux-pulumi.exe").To(Equal(same.OS == "windows"))
	}

	var listed catalog
	read("catalog.yaml", &listed)
	g.Expect(listed.APIVersion).To(Equal(pluginAPI))
	g.Expect(listed.Kind).To(Equal("PluginCatalog"))
	g.Expect(listed.Plugins).To(HaveLen(1))
	entry := listed.Plugins[0]
	g.Expect([]string{entry.Name, entry.Description, entry.Homepage, entry.Source, entry.License}).To(Equal(
		[]string{offered.Name, offered.Description, offered.Homepage, offered.Source, "Apache-2.0"}))
}

func TestCatalogOfNothingIsAnError(t *testing.T) {
	g := NewWithT(t)
	dir := t.TempDir()
	cmd := exec.CommandContext(t.Context(), filepath.Join(tools.RepositoryRoot(), ".ci", "release"), "catalog")
	cmd.Env = append(os.Environ(), "VERSION="+releaseVersion, "OUTPUT="+dir)
	log, err := cmd.CombinedOutput()
	g.Expect(err).To(HaveOccurred())
	g.Expect(string(log)).To(ContainSubstring("has no archive of the command line"))
	g.Expect(os.ReadDir(dir)).To(BeEmpty())
}

func TestKrewInstallsThePlugin(t *testing.T) {
	suite.Long(t, "builds the command line and krew")
	g := NewWithT(t)
	dir := releaseCLI(t, "linux/"+runtime.GOARCH)
	release(t, dir, nil, "catalog")
	krew, err := tools.Path(t.Context(), "krew", nil)
	g.Expect(err).NotTo(HaveOccurred())
	root := t.TempDir()
	archives, err := filepath.Glob(filepath.Join(dir, "*.tar.gz"))
	g.Expect(err).NotTo(HaveOccurred())
	g.Expect(archives).To(HaveLen(1))
	run := func(program string, args ...string) string {
		cmd := exec.CommandContext(t.Context(), program, args...)
		cmd.Env = []string{"HOME=" + root, "KREW_ROOT=" + root, "PATH=" + os.Getenv("PATH")}
		output, err := cmd.CombinedOutput()
		g.Expect(err).NotTo(HaveOccurred(), "%s %s: %s", program, strings.Join(args, " "), output)
		return string(output)
	}
	run(krew, "install", "--manifest="+filepath.Join(dir, "krew.yaml"), "--archive="+archives[0])
	g.Expect(run(filepath.Join(root, "bin", "kubectl-pulumi"), "version")).To(ContainSubstring(releaseVersion))
}

func TestFluxInstallsThePluginFromTheCatalog(t *testing.T) {
	suite.Long(t, "builds the command line and flux")
	g := NewWithT(t)
	dir := releaseCLI(t, "linux/"+runtime.GOARCH)
	server := httptest.NewServer(http.FileServer(http.Dir(dir)))
	defer server.Close()
	release(t, dir, []string{"RELEASE_URL=" + server.URL}, "catalog")
	flux, err := tools.Path(t.Context(), "flux", nil)
	g.Expect(err).NotTo(HaveOccurred())
	home := t.TempDir()
	run := func(args ...string) string {
		cmd := exec.CommandContext(t.Context(), flux, args...)
		cmd.Env = []string{"HOME=" + home, "PATH=" + os.Getenv("PATH"), "FLUXCD_PLUGIN_CATALOG=" + server.URL + "/"}
		output, err := cmd.CombinedOutput()
		g.Expect(err).NotTo(HaveOccurred(), "flux %s: %s", strings.Join(args, " "), output)
		return string(output)
	}
	g.Expect(run("plugin", "search")).To(MatchRegexp(`(?m)^pulumi\s`))
	tutorial, err := os.ReadFile(filepath.Join(tools.RepositoryRoot(), "docs", "guides", "tutorial.md"))
	g.Expect(err).NotTo(HaveOccurred())
	_, install, found := strings.Cut(string(tutorial), "```sh\nFLUXCD_PLUGIN_CATALOG=https://github.com/stack-controller/stack-controller/releases/latest/download/ ")
	g.Expect(found).To(BeTrue())
	install, after, _ := strings.Cut(install, "\n")
	g.Expect(after).To(HavePrefix("flux pulumi install\n```\n"), "the next command installs the controller")
	shell := exec.CommandContext(t.Context(), "sh", "-c", "FLUXCD_PLUGIN_CATALOG="+server.URL+"/ "+install)
	shell.Env = []string{"HOME=" + home, "PATH=" + filepath.Dir(flux) + ":" + os.Getenv("PATH")}
	output, err := shell.CombinedOutput()
	g.Expect(err).NotTo(HaveOccurred(), "%s: %s", install, output)
	g.Expect(filepath.Join(home, ".fluxcd", "plugins", "flux-pulumi")).To(BeAnExistingFile())
	g.Expect(run("plugin", "list")).To(MatchRegexp(`pulumi\s+` + regexp.QuoteMeta(strings.TrimPrefix(releaseVersion, "v"))))
	g.Expect(run("pulumi", "version")).To(ContainSubstring(releaseVersion))
}
