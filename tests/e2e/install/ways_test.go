package install_test

import (
	"context"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	. "github.com/onsi/gomega"

	"github.com/stack-controller/stack-controller/tests/framework/gitserver"
	"github.com/stack-controller/stack-controller/tests/framework/programs"
	"github.com/stack-controller/stack-controller/tests/framework/suite"
	"github.com/stack-controller/stack-controller/tests/tools"
)

// imageTag is the tag of the images of the current source tree.
const imageTag = "test"

// ways is the number of tests that install the controller on the cluster.
const ways = 6

func TestKubectlInstallsAControllerThatDeploysAStack(t *testing.T) {
	suite.Long(t, "installs on a cluster with a node")
	c := onCluster(t)
	overlay := kustomization(t, `
resources: [repository/config/default]
images:
- {name: stack-controller/stack-controller, newTag: test}
- {name: stack-controller/stack-controller-agent, newTag: test}
`)
	c.kubectl(t, "apply", "--server-side", "--kustomize", overlay)
	c.awaitController(t)
	const name = "with-kubectl"
	c.deployStack(t, name, name)
	c.awaitStack(t, name, name)
	c.expectMetrics(t)

	// Hand over to the Pulumi Kubernetes Operator, and take over again.
	c.handBack(t, name)
	c.kubectl(t, "scale", "deployment/stack-controller", "--namespace=flux-system", "--replicas=1")
	c.awaitController(t)
	c.removeStack(t, name)
	c.kubectl(t, "delete", "namespace/"+name, "persistentvolume/"+name, timeout)
	c.kubectl(t, "delete", "--kustomize", overlay, timeout)
}

// The controller's rights end at the border of its namespace, and so does its work.
func TestControllerOfOneNamespaceDeploysAStackThereAndHasNoRightsElsewhere(t *testing.T) {
	suite.Long(t, "installs on a cluster with a node")
	g := NewWithT(t)
	c := onCluster(t)
	definitions := inRepository("config", "crd")
	c.kubectl(t, "apply", "--server-side", "--kustomize", definitions)
	overlay := kustomization(t, `
resources: [repository/config/namespaced]
images:
- {name: stack-controller/stack-controller, newTag: test}
- {name: stack-controller/stack-controller-agent, newTag: test}
`)
	c.kubectl(t, "apply", "--server-side", "--kustomize", overlay)
	c.awaitController(t)
	c.deployStack(t, "elsewhere", "elsewhere")
	c.deployStack(t, "flux-system", "namespaced")
	c.awaitStack(t, "flux-system", "namespaced")
	c.expectMetrics(t)
	g.Expect(c.kubectl(t, "get", "stack/greeting", "--namespace=elsewhere", "--output=jsonpath={.status.conditions}{.metadata.finalizers}")).To(BeEmpty())
	for _, right := range [][]string{{"list", "stacks.pulumi.com"}, {"get", "secrets"}, {"create", "statefulsets.apps"}} {
		for namespace, want := range map[string]string{"flux-system": "yes\n", "elsewhere": "no\n"} {
			// The command fails if the answer is no.
			answer, _ := c.Kubectl(t.Context(), append([]string{"auth", "can-i", "--as=system:serviceaccount:flux-system:stack-controller",
				"--namespace=" + namespace}, right...)...)
			g.Expect(answer).To(Equal(want), "%s in %s", right, namespace)
		}
	}
	c.removeStack(t, "flux-system")
	c.kubectl(t, "delete", "gitrepository/program", "secret/pulumi", "serviceaccount/pulumi", "persistentvolumeclaim/state", "--namespace=flux-system", timeout)
	c.kubectl(t, "delete", "persistentvolume/flux-system", "persistentvolume/elsewhere", "namespace/elsewhere", timeout)
	c.kubectl(t, "delete", "--kustomize", overlay, timeout)
	c.kubectl(t, "delete", "--kustomize", definitions, timeout)
}

