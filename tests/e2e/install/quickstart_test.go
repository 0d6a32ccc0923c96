package install_test

import (
	"flag"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	. "github.com/onsi/gomega"

	"github.com/stack-controller/stack-controller/tests/contract/pages"
)

var updateDocs = flag.Bool("update-docs", false, "write the picture of the quickstart")

// waits matches the lines about what the command waits for, which are not always the same.
var waits = regexp.MustCompile(`(?m)^.*◎.*\n`)

// changing matches what differs from run to run: names of Updates and Pods, and times.
var changing = regexp.MustCompile(`\b(hello-)[0-9a-f]{10}\b|\b(\d+(?:\.\d+)?)(s|ms)\b`)

// asInPicture returns what the picture shows instead of what changing matches.
func asInPicture(found string) string {
	if strings.HasPrefix(found, "hello-") {
		return "hello-5f2d81c09a"
	}
	return "9s"
}

// checkQuickstart compares what the quickstart has printed, in colors, with the picture of it, and returns it without colors.
func checkQuickstart(t *testing.T, output string) string {
	t.Helper()
	plain := regexp.MustCompile("\x1b\\[\\d+m").ReplaceAllString(output, "")
	NewWithT(t).Expect(plain).To(And(ContainSubstring(`greeting: "Hello, world!"`), ContainSubstring("Stack pulumi-quickstart/hello (dev)")))
	pages.Keep(t, "docs/quickstart.svg", pages.Terminal("$ flux pulumi quickstart\n"+changing.ReplaceAllStringFunc(waits.ReplaceAllString(output, ""), asInPicture)),
		"go test ./tests/e2e/install -run TestTheCommandLineInstalls -update-docs", *updateDocs)
	return plain
}

// printedCommands matches the commands that the quickstart prints to break the example, and to explain what happened.
var printedCommands = regexp.MustCompile(`\nBreak it, and let it be explained:\n  (kubectl .*)\n  (flux pulumi explain .*)\n`)

// breakQuickstart runs the commands that the quickstart has printed.
func (c *realCluster) breakQuickstart(t *testing.T, printed string) {
	t.Helper()
	g := NewWithT(t)
	commands := printedCommands.FindStringSubmatch(printed)
	g.Expect(commands).To(HaveLen(3), printed)
	output, err := c.shell(t, commands[1])
	g.Expect(err).NotTo(HaveOccurred(), output)
	c.kubectl(t, "wait", "stack/hello", "--namespace=pulumi-quickstart", "--for=jsonpath={.status.lastUpdate.state}=failed", timeout)
	// While the next attempt runs, the Stack says so. The output has line breaks in long messages.
	g.Eventually(func() (string, error) {
		output, err := c.shell(t, "flux() { flux-\"$@\"; }\n"+commands[2])
		return strings.Join(strings.Fields(output), " "), err
	}, "2m", "1s").Should(And(
		ContainSubstring("RetryingAfterFailure"),
		ContainSubstring("up failed"),
		ContainSubstring("unable to infer type: either 'default' or 'type' is required"),
	))
}

// claimQuickstart creates the volume for the claim of the quickstart, as a StorageClass would.
func (c *realCluster) claimQuickstart(t *testing.T) {
	t.Helper()
	g := NewWithT(t)
	state := filepath.Join(c.dir, "state-quickstart")
	g.Expect(os.Mkdir(state, 0o700)).To(Succeed())
	g.Expect(os.Chmod(state, 0o777)).To(Succeed(), "for the user of the workspace pod")
	output, err := c.KubectlInput(t.Context(), `apiVersion: v1
kind: PersistentVolume
metadata: {name: pulumi-quickstart}
spec:
  capacity: {storage: 1Gi}
  accessModes: [ReadWriteOnce]
  claimRef: {namespace: pulumi-quickstart, name: state}
  hostPath: {path: `+state+`}
`, "apply", "--filename=-")
	g.Expect(err).NotTo(HaveOccurred(), output)
}
