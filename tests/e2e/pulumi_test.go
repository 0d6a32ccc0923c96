package e2e_test

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"

	. "github.com/onsi/gomega"

	autov1alpha1 "github.com/stack-controller/stack-controller/api/auto/v1alpha1"
	"github.com/stack-controller/stack-controller/tests/tools"
)

// gate is the real pulumi CLI behind a script that notes every call, and holds updates while a file exists. Where there is a file
// old-pulumi in the home directory of an agent, it says that it is an old version.
type gate struct {
	dir string
}

// newGate writes the script.
func newGate(ctx context.Context, dir string) (*gate, error) {
	cli, err := tools.Path(ctx, "pulumi", nil)
	if err != nil {
		return nil, err
	}
	g := &gate{dir: dir}
	script := fmt.Sprintf(`#!/bin/sh
echo "$PWD: $*" >> %[1]s/calls
case " $* " in *" up "*|*" destroy "*)
  while [ -e %[1]s/hold ]; do touch %[1]s/held; sleep 0.05; done;;
*" version "*)
  if [ -e old-pulumi ]; then echo v3.190.0; exit; fi;;
esac
exec %[2]s "$@"
`, dir, cli)
	return g, os.WriteFile(g.path(), []byte(script), 0o755)
}

func (g *gate) path() string { return filepath.Join(g.dir, "pulumi") }

// hold keeps every "pulumi up" and "pulumi destroy" that starts from now on from running until release is called.
func (g *gate) hold(expect *WithT) (release func()) {
	_ = os.Remove(filepath.Join(g.dir, "held"))
	expect.Expect(os.WriteFile(filepath.Join(g.dir, "hold"), nil, 0o600)).To(Succeed())
	return func() { _ = os.Remove(filepath.Join(g.dir, "hold")) }
}

// awaitHeld waits until one is held.
func (g *gate) awaitHeld(expect *WithT) {
	expect.Eventually(filepath.Join(g.dir, "held")).WithTimeout(patience).WithPolling(pollInterval).Should(BeAnExistingFile())
}

// calls returns the arguments of every call since the beginning.
func (g *gate) calls(expect Gomega) []string {
	content, err := os.ReadFile(filepath.Join(g.dir, "calls"))
	expect.Expect(err).NotTo(HaveOccurred())
	return strings.Split(strings.TrimSpace(string(content)), "\n")
}

// callsFor returns the calls that the agent of the Stack's Workspace made.
func (g *gate) callsFor(ctx context.Context, expect *WithT, name string) []string {
	workspace := &autov1alpha1.Workspace{}
	expect.Expect(system.Client.Get(ctx, keyOf(name), workspace)).To(Succeed())
	dir := filepath.Dir(strings.TrimPrefix(workspace.Status.Address, "unix:"))
	return slices.DeleteFunc(g.calls(expect), func(call string) bool { return !strings.HasPrefix(call, dir) })
}
