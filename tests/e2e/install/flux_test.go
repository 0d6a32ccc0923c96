package install_test

import (
	"context"
	"flag"
	"maps"
	"os"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/go-logr/logr"
	. "github.com/onsi/gomega"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	"sigs.k8s.io/controller-runtime/pkg/log"
	"sigs.k8s.io/yaml"

	"github.com/stack-controller/stack-controller/cmd/flux-pulumi/command"
	"github.com/stack-controller/stack-controller/tests/framework/controlplane"
	"github.com/stack-controller/stack-controller/tests/framework/suite"
	"github.com/stack-controller/stack-controller/tests/tools"
)

// startFlux starts an API server with Flux's definitions, when the first test of a pass needs it.
var startFlux func() (*controlplane.ControlPlane, error)

func newFlux() (*controlplane.ControlPlane, error) {
	ctx := context.Background()
	definitions := []string{controlplane.ProductCRDs()}
	for _, controller := range []string{"source-controller", "kustomize-controller", "notification-controller", "helm-controller"} {
		dir, err := controlplane.FluxCRDs(ctx, controller)
		if err != nil {
			return nil, err
		}
		definitions = append(definitions, dir)
	}
	return controlplane.Start(ctx, controlplane.Options{Log: os.Stderr, CRDs: definitions})
}

var fluxWanted atomic.Bool

func TestMain(m *testing.M) {
	log.SetLogger(logr.Discard())
	flag.Parse()
	// The tests on the cluster wait for each other, in addition to as many running tests as there are processors.
	if err := flag.Set("test.parallel", strconv.Itoa(ways+runtime.NumCPU())); err != nil {
		_, _ = os.Stderr.WriteString(err.Error() + "\n")
		os.Exit(1)
	}
	os.Exit(suite.EachPass(func() int { return pass(m) }))
}

func pass(m *testing.M) (code int) {
	startFlux, startRealCluster = sync.OnceValues(newFlux), sync.OnceValues(newRealCluster)
	fluxWanted.Store(false)
	realClusterWanted = false
	code = m.Run()
	if fluxWanted.Load() {
		if cp, err := startFlux(); err == nil && cp.Stop() != nil {
			code = 1
		}
	}
	if err := stopRealCluster(); err != nil {
		_, _ = os.Stderr.WriteString(err.Error() + "\n")
		code = 1
	}
	return code
}

// flux returns the API server, which has the namespace flux-system.
func flux(t *testing.T) *controlplane.ControlPlane {
	t.Helper()
	fluxWanted.Store(true)
	g := NewWithT(t)
	cp, err := startFlux()
	g.Expect(err).NotTo(HaveOccurred())
	_, err = cp.KubectlInput(t.Context(), "{apiVersion: v1, kind: Namespace, metadata: {name: flux-system}}", "apply", "--server-side", "-f", "-")
	g.Expect(err).NotTo(HaveOccurred())
	return cp
}

// dryRun returns the API server's error for a file, or nil if it accepts the file.
func dryRun(t *testing.T, cp *controlplane.ControlPlane, path string) error {
	t.Helper()
	_, err := cp.Kubectl(t.Context(), "apply", "--server-side", "--dry-run=server", "--validate=strict", "-f", path)
	return err
}

func TestFluxTakesTheObjectsThatInstallTheController(t *testing.T) {
	t.Parallel()
	g := NewWithT(t)
	cp := flux(t)
	for _, file := range []string{"oci_repository.yaml", "git_repository.yaml", "helm_release.yaml"} {
		g.Expect(dryRun(t, cp, inRepository("config", "flux", file))).To(Succeed())
	}
}

// The source is the one in the documentation.
func TestFluxVerifiesThatTheReleaseWorkflowSignedTheManifests(t *testing.T) {
	t.Parallel()
	g := NewWithT(t)
	_, section, found := strings.Cut(read(t, inRepository("docs", "guides", "verify-release.md")), "\n```yaml\n")
	g.Expect(found).To(BeTrue())
	source, _, _ := strings.Cut(section, "```\n")
	path := filepath.Join(t.TempDir(), "source.yaml")
	g.Expect(os.WriteFile(path, []byte(source), 0o600)).To(Succeed())
	g.Expect(dryRun(t, flux(t), path)).To(Succeed())

	verify := decode(t, source).get(t, "OCIRepository", "stack-controller")
	subject := at(t, verify, "spec", "verify", "matchOIDCIdentity", 0, "subject").(string)
	const workflow = "https://github.com/stack-controller/stack-controller/.github/workflows/release.yaml@refs/"
	g.Expect(inRepository(".github", "workflows", "release.yaml")).To(BeARegularFile())
	g.Expect(workflow + "tags/v1.2.3").To(MatchRegexp(subject))
	for _, other := range []string{workflow + "heads/main", strings.Replace(workflow, "release", "ci", 1) + "tags/v1.2.3", "https://example.com/?" + workflow + "tags/v1"} {
		g.Expect(other).NotTo(MatchRegexp(subject))
	}
}

