package automation_test

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	. "github.com/onsi/gomega"

	"github.com/stack-controller/stack-controller/internal/agent/automation"
	"github.com/stack-controller/stack-controller/internal/agent/proto"
)

// shownProgram shows which stack configuration lay beside it when it ran.
const shownProgram = `
name: demo
runtime: yaml
config:
  password: {type: string, secret: true}
  region: {type: string}
outputs:
  password: ${password}
  region: ${region}
  beside: {fn::readFile: ./Pulumi.dev.yaml}
`

const sourceConfig = "config:\n  demo:region: from the source # as it is\n"

// newPod is a fixture as in a pod: the workspace is a link to the program.
func newPod(t *testing.T) (f *fixture, workspace string) {
	t.Helper()
	workspace = filepath.Join(t.TempDir(), "workspace")
	f = newFixture(t, func(options *automation.Options) { options.Workspace = workspace })
	f.Expect(os.Symlink(f.project, workspace)).To(Succeed())
	return f, workspace
}

// byHand runs pulumi as people do in the pod: with the environment of the container, and in a directory that the shell has
// this name for.
func (f *fixture) byHand(dir string, args ...string) string {
	f.t.Helper()
	cmd := exec.CommandContext(f.t.Context(), tool(f.t, "pulumi"), append(args, "--non-interactive")...)
	cmd.Dir = dir
	cmd.Env = []string{
		"PATH=" + filepath.Dir(f.options.Pulumi) + ":/usr/bin:/bin", "HOME=" + f.home, "USER=me", "PULUMI_HOME=" + filepath.Join(f.home, ".pulumi"), "PWD=" + dir,
		"PULUMI_BACKEND_URL=file://" + f.state, "PULUMI_CONFIG_PASSPHRASE=" + passphrase, "PULUMI_SKIP_UPDATE_CHECK=true",
	}
	output, err := cmd.CombinedOutput()
	f.Expect(err).NotTo(HaveOccurred(), string(output))
	return string(output)
}

// ofArtifact makes the source one that was delivered.
func ofArtifact(digest string) func(*proto.StartOperationRequest) {
	return func(request *proto.StartOperationRequest) {
		request.Source = &proto.StartOperationRequest_Artifact{Artifact: &proto.ArtifactSource{Digest: digest}}
	}
}

func TestCommandsByHandWorkOnTheStackAsTheOperationDid(t *testing.T) {
	f, workspace := newPod(t)
	f.write("Pulumi.yaml", shownProgram)
	f.write("Pulumi.dev.yaml", sourceConfig)
	options := []func(*proto.StartOperationRequest){ofArtifact("sha256:a"), withConfig(secret("password", canary), text("region", "eu-1"))}
	first := f.run(up, options...)
	f.Expect(first.GetState()).To(Equal(succeeded), first.GetMessage())
	f.Expect(string(first.GetOutputs()["beside"].GetValue())).To(ContainSubstring("from the source"))
	f.processes()
	salt := f.salt()

	for _, dir := range []string{workspace, f.project} {
		f.byHand(dir, "preview", "--expect-no-changes")
		f.Expect(f.byHand(dir, "config", "get", "region")).To(Equal("eu-1\n"))
		f.Expect(f.byHand(dir, "config", "get", "password")).To(Equal(canary + "\n"))
		f.byHand(dir, "stack", "select", "dev")
		f.byHand(dir, "up", "--yes", "--skip-preview")
		f.byHand(dir, "stack", "export")
	}
	f.Expect(f.salt()).To(Equal(salt))

	// The next operation is none the wiser, and finds nothing to encrypt again.
	next := f.run(up, options...)
	f.Expect(next.GetState()).To(Equal(succeeded), next.GetMessage())
	f.Expect(next.GetOutputs()["beside"]).To(Equal(first.GetOutputs()["beside"]))
	f.Expect(f.processes()).To(HaveExactElements(HavePrefix("up "), HavePrefix("stack output ")))
	f.Expect(f.salt()).To(Equal(salt))
	f.Expect(f.logged.String()).NotTo(ContainSubstring("changed by hand"))
	f.expectNoCanary(first, next)
}

func TestCommandsByHandWorkWithoutSecretsAndWithoutAFileInTheSource(t *testing.T) {
	f, workspace := newPod(t)
	f.write("Pulumi.yaml", simpleProgram)
	f.Expect(f.run(up, withConfig(text("a", "b"))).GetState()).To(Equal(succeeded))
	// The agent is a new one, which did not create the stack.
	f.Expect(os.RemoveAll(f.home)).To(Succeed())
	f.Expect(os.Remove(filepath.Join(f.project, "Pulumi.dev.yaml"))).To(Succeed())
	f.restart()
	salt := f.salt()
	f.Expect(f.run(up, withConfig(text("a", "b"))).GetState()).To(Equal(succeeded))
	f.byHand(workspace, "preview", "--expect-no-changes")
	f.byHand(workspace, "up", "--yes", "--skip-preview")
	f.Expect(f.byHand(workspace, "config", "get", "a")).To(Equal("b\n"))
	f.Expect(f.salt()).To(Equal(salt))

	// While an operation runs, the file is not there.
	f.replaceCLI("ls >> %q\nexec " + tool(t, "pulumi") + " \"$@\"\n")
	operation := f.run(up, withConfig(text("a", "b")))
	f.Expect(operation.GetState()).To(Equal(succeeded), operation.GetMessage())
	f.Expect(f.noted()).To(And(ContainSubstring("Pulumi.yaml"), Not(ContainSubstring("Pulumi.dev.yaml"))))
	f.Expect(filepath.Join(f.project, "Pulumi.dev.yaml")).To(BeARegularFile())
}

