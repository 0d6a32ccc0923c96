package cloud_test

import (
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	. "github.com/onsi/gomega"

	"github.com/stack-controller/stack-controller/tests/framework/cloud"
	"github.com/stack-controller/stack-controller/tests/tools"
)

const program = `name: page
runtime: yaml
config: {hidden: {type: string, secret: true}}
outputs: {x: 1, hidden: "${hidden}"}
`

// This test runs the pulumi CLI alone, so that it shows that the CLI works with the stand-in as with Pulumi Cloud.
func TestPulumiUpdatesShowsAndRemovesAStack(t *testing.T) {
	t.Parallel()
	g := NewWithT(t)
	service := cloud.New("token")
	server := httptest.NewServer(service)
	t.Cleanup(server.Close)
	pulumi, err := tools.Path(t.Context(), "pulumi", nil)
	g.Expect(err).NotTo(HaveOccurred())
	language, err := tools.Path(t.Context(), "pulumi-language-yaml", nil)
	g.Expect(err).NotTo(HaveOccurred())
	dir := t.TempDir()
	g.Expect(os.WriteFile(filepath.Join(dir, "Pulumi.yaml"), []byte(program), 0o600)).To(Succeed())
	run := func(token string, args ...string) (string, error) {
		cmd := exec.CommandContext(t.Context(), pulumi, append(args, "--non-interactive")...)
		cmd.Dir = dir
		cmd.Env = []string{"HOME=" + dir, "PULUMI_HOME=" + filepath.Join(dir, "home"), "PATH=" + filepath.Dir(language) + ":" + os.Getenv("PATH"),
			"PULUMI_BACKEND_URL=" + server.URL, "PULUMI_ACCESS_TOKEN=" + token, "PULUMI_CONSOLE_DOMAIN=app.pulumi.test", "PULUMI_SKIP_UPDATE_CHECK=true"}
		output, err := cmd.CombinedOutput()
		return string(output), err
	}
	does := func(args ...string) string {
		output, err := run("token", args...)
		g.Expect(err).NotTo(HaveOccurred(), "%v\n%s\n%v", args, output, service.Unknown())
		return output
	}
	output, err := run("another", "stack", "ls")
	g.Expect(err).To(HaveOccurred())
	g.Expect(output).To(ContainSubstring("No credentials provided or are invalid"))

	does("stack", "init", "dev")
	does("config", "set", "--secret", "hidden", "value")
	const stack = cloud.User + "/page/dev"
	g.Expect(does("up", "--yes", "--skip-preview")).To(ContainSubstring("http://app.pulumi.test/" + stack + "/updates/1"))
	g.Expect(does("preview")).To(ContainSubstring("/previews/"))
	g.Expect(does("refresh", "--yes", "--skip-preview")).To(ContainSubstring("http://app.pulumi.test/" + stack + "/updates/2"))
	broken := strings.Replace(program, "x: 1", `x: "${missing}"`, 1)
	g.Expect(os.WriteFile(filepath.Join(dir, "Pulumi.yaml"), []byte(broken), 0o600)).To(Succeed())
	output, err = run("token", "up", "--yes", "--skip-preview")
	g.Expect(err).To(HaveOccurred())
	g.Expect(output).To(ContainSubstring("http://app.pulumi.test/" + stack + "/updates/3"))
	g.Expect(does("stack", "output", "--show-secrets")).To(ContainSubstring("value"))
	does("destroy", "--yes", "--skip-preview")
	g.Expect(service.Updates(stack)).To(Equal([]cloud.Update{
		{Kind: "update", Status: "succeeded"}, {Kind: "refresh", Status: "succeeded"},
		{Kind: "update", Status: "failed"}, {Kind: "destroy", Status: "succeeded"},
	}))
	does("stack", "rm", "--yes")
	g.Expect(service.Stacks()).To(BeEmpty())
	g.Expect(service.Unknown()).To(BeEmpty())
}
