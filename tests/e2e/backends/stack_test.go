package backends_test

import (
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"strings"
	"testing"

	. "github.com/onsi/gomega"

	autov1alpha1 "github.com/stack-controller/stack-controller/api/auto/v1alpha1"
	pulumiv1 "github.com/stack-controller/stack-controller/api/pulumi/v1"
	"github.com/stack-controller/stack-controller/tests/framework/gitserver"
	"github.com/stack-controller/stack-controller/tests/framework/localsystem"
	"github.com/stack-controller/stack-controller/tests/framework/objectstore"
	"github.com/stack-controller/stack-controller/tests/framework/postgres"
	"github.com/stack-controller/stack-controller/tests/framework/statuscheck"
	"github.com/stack-controller/stack-controller/tests/framework/systemtest"
)

const (
	// credentials is the name of the Secret with the variables of a backend and of a secrets provider.
	credentials = "credentials"
	// settings is the name of the Secret with a secret configuration value.
	settings = "settings"
)

// variables are environment variables.
type variables map[string]string

// app is a Stack that follows a git repository and has its state in the backend at url, with the variables env.
type app struct {
	*systemtest.Fixture
	*localsystem.App
	url string
	env variables
}

// program is a Pulumi program that needs a secret configuration value. Its output "x" has the value.
func program(name, value string, more ...string) gitserver.Files {
	return systemtest.Program(name, append([]string{
		"config:", "  hidden: {type: string, secret: true}", "outputs:", "  x: " + value, "  hidden: ${hidden}"}, more...)...)
}

// deploy creates a Stack of the program with its state in the backend, and with the variables from a Secret.
func deploy(t *testing.T, name, backend string, env variables, changes ...func(*pulumiv1.Stack)) *app {
	t.Helper()
	a := &app{Fixture: systemtest.New(t, system, name, patience), url: backend, env: env}
	provided, stack, err := system.Provide(t.Context(), name, program(name, "1"))
	a.Succeed(err)
	a.App = provided
	stack.Spec.Backend = backend
	stack.Spec.DestroyOnFinalize = true
	stack.Spec.SecretRefs = map[string]pulumiv1.ResourceRef{"hidden": localsystem.SecretRef(settings, "hidden")}
	for name := range env {
		stack.Spec.EnvRefs[name] = localsystem.SecretRef(credentials, name)
	}
	for _, change := range changes {
		change(stack)
	}
	a.Create(a.Secret(credentials, env), a.Secret(settings, map[string]string{"hidden": configCanary}), stack)
	return a
}

// login writes the values into the Stack's Secret, and requests an update with them.
func (a *app) login(env variables) {
	a.Helper()
	a.env = env
	a.Expect(system.Client.Update(a.Context(), a.Secret(credentials, env))).To(Succeed())
	a.Request()
}

// failing returns a function that reports whether the last update of a Stack failed with a message that contains the text.
func failing(says string) func(*pulumiv1.Stack) bool {
	return func(stack *pulumiv1.Stack) bool {
		last := stack.Status.LastUpdate
		return last != nil && last.State == pulumiv1.StackUpdateFailed && strings.Contains(statuscheck.Message(stack), says)
	}
}

// awaitFailure waits until the last update failed for the reason, with a message that contains the text.
func (a *app) awaitFailure(says, reason string) *pulumiv1.Stack {
	a.Helper()
	stack := a.Await(failing(says))
	a.Expect(a.FailureOf(stack)).To(Equal(reason))
	return stack
}

// push commits the program to the repository.
func (a *app) push(files gitserver.Files) {
	a.Helper()
	_, err := a.Repository.Commit(files)
	a.Succeed(err)
	a.Succeed(system.Fetch(a.Context(), a.App))
}

// commit changes the program so that its output "x" has the value, and waits for it.
func (a *app) commit(value string) {
	a.Helper()
	a.push(program(a.Fixture.Name, value))
	a.Await(systemtest.Showing(value))
}

// remove deletes the Stack and waits until it is gone.
func (a *app) remove() {
	a.Helper()
	a.Delete()
	a.AwaitGone()
}

// pulumi runs the CLI with the backend of the Stack.
func (a *app) pulumi(args ...string) string {
	a.Helper()
	env := variables{"PULUMI_BACKEND_URL": a.url, "PULUMI_CONFIG_PASSPHRASE": "correct horse battery staple"}
	maps.Copy(env, a.env)
	if _, err := os.Stat(a.PulumiHome(a.Fixture.Name)); err == nil {
		env["PULUMI_HOME"] = a.PulumiHome(a.Fixture.Name) // it has the provider
		env["PULUMI_CREDENTIALS_PATH"] = a.TempDir()      // so that the login does not change files of the Workspace
	}
	return a.Pulumi(a.Fixture.Name, env, args...)
}

