// Package migration_test follows the migration guide, to this controller and back. It runs the guide's commands in order, on objects as the
// Pulumi Kubernetes Operator leaves them, and checks that the results are as the guide says.
package migration_test

import (
	"context"
	"fmt"
	"io"
	"log"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/go-logr/logr"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/stack-controller/stack-controller/tests/framework/controlplane"
	"github.com/stack-controller/stack-controller/tests/framework/localsystem"
	"github.com/stack-controller/stack-controller/tests/framework/suite"
	"github.com/stack-controller/stack-controller/tests/tools"
)

const (
	// namespace is the namespace of the Stacks.
	namespace         = "apps"
	operatorNamespace = "pulumi-kubernetes-operator"

	patience     = 120 * time.Second
	pollInterval = 200 * time.Millisecond
	logLines     = 100
)

var system *localsystem.System

func TestMain(m *testing.M) {
	suite.LongPackage("walks the guide of the migration, over and back")
	ctrl.SetLogger(logr.Discard())
	log.SetOutput(io.Discard) // the git server logs every request
	os.Exit(run(m))
}

func run(m *testing.M) (code int) {
	ctx := context.Background()
	var err error
	system, err = localsystem.Start(ctx, localsystem.Options{Log: os.Stderr, ControllerArgs: []string{"--concurrent=8", "--workspace-idle-timeout=5s"}})
	if err == nil {
		defer func() {
			if code != 0 {
				fmt.Fprintln(os.Stderr, controlplane.Tail(system.ControllerLog(), logLines))
			}
			if err := system.Stop(); err != nil {
				fmt.Fprintln(os.Stderr, err)
				code = 1
			}
		}()
		err = setUp(ctx)
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	return m.Run()
}

// setUp gives the controller's account the permission for its lease, which the fixture leaves out.
func setUp(ctx context.Context) error {
	role, err := os.ReadFile(filepath.Join(tools.RepositoryRoot(), "config", "rbac", "leader_election_role.yaml"))
	if err != nil {
		return err
	}
	manifest := strings.ReplaceAll(string(role), "namespace: system", "namespace: "+localsystem.Namespace)
	if _, err := system.ControlPlane.KubectlInput(ctx, manifest, "apply", "--filename=-"); err != nil {
		return err
	}
	binding := &rbacv1.RoleBinding{
		Namespace: localsystem.Namespace, Name: "stack-controller-leader-election",
		RoleRef:  rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "Role", Name: "stack-controller-leader-election"},
		Subjects: []rbacv1.Subject{{Kind: rbacv1.ServiceAccountKind, Namespace: localsystem.Namespace, Name: "stack-controller"}},
	}
	for _, object := range []client.Object{
		binding,
		&corev1.Namespace{Name: namespace},
		&corev1.Namespace{Name: operatorNamespace},
		&corev1.Secret{Namespace: namespace, Name: "pulumi", StringData: map[string]string{"passphrase": "correct horse battery staple"}},
		deployment(localsystem.Namespace, "stack-controller"),
		deployment(operatorNamespace, "pulumi-kubernetes-operator"),
	} {
		if err := system.Client.Create(ctx, object); err != nil {
			return fmt.Errorf("create %T: %w", object, err)
		}
	}
	return nil
}