func TestHelmInstallsAControllerThatDeploysAStack(t *testing.T) {
	suite.Long(t, "installs on a cluster with a node")
	g := NewWithT(t)
	c := onCluster(t)
	helm, err := tools.Path(t.Context(), "helm", nil)
	g.Expect(err).NotTo(HaveOccurred())
	c.run(t, nil, helm, "install", "stack-controller", chart(), "--namespace=flux-system", "--wait", timeout,
		"--set=image.tag="+imageTag+",agentImage.tag="+imageTag)
	c.awaitController(t)
	c.awaitReadyStack(t, "with-helm")

	// An upgrade changes only the given value.
	c.run(t, nil, helm, "upgrade", "stack-controller", chart(), "--namespace=flux-system", "--wait", timeout, "--reuse-values",
		"--set=controller.logLevel=debug")
	c.run(t, nil, helm, "uninstall", "stack-controller", "--namespace=flux-system", "--wait", timeout)
	c.kubectl(t, "get", "customresourcedefinition/stacks.pulumi.com") // Helm keeps the definitions
	c.deleteDefinitions(t)
}

func TestTheCommandLineInstallsAControllerThatDeploysAStack(t *testing.T) {
	suite.Long(t, "installs on a cluster with a node")
	g := NewWithT(t)
	c := onCluster(t)
	program, err := programs.Path(t.Context(), programs.CommandLine, nil)
	g.Expect(err).NotTo(HaveOccurred())
	environment := append(os.Environ(), "KUBECONFIG="+c.KubeconfigPath)
	run := func(args ...string) (output string, code int) {
		cmd := c.Command(t.Context(), program, args...)
		cmd.Env = environment
		combined, err := cmd.CombinedOutput()
		t.Logf("flux-pulumi %s\n%s", strings.Join(args, " "), combined)
		if _, ended := errors.AsType[*exec.ExitError](err); !ended {
			g.Expect(err).NotTo(HaveOccurred())
		}
		return string(combined), cmd.ProcessState.ExitCode()
	}
	images := []string{"--image=stack-controller/stack-controller:" + imageTag, "--agent-image=stack-controller/stack-controller-agent:" + imageTag}
	install := append([]string{"install"}, images...)

	for _, test := range []struct {
		args []string
		code int
		says string
	}{
		{[]string{"install"}, 2, "this build belongs to no release"},
		{append(install, "--namespace=elsewhere"), 2, "make an overlay of config/default"},
		{append(install, "--as=nobody"), 1, "you are not allowed"},
		{append(install, "--as=viewer"), 1, "nothing was changed: apply CustomResourceDefinition"},
		{append(install, "--export"), 0, "kind: ValidatingAdmissionPolicyBinding"},
	} {
		output, code := run(test.args...)
		g.Expect(output).To(ContainSubstring(test.says))
		g.Expect(code).To(Equal(test.code))
		if test.says == "you are not allowed" {
			c.kubectl(t, "create", "clusterrolebinding", "viewer", "--clusterrole=view", "--user=viewer")
			c.kubectl(t, "create", "clusterrole", "namespaces", "--verb=get", "--resource=namespaces")
			c.kubectl(t, "create", "clusterrolebinding", "viewer-of-namespaces", "--clusterrole=namespaces", "--user=viewer")
		}
	}
	_, err = c.Kubectl(t.Context(), "get", "customresourcedefinition/stacks.pulumi.com")
	g.Expect(err).To(HaveOccurred())

	for range 2 { // the second one changes nothing
		output, code := run(install...)
		g.Expect(output).To(ContainSubstring("stack-controller is installed"))
		g.Expect(code).To(BeZero())
	}
	c.kubectl(t, "patch", "deployment/stack-controller", "--namespace=flux-system", "--field-manager=overlay", "--type=json",
		`--patch=[{"op": "add", "path": "/spec/template/spec/containers/0/args/-", "value": "--no-cross-namespace-refs=true"}]`)
	output, code := run(install...)
	g.Expect(output).To(ContainSubstring("nothing was changed: the installation has other settings, which this would take away: --no-cross-namespace-refs. Upgrade it"))
	g.Expect(code).To(Equal(1))
	output, code = run(append(install, "--force")...)
	g.Expect(output).To(ContainSubstring("stack-controller is installed"))
	g.Expect(code).To(BeZero())
	const name = "with-cli"
	c.deployStack(t, name, name)
	c.awaitStack(t, name, name)
	output, code = run("uninstall", "--yes")
	g.Expect(output).To(ContainSubstring("there are Stacks (1): " + name + "/greeting"))
	g.Expect(code).To(Equal(1))
	c.removeStack(t, name)
	c.kubectl(t, "delete", "namespace/"+name, "persistentvolume/"+name, timeout)

	// Another installation needs the definitions.
	c.kubectl(t, "create", "deployment", "other", "--namespace=default", "--image=other", "--replicas=0")
	c.kubectl(t, "label", "deployment/other", "--namespace=default", "app.kubernetes.io/name=stack-controller")
	output, code = run("uninstall", "--yes")
	g.Expect(output).To(ContainSubstring("is installed as Deployment default/other"))
	g.Expect(code).To(Equal(1))
	c.kubectl(t, "delete", "deployment/other", "--namespace=default")

	c.kubectl(t, "label", "deployment/stack-controller", "--namespace=flux-system", "app.kubernetes.io/managed-by=Helm", "--overwrite")
	output, code = run(install...)
	g.Expect(output).To(ContainSubstring("helm upgrade"))
	g.Expect(code).To(Equal(1))
	output, code = run("uninstall", "--yes")
	g.Expect(output).To(ContainSubstring("Helm"))
	g.Expect(code).To(Equal(1))
	c.kubectl(t, "label", "deployment/stack-controller", "--namespace=flux-system", "app.kubernetes.io/managed-by-")

	output, code = run("quickstart")
	g.Expect(output).To(ContainSubstring("no default StorageClass"))
	g.Expect(code).To(Equal(1))
	c.claimQuickstart(t)
	environment = append(environment, "CLICOLOR_FORCE=1")
	output, code = run("quickstart", "--image="+c.workspace)
	environment = environment[:len(environment)-1]
	g.Expect(code).To(BeZero())
	c.breakQuickstart(t, checkQuickstart(t, output))
	output, code = run("quickstart", "--delete")
	g.Expect(output).To(ContainSubstring("the example is deleted"))
	g.Expect(code).To(BeZero())
	g.Expect(c.kubectl(t, "get", "namespace/pulumi-quickstart", "--ignore-not-found", "--output=name")).To(BeEmpty())
	g.Expect(c.kubectl(t, "get", "stacks,programs", "--all-namespaces", "--output=name")).To(BeEmpty())

	output, code = run("uninstall", "--yes")
	g.Expect(output).To(ContainSubstring("stack-controller is uninstalled"))
	g.Expect(code).To(BeZero())
	for _, object := range []string{"deployment/stack-controller", "clusterrole/stack-controller", "customresourcedefinition/stacks.pulumi.com"} {
		g.Expect(c.kubectl(t, "get", object, "--namespace=flux-system", "--ignore-not-found", "--output=name")).To(BeEmpty())
	}
	c.kubectl(t, "delete", "clusterrolebinding/viewer", "clusterrolebinding/viewer-of-namespaces", "clusterrole/namespaces", "persistentvolume/pulumi-quickstart")
}

