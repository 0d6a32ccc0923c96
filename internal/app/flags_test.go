package app

import (
	"context"
	"fmt"
	"io"
	"maps"
	"slices"
	"strings"
	"testing"

	. "github.com/onsi/gomega"
	"github.com/spf13/pflag"
)

// fluxFlags are the flags and defaults of Flux 2.9's kustomize-controller. --http-timeout and --graceful-shutdown-timeout are those of its
// helm-controller; --max-operations is no flag of Flux.
var fluxFlags = map[string]string{
	"authorized-artifact-server-spiffe-id": "[]",
	"authorized-event-server-spiffe-id":    "[]",
	"concurrent":                           "4",
	"max-operations":                       "0",
	"default-service-account":              "",
	"enable-leader-election":               "false",
	"events-addr":                          "",
	"feature-gates":                        "",
	"graceful-shutdown-timeout":            "10m0s",
	"health-addr":                          ":9440",
	"http-retry":                           "9",
	"http-timeout":                         "30s",
	"interval-jitter-percentage":           "5",
	"kube-api-burst":                       "300",
	"kube-api-qps":                         "50",
	"leader-election-lease-duration":       "35s",
	"leader-election-release-on-cancel":    "true",
	"leader-election-renew-deadline":       "30s",
	"leader-election-retry-period":         "5s",
	"log-encoding":                         "json",
	"log-level":                            "info",
	"max-retry-delay":                      "15m0s",
	"metrics-addr":                         ":8080",
	"min-retry-delay":                      "750ms",
	"requeue-dependency":                   "30s",
	"watch-all-namespaces":                 "true",
	"watch-configs-label-selector":         "reconcile.fluxcd.io/watch=Enabled",
	"watch-label-selector":                 "",
}

// ownFlags are the flags that Flux does not have. Flux has --no-cross-namespace-refs, but with another default.
var ownFlags = map[string]string{
	"allow-process-runtime-in-cluster": "false",
	"agent-image":                      "",
	"agent-image-pull-policy":          "IfNotPresent",
	"agent-path":                       "",
	"artifact-max-entries":             "100000",
	"artifact-max-size":                "256Mi",
	"artifact-max-unpacked-size":       "1Gi",
	"cluster-domain":                   "cluster.local",
	"dependency-kinds":                 "[kustomize.toolkit.fluxcd.io/Kustomization,helm.toolkit.fluxcd.io/HelmRelease,pulumi.com/Program,auto.pulumi.com/Workspace]",
	"enable-tracing":                   "false",
	"git-allow-local-addresses":        "false",
	"require-verified-sources":         "false",
	"git-checkout-timeout":             "2m0s",
	"git-known-hosts-file":             "",
	"git-timeout":                      "30s",
	"no-cross-namespace-refs":          "true",
	"pprof-addr":                       "",
	"pulumi":                           "pulumi",
	"storage-max-size":                 "4Gi",
	"storage-path":                     "/data",
	"version":                          "false",
	"agent-image-volume":               "auto",
	"workspace-idle-timeout":           "0s",
	"workspace-runtime":                "pod",
}

func TestFlagsHaveFluxNamesAndDefaults(t *testing.T) {
	g := NewWithT(t)
	found := map[string]string{}
	(&options{}).flagSet().VisitAll(func(flag *pflag.Flag) { found[flag.Name] = flag.DefValue })
	for name, value := range fluxFlags {
		g.Expect(found).To(HaveKeyWithValue(name, value))
		delete(found, name)
	}
	g.Expect(found).To(Equal(ownFlags))
}

func TestFlagsAndEnvironmentMakeTheOptions(t *testing.T) {
	t.Setenv("AGENT_IMAGE", "example.com/agent:environment")
	t.Setenv("AGENT_IMAGE_PULL_POLICY", "Always")
	t.Setenv("RUNTIME_NAMESPACE", "flux-system")
	t.Setenv("SPIFFE_ENDPOINT_SOCKET", "unix:///run/api.sock")
	externalArtifact := func(o *options) any { return o.externalArtifact }
	image := func(o *options) any { return o.workspace.agentImage + " " + o.workspace.agentPullPolicy }
	mutual := func(o *options) any { return [2]bool{!o.mtls.artifactServers.Empty(), !o.mtls.eventServers.Empty()} }
	namespaces := func(o *options) any { return slices.Collect(maps.Keys(cacheOptions(o).DefaultNamespaces)) }
	for _, test := range []struct {
		args  string
		value func(*options) any
		want  any
	}{
		{"", func(o *options) any { return o.selector.Empty() }, true},
		{"", func(o *options) any { return o.artifacts.maxSize.Value() }, int64(256 << 20)},
		{"", namespaces, []string(nil)},
		{"--watch-all-namespaces=false", namespaces, []string{"flux-system"}},
		{"", image, "example.com/agent:environment Always"},
		{"--agent-image=example.com/agent:flag --agent-image-pull-policy=Never", image, "example.com/agent:flag Never"},
		{"", mutual, [2]bool{false, false}},
		{"--authorized-artifact-server-spiffe-id=spiffe://self", mutual, [2]bool{true, false}},
		{"--authorized-event-server-spiffe-id=spiffe://a --authorized-event-server-spiffe-id=spiffe://b", mutual, [2]bool{false, true}},
		{"--feature-gates=", externalArtifact, false},
		{"--feature-gates=ExternalArtifact=true", externalArtifact, true},
		{"--feature-gates=ExternalArtifact=false", externalArtifact, false},
	} {
		g := NewWithT(t)
		o, err := parseOptions(strings.Fields(test.args), io.Discard)
		g.Expect(err).NotTo(HaveOccurred(), test.args)
		g.Expect(test.value(o)).To(Equal(test.want), test.args)
	}
}

