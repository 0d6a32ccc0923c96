package operation_test

import (
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"

	. "github.com/onsi/gomega"

	"github.com/stack-controller/stack-controller/internal/agent/agentpb"
	"github.com/stack-controller/stack-controller/tests/framework/programs"
	"github.com/stack-controller/stack-controller/tests/framework/suite"
)

const providerProgram = `
name: demo
runtime: yaml
resources:
  one:
    type: test:index:Sleep
    properties: {echo: %s}
    options: {version: 0.1.0}
`

func TestInstallRunsOnlyWhenItsInputsChanged(t *testing.T) {
	f := newFixture(t)
	f.Expect(programs.PutProvider(t.Context(), filepath.Join(f.home, ".pulumi"))).Error().NotTo(HaveOccurred())
	// The operation itself installs what the program names.
	f.write("Pulumi.yaml", fmt.Sprintf(providerProgram, "a"))
	f.succeed(up)
	f.Expect(f.processes()).To(HaveExactElements(HavePrefix("up "), HavePrefix("whoami"), HavePrefix("stack init "), HavePrefix("up ")))
	const packages = "packages: {}\n"
	f.write("Pulumi.yaml", fmt.Sprintf(providerProgram, "a")+packages)
	f.succeed(up)
	f.Expect(f.processes()).To(HaveExactElements(HavePrefix("install"), HavePrefix("up ")))

	// Another program with the same packages, in another directory, and after a restart of the agent.
	f.project = t.TempDir()
	f.write("Pulumi.yaml", fmt.Sprintf(providerProgram, "b")+packages)
	f.restart()
	operation := f.succeed(up)
	f.Expect(operation.GetResourceChanges()).To(HaveKeyWithValue("update", int64(1)))
	f.Expect(f.processes()).To(HaveExactElements(HavePrefix("up ")))

	// Operations that do not run the program need nothing.
	f.write("Pulumi.yaml", fmt.Sprintf(providerProgram, "b")+packages+"plugins: {providers: []}\n")
	f.succeed(refresh)
	f.Expect(f.processes()).To(HaveLen(1))
	f.succeed(up)
	f.Expect(f.processes()).To(HaveExactElements(HavePrefix("install"), HavePrefix("up ")))

	// What was installed for these inputs once has been replaced since.
	f.write("Pulumi.yaml", fmt.Sprintf(providerProgram, "b")+packages)
	f.succeed(up)
	f.Expect(f.processes()).To(HaveExactElements(HavePrefix("install"), HavePrefix("up ")))
}

func TestCompiledProgramNeedsNoInstallation(t *testing.T) {
	f := newFixture(t)
	f.write("Pulumi.yaml", "name: demo\nruntime: {name: go, options: {binary: ./app}}\n")
	// There is no such program, so the operation fails; it has to get so far.
	f.run(up)
	f.Expect(f.processes()).NotTo(ContainElement(HavePrefix("install")))
}

func TestPluginThatCannotBeHadIsAFailedInstallation(t *testing.T) {
	suite.Long(t, "further inputs of an operation")
	f := newFixture(t)
	server := httptest.NewServer(http.NotFoundHandler())
	defer server.Close()
	f.write("Pulumi.yaml", strings.Replace(fmt.Sprintf(providerProgram, "a"), "version: 0.1.0", "version: 0.1.0, pluginDownloadURL: '"+server.URL+"'", 1))
	operation := f.fail(agentpb.FailureReason_FAILURE_REASON_INSTALL_FAILED, up)
	f.Expect(operation.GetMessage()).To(ContainSubstring("404"))
}

func TestFailedInstallIsReportedAndRepeated(t *testing.T) {
	f := newFixture(t)
	f.write("Pulumi.yaml", fmt.Sprintf(providerProgram, "a")+"packages: {local: ./missing-canary-value}\n")
	for range 2 {
		operation := f.fail(agentpb.FailureReason_FAILURE_REASON_INSTALL_FAILED, up, withEnv("UNUSED", "canary-value", true))
		f.Expect(operation.GetMessage()).To(And(HavePrefix("pulumi install: "), ContainSubstring("missing-[secret]")))
		f.Expect(f.processes()).To(HaveExactElements(HavePrefix("install")))
	}
}