func TestPulumiInstallsAControllerThatDeploysAStack(t *testing.T) {
	suite.Long(t, "installs on a cluster with a node")
	g := NewWithT(t)
	c := onCluster(t)
	release, err := releaseFiles(t, "v1.2.3", "")
	g.Expect(err).NotTo(HaveOccurred(), release)
	install := filepath.Join(release, "install.yaml")
	released := decode(t, read(t, install)).get(t, "Deployment", "stack-controller")
	g.Expect(manager(t, released, "image")).To(Equal("registry.example.com/pulumi/stack-controller:v1.2.3"))
	built := strings.NewReplacer("registry.example.com/pulumi/", "stack-controller/", ":v1.2.3", ":"+imageTag)
	g.Expect(os.WriteFile(install, []byte(built.Replace(read(t, install))), 0o600)).To(Succeed())

	program := newPulumiProgram(t, c.KubeconfigPath)
	program.enter = c.Command
	program.run(t, "config", "set", "manifest", install)
	program.run(t, "up", "--yes", "--skip-preview")
	c.awaitController(t)
	c.awaitReadyStack(t, "with-pulumi")
	program.run(t, "destroy", "--yes", "--skip-preview")
	for _, object := range []string{"deployment/stack-controller", "clusterrole/stack-controller", "customresourcedefinition/stacks.pulumi.com"} {
		g.Eventually(func() (string, error) {
			return c.Kubectl(t.Context(), "get", object, "--namespace=flux-system", "--ignore-not-found", "--output=name")
		}, "30s", "200ms").Should(BeEmpty())
	}
}

