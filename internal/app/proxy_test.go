package app

import (
	"fmt"
	"net/http"
	"net/http/httptest"
	"net/url"
	"sync/atomic"
	"testing"
	"time"

	. "github.com/onsi/gomega"
	"golang.org/x/net/http/httpproxy"
)

func TestServicesAndTheAPIServerAreNeverBehindTheProxy(t *testing.T) {
	for _, variable := range []string{"HTTPS_PROXY", "https_proxy", "no_proxy"} {
		t.Setenv(variable, "")
	}
	t.Setenv("HTTP_PROXY", "http://proxy.example.com:3128")
	t.Setenv("KUBERNETES_SERVICE_HOST", "198.18.0.1")
	for name, tt := range map[string]struct {
		noProxy, domain string
		direct, proxied []string
	}{
		"nothing is configured": {
			domain: "cluster.local",
			direct: []string{
				"source-controller.flux-system.svc.cluster.local.", "source-controller.flux-system.svc.cluster.local", "SOURCE-controller.flux-system.svc.Cluster.Local.",
				"notification-controller.flux-system.svc.", "notification-controller.flux-system.svc", "198.18.0.1",
			},
			proxied: []string{"git.example.com", "cluster.local.example.com", "notcluster.local", "198.18.0.2"},
		},
		"what is configured counts as well": {
			noProxy: ".svc,.cluster.local,.example.com", domain: "cluster.local",
			direct:  []string{"source-controller.flux-system.svc.cluster.local.", "git.example.com"},
			proxied: []string{"git.example.org"},
		},
		"another domain": {
			domain:  "k8s.corp",
			direct:  []string{"source-controller.flux-system.svc.k8s.corp.", "source-controller.flux-system.svc.k8s.corp"},
			proxied: []string{"git.corp"},
		},
	} {
		t.Run(name, func(t *testing.T) {
			g := NewWithT(t)
			t.Setenv("NO_PROXY", tt.noProxy)
			g.Expect(bypassProxy(tt.domain)).To(Succeed())
			choose := httpproxy.FromEnvironment().ProxyFunc()
			for _, host := range tt.direct {
				g.Expect(choose(&url.URL{Scheme: "http", Host: host})).To(BeNil(), host)
			}
			for _, host := range tt.proxied {
				g.Expect(choose(&url.URL{Scheme: "http", Host: host})).NotTo(BeNil(), host)
			}
		})
	}
}

// behindProxy is a format for a Stack whose source has an artifact in the cluster, and for one that gets an event at once, in a namespace;
// the argument is its name.
const behindProxy = `
apiVersion: v1
kind: Namespace
metadata: {name: %[1]s}
---
apiVersion: source.toolkit.fluxcd.io/v1
kind: GitRepository
metadata: {namespace: %[1]s, name: app}
spec: {interval: 1h, url: "https://git.example.com/app"}
---
apiVersion: pulumi.com/v1
kind: Stack
metadata: {namespace: %[1]s, name: app}
spec: {stack: app, fluxSource: {sourceRef: {apiVersion: source.toolkit.fluxcd.io/v1, kind: GitRepository, name: app}}}
---
apiVersion: pulumi.com/v1
kind: Stack
metadata: {namespace: %[1]s, name: without-a-source}
spec: {stack: app}
`

// readySource is a patch for the status of a GitRepository; the argument is the time.
const readySource = `{"status": {"observedGeneration": 1, "conditions": [{"type": "Ready", "status": "True", "reason": "Succeeded", "message": "",
  "lastTransitionTime": %[1]q, "observedGeneration": 1}], "artifact": {"lastUpdateTime": %[1]q, "revision": "main@sha1:0a1b", "path": "a.tar.gz",
  "url": "http://source-controller.flux-system.svc.cluster.local./a.tar.gz",
  "digest": "sha256:ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad"}}}`

func TestArtifactsAndEventsDoNotGoThroughTheProxy(t *testing.T) {
	g := NewWithT(t)
	var requests atomic.Int64
	proxy := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		requests.Add(1)
		w.WriteHeader(http.StatusBadRequest) // which is not tried again
	}))
	t.Cleanup(proxy.Close)
	cp := installed(t)
	c := startControllerIn(t, cp, []string{"HTTP_PROXY=" + proxy.URL, "NO_PROXY=.svc,.cluster.local"}, "--http-retry=0", "--events-addr=http://notification-controller.flux-system.svc.cluster.local./")

	namespace := fmt.Sprintf("proxy-%d", time.Now().UnixNano())
	objects := fmt.Sprintf(behindProxy, namespace)
	_, err := cp.KubectlInput(t.Context(), objects, "create", "--filename=-")
	g.Expect(err).NotTo(HaveOccurred())
	_, err = cp.Kubectl(t.Context(), "--namespace="+namespace, "patch", "gitrepository", "app", "--subresource=status", "--type=merge",
		"--patch="+fmt.Sprintf(readySource, time.Now().UTC().Format(time.RFC3339)))
	g.Expect(err).NotTo(HaveOccurred())
	g.Eventually(func() (string, error) {
		return cp.Kubectl(t.Context(), "--namespace="+namespace, "get", "stack", "app", "--output=jsonpath={.status.conditions[?(@.type=='Ready')].reason}")
	}, timeout, pollInterval).Should(Equal("ArtifactFetchFailed"))
	g.Eventually(c.logged, timeout, pollInterval).Should(ContainSubstring(`"logger":"events"`))
	g.Expect(c.Stop(timeout)).To(Succeed())
	g.Expect(requests.Load()).To(BeZero())
	g.Expect(c.logged(g)).To(ContainSubstring("events were not delivered to notification-controller"))
}
