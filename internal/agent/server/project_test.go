package server

import (
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	. "github.com/onsi/gomega"

	"github.com/stack-controller/stack-controller/internal/agent/agentpb"
)

func TestTheDirectoryOfAProgram(t *testing.T) {
	dir := t.TempDir()
	tree := filepath.Join(dir, "tree")
	write(t, dir, map[string]string{
		"outside/Pulumi.yaml": projectYAML, "tree/Pulumi.yaml": projectYAML, "tree/a/b/Pulumi.yml": projectYAML,
		"tree/json/Pulumi.json": "{}", "tree/empty/README.md": "", "tree/Pulumi.yaml.d/x": "", "tree/wrong/Pulumi.yaml/x": "",
		"tree/linked-file/x": "", "tree/outer-file/x": "", "tree/pipe/x": "", "tree/..dots/Pulumi.yaml": "", "tree/loop/x": "",
	})
	g := NewWithT(t)
	for link, target := range map[string]string{
		"tree/inner": "a/b", "tree/outer": "../outside", "tree/absolute": filepath.Join(dir, "outside"), "tree/up": "..",
		"tree/linked-file/Pulumi.yaml": "../Pulumi.yaml", "tree/outer-file/Pulumi.yaml": "../../outside/Pulumi.yaml",
		"tree/loop/Pulumi.yaml": "Pulumi.yaml", "link-to-tree": "tree",
	} {
		g.Expect(os.Symlink(target, filepath.Join(dir, link))).To(Succeed())
	}
	g.Expect(syscall.Mkfifo(filepath.Join(tree, "pipe", "Pulumi.yaml"), 0o600)).To(Succeed())
	tests := []struct {
		dir, want, message string
	}{
		{dir: "", want: "."},
		{dir: ".", want: "."},
		{dir: "./a/b/", want: "a/b"},
		{dir: "/a/b", want: "a/b"},
		{dir: "a/../a/b", want: "a/b"},
		{dir: "json", want: "json"},
		{dir: "inner", want: "a/b"},
		{dir: "linked-file", want: "linked-file"},
		{dir: "..dots", want: "..dots"},
		{dir: "..", message: `directory ".." is outside of the artifact`},
		{dir: "../outside", message: `directory "../outside" is outside of the artifact`},
		{dir: "/../outside", message: "is outside of the artifact"},
		{dir: "a/../../outside", message: "is outside of the artifact"},
		{dir: "outer", message: "a link leads out of it"},
		{dir: "absolute", message: "a link leads out of it"},
		{dir: "up/outside", message: "a link leads out of it"},
		{dir: "missing", message: `directory "missing" does not exist in the artifact`},
		{dir: "Pulumi.yaml", message: `"Pulumi.yaml" is not a directory of the artifact`},
		{dir: "a\x00b", message: "invalid argument"},
		{dir: "empty", message: `directory "empty" of the artifact: no Pulumi.yaml there`},
		{dir: "wrong", message: "Pulumi.yaml is not a file"},
		{dir: "pipe", message: "Pulumi.yaml is not a file"},
		{dir: "outer-file", message: "a link leads out of it"},
		{dir: "loop", message: "Pulumi.yaml cannot be used"},
	}
	for _, root := range []string{tree, filepath.Join(dir, "link-to-tree")} {
		for _, tt := range tests {
			t.Run(filepath.Base(root)+" "+tt.dir, func(t *testing.T) {
				g := NewWithT(t)
				project, err := findProject(root, tt.dir, "artifact", "")
				if tt.message != "" {
					g.Expect(err).To(MatchError(ContainSubstring(tt.message)))
					g.Expect(err.Error()).NotTo(ContainSubstring(dir))
					return
				}
				g.Expect(err).NotTo(HaveOccurred())
				g.Expect(project).To(Equal(filepath.Join(root, tt.want)))
			})
		}
	}
}

func TestAProgramThatCannotBeFoundIsAFailureOfTheOperation(t *testing.T) {
	a := startAgent(t, t.TempDir())
	source := pack(t, map[string]string{"README.md": ""})
	a.Expect(a.push(source)).To(Succeed())
	for id, tt := range map[string]struct{ dir, message string }{
		"root":    {"", "no Pulumi.yaml there"},
		"outside": {"../..", "outside of the artifact"},
		"missing": {"infra", "does not exist"},
		"long":    {strings.Repeat("x", 40<<10), `directory "xxx`},
	} {
		a.accept(update(id, source.digest, tt.dir))
		a.Expect(a.wait(id)).To(And(
			HaveField("State", failed), HaveField("Failure", agentpb.FailureReason_FAILURE_REASON_PROJECT_INVALID),
			HaveField("Message", And(ContainSubstring(tt.message), WithTransform(func(message string) int { return len(message) }, BeNumerically("<=", agentpb.MaxText))))))
	}
	a.Expect(a.runner.calls).To(BeEmpty())
}

func TestALocalProgramIsRunWhereItIs(t *testing.T) {
	g := NewWithT(t)
	dir := t.TempDir()
	write(t, dir, map[string]string{"workspace/infra/Pulumi.yaml": projectYAML})
	a := startAgent(t, dir)
	local := request("a")
	local.Kind = agentpb.OperationKind_OPERATION_KIND_UP
	local.Source = &agentpb.StartOperationRequest_Local{Local: &agentpb.LocalSource{Dir: "infra"}}
	started := a.startRequest(local)
	g.Expect(started.project).To(Equal(filepath.Join(dir, "workspace/infra")))
	a.finish("a", &agentpb.Operation{State: succeeded})

	local.Id, local.GetLocal().Dir = "b", "../operations"
	a.accept(local)
	g.Expect(a.wait("b")).To(HaveField("Message", `directory "../operations" is outside of the workspace`))
}
