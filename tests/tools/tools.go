// Package tools finds the programs that the tests and the demo run (kube-apiserver, source-controller, the pulumi CLI, linters and
// generators). It builds each of them once, from its Go module, into a cache of the user.
//
// Each sub-directory is a Go module of its own that pins one upstream module with a tool directive, so the
// product's go.mod stays free of them.
package tools

import (
	"cmp"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"runtime"
	"slices"
	"strings"
)

// tool is a program and how to build it.
type tool struct {
	module   string   // sub-directory of tests/tools
	pkg      string   // import path of its main package
	ldflags  string   // linker flags besides -s -w; $VERSION is the version of upstream (v1.2.3), $NUMBER the same without the v
	tags     string   // build tags
	file     string   // file name of the binary if it is not the name of the tool
	upstream string   // module of the program, where it is needed
	lacking  string   // path of a file that the program embeds and that upstream lacks; it is created empty
	embedded []string // paths of upstream's files that our main package embeds
}

var registry = map[string]tool{
	"etcd":                    {module: "etcd", pkg: "go.etcd.io/etcd/server/v3"},
	"kube-apiserver":          {module: "kubernetes", pkg: "k8s.io/kubernetes/cmd/kube-apiserver", upstream: "k8s.io/kubernetes", ldflags: kubernetesVersion},
	"kube-controller-manager": {module: "kubernetes", pkg: "k8s.io/kubernetes/cmd/kube-controller-manager", upstream: "k8s.io/kubernetes", ldflags: kubernetesVersion},
	"kubectl":                 {module: "kubernetes", pkg: "k8s.io/kubernetes/cmd/kubectl", upstream: "k8s.io/kubernetes", ldflags: kubernetesVersion},
	"kube-scheduler":          {module: "kubernetes", pkg: "k8s.io/kubernetes/cmd/kube-scheduler", upstream: "k8s.io/kubernetes", ldflags: kubernetesVersion},
	"kube-proxy":              {module: "kubernetes", pkg: "k8s.io/kubernetes/cmd/kube-proxy", upstream: "k8s.io/kubernetes", ldflags: kubernetesVersion},
	"kubelet":                 {module: "kubernetes", pkg: "k8s.io/kubernetes/cmd/kubelet", upstream: "k8s.io/kubernetes", ldflags: kubernetesVersion},
	// The oldest version of Kubernetes that tests run.
	"kube-apiserver-oldest": {module: "kubernetes-oldest", pkg: "k8s.io/kubernetes/cmd/kube-apiserver", file: "kube-apiserver",
		upstream: "k8s.io/kubernetes", ldflags: kubernetesVersion},
	"kube-controller-manager-oldest": {module: "kubernetes-oldest", pkg: "k8s.io/kubernetes/cmd/kube-controller-manager",
		file: "kube-controller-manager", upstream: "k8s.io/kubernetes", ldflags: kubernetesVersion},
	// Without its plugins for databases, vault is much smaller.
	"vault": {module: "vault", pkg: "github.com/hashicorp/vault", tags: "minimal"},
	// The Automation API refuses a CLI without a version.
	"pulumi": {module: "pulumi", pkg: "github.com/pulumi/pulumi/pkg/v3/cmd/pulumi", upstream: "github.com/pulumi/pulumi/pkg/v3",
		ldflags: "-X github.com/pulumi/pulumi/sdk/v3/go/common/version.Version=$VERSION"},
	// The oldest version that tests run. Its libraries link to symbols that Go no longer exports.
	"pulumi-oldest": {module: "pulumi-oldest", pkg: "github.com/pulumi/pulumi/pkg/v3/cmd/pulumi", file: "pulumi",
		upstream: "github.com/pulumi/pulumi/pkg/v3", ldflags: "-checklinkname=0 -X github.com/pulumi/pulumi/pkg/v3/version.Version=$VERSION"},
	// A language host finds in newer CLIs what the oldest one does not have, so each CLI has the host of its time.
	"pulumi-language-yaml-oldest": {module: "pulumi-oldest", pkg: "github.com/pulumi/pulumi-yaml/cmd/pulumi-language-yaml",
		file: "pulumi-language-yaml", ldflags: "-checklinkname=0"},
	"pulumi-language-yaml": {module: "pulumi-yaml", pkg: "github.com/pulumi/pulumi-yaml/cmd/pulumi-language-yaml"},
	// The last version of the SDK that has the language hosts. Those of newer versions are modules of their own, which Go's proxy does not serve.
	"pulumi-language-nodejs": {module: "pulumi-languages", pkg: "github.com/pulumi/pulumi/sdk/v3/nodejs/cmd/pulumi-language-nodejs"},
	"pulumi-language-go":     {module: "pulumi-languages", pkg: "github.com/pulumi/pulumi/sdk/v3/go/pulumi-language-go"},
	"pulumi-language-python": {module: "pulumi-languages", pkg: "github.com/pulumi/pulumi/sdk/v3/python/cmd/pulumi-language-python"},
	// The plugin has the version of the SDK whose programs ask for it; the module is of the same time.
	"pulumi-resource-kubernetes": {module: "pulumi-kubernetes", pkg: ".", upstream: "github.com/pulumi/pulumi-kubernetes/provider/v4",
		embedded: []string{"cmd/pulumi-resource-kubernetes/schema.json", "cmd/pulumi-resource-kubernetes/terraform-mapping.json"},
		ldflags:  "-X github.com/pulumi/pulumi-kubernetes/provider/v4/pkg/version.Version=" + KubernetesProviderVersion},
	"source-controller":       {module: "source-controller", pkg: "github.com/fluxcd/source-controller"},
	"notification-controller": {module: "notification-controller", pkg: "github.com/fluxcd/notification-controller"},
	"helm-controller":         {module: "helm-controller", pkg: "github.com/fluxcd/helm-controller"},
	// The flux program embeds the manifests that "flux install" applies; they exist only in its releases.
	"flux": {module: "flux", pkg: "github.com/fluxcd/flux2/v2/cmd/flux", ldflags: "-X main.VERSION=$NUMBER",
		upstream: "github.com/fluxcd/flux2/v2", lacking: "cmd/flux/manifests/none.yaml"},
	// The Flux Operator embeds its pages for browsers; they exist only in its releases, too.
	"flux-operator": {module: "flux-operator", pkg: "github.com/controlplaneio-fluxcd/flux-operator/cmd/operator",
		upstream: "github.com/controlplaneio-fluxcd/flux-operator", lacking: "web/dist/none.html"},
	"containerd":              {module: "containerd", pkg: "github.com/containerd/containerd/v2/cmd/containerd", upstream: "github.com/containerd/containerd/v2", ldflags: containerdVersion},
	"containerd-shim-runc-v2": {module: "containerd", pkg: "github.com/containerd/containerd/v2/cmd/containerd-shim-runc-v2", upstream: "github.com/containerd/containerd/v2", ldflags: containerdVersion},
	"ctr":                     {module: "containerd", pkg: "github.com/containerd/containerd/v2/cmd/ctr", upstream: "github.com/containerd/containerd/v2", ldflags: containerdVersion},
	"coredns":                 {module: "coredns", pkg: "github.com/coredns/coredns"},
	"helm": {module: "helm", pkg: "helm.sh/helm/v3/cmd/helm", upstream: "helm.sh/helm/v3",
		ldflags: "-X helm.sh/helm/v3/internal/version.version=$VERSION"},
	"ko":                   {module: "ko", pkg: "github.com/google/ko"},
	"kustomize-controller": {module: "kustomize-controller", pkg: "github.com/fluxcd/kustomize-controller"},
	"krew":                 {module: "krew", pkg: "sigs.k8s.io/krew/cmd/krew"},
	"crane":                {module: "crane", pkg: "github.com/google/go-containerregistry/cmd/crane"},
	"minio":                {module: "minio", pkg: "github.com/minio/minio"},
	"spire-server":         {module: "spire", pkg: "github.com/spiffe/spire/cmd/spire-server"},
	"spire-agent":          {module: "spire", pkg: "github.com/spiffe/spire/cmd/spire-agent"},
	"prometheus":           {module: "prometheus", pkg: "github.com/prometheus/prometheus/cmd/prometheus"},
	"promtool":             {module: "prometheus", pkg: "github.com/prometheus/prometheus/cmd/promtool"},
	"controller-gen":       {module: "generate", pkg: "sigs.k8s.io/controller-tools/cmd/controller-gen"},
	"crd-ref-docs":         {module: "generate", pkg: "github.com/elastic/crd-ref-docs"},
	"buf":                  {module: "buf", pkg: "github.com/bufbuild/buf/cmd/buf"},
	"protoc-gen-go":        {module: "generate", pkg: "google.golang.org/protobuf/cmd/protoc-gen-go"},
	"protoc-gen-go-grpc":   {module: "generate", pkg: "google.golang.org/grpc/cmd/protoc-gen-go-grpc"},
	"actionlint":           {module: "actionlint", pkg: "github.com/rhysd/actionlint/cmd/actionlint"},
	"gotestsum":            {module: "gotestsum", pkg: "gotest.tools/gotestsum"},
	"golangci-lint":        {module: "golangci-lint", pkg: "github.com/golangci/golangci-lint/v2/cmd/golangci-lint"},
}