func TestMistakesInFlagsAreNamed(t *testing.T) {
	for _, test := range []struct {
		args []string
		want string
	}{
		{[]string{"--nope"}, "unknown flag: --nope"},
		{[]string{"serve"}, `unexpected argument "serve"`},
		{[]string{"--concurrent=0"}, "--concurrent must be at least 1"},
		{[]string{"--max-operations=-1"}, "--max-operations must be at least 0"},
		{[]string{"--concurrent=many"}, `invalid argument "many" for "--concurrent"`},
		{[]string{"--http-retry=-1"}, "--http-retry must be at least 0"},
		{[]string{"--http-timeout=0s"}, "--http-timeout must be more than 0"},
		{[]string{"--git-timeout=0s"}, "--git-timeout must be more than 0"},
		{[]string{"--git-known-hosts-file=/nowhere"}, "--git-known-hosts-file: "},
		{[]string{"--artifact-max-size=big"}, "quantities must match"},
		{[]string{"--artifact-max-size=0"}, "--artifact-max-size must be at least 1"},
		{[]string{"--artifact-max-entries=0"}, "--artifact-max-entries must be at least 1"},
		{[]string{"--storage-max-size=1Mi"}, "--storage-max-size must not be less than --artifact-max-size"},
		{[]string{"--min-retry-delay=1h"}, "--max-retry-delay must not be less than --min-retry-delay"},
		{[]string{"--leader-election-lease-duration=30s"}, "--leader-election-lease-duration must be more than --leader-election-renew-deadline"},
		{[]string{"--leader-election-retry-period=25s"}, "--leader-election-renew-deadline must be more than 1.2 times --leader-election-retry-period"},
		{[]string{"--leader-election-retry-period=0s"}, "--leader-election-retry-period must be more than 0"},
		{[]string{"--interval-jitter-percentage=100"}, "--interval-jitter-percentage must be less than 100"},
		{[]string{"--authorized-artifact-server-spiffe-id=example.org"}, `--authorized-artifact-server-spiffe-id: "example.org": `},
		{[]string{"--authorized-event-server-spiffe-id=spiffe://self", "--authorized-event-server-spiffe-id="}, `--authorized-event-server-spiffe-id: "": `},
		{[]string{"--authorized-event-server-spiffe-id=spiffe://self"}, "SPIFFE_ENDPOINT_SOCKET"},
		{[]string{"--log-level=loud"}, "--log-level must be trace, debug, info or error"},
		{[]string{"--log-encoding=xml"}, "--log-encoding must be json or console"},
		{[]string{"--feature-gates=Nope=true"}, `--feature-gates: feature-gate 'Nope' not supported`},
		{[]string{"--watch-label-selector=a=b=c"}, "--watch-label-selector: "},
		{[]string{"--watch-configs-label-selector=a=b=c"}, "--watch-configs-label-selector: "},
		{[]string{"--dependency-kinds=apps/Deployment,Secret"}, `--dependency-kinds: "Secret" is not allowed`},
		{[]string{"--dependency-kinds=rbac.authorization.k8s.io/Role"}, `--dependency-kinds: "rbac.authorization.k8s.io/Role" is not allowed`},
		{[]string{"--dependency-kinds=Kustomization.kustomize.toolkit.fluxcd.io"}, "is not of the form GROUP/KIND"},
		{[]string{"--watch-all-namespaces=false"}, "needs the environment variable RUNTIME_NAMESPACE"},
		{nil, "--workspace-runtime=pod, the default, needs --agent-image or the environment variable AGENT_IMAGE; " +
			"on a machine of your own, --workspace-runtime=process runs pulumi without pods"},
		{[]string{"--agent-image=a", "--default-service-account=A B"}, `--default-service-account must be the name of a ServiceAccount, not "A B"`},
		{[]string{"--workspace-runtime=process", "--default-service-account=a"}, "--default-service-account has no effect with --workspace-runtime=process"},
		{[]string{"--pprof-addr=:6060"}, `--pprof-addr must be a loopback address such as localhost:6060, not ":6060"`},
		{[]string{"--pprof-addr=0.0.0.0:6060"}, "--pprof-addr must be a loopback address"},
		{[]string{"--pprof-addr=6060"}, "--pprof-addr: "},
		{[]string{"--workspace-runtime=pod", "--agent-image=a", "--agent-image-pull-policy=Daily"},
			`--agent-image-pull-policy must be Always, IfNotPresent or Never, not "Daily"`},
		{[]string{"--workspace-runtime=pod", "--agent-image=a", "--cluster-domain=a..b"}, `--cluster-domain must be a DNS domain, not "a..b"`},
		{[]string{"--workspace-runtime=vm"}, `--workspace-runtime must be pod or process, not "vm"`},
	} {
		t.Run(strings.Join(test.args, " "), func(t *testing.T) {
			g := NewWithT(t)
			t.Setenv("RUNTIME_NAMESPACE", "")
			t.Setenv("AGENT_IMAGE", "")
			t.Setenv("SPIFFE_ENDPOINT_SOCKET", "")
			var stdout strings.Builder
			err := run(context.Background(), "dev", test.args, &stdout)
			g.Expect(err).To(MatchError(ContainSubstring(test.want)))
			g.Expect(stdout.String()).To(BeEmpty())

			var stderr strings.Builder
			g.Expect(exitCode(err, &stderr)).To(Equal(2))
			g.Expect(stderr.String()).To(ContainSubstring(test.want))
			g.Expect(stderr.String()).To(ContainSubstring("Usage: stack-controller [flags]"))
		})
	}
}

