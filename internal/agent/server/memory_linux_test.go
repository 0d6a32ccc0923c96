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

	"github.com/stack-controller/stack-controller/internal/agent/agentpb"
	"github.com/stack-controller/stack-controller/internal/agent/client"
	"github.com/stack-controller/stack-controller/tests/framework/programs"
	"github.com/stack-controller/stack-controller/tests/tools"
)

// maxIdleMemory is how much memory an agent without an operation may use, in KiB. There is one agent for each Stack.
const maxIdleMemory = 25 << 10

func TestAnIdleAgentIsSmall(t *testing.T) {
	g := NewWithT(t)
	dir := shortDir(t)
	g.Expect(os.Mkdir(filepath.Join(dir, "state"), 0o700)).To(Succeed())
	address := "unix:" + filepath.Join(dir, "s")
	// The released program, because tests and the race detector need memory of their own.
	binary, err := programs.Path(t.Context(), programs.Agent, nil)
	g.Expect(err).NotTo(HaveOccurred())

	// The agent ends by itself if the test does not end it.
	cmd := exec.CommandContext(t.Context(), binary, "serve", "--listen="+address, "--dir="+filepath.Join(dir, "home"), "--pulumi="+tool(t, "pulumi"), "--idle-timeout=1m")
	cmd.Env = append(os.Environ(), "PATH="+filepath.Dir(tool(t, "pulumi-language-yaml"))+":"+os.Getenv("PATH"), "HOME="+filepath.Join(dir, "home"))
	cmd.Stderr = t.Output()
	g.Expect(cmd.Start()).To(Succeed())
	t.Cleanup(func() { _ = cmd.Process.Kill(); _ = cmd.Wait() })
	a := &agent{WithT: g, t: t}
	a.Client, err = client.New(address, client.Options{})
	g.Expect(err).NotTo(HaveOccurred())
	defer a.Close()
	g.Eventually(func() error { _, err := a.GetInfo(t.Context()); return err }).WithTimeout(patience).Should(Succeed())
	memory := residentMemory(g, cmd.Process.Pid)
	t.Logf("an agent that was started has %d KiB", memory)
	g.Expect(memory).To(BeNumerically("<=", maxIdleMemory))

	source := pack(t, map[string]string{"Pulumi.yaml": projectYAML})
	g.Expect(a.push(source)).To(Succeed())
	request := update("a", source.digest, "")
	request.CreateStack = true
	for name, value := range map[string]string{"PULUMI_BACKEND_URL": "file://" + filepath.Join(dir, "state"), "PULUMI_CONFIG_PASSPHRASE": "x"} {
		request.Env = append(request.Env, &agentpb.EnvironmentVariable{Name: name, Value: &agentpb.EnvironmentVariable_Text{Text: value}})
	}
	a.accept(request)
	final := a.wait("a")
	g.Expect(final.GetState()).To(Equal(succeeded), final.GetMessage())
	g.Eventually(func() int { memory = residentMemory(g, cmd.Process.Pid); return memory }).WithTimeout(patience).Should(BeNumerically("<=", maxIdleMemory))
	t.Logf("after an update it has %d KiB", memory)
}

// tool returns the path of a real program, which is built once for the machine.
func tool(t *testing.T, name string) string {
	t.Helper()
	path, err := tools.Path(context.Background(), name, func(progress string) { t.Log(progress) })
	NewWithT(t).Expect(err).NotTo(HaveOccurred())
	return path
}

// residentMemory returns the memory of the process, including the parts of its files that are in memory, in KiB.
func residentMemory(g *WithT, pid int) int {
	status, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
	g.Expect(err).NotTo(HaveOccurred())
	found := regexp.MustCompile(`VmRSS:\s+(\d+) kB`).FindSubmatch(status)
	g.Expect(found).To(HaveLen(2))
	size, err := strconv.Atoi(string(found[1]))
	g.Expect(err).NotTo(HaveOccurred())
	return size
}