func TestAlertsAndReceiversNameStacksOncePatched(t *testing.T) {
	t.Parallel()
	g := NewWithT(t)
	cp := flux(t)
	alert := inRepository("config", "flux", "alert.yaml")
	g.Expect(dryRun(t, cp, alert)).To(MatchError(ContainSubstring(`Unsupported value: "Stack"`)), "Flux allows it by now: the patches can go")

	dir := patchedBy(t, "notifications", definitionOf)
	_, err := cp.Kubectl(t.Context(), "apply", "--server-side", "--force-conflicts", "--kustomize", dir)
	g.Expect(err).NotTo(HaveOccurred())
	// The API server uses a changed definition only after a moment.
	g.Eventually(func() error { return dryRun(t, cp, alert) }, "30s", "200ms").Should(Succeed())

	const controller = "--as=system:serviceaccount:flux-system:notification-controller"
	for _, verb := range []string{"get", "list", "watch", "patch"} {
		_, err := cp.Kubectl(t.Context(), "auth", "can-i", verb, "stacks.pulumi.com", "--all-namespaces", controller)
		g.Expect(err).NotTo(HaveOccurred(), verb)
	}
	_, err = cp.Kubectl(t.Context(), "auth", "can-i", "delete", "stacks.pulumi.com", "--all-namespaces", controller)
	g.Expect(err).To(HaveOccurred())
}

// patchedBy returns the directory of a kustomization with the definitions of Alerts and Receivers, and a component that patches them.
func patchedBy(t *testing.T, component string, definition func(*testing.T, string) *apiextensionsv1.CustomResourceDefinition) (dir string) {
	t.Helper()
	dir = kustomization(t, "resources: [alerts.yaml, receivers.yaml]\ncomponents: [repository/config/flux/"+component+"]\n")
	for _, kind := range []string{"alerts", "receivers"} {
		content, err := yaml.Marshal(definition(t, kind))
		NewWithT(t).Expect(err).NotTo(HaveOccurred())
		NewWithT(t).Expect(os.WriteFile(filepath.Join(dir, kind+".yaml"), content, 0o600)).To(Succeed())
	}
	return dir
}

// definitionOf returns the definition of a kind of notification-controller. The kind is given by its plural.
func definitionOf(t *testing.T, kind string) *apiextensionsv1.CustomResourceDefinition {
	t.Helper()
	g := NewWithT(t)
	definitions, err := controlplane.FluxCRDs(t.Context(), "notification-controller")
	g.Expect(err).NotTo(HaveOccurred())
	content, err := os.ReadFile(filepath.Join(definitions, "notification.toolkit.fluxcd.io_"+kind+".yaml"))
	g.Expect(err).NotTo(HaveOccurred())
	definition := &apiextensionsv1.CustomResourceDefinition{}
	g.Expect(yaml.Unmarshal(content, definition)).To(Succeed())
	return definition
}

// The Flux Operator does not install Flux here: it only evaluates ResourceSets.
func TestTheFluxOperatorCreatesTheObjectsThatInstallTheController(t *testing.T) {
	suite.Long(t, "builds the Flux Operator")
	t.Parallel()
	g := NewWithT(t)
	cp := flux(t)
	definitions, err := controlplane.FluxCRDs(t.Context(), "flux-operator")
	g.Expect(err).NotTo(HaveOccurred())
	g.Expect(cp.InstallCRDs(definitions)).To(Succeed())
	operator, err := tools.Path(t.Context(), "flux-operator", nil)
	g.Expect(err).NotTo(HaveOccurred())
	health, err := cp.FreeAddress()
	g.Expect(err).NotTo(HaveOccurred())
	_, err = cp.StartServer(t.Context(), controlplane.Server{
		Name: "flux-operator", Path: operator,
		Args: []string{"--health-addr=" + health, "--metrics-addr=0", "--enable-leader-election=false", "--web-server-port=0"},
		// It refuses to run without FIPS 140-3.
		Env:   []string{"KUBECONFIG=" + cp.KubeconfigPath, "RUNTIME_NAMESPACE=flux-system", "GODEBUG=fips140=on"},
		Ready: cp.AnswersOK("http://" + health + "/readyz"),
	})
	g.Expect(err).NotTo(HaveOccurred())

	// Other tests apply the same objects in the namespace flux-system.
	const namespace = "with-operator"
	_, err = cp.Kubectl(t.Context(), "create", "namespace", namespace)
	g.Expect(err).NotTo(HaveOccurred())
	set := strings.ReplaceAll(read(t, inRepository("config", "flux", "resource_set.yaml")), "namespace: flux-system", "namespace: "+namespace)
	_, err = cp.KubectlInput(t.Context(), set, "apply", "--server-side", "--validate=strict", "-f", "-")
	g.Expect(err).NotTo(HaveOccurred())
	for _, wanted := range decode(t, read(t, inRepository("config", "flux", "oci_repository.yaml"))) {
		g.Eventually(func() (map[string]any, error) {
			created, err := cp.Kubectl(t.Context(), "get", wanted.GetKind()+"/"+wanted.GetName(), "--namespace="+namespace, "--output=json")
			if err != nil {
				return nil, err
			}
			spec, _ := at(t, decode(t, created)[0], "spec").(map[string]any)
			// What the API server adds does not matter.
			maps.DeleteFunc(spec, func(field string, _ any) bool { return at(t, wanted, "spec", field) == nil })
			return spec, nil
		}, "60s", "200ms").Should(Equal(at(t, wanted, "spec")), wanted.GetKind())
	}
}