func TestInAPodProgramsRunAsTheControllerOnlyWhenAFlagSaysSo(t *testing.T) {
	g := NewWithT(t)
	t.Setenv("KUBERNETES_SERVICE_HOST", "10.0.0.1")
	// A kubeconfig makes no difference: programs can use the identity of the pod as well.
	t.Setenv("KUBECONFIG", "/elsewhere")
	_, err := parseOptions([]string{"--workspace-runtime=process"}, io.Discard)
	g.Expect(err).To(MatchError(And(ContainSubstring("with the controller's ServiceAccount"),
		ContainSubstring("use --workspace-runtime=pod, or set --allow-process-runtime-in-cluster"))))

	_, err = parseOptions([]string{"--workspace-runtime=process", "--allow-process-runtime-in-cluster"}, io.Discard)
	g.Expect(err).NotTo(HaveOccurred())
	_, err = parseOptions([]string{"--agent-image=a"}, io.Discard)
	g.Expect(err).NotTo(HaveOccurred())
	t.Setenv("KUBERNETES_SERVICE_HOST", "")
	_, err = parseOptions([]string{"--workspace-runtime=process"}, io.Discard)
	g.Expect(err).NotTo(HaveOccurred())
}

func TestHelpListsEveryFlagAndSucceeds(t *testing.T) {
	g := NewWithT(t)
	var stdout strings.Builder
	err := run(context.Background(), "dev", []string{"--help"}, &stdout)
	g.Expect(err).NotTo(HaveOccurred())
	g.Expect(stdout.String()).To(HavePrefix("Usage: stack-controller [flags]\n"))
	(&options{}).flagSet().VisitAll(func(flag *pflag.Flag) {
		g.Expect(stdout.String()).To(ContainSubstring("--" + flag.Name))
	})
	g.Expect(exitCode(err, io.Discard)).To(BeZero())
}

func TestVersionIsPrintedWithoutACluster(t *testing.T) {
	g := NewWithT(t)
	var stdout strings.Builder
	g.Expect(run(context.Background(), "dev", []string{"--version"}, &stdout)).To(Succeed())
	g.Expect(stdout.String()).To(Equal("dev\n"))
}

func TestOnlyThePodsOfWorkspacesAreCachedAndOnlyByThePodRuntime(t *testing.T) {
	g := NewWithT(t)
	cached := func(args ...string) map[string]string {
		o, err := parseOptions(args, io.Discard)
		g.Expect(err).NotTo(HaveOccurred())
		selectors := map[string]string{}
		for object, by := range cacheOptions(o).ByObject {
			if by.Label != nil {
				selectors[fmt.Sprintf("%T", object)] = by.Label.String()
			}
		}
		return selectors
	}
	g.Expect(cached("--workspace-runtime=process")).NotTo(HaveKey("*v1.Pod"))
	g.Expect(cached("--agent-image=a")).To(And(
		HaveKeyWithValue("*v1.Pod", "auto.pulumi.com/component=workspace"),
		HaveKeyWithValue("*v1.StatefulSet", "auto.pulumi.com/component=workspace"),
		HaveKeyWithValue("*v1.Service", "auto.pulumi.com/component=workspace"),
	))
}
