package server

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"testing"

	. "github.com/onsi/gomega"

	"github.com/stack-controller/stack-controller/internal/agent/client"
	"github.com/stack-controller/stack-controller/tests/tools"
)

// maxIdleMemory is what an agent without an operation may have in memory, in KiB: there is one for each Stack.
const maxIdleMemory = 25 << 10

func TestAnIdleAgentIsSmall(t *testing.T) {
	g := NewWithT(t)
	pulumi, err := tools.Path(context.Background(), "pulumi", func(progress string) { t.Log(progress) })
	g.Expect(err).NotTo(HaveOccurred())
	dir := shortDir(t)
	binary, address := filepath.Join(dir, "agent"), "unix:"+filepath.Join(dir, "s")
	// As it is released: tests and the race detector have memory of their own.
	build := exec.CommandContext(t.Context(), "go", "build", "-o", binary, "github.com/stack-controller/stack-controller/cmd/agent")
	build.Env = append(os.Environ(), "CGO_ENABLED=0")
	output, err := build.CombinedOutput()
	g.Expect(err).NotTo(HaveOccurred(), string(output))

	cmd := exec.CommandContext(t.Context(), binary, "serve", "--listen="+address, "--dir="+filepath.Join(dir, "home"), "--pulumi="+pulumi)
	cmd.Stderr = t.Output()
	g.Expect(cmd.Start()).To(Succeed())
	t.Cleanup(func() { _ = cmd.Process.Kill(); _ = cmd.Wait() })
	agent, err := client.New(address, client.Options{})
	g.Expect(err).NotTo(HaveOccurred())
	defer agent.Close()
	g.Eventually(func() error { _, err := agent.GetInfo(t.Context()); return err }).WithTimeout(patience).Should(Succeed())
	memory := residentMemory(g, cmd.Process.Pid)
	t.Logf("an idle agent has %d KiB", memory)
	g.Expect(memory).To(BeNumerically("<=", maxIdleMemory))
}

// residentMemory is the memory of the process, with the parts of its files that are in memory, in KiB.
func residentMemory(g *WithT, pid int) int {
	status, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
	g.Expect(err).NotTo(HaveOccurred())
	found := regexp.MustCompile(`VmRSS:\s+(\d+) kB`).FindSubmatch(status)
	g.Expect(found).To(HaveLen(2))
	size, err := strconv.Atoi(string(found[1]))
	g.Expect(err).NotTo(HaveOccurred())
	return size
}
