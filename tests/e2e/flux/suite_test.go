// Package flux_test runs stack-controller beside Flux's own source-, kustomize-, helm- and notification-controller: Stacks that
// Kustomizations and HelmReleases apply, webhooks, alerts, and a whole fleet repository.
package flux_test

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	. "github.com/onsi/gomega"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/fluxcd/cli-utils/pkg/kstatus/status"
	"github.com/fluxcd/pkg/apis/meta"

	"github.com/stack-controller/stack-controller/tests/framework/canary"
	"github.com/stack-controller/stack-controller/tests/framework/controlplane"
	"github.com/stack-controller/stack-controller/tests/framework/gitserver"
	"github.com/stack-controller/stack-controller/tests/framework/localsystem"
	"github.com/stack-controller/stack-controller/tests/framework/otlpreceiver"
	"github.com/stack-controller/stack-controller/tests/framework/suite"
	"github.com/stack-controller/stack-controller/tests/framework/systemtest"
	"github.com/stack-controller/stack-controller/tests/tools"
)

// Secret values that the tests use. Nothing that stack-controller writes may contain them.
const (
	encryptedCanary  = "encrypted-canary-77c1" // in testdata/secret.enc.yaml
	passphraseCanary = "passphrase-canary-3e8d"
)

var (
	system *localsystem.System
	traces *otlpreceiver.Receiver
)

func TestMain(m *testing.M) {
	suite.LongPackage("beside all of Flux's controllers")
	var err error
	if traces, err = otlpreceiver.Start(); err != nil {
		_, _ = os.Stderr.WriteString(err.Error() + "\n")
		os.Exit(1)
	}
	shared := systemtest.Suite{
		Options: localsystem.Options{
			WithNotificationController: true, WithKustomizeController: true,
			ControllerArgs: []string{"--concurrent=8", "--requeue-dependency=1s", "--enable-tracing"},
			ControllerEnv:  []string{"OTEL_EXPORTER_OTLP_ENDPOINT=" + traces.Endpoint("http/protobuf"), "OTEL_BSP_SCHEDULE_DELAY=200"},
		},
		SetUp: func(ctx context.Context, on *localsystem.System) error {
			system = on
			if err := startHelmController(ctx, on.ControlPlane); err != nil {
				return err
			}
			return allowStacks(ctx, on.ControlPlane)
		},
		Leaks: func(ctx context.Context, on *localsystem.System) ([]string, error) {
			leaks, err := canary.Find(ctx, on, nil, encryptedCanary, passphraseCanary)
			for _, secret := range []string{encryptedCanary, passphraseCanary} {
				if strings.Contains(fmt.Sprint(traces.Spans()), secret) {
					leaks = append(leaks, "the traces have "+secret)
				}
			}
			return leaks, err
		},
	}
	code := shared.Run(m)
	traces.Stop()
	os.Exit(code)
}

// allowStacks applies the component that allows Stacks in Alerts and Receivers to Flux's CRDs.
func allowStacks(ctx context.Context, cp *controlplane.ControlPlane) error {
	definitions, err := controlplane.FluxCRDs(ctx, "notification-controller")
	if err != nil {
		return err
	}
	dir := filepath.Join(cp.Dir, "patched")
	if err := os.Mkdir(dir, 0o700); err != nil {
		return fmt.Errorf("create the directory of the kustomization: %w", err)
	}
	component, err := filepath.Rel(dir, filepath.Join(tools.RepositoryRoot(), "config", "flux", "notifications"))
	if err != nil {
		return fmt.Errorf("find the component: %w", err)
	}
	files := map[string]string{"kustomization.yaml": "resources: [alerts.yaml, receivers.yaml]\ncomponents: [" + component + "]\n"}
	for _, kind := range []string{"alerts", "receivers"} {
		content, err := os.ReadFile(filepath.Join(definitions, "notification.toolkit.fluxcd.io_"+kind+".yaml"))
		if err != nil {
			return fmt.Errorf("read the definition of %s: %w", kind, err)
		}
		files[kind+".yaml"] = string(content)
	}
	for name, content := range files {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(content), 0o600); err != nil {
			return fmt.Errorf("write the kustomization: %w", err)
		}
	}
	_, err = cp.Kubectl(ctx, "apply", "--server-side", "--force-conflicts", "--kustomize", dir)
	return err
}

// fixture is a fixture that also has objects of Flux.
type fixture struct{ *systemtest.Fixture }

func begin(t *testing.T, name string) *fixture {
	t.Helper()
	t.Parallel()
	p := &fixture{systemtest.New(t, system, name, systemtest.Patience)}
	p.Enter(map[string]string{localsystem.PassphraseKey: passphraseCanary})
	return p
}

// The versions of Flux's API that the tests use.
var (
	kustomizations = schema.GroupVersionKind{Group: "kustomize.toolkit.fluxcd.io", Version: "v1", Kind: "Kustomization"}
	receivers      = schema.GroupVersionKind{Group: "notification.toolkit.fluxcd.io", Version: "v1", Kind: "Receiver"}
)