func TestFluxInstallsAControllerThatDeploysAStack(t *testing.T) {
	suite.Long(t, "installs on a cluster with a node")
	g := NewWithT(t)
	c := onCluster(t)
	c.installKustomizeController(t)
	files, err := gitserver.FilesFromDir(inRepository("config"))
	g.Expect(err).NotTo(HaveOccurred())
	published := gitserver.Files{}
	for name, content := range files {
		published["config/"+name] = content
	}
	repository, _, err := c.git.Create("stack-controller", published)
	g.Expect(err).NotTo(HaveOccurred())

	manifest := strings.NewReplacer("https://github.com/stack-controller/stack-controller", repository.URL, "tag: "+namedVersion(t), "branch: main",
		"newTag: "+namedVersion(t), "newTag: "+imageTag).Replace(read(t, inRepository("config", "flux", "git_repository.yaml")))
	_, err = c.KubectlInput(t.Context(), manifest, "apply", "--server-side", "--filename=-")
	g.Expect(err).NotTo(HaveOccurred())
	c.kubectl(t, "wait", "kustomization/stack-controller", "--namespace=flux-system", "--for=condition=Ready", timeout)
	c.awaitController(t)
	c.awaitReadyStack(t, "with-flux")
	account := strings.NewReplacer("kind: OCIRepository", "kind: GitRepository", "path: ./account", "path: ./config/account").
		Replace(read(t, inRepository("config", "flux", "account.yaml")))
	_, err = c.KubectlInput(t.Context(), account, "apply", "--server-side", "--filename=-")
	g.Expect(err).NotTo(HaveOccurred())
	c.kubectl(t, "wait", "kustomization/stack-controller-account", "--namespace=flux-system", "--for=condition=Ready", timeout)
	c.kubectl(t, "get", "serviceaccount/pulumi", "--namespace=default")
	c.kubectl(t, "delete", "kustomization/stack-controller-account", "--namespace=flux-system", timeout)

	c.kubectl(t, "delete", "kustomization/stack-controller", "--namespace=flux-system", timeout)
	c.kubectl(t, "wait", "deployment/stack-controller", "--namespace=flux-system", "--for=delete", timeout)
	c.kubectl(t, "get", "customresourcedefinition/stacks.pulumi.com") // Flux keeps the definitions
	c.deleteDefinitions(t)
}

// deleteDefinitions restores the cluster to its state before an installation.
func (c *realCluster) deleteDefinitions(t *testing.T) {
	t.Helper()
	c.kubectl(t, "delete", "--kustomize", inRepository("config", "crd"), timeout)
}

// handBack hands all objects back to the operator with the commands of the migration guide.
func (c *realCluster) handBack(t *testing.T, namespace string) {
	t.Helper()
	g := NewWithT(t)
	_, section, found := strings.Cut(read(t, inRepository("docs", "guides", "migration.md")), "\n## Rolling back\n")
	g.Expect(found).To(BeTrue())
	blocks := regexp.MustCompile("(?ms)^```sh\n(.*?)^```$").FindAllStringSubmatch(section, 3)
	g.Expect(blocks).To(HaveLen(3))
	stop, handBack, left := blocks[0][1], blocks[1][1], blocks[2][1]

	output, err := c.shell(t, handBack)
	g.Expect(err).To(HaveOccurred())
	g.Expect(output).To(ContainSubstring("stack-controller still runs"))
	output, err = c.shell(t, stop)
	g.Expect(err).NotTo(HaveOccurred(), output)
	output, err = c.shell(t, handBack)
	g.Expect(err).NotTo(HaveOccurred(), output)
	g.Expect(output).To(And(
		ContainSubstring("Workspace "+namespace+"/greeting: would be deleted, with its StatefulSet, Service and pod"),
		ContainSubstring("Workspace "+namespace+"/greeting: deleted"),
		ContainSubstring("Stack "+namespace+"/greeting: handed back, Ready=True ProcessingCompleted"),
	))
	output, err = c.shell(t, left)
	g.Expect(err).NotTo(HaveOccurred(), output)
	g.Expect(strings.Count(output, "No resources found")).To(Equal(2), output)
}

