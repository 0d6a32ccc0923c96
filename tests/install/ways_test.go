package install_test

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	. "github.com/onsi/gomega"

	"github.com/stack-controller/stack-controller/tests/gitserver"
	"github.com/stack-controller/stack-controller/tests/suite"
	"github.com/stack-controller/stack-controller/tests/tools"
)

// imageTag is the tag of the images of the current source tree.
const imageTag = "test"

// ways is how many tests install the controller on the cluster.
const ways = 5

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

	// To the Pulumi Kubernetes Operator, and back again.
	c.handBack(t, name)
	c.kubectl(t, "scale", "deployment/stack-controller", "--namespace=flux-system", "--replicas=1")
	c.awaitController(t)
	c.removeStack(t, name)
	c.kubectl(t, "delete", "namespace/"+name, "persistentvolume/"+name, timeout)
	c.kubectl(t, "delete", "--kustomize", overlay, timeout)
}

// Its rights end at the border of its namespace, and so does its work.
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
			// It fails where the answer is no.
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

	// An upgrade changes what it has to, and nothing else.
	c.run(t, nil, helm, "upgrade", "stack-controller", chart(), "--namespace=flux-system", "--wait", timeout, "--reuse-values",
		"--set=controller.logLevel=debug")
	c.run(t, nil, helm, "uninstall", "stack-controller", "--namespace=flux-system", "--wait", timeout)
	c.kubectl(t, "get", "customresourcedefinition/stacks.pulumi.com") // it stays
	c.deleteDefinitions(t)
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

	manifest := strings.NewReplacer("https://github.com/stack-controller/stack-controller", repository.URL, "tag: v0.2.0", "branch: main",
		"newTag: v0.2.0", "newTag: "+imageTag).Replace(read(t, inRepository("config", "flux", "git_repository.yaml")))
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
	c.kubectl(t, "get", "customresourcedefinition/stacks.pulumi.com") // it stays
	c.deleteDefinitions(t)
}

// deleteDefinitions leaves the cluster as it was before an installation.
func (c *realCluster) deleteDefinitions(t *testing.T) {
	t.Helper()
	c.kubectl(t, "delete", "--kustomize", inRepository("config", "crd"), timeout)
}
