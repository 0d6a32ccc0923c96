package main

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	. "github.com/onsi/gomega"

	"github.com/stack-controller/stack-controller/internal/agent/agentpb"
)

func TestPeopleInAPodWorkWithTheProgramOfTheStack(t *testing.T) {
	b := newBench(t)
	workspace, settings := filepath.Join(b.dir, "workspace"), filepath.Join(b.dir, "user", ".pulumi")
	b.Expect(os.MkdirAll(workspace, 0o755)).To(Succeed())
	b.Expect(os.WriteFile(filepath.Join(b.dir, "agent"), []byte("binary"), 0o755)).To(Succeed())
	t.Setenv("PULUMI_HOME", settings)
	a := b.start("--workspace="+workspace, "--exclusive-host", "--local-root=/", "--termination-grace=1m")
	request := b.update("a", b.push(a, program(1)))
	request.Config = []*agentpb.ConfigItem{
		{Key: "token", Secret: true, Value: &agentpb.ConfigItem_Text{Text: "canary-config"}},
		{Key: "region", Value: &agentpb.ConfigItem_Text{Text: "eu-1"}},
	}
	b.succeed(a, request)

	// This is as in kubectl exec: in /share/workspace, with the variables of the container.
	byHand := func(args string) string {
		cmd := exec.CommandContext(t.Context(), b.cli, append(strings.Fields(args), "--non-interactive")...)
		cmd.Dir = workspace
		cmd.Env = []string{"PATH=" + b.bin + ":/usr/bin:/bin", "HOME=" + t.TempDir(), "USER=me", "PWD=" + workspace, "PULUMI_HOME=" + settings,
			"PULUMI_BACKEND_URL=file://" + filepath.Join(filepath.Dir(b.dir), "state"), "PULUMI_CONFIG_PASSPHRASE=" + passphrase, "PULUMI_SKIP_UPDATE_CHECK=true"}
		output, err := cmd.CombinedOutput()
		b.Expect(err).NotTo(HaveOccurred(), string(output))
		return string(output)
	}
	byHand("preview --expect-no-changes")
	b.Expect(byHand("config get region")).To(Equal("eu-1\n"))
	b.Expect(byHand("config get token")).To(Equal("canary-config\n"))

	request.Id = "b"
	final := b.succeed(a, request)
	b.Expect(final.GetResourceChanges()).To(Equal(map[string]int64{"same": 1}))
	b.Expect(os.ReadFile(filepath.Join(b.dir, "agent"))).To(BeEquivalentTo("binary"))
	b.expectNoSecrets()
}