// installer returns a function that runs install with the arguments, and returns what it prints. It never succeeds, because no node runs the
// controller.
func installer(t *testing.T, cp *controlplane.ControlPlane) func(args ...string) string {
	return func(args ...string) string {
		output, code := fluxPulumi(t, cp, append([]string{"install", "--timeout=1s"}, args...)...)
		NewWithT(t).Expect(code).NotTo(BeZero())
		return output
	}
}

// fluxPulumi runs the command line, and returns what it prints and its exit code.
func fluxPulumi(t *testing.T, cp *controlplane.ControlPlane, args ...string) (printed string, code int) {
	var output strings.Builder
	environment := command.Environment{
		Version: "v1.2.3", Program: "flux-pulumi", In: strings.NewReader(""), Out: &output, Err: &output, Now: time.Now,
		ControllerImage: "stack-controller/stack-controller:v2", AgentImage: "stack-controller/stack-controller-agent:v2",
		Getenv: func(string) string { return "" },
	}
	code = command.Main(t.Context(), environment, append(args, "--kubeconfig="+cp.KubeconfigPath))
	return output.String(), code
}

func TestTheCommandLineSaysWhatIsMissingOfFluxBeforeItInstalls(t *testing.T) {
	suite.Long(t, "needs an API server without Flux")
	t.Parallel()
	g := NewWithT(t)
	ctx := t.Context()
	cp, err := controlplane.Start(ctx, controlplane.Options{CRDs: []string{}})
	g.Expect(err).NotTo(HaveOccurred())
	t.Cleanup(func() { g.Expect(cp.Stop()).To(Succeed()) })
	kubectl := func(args ...string) {
		_, err := cp.Kubectl(ctx, args...)
		g.Expect(err).NotTo(HaveOccurred())
	}
	install := installer(t, cp)
	g.Expect(install()).To(And(ContainSubstring("the namespace flux-system does not exist: install Flux first, with 'flux install'"),
		Not(ContainSubstring("installing"))))

	kubectl("create", "namespace", "flux-system")
	g.Expect(install()).To(And(ContainSubstring("Flux's source-controller is not installed: Stacks can use git and Programs, but no Flux sources."),
		ContainSubstring("objects are applied")))

	// A Stack with a finalizer keeps its definition, which goes with the last of them.
	_, err = cp.Kubectl(ctx, "apply", "--server-side", "--filename="+inRepository("tests", "e2e", "install", "testdata", "kept-stack.yaml"))
	g.Expect(err).NotTo(HaveOccurred())
	kubectl("delete", "crd", "stacks.pulumi.com", "--wait=false")
	g.Expect(install("--force")).To(And(
		ContainSubstring("nothing was changed: CustomResourceDefinition stacks.pulumi.com is being deleted: install again when it is gone"),
		Not(ContainSubstring("objects are applied"))))
	checked, code := fluxPulumi(t, cp, "check")
	g.Expect(code).NotTo(BeZero())
	g.Expect(checked).To(ContainSubstring("stacks.pulumi.com is being deleted"))
	kubectl("patch", "stack", "kept", "--namespace=default", "--type=json", `--patch=[{"op": "remove", "path": "/metadata/finalizers"}]`)
	kubectl("wait", "crd", "stacks.pulumi.com", "--for=delete", "--timeout=60s")
	g.Expect(install()).To(ContainSubstring("objects are applied"))

	// Flux 2.5 has GitRepository v1, and OCIRepository v1beta2.
	sources, err := controlplane.SourceCRDs(ctx)
	g.Expect(err).NotTo(HaveOccurred())
	const git, oci = "source.toolkit.fluxcd.io_gitrepositories.yaml", "source.toolkit.fluxcd.io_ocirepositories.yaml"
	older := filepath.Join(t.TempDir(), oci)
	content := strings.Replace(read(t, sources, oci), "\n    name: v1\n", "\n    name: v1beta2\n", 1)
	g.Expect(os.WriteFile(older, []byte(content), 0o600)).To(Succeed())
	g.Expect(cp.InstallCRDs(filepath.Join(sources, git), older)).To(Succeed())
	kubectl("create", "deployment", "source-controller", "--namespace=flux-system", "--image=source-controller:v1.5.0")
	g.Expect(install()).To(And(
		ContainSubstring("Flux's source-controller: source-controller:v1.5.0"),
		ContainSubstring("✔ GitRepository source.toolkit.fluxcd.io/v1"),
		ContainSubstring("⚠ OCIRepository source.toolkit.fluxcd.io/v1 is not served: Stacks cannot use such a source until you install Flux 2.6 or newer"),
	))
}

