package prebuilt

import (
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/blang/semver"
	. "github.com/onsi/gomega"
	"sigs.k8s.io/yaml"

	"github.com/stack-controller/stack-controller/tests/tools"
)

// sourcePattern is the form of a source that a reader can open: a file at a commit, or up to one, in a repository of an owner, or in a
// version of a Go module.
var sourcePattern = regexp.MustCompile(
	`^(?:(https://github\.com/[\w.-]+)/[\w.-]+/(?:blob|commits)/[0-9a-f]{7,40}|([\w.-]+\.[a-z]+(?:/[\w.-]+)+)@v\d+\.\d+\.\d+)(?:/[\w.-]+)+$`)

// ownersOfSources returns the owners of the sources of each pin, by its line.
func ownersOfSources(text string) (owners map[string][]string, err error) {
	owners = map[string][]string{}
	var above []string
	for line := range strings.Lines(text) {
		line = strings.TrimSpace(line)
		source, isSource := strings.CutPrefix(line, "# source: ")
		switch {
		case isSource:
			found := sourcePattern.FindStringSubmatch(source)
			if found == nil {
				return nil, fmt.Errorf("nobody can open the source %q", source)
			}
			above = append(above, found[1]+found[2])
		case line == "":
			above = nil
		case !strings.HasPrefix(line, "#"):
			owners[line] = above
		}
	}
	return owners, nil
}

func TestEachPinHasTwoSourcesThatAReaderCanOpen(t *testing.T) {
	g := NewWithT(t)
	owners, err := ownersOfSources(makers)
	g.Expect(err).NotTo(HaveOccurred())
	pins, err := parsePins(makers)
	g.Expect(err).NotTo(HaveOccurred())
	g.Expect(owners).To(HaveLen(len(pins)))
	for pin, of := range owners {
		slices.Sort(of)
		g.Expect(len(slices.Compact(of))).To(BeNumerically(">=", 2), pin)
	}
	for _, vague := range []string{
		"a public Dockerfile that installs this version",
		"the maker's Homebrew formula, pulumi/homebrew-tap at f745989",
		"https://github.com/pulumi/homebrew-tap",
		"https://github.com/pulumi/homebrew-tap/blob/master/Formula/pulumi.rb",
		"https://example.com/pulumi/homebrew-tap/blob/f745989/Formula/pulumi.rb",
		"sigs.k8s.io/controller-tools@latest/envtest-releases.yaml",
		"sigs.k8s.io/controller-tools@v0.23.0",
	} {
		_, err := ownersOfSources("# source: " + vague)
		g.Expect(err).To(MatchError(ContainSubstring(vague)))
	}
}

// A download replaces a build only where the demo works with its version: Kubernetes in the minor version that the tests build, Pulumi as on
// PATH, and all else in the same version.
func TestPinnedVersionsAreThoseThatTheDemoWorksWith(t *testing.T) {
	g := NewWithT(t)
	pins, err := parsePins(makers)
	g.Expect(err).NotTo(HaveOccurred())
	for _, p := range pins {
		for _, tool := range p.tools {
			g.Expect(tools.Names()).To(ContainElement(tool))
		}
		version, err := tools.Version(p.tools[0])
		g.Expect(err).NotTo(HaveOccurred())
		switch p.tools[0] {
		case "kube-apiserver", "kube-controller-manager":
			g.Expect(minor(p.version)).To(Equal(minor(version)), p.title())
		case "pulumi":
			found := strings.TrimPrefix(p.version, "v")
			g.Expect(acceptable["pulumi"](semver.MustParse(found))).To(BeEmpty())
		default:
			g.Expect(p.version).To(Equal(version), p.title())
		}
	}
	for _, architecture := range []string{"amd64", "arm64"} {
		for _, tool := range []string{"kube-apiserver", "etcd", "kubectl", "kube-controller-manager", "pulumi", "pulumi-language-yaml", "source-controller"} {
			g.Expect(slices.ContainsFunc(pins, func(p *pin) bool {
				return slices.Contains(p.tools, tool) && p.system == "linux" && (p.architecture == architecture || p.architecture == "*")
			})).To(BeTrue(), "%s for %s", tool, architecture)
		}
	}
}

func minor(version string) string { return strings.Join(strings.Split(version, ".")[:2], ".") }

