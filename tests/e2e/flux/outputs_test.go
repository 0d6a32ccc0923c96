package flux_test

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	. "github.com/onsi/gomega"
	corev1 "k8s.io/api/core/v1"

	"github.com/fluxcd/cli-utils/pkg/kstatus/status"

	"github.com/stack-controller/stack-controller/tests/framework/gitserver"
	"github.com/stack-controller/stack-controller/tests/framework/programs"
	"github.com/stack-controller/stack-controller/tests/framework/systemtest"
	"github.com/stack-controller/stack-controller/tests/tools"
)

// A Stack, a Kustomization and a HelmRelease use the outputs of a Stack, and follow them. These are the files and the commands of
// docs/examples/outputs, with the URL and the backend of this machine.
func TestOthersFollowTheOutputsOfAStack(t *testing.T) {
	t.Parallel()
	p := &fixture{systemtest.New(t, system, "landscape", systemtest.Patience)}
	p.Create(&corev1.Namespace{Name: p.Name})
	files, err := gitserver.FilesFromDir(filepath.Join(tools.RepositoryRoot(), "docs", "examples", "outputs"))
	p.Succeed(err)
	repository, _, err := system.Git.Create(p.Name, files)
	p.Succeed(err)
	here := strings.NewReplacer("https://github.com/acme/landscape", repository.URL, "s3://acme-pulumi-state", system.BackendURL,
		"targetNamespace: default", "targetNamespace: "+p.Name)
	dir := t.TempDir()
	for _, name := range []string{"stacks.yaml", "flux.yaml"} {
		p.Succeed(os.WriteFile(filepath.Join(dir, name), []byte(here.Replace(files[name])), 0o600))
	}
	commandLine, err := programs.Path(t.Context(), programs.CommandLine, nil)
	p.Succeed(err)
	_, commands := p.guide("../examples/outputs/README.md", strings.NewReplacer("$PASSPHRASE", passphraseCanary, "--timeout=10m", "--timeout=3m",
		"flux-pulumi", `"`+commandLine+`" --namespace=`+p.Name))
	p.Expect(commands).To(HaveLen(1))
	p.shell(`cd "` + dir + "\"\n" + commands[0])

	values := func() []string {
		settings, web, secret := &corev1.ConfigMap{}, &corev1.ConfigMap{}, &corev1.Secret{}
		p.Get("settings", settings)
		p.Get("web", web)
		p.Get("web", secret)
		return []string{systemtest.Output(p.stack("shop"), "vpc"), settings.Data["network"], web.Data["network"], string(secret.Data["password"])}
	}
	p.Expect(values()).To(Equal([]string{`"vpc-1"`, "vpc-1", "vpc-1", "initial"}))
	p.Expect(systemtest.Output(p.stack("shop"), "database")).To(Equal(`"[secret]"`))
	p.Expect(p.Updates()).To(HaveLen(2))

	p.commit(repository, p.Name, gitserver.Files{
		"programs/network/Pulumi.yaml": strings.NewReplacer("vpc-1", "vpc-2", "initial", "renewed").Replace(files["programs/network/Pulumi.yaml"]),
	})
	p.Eventually(values).Should(Equal([]string{`"vpc-2"`, "vpc-2", "vpc-2", "renewed"}))
	p.await(kustomizations, "settings", status.CurrentStatus)
	p.await(helmReleases, "web", status.CurrentStatus)
	p.Expect(p.Updates()).To(HaveLen(4), "each Stack was updated once")
}
