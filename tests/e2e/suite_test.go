// Package e2e_test runs stack-controller as users do, as a process beside real servers, and checks what can be seen from outside.
package e2e_test

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	. "github.com/onsi/gomega"

	"github.com/stack-controller/stack-controller/tests/framework/canary"
	"github.com/stack-controller/stack-controller/tests/framework/localsystem"
	"github.com/stack-controller/stack-controller/tests/framework/suite"
	"github.com/stack-controller/stack-controller/tests/framework/systemtest"
	"github.com/stack-controller/stack-controller/tests/tools"
)

// The limits are small, so that what exceeds them is small, too.
const (
	maxArtifactSize = 1 << 20
	maxUnpackedSize = 4 << 20
	maxEntries      = 1000
)

// Secret values that the tests use. Nothing that stack-controller writes may contain them.
const (
	passphraseCanary = "passphrase-canary-7f3b"
	secretCanary     = "secret-canary-91ac"
)

var (
	system    *localsystem.System
	artifacts *systemtest.Artifacts
	pulumi    *gate
)

func TestMain(m *testing.M) { os.Exit(suite.EachPass(func() int { return run(m) })) }

func run(m *testing.M) int {
	dir, err := os.MkdirTemp("", "e2e-")
	if err == nil {
		defer os.RemoveAll(dir)
		pulumi, err = newGate(context.Background(), dir)
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	artifacts = systemtest.ServeArtifacts()
	defer artifacts.Close()
	suite := systemtest.Suite{
		Options: localsystem.Options{Pulumi: pulumi.path(), ControllerArgs: []string{
			"--feature-gates=ExternalArtifact=true",
			fmt.Sprintf("--artifact-max-size=%d", maxArtifactSize),
			fmt.Sprintf("--artifact-max-unpacked-size=%d", maxUnpackedSize),
			fmt.Sprintf("--artifact-max-entries=%d", maxEntries),
			"--concurrent=8",
		}},
		SetUp: func(_ context.Context, on *localsystem.System) error {
			system = on
			return nil
		},
		Leaks: func(ctx context.Context, on *localsystem.System) ([]string, error) {
			return canary.Find(ctx, on, nil, passphraseCanary, secretCanary)
		},
	}
	return suite.Run(m)
}

// gate is the real pulumi CLI behind a script. The script records every call, and holds updates and destroys of the workspaces that have a
// file held-NAME. If the home directory of an agent has a file old-pulumi, the script runs the oldest tested version of the CLI.
type gate struct {
	dir string
}

// newGate writes the script.
func newGate(ctx context.Context, dir string) (*gate, error) {
	cli, err := tools.Path(ctx, "pulumi", nil)
	if err != nil {
		return nil, err
	}
	oldest, host := "false", "/" // only tests of the long suite ask for them
	if !suite.Short() {
		if oldest, err = tools.Path(ctx, "pulumi-oldest", nil); err != nil {
			return nil, err
		}
		if host, err = tools.Path(ctx, "pulumi-language-yaml-oldest", nil); err != nil {
			return nil, err
		}
	}
	g := &gate{dir: dir}
	script := fmt.Sprintf(`#!/bin/sh
echo "$PWD: $*" >> %[1]s/calls
workspace=${PWD#*/workspaces/}; held=%[1]s/held-${workspace%%%%/*}
case " $* " in *" up "*|*" destroy "*)
  while [ -e "$held" ]; do touch "$held.now"; sleep 0.05; done;;
esac
if [ -e "$HOME/old-pulumi" ]; then export PATH=%[4]s:$PATH; exec %[3]s "$@"; fi
exec %[2]s "$@"
`, dir, cli, oldest, filepath.Dir(host))
	if err := os.WriteFile(filepath.Join(dir, "calls"), nil, 0o600); err != nil {
		return nil, err
	}
	return g, os.WriteFile(g.path(), []byte(script), 0o755)
}

func (g *gate) path() string { return filepath.Join(g.dir, "pulumi") }

// hold makes every "pulumi up" and "pulumi destroy" of the Stack that starts from now on wait until release is called.
func (p *fixture) hold() (release func()) {
	p.Helper()
	file := p.held()
	p.Expect(os.WriteFile(file, nil, 0o600)).To(Succeed())
	p.Cleanup(func() { _ = os.Remove(file) })
	return func() { _ = os.Remove(file) }
}

// held returns the file that makes calls wait.
func (p *fixture) held() string {
	return filepath.Join(pulumi.dir, "held-"+filepath.Base(p.Directory(p.Name)))
}

// awaitHeld waits until a call is held.
func (p *fixture) awaitHeld() {
	p.Helper()
	p.Eventually(p.held() + ".now").Should(BeAnExistingFile())
}

// calls returns the calls of pulumi in the workspaces of the names, from the beginning. Each one is the directory with the arguments.
func (p *fixture) calls(names ...string) []string {
	content, err := os.ReadFile(filepath.Join(pulumi.dir, "calls"))
	p.Succeed(err)
	return slices.DeleteFunc(strings.Split(strings.TrimSpace(string(content)), "\n"), func(call string) bool {
		return !slices.ContainsFunc(names, func(name string) bool { return strings.HasPrefix(call, p.Directory(name)) })
	})
}

// runs returns how often pulumi was called for the operation.
func (p *fixture) runs(operation string) (runs int) {
	for _, call := range p.calls(p.Name) {
		if strings.Contains(call, " "+operation+" ") {
			runs++
		}
	}
	return runs
}

// awaitRuns waits until pulumi was called this many times for the operation.
func (p *fixture) awaitRuns(operation string, times int) {
	p.Helper()
	p.Eventually(func() int { return p.runs(operation) }).Should(Equal(times))
}

// pulumi runs the CLI on the stack as a user who has the passphrase.
func (p *fixture) pulumi(args ...string) {
	p.Helper()
	p.Pulumi(p.Name, map[string]string{"PULUMI_BACKEND_URL": system.BackendURL, "PULUMI_CONFIG_PASSPHRASE": passphraseCanary}, append(args, "--stack=dev")...)
}
