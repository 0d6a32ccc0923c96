package command

import (
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"

	. "github.com/onsi/gomega"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/cli-runtime/pkg/genericclioptions"

	"github.com/stack-controller/stack-controller/cmd/flux-pulumi/print"
)

// A login may take longer than a call of the API server.
func TestTheCredentialPluginRunsOnceBeforeTheFirstCall(t *testing.T) {
	g := NewWithT(t)
	dir := t.TempDir()
	runs := filepath.Join(dir, "runs")
	plugin := filepath.Join(dir, "plugin")
	write := func(path, content string, mode os.FileMode) {
		g.Expect(os.WriteFile(path, []byte(content), mode)).To(Succeed())
	}
	write(plugin, `#!/bin/sh
echo run >> `+runs+`
echo '{"apiVersion": "client.authentication.k8s.io/v1", "kind": "ExecCredential", "status": {"token": "canary"}}'
`, 0o755)
	write(filepath.Join(dir, "config"), `{apiVersion: v1, kind: Config, current-context: c,
clusters: [{name: c, cluster: {server: "https://127.0.0.1:1"}}],
contexts: [{name: c, context: {cluster: c, user: u}}],
users: [{name: u, user: {exec: {apiVersion: client.authentication.k8s.io/v1, command: `+plugin+`, interactiveMode: IfAvailable}}}]}
`, 0o600)
	count := func() int {
		content, err := os.ReadFile(runs)
		g.Expect(err).NotTo(HaveOccurred())
		return strings.Count(string(content), "run")
	}
	s := &session{flags: genericclioptions.NewConfigFlags(false), log: print.New(io.Discard, os.Getenv)}
	s.flags.KubeConfig = new(filepath.Join(dir, "config"))
	c, err := s.connect()
	g.Expect(err).NotTo(HaveOccurred())
	g.Expect(c.login(t.Context())).To(Succeed(), "although no API server answers")
	g.Expect(count()).To(Equal(1))
	g.Expect(c.read(t.Context(), c.key("a"), &corev1.Secret{})).To(MatchError(ContainSubstring("connection refused")))
	g.Expect(count()).To(Equal(1), "the call has its credentials")

	write(plugin, "#!/bin/sh\nexit 3\n", 0o755)
	other, err := s.connect()
	g.Expect(err).NotTo(HaveOccurred())
	other.config.ExecProvider.Args = []string{"another"}
	g.Expect(other.login(t.Context())).To(MatchError(And(ContainSubstring("log in to the cluster"), ContainSubstring("exit code 3"))))
}
