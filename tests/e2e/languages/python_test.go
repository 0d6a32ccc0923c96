package languages_test

import (
	"strconv"
	"strings"
	"testing"

	. "github.com/onsi/gomega"

	pulumiv1 "github.com/stack-controller/stack-controller/api/pulumi/v1"
	"github.com/stack-controller/stack-controller/tests/framework/gitserver"
)

// The image that the tests build has no Python, so a stub stands in for it. It shows what is called, where, and how often.
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

// A real program is installed by each package manager of Python that Pulumi.yaml chooses, and runs in what that has installed.
func TestProgramsInPython(t *testing.T) {
	t.Parallel()
	if !system.Images.Languages.IsForeign {
		t.Skip("the image has a stub in place of Python, and its language host is too old for uv and poetry")
	}
	const (
		requirements = "pulumi>=3.0.0,<4.0.0"
		pyproject    = "[project]\nname = \"app\"\nversion = \"1.0.0\"\nrequires-python = \">=3.10\"\ndependencies = [\"" + requirements + "\"]\n"
		poetry       = "[tool.poetry]\npackage-mode = false\n[[tool.poetry.source]]\nname = \"mirror\"\nurl = "
	)
	for name, test := range map[string]struct {
		options string
		files   gitserver.Files
		// prefix matches the directory of the virtual environment.
		prefix string
	}{
		"python-pip": {"toolchain: pip, virtualenv: venv", gitserver.Files{"requirements.txt": requirements}, `/venv$`},
		"python-uv":  {"toolchain: uv", gitserver.Files{"pyproject.toml": pyproject}, `/\.venv$`},
		"python-poetry": {"toolchain: poetry", gitserver.Files{"pyproject.toml": pyproject + poetry + strconv.Quote(system.Packages.Python) + "\n"},
			`/pypoetry/virtualenvs/`},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			g := NewWithT(t)
			test.files["Pulumi.yaml"] = "name: app\nruntime:\n  name: python\n  options: {" + test.options + "}\n"
			test.files["__main__.py"] = "import sys\nimport pulumi\n\npulumi.export('prefix', sys.prefix)\n"
			app, ready := deploy(t, name, test.files)
			g.Expect(output(g, ready, "prefix")).To(MatchRegexp(test.prefix))
			stack := commit(t, app, gitserver.Files{"__main__.py": "import pulumi\n\npulumi.export('answer', '42')\n"})
			g.Expect(stack.Status.LastUpdate.State).To(Equal(pulumiv1.StackUpdateSucceeded), stack.Status.LastUpdate.Message)
			g.Expect(output(g, stack, "answer")).To(Equal("42"))
		})
	}
}
