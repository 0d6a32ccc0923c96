package server

import (
	"io/fs"
	"os"
	"path/filepath"
	"testing"

	. "github.com/onsi/gomega"

	"github.com/stack-controller/stack-controller/internal/agent/agentpb"
)

// runLocal runs a program of the workspace or the image. It returns the directory in which the program was run, or the message why it was
// not run.
func (a *agent) runLocal(id, dir string) (project, message string) {
	a.t.Helper()
	return a.runToEnd(&agentpb.StartOperationRequest{
		Id: id, Kind: agentpb.OperationKind_OPERATION_KIND_UP, Stack: "dev",
		Source: &agentpb.StartOperationRequest_Local{Local: &agentpb.LocalSource{Dir: dir}},
	})
}

func (a *agent) runToEnd(request *agentpb.StartOperationRequest) (project, message string) {
	a.t.Helper()
	a.accept(request)
	select {
	case started := <-a.runner.calls:
		a.finish(request.GetId(), &agentpb.Operation{State: succeeded})
		return started.project, ""
	case <-a.ended(request.GetId()):
		return "", a.wait(request.GetId()).GetMessage()
	}
}

// ended returns a channel that is closed when the operation has ended.
func (a *agent) ended(id string) <-chan struct{} {
	known, err := a.server.executor.find(id)
	NewWithT(a.t).Expect(err).NotTo(HaveOccurred())
	return known.ended
}

func TestTheWorkspaceLeadsToTheProgramThatWasDelivered(t *testing.T) {
	g := NewWithT(t)
	dir := t.TempDir()
	// The init containers of a pod leave these files beside the workspace.
	others := map[string]string{"agent": "binary", "tini": "binary", ".env": "A=1\n", "tools/kubectl": "binary"}
	write(t, dir, others)
	workspace := filepath.Join(dir, "workspace")
	g.Expect(os.Mkdir(workspace, 0o755)).To(Succeed())
	a := startAgent(t, dir)
	first := pack(t, map[string]string{"Pulumi.yaml": projectYAML, "infra/Pulumi.yaml": projectYAML})
	g.Expect(a.push(first)).To(Succeed())
	g.Expect(workspace).To(BeADirectory(), "which program it is going to be is not known yet")
	for id, program := range map[string]string{"a": "infra", "b": "", "c": "infra"} {
		project, message := a.runToEnd(update(id, first.digest, program))
		g.Expect(message).To(BeEmpty())
		g.Expect(filepath.EvalSymlinks(workspace)).To(Equal(project))
		g.Expect(filepath.Join(workspace, "Pulumi.yaml")).To(BeARegularFile())
	}

	// The next agent recognizes the link as its own, and the link leads to the next source.
	g.Expect(a.Close()).To(Succeed())
	g.Expect(a.stop()).To(Succeed())
	next := startAgent(t, dir)
	second := pack(t, map[string]string{"other/Pulumi.yaml": projectYAML})
	g.Expect(next.push(second)).To(Succeed())
	_, message := next.runToEnd(update("d", second.digest, "other"))
	g.Expect(message).To(BeEmpty())
	g.Expect(filepath.EvalSymlinks(workspace)).To(Equal(filepath.Join(dir, "source/other")))
	// The program behind the link is not a program of the workspace.
	_, message = next.runLocal("e", "")
	g.Expect(message).To(Equal("the workspace has no program of its own"))
	for name, content := range others {
		g.Expect(os.ReadFile(filepath.Join(dir, name))).To(BeEquivalentTo(content), name)
	}
}

func TestAWorkspaceThatIsNotOursStaysAsItIs(t *testing.T) {
	for name, prepare := range map[string]func(g *WithT, workspace string){
		"a program that an init container brought": func(g *WithT, workspace string) {
			g.Expect(os.MkdirAll(filepath.Join(workspace, "sub"), 0o755)).To(Succeed())
			g.Expect(os.WriteFile(filepath.Join(workspace, "Pulumi.yaml"), []byte(projectYAML), 0o600)).To(Succeed())
		},
		"a link of somebody else": func(g *WithT, workspace string) { g.Expect(os.Symlink("/etc", workspace)).To(Succeed()) },
		"a file":                  func(g *WithT, workspace string) { g.Expect(os.WriteFile(workspace, nil, 0o600)).To(Succeed()) },
	} {
		t.Run(name, func(t *testing.T) {
			g := NewWithT(t)
			dir := t.TempDir()
			workspace := filepath.Join(dir, "workspace")
			prepare(g, workspace)
			before, err := os.Lstat(workspace)
			g.Expect(err).NotTo(HaveOccurred())
			a := startAgent(t, dir)
			source := pack(t, map[string]string{"Pulumi.yaml": projectYAML})
			g.Expect(a.push(source)).To(Succeed())
			_, message := a.runToEnd(update("a", source.digest, ""))
			g.Expect(message).To(BeEmpty())
			after, err := os.Lstat(workspace)
			g.Expect(err).NotTo(HaveOccurred())
			g.Expect(os.SameFile(before, after)).To(BeTrue())
			g.Expect(a.log.String()).To(ContainSubstring("which the program does not see"))
			if before.IsDir() {
				project, message := a.runLocal("b", ".")
				g.Expect(message).To(BeEmpty())
				g.Expect(project).To(Equal(workspace))
			}
		})
	}
}

