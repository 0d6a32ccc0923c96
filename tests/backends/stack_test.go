package backends_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/fluxcd/pkg/apis/meta"
	"github.com/fluxcd/pkg/runtime/conditions"

	autov1alpha1 "github.com/stack-controller/stack-controller/api/auto/v1alpha1"
	pulumiv1 "github.com/stack-controller/stack-controller/api/pulumi/v1"
	"github.com/stack-controller/stack-controller/tests/gitserver"
	"github.com/stack-controller/stack-controller/tests/stage"
	"github.com/stack-controller/stack-controller/tests/statuscheck"
	"github.com/stack-controller/stack-controller/tests/tools"
)

const (
	// credentials is the name of the Secret with the variables of a backend and of a secrets provider.
	credentials = "credentials"
	// settings is the name of the Secret with a secret configuration value.
	settings = "settings"
)

// variables are environment variables.
type variables map[string]string

// program is a Pulumi program that needs a secret configuration value. Its output "x" has the value.
func program(name, value string) gitserver.Files {
	return gitserver.Files{"Pulumi.yaml": fmt.Sprintf(`name: %s
runtime: yaml
config:
  hidden: {type: string, secret: true}
outputs:
  x: %s
  hidden: ${hidden}
`, name, value)}
}

// deploy creates a Stack of the program with its state in the backend, and with the variables from a Secret.
func deploy(t *testing.T, name, backend string, env variables, changes ...func(*pulumiv1.Stack)) *stage.App {
	t.Helper()
	app, stack, err := system.Provide(t.Context(), name, program(name, "1"))
	succeed(t, err)
	stack.Spec.Backend = backend
	stack.Spec.DestroyOnFinalize = true
	stack.Spec.SecretRefs = map[string]pulumiv1.ResourceRef{"hidden": secretRef(settings, "hidden")}
	for name := range env {
		stack.Spec.EnvRefs[name] = secretRef(credentials, name)
	}
	for _, change := range changes {
		change(stack)
	}
	for _, object := range []client.Object{
		&corev1.Secret{ObjectMeta: named(name, credentials), StringData: env},
		&corev1.Secret{ObjectMeta: named(name, settings), StringData: map[string]string{"hidden": configCanary}},
		stack,
	} {
		succeed(t, system.Client.Create(t.Context(), object))
	}
	return app
}

func named(namespace, name string) metav1.ObjectMeta {
	return metav1.ObjectMeta{Namespace: namespace, Name: name}
}

func secretRef(name, key string) pulumiv1.ResourceRef {
	return pulumiv1.ResourceRef{Type: pulumiv1.ResourceRefSecret, SecretRef: &pulumiv1.SecretSelector{Name: name, Key: key}}
}

// replaceCredentials gives the Stack's Secret other values.
func replaceCredentials(t *testing.T, app *stage.App, env variables) {
	t.Helper()
	succeed(t, system.Client.Update(t.Context(), &corev1.Secret{ObjectMeta: named(app.Namespace, credentials), StringData: env}))
}

// await returns the app's Stack once it is as asked.
func await(t *testing.T, app *stage.App, is func(*pulumiv1.Stack) bool) *pulumiv1.Stack {
	t.Helper()
	stack, err := statuscheck.Await(within(t), system.Client, app.Key(), is)
	succeed(t, err)
	return stack
}

// showing is a Stack that is Ready with the value of its output "x".
func showing(value string) func(*pulumiv1.Stack) bool {
	return func(stack *pulumiv1.Stack) bool {
		return statuscheck.Ready("")(stack) && string(stack.Status.Outputs["x"].Raw) == value
	}
}

// failing is a Stack whose last update failed, with a message that says so.
func failing(says string) func(*pulumiv1.Stack) bool {
	return func(stack *pulumiv1.Stack) bool {
		last := stack.Status.LastUpdate
		return last != nil && last.State == pulumiv1.StackUpdateFailed && strings.Contains(statuscheck.Message(stack), says)
	}
}

// failureOf is the reason why the Stack's last Update failed.
func failureOf(t *testing.T, app *stage.App, stack *pulumiv1.Stack) string {
	t.Helper()
	update := &autov1alpha1.Update{}
	succeed(t, system.Client.Get(t.Context(), client.ObjectKey{Namespace: app.Namespace, Name: stack.Status.LastUpdate.Name}, update))
	return conditions.GetReason(update, autov1alpha1.UpdateFailed)
}

// request asks for an update now, as "flux reconcile" does.
func request(t *testing.T, app *stage.App) {
	t.Helper()
	stack := &pulumiv1.Stack{}
	succeed(t, system.Client.Get(t.Context(), app.Key(), stack))
	before := stack.DeepCopy()
	metav1.SetMetaDataAnnotation(&stack.ObjectMeta, meta.ReconcileRequestAnnotation, "the credentials are right now")
	succeed(t, system.Client.Patch(t.Context(), stack, client.MergeFrom(before)))
}

// commit changes the program so that its output "x" has the value.
func commit(t *testing.T, app *stage.App, value string) {
	t.Helper()
	_, err := app.Repository.Commit(program(app.Name, value))
	succeed(t, err)
	succeed(t, system.Fetch(t.Context(), app))
}

// remove deletes the Stack and waits until it is gone.
func remove(t *testing.T, app *stage.App) {
	t.Helper()
	succeed(t, system.Client.Delete(t.Context(), &pulumiv1.Stack{ObjectMeta: named(app.Namespace, app.Name)}))
	succeed(t, statuscheck.AwaitGone(within(t), system.Client, app.Key()))
}

// resources asks the pulumi CLI, with the same environment and beside stack-controller, how many resources the backend has for
// the app's stack; none when it knows no such stack.
func resources(t *testing.T, app *stage.App, backend string, env variables) int {
	t.Helper()
	count, err := countResources(within(t), t.TempDir(), app.Name, backend, env)
	succeed(t, err)
	return count
}

func countResources(ctx context.Context, dir, project, backend string, env variables) (int, error) {
	pulumi, err := tools.Path(ctx, "pulumi", nil)
	if err != nil {
		return 0, err
	}
	if err := os.WriteFile(filepath.Join(dir, "Pulumi.yaml"), []byte(program(project, "0")["Pulumi.yaml"]), 0o600); err != nil {
		return 0, err
	}
	cmd := exec.CommandContext(ctx, pulumi, "stack", "ls", "--json", "--non-interactive")
	cmd.Dir = dir
	cmd.Env = []string{
		"HOME=" + dir, "USER=test", "PATH=" + os.Getenv("PATH"), "PULUMI_BACKEND_URL=" + backend, "PULUMI_SKIP_UPDATE_CHECK=true",
		"PULUMI_CONFIG_PASSPHRASE=unused",
	}
	for name, value := range env {
		cmd.Env = append(cmd.Env, name+"="+value)
	}
	output, err := cmd.Output()
	if err != nil {
		var exit *exec.ExitError
		if errors.As(err, &exit) {
			err = fmt.Errorf("%w: %s", err, exit.Stderr)
		}
		return 0, fmt.Errorf("list the stacks of %s: %w", project, err)
	}
	var stacks []struct {
		Name          string `json:"name"`
		ResourceCount *int   `json:"resourceCount"`
	}
	if err := json.Unmarshal(output, &stacks); err != nil {
		return 0, fmt.Errorf("read the list of stacks: %w", err)
	}
	for _, stack := range stacks {
		if stack.ResourceCount != nil && filepath.Base(stack.Name) == "dev" {
			return *stack.ResourceCount, nil
		}
	}
	return 0, nil
}
