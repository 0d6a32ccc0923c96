package e2e_test

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"syscall"

	. "github.com/onsi/gomega"
)

// directoryOf is where the process runtime keeps the workspace.
func directoryOf(name string) string {
	sum := sha256.Sum256([]byte(keyOf(name).String()))
	return filepath.Join(system.Dir, "data", "workspaces", hex.EncodeToString(sum[:])[:12])
}

// bringProgram does what an image or an init container does: the program is in the directory of the workspace.
func bringProgram(g *WithT, name string, lines ...string) {
	for file, content := range yamlProgram(name, lines...) {
		g.Expect(os.WriteFile(filepath.Join(directoryOf(name), "workspace", file), []byte(content), 0o600)).To(Succeed())
	}
}

// runsOf is how often pulumi was called for the operation in the workspace.
func runsOf(g Gomega, name, operation string) int {
	runs := 0
	for _, call := range pulumi.calls(g) {
		if strings.HasPrefix(call, directoryOf(name)) && strings.Contains(call, " "+operation+" ") {
			runs++
		}
	}
	return runs
}

// awaitRuns waits until pulumi was called so often for the operation in the workspace.
func awaitRuns(g *WithT, name, operation string, times int) {
	g.Eventually(func(g Gomega) {
		g.Expect(runsOf(g, name, operation)).To(Equal(times))
	}).WithTimeout(patience).WithPolling(pollInterval).Should(Succeed())
}

// killAgent ends the agent of the workspace, which the controller started, as the kernel does when memory runs out.
func killAgent(g *WithT, name string) {
	content, err := os.ReadFile(filepath.Join(directoryOf(name), "workspace.json"))
	g.Expect(err).NotTo(HaveOccurred())
	var record struct {
		Agent struct {
			PID int `json:"pid"`
		} `json:"agent"`
	}
	g.Expect(json.Unmarshal(content, &record)).To(Succeed())
	g.Expect(record.Agent.PID).To(BeNumerically(">", 1))
	g.Expect(syscall.Kill(record.Agent.PID, syscall.SIGKILL)).To(Succeed())
}
