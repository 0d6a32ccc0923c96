package localsystem

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"

	"github.com/stack-controller/stack-controller/tests/framework/controlplane"
	"github.com/stack-controller/stack-controller/tests/framework/supervise"
	"github.com/stack-controller/stack-controller/tests/tools"
)

// stopGrace is how long stack-controller may take to end after SIGTERM.
const stopGrace = 30 * time.Second

// StartController starts stack-controller, and returns when it is ready. It is for a controller that was stopped or killed: Start has
// started the first one. The flags apply to this process only.
func (s *System) StartController(ctx context.Context, flags ...string) error {
	process, err := s.run(ctx, controllerName, "data", flags)
	s.controller = process
	return err
}

// StartShard starts a further stack-controller, with its own storage, for the objects that the selector matches.
func (s *System) StartShard(ctx context.Context, name, selector string, flags ...string) (*supervise.Process, error) {
	return s.run(ctx, controllerName+"-"+name, "data-"+name, append([]string{"--watch-label-selector=" + selector}, flags...))
}

// ShardLog returns the path of the log of a shard's controller.
func (s *System) ShardLog(name string) string {
	return s.ControlPlane.LogPath(controllerName + "-" + name)
}

// run starts a stack-controller with its storage in the directory.
func (s *System) run(ctx context.Context, name, storage string, flags []string) (*supervise.Process, error) {
	pulumi, err := s.pulumi(ctx)
	if err != nil {
		return nil, err
	}
	path, err := programPath(ctx)
	if err != nil {
		return nil, err
	}
	return s.ControlPlane.StartProgram(ctx, controlplane.Program{
		Name: name,
		Path: s.binaries.Controller,
		Args: func(metrics, health string) []string {
			if name == controllerName {
				s.MetricsAddr = metrics
			}
			args := []string{
				"--metrics-addr=" + metrics,
				"--health-addr=" + health,
				"--log-level=debug",
				"--workspace-runtime=process",
				// Tests run in parallel, and many operations only wait.
				"--max-operations=200",
				"--git-allow-local-addresses=true", // for the git servers of the tests
				"--storage-path=" + filepath.Join(s.Dir, storage),
				"--agent-path=" + s.binaries.Agent,
				"--pulumi=" + pulumi,
			}
			if s.ControlPlane.EventsAddr != "" {
				args = append(args, "--events-addr="+s.ControlPlane.EventsAddr)
			}
			return slices.Concat(args, s.options.ControllerArgs, flags)
		},
		Env: append([]string{"KUBECONFIG=" + s.kubeconfig, "RUNTIME_NAMESPACE=" + Namespace, "PATH=" + path}, s.options.ControllerEnv...),
	})
}

// StopController ends stack-controller with SIGTERM, as Kubernetes does.
func (s *System) StopController() error { return s.controller.Stop(stopGrace) }

// KillController ends stack-controller with SIGKILL, as the kernel does when memory runs out. Its agents keep running.
func (s *System) KillController() error { return s.controller.Stop(0) }

// ControlWith sets the further flags of the stack-controller that is started next.
func (s *System) ControlWith(args ...string) { s.options.ControllerArgs = args }

// RunWith sets the executables of the stack-controller that is started next.
func (s *System) RunWith(binaries Binaries) { s.binaries = binaries }

// ControlIn sets the further environment variables of the stack-controller that is started next, as NAME=value.
func (s *System) ControlIn(env ...string) { s.options.ControllerEnv = env }

// Controller returns the process of stack-controller.
func (s *System) Controller() *supervise.Process { return s.controller }

// ControllerLog returns the path of stack-controller's log, which all its restarts share.
func (s *System) ControllerLog() string { return s.ControlPlane.LogPath(controllerName) }

// pulumi returns the path of the CLI that stack-controller runs.
func (s *System) pulumi(ctx context.Context) (string, error) {
	if s.options.Pulumi != "" {
		return s.options.Pulumi, nil
	}
	return tools.Path(ctx, "pulumi", s.progress)
}

// programPath returns a PATH on which the pulumi CLI finds the YAML language host.
func programPath(ctx context.Context) (string, error) {
	host, err := tools.Path(ctx, "pulumi-language-yaml", nil)
	if err != nil {
		return "", err
	}
	return filepath.Dir(host) + string(os.PathListSeparator) + os.Getenv("PATH"), nil
}

func (s *System) progress(line string) {
	_, _ = s.options.Log.Write([]byte(line + "\n"))
}

const (
	// Namespace is the namespace that stack-controller takes for its own.
	Namespace = "flux-system"
	// controllerName is the name of stack-controller's ServiceAccount and ClusterRole.
	controllerName = "stack-controller"
)

// createAccount creates stack-controller's ServiceAccount with the generated ClusterRole, and returns a kubeconfig for it.
func (s *System) createAccount(ctx context.Context) (kubeconfig string, err error) {
	role := filepath.Join(tools.RepositoryRoot(), "config", "rbac", "role.yaml")
	if _, err := s.ControlPlane.Kubectl(ctx, "apply", "--filename="+role); err != nil {
		return "", err
	}
	if err := s.Client.Create(ctx, &corev1.Namespace{Name: Namespace}); err != nil {
		return "", fmt.Errorf("create namespace %s: %w", Namespace, err)
	}
	account := &corev1.ServiceAccount{Namespace: Namespace, Name: controllerName}
	if err := s.Client.Create(ctx, account); err != nil {
		return "", fmt.Errorf("create ServiceAccount %s: %w", controllerName, err)
	}
	binding := &rbacv1.ClusterRoleBinding{
		Name:     controllerName,
		RoleRef:  rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "ClusterRole", Name: controllerName},
		Subjects: []rbacv1.Subject{{Kind: rbacv1.ServiceAccountKind, Namespace: Namespace, Name: controllerName}},
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

// AllowElection grants stack-controller the rights for leader election, as its manifests do.
func (s *System) AllowElection(ctx context.Context) error {
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
