package pods_test

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	. "github.com/onsi/gomega"
	corev1 "k8s.io/api/core/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	autov1alpha1 "github.com/stack-controller/stack-controller/api/auto/v1alpha1"
	pulumiv1 "github.com/stack-controller/stack-controller/api/pulumi/v1"
	"github.com/stack-controller/stack-controller/tests/framework/cluster"
	"github.com/stack-controller/stack-controller/tests/framework/gitserver"
	"github.com/stack-controller/stack-controller/tests/framework/suite"
	"github.com/stack-controller/stack-controller/tests/tools"
)

// talkative is a program whose resource prints two secrets: the configuration key "password", and "token", which Pulumi does not know to be
// a secret.
var talkative = gitserver.Files{"Pulumi.yaml": `
name: app
runtime: yaml
config:
  password: {type: string, secret: true}
  token: {type: string}
resources:
  loud:
    type: test:index:Sleep
    properties: {echo: "${password} ${token}", content: "${password}"}
    options: {version: 0.1.0}
outputs:
  value: visible
  password: ${loud.content}
`}

// deployTalkative deploys the program with canaries as secrets, and waits until the Stack is ready. The token is an environment variable.
func deployTalkative(t *testing.T, g *WithT, name string) {
	t.Helper()
	ctx := t.Context()
	reference := func(name string) pulumiv1.ResourceRef {
		return pulumiv1.ResourceRef{Type: pulumiv1.ResourceRefSecret, SecretRef: &pulumiv1.SecretSelector{Name: name, Key: "value"}}
	}
	removeNamespaceAtEnd(t, g, name)
	app, err := system.Deploy(ctx, name, named(name, talkative), func(stack *pulumiv1.Stack) {
		stack.Spec.WorkspaceTemplate.Spec.PulumiLogLevel = 5
		stack.Spec.SecretRefs = map[string]pulumiv1.ResourceRef{"password": reference("password")}
		stack.Spec.EnvRefs["TOKEN"] = reference("token")
		stack.Spec.WorkspaceTemplate.Spec.Stacks = []autov1alpha1.WorkspaceStack{{Name: "dev", Config: []autov1alpha1.ConfigItem{{
			Key: "token", ValueFrom: &autov1alpha1.ConfigValueFrom{Env: "TOKEN"},
		}}}}
	})
	g.Expect(err).NotTo(HaveOccurred())
	g.Expect(system.Client.Create(ctx, secret(name, "password", "value", secretCanary))).To(Succeed())
	g.Expect(system.Client.Create(ctx, secret(name, "token", "value", tokenCanary))).To(Succeed())
	waitReady(ctx, g, app)
}

// TestPodOfAWorkspace checks what users find in a pod. The Stack sets a log level, so that the log of the pod has more lines.
func TestPodOfAWorkspace(t *testing.T) {
	suite.Long(t, "runs commands in pods")
	t.Parallel()
	const name = "inside"
	deployTalkative(t, NewWithT(t), name)
	logs := func(g *WithT) string {
		log, err := kubectl(t.Context(), "logs", "--namespace="+name, podOf(t.Context(), g, name, name).Name)
		g.Expect(err).NotTo(HaveOccurred())
		return log
	}
	t.Run("runs pulumi commands by hand", func(t *testing.T) {
		expectCommandsByHand(NewWithT(t), func(command string) (string, error) { return runInPod(t.Context(), name, name, command) })
	})
	t.Run("is used by the command line", func(t *testing.T) { expectCommandLine(t, NewWithT(t), name, name) })
	t.Run("logs what Pulumi does without secrets", func(t *testing.T) {
		g := NewWithT(t)
		g.Expect(logs(g)).To(And(
			ContainSubstring("Updating (dev)"),
			MatchRegexp(`\+ +test:index:Sleep loud created`),
			ContainSubstring("echo: [secret] [secret]"),
			MatchRegexp(`\+ 2 created`)))
		g.Expect(hasCanary([]byte(logs(g)))).To(BeFalse())
	})
	t.Run("logs more of Pulumi at a higher level", func(t *testing.T) {
		g := NewWithT(t)
		// Pulumi's own log is JSON inside the agent's log. Each of its lines contains the level from which on it is written.
		g.Expect(logs(g)).To(ContainSubstring(`\"v\":5`))
	})
	t.Run("needs no way to source-controller", func(t *testing.T) { expectNoWayToSource(t, name) })
}