// The index of envtest is in the Go module of its makers, which the checksum database of Go covers.
func TestDigestsOfEnvtestAreThoseOfItsMakers(t *testing.T) {
	g := NewWithT(t)
	list := exec.CommandContext(t.Context(), "go", "mod", "download", "-json", "sigs.k8s.io/controller-tools")
	list.Dir = filepath.Join(tools.RepositoryRoot(), "tests", "tools", "generate")
	list.Env = append(os.Environ(), "GOFLAGS=", "GOWORK=off")
	output, err := list.Output()
	g.Expect(err).NotTo(HaveOccurred())
	var module struct{ Dir, Version string }
	g.Expect(json.Unmarshal(output, &module)).To(Succeed())
	content, err := os.ReadFile(filepath.Join(module.Dir, "envtest-releases.yaml"))
	g.Expect(err).NotTo(HaveOccurred())
	var index struct {
		Releases map[string]map[string]struct{ Hash, SelfLink string }
	}
	g.Expect(yaml.Unmarshal(content, &index)).To(Succeed())
	g.Expect(makers).To(ContainSubstring("# source: sigs.k8s.io/controller-tools@" + module.Version + "/envtest-releases.yaml\n"))
	pins, err := parsePins(makers)
	g.Expect(err).NotTo(HaveOccurred())
	compared := 0
	for _, p := range pins {
		if p.tools[0] != "kube-apiserver" {
			continue
		}
		listed := index.Releases[p.version][path.Base(p.from.Path)]
		g.Expect(p.digest.Encoded()).To(Equal(listed.Hash))
		g.Expect(p.from.String()).To(Equal(listed.SelfLink))
		compared++
	}
	g.Expect(compared).To(Equal(2))
}

func TestMalformedPinIsRefusedWithItsLine(t *testing.T) {
	const digest = "sha256:ff8f3c92f1bcb433e858c948040c3a3393fe73f5dd72048a4502bfaf0a4c26cd"
	for line, message := range map[string]string{
		"etcd v1 linux/amd64 " + digest + " https://example.com/a.tar.gz":                 "has 5 fields, not 6",
		"etcd v1 linux " + digest + " https://example.com/a.tar.gz bin/*":                 `"linux" is not a system and an architecture`,
		"etcd v1 linux/amd64 sha256:ff https://example.com/a.tar.gz bin/*":                `digest "sha256:ff"`,
		"etcd v1 linux/amd64 md5:" + digest[7:39] + " https://example.com/a.tar.gz bin/*": `digest "md5:`,
		"etcd v1 linux/amd64 " + digest + " http://example.com/a.tar.gz bin/*":            "is neither an address that begins with https://",
		"etcd v1 linux/amd64 " + digest + " https:///a.tar.gz bin/*":                      "is neither an address that begins with https://",
		"etcd v1 linux/* " + digest + " https://example.com/a.tar.gz bin/*":               "only an image can be for all architectures",
		"etcd,kubectl v1 linux/* " + digest + " oci://example.com/a bin/*":                "an image has one tool",
		"etcd v1 linux/amd64 " + digest + " https://example.com/a.tar.gz ../bin/*":        "is not the path of a member",
		"etcd,,kubectl v1 linux/amd64 " + digest + " https://example.com/a.tar.gz bin/*":  "a tool has no name",
		"etcd v1 linux/amd64 " + digest + " https://exa mple.com/a.tar.gz bin/*":          "has 7 fields, not 6",
		"etcd v1 linux/amd64 " + digest + " https://example.com:port/a.tar.gz bin/*":      "invalid port",
		"etcd v1 linux/amd64 " + digest + " oci://registry.example.com/etcd /usr/bin/*":   "is not the path of a member",
	} {
		_, err := parsePins("# etcd\n\n" + line)
		NewWithT(t).Expect(err).To(MatchError(And(HavePrefix("line 3 of the pins: "), ContainSubstring(message))), line)
	}
}

func TestVerifyFindsWhatIsNotAsPinned(t *testing.T) {
	g := NewWithT(t)
	h := newHost(t)
	good := h.archive("etcd", archived(t, member{name: "bin/etcd", content: program(t)}))
	bad := h.archive("helm", archived(t, member{name: "bin/helm", content: "#!/bin/sh\n"}))
	gone := h.archive("ko", []byte("x"))
	h.files["/example.com/ko.tar.gz"] = nil
	f := newFinder(t, good+bad+gone)
	err := verifyAll(t.Context(), f.finder.pins, f.finder.fetcher, f.finder.progress)
	g.Expect(err).To(MatchError(And(ContainSubstring("check the downloaded helm: it is not a program for Linux"), ContainSubstring("answers 404"))))
	g.Expect(f.lines.String()).To(MatchRegexp(`etcd v1\.37\.0 for linux/\w+: as pinned`))
	g.Expect(kept(t)).To(BeEmpty())
}