func TestAWorkspaceElsewhereIsLeftAlone(t *testing.T) {
	workspace := t.TempDir()
	a := startAgent(t, t.TempDir(), func(options *Options) { options.Workspace = workspace })
	source := pack(t, map[string]string{"Pulumi.yaml": projectYAML})
	a.Expect(a.push(source)).To(Succeed())
	_, message := a.runToEnd(update("a", source.digest, ""))
	a.Expect(message).To(BeEmpty())
	info, err := os.Lstat(workspace)
	a.Expect(err).NotTo(HaveOccurred())
	a.Expect(info.Mode().Type()).To(Equal(fs.ModeDir))
}

func TestAProgramOfTheImageNeedsPermission(t *testing.T) {
	g := NewWithT(t)
	image := t.TempDir()
	write(t, image, map[string]string{"app/infra/Pulumi.yaml": projectYAML, "app/other/Pulumi.yaml": projectYAML, "app/empty/README.md": ""})
	g.Expect(os.Symlink(filepath.Join(image, "app"), filepath.Join(image, "current"))).To(Succeed())
	infra := filepath.Join(image, "app/infra")

	_, message := startAgent(t, t.TempDir()).runLocal("a", infra)
	g.Expect(message).To(ContainSubstring("is outside of the workspace"))

	dir := t.TempDir()
	workspace := filepath.Join(dir, "workspace")
	a := startAgent(t, dir, func(options *Options) { options.LocalRoot = "/" })
	for id, program := range map[string]string{"a": infra, "b": filepath.Join(image, "app/other"), "c": infra} {
		project, message := a.runLocal(id, program)
		g.Expect(message).To(BeEmpty())
		g.Expect(project).To(Equal(program))
		g.Expect(filepath.EvalSymlinks(workspace)).To(Equal(program))
	}
	project, message := a.runLocal("d", filepath.Join(image, "current/infra"))
	g.Expect(message).To(BeEmpty())
	g.Expect(project).To(Equal(infra))
	_, message = a.runLocal("e", filepath.Join(image, "app/empty"))
	g.Expect(message).To(ContainSubstring("no Pulumi.yaml there"))
	_, message = a.runLocal("f", filepath.Join(image, "missing"))
	g.Expect(message).To(ContainSubstring("does not exist in the image"))

	below := startAgent(t, t.TempDir(), func(options *Options) { options.LocalRoot = filepath.Join(image, "app") })
	project, message = below.runLocal("a", "/infra")
	g.Expect(message).To(BeEmpty())
	g.Expect(project).To(Equal(infra))
	_, message = below.runLocal("b", "/../other")
	g.Expect(message).To(ContainSubstring("outside of the image"))
}

func TestAnAgentThatEndsWhileItMovesTheLinkKnowsItAsItsOwn(t *testing.T) {
	g := NewWithT(t)
	dir, image := t.TempDir(), t.TempDir()
	write(t, image, map[string]string{"a/Pulumi.yaml": projectYAML, "b/Pulumi.yaml": projectYAML})
	workspace := filepath.Join(dir, "workspace")
	a := startAgent(t, dir, func(options *Options) { options.LocalRoot = "/" })
	_, message := a.runLocal("a", filepath.Join(image, "a"))
	g.Expect(message).To(BeEmpty())
	// Agents that ended while they replaced the link, and before they created it, leave this state.
	g.Expect(os.Symlink("half", filepath.Join(dir, newLink))).To(Succeed())
	g.Expect(os.Remove(filepath.Join(dir, programLink))).To(Succeed())
	_, message = a.runLocal("b", filepath.Join(image, "b"))
	g.Expect(message).To(BeEmpty())
	g.Expect(filepath.EvalSymlinks(workspace)).To(Equal(filepath.Join(image, "b")))
}