// KubernetesProviderVersion is the version that pulumi-resource-kubernetes has: that of @pulumi/kubernetes in the programs of the tests.
const KubernetesProviderVersion = "4.25.0"

const kubernetesVersion = "-X k8s.io/component-base/version.gitVersion=$VERSION -X k8s.io/client-go/pkg/version.gitVersion=$VERSION"

const containerdVersion = "-X github.com/containerd/containerd/v2/version.Version=$VERSION"

// Names returns the known tools, sorted.
func Names() []string {
	names := make([]string, 0, len(registry))
	for name := range registry {
		names = append(names, name)
	}
	slices.Sort(names)
	return names
}

// Path returns the absolute path of the named tool. It is, in this order: the file in TEST_ASSET_<NAME> (as with envtest, for example
// TEST_ASSET_KUBE_APISERVER), a file of that name and of the pinned minor version in the KUBEBUILDER_ASSETS directory, or the cached build,
// which Path creates if necessary. If progress is not nil, it is called when a file is passed over, when a build starts and when it ends; a
// build without caches takes from seconds to five minutes.
func Path(ctx context.Context, name string, progress func(string)) (string, error) {
	if path, err := Existing(ctx, name, progress); path != "" || err != nil {
		return path, err
	}
	t := registry[name]
	path, err := cachedPath(name, t)
	if err != nil {
		return "", err
	}
	return path, build(ctx, name, t, path, progress)
}