func TestInstallTakesNoSettingsOfAnOverlayAway(t *testing.T) {
	suite.Long(t, "needs an API server without an installation")
	t.Parallel()
	g := NewWithT(t)
	ctx := t.Context()
	cp, err := controlplane.Start(ctx, controlplane.Options{CRDs: []string{}})
	g.Expect(err).NotTo(HaveOccurred())
	t.Cleanup(func() { g.Expect(cp.Stop()).To(Succeed()) })
	install := installer(t, cp)
	_, err = cp.Kubectl(ctx, "create", "namespace", "flux-system")
	g.Expect(err).NotTo(HaveOccurred())
	apply := func(overlay string, options ...string) {
		dir := kustomization(t, "resources: [repository/config/default]\n"+overlay)
		output, err := cp.Kubectl(ctx, append(options, "apply", "--server-side", "--force-conflicts", "--kustomize="+dir)...)
		g.Expect(err).NotTo(HaveOccurred(), output)
	}
	const applied, lost = "objects are applied", "the installation has other settings, which this would take away: "

	apply(`patches:
- target: {kind: Deployment}
  patch: |
    - {op: replace, path: /spec/template/spec/containers/0/ports/1/containerPort, value: 9441}
    - {op: replace, path: /spec/template/spec/containers/0/volumeMounts/0/mountPath, value: /files}
    - {op: remove, path: /spec/template/spec/containers/0/imagePullPolicy}
- target: {kind: NetworkPolicy, name: stack-controller-egress}
  patch: |
    - {op: add, path: /spec/podSelector/matchLabels/earlier, value: "true"}
`, "--field-manager=flux-pulumi")
	g.Expect(install()).To(ContainSubstring(applied), "an earlier version that this program has installed, with the defaults of the API server")

	apply("")
	g.Expect(install()).To(ContainSubstring(applied), "install.yaml as it is")
	apply(`patches:
- target: {kind: Deployment}
  patch: |
    - {op: add, path: /spec/template/spec/containers/0/args/-, value: --require-verified-sources=true}
    - {op: replace, path: /spec/replicas, value: 2}
    - {op: replace, path: /spec/template/spec/containers/0/resources/limits/memory, value: 2Gi}
- target: {kind: NetworkPolicy, name: stack-controller-egress}
  patch: |
    - {op: add, path: /spec/egress/-, value: {ports: [{port: 8080}]}}
`)
	g.Expect(install()).To(And(ContainSubstring(lost), ContainSubstring("--require-verified-sources"), ContainSubstring(".spec.replicas"), ContainSubstring("memory"),
		ContainSubstring("NetworkPolicy stack-controller-egress .spec.egress"), Not(ContainSubstring(applied)), Not(ContainSubstring(".image"))))
	g.Expect(install("--force")).To(ContainSubstring(applied))
	g.Expect(install()).To(ContainSubstring(applied), "now they are those of the release")

	_, err = cp.Kubectl(ctx, "patch", "deployment", "stack-controller", "--namespace=flux-system", "--type=json",
		`--patch=[{"op": "remove", "path": "/spec/template/spec/securityContext"}]`)
	g.Expect(err).NotTo(HaveOccurred())
	g.Expect(install()).To(ContainSubstring(lost + "no .spec.template.spec.securityContext.fsGroup"))
}
