package install_test

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	. "github.com/onsi/gomega"
)

// delegator is the binding of the ServiceAccount default/pulumi, by the name that the Pulumi Kubernetes Operator gives it.
const delegator = "default:pulumi:system:auth-delegator"

// TestEachWayToInstallCanBringThePulumiServiceAccount is about default/pulumi, which manifests for the operator name.
func TestEachWayToInstallCanBringThePulumiServiceAccount(t *testing.T) {
	t.Parallel()
	g := NewWithT(t)
	release, err := releaseFiles(t, "v1.2.3", "")
	g.Expect(err).NotTo(HaveOccurred(), release)
	unpacked := unpack(t, release)
	source := decode(t, read(t, inRepository("config", "flux", "account.yaml"))).get(t, "Kustomization", "stack-controller-account")
	path := at(t, source, "spec", "path").(string)
	want := kustomize(t, inRepository("config", "account"))
	for way, rendered := range map[string]objects{
		"an overlay": kustomize(t, kustomization(t, "resources: [repository/config/default, repository/config/account]\n")),
		"the chart":  template(t, "--set=pulumiServiceAccount.create=true"),
		"a file of the release, as for the Pulumi program": decode(t, read(t, release, "install.yaml")+read(t, release, "account.yaml")),
		"manifests, as for Flux":                           append(kustomize(t, filepath.Join(unpacked, "default")), kustomize(t, filepath.Join(unpacked, path))...),
	} {
		account := rendered.get(t, "ServiceAccount", "pulumi")
		g.Expect(account.GetNamespace()).To(Equal("default"), way)
		binding := rendered.get(t, "ClusterRoleBinding", delegator)
		for _, field := range []string{"roleRef", "subjects"} {
			g.Expect(binding.Object[field]).To(Equal(want.get(t, "ClusterRoleBinding", delegator).Object[field]), way)
		}
		g.Expect(rendered.get(t, "ServiceAccount", "stack-controller").GetNamespace()).To(Equal("flux-system"), way)
	}
}

func TestNoWayToInstallBringsThePulumiServiceAccountUnasked(t *testing.T) {
	t.Parallel()
	g := NewWithT(t)
	for way, rendered := range map[string]objects{
		"kustomize": kustomize(t, inRepository("config", "default")), "the chart": template(t),
		// Whoever makes the roles himself makes this binding himself.
		"the chart without roles": template(t, "--set=pulumiServiceAccount.create=true,rbac.create=false"),
	} {
		g.Expect(rendered.names()).NotTo(ContainElement("ClusterRoleBinding "+delegator), way)
	}
}

// It asks who calls an agent, and may do nothing else.
func TestPulumiServiceAccountMayOnlyAskWhoCalls(t *testing.T) {
	t.Parallel()
	g := NewWithT(t)
	cp := flux(t)
	_, err := cp.Kubectl(t.Context(), "apply", "--server-side", "--kustomize", inRepository("config", "account"))
	g.Expect(err).NotTo(HaveOccurred())
	const account = "--as=system:serviceaccount:default:pulumi"
	for right, want := range map[string]bool{
		"create tokenreviews.authentication.k8s.io": true, "create subjectaccessreviews.authorization.k8s.io": true,
		"get secrets": false, "list stacks.pulumi.com": false, "create pods": false,
	} {
		_, err := cp.Kubectl(t.Context(), append([]string{"auth", "can-i", account}, strings.Fields(right)...)...)
		g.Expect(err == nil).To(Equal(want), right)
	}
	g.Expect(dryRun(t, cp, inRepository("config", "flux", "account.yaml"))).To(Succeed())

	// The sentence in the file is true: with the GitRepository, only two fields are others.
	fromGit := strings.NewReplacer("kind: OCIRepository", "kind: GitRepository", "./account", "./config/account").
		Replace(read(t, inRepository("config", "flux", "account.yaml")))
	file := filepath.Join(t.TempDir(), "account.yaml")
	g.Expect(os.WriteFile(file, []byte(fromGit), 0o600)).To(Succeed())
	g.Expect(dryRun(t, cp, file)).To(Succeed())
	g.Expect(inRepository(at(t, decode(t, fromGit).get(t, "Kustomization", "stack-controller-account"), "spec", "path").(string), "kustomization.yaml")).
		To(BeARegularFile())
}
