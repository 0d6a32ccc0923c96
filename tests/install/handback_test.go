package install_test

import (
	"context"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	. "github.com/onsi/gomega"

	"github.com/stack-controller/stack-controller/tests/tools"
)

// handBack hands all objects back with the commands of the migration guide: a pod with the image and the rights of the controller.
func (c *realCluster) handBack(t *testing.T, namespace string) {
	t.Helper()
	g := NewWithT(t)
	_, section, found := strings.Cut(read(t, inRepository("docs", "guides", "migration.md")), "\n## Rolling back\n")
	g.Expect(found).To(BeTrue())
	blocks := regexp.MustCompile("(?ms)^```sh\n(.*?)^```$").FindAllStringSubmatch(section, 3)
	g.Expect(blocks).To(HaveLen(3))
	stop, handBack, left := blocks[0][1], blocks[1][1], blocks[2][1]

	output, err := c.shell(t, handBack)
	g.Expect(err).NotTo(HaveOccurred(), output)
	g.Expect(output).To(ContainSubstring("stack-controller still runs"))
	output, err = c.shell(t, stop)
	g.Expect(err).NotTo(HaveOccurred(), output)
	output, err = c.shell(t, handBack)
	g.Expect(err).NotTo(HaveOccurred(), output)
	g.Expect(output).To(And(
		ContainSubstring("Workspace "+namespace+"/greeting: would be deleted, with its StatefulSet, Service and pod"),
		ContainSubstring("Workspace "+namespace+"/greeting: deleted"),
		ContainSubstring("Stack "+namespace+"/greeting: handed back, Ready=True ProcessingCompleted"),
	))
	output, err = c.shell(t, left)
	g.Expect(err).NotTo(HaveOccurred(), output)
	g.Expect(strings.Count(output, "No resources found")).To(Equal(2), output)
}

// shell runs commands in a shell that has kubectl, and returns what they print.
func (c *realCluster) shell(t *testing.T, commands string) (string, error) {
	t.Helper()
	kubectl, err := tools.Path(t.Context(), "kubectl", nil)
	NewWithT(t).Expect(err).NotTo(HaveOccurred())
	cmd := c.Command(context.WithoutCancel(t.Context()), "bash", "-euc", commands)
	cmd.Env = append(os.Environ(), "KUBECONFIG="+c.KubeconfigPath, "PATH="+filepath.Dir(kubectl)+":"+os.Getenv("PATH"))
	output, err := cmd.CombinedOutput()
	return string(output), err
}
