package pods_test

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"testing"

	. "github.com/onsi/gomega"

	"github.com/stack-controller/stack-controller/tests/tools"
)

// buildCommandLine builds the command line under one of its names, and returns its path.
func buildCommandLine(t *testing.T, g *WithT, name string) string {
	t.Helper()
	binary := filepath.Join(t.TempDir(), name)
	g.Expect(tools.Compile(t.Context(), name, tools.RepositoryRoot(), "./cmd/flux-pulumi", binary, []string{"-buildvcs=false"}, nil)).To(Succeed())
	return binary
}

// commandLine returns a function that runs flux-pulumi as administrator and returns what it writes.
func commandLine(t *testing.T, g *WithT) func(args ...string) (string, error) {
	t.Helper()
	binary := buildCommandLine(t, g, "flux-pulumi")
	return func(args ...string) (string, error) {
		ctx, cancel := context.WithTimeout(t.Context(), patience)
		defer cancel()
		cmd := system.Cluster.Command(ctx, binary, args...)
		cmd.Env = append(os.Environ(), "KUBECONFIG="+system.Cluster.KubeconfigPath)
		output, err := cmd.CombinedOutput()
		if err != nil {
			return string(output), fmt.Errorf("flux-pulumi %v: %w: %s", args, err, output)
		}
		return string(output), nil
	}
}

// expectCommandLine uses what the command line does in pods. It leaves the Stack as it was.
func expectCommandLine(t *testing.T, g *WithT, namespace, stack string) {
	t.Helper()
	run := commandLine(t, g)
	does := func(args ...string) string {
		output, err := run(append(args, "--namespace="+namespace)...)
		g.Expect(err).NotTo(HaveOccurred())
		return output
	}
	log := does("logs", "stack", stack)
	g.Expect(log).To(And(ContainSubstring("Updating (dev)"), ContainSubstring("Outputs:\n"), Not(ContainSubstring(`"stream"`))))
	g.Expect(hasCanary([]byte(log))).To(BeFalse())

	file := filepath.Join(t.TempDir(), "state.json")
	g.Expect(does("state", "export", stack, "--file="+file)).To(BeEmpty())
	content, err := os.ReadFile(file)
	g.Expect(err).NotTo(HaveOccurred())
	var state struct {
		Deployment struct{ Resources []json.RawMessage }
	}
	g.Expect(json.Unmarshal(content, &state)).To(Succeed())
	g.Expect(state.Deployment.Resources).To(HaveLen(3), "the stack, the provider and the resource")
	g.Expect(hasCanary(content)).To(BeFalse())
	g.Expect(does("tree", "stack", stack, "--resources")).To(MatchRegexp(`(?m)─ pulumi:pulumi:Stack \S+-dev$`))

	_, err = run("state", "import", stack, "--file="+file, "--namespace="+namespace)
	g.Expect(err).To(MatchError(ContainSubstring("is not at rest: suspend it")))
	does("suspend", "stack", stack)
	g.Expect(does("state", "import", stack, "--file="+file)).To(Equal("✔ state of dev imported\n"))
	g.Expect(does("unlock", "stack", stack, "--yes")).To(ContainSubstring("✔ locks of dev released"))
	broken := filepath.Join(t.TempDir(), "broken.json")
	g.Expect(os.WriteFile(broken, []byte("{"), 0o600)).To(Succeed())
	_, err = run("state", "import", stack, "--file="+broken, "--namespace="+namespace)
	g.Expect(err).To(MatchError(ContainSubstring("pulumi stack import failed in pod " + namespace)))
	g.Expect(does("resume", "stack", stack)).To(ContainSubstring("is ready"))
}
