package podstage

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"sigs.k8s.io/yaml"

	"github.com/stack-controller/stack-controller/tests/cluster"
	"github.com/stack-controller/stack-controller/tests/images"
	"github.com/stack-controller/stack-controller/tests/tools"
)

// InstallController installs stack-controller from config/default, or updates it, and returns when it is ready.
func (s *Stage) InstallController(ctx context.Context) error {
	overlay, err := s.overlay()
	if err != nil {
		return err
	}
	// On the server's side: as everybody should, for the size of the CRDs.
	if _, err := s.Cluster.Kubectl(ctx, "apply", "--server-side", "--force-conflicts", "--kustomize="+overlay); err != nil {
		return err
	}
	return s.AwaitController(ctx)
}

// AwaitController waits until the Deployment of stack-controller is rolled out.
func (s *Stage) AwaitController(ctx context.Context) error {
	_, err := s.Cluster.Kubectl(ctx, "rollout", "status", "deployment/"+ControllerName,
		"--namespace="+cluster.FluxNamespace, "--timeout=120s")
	if err != nil {
		log, _ := s.ControllerLog(ctx, 30) // the first error is the one that counts
		return fmt.Errorf("%w\n%s", err, log)
	}
	return nil
}

// ControllerLog returns the last lines that stack-controller wrote.
func (s *Stage) ControllerLog(ctx context.Context, lines int) (string, error) {
	return s.Cluster.Kubectl(ctx, "logs", "deployment/"+ControllerName, "--namespace="+cluster.FluxNamespace,
		"--tail="+strconv.Itoa(lines))
}

// overlay writes what a user would write: config/default with other images and flags. It returns the directory.
func (s *Stage) overlay() (string, error) {
	dir := filepath.Join(s.Cluster.Dir, "overlay")
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return "", fmt.Errorf("create the overlay: %w", err)
	}
	base, err := filepath.Rel(dir, filepath.Join(tools.RepositoryRoot(), "config", "default"))
	if err != nil {
		return "", fmt.Errorf("find config/default: %w", err)
	}
	args := []string{"--log-level=debug"}
	if !s.options.WithNotificationController {
		args = append(args, "--events-addr=")
	}
	args = append(args, s.options.ControllerArgs...)
	patch := make([]map[string]any, 0, len(args))
	for _, arg := range args {
		patch = append(patch, map[string]any{"op": "add", "path": "/spec/template/spec/containers/0/args/-", "value": arg})
	}
	operations, err := yaml.Marshal(patch)
	if err != nil {
		return "", fmt.Errorf("encode the overlay: %w", err)
	}
	content, err := yaml.Marshal(map[string]any{
		"apiVersion": "kustomize.config.k8s.io/v1beta1",
		"kind":       "Kustomization",
		"resources":  []string{base},
		"images":     []any{replacement("stack-controller/stack-controller", s.Images.Controller), replacement("stack-controller/stack-controller-agent", s.Images.Agent)},
		"patches":    []any{map[string]any{"target": map[string]string{"kind": "Deployment"}, "patch": string(operations)}},
	})
	if err != nil {
		return "", fmt.Errorf("encode the overlay: %w", err)
	}
	return dir, os.WriteFile(filepath.Join(dir, "kustomization.yaml"), content, 0o600)
}

// replacement is an entry of kustomize's images.
func replacement(name string, image images.Image) map[string]string {
	at := strings.LastIndex(image.Reference, ":")
	return map[string]string{"name": name, "newName": image.Reference[:at], "newTag": image.Reference[at+1:]}
}