func TestFailureOfAFullDiskSaysWhatToDo(t *testing.T) {
	f := newFixture(t)
	f.replaceCLI("touch %q\necho 'npm error nospc ENOSPC: no space left on device, write' >&2\nexit 1\n")
	f.write("Pulumi.yaml", "name: demo\nruntime: nodejs\n")
	operation := f.fail(agentpb.FailureReason_FAILURE_REASON_INSTALL_FAILED, up)
	f.Expect(operation.GetMessage()).To(And(ContainSubstring("no space left on device, write"),
		HaveSuffix("if the disk of the workspace is full, enlarge its volume, or delete the pod, which empties an emptyDir")))
}

func TestVanishedDependenciesAreInstalledAgain(t *testing.T) {
	f := newFixture(t)
	// There is no Node.js here. The CLI is replaced by a script that changes the directory as `pulumi install` does.
	f.writeCLI(fmt.Appendf(nil, "#!/bin/sh\necho $@ >> %q\nmkdir -p node_modules\n", f.commands))
	f.write("Pulumi.yaml", "name: demo\nruntime: nodejs\n")
	f.write("package.json", `{"dependencies": {}}`)
	f.write("index.ts", "// 1")
	expect := func(installed bool, why string) {
		t.Helper()
		f.run(preview)
		f.Expect(strings.HasPrefix(f.processes()[0], "install")).To(Equal(installed), why)
	}
	expect(true, "the first time")
	expect(false, "nothing changed")
	f.write("index.ts", "// 2")
	expect(false, "the program itself is no dependency")
	f.write("package.json", `{"dependencies": {"left-pad": "1.0.0"}}`)
	expect(true, "another dependency")
	f.write("lib/local/package.json", `{}`)
	expect(true, "another package of the tree")
	f.Expect(os.RemoveAll(filepath.Join(f.project, "node_modules"))).To(Succeed())
	expect(true, "what was installed is gone")
	expect(false, "nothing changed")
}

func TestProviderErrorsAreReportedWithTheResource(t *testing.T) {
	f := newCreated(t)
	f.Expect(programs.PutProvider(t.Context(), filepath.Join(f.home, ".pulumi"))).Error().NotTo(HaveOccurred())
	f.write("Pulumi.yaml", `
name: demo
runtime: yaml
config:
  password: {type: string, secret: true}
resources:
  one:
    type: test:index:Sleep
    properties: {seconds: 0.5, echo: "${password}", failMessage: "login with ${password} failed\n  \x1b[31mfor ever\x1b[0m"}
    options: {version: 0.1.0}
`)
	var reported []*agentpb.Operation
	request := f.request(up, withConfig(secret("password", "canary-value-77")))
	operation := f.runner.Run(t.Context(), request, f.paths(), func(progress *agentpb.Operation) { reported = append(reported, progress) })
	f.Expect(operation.GetState()).To(Equal(failed))
	f.Expect(operation.GetFailure()).To(Equal(agentpb.FailureReason_FAILURE_REASON_UPDATE_FAILED))
	f.Expect(operation.GetMessage()).To(ContainSubstring("test:index:Sleep one: "))
	f.Expect(operation.GetMessage()).To(ContainSubstring("login with [secret] failed; for ever"))
	var messages []string
	for _, progress := range reported {
		messages = append(messages, progress.GetMessage())
	}
	f.Expect(messages).To(ContainElement(ContainSubstring("create test:index:Sleep one")))
	f.Expect(reported[0].GetState()).To(Equal(agentpb.OperationState_OPERATION_STATE_PREPARING))
	f.expectNoCanary(append(reported, operation)...)
	f.Expect(f.logged.String()).To(ContainSubstring("echo: [secret]"))
}
