package pods_test

import (
	"encoding/json"
	"strings"
	"testing"

	. "github.com/onsi/gomega"
	corev1 "k8s.io/api/core/v1"

	autov1alpha1 "github.com/stack-controller/stack-controller/api/auto/v1alpha1"
	pulumiv1 "github.com/stack-controller/stack-controller/api/pulumi/v1"
	"github.com/stack-controller/stack-controller/tests/gitserver"
	"github.com/stack-controller/stack-controller/tests/suite"
)

// talkative is a program whose resource prints two secrets: the configuration key "password", and "token", of which Pulumi
// does not know that it is one.
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

// deployTalkative deploys the program with canaries as secrets, and waits until it is Ready. The token is an environment
// variable.
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

// One pod shows what people find in it. It has a log level, so that its log has more.
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
		// Each line of Pulumi's own log, which is JSON in ours, says from which level on it is shown.
		g.Expect(logs(g)).To(ContainSubstring(`\"v\":5`))
	})
	t.Run("needs no way to source-controller", func(t *testing.T) { expectNoWayToSource(t, name) })
}

// expectCommandsByHand runs commands in the pod as people do.
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

	// A shell starts there.
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

	// And the shell of people knows where they are.
	shown, err := runInPod(t.Context(), name, name, `cat "$PULUMI_ENV"`)
	g.Expect(err).NotTo(HaveOccurred())
	g.Expect(strings.Fields(shown)).To(Equal([]string{"FROM_FILE=file", "FROM_BOTH=file"}))
}
