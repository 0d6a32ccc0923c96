package flux_test

import (
	"context"
	"fmt"
	"strings"
	"testing"

	. "github.com/onsi/gomega"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/fluxcd/cli-utils/pkg/kstatus/status"

	pulumiv1 "github.com/stack-controller/stack-controller/api/pulumi/v1"
	"github.com/stack-controller/stack-controller/tests/framework/controlplane"
	"github.com/stack-controller/stack-controller/tests/framework/gitserver"
	"github.com/stack-controller/stack-controller/tests/framework/statuscheck"
	"github.com/stack-controller/stack-controller/tests/framework/systemtest"
	"github.com/stack-controller/stack-controller/tests/tools"
)

const helmController = "helm-controller"

var helmReleases = schema.GroupVersionKind{Group: "helm.toolkit.fluxcd.io", Version: "v2", Kind: "HelmRelease"}

// startHelmController runs Flux's helm-controller with the rights of an administrator, as in an installation of Flux.
func startHelmController(ctx context.Context, cp *controlplane.ControlPlane) error {
	return startController(ctx, cp, helmController, "", "--watch-all-namespaces=true", "--requeue-dependency=1s", "--events-addr="+cp.EventsAddr,
		"--graceful-shutdown-timeout=5s")
}

// startController installs the definitions of a controller, and runs it with the environment variable GODEBUG and the flags.
func startController(ctx context.Context, cp *controlplane.ControlPlane, name, debug string, flags ...string) error {
	definitions, err := controlplane.FluxCRDs(ctx, name)
	if err != nil {
		return err
	}
	if err := cp.InstallCRDs(definitions); err != nil {
		return fmt.Errorf("install the definitions of %s: %w", name, err)
	}
	path, err := tools.Path(ctx, name, nil)
	if err != nil {
		return err
	}
	health, err := cp.FreeAddress()
	if err != nil {
		return err
	}
	_, err = cp.StartServer(ctx, controlplane.Server{
		Name: name, Path: path,
		Args:  append([]string{"--health-addr=" + health, "--metrics-addr=0", "--enable-leader-election=false"}, flags...),
		Env:   []string{"KUBECONFIG=" + cp.KubeconfigPath, "RUNTIME_NAMESPACE=flux-system", "GODEBUG=" + debug},
		Ready: cp.AnswersOK("http://" + health + "/readyz"),
	})
	return err
}

// chart is a Helm chart with a Stack and the GitRepository of its program.
var chart = gitserver.Files{
	"chart/Chart.yaml": "{apiVersion: v2, name: shop, version: 0.1.0}\n",
	"chart/templates/stack.yaml": `
apiVersion: source.toolkit.fluxcd.io/v1
kind: GitRepository
metadata: {name: "{{ .Release.Name }}-program"}
spec: {interval: 1h, url: "{{ .Values.url }}", ref: {branch: main}}
---
apiVersion: pulumi.com/v1
kind: Stack
metadata: {name: "{{ .Release.Name }}"}
spec:
  stack: dev
  backend: BACKEND
  fluxSource: {sourceRef: {kind: GitRepository, name: "{{ .Release.Name }}-program"}}
  envRefs:
    PULUMI_CONFIG_PASSPHRASE: {type: Secret, secret: {name: pulumi, key: passphrase}}
  config: {"{{ .Release.Name }}:size": "{{ .Values.size }}"}
  destroyOnFinalize: true
  updateTemplate: {spec: {remove: true}}
`,
}

const release = `
apiVersion: helm.toolkit.fluxcd.io/v2
kind: HelmRelease
metadata: {name: released}
spec:
  interval: 1h
  timeout: 5m
  chart: {spec: {chart: ./chart, reconcileStrategy: Revision, sourceRef: {kind: GitRepository, name: released}}}
  values: {url: URL/released-program, size: SIZE}
`

func TestHelmReleaseIsReadyWithItsStackUpgradesItAndEndsWithIt(t *testing.T) {
	p := begin(t, "released")
	_, _, err := system.Git.Create("released-program", systemtest.Program(p.Name, "config:", "  size: string", "outputs:", "  x: ${size}"))
	p.Succeed(err)
	p.repository(p.Name, p.filled(chart))
	p.release("small")
	p.await(helmReleases, p.Name, status.CurrentStatus)
	stack := p.stack(p.Name)
	p.Expect(statuscheck.Ready("")(stack)).To(BeTrue(), "the HelmRelease was ready before the Stack: %v", stack.Status.Conditions)
	p.Expect(systemtest.Output(stack, "x")).To(Equal(`"small"`))

	// When the HelmRelease is ready, neither controller writes because of the other one.
	before := p.stack(p.Name)
	p.reconcile(helmReleases, p.Name)
	p.await(helmReleases, p.Name, status.CurrentStatus)
	p.Expect(p.stack(p.Name).ResourceVersion).To(Equal(before.ResourceVersion))

	p.release("large")
	p.Eventually(func() string {
		p.await(helmReleases, p.Name, status.CurrentStatus)
		return systemtest.Output(p.stack(p.Name), "x")
	}).Should(Equal(`"large"`))
	p.Expect(p.Updates()).To(HaveLen(2))
	p.Expect(p.stack(p.Name).Generation).To(BeEquivalentTo(2))

	// Helm deletes the GitRepository together with the Stack. The destroy works without the GitRepository.
	object := p.object(helmReleases, p.Name)
	p.Expect(system.Client.Delete(p.Context(), object)).To(Succeed())
	p.Eventually(func() bool {
		return apierrors.IsNotFound(system.Client.Get(p.Context(), p.Key(p.Name), object))
	}).Should(BeTrue())
	err = system.Client.Get(p.Context(), p.Key(p.Name), &pulumiv1.Stack{})
	p.Expect(apierrors.IsNotFound(err)).To(BeTrue(), "the HelmRelease did not wait for the Stack: %v", err)
	p.Expect(p.HasState(p.Name, "dev")).To(BeFalse(), "it was destroyed")
}

// release applies the HelmRelease with a value.
func (p *fixture) release(size string) {
	p.Helper()
	p.apply(strings.Replace(release, "SIZE", size, 1))
}
