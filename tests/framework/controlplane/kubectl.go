package controlplane

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
)

// Command returns a command that runs in the network of the servers.
func (cp *ControlPlane) Command(ctx context.Context, path string, args ...string) *exec.Cmd {
	path, args = cp.network.Enter(path, args)
	return exec.CommandContext(ctx, path, args...)
}

// Kubectl runs the real kubectl as administrator and returns its standard output. The error of a failed run contains its standard error.
func (cp *ControlPlane) Kubectl(ctx context.Context, args ...string) (string, error) {
	return cp.KubectlInput(ctx, "", args...)
}

// KubectlInput is Kubectl with something on standard input, for example a manifest for "apply -f -".
func (cp *ControlPlane) KubectlInput(ctx context.Context, input string, args ...string) (string, error) {
	path, err := cp.tool(ctx, "kubectl")
	if err != nil {
		return "", err
	}
	var stdout, stderr bytes.Buffer
	cmd := cp.Command(ctx, path, args...)
	cmd.Env = append(os.Environ(), "KUBECONFIG="+cp.KubeconfigPath, "KUBECACHEDIR="+filepath.Join(cp.Dir, "kubectl"))
	cmd.Stdin = strings.NewReader(input)
	cmd.Stdout = &stdout
	cmd.Stderr = &stderr
	if err := cmd.Run(); err != nil {
		return stdout.String(), fmt.Errorf("kubectl %s: %w: %s", strings.Join(args, " "), err, strings.TrimSpace(stderr.String()))
	}
	return stdout.String(), nil
}