// apply applies manifests in the namespace. NAMESPACE, URL/ and BACKEND are replaced by those of the fixture. It tries again while the API
// server still uses the earlier version of a changed CRD.
func (p *fixture) apply(manifest string) {
	p.Helper()
	p.Eventually(func() error {
		_, err := system.ControlPlane.KubectlInput(p.Context(), p.fill(manifest), "apply", "--server-side", "--namespace="+p.Name, "-f", "-")
		return err
	}).Should(Succeed())
}

func (p *fixture) fill(text string) string {
	return strings.NewReplacer("NAMESPACE", p.Name, "URL/", system.Git.URL(""), "BACKEND", system.BackendURL).Replace(text)
}

// filled replaces the placeholders in the files of a repository.
func (p *fixture) filled(files gitserver.Files) gitserver.Files {
	result := gitserver.Files{}
	for name, content := range files {
		result[name] = p.fill(content)
	}
	return result
}

// testdata returns the content of a file in testdata.
func (p *fixture) testdata(name string) string {
	p.Helper()
	content, err := os.ReadFile(filepath.Join("testdata", name))
	p.Succeed(err)
	return string(content)
}

// object reads an object of the kind.
func (p *fixture) object(kind schema.GroupVersionKind, name string) *unstructured.Unstructured {
	p.Helper()
	object := &unstructured.Unstructured{}
	object.SetGroupVersionKind(kind)
	p.Get(name, object)
	return object
}

// await waits until Flux's library computes the status for the object, and returns the object. A status for an earlier generation does not
// count.
func (p *fixture) await(kind schema.GroupVersionKind, name string, want status.Status) *unstructured.Unstructured {
	p.Helper()
	var object *unstructured.Unstructured
	p.Eventually(func(g Gomega) {
		object = p.object(kind, name)
		result, err := status.Compute(object)
		g.Expect(err).NotTo(HaveOccurred())
		_, reason, message := ready(object)
		g.Expect(result.Status).To(Equal(want), "%s: %s: %s", result.Message, reason, message)
	}).Should(Succeed())
	return object
}

// ready returns the condition Ready of an object.
func ready(object *unstructured.Unstructured) (state, reason, message string) {
	entries, _, _ := unstructured.NestedSlice(object.Object, "status", "conditions")
	for _, entry := range entries {
		if condition, ok := entry.(map[string]any); ok && condition["type"] == meta.ReadyCondition {
			return fmt.Sprint(condition["status"]), fmt.Sprint(condition["reason"]), fmt.Sprint(condition["message"])
		}
	}
	return "", "", ""
}

// reconcile requests a reconcile as "flux reconcile" does, and waits until the request was handled.
func (p *fixture) reconcile(kind schema.GroupVersionKind, name string) {
	p.Helper()
	token := time.Now().Format(time.RFC3339Nano)
	p.annotate(kind, name, map[string]string{meta.ReconcileRequestAnnotation: token})
	p.Eventually(func() string {
		handled, _, _ := unstructured.NestedString(p.object(kind, name).Object, "status", "lastHandledReconcileAt")
		return handled
	}).Should(Equal(token))
}

func (p *fixture) annotate(kind schema.GroupVersionKind, name string, annotations map[string]string) {
	p.Helper()
	content, err := json.Marshal(map[string]any{"metadata": map[string]any{"annotations": annotations}})
	p.Succeed(err)
	object := &unstructured.Unstructured{}
	object.SetGroupVersionKind(kind)
	object.SetNamespace(p.Name)
	object.SetName(name)
	p.Expect(system.Client.Patch(p.Context(), object, client.RawPatch("application/merge-patch+json", content))).To(Succeed())
}

// repository creates a repository on the git server, and a GitRepository with its name in the namespace.
func (p *fixture) repository(name string, files gitserver.Files) *gitserver.Repository {
	p.Helper()
	repository, _, err := system.Git.Create(name, files)
	p.Succeed(err)
	p.apply(fmt.Sprintf(`
apiVersion: source.toolkit.fluxcd.io/v1
kind: GitRepository
metadata: {name: %s}
spec: {interval: 1h, url: %s, ref: {branch: main}}
`, name, repository.URL))
	return repository
}

// commit commits the files, and requests that source-controller fetches the commit.
func (p *fixture) commit(repository *gitserver.Repository, name string, files gitserver.Files) (sha string) {
	p.Helper()
	sha, err := repository.Commit(files)
	p.Succeed(err)
	p.annotate(gitRepositories, name, map[string]string{meta.ReconcileRequestAnnotation: sha})
	return sha
}

var gitRepositories = schema.GroupVersionKind{Group: "source.toolkit.fluxcd.io", Version: "v1", Kind: "GitRepository"}
