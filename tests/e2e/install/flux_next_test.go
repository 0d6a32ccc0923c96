package install_test

import (
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	. "github.com/onsi/gomega"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"sigs.k8s.io/yaml"

	notificationv1 "github.com/fluxcd/notification-controller/api/v1"

	"github.com/stack-controller/stack-controller/tests/framework/controlplane"
	"github.com/stack-controller/stack-controller/tests/framework/suite"
	"github.com/stack-controller/stack-controller/tests/tools"
)

// generatedFrom returns a function like definitionOf for the notification-controller of Flux 2.10. Its own definitions are not in the module
// of its API, so they are generated from the types, as its makefile does.
func generatedFrom(t *testing.T, packages ...string) func(*testing.T, string) *apiextensionsv1.CustomResourceDefinition {
	t.Helper()
	g := NewWithT(t)
	generator, err := tools.Path(t.Context(), "controller-gen", nil)
	g.Expect(err).NotTo(HaveOccurred())
	dir := t.TempDir()
	args := []string{"crd:crdVersions=v1", "output:crd:dir=" + dir}
	for _, name := range packages {
		args = append(args, "paths="+name)
	}
	command := exec.CommandContext(t.Context(), generator, args...)
	command.Dir = tools.RepositoryRoot() // whose module pins the version
	output, err := command.CombinedOutput()
	g.Expect(err).NotTo(HaveOccurred(), string(output))
	return func(t *testing.T, kind string) *apiextensionsv1.CustomResourceDefinition {
		t.Helper()
		definition := &apiextensionsv1.CustomResourceDefinition{}
		content := read(t, filepath.Join(dir, "notification.toolkit.fluxcd.io_"+kind+".yaml"))
		NewWithT(t).Expect(yaml.Unmarshal([]byte(content), definition)).To(Succeed())
		return definition
	}
}

// notificationObjects matches the YAML documents with the objects of notification-controller that have two versions in Flux 2.10.
var notificationObjects = regexp.MustCompile(`(?m)^apiVersion: notification\.toolkit\.fluxcd\.io/v1beta3\n(?:[a-z ].*\n)+`)

func TestAlertsOfFlux210NameStacksInBothVersionsOncePatched(t *testing.T) {
	suite.Long(t, "the definitions of the next Flux; see TestAlertsAndReceiversNameStacksOncePatched")
	t.Parallel()
	g := NewWithT(t)
	const module = "github.com/fluxcd/notification-controller/api/"
	newer := notificationv1.GroupVersion
	older := schema.GroupVersion{Group: newer.Group, Version: "v1beta3"}
	definition := generatedFrom(t, module+newer.Version, module+older.Version)
	cp, err := controlplane.Start(t.Context(), controlplane.Options{})
	g.Expect(err).NotTo(HaveOccurred())
	t.Cleanup(func() { g.Expect(cp.Stop()).To(Succeed()) })
	dir := patchedBy(t, "notifications-2.10", definition)
	_, err = cp.Kubectl(t.Context(), "apply", "--server-side", "--kustomize", dir)
	g.Expect(err).NotTo(HaveOccurred())
	_, err = cp.Kubectl(t.Context(), "get", "clusterrole", "stack-controller-notifications")
	g.Expect(err).NotTo(HaveOccurred())
	content, err := yaml.Marshal(definition(t, "providers"))
	g.Expect(err).NotTo(HaveOccurred())
	_, err = cp.KubectlInput(t.Context(), string(content), "apply", "--server-side", "-f", "-")
	g.Expect(err).NotTo(HaveOccurred())
	for _, namespace := range []string{"flux-system", "tutorial"} {
		_, err = cp.Kubectl(t.Context(), "create", "namespace", namespace)
		g.Expect(err).NotTo(HaveOccurred())
	}

	// All Alerts and Providers that users copy, in both versions.
	for _, page := range []string{
		"config/flux/alert.yaml", "docs/examples/fleet/notifications/alert.yaml",
		"docs/guides/alerts.md", "docs/guides/pull-requests.md", "docs/guides/tutorial.md",
	} {
		objects := notificationObjects.FindAllString(read(t, inRepository(page)), -1)
		g.Expect(objects).NotTo(BeEmpty(), page)
		for _, object := range objects {
			for _, version := range []string{older.String(), newer.String()} {
				path := filepath.Join(t.TempDir(), "object.yaml")
				g.Expect(os.WriteFile(path, []byte(strings.Replace(object, older.String(), version, 1)), 0o600)).To(Succeed())
				// The API server uses a changed definition only after a moment.
				g.Eventually(func() error { return dryRun(t, cp, path) }, "30s", "200ms").Should(Succeed(), "%s of %s:\n%s", version, page, object)
			}
		}
	}
	g.Expect(dryRun(t, cp, inRepository("config", "flux", "alert.yaml"))).To(Succeed(), "with the Receiver, which has one version")
}
