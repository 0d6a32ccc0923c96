package install_test

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	. "github.com/onsi/gomega"

	"github.com/stack-controller/stack-controller/tests/gitserver"
	"github.com/stack-controller/stack-controller/tests/tools"
)

// imageTag is the tag of the images of the current source tree.
const imageTag = "test"

func TestKubectlInstallsAControllerThatDeploysAStack(t *testing.T) {
	c := onCluster(t)
	overlay := kustomization(t, `
resources: [repository/config/default]
images:
- {name: stack-controller/stack-controller, newTag: test}
- {name: stack-controller/stack-controller-agent, newTag: test}
`)
	c.kubectl(t, "apply", "--server-side", "--kustomize", overlay)
	c.awaitController(t)
	c.awaitReadyStack(t, "with-kubectl")
	c.kubectl(t, "delete", "--kustomize", overlay, timeout)
}

func TestHelmInstallsAControllerThatDeploysAStack(t *testing.T) {
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
	g := NewWithT(t)
	c := onCluster(t)
	release, err := releaseFiles(t, "v1.2.3")
	g.Expect(err).NotTo(HaveOccurred(), release)
	install := filepath.Join(release, "install.yaml")
	built := strings.NewReplacer("registry.example.com/pulumi/", "stack-controller/", ":v1.2.3", ":"+imageTag)
	g.Expect(os.WriteFile(install, []byte(built.Replace(read(t, install))), 0o600)).To(Succeed())

	program := newPulumiProgram(t, c.KubeconfigPath)
	program.enter = c.Command
	program.run(t, "config", "set", "manifest", install)
	program.run(t, "up", "--yes", "--skip-preview")
	c.awaitController(t)
	c.awaitReadyStack(t, "with-pulumi")
	program.run(t, "destroy", "--yes", "--skip-preview")
}

func TestFluxInstallsAControllerThatDeploysAStack(t *testing.T) {
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
