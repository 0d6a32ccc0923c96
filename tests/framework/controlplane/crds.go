package controlplane

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"time"

	"sigs.k8s.io/controller-runtime/pkg/envtest"

	"github.com/stack-controller/stack-controller/tests/tools"
)

// crdTimeout bounds the wait until the API server serves new kinds.
const crdTimeout = 30 * time.Second

// ProductCRDs returns the directory of stack-controller's own definitions.
func ProductCRDs() string {
	return filepath.Join(tools.RepositoryRoot(), "config", "crd", "bases")
}

// SourceCRDs returns the directory of the definitions of Flux's sources.
func SourceCRDs(ctx context.Context) (string, error) {
	return FluxCRDs(ctx, "source-controller")
}

// FluxCRDs returns the directory, in the module cache, of the definitions of a Flux controller, in exactly the version that tests/tools
// pins.
func FluxCRDs(ctx context.Context, controller string) (string, error) {
	module, directory, err := tools.Module(controller)
	if err != nil {
		return "", err
	}
	cmd := exec.CommandContext(ctx, "go", "mod", "download", "-json", module)
	cmd.Dir = directory
	cmd.Env = append(os.Environ(), "GOFLAGS=", "GOWORK=off")
	output, err := cmd.Output()
	if err != nil {
		return "", fmt.Errorf("find module %s: %w\n%s", module, err, output)
	}
	var found struct{ Dir string }
	if err := json.Unmarshal(output, &found); err != nil {
		return "", fmt.Errorf("find module %s: %w", module, err)
	}
	return filepath.Join(found.Dir, "config", "crd", "bases"), nil
}

// installInitialCRDs installs the definitions that the options ask for.
func (cp *ControlPlane) installInitialCRDs(ctx context.Context) error {
	paths := cp.options.CRDs
	if paths == nil {
		paths = []string{ProductCRDs()}
	}
	for controller, wanted := range map[string]bool{
		"source-controller":       cp.options.CRDs == nil || cp.options.WithSourceController,
		"notification-controller": cp.options.WithNotificationController,
		kustomizeController:       cp.options.WithKustomizeController,
	} {
		if !wanted {
			continue
		}
		dir, err := FluxCRDs(ctx, controller)
		if err != nil {
			return err
		}
		paths = append(paths, dir)
	}
	return cp.InstallCRDs(paths...)
}

// InstallCRDs installs or updates the definitions in the given files and directories and returns when the API server
// serves their kinds.
func (cp *ControlPlane) InstallCRDs(paths ...string) error {
	if len(paths) == 0 {
		return nil
	}
	_, err := envtest.InstallCRDs(cp.config, envtest.CRDInstallOptions{
		Paths:              paths,
		ErrorIfPathMissing: true,
		MaxTime:            crdTimeout,
		PollInterval:       pollInterval,
	})
	if err != nil {
		return fmt.Errorf("install the CRDs: %w", err)
	}
	return nil
}
