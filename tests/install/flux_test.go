package install_test

import (
	"context"
	"os"
	"path/filepath"
	"sync"
	"testing"

	"github.com/go-logr/logr"
	. "github.com/onsi/gomega"
	"sigs.k8s.io/controller-runtime/pkg/log"

	"github.com/stack-controller/stack-controller/tests/controlplane"
)

// startFlux starts an API server with Flux's definitions, when the first test needs it.
var startFlux = sync.OnceValues(func() (*controlplane.ControlPlane, error) {
	ctx := context.Background()
	definitions := []string{controlplane.ProductCRDs()}
	for _, controller := range []string{"source-controller", "kustomize-controller", "notification-controller"} {
		dir, err := controlplane.FluxCRDs(ctx, controller)
		if err != nil {
			return nil, err
		}
		definitions = append(definitions, dir)
	}
	return controlplane.Start(ctx, controlplane.Options{Log: os.Stderr, CRDs: definitions})
})

var fluxWanted bool

func TestMain(m *testing.M) {
	log.SetLogger(logr.Discard())
	code := m.Run()
	if fluxWanted {
		if cp, err := startFlux(); err == nil && cp.Stop() != nil {
			code = 1
		}
	}
	if err := stopRealCluster(); err != nil {
		_, _ = os.Stderr.WriteString(err.Error() + "\n")
		code = 1
	}
	os.Exit(code)
}

// flux returns the API server with the namespace flux-system.
func flux(t *testing.T) *controlplane.ControlPlane {
	t.Helper()
	fluxWanted = true
	g := NewWithT(t)
	cp, err := startFlux()
	g.Expect(err).NotTo(HaveOccurred())
	_, err = cp.KubectlInput(t.Context(), "{apiVersion: v1, kind: Namespace, metadata: {name: flux-system}}", "apply", "--server-side", "-f", "-")
	g.Expect(err).NotTo(HaveOccurred())
	return cp
}

// dryRun asks the API server whether it takes a file.
func dryRun(t *testing.T, cp *controlplane.ControlPlane, path string) error {
	t.Helper()
	_, err := cp.Kubectl(t.Context(), "apply", "--server-side", "--dry-run=server", "--validate=strict", "-f", path)
	return err
}

func TestFluxTakesTheSourcesAndKustomizationsThatInstallTheController(t *testing.T) {
	g := NewWithT(t)
	cp := flux(t)
	for _, file := range []string{"oci_repository.yaml", "git_repository.yaml"} {
		g.Expect(dryRun(t, cp, inRepository("config", "flux", file))).To(Succeed())
	}
}

func TestAlertsAndReceiversNameStacksOncePatched(t *testing.T) {
	g := NewWithT(t)
	cp := flux(t)
	alert := inRepository("config", "flux", "alert.yaml")
	g.Expect(dryRun(t, cp, alert)).To(MatchError(ContainSubstring(`Unsupported value: "Stack"`)), "Flux allows it by now: the patches can go")

	definitions, err := controlplane.FluxCRDs(t.Context(), "notification-controller")
	g.Expect(err).NotTo(HaveOccurred())
	dir := kustomization(t, `
resources:
- alerts.yaml
- receivers.yaml
components: [repository/config/flux/notifications]
`)
	for _, kind := range []string{"alerts", "receivers"} {
		content, err := os.ReadFile(filepath.Join(definitions, "notification.toolkit.fluxcd.io_"+kind+".yaml"))
		g.Expect(err).NotTo(HaveOccurred())
		g.Expect(os.WriteFile(filepath.Join(dir, kind+".yaml"), content, 0o600)).To(Succeed())
	}
	_, err = cp.Kubectl(t.Context(), "apply", "--server-side", "--force-conflicts", "--kustomize", dir)
	g.Expect(err).NotTo(HaveOccurred())
	// The API server takes a changed definition into use a moment later.
	g.Eventually(func() error { return dryRun(t, cp, alert) }, "30s", "200ms").Should(Succeed())

	const controller = "--as=system:serviceaccount:flux-system:notification-controller"
	for _, verb := range []string{"get", "list", "watch", "patch"} {
		_, err := cp.Kubectl(t.Context(), "auth", "can-i", verb, "stacks.pulumi.com", "--all-namespaces", controller)
		g.Expect(err).NotTo(HaveOccurred(), verb)
	}
	_, err = cp.Kubectl(t.Context(), "auth", "can-i", "delete", "stacks.pulumi.com", "--all-namespaces", controller)
	g.Expect(err).To(HaveOccurred())
}
