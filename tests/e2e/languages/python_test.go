package languages_test

import (
	"strings"
	"testing"

	. "github.com/onsi/gomega"

	pulumiv1 "github.com/stack-controller/stack-controller/api/pulumi/v1"
	"github.com/stack-controller/stack-controller/tests/framework/gitserver"
)

// Python's packages cannot be had where the tests run, so a stub stands in for Python. It shows what is called, where, and how often.
func TestProgramInPythonIsInstalledOnceForItsRequirements(t *testing.T) {
	t.Parallel()
	g := NewWithT(t)
	const name = "python"
	app, stack := provide(t, name, project(t, name))
	if system.Images.Languages.IsForeign {
		t.Skip("the image has a real Python")
	}
	g.Expect(system.Client.Create(t.Context(), stack)).To(Succeed())
	g.Expect(awaitFailure(t, app.Key())).To(ContainSubstring("the stub of Python runs no program"))
	calls := func() []string {
		out, err := system.Cluster.Kubectl(t.Context(), "exec", "--namespace="+name, name+"-workspace-0", "--container=pulumi", "--",
			"sh", "-c", "cat /tmp/python-calls")
		g.Expect(err).NotTo(HaveOccurred())
		return strings.Split(strings.TrimSpace(out), "\n")
	}
	t.Log(strings.Join(calls(), "\n"))
	installs := func() (found []string) {
		for _, call := range calls() {
			if strings.Contains(call, "pip install -r requirements.txt") {
				found = append(found, call)
			}
		}
		return found
	}
	g.Expect(calls()[0]).To(MatchRegexp(`: python3 -m venv /share/source`))
	g.Expect(installs()).To(HaveLen(1))

	stack = commit(t, app, gitserver.Files{"__main__.py": "print(42)\n"})
	g.Expect(stack.Status.LastUpdate.State).To(Equal(pulumiv1.StackUpdateFailed))
	g.Expect(installs()).To(HaveLen(1), "a commit that changes only the program does not install it again")
	commit(t, app, gitserver.Files{"requirements.txt": "pulumi>=3.1.0,<4.0.0\n"})
	g.Expect(installs()).To(HaveLen(2))
}
