package flux_test

import (
	"encoding/json"
	"encoding/pem"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	. "github.com/onsi/gomega"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"sigs.k8s.io/controller-runtime/pkg/client"

	pulumiv1 "github.com/stack-controller/stack-controller/api/pulumi/v1"
	"github.com/stack-controller/stack-controller/tests/framework/gitserver"
	"github.com/stack-controller/stack-controller/tests/framework/systemtest"
	"github.com/stack-controller/stack-controller/tests/tools"
)

var (
	inputProviders = schema.GroupVersionKind{Group: "fluxcd.controlplane.io", Version: "v1", Kind: "ResourceSetInputProvider"}
	resourceSets   = schema.GroupVersionKind{Group: "fluxcd.controlplane.io", Version: "v1", Kind: "ResourceSet"}
)

// pullRequests is what the API of a GitHub server tells of pull requests.
type pullRequests struct {
	*httptest.Server
	mu   sync.Mutex
	open map[int]string // the commit of each
}

func newPullRequests(t *testing.T) *pullRequests {
	p := &pullRequests{open: map[int]string{}}
	p.Server = httptest.NewTLSServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if !strings.HasSuffix(r.URL.Path, "/repos/acme/shop/pulls") {
			http.NotFound(w, r)
			return
		}
		p.mu.Lock()
		defer p.mu.Unlock()
		list := []any{}
		for number, sha := range p.open {
			list = append(list, map[string]any{
				"number": number, "title": "Change the size", "user": map[string]any{"login": "alice"},
				"head": map[string]any{"ref": fmt.Sprintf("change-%d", number), "sha": sha}, "labels": []any{map[string]any{"name": "review"}},
			})
		}
		w.Header().Set("Content-Type", "application/json")
		_ = json.NewEncoder(w).Encode(list)
	}))
	t.Cleanup(p.Close)
	return p
}

// set opens a pull request with the commit or, without one, closes it.
func (p *pullRequests) set(number int, sha string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if sha == "" {
		delete(p.open, number)
		return
	}
	p.open[number] = sha
}

// These are the files of docs/examples/review-stacks, with the URLs and the backend of this machine.
func TestEachPullRequestHasAStack(t *testing.T) {
	t.Parallel()
	p := &fixture{systemtest.New(t, system, "review", systemtest.Patience)}
	// It does not install Flux here: it only evaluates ResourceSets. Without FIPS 140-3 it refuses to run.
	p.Succeed(startController(t.Context(), system.ControlPlane, "flux-operator", "fips140=on", "--web-server-port=0"))
	github := newPullRequests(t)
	program := func(size int) gitserver.Files {
		return gitserver.Files{"Pulumi.yaml": fmt.Sprintf("name: shop-review\nruntime: yaml\noutputs:\n  size: %d\n", size)}
	}
	repository, first, err := system.Git.Create("shop-review", program(1))
	p.Succeed(err)
	second, err := repository.Commit(program(2))
	p.Succeed(err)
	github.set(7, first)
	github.set(9, second)

	example := func(name string) string {
		content, err := os.ReadFile(filepath.Join(tools.RepositoryRoot(), "docs", "examples", "review-stacks", name))
		p.Succeed(err)
		return string(content)
	}
	p.apply(example("account.yaml"))
	authority := pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: github.Certificate().Raw})
	p.Create(
		&corev1.Secret{Namespace: p.Name, Name: "pulumi", StringData: map[string]string{"passphrase": passphraseCanary}},
		&corev1.Secret{Namespace: p.Name, Name: "github", StringData: map[string]string{"username": "git", "password": "token"}},
		&corev1.Secret{Namespace: p.Name, Name: "github-ca", StringData: map[string]string{"ca.crt": string(authority)}},
	)
	provider, set, found := strings.Cut(example("resourceset.yaml"), "\n---\n")
	p.Expect(found).To(BeTrue())
	provider = strings.NewReplacer("https://github.com", github.URL, "  secretRef:", "  certSecretRef:\n    name: github-ca\n  secretRef:").Replace(provider)
	set = strings.NewReplacer("https://github.com/acme/shop", repository.URL, "s3://acme-review-state", system.BackendURL).Replace(set)
	p.apply(provider)
	p.apply(set)

	size := func(number int) func() string {
		return func() string {
			stack := &pulumiv1.Stack{}
			p.Get(fmt.Sprintf("shop-pr-%d", number), stack)
			return systemtest.Output(stack, "size")
		}
	}
	exists := func() []string {
		list := &pulumiv1.StackList{}
		p.Succeed(system.Client.List(p.Context(), list, client.InNamespace(p.Name)))
		names := []string{}
		for _, stack := range list.Items {
			names = append(names, stack.Name)
		}
		return names
	}
	p.Eventually(exists).Should(ConsistOf("shop-pr-7", "shop-pr-9"))
	p.Eventually(size(7)).Should(Equal("1"))
	p.Eventually(size(9)).Should(Equal("2"))

	third, err := repository.Commit(program(3))
	p.Succeed(err)
	github.set(7, third)
	p.reconcile(inputProviders, "shop-pull-requests")
	p.reconcile(resourceSets, "shop-review")
	p.Eventually(size(7)).Should(Equal("3"))

	github.set(7, "")
	p.reconcile(inputProviders, "shop-pull-requests")
	p.reconcile(resourceSets, "shop-review")
	p.Eventually(exists).Should(ConsistOf("shop-pr-9"))
	p.Expect(size(9)()).To(Equal("2"))
	github.set(9, "")
	p.reconcile(inputProviders, "shop-pull-requests")
	p.reconcile(resourceSets, "shop-review")
	p.Eventually(exists).Should(BeEmpty())
}