// shell runs commands in a shell that finds kubectl and flux-pulumi, and returns their output.
func (c *realCluster) shell(t *testing.T, commands string) (string, error) {
	t.Helper()
	kubectl, err := tools.Path(t.Context(), "kubectl", nil)
	NewWithT(t).Expect(err).NotTo(HaveOccurred())
	commandLine, err := programs.Path(t.Context(), programs.CommandLine, nil)
	NewWithT(t).Expect(err).NotTo(HaveOccurred())
	path := strings.Join([]string{filepath.Dir(kubectl), filepath.Dir(commandLine), os.Getenv("PATH")}, ":")
	cmd := c.Command(context.WithoutCancel(t.Context()), "bash", "-euc", commands)
	cmd.Env = append(os.Environ(), "KUBECONFIG="+c.KubeconfigPath, "PATH="+path)
	output, err := cmd.CombinedOutput()
	return string(output), err
}

func TestHelmTakesOverWhatKubectlInstalledWhenItIsAsked(t *testing.T) {
	suite.Long(t, "further ways to install")
	t.Parallel()
	g := NewWithT(t)
	cp := flux(t)
	_, err := cp.Kubectl(t.Context(), "apply", "--server-side", "--force-conflicts", "--kustomize", inRepository("config", "default"))
	g.Expect(err).NotTo(HaveOccurred())

	install := []string{"install", "stack-controller", chart(), "--namespace=flux-system", "--kubeconfig=" + cp.KubeconfigPath}
	_, err = run(t.Context(), "helm", install...)
	g.Expect(err).To(MatchError(ContainSubstring("invalid ownership metadata")))
	_, err = run(t.Context(), "helm", append(install, "--take-ownership")...)
	g.Expect(err).NotTo(HaveOccurred())
	_, err = run(t.Context(), "helm", "uninstall", "stack-controller", "--namespace=flux-system", "--kubeconfig="+cp.KubeconfigPath)
	g.Expect(err).NotTo(HaveOccurred())
	_, err = cp.Kubectl(t.Context(), "get", "deployment/stack-controller", "--namespace=flux-system")
	g.Expect(err).To(MatchError(ContainSubstring("not found")))
	_, err = cp.Kubectl(t.Context(), "get", "customresourcedefinition/stacks.pulumi.com")
	g.Expect(err).NotTo(HaveOccurred(), "definitions stay")
}

func TestGoGetsTheMemoryLimitOfTheContainer(t *testing.T) {
	suite.Long(t, "further values; see TestValuesOfTheChartHaveTheirEffect")
	t.Parallel()
	for way, rendered := range map[string]objects{"the chart": template(t), "kustomize": kustomize(t, inRepository("config/default"))} {
		NewWithT(t).Expect(manager(t, rendered.get(t, "Deployment", "stack-controller"), "env")).To(ContainElement(And(HaveKeyWithValue("name", "GOMEMLIMIT"),
			HaveKeyWithValue("valueFrom", HaveKeyWithValue("resourceFieldRef", HaveKeyWithValue("resource", "limits.memory"))))), way)
	}
}

// metricsService is the name of the Pulumi Kubernetes Operator's Service for metrics.
const metricsService = "pulumi-kubernetes-operator-metrics"

func TestThePodMonitorSelectsThePodsOfTheController(t *testing.T) {
	t.Parallel()
	g := NewWithT(t)
	rendered := kustomize(t, kustomization(t, `
resources: [repository/config/default]
components: [repository/config/monitoring/pod_monitor]
namespace: elsewhere
`))
	monitor := rendered.get(t, "PodMonitor", "stack-controller")
	g.Expect(monitor.GetNamespace()).To(Equal("elsewhere"))
	labels := at(t, rendered.get(t, "Deployment", "stack-controller"), "spec", "template", "metadata", "labels")
	for label, value := range at(t, monitor, "spec", "selector", "matchLabels").(map[string]any) {
		g.Expect(labels).To(HaveKeyWithValue(label, value))
	}
	ports := at(t, rendered.get(t, "Deployment", "stack-controller"), append(pod, "containers", 0, "ports")...)
	g.Expect(ports).To(ContainElement(HaveKeyWithValue("name", at(t, monitor, "spec", "podMetricsEndpoints", 0, "port"))))
}

