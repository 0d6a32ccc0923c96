package operation_test

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	. "github.com/onsi/gomega"

	"github.com/stack-controller/stack-controller/internal/agent/agentpb"
	runner "github.com/stack-controller/stack-controller/internal/agent/operation"
	"github.com/stack-controller/stack-controller/tests/framework/suite"
)

// shownProgram outputs the stack configuration that is beside it while it runs.
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
	f = newFixture(t, func(options *runner.Options) { options.Workspace = workspace })
	f.Expect(os.Symlink(f.project, workspace)).To(Succeed())
	return f, workspace
}

// byHand runs pulumi as people do in the pod: with the environment of the container, and in a directory that has this name in the shell.
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

// ofArtifact makes the source an artifact with this digest.
func ofArtifact(digest string) func(*agentpb.StartOperationRequest) {
	return func(request *agentpb.StartOperationRequest) {
		request.Source = &agentpb.StartOperationRequest_Artifact{Artifact: &agentpb.ArtifactSource{Digest: digest}}
	}
}

func TestCommandsByHandWorkOnTheStackAsTheOperationDid(t *testing.T) {
	for name, inSource := range map[string]bool{"with a link": false, "with the flag, if the source has a configuration": true} {
		t.Run(name, func(t *testing.T) {
			f, workspace := newPod(t)
			f.write("Pulumi.yaml", "name: demo\nruntime: yaml\nconfig:\n  password: {type: string, secret: true}\n  region: {type: string}\n"+
				"outputs:\n  password: ${password}\n  region: ${region}\n")
			var flag []string
			if inSource {
				f.write("Pulumi.dev.yaml", sourceConfig)
			}
			options := []func(*agentpb.StartOperationRequest){ofArtifact("sha256:a"), withConfig(secret("password", canary), text("region", "eu-1"))}
			first := f.succeed(up, options...)
			f.processes()
			salt := f.salt()
			if inSource {
				files, err := filepath.Glob(filepath.Join(f.home, ".automation", "stacks", "*", "Pulumi.dev.yaml"))
				f.Expect(err).NotTo(HaveOccurred())
				f.Expect(f.logged.String()).To(ContainSubstring(files[0]), "where it is stands in the log")
				flag = []string{"--config-file=" + files[0]}
			}
			for _, dir := range []string{workspace, f.project} {
				f.byHand(dir, append([]string{"preview", "--expect-no-changes"}, flag...)...)
				f.Expect(f.byHand(dir, append([]string{"config", "get", "region"}, flag...)...)).To(Equal("eu-1\n"))
				f.Expect(f.byHand(dir, append([]string{"config", "get", "password"}, flag...)...)).To(Equal(canary + "\n"))
				f.byHand(dir, "stack", "select", "dev")
				f.byHand(dir, append([]string{"up", "--yes", "--skip-preview"}, flag...)...)
				f.byHand(dir, "stack", "export")
			}
			f.Expect(f.salt()).To(Equal(salt))

			// The next operation notices nothing of this, and finds nothing to encrypt again.
			next := f.succeed(up, options...)
			f.Expect(f.processes()).To(HaveExactElements(HavePrefix("up "), HavePrefix("stack output ")))
			f.Expect(f.salt()).To(Equal(salt))
			f.expectNoCanary(first, next)
		})
	}
}

func TestCommandsByHandWorkWithoutSecretsAndWithoutAFileInTheSource(t *testing.T) {
	suite.Long(t, "further inputs of an operation")
	f, workspace := newPod(t)
	f.write("Pulumi.yaml", simpleProgram)
	f.succeed(up, withConfig(text("a", "b")))
	// The agent is a new one, which did not create the stack.
	f.Expect(os.RemoveAll(f.home)).To(Succeed())
	f.restart()
	salt := f.salt()
	f.succeed(up, withConfig(text("a", "b")))
	f.byHand(workspace, "preview", "--expect-no-changes")
	f.byHand(workspace, "up", "--yes", "--skip-preview")
	f.Expect(f.byHand(workspace, "config", "get", "a")).To(Equal("b\n"))
	f.Expect(f.salt()).To(Equal(salt))

	// While an operation runs, the link is not there.
	f.replaceCLI("ls >> %q\nexec " + tool(t, "pulumi") + " \"$@\"\n")
	f.succeed(up, withConfig(text("a", "b")))
	f.Expect(f.noted()).To(And(ContainSubstring("Pulumi.yaml"), Not(ContainSubstring("Pulumi.dev.yaml"))))
	f.Expect(filepath.Join(f.project, "Pulumi.dev.yaml")).To(BeARegularFile())
}

func TestAChangeByHandIsNotUsed(t *testing.T) {
	suite.Long(t, "further ways to run; see TestConfigurationReachesTheProgram")
	f, workspace := newPod(t)
	f.write("Pulumi.yaml", "name: demo\nruntime: yaml\nconfig:\n  region: {type: string}\noutputs:\n  region: ${region}\n")
	region := withConfig(text("region", "eu-1"))
	f.succeed(up, region)
	f.byHand(workspace, "config", "set", "region", "by hand")

	operation := f.succeed(up, region)
	f.Expect(string(operation.GetOutputs()["region"].GetValue())).To(Equal(`"eu-1"`))
	f.Expect(f.byHand(workspace, "config", "get", "region")).To(Equal("eu-1\n"))
}

func TestConfigurationOfTheSourceStaysAsItWasDelivered(t *testing.T) {
	suite.Long(t, "further inputs of an operation")
	f, _ := newPod(t)
	f.write("Pulumi.yaml", shownProgram)
	f.write("Pulumi.dev.yaml", sourceConfig)
	password := withConfig(secret("password", "canary-value-1"))
	for _, region := range []string{"from the source", "from the next"} {
		f.write("Pulumi.dev.yaml", strings.ReplaceAll(sourceConfig, "from the source", region))
		operation := f.succeed(up, ofArtifact("sha256:a"), password)
		f.Expect(string(operation.GetOutputs()["region"].GetValue())).To(ContainSubstring(region))
		f.Expect(string(operation.GetOutputs()["beside"].GetValue())).To(ContainSubstring(region + " # as it is"))
		f.Expect(os.ReadFile(filepath.Join(f.project, "Pulumi.dev.yaml"))).To(ContainSubstring(region + " # as it is"))
	}
}

func TestAnImageThatCannotBeWrittenToIsNoProblem(t *testing.T) {
	suite.Long(t, "further images")
	f, _ := newPod(t)
	// root may write everywhere, but not into a directory that does not exist.
	f.write("Pulumi.yaml", "stackConfigDir: none\n"+strings.TrimSpace(simpleProgram)+"\n")
	f.succeed(up)
	f.Expect(f.logged.String()).To(ContainSubstring("there is no link to the stack's configuration"))
}
