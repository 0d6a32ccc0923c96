package install_test

import (
	"context"
	"os"
	"os/exec"
	"path/filepath"
	"testing"

	. "github.com/onsi/gomega"

	"github.com/stack-controller/stack-controller/tests/tools"
)

// pulumiProgram is a copy of config/pulumi with a stack, a state and a provider.
type pulumiProgram struct {
	dir    string
	pulumi string
	env    []string
	// enter makes the command that runs a program where the cluster is.
	enter func(ctx context.Context, path string, args ...string) *exec.Cmd
}

// newPulumiProgram prepares the program for the cluster of the kubeconfig.
func newPulumiProgram(t *testing.T, kubeconfig string) *pulumiProgram {
	t.Helper()
	g := NewWithT(t)
	ctx := t.Context()
	home := t.TempDir()
	plugin := filepath.Join(home, "plugins", "resource-kubernetes-v4.34.2", "pulumi-resource-kubernetes")
	g.Expect(os.MkdirAll(filepath.Dir(plugin), 0o755)).To(Succeed())
	g.Expect(tools.Compile(ctx, "the provider", inRepository("tests", "install", "kubernetes"), ".", plugin, []string{"-trimpath"}, nil)).To(Succeed())
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
