package backends_test

import (
	"encoding/json"
	"maps"
	"os"
	"path/filepath"
	"strings"
	"testing"

	. "github.com/onsi/gomega"

	pulumiv1 "github.com/stack-controller/stack-controller/api/pulumi/v1"
	"github.com/stack-controller/stack-controller/tests/gitserver"
	"github.com/stack-controller/stack-controller/tests/stage"
	"github.com/stack-controller/stack-controller/tests/stage/scene"
	"github.com/stack-controller/stack-controller/tests/statuscheck"
)

const (
	// credentials is the name of the Secret with the variables of a backend and of a secrets provider.
	credentials = "credentials"
	// settings is the name of the Secret with a secret configuration value.
	settings = "settings"
)

// variables are environment variables.
type variables map[string]string

// app is a Stack that follows a git repository, and has its state in the backend of the URL with these variables.
type app struct {
	*scene.Scene
	*stage.App
	url string
	env variables
}

// program is a Pulumi program that needs a secret configuration value. Its output "x" has the value.
func program(name, value string, more ...string) gitserver.Files {
	return scene.Program(name, append([]string{
		"config:", "  hidden: {type: string, secret: true}", "outputs:", "  x: " + value, "  hidden: ${hidden}"}, more...)...)
}

// deploy creates a Stack of the program with its state in the backend, and with the variables from a Secret.
func deploy(t *testing.T, name, backend string, env variables, changes ...func(*pulumiv1.Stack)) *app {
	t.Helper()
	a := &app{Scene: scene.New(t, system, name, patience), url: backend, env: env}
	provided, stack, err := system.Provide(t.Context(), name, program(name, "1"))
	a.Succeed(err)
	a.App = provided
	stack.Spec.Backend = backend
	stack.Spec.DestroyOnFinalize = true
	stack.Spec.SecretRefs = map[string]pulumiv1.ResourceRef{"hidden": stage.SecretRef(settings, "hidden")}
	for name := range env {
		stack.Spec.EnvRefs[name] = stage.SecretRef(credentials, name)
	}
	for _, change := range changes {
		change(stack)
	}
	a.Create(a.Secret(credentials, env), a.Secret(settings, map[string]string{"hidden": configCanary}), stack)
	return a
}

// login gives the Stack's Secret the values, and asks for an update with them.
func (a *app) login(env variables) {
	a.Helper()
	a.env = env
	a.Expect(system.Client.Update(a.Context(), a.Secret(credentials, env))).To(Succeed())
	a.Request()
}

// failing is a Stack whose last update failed, with a message that says so.
func failing(says string) func(*pulumiv1.Stack) bool {
	return func(stack *pulumiv1.Stack) bool {
		last := stack.Status.LastUpdate
		return last != nil && last.State == pulumiv1.StackUpdateFailed && strings.Contains(statuscheck.Message(stack), says)
	}
}

// awaitFailure waits until the last update failed for the reason, with a message that says so.
func (a *app) awaitFailure(says, reason string) *pulumiv1.Stack {
	a.Helper()
	stack := a.Await(failing(says))
	a.Expect(a.FailureOf(stack)).To(Equal(reason))
	return stack
}

// push makes the program the one of the repository.
func (a *app) push(files gitserver.Files) {
	a.Helper()
	_, err := a.Repository.Commit(files)
	a.Succeed(err)
	a.Succeed(system.Fetch(a.Context(), a.App))
}

// commit changes the program so that its output "x" has the value, and waits for it.
func (a *app) commit(value string) {
	a.Helper()
	a.push(program(a.Scene.Name, value))
	a.Await(scene.Showing(value))
}

// remove deletes the Stack and waits until it is gone.
func (a *app) remove() {
	a.Helper()
	a.Delete()
	a.AwaitGone()
}

// pulumi runs the CLI on the state of the Stack.
func (a *app) pulumi(args ...string) string {
	a.Helper()
	env := variables{"PULUMI_BACKEND_URL": a.url, "PULUMI_CONFIG_PASSPHRASE": "correct horse battery staple"}
	maps.Copy(env, a.env)
	if _, err := os.Stat(a.PulumiHome(a.Scene.Name)); err == nil {
		env["PULUMI_HOME"] = a.PulumiHome(a.Scene.Name) // it has the provider
		env["PULUMI_CREDENTIALS_PATH"] = a.TempDir()    // the login must not be noted among the files of the Workspace
	}
	return a.Pulumi(a.Scene.Name, env, args...)
}

// resources asks the pulumi CLI, beside stack-controller, how many resources the backend has for the stack; none when it knows no such stack.
func (a *app) resources() int {
	a.Helper()
	var stacks []struct {
		Name          string
		ResourceCount *int
	}
	a.Expect(json.Unmarshal([]byte(a.pulumi("stack", "ls", "--json")), &stacks)).To(Succeed())
	for _, stack := range stacks {
		if stack.ResourceCount != nil && filepath.Base(stack.Name) == "dev" {
			return *stack.ResourceCount
		}
	}
	return 0
}