// expectCommandsByHand runs commands in the pod as users do.
func expectCommandsByHand(g *WithT, run func(command string) (string, error)) {
	inWorkspace := func(command string) string {
		output, err := run("cd /share/workspace && " + command)
		g.Expect(err).NotTo(HaveOccurred())
		return output
	}
	g.Expect(inWorkspace("pulumi stack ls")).To(MatchRegexp(`(?m)^dev\*`))
	g.Expect(inWorkspace("pulumi stack output")).To(And(MatchRegexp(`value +visible`), MatchRegexp(`password +\[secret\]`)))
	g.Expect(inWorkspace("pulumi stack output --show-secrets password")).To(Equal(secretCanary + "\n"))
	g.Expect(inWorkspace("pulumi config get password")).To(Equal(secretCanary + "\n"))
	g.Expect(inWorkspace("pulumi preview --expect-no-changes --stack dev --non-interactive")).To(ContainSubstring("2 unchanged"))
	var state struct {
		Deployment struct{ Resources []json.RawMessage }
	}
	g.Expect(json.Unmarshal([]byte(inWorkspace("pulumi stack export")), &state)).To(Succeed())
	g.Expect(state.Deployment.Resources).To(HaveLen(3), "the stack, the provider and the resource")

	// A shell starts in the workspace directory.
	selected, err := run("[ . -ef /share/workspace ] && pulumi stack --show-name")
	g.Expect(err).NotTo(HaveOccurred())
	g.Expect(selected).To(Equal("dev\n"))
}

func TestVariablesOfInitContainersReachTheProgram(t *testing.T) {
	suite.Long(t, "runs commands in pods")
	t.Parallel()
	g := NewWithT(t)
	const name = "dynamic"
	removeNamespaceAtEnd(t, g, name)
	app, err := system.Deploy(t.Context(), name, named(name, configured("${config} ${variable}")), func(stack *pulumiv1.Stack) {
		spec := stack.Spec.WorkspaceTemplate.Spec
		spec.Stacks = []autov1alpha1.WorkspaceStack{{Name: "dev", Config: []autov1alpha1.ConfigItem{
			{Key: "config", ValueFrom: &autov1alpha1.ConfigValueFrom{Env: "FROM_FILE"}},
			{Key: "variable", ValueFrom: &autov1alpha1.ConfigValueFrom{Env: "FROM_BOTH"}},
		}}}
		spec.Env = []corev1.EnvVar{{Name: "FROM_BOTH", Value: "specification"}}
		spec.PodTemplate.Spec.InitContainers = []corev1.Container{{
			Name: "variables", Image: system.Images.Busybox.Reference, ImagePullPolicy: corev1.PullIfNotPresent,
			Command:      []string{"sh", "-c", `echo "FROM_FILE=file" >>"$PULUMI_ENV"; echo "FROM_BOTH=file" >>"$PULUMI_ENV"`},
			VolumeMounts: []corev1.VolumeMount{{Name: "share", MountPath: "/share"}},
		}}
	})
	g.Expect(err).NotTo(HaveOccurred())
	expectOutput(t.Context(), g, app.Key(), "file specification")

	// A user's shell in the pod also finds the variables: it knows the path of their file.
	shown, err := runInPod(t.Context(), name, name, `cat "$PULUMI_ENV"`)
	g.Expect(err).NotTo(HaveOccurred())
	g.Expect(strings.Fields(shown)).To(Equal([]string{"FROM_FILE=file", "FROM_BOTH=file"}))
}

// buildCommandLine builds the command line tool under one of its names, and returns its path.
func buildCommandLine(t *testing.T, g *WithT, name string) string {
	t.Helper()
	binary := filepath.Join(t.TempDir(), name)
	g.Expect(tools.Compile(t.Context(), name, tools.RepositoryRoot(), "./cmd/flux-pulumi", binary, []string{"-buildvcs=false"}, nil)).To(Succeed())
	return binary
}

// commandLine returns a function that runs flux-pulumi as administrator and returns what the command writes.
func commandLine(t *testing.T, g *WithT) func(args ...string) (string, error) {
	t.Helper()
	binary := buildCommandLine(t, g, "flux-pulumi")
	return func(args ...string) (string, error) {
		ctx, cancel := context.WithTimeout(t.Context(), patience)
		defer cancel()
		cmd := system.Cluster.Command(ctx, binary, args...)
		cmd.Env = append(os.Environ(), "KUBECONFIG="+system.Cluster.KubeconfigPath)
		output, err := cmd.CombinedOutput()
		if err != nil {
			return string(output), fmt.Errorf("flux-pulumi %v: %w: %s", args, err, output)
		}
		return string(output), nil
	}
}