// resources asks the pulumi CLI, independently of stack-controller, how many resources the stack has in the backend; 0 if the stack does
// not exist.
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

// killed checks what happens to a stack whose pulumi is killed. In the middle of an update of a resource, the Stack heals by itself. In the
// middle of a creation, the message contains the command that solves the problem, and the command works at once.
func (b backend) killed(t *testing.T, name string) {
	t.Helper()
	a := deploy(t, name, b.url, b.env)
	journal := filepath.Join(t.TempDir(), "journal")
	noted := func() string {
		content, _ := os.ReadFile(journal)
		return string(content)
	}
	// The resources write what is done to them into the journal, and take the given number of seconds each.
	push := func(value string, seconds ...int) {
		lines := []string{"resources:"}
		for i, seconds := range seconds {
			lines = append(lines, fmt.Sprintf("  slow%d:\n    type: test:index:Sleep\n    properties: {journal: %q, seconds: %d}\n    options: {version: 0.1.0}",
				i, journal, seconds))
		}
		a.push(program(name, value, lines...))
	}
	a.Await(systemtest.Showing("1"))
	a.InstallProvider(name)
	push("2", 0)
	a.Await(systemtest.Showing("2"))
	a.Expect(noted()).To(Equal("create start\ncreate end\n"))

	push("3", 8)
	a.Eventually(noted).Should(HaveSuffix("update start\n"))
	a.KillPulumi()
	stack := a.Await(systemtest.Showing("3"))
	a.Expect(stack.Status.LastUpdate.Failures).To(BeZero())
	a.Expect(noted()).To(HavePrefix("create start\ncreate end\nupdate start\n"))
	a.Expect(noted()).To(HaveSuffix("update start\nupdate end\n"))
	a.Expect(strings.Count(noted(), "create start")).To(Equal(1))

	push("4", 8, 1000)
	a.Eventually(noted).Should(HaveSuffix("create start\n"))
	a.KillPulumi()
	a.Await(failing("could create it twice"))
	push("5", 8, 0)
	a.pulumi("refresh", "--stack=dev", "--yes", "--skip-preview", "--clear-pending-creates")
	a.Await(systemtest.Showing("5"))
	a.Expect(strings.Count(noted(), "create start")).To(Equal(3), noted())
	a.Expect(a.resources()).To(Equal(4), "the stack, its provider and two resources")
}

// This test runs before the parallel tests, which stop the servers.
func TestKilledUpdateRecoversWithItsLock(t *testing.T) {
	for name, start := range map[string]func(*testing.T, string) backend{"file": inDirectory, "s3": inObjectStore, "postgres": inDatabase} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			start(t, "killed").killed(t, "killed-"+name)
		})
	}
}

// backend is a real backend.
type backend struct {
	url string
	env variables
	// wrong are credentials that the backend refuses; nil if it needs no credentials.
	wrong variables
	// says is part of the error for these credentials.
	says string
	// stop and resume stop the backend and start it again; nil if that is not possible. A stopped backend refuses connections.
	stop   func() error
	resume func(context.Context) error
}

func inDirectory(*testing.T, string) backend { return backend{url: system.BackendURL} }

// inObjectStore returns a backend in a bucket of that name.
func inObjectStore(t *testing.T, bucket string) backend {
	NewWithT(t).Expect(store.CreateBucket(t.Context(), bucket)).To(Succeed())
	login := func(secretKey string) variables {
		return variables{"AWS_ACCESS_KEY_ID": objectstore.AccessKey, "AWS_SECRET_ACCESS_KEY": secretKey, "AWS_REGION": objectstore.Region}
	}
	return backend{
		url: "s3://" + bucket + "?endpoint=http://" + store.Address + "&disableSSL=true&s3ForcePathStyle=true",
		env: login(store.SecretKey), wrong: login(credentialCanary), says: "SignatureDoesNotMatch",
		stop: store.Stop, resume: store.Resume,
	}
}

