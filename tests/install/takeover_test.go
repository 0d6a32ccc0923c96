package install_test

import (
	"testing"

	. "github.com/onsi/gomega"
)

func TestHelmTakesOverWhatKubectlInstalledWhenItIsTold(t *testing.T) {
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