func TestAChangeByHandIsToldAndNotUsed(t *testing.T) {
	f, workspace := newPod(t)
	f.write("Pulumi.yaml", shownProgram)
	f.write("Pulumi.dev.yaml", sourceConfig)
	options := []func(*proto.StartOperationRequest){ofArtifact("sha256:a"), withConfig(secret("password", "canary-value-1"))}
	f.Expect(f.run(up, options...).GetState()).To(Equal(succeeded))
	f.byHand(workspace, "config", "set", "region", "by hand")

	operation := f.run(up, options...)
	f.Expect(operation.GetState()).To(Equal(succeeded), operation.GetMessage())
	f.Expect(string(operation.GetOutputs()["region"].GetValue())).To(Equal(`"from the source"`))
	f.Expect(f.logged.String()).To(ContainSubstring("was changed by hand"))
	f.Expect(f.readAll(filepath.Join(f.home, ".automation", "edited"), "Pulumi.dev.yaml")).To(ContainSubstring("by hand"))
	f.Expect(f.byHand(workspace, "config", "get", "region")).To(Equal("from the source\n"))
}

func TestANewSourceIsUsedAsItWasDelivered(t *testing.T) {
	f, _ := newPod(t)
	f.write("Pulumi.yaml", shownProgram)
	f.write("Pulumi.dev.yaml", sourceConfig)
	password := withConfig(secret("password", "canary-value-1"))
	f.Expect(f.run(up, ofArtifact("sha256:a"), password).GetState()).To(Equal(succeeded))
	// Also when a destroy without the program comes between.
	f.Expect(f.run(refresh, func(request *proto.StartOperationRequest) {
		request.Source = &proto.StartOperationRequest_Project{Project: &proto.ProjectSource{Name: "demo", Runtime: "yaml"}}
	}).GetState()).To(Equal(succeeded))
	f.restart()
	f.write("Pulumi.dev.yaml", strings.ReplaceAll(sourceConfig, "from the source", "from the next"))

	operation := f.run(up, ofArtifact("sha256:b"), password)
	f.Expect(operation.GetState()).To(Equal(succeeded), operation.GetMessage())
	f.Expect(string(operation.GetOutputs()["region"].GetValue())).To(Equal(`"from the next"`))
	f.Expect(f.logged.String()).NotTo(ContainSubstring("changed by hand"))
}

func TestAProgramThatWasReplacedWhileNoAgentRanIsUsedAsItIs(t *testing.T) {
	f, _ := newPod(t)
	f.write("Pulumi.yaml", shownProgram)
	f.write("Pulumi.dev.yaml", sourceConfig)
	password := withConfig(secret("password", "canary-value-1"))
	f.Expect(f.run(up, password).GetState()).To(Equal(succeeded))
	// An init container that runs again, when the pod does.
	f.write("Pulumi.dev.yaml", strings.ReplaceAll(sourceConfig, "from the source", "from the next"))
	f.restart()
	operation := f.run(up, password)
	f.Expect(operation.GetState()).To(Equal(succeeded), operation.GetMessage())
	f.Expect(string(operation.GetOutputs()["region"].GetValue())).To(Equal(`"from the next"`))

	// What was left and nobody changed is taken back.
	f.restart()
	operation = f.run(up, password)
	f.Expect(string(operation.GetOutputs()["beside"].GetValue())).To(ContainSubstring("from the next # as it is"))
}

func TestAnImageThatCannotBeWrittenToIsNoProblem(t *testing.T) {
	f, _ := newPod(t)
	f.write("Pulumi.yaml", simpleProgram)
	// Something else than a file is left alone, for whoever may write everywhere.
	f.Expect(os.Mkdir(filepath.Join(f.project, "Pulumi.dev.yaml.new"), 0o755)).To(Succeed())
	f.write("Pulumi.dev.yaml.new/x", "")
	operation := f.run(up)
	f.Expect(operation.GetState()).To(Equal(succeeded), operation.GetMessage())
	f.Expect(f.logged.String()).To(ContainSubstring("the stack's configuration is not beside the program"))
	f.Expect(filepath.Join(f.project, "Pulumi.dev.yaml")).NotTo(BeAnExistingFile())
}
