package systemtest

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"

	. "github.com/onsi/gomega"

	"github.com/stack-controller/stack-controller/internal/procfs"
	"github.com/stack-controller/stack-controller/tests/framework/programs"
	"github.com/stack-controller/stack-controller/tests/tools"
)

// Directory returns the directory in which the process runtime keeps the workspace with the name.
func (s *Fixture) Directory(name string) string {
	sum := sha256.Sum256([]byte(s.Key(name).String()))
	return filepath.Join(s.System.Dir, "data", "workspaces", hex.EncodeToString(sum[:])[:12])
}

// PulumiHome returns PULUMI_HOME in the workspace with the name.
func (s *Fixture) PulumiHome(name string) string {
	return filepath.Join(s.Directory(name), "state", "home", ".pulumi")
}

// InstallProvider installs the test provider in the workspace with the name, which must have an agent.
func (s *Fixture) InstallProvider(name string) {
	s.Helper()
	s.Expect(s.PulumiHome(name)).To(BeADirectory())
	s.Expect(programs.PutProvider(s.Context(), s.PulumiHome(name))).Error().NotTo(HaveOccurred())
}

// KillAgent kills the agent of the Stack, as the kernel does when memory runs out.
func (s *Fixture) KillAgent() {
	s.Helper()
	content, err := os.ReadFile(filepath.Join(s.Directory(s.Name), "workspace.json"))
	s.Succeed(err)
	var record struct{ Agent procfs.Identity }
	s.Expect(json.Unmarshal(content, &record)).To(Succeed())
	s.Expect(record.Agent.Signal(syscall.SIGKILL)).To(Succeed())
}

// KillPulumi kills the pulumi process of the Stack's operation, as the kernel does when memory runs out.
func (s *Fixture) KillPulumi() {
	s.Helper()
	paths, err := filepath.Glob("/proc/[0-9]*/cmdline")
	s.Succeed(err)
	killed := false
	for _, path := range paths {
		content, _ := os.ReadFile(path)
		program, _, _ := strings.Cut(string(content), "\x00")
		if !strings.Contains(string(content), "--config-file="+s.Directory(s.Name)) || filepath.Base(program) != "pulumi" {
			continue
		}
		pid, err := strconv.Atoi(strings.Split(path, "/")[2])
		s.Succeed(err)
		s.Expect(syscall.Kill(pid, syscall.SIGKILL)).To(Succeed())
		killed = true
	}
	s.Expect(killed).To(BeTrue(), "pulumi does not run")
}

// Pulumi runs the CLI outside of the workspace, as a user would: in a project with the name, and with the environment variables. It returns
// the output of the CLI. While the stack is locked, Pulumi tries again.
func (s *Fixture) Pulumi(project string, env map[string]string, args ...string) string {
	s.Helper()
	cli, err := tools.Path(s.Context(), "pulumi", nil)
	s.Succeed(err)
	dir := s.TempDir()
	s.Expect(os.WriteFile(filepath.Join(dir, "Pulumi.yaml"), []byte(Program(project)["Pulumi.yaml"]), 0o600)).To(Succeed())
	environ := []string{
		"PATH=" + os.Getenv("PATH"), "HOME=" + dir, "USER=test", "PULUMI_HOME=" + filepath.Join(dir, "home"), "PULUMI_SKIP_UPDATE_CHECK=true",
	}
	for name, value := range env {
		environ = append(environ, name+"="+value)
	}
	var output []byte
	attempt := func() string {
		cmd := exec.CommandContext(s.Context(), cli, append(args, "--non-interactive")...)
		cmd.Dir, cmd.Env = dir, environ
		var err error
		if output, err = cmd.Output(); err == nil {
			return ""
		}
		failed := err.Error()
		if exit := (*exec.ExitError)(nil); errors.As(err, &exit) {
			failed += "\n" + string(output) + string(exit.Stderr)
		}
		return failed
	}
	var failed string
	s.Eventually(func() string { failed = attempt(); return failed }).ShouldNot(ContainSubstring("currently locked"))
	s.Expect(failed).To(BeEmpty())
	return string(output)
}

// stateFile returns the path of a stack's state in the backend of the system.
func (s *Fixture) stateFile(project, stack string) string {
	return filepath.Join(strings.TrimPrefix(s.System.BackendURL, "file://"), ".pulumi", "stacks", project, stack+".json")
}

// State returns the state of a stack in the backend of the system. It fails the test when there is none.
func (s *Fixture) State(project, stack string) string {
	s.Helper()
	content, err := os.ReadFile(s.stateFile(project, stack))
	s.Succeed(err)
	return string(content)
}

// HasState reports whether the backend of the system has the stack.
func (s *Fixture) HasState(project, stack string) bool {
	_, err := os.Stat(s.stateFile(project, stack))
	return err == nil
}

// StateResource is a resource in Pulumi's state, with the options with which it was registered.
type StateResource struct {
	URN            string
	Protect        bool
	RetainOnDelete bool
	DeletedWith    string
	CustomTimeouts struct{ Create float64 }
}

// StateResources returns the resources in the state of the stack "dev", in the project with the name of the fixture.
func (s *Fixture) StateResources() []StateResource {
	s.Helper()
	var state struct {
		Checkpoint struct {
			Latest struct{ Resources []StateResource }
		}
	}
	s.Expect(json.Unmarshal([]byte(s.State(s.Name, "dev")), &state)).To(Succeed())
	return state.Checkpoint.Latest.Resources
}