// inDatabase returns a backend in a table of that name, or in the default table. The URL has no password, because it is visible in the
// Stack.
func inDatabase(t *testing.T, table string) backend {
	needDatabase(t)
	option := ""
	if table != "" {
		option = "&table=" + table
	}
	return backend{
		url: "postgres://" + postgres.User + "@" + database.Address + "/" + postgres.Database + "?sslmode=disable" + option,
		env: variables{"PGPASSWORD": database.Password}, wrong: variables{"PGPASSWORD": credentialCanary}, says: "password authentication failed",
		stop: database.Stop, resume: database.Resume,
	}
}

// live tests the whole life of a Stack with the backend.
func (b backend) live(t *testing.T, name string) {
	t.Helper()
	t.Parallel()
	env := b.env
	if b.wrong != nil {
		env = b.wrong
	}
	a := deploy(t, name, b.url, env)
	if b.wrong != nil {
		a.awaitFailure(b.says, autov1alpha1.InvalidAccessTokenReason)
		a.login(b.env)
	}
	stack := a.Await(systemtest.Showing("1"))
	a.Expect(systemtest.Output(stack, "hidden")).To(Equal(`"[secret]"`))
	a.Expect(a.resources()).To(Equal(1))
	a.commit("2")
	if b.stop != nil {
		// The Stack reports that the backend is not reachable, and continues by itself when the backend is back.
		a.Succeed(b.stop())
		a.push(program(name, "3"))
		a.Await(failing("connection refused"))
		a.Succeed(b.resume(t.Context()))
		a.Await(systemtest.Showing("3"))
	}
	a.remove()
	a.Expect(a.resources()).To(BeZero())
}

func TestStackLivesInDirectory(t *testing.T) { inDirectory(t, "").live(t, "file") }

func TestStackLivesInObjectStore(t *testing.T) { inObjectStore(t, "state").live(t, "s3") }

func TestStackLivesInDatabase(t *testing.T) { inDatabase(t, "").live(t, "postgres") }

func needDatabase(t *testing.T) {
	t.Helper()
	if database == nil {
		t.Skip(postgres.ErrMissing)
	}
}

func TestSecretsAreEncryptedByKeyManagementService(t *testing.T) {
	t.Parallel()
	login := func(token string) variables { return variables{"VAULT_ADDR": keys.Address, "VAULT_TOKEN": token} }
	a := deploy(t, "vault-keys", system.BackendURL, login(credentialCanary), func(s *pulumiv1.Stack) {
		s.Spec.SecretsProvider = "hashivault://pulumi"
		delete(s.Spec.EnvRefs, "PULUMI_CONFIG_PASSPHRASE")
	})
	a.awaitFailure("permission denied", autov1alpha1.SecretsProviderFailedReason)
	a.login(login(vaultToken))
	stack := a.Await(systemtest.Showing("1"))
	a.Expect(systemtest.Output(stack, "hidden")).To(Equal(`"[secret]"`))
	a.Expect(a.State(a.Fixture.Name, "dev")).To(And(
		ContainSubstring("hashivault://pulumi"), ContainSubstring("encryptedkey"), Not(ContainSubstring(configCanary))))
	a.commit("2")
	a.remove()
}

// With the process runtime, the file has to be on the controller's machine.
func TestPassphraseComesFromFile(t *testing.T) {
	t.Parallel()
	file := filepath.Join(t.TempDir(), "passphrase")
	a := deploy(t, "passphrase-file", system.BackendURL, nil, func(s *pulumiv1.Stack) {
		delete(s.Spec.EnvRefs, "PULUMI_CONFIG_PASSPHRASE")
		s.Spec.SecretsProvider = "passphrase"
		s.Spec.EnvRefs["PULUMI_CONFIG_PASSPHRASE_FILE"] = pulumiv1.ResourceRef{
			Type: pulumiv1.ResourceRefLiteral, LiteralRef: &pulumiv1.LiteralRef{Value: file},
		}
	})
	a.awaitFailure("read the passphrase file", autov1alpha1.SecretsProviderFailedReason)
	a.Expect(os.WriteFile(file, []byte(credentialCanary+"\n"), 0o600)).To(Succeed())
	a.Request()
	a.Await(systemtest.Showing("1"))
	a.Expect(a.State(a.Fixture.Name, "dev")).To(And(ContainSubstring(`"salt"`), Not(ContainSubstring(configCanary))))

	a.Expect(os.WriteFile(file, []byte("another one"), 0o600)).To(Succeed())
	a.push(program(a.Fixture.Name, "2"))
	a.awaitFailure("incorrect passphrase", autov1alpha1.SecretsProviderFailedReason)
}