// Existing returns the path that Path returns if it does not have to build the tool, and an empty string otherwise.
func Existing(ctx context.Context, name string, progress func(string)) (string, error) {
	t, ok := registry[name]
	if !ok {
		return "", fmt.Errorf("unknown tool %q, known are %s", name, strings.Join(Names(), ", "))
	}
	if path := os.Getenv(AssetVariable(name)); path != "" {
		return filepath.Abs(path)
	}
	if path, err := asset(ctx, name, progress); path != "" || err != nil {
		return path, err
	}
	path, err := cachedPath(name, t)
	if err != nil {
		return "", err
	}
	if _, err := os.Stat(path); err != nil {
		return "", nil //nolint:nilerr // it is not there, or cannot be used
	}
	return path, nil
}

// AssetVariable returns the environment variable with the path of a prebuilt binary of the tool.
func AssetVariable(name string) string {
	return "TEST_ASSET_" + strings.ToUpper(strings.ReplaceAll(name, "-", "_"))
}

// CacheDir returns the user's directory for everything that is built once: $STACK_CONTROLLER_CACHE, or stack-controller in the user's cache
// directory.
func CacheDir() (string, error) {
	if dir := os.Getenv("STACK_CONTROLLER_CACHE"); dir != "" {
		return filepath.Abs(dir)
	}
	dir, err := os.UserCacheDir()
	if err != nil {
		return "", fmt.Errorf("find the user's cache directory: %w", err)
	}
	return filepath.Join(dir, "stack-controller"), nil
}

// cachedPath returns the path of the cached build. It depends on the pinned module versions and the flags. It does not depend on the release
// of Go, so that not all tools are built again with each of them; raise the "go" line of a module to build its tools with a newer one.
func cachedPath(name string, t tool) (string, error) {
	dir, err := CacheDir()
	if err != nil {
		return "", err
	}
	hash := sha256.New()
	for _, file := range []string{"go.mod", "go.sum"} {
		content, err := os.ReadFile(filepath.Join(sourceDir(), t.module, file))
		if err != nil {
			return "", fmt.Errorf("read the pinned versions of %s: %w", name, err)
		}
		hash.Write(content)
	}
	fmt.Fprint(hash, t.pkg, t.ldflags, t.tags, runtime.GOARCH)
	return filepath.Join(dir, "tools", hex.EncodeToString(hash.Sum(nil))[:16], cmp.Or(t.file, name)), nil
}

// linkerFlags returns the linker flags of the tool, with the version that its module pins.
func linkerFlags(t tool) (string, error) {
	if t.upstream == "" {
		return t.ldflags, nil
	}
	version, err := pinned(t.module, t.upstream)
	return strings.NewReplacer("$VERSION", version, "$NUMBER", strings.TrimPrefix(version, "v")).Replace(t.ldflags), err
}

// Version returns the version of the module of the named tool, such as v1.2.3. A tool without an upstream is the root of its module.
func Version(name string) (string, error) {
	t, ok := registry[name]
	if !ok {
		return "", fmt.Errorf("unknown tool %q", name)
	}
	return pinned(t.module, cmp.Or(t.upstream, t.pkg))
}

// Module returns the path of the Go module of the named tool, and the directory of the module that pins it. A tool without an upstream is the
// root of its module.
func Module(name string) (path, directory string, err error) {
	t, ok := registry[name]
	if !ok {
		return "", "", fmt.Errorf("unknown tool %q", name)
	}
	return cmp.Or(t.upstream, t.pkg), filepath.Join(sourceDir(), t.module), nil
}

// pinned returns the version of a required module that the go.mod in the sub-directory pins.
func pinned(directory, required string) (string, error) {
	path := filepath.Join(sourceDir(), directory, "go.mod")
	content, err := os.ReadFile(path)
	if err != nil {
		return "", fmt.Errorf("read a pinned version: %w", err)
	}
	found := regexp.MustCompile(`(?m)^(?:require |\t)` + regexp.QuoteMeta(required) + ` (v\S+)`).FindSubmatch(content)
	if found == nil {
		return "", fmt.Errorf("%s does not require %s", path, required)
	}
	return string(found[1]), nil
}

func sourceDir() string {
	_, file, _, _ := runtime.Caller(0)
	return filepath.Dir(file)
}

// RepositoryRoot returns the directory of the product's go.mod. The calling program must not be built with -trimpath.
func RepositoryRoot() string { return filepath.Dir(filepath.Dir(sourceDir())) }