func TestReleasesOfOtherNamesHaveMetricsServicesOfTheirOwn(t *testing.T) {
	suite.Long(t, "further values; see TestValuesOfTheChartHaveTheirEffect")
	t.Parallel()
	g := NewWithT(t)
	rendered := template(t, "--set=fullnameOverride=stack-controller-shard1")
	service := rendered.get(t, "Service", "stack-controller-shard1-metrics")
	g.Expect(at(t, service, "spec", "selector")).To(Equal(map[string]any{"app": "stack-controller-shard1"}))
}

// expectMetrics reads the controller's metrics with the commands of the guide.
func (c *realCluster) expectMetrics(t *testing.T) {
	t.Helper()
	g := NewWithT(t)
	_, section, found := strings.Cut(read(t, inRepository("docs", "guides", "monitoring.md")), "\n```sh\n")
	g.Expect(found).To(BeTrue())
	commands, _, _ := strings.Cut(section, "```\n")
	configure, ask, found := strings.Cut(commands, " &\n")
	g.Expect(found).To(BeTrue())
	g.Expect(configure).To(ContainSubstring("\nkubectl port-forward service/" + metricsService + " 8383:8383"))

	// The first command changes the kubeconfig file, so the test uses a copy.
	kubeconfig := filepath.Join(t.TempDir(), "kubeconfig")
	g.Expect(os.WriteFile(kubeconfig, []byte(read(t, c.KubeconfigPath)), 0o600)).To(Succeed())
	const wait = "trap 'kill $!' EXIT; for _ in $(seq 100); do curl -so /dev/null localhost:8383/metrics && break; sleep 0.1; done\n"
	output, err := c.shell(t, "export KUBECONFIG="+kubeconfig+"\n"+configure+" >/dev/null &\n"+wait+ask)
	g.Expect(err).NotTo(HaveOccurred(), output)
	g.Expect(output).To(And(
		ContainSubstring("# TYPE stacks_active gauge\nstacks_active 1\n"),
		ContainSubstring("\nstacks_failing{name=\"greeting\",namespace=\""),
	))
}

// pulumiProgram is a copy of config/pulumi with a stack, a backend and a provider.
type pulumiProgram struct {
	dir    string
	pulumi string
	env    []string
	// enter returns a command that runs a program in the network of the cluster.
	enter func(ctx context.Context, path string, args ...string) *exec.Cmd
}

// newPulumiProgram prepares the program for the cluster in the kubeconfig.
func newPulumiProgram(t *testing.T, kubeconfig string) *pulumiProgram {
	t.Helper()
	g := NewWithT(t)
	ctx := t.Context()
	home := t.TempDir()
	plugin := filepath.Join(home, "plugins", "resource-kubernetes-v"+tools.KubernetesProviderVersion, "pulumi-resource-kubernetes")
	g.Expect(os.MkdirAll(filepath.Dir(plugin), 0o755)).To(Succeed())
	g.Expect(tools.Compile(ctx, "the provider", inRepository("tests", "e2e", "install", "kubernetes"), ".", plugin, []string{"-trimpath"}, nil)).To(Succeed())
	pulumi, err := tools.Path(ctx, "pulumi", nil)
	g.Expect(err).NotTo(HaveOccurred())
	language, err := tools.Path(ctx, "pulumi-language-yaml", nil)
	g.Expect(err).NotTo(HaveOccurred())

	p := &pulumiProgram{dir: t.TempDir(), pulumi: pulumi, enter: exec.CommandContext, env: []string{
		"HOME=" + home,
		"KUBECONFIG=" + kubeconfig,
		"PATH=" + filepath.Dir(language) + ":" + os.Getenv("PATH"),
		"PULUMI_HOME=" + home,
		"PULUMI_BACKEND_URL=file://" + home,
		"PULUMI_CONFIG_PASSPHRASE=correct horse battery staple",
		"PULUMI_SKIP_UPDATE_CHECK=true",
	}}
	g.Expect(os.CopyFS(p.dir, os.DirFS(inRepository("config", "pulumi")))).To(Succeed())
	p.run(t, "stack", "init", "stack-controller")
	return p
}

func (p *pulumiProgram) run(t *testing.T, args ...string) {
	t.Helper()
	cmd := p.enter(context.WithoutCancel(t.Context()), p.pulumi, append(args, "--non-interactive")...)
	cmd.Dir, cmd.Env = p.dir, p.env
	output, err := cmd.CombinedOutput()
	NewWithT(t).Expect(err).NotTo(HaveOccurred(), string(output))
}
