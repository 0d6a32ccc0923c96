// Package rbac_test removes each right of the controller and shows what fails without it, on a real API server. The table of rights in
// docs/rbac.md is generated from the same rows.
package rbac_test

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	. "github.com/onsi/gomega"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/client-go/rest"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/stack-controller/stack-controller/tests/framework/controlplane"
	"github.com/stack-controller/stack-controller/tests/framework/localsystem"
	"github.com/stack-controller/stack-controller/tests/framework/supervise"
	"github.com/stack-controller/stack-controller/tests/tools"
)

const (
	namespace = "flux-system"
	account   = "stack-controller"
	user      = "system:serviceaccount:" + namespace + ":" + account

	patience = 30 * time.Second
	poll     = 100 * time.Millisecond
)

// installation is a control plane without nodes, with a controller that has the rights of the manifests.
type installation struct {
	*controlplane.ControlPlane
	// client is the client of the administrator.
	client client.Client
	// config is the configuration of the controller.
	config     *rest.Config
	kubeconfig string
	// runtimeNamespace is the namespace that the controller takes for its own.
	runtimeNamespace string
	binary           string
}

var startInstallation = sync.OnceValues(func() (*installation, error) {
	ctx := context.Background()
	binaries, err := localsystem.Build(ctx, nil)
	if err != nil {
		return nil, err
	}
	s := &installation{binary: binaries.Controller, runtimeNamespace: namespace}
	if s.ControlPlane, err = controlplane.Start(ctx, controlplane.Options{
		Log: os.Stderr,
		// The plugin is enabled as in OpenShift: without it, the rights to finalizers make no difference.
		AdmissionPlugins: []string{"OwnerReferencesPermissionEnforcement"},
	}); err != nil {
		return nil, err
	}
	return s, s.install(ctx)
})

// install applies the manifests, and writes the controller's kubeconfig.
func (s *installation) install(ctx context.Context) (err error) {
	if s.client, err = localsystem.NewClient(s.Config()); err != nil {
		return err
	}
	for _, controller := range []string{"kustomize-controller", "helm-controller"} {
		crds, err := controlplane.FluxCRDs(ctx, controller)
		if err != nil {
			return err
		}
		if err := s.InstallCRDs(crds); err != nil {
			return err
		}
	}
	if err := s.client.Create(ctx, &corev1.Namespace{Name: namespace}); err != nil {
		return fmt.Errorf("create the namespace: %w", err)
	}
	manifests := filepath.Join(tools.RepositoryRoot(), "config", "default")
	if _, err := s.Kubectl(ctx, "apply", "--server-side", "--force-conflicts", "--kustomize", manifests); err != nil {
		return err
	}
	if s.config, err = s.ServiceAccountConfig(ctx, namespace, account); err != nil {
		return err
	}
	s.kubeconfig, err = s.WriteKubeconfig(account, s.config)
	return err
}

var sceneWanted bool

func TestMain(m *testing.M) {
	code := m.Run()
	if sceneWanted {
		if s, err := startInstallation(); s != nil && s.ControlPlane != nil {
			if err != nil {
				fmt.Fprintln(os.Stderr, err)
			}
			if err := s.Stop(); err != nil {
				fmt.Fprintln(os.Stderr, err)
				code = 1
			}
		}
	}
	os.Exit(code)
}

func newInstallation(t *testing.T) *installation {
	t.Helper()
	sceneWanted = true
	s, err := startInstallation()
	NewWithT(t).Expect(err).NotTo(HaveOccurred())
	return s
}

// controller is a running controller.
type controller struct {
	*supervise.Process
	log string
}

// startController runs a controller with further flags until the test ends. It returns when the controller is up, which does not depend on
// its rights. The controller lists before it watches, as with API servers that cannot stream lists.
func (s *installation) startController(t *testing.T, flags ...string) *controller {
	t.Helper()
	name := "controller-" + strings.ReplaceAll(strings.ToLower(t.Name()), "/", "-") + fmt.Sprint(time.Now().UnixNano()%1e6)
	c := &controller{log: s.LogPath(name)}
	var err error
	c.Process, err = s.StartProgram(t.Context(), controlplane.Program{
		Name: name,
		Path: s.binary,
		Args: func(metrics, health string) []string {
			return append([]string{
				"--metrics-addr=" + metrics, "--health-addr=" + health, "--storage-path=" + filepath.Join(s.Dir, name), "--log-level=debug",
				"--agent-image=example.com/agent", "--feature-gates=ExternalArtifact=true", "--requeue-dependency=2s", "--max-retry-delay=2s",
			}, flags...)
		},
		Env: []string{"KUBECONFIG=" + s.kubeconfig, "RUNTIME_NAMESPACE=" + s.runtimeNamespace, "KUBE_FEATURE_WatchListClient=false"},
	})
	NewWithT(t).Expect(err).NotTo(HaveOccurred())
	t.Cleanup(func() {
		if err := c.Stop(0); err != nil {
			t.Error(err)
		}
		if t.Failed() {
			t.Log(controlplane.Tail(c.log, 30))
		}
	})
	return c
}

// logged returns the log of the controller, with unescaped quotes.
func (c *controller) logged() (string, error) {
	content, err := os.ReadFile(c.log)
	return strings.ReplaceAll(string(content), `\"`, `"`), err
}