// expectCommandLine runs the commands of flux-pulumi that work in pods. The Stack is the same afterwards.
func expectCommandLine(t *testing.T, g *WithT, namespace, stack string) {
	t.Helper()
	run := commandLine(t, g)
	does := func(args ...string) string {
		output, err := run(append(args, "--namespace="+namespace)...)
		g.Expect(err).NotTo(HaveOccurred())
		return output
	}
	log := does("logs", "stack", stack)
	g.Expect(log).To(And(ContainSubstring("Updating (dev)"), ContainSubstring("Outputs:\n"), Not(ContainSubstring(`"stream"`))))
	g.Expect(hasCanary([]byte(log))).To(BeFalse())

	file := filepath.Join(t.TempDir(), "state.json")
	g.Expect(does("state", "export", stack, "--file="+file)).To(BeEmpty())
	content, err := os.ReadFile(file)
	g.Expect(err).NotTo(HaveOccurred())
	var state struct {
		Deployment struct{ Resources []json.RawMessage }
	}
	g.Expect(json.Unmarshal(content, &state)).To(Succeed())
	g.Expect(state.Deployment.Resources).To(HaveLen(3), "the stack, the provider and the resource")
	g.Expect(hasCanary(content)).To(BeFalse())
	g.Expect(does("tree", "stack", stack, "--resources")).To(MatchRegexp(`(?m)─ pulumi:pulumi:Stack \S+-dev$`))

	_, err = run("state", "import", stack, "--file="+file, "--namespace="+namespace)
	g.Expect(err).To(MatchError(ContainSubstring("is not at rest: suspend it")))
	does("suspend", "stack", stack)
	g.Expect(does("state", "import", stack, "--file="+file)).To(Equal("✔ state of dev imported\n"))
	g.Expect(does("unlock", "stack", stack, "--yes")).To(ContainSubstring("✔ locks of dev released"))
	broken := filepath.Join(t.TempDir(), "broken.json")
	g.Expect(os.WriteFile(broken, []byte("{"), 0o600)).To(Succeed())
	_, err = run("state", "import", stack, "--file="+broken, "--namespace="+namespace)
	g.Expect(err).To(MatchError(ContainSubstring("pulumi stack import failed in pod " + namespace)))
	g.Expect(does("resume", "stack", stack)).To(ContainSubstring("is ready"))
}

// connect returns a shell command that succeeds if something listens at the address.
func connect(ip string, port int32) string { return fmt.Sprintf("nc -w 3 %s %d </dev/null", ip, port) }

// expectNoWayToSource connects from the pod of a workspace. It can reach the API server, but not source-controller.
func expectNoWayToSource(t *testing.T, name string) {
	g := NewWithT(t)
	ctx := t.Context()
	source, apiServer := &corev1.Service{}, &corev1.Service{}
	g.Expect(system.Client.Get(ctx, client.ObjectKey{Namespace: cluster.FluxNamespace, Name: "source-controller"}, source)).To(Succeed())
	g.Expect(system.Client.Get(ctx, client.ObjectKey{Namespace: "default", Name: "kubernetes"}, apiServer)).To(Succeed())
	_, err := runInPod(ctx, name, name, connect(apiServer.Spec.ClusterIP, 443))
	g.Expect(err).NotTo(HaveOccurred())
	_, err = runInPod(ctx, name, name, connect(source.Spec.ClusterIP, 80))
	g.Expect(err).To(MatchError(ContainSubstring("exit code 1")))

	// A pod next to source-controller, in the same namespace, can reach it.
	neighbour := &corev1.Pod{
		Namespace: cluster.FluxNamespace, Name: "neighbour",
		Spec: corev1.PodSpec{
			RestartPolicy: corev1.RestartPolicyNever,
			SecurityContext: &corev1.PodSecurityContext{
				RunAsNonRoot: new(true), SeccompProfile: &corev1.SeccompProfile{Type: corev1.SeccompProfileTypeRuntimeDefault},
			},
			Containers: []corev1.Container{{
				Name: "ask", Image: system.Images.Busybox.Reference, ImagePullPolicy: corev1.PullIfNotPresent,
				Command: []string{"sh", "-c", connect(source.Spec.ClusterIP, 80)},
				SecurityContext: &corev1.SecurityContext{
					AllowPrivilegeEscalation: new(false), Capabilities: &corev1.Capabilities{Drop: []corev1.Capability{"ALL"}},
				},
			}},
		},
	}
	g.Expect(system.Client.Create(ctx, neighbour)).To(Succeed())
	t.Cleanup(func() { g.Expect(system.Client.Delete(context.WithoutCancel(ctx), neighbour)).To(Succeed()) })
	eventually(ctx, g, func(g Gomega) {
		g.Expect(system.Client.Get(ctx, client.ObjectKeyFromObject(neighbour), neighbour)).To(Succeed())
		g.Expect(neighbour.Status.Phase).To(Equal(corev1.PodSucceeded))
	})
}
