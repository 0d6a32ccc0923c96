package stage

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/stack-controller/stack-controller/tests/tools"
)

const (
	// Namespace is where stack-controller believes it runs.
	Namespace = "flux-system"
	// controllerName is the name of stack-controller's ServiceAccount and ClusterRole.
	controllerName = "stack-controller"
)

// createAccount makes stack-controller's ServiceAccount with the generated ClusterRole and returns a kubeconfig for it.
func (s *Stage) createAccount(ctx context.Context) (kubeconfig string, err error) {
	role := filepath.Join(tools.RepositoryRoot(), "config", "rbac", "role.yaml")
	if _, err := s.ControlPlane.Kubectl(ctx, "apply", "--filename="+role); err != nil {
		return "", err
	}
	if err := s.Client.Create(ctx, &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: Namespace}}); err != nil {
		return "", fmt.Errorf("create namespace %s: %w", Namespace, err)
	}
	account := &corev1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Namespace: Namespace, Name: controllerName}}
	if err := s.Client.Create(ctx, account); err != nil {
		return "", fmt.Errorf("create ServiceAccount %s: %w", controllerName, err)
	}
	binding := &rbacv1.ClusterRoleBinding{
		ObjectMeta: metav1.ObjectMeta{Name: controllerName},
		RoleRef:    rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "ClusterRole", Name: controllerName},
		Subjects:   []rbacv1.Subject{{Kind: rbacv1.ServiceAccountKind, Namespace: Namespace, Name: controllerName}},
	}
	if err := s.Client.Create(ctx, binding); err != nil {
		return "", fmt.Errorf("bind ClusterRole %s: %w", controllerName, err)
	}
	config, err := s.ControlPlane.ServiceAccountConfig(ctx, Namespace, controllerName)
	if err != nil {
		return "", err
	}
	return s.ControlPlane.WriteKubeconfig(controllerName, config)
}

// AllowElection gives stack-controller the rights that electing a leader needs, as its manifests do.
func (s *Stage) AllowElection(ctx context.Context) error {
	for _, name := range []string{"leader_election_role.yaml", "leader_election_role_binding.yaml"} {
		manifest, err := os.ReadFile(filepath.Join(tools.RepositoryRoot(), "config", "rbac", name))
		if err != nil {
			return fmt.Errorf("read the role for the election of a leader: %w", err)
		}
		here := strings.ReplaceAll(string(manifest), "namespace: system", "namespace: "+Namespace)
		if _, err := s.ControlPlane.KubectlInput(ctx, here, "apply", "--filename=-"); err != nil {
			return err
		}
	}
	return nil
}
